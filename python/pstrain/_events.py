"""What this process tells psrun: a line of JSON on the descriptor that PS_EVENTS names (7:81234, the
descriptor and its inode). The library tells more there (common/base/tell.h)."""
from __future__ import annotations

import json
import os
import select
import typing

_MOST = 1000  # characters of a text


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


def tell_exception(error: BaseException) -> None:
    """It ends this process."""
    kind, text = type(error), str(error).strip().split("\n")[0]
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    name = module + kind.__qualname__
    tell("exception", line=(f"{name}: {text}" if text else name)[:_MOST])


def tell_exits() -> None:
    """It has ended without an exception, and leaves its job now."""
    tell("exits")


def tell_commit(number: int, place: str) -> None:
    """Rank 0's: all ranks have written a commit. place: for people."""
    tell("commit", number=number, place=place[:_MOST])


def tell_restored(number: int, place: str) -> None:
    """Rank 0's: the job goes on from a commit; 0: there is none, and it begins."""
    tell("restored", number=number, place=place[:_MOST])
