"""sync.policy backup, ssp and asp: workers go on at their own pace; what counted is recorded and repeated."""
import os
import shutil
import signal
import unittest
from pathlib import Path

from jobs import DIGITS, SMOOTH, JobTest, first, nightly, read_safetensors, wait_until
from test_bench import TORCH, needs_torch

# With three workers an epoch has four steps.
SETTINGS = ["train.epochs=2", "train.seed=3", "data.batch=20", "data.train=0-239", "train.eval_every=0"]
SGD = ["optimizer={name: sgd, lr: 0.05, momentum: 0.5, weight_decay: 0}", "schedule.name=constant",
       "model.dropout=false"]
ADAMW = ["optimizer={name: adamw, lr: 0.002}"]
CLIPPED = ["optimizer.clip_norm=0.5"]
DELAY = ["sync.correction=delay", "sync.delay_strength=2"]
CODED = ["exchange.codec_min=64", "exchange.codec_warmup=1", "exchange.codec_cooldown=1"]
HEAD = '{"policy":"%s","workers":3,"first":0,"total":8,"stretch":4}\n'
# Worker 0 goes over its samples again, worker 2's first push is five versions old.
STALE = ["0 0", "0 0", "1 1", "0 0", "0 0", "2 2", "2 2", "2 2", "0 0", "1 -", "0,2 -", "- 0-2 rest",
         "1-2 1-2", "0 0", "1 1", "2 2", "1 1", "2 2", "1 1", "2 2", "1 -", "0,2 0-2 end"]
LATE = ["0-1 0-1", "0-1 0-1", "- 2", "1-2 1-2", "- 0", "0,2 -", "- 0-2 rest",
        "0,2 0,2", "0,2 0,2", "0,2 0,2", "- 1", "0-1 -", "- 0-2 end"]
ADDED = ["0-1 0-1", "0-1 0-1", "0,2 0,2", "0,2 -", "- 0-2 rest", "0,2 0,2", "0-1 0-1", "1-2 1-2", "0,2 -", "- 0-2 end"]


class PolicyTest(JobTest):
    def train(self, out, servers, workers, *settings, code=0, args=(), base=SETTINGS):
        return self.psrun("-s", servers, "-w", workers, *args, DIGITS, *base, *settings, out=out, code=code)

    def log(self, out="out"):
        return Path(self.path(out, "policy.log")).read_text(encoding="utf-8")

    def write_log(self, policy, lines):
        path = self.path("given.log")
        Path(path).write_text(HEAD % policy + "".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def model(self, out):
        return read_safetensors(self.path(out, "model.safetensors"))[0]

    def policy(self, out="out"):
        return self.summary(out)["policy"]

    def run_until_told(self, *more, before=lambda: None):
        """Runs a job in `out` that gets Ctrl-C after a few steps. Returns its output."""
        settings = [*SETTINGS, "train.epochs=100000", "sync.policy=asp", *SGD, *more]
        psrun = self.start_psrun("-s", 2, "-w", 3, DIGITS, *settings)
        self.wait_for_steps("out", 3)
        before()
        psrun.send_signal(signal.SIGINT)
        text = psrun.communicate(timeout=60)[0]
        self.assertEqual(psrun.returncode, 130, text)
        return text

    def by_hand(self, keys):
        self.train_by_hand(TORCH, "policies_by_hand.py", keys, self.path("given.log"))

    def assert_close(self, out):
        """Compares with the weights that by_hand has made."""
        ours, theirs = self.model(out), read_safetensors(self.path("by-hand.safetensors"))[0]
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertLess(max(abs(a - b) for k in ours for a, b in zip(ours[k][2], theirs[k][2])), 1e-5)


class ClosedForms(PolicyTest):
    def test_ssp_without_staleness_is_bsp(self):
        for optimizer in first(1, (ADAMW, SGD)):
            self.train("bsp", 1, 3, *optimizer, "data.batch=[20, 30, 10]")
            for shm in ("auto", "off"):
                self.train("ssp", 2, 3, *optimizer, "data.batch=[20, 30, 10]", "sync.policy=ssp", "sync.staleness=0",
                           f"exchange.shm={shm}")
                self.assertEqual(self.weights("bsp"), self.weights("ssp"))
                shutil.rmtree(self.path("ssp"))
            shutil.rmtree(self.path("bsp"))

    def test_backup_with_a_long_grace_is_bsp(self):
        """The grace ends when all pushes are in: its time would outlast the test."""
        self.train("bsp", 1, 3, *SGD)
        for late in ("drop", "add"):
            self.train(late, 2, 3, *SGD, "sync.policy=backup", "sync.backup=2", "sync.grace_ms=600000",
                       f"sync.late={late}")
            self.assertEqual(self.weights("bsp"), self.weights(late))
            self.assertEqual(self.policy(late)["counted_by_worker"], [8, 8, 8])

    @nightly
    def test_ssp_without_staleness_is_bsp_with_clipping_and_codecs(self):
        jobs = [[f"exchange.codec={codec}", *CODED] for codec in ("fp16", "bf16", "int8", "int4", "onebit", "topk")]
        for i, job in enumerate([CLIPPED, [*jobs[2], *CLIPPED], *jobs]):
            more = [*(ADAMW if i % 2 else SGD), *job, "train.eval_every=1"]
            with self.subTest(job=job):
                self.train(f"bsp-{i}", 1, 3, *more)
                self.train(f"ssp-{i}", 2, 3, *more, "sync.policy=ssp", "sync.staleness=0")
                self.assertEqual(self.weights(f"bsp-{i}"), self.weights(f"ssp-{i}"))

    @needs_torch
    def test_pytorch_by_hand(self):
        for policy, lines, more in first(4, [("asp", STALE, DELAY), ("ssp", STALE, ["sync.correction=lr"]),
                                             ("backup", LATE, []),
                                             ("backup", ADDED, ["sync.late=add", *DELAY, *CLIPPED]),
                                             ("asp", STALE, []), ("asp", STALE, CLIPPED)]):
            keys = [*SETTINGS, SMOOTH, *SGD, f"sync.policy={policy}", *more, "job.workers=3",
                    f"sync.replay={self.write_log(policy, lines)}"]
            with self.subTest(policy=policy, more=more):
                self.train("out", 2, 3, *keys, base=())
                self.assertEqual(self.log().splitlines()[1:], lines)
                self.by_hand(keys)
                self.assert_close("out")
            shutil.rmtree(self.path("out"))


class Codecs(PolicyTest):
    def test_pushes_that_are_dropped_or_late_or_stale(self):
        for i, (policy, lines, job) in enumerate(first(1, (("asp", STALE, ["exchange.codec=fp16", *CLIPPED]),
                                                  ("asp", STALE, ["exchange.codec=topk", *DELAY]),
                                                  ("backup", LATE, ["exchange.codec=onebit"]),
                                                  ("backup", ADDED, ["exchange.codec=int8", "sync.late=add", *DELAY])))):
            settings = [f"sync.policy={policy}", *CODED, *SGD, *job, "train.eval_every=1"]
            with self.subTest(policy=policy, job=job):
                self.train(f"{i}", 2, 3, *settings, f"sync.replay={self.write_log(policy, lines)}")
                self.assertEqual(self.log(f"{i}").splitlines()[1:], lines)
                self.psrun("--replay", self.path(f"{i}", "policy.log"), "-s", 1, "server.shards=2",
                           "exchange.chunk=16384", out=f"{i}-again")
                # What topk and onebit keep back depends on the borders of chunks.
                if "exchange.codec=fp16" in job:
                    self.assertEqual(self.weights(f"{i}"), self.weights(f"{i}-again"))


class Figures(PolicyTest):
    def test_what_counted_is_told(self):
        self.train("out", 1, 3, "sync.policy=backup", f"sync.replay={self.write_log('backup', LATE)}")
        self.assertEqual(self.policy(), {
            "policy": "backup", "versions": 8, "counted": 16, "dropped": 5, "counted_by_worker": [7, 4, 5],
            "dropped_by_worker": [1, 2, 2], "staleness": [16]})
        said = self.train("asp", 1, 3, *SGD, "sync.policy=asp", f"sync.replay={self.write_log('asp', STALE)}")
        self.assertEqual(self.policy("asp")["counted"], 24)
        self.assertEqual(self.policy("asp")["counted_by_worker"], [8, 7, 9])
        self.assertIn("asp, 24 gradients counted", said)

    def test_all_samples_are_counted(self):
        self.train("out", 2, 3, *SGD, "sync.policy=asp")
        summary = self.summary()
        self.assertEqual((summary["steps"], summary["samples"], summary["policy"]["counted"]), (8, 480, 24))
        self.assertEqual([r["step"] for r in self.records() if "loss_mean" in r], [4, 8])


class Replays(PolicyTest):
    def test_a_run_that_was_told_to_end(self):
        self.run_until_told()
        self.assertTrue(self.log().endswith(" end\n"))
        self.psrun("--replay", self.path("out", "policy.log"), out="again", code=130)
        self.assertEqual(self.weights("out"), self.weights("again"))

    def test_the_disk_has_no_room_for_its_lines(self):
        def no_more():
            os.rename(self.path("out", "policy.log"), self.path("until-then.log"))
            os.mkdir(self.path("out", "policy.log"))
            wait_until(lambda: "ERROR record " in self.text_of("out", "logs", "worker-0.log"))

        self.assertEqual(self.run_until_told(before=no_more).count("training goes on"), 1)
        self.assertTrue(Path(self.path("until-then.log")).read_text(encoding="utf-8").endswith(" rest\n"))

    def test_a_log_of_another_job_is_refused(self):
        log = self.write_log("asp", STALE)
        said = self.train("out", 1, 2, "sync.policy=asp", f"sync.replay={log}", code=1)
        self.assertIn("given.log is of another job", said)
        log = self.write_log("asp", ["0 0", "nonsense"])
        said = self.train("out", 1, 3, "sync.policy=asp", f"sync.replay={log}", code=1)
        self.assertIn("the record's line 'nonsense' does not fit this job", said)
        said = self.psrun("--replay", self.path("none"), code=1)
        self.assertIn("cannot read it", said)


if __name__ == "__main__":
    unittest.main()
