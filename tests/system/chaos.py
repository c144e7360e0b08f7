"""Seeded schedules of faults: which part of a job is killed, stopped or cut off, and when."""
import contextlib
import os
import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from jobs import BIN
from benchlib import netns

SERVERS, WORKERS = 3, 3
MOMENTS = ("joining", "joined", "step", "step", "evaluation", "checkpoint", "end", "any", "at once", "started again",
           "joins again", "goes on")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "freeze": signal.SIGSTOP}
SHORTEST_S, LONGEST_S = 0.1, 8.0


@dataclass
class Kind:
    """A kind of job."""
    mode: str
    settings: tuple
    config: str = "digits"
    hosts: bool = False  # each part has its own host

    @property
    def servers(self):
        return SERVERS if self.mode == "ps" else 0

    @property
    def job(self):
        """For RestartTest.start."""
        return (self.mode, self.servers, WORKERS, *self.settings)


@dataclass
class Fault:
    what: str  # kill, stop (and continue), freeze (for ever), cut (and mend)
    role: str
    rank: int
    moment: str
    seconds: float  # of a stop or a cut

    def __str__(self):
        lasts = f" for {self.seconds:.1f} s" if self.what in ("stop", "cut") else ""
        return f"{self.what} {self.role} {self.rank}{lasts} ({self.moment})"


def draw_fault(chance, kind):
    role = chance.choice(["server", "worker"] if kind.servers else ["worker"])
    rank = chance.choice([0, chance.randrange(SERVERS if role == "server" else WORKERS)])
    what = chance.choice(["kill", "kill", "stop", "freeze"] + ["cut"] * 4 * kind.hosts)
    # Log-uniform: 0.1 to 0.9 s is as likely as 0.9 to 8 s.
    seconds = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()
    return Fault(what, role, rank, chance.choice(MOMENTS), seconds)


def draw_schedule(seed, kinds):
    """Returns the kind of job, its faults, and the generator for further choices."""
    chance = random.Random(seed)
    kind = kinds[seed % len(kinds)]
    return kind, [draw_fault(chance, kind) for _ in range(chance.randint(1, 3))], chance


class Later:
    """Actions that are done after some seconds, or at the job's end if that is earlier."""

    def __init__(self):
        self.timers = []

    def add(self, seconds, what, *args):
        timer = threading.Timer(seconds, what, args)
        self.timers.append((timer, what, args))
        timer.start()

    def finish(self):
        for timer, what, args in self.timers:
            timer.cancel()
            timer.join()
            what(*args)  # an action may be done twice
        self.timers.clear()


def continue_process(pid, folder):
    """Does nothing if the process has ended: another process may have its number by now."""
    with contextlib.suppress(OSError):
        if folder.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGCONT)


class Hosts:
    """A host for each part, on which psrun starts it."""

    def __init__(self, folder):
        self.folder = folder
        self.made = netns.Hosts(1000, {"server": SERVERS, "worker": WORKERS})

    def __enter__(self):
        self.made.__enter__()
        return self

    def __exit__(self, *args):
        self.made.__exit__(*args)

    def for_psrun(self, kind):
        """Returns psrun's options and environment for a job of that kind."""
        return self.made.for_psrun(self.folder, BIN, ("server", "worker") if kind.servers else ("worker",))

    def cut(self, role, rank):
        self.made.plug(role, rank, False)

    def mend(self, role, rank):
        self.made.plug(role, rank, True)
