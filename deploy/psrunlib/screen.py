"""The terminal: prefixed lines, and rank 0's progress bar below them."""
import os
import re
import select
import shutil
import sys
import textwrap

PIECE = 1000  # characters that a pipe or terminal takes at once when it is writable
MOST_HELD = 1 << 20  # characters that wait for a reader

COLOURS = {"WARN": "33", "ERROR": "31"}


def to_nowhere(stream):
    """Drops what the stream still holds and everything written to it from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def wrapped(text, stream, columns, indent=2):
    """The text in lines of a terminal, broken between words; of another stream as it is."""
    if not stream.isatty() or len(text) <= columns:
        return text
    if all(len(group) <= columns - indent for group in re.split("  +", text)):  # as the figures of an epoch
        text = re.sub("(?<! ) (?! )", "\0", text)
    text = re.sub(r"(?<=[a-zA-Z]) (?=\d)|(?<=\d) (?=([KMG]i?B|B|ms|s)\b)", "\0", text)  # a figure and its name or unit
    return textwrap.fill(text, columns, subsequent_indent=" " * indent, replace_whitespace=False,
                         break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def tell(text, stream=None):
    """Prints a text, where no job is running that would wait for a slow reader."""
    stream = stream or sys.stdout
    columns = stream.isatty() and os.get_terminal_size(stream.fileno()).columns or 80
    print(wrapped(text, stream, columns), file=stream, flush=True)


class Screen:
    def __init__(self, stream=None, verbose=False):
        self.stream = stream or sys.stdout
        self.verbose = verbose
        self.terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"  # which shows escapes as they are
        self.bar = ""
        self.evaluations = True  # whether to show lines that are not of the log
        self.held = ""  # not written yet, because nobody reads
        self.waits = False  # whether writing may block: true when the job has ended

    def columns(self):
        return shutil.get_terminal_size((100, 24)).columns

    def shows(self, part, said):
        """Whether it shows a line; without --verbose, of parts except worker 0 only warnings, errors and
        the page's address. said: a LogLine, or None. psrun itself says which signal has come, and to whom."""
        told = said and (said.level in COLOURS or said.event == "page")
        of_worker_0 = part.name == "worker 0" and not (said and said.event == "interrupted")
        return (told or of_worker_0 or self.verbose) and (said or self.evaluations)

    def line(self, part, text, said):
        if self.shows(part, said):
            self._show(self._coloured(f"[{part.name}] ", text, said) + "\n", self.bar)

    def say(self, text="", indent=2):
        self._show(wrapped(text, self.stream, self.columns(), indent) + "\n", self.bar)

    def progress(self, part, text):
        if self.terminal and part.name == "worker 0":
            self._show("", text[: self.columns() - 1])

    def begin(self):
        """From here on a job runs. It must not wait for a slow reader of psrun's output."""
        self.waits = False

    def keep_bar(self):
        """Called when the job has ended: the bar's last state becomes a line of its own."""
        self.waits = True
        self._show(self.bar + "\n" if self.bar else "", "")

    def say_in_red(self, text):
        text = wrapped(text, self.stream, self.columns())
        self._show((f"\x1b[31m{text}\x1b[0m" if self.terminal else text) + "\n", self.bar)

    def _coloured(self, prefix, text, said):
        if not self.terminal:
            return prefix + text
        colour = COLOURS.get(said.level) if said else None
        if said:  # the time and the role are in the logs
            text = f"{said.level} " * bool(colour) + f"{said.event} {said.rest}"
        text = wrapped(prefix + text, self.stream, self.columns(), len(prefix)).removeprefix(prefix)
        return f"\x1b[2m{prefix}\x1b[0m" + (f"\x1b[{colour}m{text}\x1b[0m" if colour else text)

    def _show(self, text, bar):
        """Writes text in the bar's place, and the new bar below. If nobody reads now (a pager,
        Ctrl-S), the text is held until later: psrun would block, and then its parts would."""
        self.held += text
        if not self._takes():
            self._bound_held()
            return
        shown, self.held = ("\r\x1b[K" if self.bar else "") + self.held + bar, ""
        self.bar = bar
        for at in range(0, len(shown), PIECE):
            if not self._takes():
                self.held = shown[at:]
                break
            self._write(shown[at:at + PIECE])

    def _bound_held(self):
        """Nobody may read for hours."""
        if len(self.held) > MOST_HELD:
            kept = self.held[-MOST_HELD // 2:].partition("\n")[2]
            self.held = "psrun: nobody has read this for a while; what is missing here is in the logs\n" + kept

    def _takes(self):
        return self.waits or select.select([], [self.stream], [], 0)[1]

    def _write(self, text):
        """The reader may end before the job (a `tee` that the same Ctrl-C has ended), and a disk
        may be full. The job goes on, and keeps its weights."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            to_nowhere(self.stream)
            self._complain(f"psrun: cannot write its output any more: {error.strerror}; the job and its logs go on")

    @staticmethod
    def _complain(text):
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            to_nowhere(sys.stderr)
