"""What a program that uses pstrain.State keeps in memory between its attempts, and what it tells of it.

Each host of workers has folders for it (keeper.py), in memory and beside it for what does not fit there. PS_COMMITS names
them to the workers.
"""
import subprocess
import time

from . import helpers, keeper as keepers, remote
from .errors import JobError
from .restarts import delay_after
from .watched import SSH_FAILED

VARIABLE = "PS_COMMITS"
ANSWERS_WITHIN_S = 10  # longer than ssh takes to give a dead host up
OWN_KINDS = ("", "NOMEM")  # of errors that are likely to come again: what the program raises, and that memory is short
PLACES = ("/dev/shm", '"${TMPDIR:-/tmp}"')


class Folders:
    """For use with `with`: they are there within it."""

    def __init__(self, job):
        self.job = job
        self.keepers = {}  # processes, by the host's name

    def __enter__(self):
        self.look()
        return self

    def look(self, screen=None):
        """Makes them where they are not, because a host has started again. screen: an attempt was made before; a host
        that ssh does not reach may be starting."""
        for host in {h.name: h for h in self.job.worker_hosts}.values() or [None]:
            name = host.name if host else ""
            if name not in self.keepers or not self._answers(self.keepers[name]):
                self.job.commit_folders[name] = {VARIABLE: self._make(host, name, screen)}

    @staticmethod
    def _answers(keeper):
        try:
            keeper.stdin.write("?\n")
            keeper.stdin.flush()
        except OSError:
            return False
        if helpers.says(keeper, ANSWERS_WITHIN_S) and keeper.stdout.readline():
            return True
        keeper.kill()
        return False

    def _make(self, host, name, screen):
        for n in range(1, self.job.restarts + 2):
            keeper = self.keepers[name] = self._start(host)
            said = helpers.says(keeper, keepers.MADE_WITHIN_S) and keeper.stdout.readline().strip()
            if said:
                return said
            if not host or self._code(keeper) != SSH_FAILED:
                raise JobError(f"no folder for commits can be made on {name or 'this host'}, in /dev/shm or in TMPDIR: free "
                               "some room there")
            if not screen or n > self.job.restarts:
                break
            delay_s = delay_after(n)
            screen.say(f"psrun: ssh could not reach {name}; it is tried again in {delay_s} s ({n} of {self.job.restarts})")
            time.sleep(delay_s)
        raise JobError(f"ssh could not reach {name}, on which workers run: try `ssh {host.login}`")

    @staticmethod
    def _code(keeper):
        """Of one that has said nothing."""
        try:
            return keeper.wait(ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            return keeper.wait()

    @staticmethod
    def _start(host):
        script = keepers.script("pstrain-commits", PLACES)
        return keepers.start(remote.ssh_argv(host, remote.in_sh(script)) if host else ["sh", "-c", script])

    def __exit__(self, *_):
        keepers.end(self.keepers.values())


class Told:
    """The commits of the program, as worker 0 tells them."""

    MOST_IN_VAIN = 3  # errors of the program's own at one commit

    def __init__(self, screen):
        self.screen = screen
        self.number = None  # of the last commit; None: the program has none, and keeps what it has by itself
        self.at = 0.0  # when it was made, or the job began
        self.death = None  # (how, when) that nobody has said more of
        self.in_vain = 0  # errors of the program's own since the last commit

    def hear(self, event):
        if event["event"] == "commit":
            self.number, self.at, self.in_vain = event["number"], time.monotonic(), 0
        elif event["event"] == "restored":
            self._goes_on(event)

    def _goes_on(self, event):
        now = time.monotonic()
        if self.death:
            (how, at), self.death = self.death, None
            what = (f"goes on from commit {event['number']} ({event['place']})" if event["number"] else
                    "begins again, without a commit")
            self.screen.say(f"psrun: the job {what}, {now - at:.2f} s after {how}; {max(0.0, at - self.at):.2f} s of "
                            "work lost")
        self.number, self.at = event["number"], now

    def died(self, cause, seconds_ago):
        """A part, watched.Watched, has made the attempt fail."""
        self.death = f"{cause.part.name} {cause.how}", time.monotonic() - seconds_ago
        self.in_vain += cause.code > 0 and bool(cause.errors) and cause.last_error.kind in OWN_KINDS

    def fails_again(self):
        """Whether it would fail once more: it has done so several times, and has made no commit meanwhile."""
        return self.number is not None and self.in_vain >= self.MOST_IN_VAIN

    def say_in_vain(self):
        self.screen.say(f"psrun: the program has failed {self.in_vain} times after the same commit: it is not started "
                        "again")
