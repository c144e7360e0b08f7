"""What the parts of a job tell psrun: events, one JSON object a line, on a descriptor of their own. psrun
decides by them. common/base/tell.h says what each of them means."""
import json
import os
from dataclasses import dataclass

VARIABLE = "PS_EVENTS"  # names the descriptor, and the inode of what it is (tell.h)
NONE = type(None)
FIELDS = {
    "begun": {}, "exits": {}, "opened": {}, "back": {}, "rejoin": {}, "buddies": {},
    "joined": {"role": str, "rank": int, "here": int, "of": int}, "unjoined": {"role": str, "rank": int},
    "missing": {"role": (str, NONE)}, "silent": {"role": str, "rank": int}, "away": {"role": str, "rank": int},
    "waits": {"role": str, "rank": int},
    "aborts": {"role": str, "rank": int},
    "interrupted": {"signal": str}, "workers": {"n": int}, "resume": {"step": int, "steps_lost": (int, NONE)},
    "commit": {"number": int, "place": str}, "restored": {"number": int, "place": str},
    "checkpoint": {"step": int}, "step": {"step": int}, "mended": {"repeated": int},
    "ended": {"code": int}, "failure": {"kind": str, "passing": bool, "reason": str}, "exception": {"line": str},
}


@dataclass
class Failure:
    text: str  # for people
    kind: str = ""  # as in common/base/err.h; "": not known
    passing: bool = True  # it may be gone when the job is tried again


def parse(line):
    """The event, a dict; None: the line is somebody else's."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fields = FIELDS.get(event.get("event")) if isinstance(event, dict) else None
    if fields is None or any(not isinstance(event.get(name, ...), kind) for name, kind in fields.items()):
        return None
    return event


def named(event):
    """The part that it is about."""
    return f"{event['role']} {event['rank']}"


def open_pipe():
    """For a part: the end to read, and the number of the end that it gets."""
    read, write = os.pipe()
    return open(read, "rb", buffering=0), write


def variable(fd):
    return {VARIABLE: f"{fd}:{os.fstat(fd).st_ino}"}


class Tally:
    """What has happened to a job besides training, for the summary."""

    def __init__(self):
        self.mended, self.repeated = 0, 0
        self.joins, self.leaves = 0, 0
        self.without = 0  # deaths of parts that the job has gone on without
        self.workers = None  # of an elastic job

    def hear(self, event):
        if event["event"] == "mended":
            self.mended += 1
            self.repeated += event["repeated"]
        elif event["event"] == "workers":
            now = event["n"]
            before = now if self.workers is None else self.workers
            self.workers = now
            self.joins += max(0, now - before)
            self.leaves += max(0, before - now)

    def facts(self, restarts):
        """restarts: restarts.Restarts, or None."""
        again = restarts.deaths if restarts else []
        return {"deaths": len(again) + self.without, "restarts": len(again),
                "steps_lost": restarts.steps_lost if restarts else 0,
                "seconds_lost": round(restarts.seconds_lost, 3) if restarts else 0,
                "mended_connections": self.mended, "repeated_messages": self.repeated,
                "joins": self.joins, "leaves": self.leaves}
