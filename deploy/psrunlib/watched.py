"""One running part: its output, what it has said, and its end."""
import re
import signal

from .log_line import Failure, failure, parse
from .traceback import Traceback

SSH_FAILED = 255  # ssh's own exit code
# Worker 0's, as a line or as the bar: the first one after the first step, at once.
STEP_LINE = re.compile(r"\bepoch \d+/\d+  step (?P<step>\d+)/")


class Watched:
    """A running part, its output and its log file."""

    def __init__(self, process, log):
        self.process = process
        self.part = process.part
        self.log = log  # None: writing it has failed
        self.rest = ""
        self.open = True
        self.closed_at = 0.0  # when it closed its output, by Supervisor.now
        self.errors = []  # log_line.Failure
        self.traceback = Traceback()
        self.told = None  # the signal that it has logged
        self.spoke = False  # the part itself has said something; else ssh may have
        self.all_joined = False  # it has logged, in this start or an earlier one, that all have joined
        self.last_line = ""
        self.step = 0  # as it says
        self.code = None
        self.ended_at = 0.0
        self.stopped_at = None  # set while it is stopped
        self.n_stops = 0
        self.silent_at = None  # when the coordinator missed it; None: it has said something since
        self.fault = ""  # why psrun ended it
        self.left = False  # it has ended, and an elastic job goes on without it
        self.missed_others = False  # it has logged that others had not joined in time
        self.has_workers = False  # it has logged, in this start, that a worker has joined

    def take(self, text, screen, heard):
        """Lines end with a line feed; a progress bar's states with a carriage return. heard: is
        called with each, and with what parse makes of it."""
        pieces = re.split(r"([\r\n])", self.rest + text)
        self.rest = pieces.pop()
        for line, end in zip(pieces[0::2], pieces[1::2]):
            self._count_step(line)
            said = parse(line)
            heard(self, line, said)
            if end == "\r":
                screen.progress(line)
            elif line:
                self._line(line, said, screen)

    def _count_step(self, line):
        found = STEP_LINE.search(line)
        self.step = int(found["step"]) if found else self.step

    @property
    def last_error(self):
        """Its own, if it has one besides those of which others are the cause."""
        own = [e for e in self.errors if e.kind != "PEER"] or self.errors
        return own[-1] if own else Failure("")

    @property
    def how(self):
        """What has ended it."""
        if self.fault:
            return self.fault
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        if self.part.host and self.code == SSH_FAILED:
            return f"lost its connection to {self.part.host.name} (ssh ended with exit code {SSH_FAILED})"
        return f"ended with exit code {self.code}"

    @property
    def why(self):
        """How it has ended, and the error that it has logged."""
        error = self.last_error.text if self.code and self.code > 0 and not self.fault else ""
        return f"{self.how}: {error}" if error else self.how

    def _line(self, line, said, screen):
        self._keep(line, screen)
        self.last_line = line
        error = failure(said) if said else self.traceback.take(line)
        if error:
            self.errors.append(error)
        if said:
            self._note(said)
        screen.line(self.part, line, said)

    def _note(self, said):
        self.spoke = True
        if said.event == "joined":  # the coordinator's
            here, _, all_of_them = said.fields.get("members", "").partition("/")
            self.all_joined = self.all_joined or bool(here) and here == all_of_them
            self.has_workers = self.has_workers or said.fields.get("role") == "worker"
        elif said.event == "missing":
            self.missed_others = True
        elif said.event == "rejoin":
            self.errors.clear()  # it goes on
        elif said.event == "interrupted":
            self.told = signal.Signals.__members__.get(said.fields.get("signal"), self.told)

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
        if stopped_by is None:
            self.stopped_at = None
        elif self.stopped_at is None or self.n_stops != self.process.n_stops:
            self.stopped_at, self.stopped_by, self.n_stops = now, stopped_by, self.process.n_stops

    def close(self, screen):
        if self.rest:
            self._line(self.rest, parse(self.rest), screen)
            self.rest = ""
        self.open = False
        self._close_log()
