"""What people see: prefixed lines, and below them rank 0's progress bar in place."""
import re
import shutil
import sys

LEVEL = re.compile(r"^\s*[\d.]+ \S+ (DEBUG|INFO |WARN |ERROR) ")
COLOURS = {"WARN ": "33", "ERROR": "31"}


def level_of(line):
    found = LEVEL.match(line)
    return found.group(1).strip() if found else ""


class Screen:
    def __init__(self, stream=None, verbose=False):
        self.stream = stream or sys.stdout
        self.verbose = verbose
        self.terminal = self.stream.isatty()
        self.bar = ""

    def columns(self):
        return shutil.get_terminal_size((100, 24)).columns

    def line(self, part, text):
        """A log line. Of all but worker 0 only warnings and errors, unless --verbose."""
        quiet = part.name != "worker 0" and level_of(text) not in ("WARN", "ERROR")
        if quiet and not self.verbose:
            return
        self.say(self._coloured(f"[{part.name}] ", text))

    def say(self, text=""):
        self._clear_bar()
        self.stream.write(text + "\n")
        self._draw_bar()
        self.stream.flush()

    def progress(self, text):
        if not self.terminal:
            return
        self._clear_bar()
        self.bar = text[: self.columns() - 1]
        self._draw_bar()
        self.stream.flush()

    def keep_bar(self):
        """The bar's last state becomes a line of its own."""
        if self.bar:
            self.stream.write("\n")
            self.bar = ""

    def red(self, text):
        return f"\x1b[31m{text}\x1b[0m" if self.terminal else text

    def _coloured(self, prefix, text):
        found = LEVEL.match(text)
        colour = COLOURS.get(found.group(1)) if found and self.terminal else None
        body = f"\x1b[{colour}m{text}\x1b[0m" if colour else text
        return (f"\x1b[2m{prefix}\x1b[0m" if self.terminal else prefix) + body

    def _clear_bar(self):
        if self.bar:
            self.stream.write("\r\x1b[K")

    def _draw_bar(self):
        if self.bar:
            self.stream.write(self.bar)
