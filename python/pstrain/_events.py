"""What this process tells psrun: a line of JSON on the descriptor that PS_EVENTS names (7:81234, the
descriptor and its inode). The library tells more there (common/base/tell.h)."""
from __future__ import annotations

import contextlib
import json
import os
import re
import select
import time
import traceback
import typing

from . import _programs, errors

_MOST = 650  # characters of a text: in JSON one has at most six bytes, and a line PIPE_BUF
_OF_ANOTHER = "Traceback (most recent call last):"
_OF_KILLED = re.compile(r"DataLoader worker \(pid.*(exited unexpectedly|killed by signal: Killed)")
_LAUNCHED = "pstrain.launch: "
_OF_WORKER = re.compile(r"\bworker \d")
_TORCHRUN_WAITS_S = 30  # for the other ranks to end
_killed_before = 0


def tell(event: str, **fields: typing.Any) -> None:
    """Does nothing where nobody reads it. Never blocks."""
    line = json.dumps({"event": event, **fields}, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    fd, _, inode = os.environ.get("PS_EVENTS", "").partition(":")
    try:
        if len(line) <= select.PIPE_BUF and os.fstat(int(fd)).st_ino == int(inode):
            os.set_blocking(int(fd), False)
            os.write(int(fd), line)
    except (ValueError, OSError):
        pass


def killed_for_memory() -> "tuple[int, str]":
    """How many processes of this one's cgroup the kernel has killed up to now because no memory was left; the words for it."""
    with contextlib.suppress(errors.Error):  # psrun is not installed
        cgroup = _programs.psrunlib("cgroup")
        return cgroup.killed_for_memory(), cgroup.LACKS_MEMORY
    return 0, ""


def begin() -> None:
    """Processes that are killed from now on count."""
    global _killed_before
    _killed_before = killed_for_memory()[0]


def text_of(error: BaseException) -> str:
    """Its message in one line, with what lies beneath it: the exception of another process (a DataLoader's worker), whose
    traceback is part of the message, and a full disk or missing memory that it was raised for, also that which has killed a
    DataLoader's worker."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        return "<its str() failed>"
    if any(line.endswith(_OF_ANOTHER) for line in lines):
        return lines[0] if lines[0].endswith(lines[-1]) else f"{lines[0].rstrip(':.')}: {lines[-1]}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    beneath = f" ({type(cause).__name__}: {text_of(cause)})" if isinstance(cause, (OSError, MemoryError)) else ""
    if lines and _OF_KILLED.match(lines[0]):
        killed, words = killed_for_memory()
        beneath = words * (killed > _killed_before)
    return (lines[0] if lines else "") + beneath


def line_of(error: BaseException) -> str:
    """As the last line of a traceback, and short. The failure of a job that this process has launched is its own."""
    kind, text = type(error), text_of(error)
    if isinstance(error, errors.PeerError) and error.of_launched:
        return f"{_LAUNCHED}{text}"[:_MOST]
    module = "" if kind.__module__ in ("builtins", "__main__", "__mp_main__") else f"{kind.__module__}."
    name = module + kind.__qualname__
    return (f"{name}: {text}" if text else name)[:_MOST]


def tell_exception(error: BaseException) -> None:
    """It ends this process."""
    tell("exception", line=line_of(error))


def tell_abort(reason: str) -> None:
    """The program ends the job."""
    tell("exception", line=f"pstrain.abort: {reason}"[:_MOST])


def tell_torchrun(error: BaseException) -> None:
    """Keeps the error where torchrun looks for it (TORCHELASTIC_ERROR_FILE), as PyTorch's @record does. Its "Root Cause" is the
    first one, by whole seconds, and in a second that of the lowest rank: those that others have caused count as later. A rank
    without such a file (sys.exit, a signal) has the time when torchrun has noticed that it has ended."""
    path, line = os.environ.get("TORCHELASTIC_ERROR_FILE"), line_of(error)
    follows = "PeerError: " in line and not line.startswith(_LAUNCHED)
    if not path or os.path.exists(path) and not follows:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    later = 0 if not follows else _TORCHRUN_WAITS_S if _OF_WORKER.search(line) else 1
    more = {"py_callstack": line_of(error) if follows else text, "timestamp": str(int(time.time()) + later)}
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as f:
            json.dump({"message": {"message": line_of(error), "extraInfo": more}}, f)
    except OSError:
        pass


def tell_exits() -> None:
    """It has ended without an exception, and leaves its job now."""
    tell("exits")


def tell_commit(number: int, place: str) -> None:
    """Rank 0's: all ranks have written a commit. place: for people."""
    tell("commit", number=number, place=place[:_MOST])


def tell_restored(number: int, place: str) -> None:
    """Rank 0's: the job goes on from a commit; 0: there is none, and it begins."""
    tell("restored", number=number, place=place[:_MOST])
