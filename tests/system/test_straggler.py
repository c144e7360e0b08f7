"""The member that all others wait for is named while the job runs: in the log, on the progress line
and in summary.json. bench/straggler measures how often the right member is named."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from jobs import BIN, LONG, ROOT, JobTest, Psrun, SlowDevice, TurnTaking, descendants, kill

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

from benchlib import netns, slowdowns  # noqa: E402

REASON = netns.why_not()
SLOW = dict(os.environ, **SlowDevice(us=1000).env)  # the same steps, without their processor time


class Straggler(JobTest):
    def start(self, *settings, env=None):
        with open(self.path("output"), "w", encoding="utf-8") as output:
            job = Psrun(self.psrun_argv("-s", 1, "-w", 3, self.wide_model(1024), *LONG, "data.samples=1000000",
                                        "data.batch=64", *settings), stdout=output, stderr=subprocess.STDOUT, env=env)
        self.addCleanup(kill, job)
        self.wait_for_steps("out", 2)
        time.sleep(2)  # no member is named before some steps are fully known
        return job, sorted(pid for name, pid in descendants(job.pid) if name == "ps-worker")

    def log(self, name="logs/server-0.log"):
        with open(self.path("out", name), encoding="utf-8") as f:
            return f.read()

    def wait_for(self, pattern, name="logs/server-0.log", seconds=180):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.log(name))
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"nobody said {pattern!r}:\n{self.log()}\n{self.log('logs/worker-0.log')}")

    def test_a_slow_worker_is_named(self):
        job, _ = self.start()
        with TurnTaking(job.pid, 1):
            self.wait_for(r'WARN +straggler who="worker 1 [^"]*" cause="slow compute"')
            self.wait_for(r"left  waits for worker 1: slow compute", "logs/worker-0.log")
        self.wait_for("straggler-gone|straggler who=.worker [02]")
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))
        found = [(s["who"], s["cause"]) for s in self.summary()["stragglers"]]
        self.assertIn(("worker 1", "slow compute"), found)
        with open(self.path("output"), encoding="utf-8") as f:
            self.assertIn("straggler", f.read())  # psrun shows it

    def test_a_stopped_worker_is_named(self):
        job, workers = self.start(env=SLOW)
        os.kill(workers[2], signal.SIGSTOP)
        self.wait_for(r'straggler who="worker 2 [^"]*" cause="stopped"')
        os.kill(workers[2], signal.SIGCONT)
        self.wait_for("straggler-gone")
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))

    def test_it_can_be_switched_off(self):
        job, workers = self.start("trace.straggler=false", env=SLOW)
        os.kill(workers[2], signal.SIGSTOP)
        time.sleep(2)
        os.kill(workers[2], signal.SIGCONT)
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))
        self.assertNotIn("straggler", self.log())

    @unittest.skipIf(REASON, f"{REASON}")
    def test_a_slow_link_is_named(self):
        with tempfile.TemporaryDirectory(prefix="pstrain-test-") as folder:
            with slowdowns.Job(str(BIN.parent), folder) as job:
                job.go_on(10)
                for inward, cause in ((True, "slow link in"), (False, "slow link out")):
                    start = len(job.log)
                    job.rate("worker", 2, inward, job.mbit / 16)
                    found = job.wait(re.compile(f'straggler who="worker 2 [^"]*" cause="{cause}"'),
                                     start, 90)
                    job.rate("worker", 2, inward, job.mbit)
                    self.assertTrue(found, "".join(line for _, line in job.log[start:]))
                    job.wait(slowdowns.GONE, start, 60)


if __name__ == "__main__":
    unittest.main()
