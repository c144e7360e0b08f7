"""The error that a Python program ends with: as the package pstrain tells it (events.py), or else from the
lines that it prints."""
import re

from .events import Failure

PREFIX = re.compile(r"^\[rank\d+\]: ?")  # PyTorch's
BEGIN = "Traceback (most recent call last):"
# The exception's own line is the first that is not indented.
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
# Errors of which another part is the cause, as the package pstrain and PyTorch name them.
OTHERS = re.compile(r"(?:^|[ .])PeerError: (?P<text>.*)$|"
                    r"^RuntimeError: .*(?P<gone>Connection (?:closed|reset) by peer.*)$")
TIMED_OUT = re.compile(r"(?:^pstrain\.[\w.]*|^RuntimeError: .*)TimeoutError: (?P<text>.*)$")
# A Ctrl-C in a callback of PyTorch's, as PyTorch passes it on.
INTERRUPTED = re.compile(r"^RuntimeError: (?:Cannot extract .*: )?KeyboardInterrupt\b")
# What PyTorch's C++ puts below the line of an exception that Python code has raised within it.
PLACES = re.compile(r"^(?:At:|  \S+\(\d+\): \S+)$")
LAUNCHED = "pstrain.launch: "  # a job of the program's own has failed, as the package tells it
TOLD = ("KeyboardInterrupt", "SystemExit")


class Traceback:
    """Reads lines one by one."""

    def __init__(self):
        self.inside = False
        self.error = None  # the Failure of the last one, while lines follow that belong to it

    def follows(self, line):
        """Whether it belongs to the traceback that has ended."""
        if not PLACES.match(PREFIX.sub("", line)):
            self.error = None
        return self.error is not None

    def take(self, line):
        """The Failure, when this line ends a traceback; else None."""
        line = PREFIX.sub("", line)
        if line == BEGIN:
            self.inside = True
        elif self.inside and line and not line[0].isspace():
            self.inside = False
            self.error = error_of(line) if EXCEPTION.match(line) else None
            return self.error
        return None


def is_of_others(line):
    """Whether it says what others did, or did not do in time."""
    return bool(OTHERS.search(line) or TIMED_OUT.search(line))


def error_of(line):
    """line: the exception's own. None: the program was told to end."""
    if line.partition(":")[0] in TOLD:
        return None
    if line.startswith(LAUNCHED):
        return Failure(line)
    if others := OTHERS.search(line):
        return Failure(others["text"] or others["gone"], "PEER")
    if INTERRUPTED.match(line):
        return Failure(line, "PEER")
    if late := TIMED_OUT.search(line):
        return Failure(late["text"], "TIMEOUT")
    return Failure(line)
