"""Jobs under psrun --restarts, of which parts are killed."""
import os
import re
import signal
import time

from jobs import DIGITS, Psrun, SlowDisk, alive, at_work, find_part, kill, sizes, wait_until
from test_checkpoints import CheckpointTest, comparable

SETTINGS = ["train.steps=60", "train.epochs=100", "data.batch=20", "data.train=0-239", "train.log_every=4",
            "train.eval_every=2", "checkpoint.every=5"]
WAIT_S = 60


class RestartTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.disk = SlowDisk(self.path("held"))

    def start_held(self, out, kind, at, *args, **more):
        """Starts a job that waits at each of these steps (of train.save_every) until the test lets it go on."""
        self.disk.hold_job(*at)
        return self.start(out, kind, *args, env=self.disk.env, **more)

    def waits_at(self, out, step):
        return self.exists(out, "checkpoints", self.disk.unfinished(step))

    def kill_before(self, psrun, out, step, role, rank, after=8):
        """Kills a part of a held job after that many more steps, at the latest when the job waits at `step`. Lets it
        go on, and waits until it does."""
        self.assertTrue(self.wait_for_part(psrun, role, rank))
        last = self.last_step(out)
        self.assertTrue(self.wait_until(psrun, lambda: self.last_step(out) > last + after or self.waits_at(out, step)))
        before = self.goes_on(out)
        self.assertIsNotNone(self.kill(psrun, role, rank))
        self.disk.let_job_go(step)
        self.wait_until(psrun, lambda: self.goes_on(out) > before)

    def goes_on(self, out):
        """How often the job has gone on after deaths."""
        return self.text(out).count("psrun: the job goes on from step")

    def start(self, out, kind, *args, settings=(*SETTINGS,), config=DIGITS, env=None):
        mode, servers, workers, *more = kind
        argv = self.psrun_argv(*sizes(mode, servers, workers), *args, config, *settings,
                               *more, out=out)
        with open(self.path(out + ".txt"), "w", encoding="utf-8") as text:
            psrun = Psrun(argv, stdout=text, env=dict(os.environ, **(env or {})))
        self.addCleanup(kill, psrun)
        return psrun

    def text(self, out):
        return self.text_of(out + ".txt")

    def end(self, psrun, out, code=0):
        """Returns the whole output. With code 75 worker 0 may have been killed while it saved, and not have come
        back."""
        self.assertEqual(psrun.wait(WAIT_S * 2), code, self.text(out))
        if code == 75:
            self.check_no_process_left(out)
        else:
            self.check_nothing_left(out)
        return self.text(out)

    def check_nothing_left(self, out):
        self.check_no_process_left(out)
        left = [os.path.join(folder, name) for folder, folders, files in os.walk(self.path(out))
                for name in folders + files if name.endswith(".tmp")]
        self.assertEqual(left, [])

    def check_no_process_left(self, out):
        self.assertEqual(alive(self.path(out)), [])
        shared = [name for name in os.listdir("/dev/shm") if name.startswith(("ps-", "pstrain."))]
        self.assertEqual(shared, [])

    def check_restarted(self, whole, out):
        self.assertEqual(self.weights(whole), self.weights(out))
        self.assertEqual([comparable(r) for r in self.records(whole)],
                         [comparable(r) for r in self.records(out)])
        summary = comparable(self.summary(out))
        restarts = summary.pop("restarts")
        recovery = summary.pop("recovery")
        self.assertEqual(recovery["restarts"], len(restarts))
        self.assertEqual(comparable(self.summary(whole)), summary)
        return restarts

    @staticmethod
    def find(psrun, role, rank):
        """Returns the process of a part, or None."""
        return find_part(psrun.pid, role, rank)

    def wait_until(self, psrun, true):
        """Waits until true() holds. Returns whether it did before the job ended."""
        return wait_until(lambda: "ended" if psrun.poll() is not None else true(), seconds=WAIT_S) != "ended"

    def wait_until_idle(self, pid):
        """Waits until a part has not been at work for a while."""
        looks = 0

        def idle():
            nonlocal looks
            looks = 0 if at_work(pid) else looks + 1
            return looks >= 40

        wait_until(idle)

    def wait_for_part(self, psrun, role, rank, before=None):
        return self.wait_until(psrun, lambda: self.find(psrun, role, rank) not in (None, before))

    def kill(self, psrun, role, rank):
        return self.signal(psrun, role, rank, signal.SIGKILL)

    def signal(self, psrun, role, rank, number):
        """Returns the part's process id, or None if it has just ended."""
        pid = self.find(psrun, role, rank)
        if pid:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return None
        return pid

    def lines(self, out):
        try:
            return self.text_of(out, "metrics.jsonl").count("\n")
        except OSError:
            return 0

    def exists(self, *names):
        return os.path.lexists(self.path(*names))

    def moment(self, what, out, chance):
        """Returns a condition that comes true at that moment of the present start."""
        seen = self.lines(out)
        if what == "step":
            want = chance.randint(1, 12)
            return lambda: self.lines(out) - seen >= want
        if what == "evaluation":  # after the last record of an epoch's steps
            return lambda: self.last_step(out) % 12 == 0
        if what == "checkpoint":
            return lambda: any(n.endswith(".tmp") for n in self.listdir(out, "checkpoints"))
        if what == "end":
            return lambda: any(self.exists(out, n + end) for n in ("model.safetensors", "summary.json")
                               for end in ("", ".tmp"))
        delay = {"joining": 0.02, "joined": 0.1, "any": 0.8}[what] * chance.random()
        at = time.monotonic() + delay
        return lambda: time.monotonic() >= at

    def last_step(self, out):
        """Returns the step of the last whole record; -1 if there is none."""
        found = re.search(r'"step":(\d+)[^\n]*\n\Z', self.read(out))
        return int(found[1]) if found else -1

    def read(self, out):
        try:
            return self.text_of(out, "metrics.jsonl")
        except OSError:
            return ""

    def listdir(self, *names):
        try:
            return os.listdir(self.path(*names))
        except OSError:
            return []
