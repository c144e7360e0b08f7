"""optimizer.name lamb in whole jobs: norms of whole tensors, parts of which are in several processes."""
import shutil
import unittest

from jobs import DIGITS, first, nightly, read_safetensors, sizes
from test_checkpoints import CheckpointTest

SETTINGS = ["train.steps=24", "data.batch=20", "train.log_every=4", "data.train=0-239", "optimizer.name=lamb",
            "optimizer.lr=0.01"]
# All of these have two workers: the bits depend on their number.
WHERE = ((("ps", 1, 2),), (("ps", 3, 2), "exchange.chunk=16KiB", "server.shards=2"),
         (("allreduce", 0, 2), "exchange.bucket=64KiB"), (("ps", 1, 2), "exchange.levels=2"),
         (("ps", 2, 2), "exchange.shm=off"), (("allreduce", 0, 2), "exchange.shm=off"))


class LambTest(CheckpointTest):
    def train(self, out, where, *settings, code=0):
        mode, servers, workers = where
        return self.psrun(*sizes(mode, servers, workers), "--overwrite", DIGITS, *SETTINGS, *settings,
                          out=out, code=code)


class SameBits(LambTest):
    def check_everywhere(self, *settings, names=("model.safetensors",)):
        bits = None
        for where, *more in first(4, WHERE):
            self.train("out", where, *settings, *more)
            found = [read_safetensors(self.path("out", name)) for name in names]
            bits = bits or found
            self.assertEqual(found, bits, (where, more, settings))

    def test_with_clipping_groups_and_an_average(self):
        self.check_everywhere("optimizer.clip_norm=0.5", "train.ema=0.9",
                              "optimizer.groups=[{match: ['*.bias'], weight_decay: 0, lr: 0.05}]",
                              names=("model.safetensors", "ema.safetensors"))

    def test_with_steps_that_are_skipped(self):
        self.check_everywhere("loss_scale={use: on, init: 3e38, interval: 2}", "data.scale=10")
        self.assertGreater(self.summary()["skipped_steps"], 0)

    def test_one_worker(self):
        for mode, servers in (("single", 0), ("ps", 3)):
            self.train(mode, (mode, servers, 1), "exchange.chunk=16KiB")
        self.assertEqual(self.weights("single"), self.weights("ps"))

    @nightly
    def test_it_learns(self):
        self.train("out", ("ps", 2, 2), "train.steps=0", "train.epochs=15", "schedule.name=linear",
                   "data.train=0-1436")
        self.assertGreater(self.summary()["test_accuracy"], 0.95)


class GoesOn(LambTest):
    def test_from_checkpoints(self):
        for mode, servers, workers, others in first(1, (("ps", 2, 2, ((None, None), (3, 1))),
                                               ("allreduce", 0, 2, ((None, None),)),
                                               ("single", 0, 1, ((None, None),)))):
            job = (mode, servers, workers, *SETTINGS, "checkpoint.every=5", "checkpoint.keep=100")
            self.run_whole([15], *job)
            self.check_from([15], job, others)
            shutil.rmtree(self.path("whole"))


class Refusals(LambTest):
    def test_say_what_would_mend_it(self):
        for policy in ("{policy: local, local_steps: 2}", "{policy: asp}", "{policy: backup, backup: 1}"):
            text = self.train("out", ("ps", 1, 2), f"sync={policy}", code=1)
            self.assertIn("lamb needs sync.policy bsp", text)


if __name__ == "__main__":
    unittest.main()
