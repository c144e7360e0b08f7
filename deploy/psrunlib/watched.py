"""One running part: its output, what it has told, and its end."""
import codecs
import collections
import re
import signal

from . import cgroup, events
from .log_line import parse
from .traceback import Traceback, error_of, is_of_others

SSH_FAILED = 255  # ssh's own exit code
LONGEST = 1 << 16  # characters of a line; a longer one is taken in pieces
LONGEST_TRACEBACK = 4000  # lines
MOST_ERRORS = 100  # the last ones: a program may handle, and print, one in each step


def name_of(number):
    """Of a signal; most real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def killed(number, lacks_memory):
    """How a signal has ended a part."""
    return f"was ended by {name_of(number)}" + cgroup.LACKS_MEMORY * lacks_memory


class Watched:
    """A running part, its output and its log file."""

    def __init__(self, process, log):
        self.process = process
        self.part = process.part
        self.log = log  # None: writing it has failed
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two reads
        self.rest, self.rest_of_events = "", b""
        self.returned = ""  # what ended with a carriage return, when nothing has come since
        self.open = True
        self.closed_at = 0.0  # when it closed its output, by Supervisor.now
        self.n_stops = 0
        self.begin_again()

    def begin_again(self):
        """Nothing is known of it yet: it has started, or takes part in another attempt."""
        self.failures = collections.deque(maxlen=MOST_ERRORS)  # events.Failure
        self.printed = collections.deque(maxlen=MOST_ERRORS)  # the same, from its output
        self.traceback = Traceback()
        self.of_traceback = []  # lines of one that has not ended yet
        self.told = None  # the signal that it was told to end by
        self.spoke = False  # the part itself has told something; else ssh may have written
        self.has_begun = False  # it has told, in this start or an earlier one, that the job runs: all it takes have joined
        self.last_line = ""
        self.step = 0  # the last one that it has told
        self.code = None
        self.ended_at = 0.0
        self.killed_before = cgroup.killed_for_memory()
        self.lacks_memory = False  # the kernel has killed it, it seems, because no memory was left
        self.stopped_at = None  # set while it is stopped
        self.silent_at = None  # when the coordinator missed it; None: it has said something since
        self.fault = ""  # why psrun ended it
        self.left = False  # it has ended, and an elastic job goes on without it
        self.missed_others = False  # it has told that others had not joined in time
        self.exits = False  # a Python program that has ended by itself, and has left its job then
        self.has_workers = False  # it has told, in this start, that a worker has joined

    def take(self, data, screen):
        """Output. Lines end with a line feed, or with both; a progress bar's states with a carriage return."""
        pieces = re.split(r"(\r\n|[\r\n])", self.rest + self.decoder.decode(data))
        self.rest = pieces.pop()
        for line, end in zip(pieces[0::2], pieces[1::2]):
            line = line or self.returned
            self.returned = line if end == "\r" else ""
            if end == "\r":
                screen.progress(self.part, line)
            elif line:
                self._line(line, screen)
        if len(self.rest) > LONGEST:
            self._end_line(screen)

    def _end_line(self, screen):
        line, self.rest = self.rest, ""
        if line:
            self._line(line, screen)

    def take_events(self, data, screen, heard):
        """heard: is called with each event. What else comes there is ssh's or a shell's output."""
        *lines, self.rest_of_events = (self.rest_of_events + data).split(b"\n")
        if len(self.rest_of_events) > LONGEST:
            lines, self.rest_of_events = [*lines, self.rest_of_events], b""
        for line in lines:
            text = line.decode("utf-8", "replace")
            event = events.parse(text)
            if event:
                self._note(event)
                heard(self, event)
            elif text.strip():
                self._line(text.rstrip("\r"), screen)

    @property
    def errors(self):
        """Those that it has told, else those that it has printed."""
        return [e for e in self.failures or self.printed if not (self.exits and e.kind == "PEER")]

    @property
    def last_error(self):
        """Its own, if it has one besides those of which others are the cause."""
        own = [e for e in self.errors if e.kind != "PEER"] or self.errors
        return own[-1] if own else events.Failure("")

    @property
    def how(self):
        """What has ended it."""
        if self.fault:
            return self.fault
        if self.code < 0:
            return killed(-self.code, self.lacks_memory)
        if self.part.host and self.code == SSH_FAILED:
            return f"lost its connection to {self.part.host.name} (ssh ended with exit code {SSH_FAILED})"
        return f"ended with exit code {self.code}"

    @property
    def may_lack_memory(self):
        """Whether it was killed, and nobody knows by whom."""
        return self.code == -signal.SIGKILL and not self.fault and not self.lacks_memory

    @property
    def has_last_words(self):
        """Whether what it has said last tells why it has ended. A signal comes without words, except abort()'s: C++ says
        which exception nobody has handled (std::bad_alloc)."""
        return not self.fault and (self.code > 0 or self.code == -signal.SIGABRT)

    @property
    def why(self):
        """How it has ended, and the error that it has given."""
        error = self.last_error.text if self.code and self.code > 0 and not self.fault else ""
        return f"{self.how}: {error}" if error else self.how

    def _line(self, line, screen):
        self._keep(line, screen)
        if not self.last_line or not is_of_others(line):
            self.last_line = line
        if self.traceback.follows(line):
            self.of_traceback.append(line)
            self._end_traceback(screen, self.traceback.error)
            return
        error = self.traceback.take(line)
        if error:
            self.printed.append(error)
        self.of_traceback.append(line)
        if not self.traceback.inside or len(self.of_traceback) > LONGEST_TRACEBACK:
            self._end_traceback(screen, error)

    def _end_traceback(self, screen, error=None):
        """error: the one that it is about; None: the lines are of none, or it has no end."""
        lines, self.of_traceback = self.of_traceback, []
        if error and error.kind == "PEER":
            screen.traceback(self.part, lines)
        else:
            for line in lines:
                screen.line(self.part, line, parse(line))

    def _note(self, event):
        self.spoke = True
        name = event["event"]
        if name == "joined":  # the coordinator's
            self.has_begun = self.has_begun or event["here"] == event["of"]
            self.has_workers = self.has_workers or event["role"] == "worker"
        elif name == "workers":  # worker 0's; an elastic job may begin without some
            self.has_begun = True
        elif name == "exits":
            self.exits = True
        elif name == "missing":
            self.missed_others = True
        elif name == "rejoin":
            self.failures.clear()  # it goes on
        elif name == "interrupted":
            self.told = signal.Signals.__members__.get(event["signal"], self.told)
        elif name == "ended" and self.part.host:
            self.process.has_ended(event["code"])
            self.lacks_memory = event.get("lacks_memory") is True
        elif name == "step":
            self.step = event["step"]
        elif name == "failure":
            self.failures.append(events.Failure(event["reason"], event["kind"], event["passing"]))
        elif name == "exception" and (error := error_of(event["line"])):
            self.failures.append(error)

    def note(self, line, screen):
        """Writes a line of psrun's to its log."""
        if self.open:
            self._keep(line, screen)

    def _keep(self, line, screen):
        """Writes a line to the log. A full disk ends the log, not the job."""
        if not self.log:
            return
        try:
            self.log.write(line + "\n")
            self.log.flush()
        except OSError as error:
            screen.say(f"psrun: cannot write {self.log.name}: {error.strerror}; this log ends here")
            self._close_log()

    def _close_log(self):
        try:
            if self.log:
                self.log.close()
        except OSError:
            pass  # the error has been shown already
        self.log = None

    def look(self, now):
        """Notes whether it has ended or is stopped."""
        self.code = self.process.poll()
        stopped_by = self.process.stopped_by() if self.code is None else None
        if self.code is not None:
            self.ended_at = now
            if self.code == -signal.SIGKILL and not self.part.host:
                self.lacks_memory = cgroup.killed_for_memory() > self.killed_before
        if stopped_by is None:
            self.stopped_at = None
        elif self.stopped_at is None or self.n_stops != self.process.n_stops:
            self.stopped_at, self.stopped_by, self.n_stops = now, stopped_by, self.process.n_stops

    def close(self, screen):
        """Its output has ended."""
        self.rest += self.decoder.decode(b"", final=True)
        self._end_line(screen)
        self._end_traceback(screen)
        self.open = False
        if self.code is not None:
            self._close_log()

    def close_events(self, screen, heard):
        """It has ended, and all that it has told was taken."""
        self.take_events(b"\n", screen, heard)
        if not self.open:
            self._close_log()
