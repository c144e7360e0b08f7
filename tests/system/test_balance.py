"""data.batch=auto: after each epoch the workers' batches follow their speeds."""
import re
import signal
import subprocess
import unittest

from jobs import DIGITS, LONG, JobTest, TurnTaking, wait_until

GLOBAL_BATCH = 192


class Balance(JobTest):
    def start(self, *settings):
        job = self.start_psrun("-s", 1, "-w", 3, self.wide_model(1024), *LONG, "data.batch=auto", "data.samples=2000",
                               *settings, stdout=subprocess.DEVNULL)
        self.wait_for_steps("out", 2)
        return job

    def sizes(self):
        """The workers' batches in each epoch after the first."""
        found = re.findall(r"batches epoch=\d+ sizes=([0-9,]+)", self.text_of("out", "logs", "worker-0.log"))
        return [[int(n) for n in sizes.split(",")] for sizes in found]

    def wait_for(self, holds, seconds=90):
        """Waits until that holds for the batches of an epoch that has not begun yet."""
        seen = len(self.sizes())
        wait_until(lambda: any(map(holds, self.sizes()[seen:])), lambda: self.sizes()[-5:], seconds)

    def test_a_slow_worker_gets_fewer_samples(self):
        job = self.start()
        with TurnTaking(job.pid, 1):
            self.wait_for(lambda n: 2 * n[1] < min(n[0], n[2]))
        self.wait_for(lambda n: 3 * n[1] > 2 * min(n[0], n[2]))
        job.send_signal(signal.SIGINT)
        self.assertIn(job.wait(60), (130, 75))
        for n in [*self.sizes(), self.summary()["batches"]]:
            self.assertEqual(sum(n), GLOBAL_BATCH)
            self.assertGreaterEqual(min(n), 1)
            self.assertLessEqual(max(n), 4 * GLOBAL_BATCH // 3)

    def test_epochs_have_as_many_steps_and_samples(self):
        for batch in ("auto", "64"):
            self.psrun("-s", 1, "-w", 3, DIGITS, f"data.batch={batch}", "train.epochs=3", out=batch)
        one, other = self.summary("auto"), self.summary("64")
        self.assertEqual(one["steps"], other["steps"])
        self.assertEqual(one["samples"], other["samples"])
        self.assertEqual(sum(one["batches"]), GLOBAL_BATCH)
        self.assertNotIn("batches", other)

    def test_a_global_batch_is_divided(self):
        self.psrun("-m", "allreduce", "-w", 2, DIGITS, "data.batch=auto", "data.global_batch=63", "train.epochs=2")
        self.assertEqual(sum(self.summary()["batches"]), 63)

    def test_mistakes_are_named(self):
        for settings, says in ((["data.batch=[auto,64]"], "give it alone"),
                               (["data.global_batch=1"], "no sample for some of 2 workers"),
                               (["sync.policy=asp"], "auto needs sync.policy bsp, or local without"),
                               (["job.workers=1..2"], "auto needs a fixed number of workers")):
            workers = [] if "job.workers" in settings[0] else ["-w", 2]
            self.assertIn(says, self.psrun(*workers, DIGITS, "data.batch=auto", *settings, code=1))


if __name__ == "__main__":
    unittest.main()
