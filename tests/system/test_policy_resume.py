"""Checkpoints of sync.policy backup, ssp and asp: the job goes on as it would have, in the middle of an epoch, too."""
import os
import shutil
import unittest

from jobs import SMOOTH, read_safetensors
from test_bench import needs_torch
from test_policies import ADAMW, CODED, SETTINGS, SGD, PolicyTest

EVERY = "checkpoint.every=3"  # an epoch has four steps, and there are two epochs
# Worker 0 goes over its samples again before the first rest within an epoch, and after it.
PAUSED = ["0 0", "0 0", "1 1", "0 0", "0 0", "2 2", "0-2 0-2 rest", "0-2 0-2 rest", "2 2", "2 2", "0 0", "0-2 0-2 rest",
          "1 1", "0 0", "1 1", "0-2 0-2 end"]
DROPPED = ["0-1 0-1", "0-1 0-1", "- 2", "0-1 -", "- 0-2 rest"]


class Resume(PolicyTest):
    def lines_from(self, log, n, step):
        """Makes the log of a job that goes on at a step, from the lines of a whole one."""
        head, *lines = log.splitlines()
        path = self.file("tail.log", "\n".join([head.replace('"first":0', f'"first":{step}'), *lines[n:]]) + "\n")
        return path

    def check_same_bits(self, name, *settings):
        """A whole run has the same bits as a run with the same log that ends at step 6 and goes on."""
        part = f"{name}-part"
        self.train(name, 2, 3, *settings, EVERY)
        log = self.log(name)
        self.psrun("--replay", self.path(name, "policy.log"), "train.stop_after=6", out=part, code=75)
        rests = [i for i, line in enumerate(log.splitlines()[1:]) if line.endswith((" rest", " end"))]
        self.assertEqual(len(rests), 4)  # steps 3, 4, 6 and 8
        said = self.psrun("--resume", self.path(part), "train.stop_after=0",
                          f"sync.replay={self.lines_from(log, rests[2] + 1, 6)}", out=part)
        self.assertIn("resume step=6 ", said)
        self.assertEqual(self.weights(name), self.weights(part), settings)
        self.assertEqual(self.summary(name)["samples"], self.summary(part)["samples"])

    def test_the_same_bits(self):
        self.check_same_bits("asp", "sync.policy=asp", *SGD)
        self.check_same_bits("ssp", "sync.policy=ssp", "sync.staleness=1", *ADAMW)
        self.check_same_bits("backup", "sync.policy=backup", *ADAMW, "optimizer.clip_norm=1")

    def test_a_run_that_is_repeated_keeps_its_checkpoints(self):
        self.train("out", 1, 3, "sync.policy=asp", *SGD, EVERY, f"checkpoint.path={self.path('kept')}")
        kept = sorted(os.listdir(self.path("kept")))
        self.psrun("--replay", self.path("out", "policy.log"), out="again")
        self.assertEqual(self.weights("out"), self.weights("again"))
        self.assertEqual(sorted(os.listdir(self.path("kept"))), kept)

    def test_the_step_to_stop_after_is_behind(self):
        """As with bsp: a job that goes on there, with the same keys, goes on to its end."""
        self.train("out", 1, 3, "sync.policy=asp", *SGD, EVERY, "train.stop_after=3", code=75)
        self.assertIn("resume step=3 ", self.psrun("--resume", self.path("out")))
        self.assertEqual(self.summary()["steps"], 8)

    def test_codecs_go_on(self):
        for codec in ("int8", "onebit"):
            settings = ["sync.policy=asp", f"exchange.codec={codec}", *CODED, *SGD, EVERY]
            self.train(codec, 1, 3, *settings, "train.stop_after=6", code=75)
            shutil.copytree(self.path(codec), self.path(f"{codec}-too"))
            self.psrun("--resume", self.path(codec), "train.stop_after=0", out=codec)
            self.assertEqual(self.summary(codec)["steps"], 8)
            self.psrun("--resume", self.path(f"{codec}-too"), "train.stop_after=0",
                       f"sync.replay={self.path(codec, 'policy-6.log')}", out=f"{codec}-too")
            self.assertEqual(self.weights(codec), self.weights(f"{codec}-too"))

    @needs_torch
    def test_rests_within_an_epoch_by_hand(self):
        keys = [*SETTINGS, SMOOTH, *SGD, "sync.policy=asp", "job.workers=3", EVERY,
                f"sync.replay={self.write_log('asp', PAUSED)}"]
        self.train("out", 2, 3, *keys, base=())
        self.by_hand(keys)
        self.assert_close("out")

    def test_what_was_dropped_leaves_nothing_behind(self):
        self.train("out", 2, 3, *SGD, "sync.policy=backup", "exchange.codec=onebit", "exchange.codec_min=64",
                   "exchange.codec_warmup=0", "exchange.codec_cooldown=0", EVERY, "train.stop_after=3",
                   f"sync.replay={self.write_log('backup', DROPPED)}", code=75)
        kept = lambda rank: [x for _, _, values in read_safetensors(
            self.path("out", "checkpoints", "step-3", f"feedback-{rank}.safetensors"))[0].values() for x in values]
        self.assertTrue(any(kept(0)) and any(kept(1)))
        self.assertFalse(any(kept(2)))

    def test_a_job_that_was_told_to_end(self):
        text = self.run_until_told("checkpoint.every=1000000")
        step = self.summary()["steps"]
        self.assertTrue(os.path.exists(self.path("out", "checkpoints", f"step-{step}", "manifest.json")), text)
        more = step // 4 + 3
        said = self.psrun("--resume", self.path("out"), f"train.epochs={more}", out="out")
        self.assertIn(f"resume step={step} ", said)
        self.assertEqual(self.summary()["steps"], 4 * more)

    def test_other_workers_and_policies(self):
        self.train("out", 1, 3, "sync.policy=asp", *SGD, EVERY, "train.stop_after=6", code=75)
        shutil.copytree(self.path("out"), self.path("two"))
        said = self.psrun("--resume", self.path("two"), "-w", 2, out="two", code=1)
        self.assertIn("asp goes on from a checkpoint with as many workers as it had, 3", said)
        for policy in ("bsp", "backup"):
            shutil.copytree(self.path("out"), self.path(policy))
            self.psrun("--resume", self.path(policy), f"sync.policy={policy}", "train.stop_after=0", out=policy)
            self.assertEqual(self.summary(policy)["steps"], 8)


if __name__ == "__main__":
    unittest.main()
