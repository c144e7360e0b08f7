"""deploy/slurm/pstrain.sbatch under a real Slurm of two nodes on this machine."""
import os
import signal
import tempfile
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, LONG, ROOT, JobTest, alive, free_port, sizes
from slurm import Slurm, missing

SBATCH = str(ROOT / "deploy/slurm/pstrain.sbatch")


class OnSlurm(JobTest):
    @classmethod
    def setUpClass(cls):
        reason = missing()
        if reason:
            raise unittest.SkipTest(reason)
        folder = tempfile.TemporaryDirectory(prefix="pstrain-slurm-")
        cls.addClassCleanup(folder.cleanup)
        cls.slurm = Slurm(folder.name)
        cls.addClassCleanup(cls.slurm.stop)
        cls.slurm.start()

    def submit(self, out, *settings, **env):
        return self.slurm.submit(
            self.path(f"{out}.txt"), "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1",
            f"--chdir={ROOT}", SBATCH, DIGITS, *settings, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(),
            PS_BIN=BIN.resolve(), PS_OUT=self.path(out), **env)

    def said(self, out):
        try:
            return self.text_of(f"{out}.txt") + self.slurm.logs()
        except OSError as error:
            return f"{error}\n{self.slurm.logs()}"

    def ends(self, out, number, seconds=60):
        """Checks that no process of the job is left. Returns the state in which the job ended."""
        state = self.slurm.wait(number, seconds)["JobState"]
        self.assertEqual(alive(self.path(out)), [], "processes were left running")
        return state

    def test_both_modes_give_the_same_weights(self):
        for mode in ("ps", "allreduce"):
            number = self.submit(mode, "train.steps=20", PS_MODE=mode)
            self.assertEqual(self.ends(mode, number), "COMPLETED", self.said(mode))
        self.assertEqual(self.summary("ps")["servers"], 2)
        self.assertEqual(self.weights("ps"), self.weights("allreduce"))
        keys = Path(self.path("ps.keys"))
        modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (keys, *keys.iterdir())}
        self.assertEqual(modes, {"ps.keys": "0o700", "server.key": "0o600", "worker.key": "0o600"})

    def test_scancel_keeps_the_weights(self):
        for mode in ("ps", "allreduce"):
            number = self.submit(mode, *LONG, PS_MODE=mode)
            self.wait_for_steps(mode)
            self.slurm.run("scancel", number, check=True)
            self.assertEqual(self.ends(mode, number), "CANCELLED", self.said(mode))
            self.assertTrue(os.path.exists(self.path(mode, "model.safetensors")), self.said(mode))
            self.assertTrue(self.summary(mode)["interrupted"])

    def test_a_warning_keeps_a_checkpoint_and_queues_it_again(self):
        settings = ["train.epochs=60", "schedule.name=constant", "train.log_every=50",
                    "checkpoint.minutes=60"]
        for mode in ("ps", "allreduce"):
            self.psrun(*sizes(mode, 2, 2), DIGITS, *settings, out=f"whole-{mode}")
            number = self.submit(mode, *settings, PS_MODE=mode)
            self.wait_for_steps(mode, records=3)
            self.slurm.run("scancel", "--batch", "--signal=USR1", number, check=True)
            self.slurm.await_restart(number)
            self.assertEqual(self.ends(mode, number, 120), "COMPLETED", self.said(mode))
            self.assertEqual(self.weights(mode), self.weights(f"whole-{mode}"))

    def test_a_killed_task_ends_the_job(self):
        for mode in ("ps", "allreduce"):
            number = self.submit(mode, *LONG, PS_MODE=mode)
            self.wait_for_steps(mode)
            worker = next(pid for pid, line in alive(self.path(mode))
                          if line.startswith(str(BIN.resolve() / "ps-worker")))
            os.kill(worker, signal.SIGKILL)
            self.assertEqual(self.ends(mode, number), "FAILED", self.said(mode))


if __name__ == "__main__":
    unittest.main(verbosity=2)
