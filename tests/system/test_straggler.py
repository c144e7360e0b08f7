"""The member that all others wait for is named while the job runs: in the log, on the progress line
and in summary.json."""
import os
import re
import signal
import subprocess
import unittest

from jobs import BIN, LONG, JobTest, SlowDevice, find_part, kill, wait_until, wrapped_bin
from benchlib import netns

REASON = netns.why_not()


class Straggler(JobTest):
    def start(self, *settings):
        self.device = SlowDevice(us=1000, folder=self.path("slower"))
        os.mkdir(self.path("build"))
        wrapped_bin(self.path("build", "bin"), "ps-server", 'set -- "$@" --log-level debug')
        with open(self.path("output"), "w", encoding="utf-8") as output:
            job = self.start_psrun("--build-dir", self.path("build"), "-s", 1, "-w", 3, self.wide_model(64), *LONG,
                                   "data.samples=1000000", "data.batch=64", *settings, stdout=output,
                                   env=dict(os.environ, **self.device.env))
        self.wait_for_steps("out", 2)
        return job

    def start_known(self):
        """A job of which some steps are fully known: before, no member is named."""
        job = self.start()
        self.wait_for(r" pace step=\d\d")
        return job

    def log(self, name="logs/server-0.log"):
        return self.text_of("out", name)

    def wait_for(self, pattern, name="logs/server-0.log", seconds=180):
        return wait_until(lambda: re.search(pattern, self.log(name)), lambda: (
            f"nobody said {pattern!r}:\n{self.log()}\n{self.log('logs/worker-0.log')}"), seconds)

    def test_a_slow_worker_is_named(self):
        job = self.start_known()
        with self.device.slower(job.pid, 1):
            self.wait_for(r'WARN +straggler who="worker 1 [^"]*" cause="slow compute"')
            self.wait_for(r"left  waits for worker 1: slow compute", "logs/worker-0.log")
        self.wait_for("straggler-gone|straggler who=.worker [02]")
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))
        found = [(s["who"], s["cause"]) for s in self.summary()["stragglers"]]
        self.assertIn(("worker 1", "slow compute"), found)
        self.assertIn("straggler", self.text_of("output"))  # psrun shows it

    def test_a_stopped_worker_is_named(self):
        job = self.start_known()
        worker = find_part(job.pid, "worker", 2)
        os.kill(worker, signal.SIGSTOP)
        self.wait_for(r'straggler who="worker 2 [^"]*" cause="stopped"')
        os.kill(worker, signal.SIGCONT)
        self.wait_for("straggler-gone")
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))

    def test_it_can_be_switched_off(self):
        """A job that ends because of a stopped member names it else: see test_faults."""
        job = self.start("trace.straggler=false", "net.step_timeout_ms=4000", "net.dead_after_ms=100000")
        os.kill(find_part(job.pid, "worker", 2), signal.SIGSTOP)
        self.assertEqual(job.wait(60), 1)
        self.assertIn("ERROR failed", self.log())
        self.assertNotIn("straggler who", self.log())
        self.assertNotIn("the job has waited for", self.log())


JOB = """\
job: {name: straggler, servers: 2, workers: 3}
data: {kind: synthetic, batch: 64, samples: 1000000, test_samples: 0}
model:
  input: [64]
  layers: [{linear: 4096}, relu, {linear: 64}, relu, {linear: 10}]
optimizer: {name: sgd, lr: 0.0001}
"""
MBIT = 400


@unittest.skipIf(REASON, f"{REASON}")
class Links(JobTest):
    def log(self):
        return self.text_of("server-0.log")

    def wait_for(self, pattern, start, seconds):
        """Waits for a match in the coordinator's log behind `start`."""
        wait_until(lambda: re.search(pattern, self.log()[start:]),
                   lambda: f"nobody said {pattern!r}:\n{self.log()[start:]}", seconds)

    def begin(self, hosts):
        with open(self.path("job.yaml"), "w", encoding="utf-8") as f:
            f.write(JOB)
        init = hosts.init_method()
        for role, rank in hosts.hosts:
            argv = [*hosts.prefix(role, rank), BIN / f"ps-{role}", "--config", self.path("job.yaml"), "--rank", str(rank),
                    "--init-method", init, "--set", "net.insecure=true", "--set", "train.log_every=1000000",
                    "--log-level", "debug"]
            if role == "worker":
                argv += ["--out", self.path(f"out-{rank}"), "--overwrite"]
            with open(self.path(f"{role}-{rank}.log"), "w", encoding="utf-8") as log:
                self.addCleanup(kill, subprocess.Popen(list(map(str, argv)), env=dict(os.environ, OMP_NUM_THREADS="1"),
                                                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))

    def test_a_slow_link_is_named(self):
        with netns.Hosts(MBIT, {"server": 2, "worker": 3}) as hosts:
            self.begin(hosts)
            self.wait_for(r" pace step=10 ", 0, 60)
            for inward, cause in ((True, "slow link in"), (False, "slow link out")):
                start = len(self.log())
                hosts.rate("worker", 2, inward, MBIT / 16)
                self.wait_for(f'straggler who="worker 2 [^"]*" cause="{cause}"', start, 90)
                hosts.rate("worker", 2, inward, MBIT)
                self.wait_for(" straggler-gone ", start, 60)


if __name__ == "__main__":
    unittest.main()
