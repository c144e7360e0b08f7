"""Whole jobs: their results, the files that they leave, and that a repetition gives the same bits."""
import math
import os
import random
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from unittest import mock

from jobs import BASICNET, BIN, DIGITS, NIGHTLY, PSRUN, ROOT, JobTest, Psrun, first, read_safetensors, run_well

SUMMARY_KEYS = """mode model dataset device precision servers shards workers params epochs
    steps samples seconds samples_per_second step_ms_p50 step_ms_p99 exchange_wait_ms_p50
    bytes_sent_per_step bytes_received_per_step train_loss test_loss test_accuracy seed
    peak_rss_bytes""".split()
SHORT = ["train.steps=12", "data.batch=16", "train.log_every=4"]


class Results(JobTest):
    def test_digits_reach_97_percent_and_leave_all_results(self):
        epochs, accuracy = (30, 0.97) if NIGHTLY else (10, 0.95)
        shown = self.psrun("-s", 2, "-w", 2, BASICNET, "train.trace=true", "trace.steps=20", f"train.epochs={epochs}",
                           "train.save_every=100")
        s = self.summary()
        self.assertEqual([k for k in SUMMARY_KEYS if k not in s], [])
        self.assertGreaterEqual(s["test_accuracy"], accuracy)
        # 1,437 samples are padded to 719 a rank: 23 batches of 32.
        self.assertEqual((s["steps"], s["samples"], s["epochs"]), (23 * epochs, 1438 * epochs, epochs))
        self.assertEqual((s["servers"], s["workers"], s["mode"]), (2, 2, "ps"))
        # conv1 320, conv2 18,496, fc1 (64 x 4) -> 128 32,896, fc2 1,290
        self.assertEqual((s["params"], s["test_samples"]), (53002, 360))
        self.assertIn(f"accuracy {s['test_accuracy']:.4f}", shown)
        for name in ("metrics.jsonl", "model.safetensors", "trace.json", "logs/server-1.log",
                     "logs/worker-1.log", "checkpoints/step-100.safetensors",
                     "checkpoints/step-200.safetensors"):
            self.assertTrue(os.path.exists(self.path("out", name)), name)
        tensors, metadata = read_safetensors(self.path("out/checkpoints/step-100.safetensors"))
        self.assertEqual(metadata["step"], "100")
        self.assertEqual(tensors["conv2.weight"][1], [64, 32, 3, 3])

    def test_steps_of_warm_up_have_no_time(self):
        for steps, rows in ((10, 0), (11, 1)):
            shown = self.psrun("-m", "single", DIGITS, f"train.steps={steps}", out=str(steps))
            self.assertEqual(len(re.findall(r"(?m)^  step +\d", shown)), rows, shown)

    def test_a_record_a_step_when_asked(self):
        self.psrun("-s", 1, "-w", 2, DIGITS, *SHORT, "train.log_every=1")
        steps = [r for r in self.records() if "loss" in r]
        self.assertEqual([r["step"] for r in steps], list(range(1, 13)))
        # The first loss is that of chance: ln 10 for ten classes.
        self.assertAlmostEqual(steps[0]["loss_mean"], 2.30, delta=0.25)

    def test_records_that_are_summed_together(self):
        """Steps are so short that the workers sum the losses of many together, over the ends of epochs, too."""
        for mode in first(1, [("-s", 1, "-w", 2), ("-m", "allreduce", "-w", 2)]):
            with self.subTest(mode=mode[1]):
                out = str(mode[1])
                self.psrun(*mode, DIGITS, "data.train=0-639", "train.epochs=15", "train.log_every=3",
                           "train.eval_every=6", out=out)
                lines = self.records(out)
                steps = [r for r in lines if "loss_mean" in r]  # of 64 samples, ten an epoch
                due = sorted(set(range(3, 151, 3)) | {10 * e for e in range(1, 16)})
                self.assertEqual([r["step"] for r in steps], due)
                self.assertEqual([r["step"] for r in lines], sorted(r["step"] for r in lines))
                self.assertEqual([r["epoch"] for r in steps], [(s - 1) // 10 for s in due])
                last = [r for r in steps if r["step"] > 140]
                counts = [b - a for a, b in zip([140] + [r["step"] for r in last], [r["step"] for r in last])]
                mean = sum(n * r["loss_mean"] for n, r in zip(counts, last)) / 10
                self.assertAlmostEqual(self.summary(out)["train_loss"], mean, delta=1e-6)

    def test_jobs_of_the_same_second_have_folders_of_their_own(self):
        argv = [str(PSRUN), "--build-dir", str(BIN.parent), "-m", "single", DIGITS, "train.steps=2"]
        jobs = [Psrun(argv, cwd=self.folder, stdout=subprocess.DEVNULL)
                for _ in range(3)]
        self.assertEqual([job.wait(60) for job in jobs], [0, 0, 0])
        self.assertEqual(len(os.listdir(self.path("runs"))), 3)

    def test_a_terminal_that_is_not_utf_8(self):
        with mock.patch.dict(os.environ, PYTHONIOENCODING="ascii"):
            text = self.psrun("-s", 1, "-w", 1, DIGITS, "train.steps=5", "job.name=caf\u00e9")
        self.assertIn("name=caf? ", text)

    def test_more_threads_than_cores_are_warned_of_once(self):
        cores = len(os.sched_getaffinity(0))
        for workers, threads, warnings in ((2, cores, 1), (1, 1, 0)):
            shown = self.psrun("-s", 1, "-w", workers, DIGITS, "train.steps=2", "train.eval_every=0",
                               f"train.threads={threads}", out=f"{workers}")
            self.assertEqual(len(re.findall("WARN +cores", shown)), warnings, shown)

    def test_a_worker_has_no_more_threads_than_its_layers_have_work_for(self):
        # A sample has 339,072 multiply-adds in four layers (--describe); 2 ** 24 for a thread.
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="8"):
            for batch, threads in ((32, 1), (1000, 5), (1437, 7)):
                self.psrun("-m", "single", BASICNET, "train.threads=0", "train.steps=1",
                           f"data.batch={batch}", out=str(batch))
                self.assertEqual(self.summary(str(batch))["threads"], threads)

    def test_a_soft_limit_of_open_files_is_raised(self):
        # A server of 4 shards and 3 workers needs more than 50.
        with_limit = ["sh", "-c", 'ulimit -Sn 50 && exec "$@"', "sh"]
        argv = self.psrun_argv("-s", 1, "-w", 3, DIGITS, "train.steps=2", "server.shards=4",
                               "exchange.shm=off", "net.join_timeout_ms=20000")
        run_well([*with_limit, *argv], timeout=60)

    def test_losses_that_are_not_finite_are_shown(self):
        shown = self.psrun("-m", "single", DIGITS, "train.epochs=1", "optimizer.name=sgd",
                           "optimizer.lr=1e8", "exchange.nan=allow")
        self.assertRegex(shown, r"test +accuracy 0\.\d+, loss not finite")
        self.assertIsNone(self.summary()["test_loss"])

    def test_without_test_samples_nothing_is_evaluated(self):
        for mode in ("ps", "allreduce", "single"):
            self.psrun("-m", mode, DIGITS, "data.kind=synthetic", "data.samples=64",
                       "data.test_samples=0", "train.steps=4", "train.eval_every=1", out=mode)
            s = self.summary(mode)
            self.assertEqual((s["steps"], s["test_samples"], s["test_loss"]), (4, 0, None))

    def test_without_test_files_nothing_is_evaluated(self):
        os.mkdir(self.path("tr"))
        for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
            shutil.copy(ROOT / "configs/digits" / name, self.path("tr", name))
        settings = ("-m", "single", DIGITS, "data.path=" + self.path("tr"), "data.train=0-127",
                    "data.test=", "train.eval_every=1")
        shown = self.psrun(*settings, "train.epochs=2")
        self.assertRegex(shown, "WARN +data no test set: data.test is not given")
        self.assertEqual((self.summary()["test_samples"], self.summary()["test_loss"]), (0, None))
        self.psrun(*settings, "train.epochs=0", out="initial")
        self.assertTrue(os.path.exists(self.path("initial", "model.safetensors")))
        # Half of a pair of files is a mistake.
        shutil.copy(ROOT / "configs/digits/test-labels-idx1-ubyte.gz", self.path("tr"))
        self.assertIn("does not have the idx files", self.psrun(*settings, out="half", code=1))

    def test_a_short_last_batch_is_dropped_when_asked(self):
        for drop, steps in (("false", 3), ("true", 2)):
            self.psrun("-m", "single", DIGITS, "data.kind=synthetic", "data.samples=20", "data.batch=8",
                       "train.epochs=1", f"data.drop_last_batch={drop}", out=drop)
            self.assertEqual(self.summary(drop)["steps"], steps)

    def test_a_table_of_numbers_is_learnt(self):
        chance = random.Random(1)
        rows = [(chance.gauss(0, 1), chance.gauss(0, 1)) for _ in range(600)]
        for name, part in (("train.csv", rows[:500]), ("test.csv", rows[500:])):
            lines = ["x;y;quadrant"] + [f"{x:.6f};{y:.6f};{(x > 0) + 2 * (y > 0)}" for x, y in part]
            Path(self.path(name)).write_text("\n".join(lines) + "\n", encoding="ascii")
        config = Path(self.path("table.yaml"))
        config.write_text("model: {input: [2], loss: cross_entropy, layers: [{linear: 32}, relu, {linear: 4}]}\n"
                          f"data: {{kind: csv, path: {self.folder}, batch: 25}}\n"
                          "train: {epochs: 20}\noptimizer: {name: adamw, lr: 0.02}\n", encoding="ascii")
        self.psrun("-s", 1, "-w", 2, config)
        self.assertGreater(self.summary()["test_accuracy"], 0.9)
        test = Path(self.path("test.csv"))
        test.write_text(test.read_text(encoding="ascii").replace("x;y", "y;x"), encoding="ascii")
        self.assertIn('data.test: column 1 is named "y", and "x" in data.train: give',
                      self.psrun("--check-data", config, code=1))

    def test_saved_weights_evaluate_to_the_same_figures(self):
        self.psrun("-s", 1, "-w", 2, DIGITS, *SHORT)
        trained = self.summary()
        model = self.path("out/model.safetensors")
        for workers, mode in ((1, "single"), (3, "ps")):
            out = f"evaluated-{workers}"
            self.psrun("-m", mode, "-w", workers, DIGITS, "train.epochs=0",
                       f"train.init={model}", out=out)
            s = self.summary(out)
            self.assertEqual(s["test_accuracy"], trained["test_accuracy"])
            self.assertAlmostEqual(s["test_loss"], trained["test_loss"], delta=1e-6)
            self.assertEqual((s["steps"], s["train_loss"]), (0, None))


    def test_weights_that_fit_in_part(self):
        self.psrun("-m", "single", DIGITS, *SHORT)
        model = self.path("out/model.safetensors")
        fewer = self.path("fewer.yaml")
        text = Path(DIGITS).read_text(encoding="utf-8").replace("out: 10}", "out: 11}")
        Path(fewer).write_text(text, encoding="utf-8")
        settings = ("-w", 2, fewer, *SHORT, "data.path=" + str(ROOT / "configs/digits"), f"train.init={model}")
        self.assertRegex(self.psrun(*settings, out="strict", code=1), r"shape is \(10, \d+\), the model's is \(11")
        shown = self.psrun(*settings, "train.init_strict=false", "train.log_every=1", out="tuned")
        self.assertRegex(shown, r"taken=6 of=8")
        self.assertEqual(shown.count("starts_from="), 2)


class EarlyStop(JobTest):
    # The rate is so high that results get worse at times; where no processor's did, weights that stand still end the job.
    SETTINGS = (DIGITS, "train.epochs=40", "train.eval_every=1", "train.patience=2", "optimizer.lr=0.02",
                "schedule={name: step, step_size: 200, gamma: 0}")

    def check_ended(self, out):
        """Checks that the job has ended after the first two results in a row that are not better."""
        losses = [r["test_loss"] for r in self.records(out) if "test_loss" in r]
        in_row, best = 0, math.inf
        for i, loss in enumerate(losses):
            in_row, best = (0, loss) if loss < best else (in_row + 1, best)
            self.assertEqual(in_row == 2, i == len(losses) - 1, losses)
        s = self.summary(out)
        self.assertEqual((s["stopped_early"], s["interrupted"], s["epochs"], s["test_loss"]),
                         (True, False, len(losses), losses[-1]))
        self.assertLess(len(losses), 40)

    def test_in_every_mode(self):
        for mode in ("ps", "allreduce", "single"):
            shown = self.psrun("-m", mode, "-w", 1 if mode == "single" else 2, *self.SETTINGS, out=mode)
            self.assertIn("; stopped early, after epoch ", shown)
            self.check_ended(mode)
        self.assertEqual(self.weights("ps"), self.weights("allreduce"))

    def test_a_job_that_goes_on_ends_at_the_same_place(self):
        settings = ("-m", "ps", "-s", 1, "-w", 2, *self.SETTINGS, "checkpoint.every=7")
        self.psrun(*settings, out="whole")
        self.psrun(*settings, "train.stop_after=20", out="ended", code=75)
        self.psrun("--resume", self.path("ended"), *settings, out="ended")
        self.check_ended("ended")
        self.assertEqual(self.weights("whole"), self.weights("ended"))

    def test_more_patience_goes_on(self):
        settings = ("-m", "ps", "-s", 1, "-w", 2, *self.SETTINGS, "checkpoint.every=1000")
        self.psrun(*settings)
        epochs = self.summary()["epochs"]
        self.psrun("--resume", self.path("out"), *settings, "train.patience=0", f"train.epochs={epochs + 2}")
        s = self.summary()
        self.assertEqual((s["stopped_early"], s["epochs"]), (False, epochs + 2))

    def test_without_results_it_is_refused(self):
        for settings, said in ((["train.eval_every=0"], r"train\.patience: counts evaluations"),
                               (["data.kind=synthetic", "data.samples=64", "data.test_samples=0"],
                                "train.patience: there is no test set to judge by")):
            self.assertRegex(self.psrun("-m", "single", *self.SETTINGS, *settings, code=1), said)


class AutoWorkers(JobTest):
    def count(self, visible):
        env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        with mock.patch.dict(os.environ, env, clear=True):
            if visible is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = visible
            shown = self.psrun("--dry-run", "-w", "auto", DIGITS)
        return sum("/ps-worker " in line for line in shown.splitlines())

    def test_settings_say_the_same_as_options(self):
        """A setting would override what the parts' environment says."""
        for asked in (["job.servers=1", "job.workers=3"], ["-s", 1, "job.workers=3"], ["-s", 1, "-w", 3, "job.servers=1"]):
            shown = self.psrun("--dry-run", DIGITS, *asked)
            self.assertEqual((shown.count("/ps-server "), shown.count("/ps-worker ")), (1, 3))
            self.assertEqual(shown.count("PS_SERVERS=1 "), 4)
            self.assertNotIn("--set job.", shown)

    def test_a_configuration_behind_settings(self):
        for words in (["--describe"], ["--port", 30000, "-s", 1, "-w", 2, "--resume", self.path()]):
            shown = [self.psrun("--dry-run", *words, *order) for order in
                     ((DIGITS, "train.epochs=1", "train.seed=2"), ("train.epochs=1", DIGITS, "train.seed=2"),
                      ("train.epochs=1", "train.seed=2", DIGITS))]
            self.assertIn("--set train.epochs=1 --set train.seed=2", shown[0])
            self.assertEqual(shown, [shown[0]] * 3)
        self.assertIn("no job is named", self.psrun("--dry-run", "train.epochs=1", code=1))
        self.assertIn("nowhere.yaml: No such file", self.psrun("--dry-run", "train.epochs=1", "nowhere.yaml", code=1))

    def test_are_as_many_as_cuda_shows(self):
        gpu = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
        # 0,2,-1,1: the CUDA Programming Guide's own example.
        for visible, n in first(4, [("0,2,-1,1", 2), (" 0, 1", 2), ("3,,1", 1), (f"{gpu},GPU-11", 2), ("0", 1),
                                    ("2,1,0", 3), (f"MIG-{gpu}/1/0,MIG-{gpu}/2/0", 2)]):
            self.assertEqual(self.count(visible), n, visible)

    def test_each_gets_its_part_of_a_gpu(self):
        """A process of CUDA sees one part (MIG) alone."""
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}):
            shown = self.psrun("--dry-run", "-s", 1, "-w", 3, DIGITS)
        given = [line.partition("CUDA_VISIBLE_DEVICES=")[2].split()[0] for line in shown.splitlines() if "/ps-worker " in line]
        self.assertEqual(given, ["MIG-a", "MIG-b", "MIG-a"])

    def test_nccl_stays_on_the_host(self):
        """As the job without keys does. --insecure allows other hosts."""
        both = ["-m", "allreduce", "-w", 2, DIGITS]
        for words, env, lines in ((both, {}, 2), ([*both, "exchange.name=nccl"], {}, 2), ([*both, "exchange.name=gloo"], {}, 0),
                                  ([*both, "--insecure"], {}, 0), ([*both, "net.interface=eth0"], {}, 0),
                                  (["-s", 1, "-w", 2, DIGITS], {}, 0), (both, {"NCCL_SOCKET_IFNAME": "eth0"}, 0)):
            with mock.patch.dict(os.environ, env):
                shown = self.psrun("--dry-run", *words)
            self.assertEqual(shown.count("NCCL_SOCKET_IFNAME=lo "), lines, words)

    def test_are_as_many_as_cores_where_it_shows_none(self):
        cores = len(os.sched_getaffinity(0))
        for visible in first(4, [None, "", "-1,0", "1,1", "-1", "NoDevFiles", "none"]):
            self.assertEqual(self.count(visible), cores, visible)


class SameBits(JobTest):
    """With the same number of workers the final weights are the same for every exchange."""

    def test_servers_shards_and_chunks_change_nothing(self):
        ways = [(1, []), (3, ["server.shards=2", "exchange.chunk=16384"]), (2, ["exchange.shm=off"])]
        for workers in first(1, (3, 1, 2, 4)):
            found = []
            for i, (servers, settings) in enumerate(ways):
                out = f"w{workers}-{i}"
                self.psrun("-s", servers, "-w", workers, DIGITS, *SHORT, *settings, out=out)
                found.append(self.weights(out))
            for i, weights in enumerate(found):
                self.assertEqual(weights, found[0], f"{workers} workers, {ways[i]}")


class LossScale(JobTest):
    """All members skip a step that overflows. Other steps are as without a scale."""

    def test_a_power_of_two_changes_no_bit(self):
        args = [DIGITS, *SHORT, "optimizer.name=sgd", "optimizer.momentum=0.9",
                "optimizer.clip_norm=1"]
        found = []
        for i, way in enumerate(([], ["loss_scale.use=on"])):
            for mode in ("ps", "allreduce"):
                self.psrun("-m", mode, "-w", 2, *args, *way, out=f"{mode}-{i}")
                found.append(self.weights(f"{mode}-{i}"))
                self.assertEqual(self.summary(f"{mode}-{i}")["skipped_steps"], 0)
        self.assertEqual([w == found[0] for w in found], [True] * 4)

    def test_overflows_are_skipped_and_the_scale_backs_off(self):
        first = 2.0 ** 127
        # Inputs are large, so gradients come near the largest float32 without a large scale.
        args = [DIGITS, *SHORT, "train.log_every=1", "loss_scale.use=on",
                f"loss_scale.init={first!r}", "data.scale=1000"]
        ways = {"ps": ["-s", 2, "-w", 2, "server.shards=2"], "allreduce": ["-w", 2],
                "single": []}
        for mode, way in ways.items():
            self.psrun("-m", mode, *[w for w in way if "=" not in str(w)], *args,
                       *[w for w in way if "=" in str(w)], out=mode)
            s = self.summary(mode)
            self.assertGreater(s["skipped_steps"], 0)
            self.assertLess(s["skipped_steps"], 12)
            self.assertEqual(s["loss_scale"], first / 2 ** s["skipped_steps"])
            scales = [r["loss_scale"] for r in self.records(mode) if "loss" in r]
            self.assertEqual(scales[:2], [first, first / 2])
        self.assertEqual(self.summary("ps")["loss_scale"], self.summary("allreduce")["loss_scale"])
        self.assertEqual(self.weights("ps"), self.weights("allreduce"))


class SameMeans(JobTest):
    """However a global batch of 32 is divided, the step uses its mean."""

    PLAIN = ["train.steps=10", "model.dropout=false", "optimizer.name=sgd",
             "optimizer.lr=0.1", "optimizer.weight_decay=0", "schedule.name=constant"]

    def check(self, **ways):
        """They end with the weights of the first one, which is one worker's without micro-batches."""
        for out, way in ways.items():
            options = [a for a in way if "=" not in str(a)]
            settings = [a for a in way if "=" in str(a)]
            self.psrun(*options, DIGITS, *self.PLAIN, *settings, out=out)
        whole, _ = read_safetensors(self.path("whole/model.safetensors"))
        for out in ways:
            other, _ = read_safetensors(self.path(out, "model.safetensors"))
            for name, (_, _, values) in whole.items():
                far = max(abs(a - b) for a, b in zip(values, other[name][2]))
                self.assertLess(far, 2e-5, f"{out}: {name}")

    def test_accumulation_and_unequal_batches_match_one_worker(self):
        self.check(whole=["-m", "single", "data.batch=32"],
                   accumulated=["-m", "single", "data.batch=8", "train.accumulate=4"],
                   unequal=["-s", 1, "-w", 2, "data.batch=[8,24]"])

    def test_a_short_micro_batch_counts_by_its_samples(self):
        job = ["data.train=0-43", "train.epochs=10"]  # 44 samples in a step, as 16, 16 and 12
        self.check(whole=["-m", "single", *job, "data.batch=44"],
                   accumulated=["-m", "single", *job, "data.batch=16", "train.accumulate=3"])

    def test_a_short_last_group_still_steps(self):
        # 1,437 samples in batches of 32: 45 micro-batches, 15 groups of 3, or 12 of 4.
        for accumulate, steps in ((3, 15), (4, 12)):
            out = f"a{accumulate}"
            self.psrun("-m", "single", DIGITS, "train.epochs=1", f"train.accumulate={accumulate}",
                       out=out)
            self.assertEqual((self.summary(out)["steps"], self.summary(out)["samples"]),
                             (steps, 1437))


class BatchNorm(JobTest):
    CONFIG = """
model:
  input: [1, 8, 8]
  layers:
    - conv2d: {name: conv, out: 8, kernel: 3, bias: false}
    - batch_norm2d: {name: norm}
    - relu
    - flatten
    - linear: {name: fc, out: 10}
train: {steps: 20, log_every: 5}
data: {kind: idx, path: %s, scale: 0.0625, batch: 16}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
"""

    def test_buffers_are_rank_0s_and_are_kept(self):
        config = self.file("norm.yaml", self.CONFIG % (ROOT / "configs/digits"))
        for mode in ("ps", "allreduce"):
            self.psrun("-m", mode, "-w", 2, config, out=mode)
            tensors, _ = read_safetensors(self.path(mode, "model.safetensors"))
            self.assertEqual(list(tensors["norm.num_batches_tracked"][2]), [20])
            self.assertNotEqual(list(tensors["norm.running_mean"][2]), [0.0] * 8)
            trained = self.summary(mode)
            model = self.path(mode, "model.safetensors")
            self.psrun("-m", "single", config, "train.epochs=0", f"train.init={model}",
                       out=f"{mode}-evaluated")
            evaluated = self.summary(f"{mode}-evaluated")
            self.assertEqual(evaluated["test_accuracy"], trained["test_accuracy"])
        self.assertEqual(self.weights("ps"), self.weights("allreduce"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
