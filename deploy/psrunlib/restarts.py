"""psrun --restarts: a part that has died is started again. The others keep their processes, join
the job again, and all go on from the newest checkpoint. Where the policy allows it (sync.quorum),
they do not even wait for a worker: it comes back while they go on."""
import collections
import json
import math
import os
import re
import sys
import time
from dataclasses import dataclass

from . import remote
from .errors import JobError
from .events import named
from .out import RESULTS
from .regular_file import open_text
from .screen import tell
from .watched import SSH_FAILED

MOST_DELAY_S = 30
MOST_OF_RECORDS = 1 << 16  # bytes: many records
SETTLED_S = 2  # a worker that came back and died later than that is started again at once
STEP = re.compile(r"step-(\d+)")
MINUTES = 5  # between checkpoints
DEFAULT_KEEP = 3  # of checkpoint.keep
CANNOT_BE_RUN = (126, 127)  # sh: no such folder or program


def delay_after(n):
    """Seconds to wait before something is tried again that has come to nothing n times in a row."""
    return min(MOST_DELAY_S, 2 ** (n - 1)) if n > 0 else 0


def is_passing(watched, again=False):
    """Whether the job may do better when it is started again: not after a mistake in the
    configuration, a number that is not finite, or a full disk. again: it has run before."""
    if watched.fault or watched.code < 0:
        return True
    if watched.code in CANNOT_BE_RUN and not (again and watched.part.host):  # which may have booted
        return False
    return all(error.passing for error in watched.errors)


def choose_checkpoints(job):
    """There have to be checkpoints to go on from where too many parts have died at once, or by the same command. Where
    the user has not said when: seldom, and one at a time, because they may be large."""
    facts = job.facts
    if facts["checkpoint.every"] or facts["checkpoint.minutes"] or facts["checkpoint.best"] != "none":
        return
    facts["checkpoint.minutes"] = MINUTES
    chosen = [f"checkpoint.minutes={MINUTES}"] + ["checkpoint.keep=1"] * (facts["checkpoint.keep"] == DEFAULT_KEEP)
    job.overrides = job.overrides + chosen
    needs = "--restarts" if job.restarts else "--resume auto"
    tell(f"psrun: {needs}: no key says when to write checkpoints; {' '.join(chosen)}", sys.stderr)


@dataclass
class Death:
    part: str
    how: str  # "was ended by SIGKILL"
    at: float  # time.monotonic()
    at_step: int  # the last one that is known
    from_step: int = 0  # the job goes on from it
    lost: int = None  # steps that are made again, as the workers say; None: nobody has survived who knows
    seconds_lost: float = 0.0  # until the next step, or the end
    over: bool = False  # it has cost what it costs

    def facts(self):
        known = self.lost is not None
        step = self.from_step + self.lost if known else max(self.at_step, self.from_step)
        return {"part": self.part, "cause": self.how, "step": step, "from_step": self.from_step,
                "steps_lost": step - self.from_step, "seconds_lost": round(self.seconds_lost, 3)}


def read_step(path):
    """Of the last whole record of a metrics.jsonl; 0: there is none. The process that wrote it may have died within
    its last line. Only the file's end is read: that of a long job has gigabytes."""
    try:
        with open_text(path) as f:
            f.buffer.seek(max(0, os.fstat(f.fileno()).st_size - MOST_OF_RECORDS))
            whole = f.buffer.read().split(b"\n")[:-1]
        return max([json.loads(line)["step"] for line in whole[-1:]], default=0)
    except (OSError, ValueError, LookupError, TypeError):
        return 0


class Folder:
    """The results on worker 0's host, or on another one, and which of them were there before the job."""

    def __init__(self, job, host=None):
        self.host = host or job.parts()[job.servers].host
        self.out = job.out
        self.checkpoints = job.facts["checkpoint.path"] or os.path.join(job.out, "checkpoints")
        self.before = self.list_steps()
        self.held_a_run = bool(remote.stat(self.host, job.out, RESULTS))

    def list_steps(self):
        """{step: what tells its folder from another one of that name}."""
        return {int(STEP.fullmatch(name)[1]): identity for identity, name in remote.stat(self.host, self.checkpoints, ["step-*"])
                if STEP.fullmatch(name)}

    def read_step(self):
        """Of the job, as far as its metrics.jsonl can be seen from here."""
        return read_step(os.path.join(self.out, "metrics.jsonl"))


class Restarts:
    """Which parts were started again, and why."""

    def __init__(self, job, screen):
        self.job = job
        self.screen = screen
        self.first = (job.resume, job.overwrite)
        self.in_place = job.goes_on_in_place
        self.folder = Folder(job)
        self.deaths = []
        self.away = set()  # workers for whom nobody waits, by name
        self.back_at = {}  # when a worker came back whom nobody had waited for, by part
        self.steps_lost, self.seconds_lost = 0, 0.0  # deaths at the same time cost it once
        self.started = collections.Counter()  # how often, by part
        self.in_vain = collections.Counter()  # deaths by part since the job came further
        self.unreached = collections.Counter()  # starts in a row for which ssh has not reached the host, by part
        self.furthest = -1  # the highest step that it went on from
        self.lost = set()  # names of hosts that do not answer
        self.back = False  # worker 0 is on its way back to the job

    @property
    def left(self):
        return self.job.restarts - len(self.deaths)

    def can_mend(self, watched, promised=0):
        """promised: how many others are to be started again, and are not counted yet."""
        if self._is_unreached(watched):
            return self.unreached[watched.part.name] < self.job.restarts
        return self.left > promised and is_passing(watched) and not self._lacks_memory_again(watched)

    def _lacks_memory_again(self, watched):
        """Whether memory was short a second time, and the job came no further meanwhile: it asks for as much each time."""
        by_itself = (watched.code or 0) > 0 and watched.last_error.kind == "NOMEM"
        return (by_itself or watched.lacks_memory) and self.in_vain[watched.part.name] > 0

    def _is_unreached(self, watched):
        """Whether ssh could not start a part again: that is no death. Its host may be booting, and a file server is
        mounted there later."""
        never_ran = watched.code in CANNOT_BE_RUN or watched.code == SSH_FAILED and not watched.spoke
        return bool(watched.part.host and never_ran and self.started[watched.part.name])

    def say_in_vain(self):
        if self.deaths:
            times = "once" if len(self.deaths) == 1 else f"{len(self.deaths)} times"
            self.screen.say(f"psrun: parts had been started again {times} (--restarts {self.job.restarts})")

    def replace(self, watched, step, counts):
        """Returns the part to start instead of one that has died, and in how many seconds. step:
        the last one that is known. counts: False for a part that ended because another one had
        not joined. That one counts."""
        part = watched.part
        if self._is_unreached(watched):
            if watched.code == SSH_FAILED:
                self._look_at_host(watched)
            return self._try_again(part)
        self.unreached[part.name] = 0
        if not counts:
            self.screen.say(f"psrun: {part.name} {watched.how}, because others had not joined; it is started again")
            return self._again(part), 0
        if time.monotonic() - self.back_at.pop(part.name, math.inf) > SETTLED_S:
            self.in_vain[part.name] = 0
        before = self.in_vain[part.name]
        self.in_vain[part.name] += 1
        delay_s = delay_after(before)
        step = max(step, self.folder.read_step()) if step else 0
        self.deaths.append(Death(part.name, watched.how, time.monotonic(), step))
        self.screen.say(f"psrun: {part.name} {watched.why}; it is started again "
                        f"(restart {len(self.deaths)} of {self.job.restarts}"
                        + (f", in {delay_s} s: it came no further)" if delay_s else ")"))
        return self._again(part), delay_s

    def _try_again(self, part):
        """On its host, which does not answer, or on the one that has taken its place."""
        new = self._again(part)
        if new.host.name != part.host.name:
            self.unreached[part.name] = 0
            return new, 0
        self.unreached[part.name] += 1
        n = self.unreached[part.name]
        delay_s = delay_after(n)
        self.screen.say(f"psrun: ssh could not start {part.name} on {part.host.name}; it is tried again in {delay_s} s "
                        f"({n} of {self.job.restarts})")
        return new, delay_s

    def _look_at_host(self, watched):
        """Once ssh cannot start a part again on its host, a spare host takes that host's place."""
        host, job = watched.part.host, self.job
        if host.name in self.lost:
            return
        self.lost.add(host.name)
        if host.name == job.coordinator_host.name:
            self.screen.say(f"psrun: host {host.name} does not answer; no other host can take its place: it runs "
                            "the coordinator, at the address that all parts know")
        elif not job.spares:
            self.screen.say(f"psrun: host {host.name} does not answer, and there is no spare host (a line "
                            "\"NAME spare\" in the hostfile)")
        elif host.name != self.folder.host.name:
            self._move(host)
        elif folder := self._folder_of_a_spare():
            self.folder = folder
            self._move(host)
            self.screen.say(f"psrun: the results go to {folder.host.name} from here on; what host {host.name} has "
                            "of them stays there")
        else:
            self.screen.say(f"psrun: host {host.name} does not answer, nor does any spare host")

    def _move(self, host):
        spare = self.job.spares[0]
        self.job.move(host, spare)
        self.screen.say(f"psrun: host {host.name} does not answer; the spare host {spare.name} takes its place")

    def _folder_of_a_spare(self):
        """For the results, on the first that answers; those before it are spare ones no longer. None: none does."""
        while self.job.spares:
            try:
                return Folder(self.job, self.job.spares[0])
            except JobError as error:
                self.screen.say(f"psrun: a spare host cannot take the results: {error}")
                del self.job.spares[0]
        return None

    def _again(self, part):
        self.started[part.name] += 1
        if part.name == "worker 0":
            self._aim()
            self.back = True
        new = next(p for p in self.job.parts() if p.name == part.name)
        new.env["PS_INCARNATION"] = str(self.started[part.name])
        return new

    def hear(self, part, event):
        """What worker 0 tells of where the job goes on, and others of workers that nobody waits for."""
        name = event["event"]
        if name == "back":
            self._came_back(part)
        elif name == "away":
            self.away.add(named(event))
        elif name == "rejoin" and part.name not in self.away:
            self.away.clear()
        if part.name != "worker 0":
            return
        if name == "checkpoint":
            self.in_vain.clear()
        elif name == "step":
            self._step_made()
        elif name == "rejoin":
            self.back = True
            self._goes_on_from(0, None)
        elif name == "resume":
            self._goes_on_from(event["step"], event["steps_lost"])
            if event["step"] > self.furthest:
                self.furthest = event["step"]
                self.in_vain.clear()

    def _came_back(self, part):
        """The others have not waited."""
        self.away.discard(part.name)
        self.back &= part.name != "worker 0"
        self.back_at[part.name] = time.monotonic()
        for death in self._open_deaths():
            if death.part == part.name:
                death.over, death.from_step, death.lost = True, death.at_step, 0
                self.screen.say(f"psrun: {part.name} is back after {time.monotonic() - death.at:.2f} s; the others "
                                "have gone on")

    def _open_deaths(self):
        return [d for d in self.deaths if not d.over]

    def _goes_on_from(self, step, lost):
        for death in self._open_deaths():
            death.from_step, death.lost = step, lost

    def _step_made(self):
        """Worker 0 has made its first step since it began, or joined again."""
        if not self.back:
            return
        self.back = False
        deaths = self._open_deaths()
        lost = self._close_deaths()
        if deaths:
            first = deaths[0]
            self.screen.say(f"psrun: the job goes on from step {first.from_step}, {first.seconds_lost:.2f} s "
                            f"after {first.part} {first.how}; {lost} step{'s' * (lost != 1)} lost")

    def ended(self):
        """The job is over: deaths after its last step cost the time until now."""
        self._close_deaths()

    def _close_deaths(self):
        """Books what the deaths have cost until now. Returns the steps."""
        deaths, now = self._open_deaths(), time.monotonic()
        for death in deaths:
            death.seconds_lost = now - death.at
            death.over = True
        lost = max((d.facts()["steps_lost"] for d in deaths), default=0)
        self.steps_lost += lost
        self.seconds_lost += max((d.seconds_lost for d in deaths), default=0)
        return lost

    def _aim(self):
        """Worker 0 goes on with the job's own checkpoints. Before the first one the job begins as
        it did, over what it has left."""
        self.job.resume, self.job.overwrite = self.first
        try:
            goes_on = self.has_checkpoint()
        except JobError:
            goes_on = True  # its host does not answer: whatever it has is not to be overwritten
        if goes_on:
            self.job.resume, self.job.overwrite = "auto", False
        elif not self.folder.held_a_run and (self.job.resume or not self.folder.before):
            self.job.overwrite = True

    def has_checkpoint(self):
        """Whether there is one on the disk to go on from."""
        steps = self.folder.list_steps()
        own = any(self.folder.before.get(step) != identity for step, identity in steps.items())
        return own or bool(self.in_place and steps)
