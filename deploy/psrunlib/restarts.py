"""psrun --restarts: a job of which a part has died goes on from its newest checkpoint."""
import json
import os
import re
import time
from dataclasses import dataclass

from . import job as jobs
from . import remote
from .errors import JobError
from .out import RESULTS

MOST_DELAY_S = 30
STEP = re.compile(r"step-(\d+)")
# What a part says of a failure that may be gone the next time.
PASSING = ("PEER", "NET", "TIMEOUT", "PROTOCOL", "INTERNAL", "NOMEM")
KIND = re.compile(r"^(?:kind=(?P<shard>[A-Z]+) |(?P<part>[A-Z]+): )")  # a shard's failure, its part's
CANNOT_BE_RUN = (126, 127)  # sh: no such folder or program


def can_mend(watched):
    """Whether the job may do better when it is started again: not after a mistake in the
    configuration, a number that is not finite, or a full disk."""
    if watched.fault or watched.code < 0:
        return True
    kinds = {found["shard"] or found["part"] for found in map(KIND.match, watched.errors) if found}
    return kinds <= set(PASSING) and watched.code not in CANNOT_BE_RUN


def check(job):
    """There have to be checkpoints to go on from. They may be large, and nobody else says how
    many steps a death may cost: so that there is no default."""
    facts = job.facts
    if not (facts["checkpoint.every"] or facts["checkpoint.minutes"] or facts["checkpoint.best"] != "none"):
        raise JobError("--restarts: there is no checkpoint to go on from: set checkpoint.every=STEPS, "
                       "checkpoint.minutes=MINUTES or checkpoint.best=loss")


@dataclass
class Death:
    part: str
    how: str  # "was ended by SIGKILL"
    at: float  # time.monotonic()
    at_step: int  # the last one that is known
    from_step: int = 0  # the job goes on from it
    seconds_lost: float = 0.0  # until the next step, or the end

    def facts(self):
        step = max(self.at_step, self.from_step)
        return {"part": self.part, "cause": self.how, "step": step, "from_step": self.from_step,
                "steps_lost": step - self.from_step, "seconds_lost": round(self.seconds_lost, 3)}


class Folder:
    """The results on worker 0's host, and which of them were there before the job."""

    def __init__(self, job):
        self.host = job.parts()[job.servers].host
        self.out = job.out
        self.checkpoints = job.facts["checkpoint.path"] or os.path.join(job.out, "checkpoints")
        self.before = self.list_steps()
        self.held_a_run = any(self._list([os.path.join(job.out, name) for name in RESULTS]))

    def list_steps(self, run=None):
        """{step: what tells its folder from another one of that name}. run: another one's."""
        folder = os.path.join(run, "checkpoints") if run else self.checkpoints
        return {int(STEP.fullmatch(name)[1]): identity
                for name, identity in self._list([os.path.join(folder, "step-*")])
                if STEP.fullmatch(name)}

    def _list(self, patterns):
        text = remote.stat(self.host, patterns)
        for line in text.splitlines():
            identity, _, path = line.partition(" ")
            yield os.path.basename(path), identity

    def read_step(self):
        """Of the last record of metrics.jsonl, where it can be seen from here; else 0."""
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), "rb") as f:
                lines = f.read().splitlines()
            return max([json.loads(line)["step"] for line in lines[-1:]], default=0)
        except (OSError, ValueError, KeyError):
            return 0


class Restarts:
    """How often a job was started again, and why."""

    def __init__(self, job):
        self.job = job
        self.first = (job.resume, job.overwrite)
        self.folder = Folder(job) if job.restarts else None
        self.deaths = []
        self.in_vain = 0  # deaths in a row without a new checkpoint

    @property
    def left(self):
        return self.job.restarts - len(self.deaths)

    def say_in_vain(self, screen):
        if self.deaths:
            times = "once" if len(self.deaths) == 1 else f"{len(self.deaths)} times"
            screen.say(f"psrun: it had been started again {times} (--restarts {self.job.restarts})")

    def note_step(self, first_step_at):
        """When a start has made its first step (None: it has ended before)."""
        if self.deaths and not self.deaths[-1].seconds_lost:
            self.deaths[-1].seconds_lost = (first_step_at or time.monotonic()) - self.deaths[-1].at

    def prepare(self, supervisor, screen):
        """Sets the job up to go on, says from where, and waits where deaths follow each other."""
        cause = supervisor.died
        began = supervisor.first_step_at() is not None
        at_step = max(supervisor.step(), self.folder.read_step()) if began else 0
        death = Death(cause.part.name, cause.how, supervisor.failed_clock, at_step)
        steps = self.folder.list_steps()
        own = any(self.folder.before.get(step) != identity for step, identity in steps.items())
        self._aim(own, steps)
        if self.job.resume not in ("", "auto"):
            steps = self.folder.list_steps(self.job.resume)
        # What is there counts only where the job goes on with it.
        death.from_step = max(steps, default=0) if self.job.resume else 0
        self._count(death)
        self.deaths.append(death)
        if not self.job.hosts and not self.job.keep_port:
            self.job.master_port = jobs.free_port()  # whoever is left of the old job is not at it
        screen.say(f"psrun: {death.part} {death.how}; the job goes on from step {death.from_step} "
                   f"(restart {len(self.deaths)} of {self.job.restarts}{self._when()})")
        time.sleep(self.delay_s)

    @property
    def delay_s(self):
        return min(MOST_DELAY_S, 2 ** (self.in_vain - 1)) if self.in_vain else 0

    def _when(self):
        return f", in {self.delay_s} s: the one before came no further" if self.delay_s else ""

    def _aim(self, own, steps):
        """Before its own first checkpoint the job begins as it did, over what it has left."""
        self.job.resume, self.job.overwrite = self.first
        if own or (self.goes_on_in_place() and steps):
            self.job.resume, self.job.overwrite = "auto", False
        elif not self.folder.held_a_run and (self.job.resume or not self.folder.before):
            self.job.overwrite = True

    def goes_on_in_place(self):
        run = self.first[0]
        return run == "auto" or bool(run) and os.path.realpath(run) == os.path.realpath(self.job.out)

    def _count(self, death):
        """A job that comes further each time is not held back."""
        further = not self.deaths or death.from_step > self.deaths[-1].from_step
        self.in_vain = 0 if further else self.in_vain + 1

    def add_to_summary(self, since):
        """Whoever reads the file sees the old one or the new one."""
        path = os.path.join(self.job.out, "summary.json")
        try:
            if os.path.getmtime(path) < since:
                return
            with open(path, encoding="utf-8") as f:
                summary = json.load(f)
            summary["restarts"] = [d.facts() for d in self.deaths]
            with open(path + ".tmp", "w", encoding="utf-8") as f:
                json.dump(summary, f, indent=2)
                f.write("\n")
                f.flush()
                os.fsync(f.fileno())
            os.replace(path + ".tmp", path)
        except FileNotFoundError:
            pass  # the job has left none
        except (OSError, ValueError) as error:
            raise JobError(f"cannot add the restarts to {path}: {error}") from error
