"""Checkpoints of the whole job: a job that ended and goes on does the same as a job that never ended."""
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from jobs import (DIGITS, PSRUN, Faults, JobTest, SlowDisk, alive, first, nightly, read_safetensors, read_until,
                  run_well, sizes, wait_until)

STEPS = 24
RANDOM_STEPS = int(os.environ.get("PS_RESUME_STEPS", "2"))
SEED = int(os.environ.get("PS_RESUME_SEED", "20"))
SETTINGS = [f"train.steps={STEPS}", "data.batch=20", "train.log_every=4", "data.train=0-239",
            "checkpoint.every=5", "checkpoint.keep=100"]
# Other values of keys that --resume leaves free (docs/configuration.md).
FREE = ["job.name=other", "train.graphs=false", "train.init_strict=false",
        "train.file_timeout_ms=9000", "train.log_every=3", "train.patience=100", "train.warmup_steps=3",
        "train.tensorboard=true", "checkpoint.minutes=3", "checkpoint.keep=2", "data.eval_batch=50", "data.prefetch=5",
        "data.threads=2", "exchange.chunk=8K", "exchange.shm=off", "exchange.credit=64K", "exchange.bucket=1K",
        "server.shards=3", "net.heartbeat_ms=100", "net.io_threads=2", "recovery.share=0.1", "trace.straggler=false"]
# Fields that depend on the time, on one process, or on how much travelled.
OWN = ("seconds", "samples_per_second", "step_ms", "exchange_wait_ms", "bytes", "rss", "in_flight",
       "server_stats", "compression_ratio", "servers", "shards", "warmup", "rejoins", "stragglers", "tables")


def copy_until(run, to, step):
    """Copies the run as if it had died just after the checkpoint of that step."""
    shutil.copytree(run, to, symlinks=True)
    for name in os.listdir(os.path.join(to, "checkpoints")):
        if name.startswith("step-") and "." not in name and int(name[5:]) > step:
            shutil.rmtree(os.path.join(to, "checkpoints", name))
    for name in ("summary.json", "model.safetensors"):
        os.remove(os.path.join(to, name))


def comparable(record):
    return {k: v for k, v in record.items() if not any(own in k for own in OWN)}


class CheckpointTest(JobTest):
    def setUp(self):
        # A disk that is slow makes a job skip checkpoints.
        self.old = tempfile.tempdir
        tempfile.tempdir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        super().setUp()
        tempfile.tempdir = self.old

    def run_job(self, out, mode, servers, workers, *settings, config=DIGITS, code=0, args=()):
        return self.psrun(*sizes(mode, servers, workers), *args, config, *settings,
                          out=out, code=code)

    def steps_of(self, out="out"):
        return sorted(int(n[5:]) for n in os.listdir(self.path(out, "checkpoints"))
                      if n.startswith("step-") and "." not in n)

    def check_same(self, whole, resumed):
        self.assertEqual(self.weights(whole), self.weights(resumed))
        self.assertEqual([comparable(r) for r in self.records(whole)],
                         [comparable(r) for r in self.records(resumed)])
        self.assertEqual(comparable(self.summary(whole)), comparable(self.summary(resumed)))

    def run_whole(self, steps, *job, config=DIGITS):
        """Repeats a job until it has the checkpoints of these steps: a busy machine skips some."""
        end = time.monotonic() + 180
        while time.monotonic() < end:
            self.run_job("whole", *job, config=config)
            if set(steps) <= set(self.steps_of("whole")):
                return
            shutil.rmtree(self.path("whole"))
        self.fail(f"no job had checkpoints of steps {steps}")

    def check_resume(self, mode, servers, workers, *settings, config=DIGITS, others=((None, None),),
                     steps=None):
        """Compares an unbroken run with runs that go on from each of its checkpoints."""
        steps = steps or first(2, [10, 24, 5, 15, 20])
        job = (mode, servers, workers, *SETTINGS, *settings)
        self.run_whole(steps, *job, config=config)
        self.check_from(steps, job, others, config)
        shutil.rmtree(self.path("whole"))

    def check_from(self, steps, job, others, config=DIGITS):
        mode, servers, workers, *settings = job
        for step in steps:
            for n_servers, shards in others:
                out = f"from-{step}-{n_servers}"
                copy_until(self.path("whole"), self.path(out), step)
                more = [f"server.shards={shards}"] if shards else []
                said = self.run_job(out, mode, n_servers or servers, workers, *settings,
                                    *more, config=config, args=["--resume", self.path(out)])
                self.assertIn(f"resume step={step} ", said)
                with self.subTest(mode=mode, settings=settings, step=step, servers=n_servers):
                    self.check_same("whole", out)
                shutil.rmtree(self.path(out))


class SameBits(CheckpointTest):
    def test_parameter_servers(self):
        self.check_resume("ps", 2, 2, "optimizer.name=adamw", "schedule.name=cosine")

    def test_longer_patience(self):
        """A job that has stopped early evaluates its last epoch again, and says so once."""
        # From the sixth epoch on the weights stand still: on every processor it stops there, if not before.
        job = ["single", 0, 1, *SETTINGS, "train.steps=0", "train.epochs=40", "optimizer.lr=0.05", "checkpoint.every=1000",
               "schedule={name: step, step_size: 60, gamma: 0}"]
        self.run_job("whole", *job, "train.patience=4")
        self.run_job("out", *job, "train.patience=1")
        self.assertTrue(self.summary()["stopped_early"])
        self.assertLess(self.summary()["steps"], self.summary("whole")["steps"])
        self.run_job("out", *job, "train.patience=4", args=["--resume", self.path("out")])
        self.check_same("whole", "out")

    def test_other_servers(self):
        self.check_resume("ps", 3, 2, "optimizer={name: sgd, momentum: 0.9}", steps=[15],
                          others=((1, 1), (5, 2)))

    @nightly
    def test_random_steps(self):
        """The steps are drawn from those with a checkpoint: a busy machine skips some."""
        job = ("ps", 3, 2, *SETTINGS, "optimizer.name=adamw", "checkpoint.every=1")
        self.run_job("whole", *job)
        steps = [s for s in self.steps_of("whole") if s < STEPS]
        drawn = random.Random(SEED).sample(steps, min(RANDOM_STEPS, len(steps)))
        print(f"steps {drawn} of {len(steps)}, seed {SEED}")
        self.check_from(drawn, job, ((3, None), (1, None), (5, None)))

    def test_codecs(self):
        for codec in first(1, ("onebit", "fp16", "int8", "int4", "topk")):
            self.check_resume("ps", 2, 2, f"exchange.codec={codec}", "exchange.codec_warmup=6",
                              "exchange.codec_cooldown=4", steps=[15],
                              others=((3, None),))

    @nightly
    def test_clipping_accumulation_and_loss_scale(self):
        for more in (["optimizer.clip_norm=0.5"], ["train.accumulate=3"],
                     ["loss_scale={use: on, init: 1e38, interval: 3}"]):
            for mode in ("ps", "allreduce", "single"):
                self.check_resume(mode, 2, 1 if mode == "single" else 2, *more, steps=[10])

    def test_batch_norm_and_dropout(self):
        config = self.file("norms.yaml",
                           "model:\n  input: [3, 8, 8]\n  layers:\n    - conv2d: {out: 8, kernel: 3}\n"
                           "    - batch_norm2d\n    - relu\n    - dropout: 0.25\n    - flatten\n    - linear: 10\n"
                           "data: {kind: synthetic, batch: 20, samples: 240, test_samples: 50, flip: true,"
                           " crop_padding: 1}\noptimizer: {name: adamw}\ntrain: {epochs: 30, eval_every: 2}\n")
        for mode in first(2, ("ps", "allreduce", "single")):
            self.check_resume(mode, 2, 1 if mode == "single" else 2, "data.train=", config=config, steps=[15])

    def test_unequal_batches(self):
        self.check_resume("ps", 2, 3, "data.batch=[5, 20, 10]", steps=[15])

    @nightly
    def test_batches_that_follow_speeds(self):
        """The second epoch goes on with the sizes that it has; measured anew in the first one, they may be others."""
        for mode in ("ps", "allreduce"):
            job = (mode, 2, 3, *SETTINGS, "data.batch=auto", "data.global_batch=40", "train.steps=12")
            for _ in range(8):  # until the speeds are not equal by chance
                self.run_whole([5, 10], *job)
                if self.summary("whole")["batches"] != [14, 13, 13]:
                    break
                shutil.rmtree(self.path("whole"))
            self.check_from([10], job, ((None, None),))
            copy_until(self.path("whole"), self.path("out"), 5)
            self.run_job("out", *job, args=["--resume", self.path("out")])
            self.assertEqual(sum(self.summary("out")["batches"]), 40)
            for out in ("out", "whole"):
                shutil.rmtree(self.path(out))

    def test_bytes_a_step_are_of_the_steps_that_were_made(self):
        # By TCP: the gradients are nearly all of what is sent. What is received depends
        # on how many checkpoints are made, and a slow disk makes a job skip some.
        job = ("ps", 2, 2, *SETTINGS, "exchange.shm=off")
        self.run_whole([15], *job)
        copy_until(self.path("whole"), self.path("rest"), 15)
        self.run_job("rest", *job, args=["--resume", self.path("rest")])
        whole, rest = (self.summary(run)["bytes_sent_per_step"] for run in ("whole", "rest"))
        self.assertAlmostEqual(rest / whole, 1, delta=0.2)

    def test_all_reduce(self):
        self.check_resume("allreduce", 0, 3, "optimizer.name=adamw", "exchange.bucket=64KiB", steps=[10])


class OtherJobs(CheckpointTest):
    """Jobs that go on with other settings than those with which they began."""

    def test_other_workers_see_every_sample_once(self):
        settings = [*SETTINGS, "train.eval_every=1"]
        self.run_whole([5], "ps", 1, 2, *settings)
        for workers in (1, 3):
            out = f"with-{workers}"
            copy_until(self.path("whole"), self.path(out), 5)  # 200 of 240 samples
            said = self.run_job(out, "ps", 1, workers, *settings, args=["--resume", self.path(out)])
            self.assertIn("resume step=5 ", said)
            ends = [r["step"] for r in self.records(out) if "test_loss" in r]
            # 40 samples are left of the first epoch, in batches of 20 from each worker
            self.assertEqual(ends[0], 5 + (2 if workers == 1 else 1))
            self.assertEqual(self.summary(out)["steps"], STEPS)

    def test_onebit_with_other_workers(self):
        codec = ["exchange.codec=onebit", "exchange.codec_warmup=2"]
        self.run_whole([15], "ps", 1, 3, *SETTINGS, *codec)
        for workers in (1, 4):
            out = f"with-{workers}"
            copy_until(self.path("whole"), self.path(out), 15)
            self.run_job(out, "ps", 1, workers, *SETTINGS, *codec, args=["--resume", self.path(out)])
            self.assertEqual(self.summary(out)["steps"], STEPS)

    def test_more_epochs(self):
        settings = ["data.train=0-239", "data.batch=20", "checkpoint.every=4", "optimizer.name=adamw",
                    "schedule.name=constant"]
        self.run_job("whole", "ps", 2, 2, *settings, "train.epochs=5")
        self.run_job("part", "ps", 2, 2, *settings, "train.epochs=3")
        self.psrun("--resume", self.path("part"), "train.epochs=5", out="part")
        self.check_same("whole", "part")

    def test_another_exchange(self):
        settings = [*SETTINGS, "optimizer.name=adamw"]
        self.run_whole([10], "ps", 2, 2, *settings)
        copy_until(self.path("whole"), self.path("other"), 10)
        said = self.run_job("other", "allreduce", 0, 2, *settings, args=["--resume", self.path("other")])
        self.assertIn("exchange.name: allreduce, was ps", said)
        self.check_weights_close("whole", "other")

    def test_keys_that_are_free_change_no_bit(self):
        settings = [*SETTINGS, "optimizer.name=adamw", "exchange.codec=int8"]
        self.run_whole([10], "ps", 2, 2, *settings)
        copy_until(self.path("whole"), self.path("out"), 10)
        said = self.run_job("out", "ps", 1, 2, *settings, *FREE, args=["--resume", self.path("out")])
        self.assertIn("resume step=10 ", said)
        self.assertNotIn("not the checkpoint's", said)
        self.assertEqual(self.weights("whole"), self.weights("out"))

    def test_another_run_is_left_alone(self):
        self.run_job("run", "single", 0, 1, *SETTINGS, "train.stop_after=5", code=75)
        self.run_job("other", "single", 0, 1, *SETTINGS)
        names = ("logs/worker-0.log", "job.json", "metrics.jsonl", "summary.json")
        before = [(name, os.stat(self.path("other", name))) for name in names]
        said = self.run_job("other", "single", 0, 1, *SETTINGS, args=["--resume", self.path("run")], code=1)
        self.assertIn("other holds a run already", said)
        for name, was in before:
            now = os.stat(self.path("other", name))
            self.assertEqual((now.st_ino, now.st_mtime_ns, now.st_size), (was.st_ino, was.st_mtime_ns, was.st_size), name)
        self.run_job("other", "single", 0, 1, *SETTINGS, args=["--resume", self.path("run"), "--overwrite"])

    def test_a_setting_that_is_refused_is_none_of_the_runs(self):
        self.run_job("out", "ps", 1, 2, *SETTINGS, "train.stop_after=5", code=75)
        known = self.text_of("out", "job.json")
        for refused in ("optimizer.name=sgd", "model.layers=[flatten, {linear: {name: fc, out: 10}}, log_softmax]"):
            self.psrun("--resume", self.path("out"), refused, code=1)
            self.assertEqual(self.text_of("out", "job.json"), known)
            self.assertIn("out was interrupted", run_well([PSRUN, "--top", self.path("out")]))
        self.psrun("--resume", self.path("out"), "train.steps=9")
        self.psrun("--resume", self.path("out"), "train.log_every=3")
        self.assertEqual(self.summary()["steps"], 9)
        self.assertIn("train.steps=9", self.text_of("out", "job.json"))

    def test_keys_that_change_the_result_are_named(self):
        job = ("single", 0, 1, *SETTINGS)
        self.run_whole([10], *job)
        copy_until(self.path("whole"), self.path("out"), 10)
        changes = {"train.seed": (7, 1), "train.label_smoothing": (0.1, 0), "train.accumulate": (2, 1),
                   "train.freeze": ('["conv1.*"]', "[]"), "train.precision": ("bf16", "float32"), "train.save_every": (7, 0),
                   "train.class_weights": ([2] + [1] * 9, []), "optimizer.lr": (0.5, 0.003), "data.seed": (3, 0)}
        said = self.run_job("out", *job, *(f"{key}={now}" for key, (now, _) in changes.items()),
                            args=["--resume", self.path("out")])
        [changed] = [line.split(' changed="')[1] for line in said.splitlines() if "not the checkpoint's" in line]
        self.assertEqual(sorted(changes), sorted(c.split(": ")[0] for c in changed.split("; ")))
        for words in ("train.seed: 7, was 1", "optimizer.lr: 0.5, was 0.003", "train.precision: bf16, was float32"):
            self.assertIn(words, changed)

    def test_other_data_are_named(self):
        job = self.file("own.yaml", "data: {kind: csv, train: own.csv, test: tests.csv, batch: 8}\ncheckpoint: {every: 5}\n"
                                    "model: {input: [1], layers: [linear: {out: 2}]}\n")
        lines = [f"{i},{i % 2}\n" for i in range(40)]
        tests = self.file("tests.csv", "".join(lines[:9]))
        for out, now, says in (("fewer", lines[:-4], "had=40 has=36"), ("order", lines[::-1], "had=40 has=40 differ=answers"),
                               ("same", lines, "")):
            self.file("own.csv", "".join(lines))
            self.run_job(out, "single", 0, 1, config=job)
            self.file("own.csv", "".join(now))
            said = self.run_job(out, "single", 0, 1, "train.epochs=2", config=job, args=["--resume", self.path(out)])
            self.assertIn("resume step=5 ", said)
            if says:
                self.assertRegex(said, f"the training samples are not the checkpoint's.* {says}")
            else:
                self.assertNotIn("not the checkpoint's", said)
        Path(tests).write_text("".join(lines[1:10]), encoding="utf-8")
        said = self.run_job("same", "single", 0, 1, "train.epochs=3", config=job, args=["--resume", self.path("same")])
        self.assertRegex(said, "the test samples are not the checkpoint's: .* had=9 has=9 differ=answers")
        self.assertNotIn("training samples are not", said)

    def test_a_table_whose_first_weights_are_gone(self):
        """Its means are theirs; the checkpoint has them, too."""
        job = self.file("own.yaml", "data: {kind: csv, train: own.csv, target: y}\ntrain: {epochs: 2}\n"
                                    "model: {loss: mse, layers: [linear: {out: 1}]}\n")
        for out, factor, settings in (("first", 1, []), ("whole", 3, ["checkpoint.every=1"]), ("out", 3, ["train.stop_after=1"])):
            self.file("own.csv", "x,y\n" + "".join(f"{factor * i * i},{i % 3}\n" for i in range(40)))
            init = [f"train.init={self.path('first', 'model.safetensors')}"] if settings else []
            self.run_job(out, "single", 0, 1, *init, *settings, config=job, code=75 if out == "out" else 0)
        shutil.rmtree(self.path("first"))
        said = self.run_job("out", "single", 0, 1, *init, code=1, config=job, args=["--resume", self.path("out")])
        mend = f"train.init={self.path('out', 'checkpoints', 'step-1', 'model.safetensors')}"
        self.assertIn(f"as train.init is gone, from which the table's means and categories were: {mend}", said)
        self.run_job("out", "single", 0, 1, mend, config=job, args=["--resume", self.path("out")])
        self.assertEqual(self.weights("out"), self.weights("whole"))

    def test_the_best_weights_elsewhere_are_named(self):
        """The best epoch is the first of three; the job goes on after it, and gets worse."""
        job = self.file("own.yaml", "data: {kind: csv, train: own.csv, test: own.csv, batch: 8}\ncheckpoint: {every: 100}\n"
                                    "model: {input: [1], layers: [linear: {out: 2}]}\ntrain: {epochs: 3}\n")
        self.file("own.csv", "".join(f"{i},{i % 2}\n" for i in range(40)))
        self.run_job("run", "single", 0, 1, "train.stop_after=7", config=job, code=75)
        shutil.copytree(self.path("run"), self.path("old"), symlinks=True)
        worse = ["optimizer.lr=1000", "schedule.name=constant"]
        said = self.run_job("other", "single", 0, 1, *worse, config=job, args=["--resume", self.path("run")])
        self.assertIn('best epoch=1 note="its weights are in the folder that the job went on from"', said)
        self.assertFalse(os.path.exists(self.path("other", "best.safetensors")))
        said = self.run_job("run", "single", 0, 1, *worse, config=job, args=["--resume", self.path("run")])
        self.assertIn("resume step=7 ", said)
        self.assertNotIn("best epoch=", said)
        # As if the second epoch had been better before the death.
        best = Path(self.path("old", "best.safetensors"))
        best.write_bytes(best.read_bytes().replace(b'"epoch":"0"', b'"epoch":"1"'))
        said = self.run_job("old", "single", 0, 1, *worse, config=job, args=["--resume", self.path("old")])
        self.assertIn("best epoch=1 note=\"best.safetensors has other weights", said)

    def check_weights_close(self, a, b):
        x, _ = read_safetensors(self.path(a, "model.safetensors"))
        y, _ = read_safetensors(self.path(b, "model.safetensors"))
        for name, (_, _, values) in x.items():
            for u, v in zip(values, y[name][2]):
                self.assertAlmostEqual(u, v, places=5, msg=name)

    def test_another_model_is_refused(self):
        sgd = "optimizer={name: sgd, lr: 0.01}"
        self.run_job("out", "single", 0, 1, *SETTINGS, sgd)
        for setting, said in (("optimizer.name=adam", "optimizer.name: the checkpoint is of a job with sgd, not adam"),
                              ("loss_scale.use=on", "loss_scale.use: the checkpoint is of a job with auto, not on"),
                              ("model.layers=[flatten, {linear: {name: fc, out: 10}}, log_softmax]", "the model has")):
            text = self.run_job("out", "single", 0, 1, *SETTINGS, sgd, setting,
                                code=1, args=["--resume", self.path("out")])
            self.assertRegex(text, f"step-{STEPS}: .*{said}")
            self.assertEqual(self.steps_of()[-1], STEPS)  # it is not damaged


class Damage(CheckpointTest):
    once = None

    def setUp(self):
        super().setUp()
        if not Damage.once:
            self.run_whole([5, 20, 24], "single", 0, 1, *SETTINGS)
            Damage.once = tempfile.TemporaryDirectory(prefix="pstrain-test-")
            self.addClassCleanup(Damage.once.cleanup)
            shutil.copytree(self.path("whole"), os.path.join(Damage.once.name, "whole"), symlinks=True)
        else:
            shutil.copytree(os.path.join(Damage.once.name, "whole"), self.path("whole"), symlinks=True)
        self.steps = self.steps_of("whole")

    def resume(self, out, code=0):
        return self.run_job(out, "single", 0, 1, *SETTINGS, code=code, args=["--resume", self.path(out)])

    def spoil(self, out, spoiler, step):
        shutil.copytree(self.path("whole"), self.path(out))
        spoiler(Path(self.path(out, "checkpoints", f"step-{step}")))

    @staticmethod
    def flip(path, at):
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)

    def spoilers(self):
        # every run takes the first five: one of each kind of damage
        yield "size", "bytes, but the manifest says", lambda d: os.truncate(d / "model.safetensors", 5000)
        yield "flip", "its checksum is", lambda d: self.flip(d / "optimizer.safetensors", -3)
        yield "missing", "optimizer.safetensors", lambda d: (d / "optimizer.safetensors").unlink()
        yield "manifest", "manifest.json: ", lambda d: os.truncate(d / "manifest.json", 700)
        yield "foreign", "is not the manifest", lambda d: (d / "manifest.json").write_text('{"step": 4}')
        yield "tail", "bytes, but the manifest says", lambda d: (d / "model.safetensors").write_bytes(
            (d / "model.safetensors").read_bytes() + b"x")
        yield "header", "its checksum is", lambda d: self.flip(d / "model.safetensors", 40)
        yield "other", "its checksum is", lambda d: shutil.copy(
            d.parent / "step-5" / "model.safetensors", d / "model.safetensors")  # belongs to another checkpoint
        yield "digit", "manifest.json: ", lambda d: self.flip(d / "manifest.json", 60)
        yield "none", "manifest.json", lambda d: (d / "manifest.json").unlink()
        yield "empty", "manifest.json", lambda d: [f.unlink() for f in d.iterdir()]

    def test_the_one_before_is_used(self):
        last, before = self.steps[-1], self.steps[-2]
        for name, said, spoiler in first(5, list(self.spoilers())):
            self.spoil(name, spoiler, last)
            text = self.resume(name)
            with self.subTest(name):
                self.assertRegex(text, f"WARN  resume reason=.*step-{last}.*{said}")
                self.assertIn(f"resume step={before} ", text)
                self.check_same("whole", name)
                self.assertTrue(os.path.isdir(self.path(name, "checkpoints", f"step-{last}.damaged")))

    def test_none_is_whole(self):
        def spoil_all(folder):
            names = ["manifest.json", "model.safetensors", "optimizer.safetensors"]
            for i, step in enumerate(self.steps[:-1]):
                self.put_fifo(folder.parent / f"step-{step}" / names[i % 3])
            self.flip(folder.parent / f"step-{self.steps[-1]}" / "model.safetensors", -1)
        self.spoil("all", spoil_all, self.steps[0])
        text = self.resume("all", code=1)
        self.assertRegex(text, r"no checkpoint is whole; the oldest: \S*manifest.json: is not a regular file")
        self.assertEqual(self.records("all"), self.records("whole"))  # nothing is touched

    @staticmethod
    def put_fifo(path):
        path.unlink()
        os.mkfifo(path)

    def test_what_is_no_file_is_refused(self):
        self.put_fifo(Path(self.path("whole/metrics.jsonl")))
        self.assertRegex(self.resume("whole", code=1), r"metrics\.jsonl: is not a regular file")
        os.remove(self.path("whole/metrics.jsonl"))
        Path(self.path("mine")).write_text("mine")
        os.symlink(self.path("mine"), self.path("whole/metrics.jsonl"))
        self.assertRegex(self.resume("whole", code=1), r"metrics\.jsonl: is a link to another file")
        self.assertEqual(Path(self.path("mine")).read_text(), "mine")
        self.put_fifo(Path(self.path("whole/job.json")))
        self.assertRegex(self.psrun("--resume", self.path("whole"), out="whole", code=1), "is not a regular file")

    def test_there_is_none(self):
        shutil.rmtree(self.path("whole", "checkpoints"))
        self.assertIn("there is no checkpoint in", self.resume("whole", code=1))

    def test_a_new_job_does_not_mix_with_them(self):
        settings = [*SETTINGS, f"checkpoint.path={self.path('whole', 'checkpoints')}"]
        text = self.run_job("other", "single", 0, 1, *settings, code=1)
        self.assertIn("holds checkpoints already", text)
        self.run_job("other", "single", 0, 1, *settings, "train.steps=6", args=["--overwrite"])
        self.assertEqual(self.steps_of("whole")[-1], 6)


class Interrupted(CheckpointTest):
    LONG = ["train.epochs=140", "data.train=0-239", "data.batch=20", "checkpoint.every=1000000",
            "schedule.name=constant", "train.log_every=20"]
    ENDLESS = [*LONG, "train.epochs=100000"]

    def setUp(self):
        super().setUp()
        self.disk = SlowDisk(self.path("held"))

    def start(self, mode, servers, workers, *settings, args=(), out="out", config=DIGITS, faults=None):
        env = dict(os.environ, **(faults or self.disk).env)
        return self.start_psrun(*sizes(mode, servers, workers), *args, config, *settings, out=out, env=env)

    def end_held(self, psrun, number, code, let_go):
        """Lets the job go on when all have been told."""
        psrun.send_signal(number)
        self.assertTrue(read_until(psrun.stdout, "keeping the weights"))
        let_go()
        psrun.communicate(timeout=60)
        self.assertEqual(psrun.returncode, code)

    def test_sigterm_keeps_it_and_says_start_me_again(self):
        for mode, servers, workers in first(1, (("ps", 2, 2), ("allreduce", 0, 2), ("single", 0, 1))):
            job = [mode, servers, workers, *self.LONG, "train.save_every=200"]
            self.run_job("whole", *job)
            again = ["--resume", "auto"]
            self.disk.hold_job(200)
            psrun = self.start(*job, args=again)
            self.wait_for_steps("out", records=3)
            self.end_held(psrun, signal.SIGTERM, 75, lambda: self.disk.let_job_go(200))
            self.assertTrue(self.summary()["interrupted"])
            self.assertEqual(self.steps_of(), [self.summary()["steps"]])
            for step, name in ((400, signal.SIGTERM), (600, signal.SIGINT)):
                self.disk.hold_job(step)
                psrun = self.start(*job, args=again)
                self.wait_for_steps("out", records=len(self.records()) + 2)
                self.end_held(psrun, name, 75 if name == signal.SIGTERM else 130,
                              lambda s=step: self.disk.let_job_go(s))
            self.run_job("out", *job, args=again)
            self.check_same("whole", "out")
            shutil.rmtree(self.path("whole"))
            shutil.rmtree(self.path("out"))

    def test_while_it_evaluates(self):
        job = ["ps", 1, 2, *SETTINGS, "checkpoint.every=0", "checkpoint.minutes=60", "exchange.codec=int8",
               "train.eval_every=1", "data.eval_batch=32"]
        self.run_job("whole", *job)
        for n, batch in enumerate((3, 9)):
            faults = Faults(self.path(f"faults-{n}"), f"worker/1@evaluation.batch:{batch}:hold")
            psrun = self.start(*job, args=["--resume", "auto"], faults=faults)
            faults.wait_for("evaluation.batch", psrun)
            self.end_held(psrun, signal.SIGTERM, 75, lambda f=faults: f.let_go("evaluation.batch"))
            tested = [record["test_loss"] for record in self.records() if "test_loss" in record]
            self.assertEqual(len(tested), n)
            self.assertEqual(self.summary()["test_loss"], tested[-1] if tested else None)  # that of the last whole one
        self.run_job("out", *job, args=["--resume", "auto"])
        self.check_same("whole", "out")

    def test_killed_before_the_first_one(self):
        psrun = self.start("single", 0, 1, *self.ENDLESS, args=["--resume", "auto"])
        self.wait_for_steps("out")
        os.kill(next(pid for pid, line in alive(self.folder) if "ps-worker" in line), signal.SIGKILL)
        psrun.communicate(timeout=60)
        self.run_job("out", "single", 0, 1, *self.LONG, "train.epochs=2", args=["--resume", "auto"])
        self.run_job("whole", "single", 0, 1, *self.LONG, "train.epochs=2")
        self.check_same("whole", "out")
        # A run that has ended without checkpoints is not begun anew.
        shutil.rmtree(self.path("out", "checkpoints"))
        text = self.run_job("out", "single", 0, 1, *self.LONG, code=1, args=["--resume", "auto"])
        self.assertIn("holds a run already", text)

    def test_killed_between(self):
        job = ["ps", 2, 2, *SETTINGS, "train.steps=400", "train.epochs=200", "train.save_every=200"]
        self.run_job("whole", *job)
        self.disk.hold_job(200)
        psrun = self.start(*job)
        wait_until(lambda: os.path.isdir(self.path("out/checkpoints")) and self.steps_of())
        for pid, line in alive(self.folder):
            if "ps-worker" in line or "ps-server" in line:
                os.kill(pid, signal.SIGKILL)
        psrun.communicate(timeout=60)
        self.psrun("--resume", self.path("out"))  # it knows the others
        self.check_same("whole", "out")


class Kept(CheckpointTest):
    def test_the_newest_and_the_best(self):
        settings = [*SETTINGS, "checkpoint.keep=2", "checkpoint.best=loss", "optimizer.lr=0.02"]
        text = self.run_job("out", "ps", 1, 2, *settings)
        evaluations = {r["step"]: r["test_loss"] for r in self.records() if "test_loss" in r}
        best = min(evaluations, key=evaluations.get)
        lowest = [min(list(evaluations.values())[:n + 1]) for n in range(len(evaluations))]
        self.assertEqual(text.count("  best\n"), len(set(lowest)), text)
        self.assertEqual(os.readlink(self.path("out/checkpoints/best")), f"step-{best}")
        self.assertEqual(self.steps_of(), sorted({STEPS, best, *self.steps_of()[-2:]}))
        self.assertLessEqual(len(self.steps_of()), 3)

    def first_is_best(self):
        """A job whose first epoch, of five steps, is the best of two."""
        self.file("own.csv", "".join(f"{i},{i % 2}\n" for i in range(40)))
        return self.file("own.yaml", "data: {kind: csv, train: own.csv, test: own.csv, batch: 8}\ntrain: {epochs: 2}\n"
                                     "model: {input: [1], layers: [linear: {out: 2}]}\nschedule: {name: step, step_size: 5, "
                                     "gamma: 1000000}\ncheckpoint: {every: 1, keep: 100, best: loss}\n")

    def check_first_is_best(self):
        self.assertEqual([r["best"] for r in self.records() if "best" in r], [True, False])
        self.assertEqual(os.readlink(self.path("out/checkpoints/best")), "step-5")
        self.assertIn(5, self.steps_of())

    def test_the_best_is_what_the_job_goes_on_from(self):
        """The job was told to end after an epoch's last step: the epoch is evaluated when it goes on."""
        keep = ["checkpoint.every=100", "checkpoint.keep=1"]
        self.run_job("out", "single", 0, 1, *keep, "train.stop_after=5", config=self.first_is_best(), code=75)
        self.run_job("out", "single", 0, 1, *keep, config=self.path("own.yaml"), args=["--resume", self.path("out")])
        self.check_first_is_best()

    def test_in_another_folder(self):
        """It has the best and the last one of its own, also where no step is left."""
        self.run_job("run", "single", 0, 1, "train.stop_after=5", config=self.first_is_best(), code=75)
        self.run_job("out", "single", 0, 1, config=self.path("own.yaml"), args=["--resume", self.path("run")])
        self.check_first_is_best()
        self.run_job("last", "single", 0, 1, config=self.path("own.yaml"), args=["--resume", self.path("out")])
        self.assertEqual(self.steps_of("last"), [10])
        self.assertEqual(self.weights("last"), self.weights("out"))

    def test_the_best_where_the_disk_is_slow(self):
        """When the epoch ends, the disk still writes another checkpoint."""
        job, batches = self.first_is_best(), {1: "8", 2: "4"}
        disk = SlowDisk(self.path("held"))
        for workers, batch in batches.items():
            disk.hold("step-1")
            psrun = self.start_psrun("-s", 1, "-w", workers, "--overwrite", job, f"data.batch={batch}",
                                     env=dict(os.environ, **disk.env))
            self.assertTrue(read_until(psrun.stdout, 'step=5 note="skipped'))
            disk.let_go("step-1")
            text, _ = psrun.communicate(timeout=60)
            self.assertEqual(psrun.returncode, 0, text)
            self.check_first_is_best()

    def test_overwrite_removes_no_weights_that_the_job_begins_with(self):
        settings = ["train.steps=4", "data.train=0-255", "checkpoint.best=loss", f"checkpoint.path={self.path('kept')}"]
        self.run_job("out", "single", 0, 1, *settings)
        for weights in ("out/model.safetensors", "kept/best/model.safetensors", "kept/step-4/model.safetensors"):
            said = self.run_job("out", "single", 0, 1, *settings, code=1, args=["--overwrite", "--init", self.path(weights)])
            self.assertIn(f"train.init: {self.path(weights)} is of the run in {self.path('out')}, which --overwrite "
                          "replaces: give another --out", said)
            self.assertTrue(os.path.exists(self.path(weights)))
        self.assertIn("steps", self.summary())
        os.rename(self.path("out/model.safetensors"), self.path("out/mine.safetensors"))
        self.run_job("out", "single", 0, 1, *settings, args=["--overwrite", "--init", self.path("out/mine.safetensors")])

    def test_overwrite_removes_nothing_of_a_run_that_goes_on(self):
        job = ["single", 0, 1, *SETTINGS, "train.tensorboard=true"]
        self.run_job("out", *job, "train.stop_after=5", code=75)
        kept = {"events.out.tfevents", "find-lr.svg", "metrics.jsonl"}
        Path(self.path("out/find-lr.svg")).touch()
        before = {name for name in os.listdir(self.path("out")) if name.startswith(tuple(kept))}
        self.assertEqual(len(before), len(kept))
        self.run_job("out", *job, args=["--resume", self.path("out"), "--overwrite"])
        self.assertLess(before, set(os.listdir(self.path("out"))))
        self.assertEqual(self.summary()["steps"], STEPS)

    def test_by_time_where_the_disk_is_slow(self):
        """The next one is taken when the disk is done: nothing is skipped, and said again and again."""
        disk = SlowDisk(self.path("held"))
        disk.hold("manifest.json")
        psrun = self.start_psrun("-m", "single", DIGITS, "checkpoint.minutes=0.0001", "train.steps=200", "train.log_every=1",
                                 env=dict(os.environ, **disk.env))
        self.wait_for_steps("out", records=100)
        disk.let_go("manifest.json")
        text, _ = psrun.communicate(timeout=60)
        self.assertEqual(psrun.returncode, 0, text)
        self.assertNotIn("skipped", text)
        self.assertGreater(len(self.steps_of()), 1)

    @nightly
    def test_by_time(self):
        self.run_job("out", "ps", 1, 2, "checkpoint.minutes=0.002", "train.epochs=100", "checkpoint.keep=500")
        self.assertGreater(len(self.steps_of()), 2)

    def test_pytorch_names(self):
        self.run_job("out", "ps", 2, 2, *SETTINGS, "optimizer.name=adamw")
        folder = f"out/checkpoints/step-{STEPS}"
        model, _ = read_safetensors(self.path(folder, "model.safetensors"))
        last, _ = read_safetensors(self.path("out/model.safetensors"))
        self.assertEqual(model, last)
        states, _ = read_safetensors(self.path(folder, "optimizer.safetensors"))
        self.assertEqual(set(states), {f"{n}.{s}" for n in model for s in ("exp_avg", "exp_avg_sq", "step")})
        self.assertEqual(states["fc1.weight.step"][2][0], STEPS)
        self.assertEqual(json.loads(self.text_of(folder, "manifest.json"))["state"]["step"], STEPS)


class Disks(CheckpointTest):
    def check_goes_on(self, path, reason):
        text = self.run_job("out", "ps", 1, 2, *SETTINGS, f"checkpoint.path={path}", "checkpoint.keep=1",
                            args=["--overwrite"])
        self.assertRegex(text, f"ERROR checkpoint step=[0-9]+ reason=.*{reason}")
        self.assertIn("training goes on without it", text)
        self.assertEqual(self.summary()["steps"], STEPS)

    def test_a_folder_that_cannot_be_made(self):
        self.check_goes_on("/proc/no/such/folder", "cannot make the folder")  # not even by root

    def mount(self, kib, *options):
        folder = self.path(f"disk-{kib}")
        os.mkdir(folder)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([f"size={kib}k", *options]), "tmpfs", folder],
                                 stderr=subprocess.DEVNULL, check=False).returncode == 0
        if not mounted:
            self.skipTest("only root may mount a small disk")
        self.addCleanup(subprocess.run, ["umount", folder], check=True)
        return folder

    def test_a_folder_that_can_only_be_read(self):
        self.check_goes_on(self.mount(4000, "ro"), "Read-only file system")

    def test_a_full_disk(self):
        folder = self.mount(160)  # a checkpoint has 250 KB
        self.check_goes_on(folder, "No space left")
        self.assertEqual(os.listdir(folder), [])

    def test_a_disk_that_fills_keeps_the_one_before(self):
        folder = self.mount(350)
        self.check_goes_on(folder, "No space left")
        self.assertEqual(len(os.listdir(folder)), 1)
        self.run_job("again", "ps", 1, 2, *SETTINGS, f"checkpoint.path={folder}",
                     args=["--resume", self.path("out")])
        self.assertEqual(self.weights("again"), self.weights("out"))


if __name__ == "__main__":
    unittest.main()
