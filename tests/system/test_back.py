"""psrun --restarts with sync.quorum: a worker that dies is not waited for. It comes back while the others go on. ps-world
kills at random."""
import os
import re
import signal
import time
import unittest

from jobs import SlowDevice, cpu_s, nightly, wrapped_bin
from restarting import RestartTest

# An epoch of a thousand steps takes seconds, so that most of the time workers are within it; but hardly any
# processor time.
DEVICE = SlowDevice(us=120)
DATA = "data={kind: synthetic, samples: 18000, test_samples: 60, batch: 6}"
SETTINGS = [DATA, "train.epochs=2", "train.eval_every=1", "train.log_every=50", "optimizer.name=adamw",
            "checkpoint.every=100000", "train.threads=1"]
QUORUM = ["sync.policy=local", "sync.local_steps=8", "sync.quorum=2"]
KIND = ("ps", 2, 3)
BACK = re.compile(r"psrun: worker (\d) is back after ([0-9.]+) s; the others have gone on\n")


class BackTest(RestartTest):
    """Of a job with a quorum."""

    def begin(self, *more, args=()):
        psrun = self.start("out", KIND, "--restarts", "20", "--verbose", *args, settings=[*SETTINGS, *QUORUM, *more],
                           env=DEVICE.env)
        self.assertTrue(self.wait_until(psrun, lambda: "epoch 1/" in self.text("out")))
        # Before the first round is over, a death sends all back. A round takes a fraction of this time.
        began = {pid: cpu_s(pid) for pid in (self.find(psrun, "worker", rank) for rank in range(KIND[2]))}
        self.assertTrue(self.wait_until(psrun, lambda: all(cpu_s(pid) > at + 0.06 for pid, at in began.items())))
        return psrun

    def kill_and_wait(self, psrun, rank):
        """Kills a worker, and waits until it is back, or all have joined again."""
        seen = len(BACK.findall(self.text("out"))) + self.text("out").count("the job goes on from step")
        self.assertTrue(self.wait_for_part(psrun, "worker", rank))
        self.kill(psrun, "worker", rank)
        self.wait_until(psrun, lambda: len(BACK.findall(self.text("out")))
                        + self.text("out").count("the job goes on from step") > seen)


class GoesOn(BackTest):
    def test_others_go_on(self):
        psrun = self.begin()
        for rank in (1, 0, 2):
            self.kill_and_wait(psrun, rank)
            time.sleep(0.2)
        text = self.end(psrun, "out")
        summary = self.summary("out")
        self.assertEqual(summary["steps"], 2000)
        self.assertEqual(len(summary["restarts"]), 3)
        self.assertGreaterEqual(len(BACK.findall(text)), 2, text)  # one may have died at rest
        free = [d for d in summary["restarts"] if d["seconds_lost"] == 0 and d["steps_lost"] == 0]
        self.assertEqual(len(free), len(BACK.findall(text)), summary["restarts"])
        self.assertIn("worker 1 was ended by SIGKILL", text)
        backs = [line for line in self.text_of("out", "policy.log").splitlines() if line.startswith("back ")]
        self.assertEqual(len(backs), len(BACK.findall(text)))
        said = self.psrun("--replay", self.path("out", "policy.log"), out="again", code=1)
        self.assertRegex(said, r"the record has the line 'back \d': a worker died there")

    def test_one_that_waits_for_an_answer(self):
        """What it has pushed is forgotten, so that the first push of its new process counts. ps-world comes to it
        seldom."""
        psrun = self.begin("net.step_timeout_ms=15000")
        worker, *others = (self.find(psrun, "worker", rank) for rank in (1, 0, 2))
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        self.wait_until_idle(worker)
        os.kill(worker, signal.SIGKILL)
        self.assertTrue(self.wait_until(psrun, lambda: " away role=worker rank=1 " in self.text("out")))
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        text = self.end(psrun, "out")
        self.assertEqual([rank for rank, _ in BACK.findall(text)], ["1"], text)
        self.assertNotIn(" rejoin ", text)

    @nightly
    def test_nobody_takes_its_place(self):
        """The job ends, and all join again."""
        os.makedirs(self.path("build"))
        wrapped_bin(self.path("build/bin"), "ps-worker", '[ "$PS_INCARNATION" = 1 ] && sleep 8')
        psrun = self.begin("net.dead_after_ms=2000", "net.heartbeat_ms=100",
                           args=["--build-dir", self.path("build")])
        self.kill(psrun, "worker", 2)
        text = self.end(psrun, "out")
        self.assertIn("no process has taken its place for 2.", text)
        self.assertEqual(self.summary("out")["steps"], 2000)


if __name__ == "__main__":
    unittest.main()
