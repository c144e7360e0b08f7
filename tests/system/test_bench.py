"""The benchmarks and comparisons: psrun --verify and the programs of bench/; and a rank that is
stopped."""
import itertools
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, ROOT, JobTest, nightly, torch_python

SHORT = ("data.train=0-319", "train.threads=1", "train.eval_every=0")
DEADLINE_S = 250  # of a program that a test starts


TORCH = torch_python()
needs_torch = unittest.skipUnless(TORCH, "no PyTorch (python3-torch)")


class BenchTest(JobTest):
    def bench(self, program, *args, code=0):
        argv = [sys.executable, str(ROOT / "bench" / program), "--build-dir", str(BIN.parent),
                "--out", self.path(program), *map(str, args)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=DEADLINE_S)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def report(self, program):
        with open(self.path(program, f"{program}.json"), encoding="utf-8") as f:
            return json.load(f)


class Verify(JobTest):
    def test_two_workers_are_equal_bit_for_bit(self):
        text = self.psrun("--verify", "-s", 2, "-w", 2, DIGITS, *SHORT)
        self.assertIn("equal bit for bit with 2 workers", text)

    def test_three_workers_stay_within_the_bound(self):
        text = self.psrun("--verify", "-s", 1, "-w", 3, DIGITS, "train.steps=10", *SHORT)
        self.assertRegex(text, "within the bound|equal bit for bit")

    def test_weights_that_are_no_numbers_are_not_within_it(self):
        sys.path.insert(0, str(ROOT / "deploy"))
        self.addCleanup(sys.path.remove, str(ROOT / "deploy"))
        from psrunlib import verify
        two = [{"w": ("F32", struct.pack("<2f", 1, x))} for x in (2, float("nan"))]
        code, text = verify.verdict(3, 20, *verify.compare(*two))
        self.assertEqual(code, 1)
        self.assertIn("NOT within the bound", text)


class Compare(BenchTest):
    @nightly
    def test_without_pytorch_the_rest_is_compared(self):
        text = self.bench("compare", "-s", 1, "-w", 2, "--rounds", 2, "--torch-python",
                          "no-such-python", "--link-rate", 1, DIGITS, "train.steps=15",
                          "exchange.shm=off", *SHORT)
        self.assertIn("no program no-such-python", text)
        report = self.report("compare")
        self.assertEqual(set(report["modes"]), {"alone", "ps", "allreduce"})
        # Both modes have the same weights at first, the same batches and the same draws.
        loss = {m: report["modes"][m]["train_loss"]["median"] for m in ("ps", "allreduce")}
        self.assertEqual(loss["ps"], loss["allreduce"])
        # A worker sends its gradient once in ps mode, and 2 (n-1)/n of it in a ring.
        tensors = report["advice"]["gradient_bytes"]
        for mode in ("ps", "allreduce"):
            sent = report["modes"][mode]["bytes_sent_per_step"]["median"]
            self.assertLess(abs(sent - tensors) / tensors, 0.1, mode)
        # G = 4 n_params at 125 MB/s; a server on a host of its own takes both gradients.
        links = report["advice"]["links_gbit"]["1"]["exchange_ms"]
        self.assertAlmostEqual(links["ring"], tensors / 125e6 * 1e3, 6)
        self.assertAlmostEqual(links["servers"], 2 * tensors / 125e6 * 1e3, 6)

    @nightly
    def test_bytes_in_shared_memory_are_shown(self):
        text = self.bench("compare", "-s", 1, "-w", 2, "--rounds", 1, "--torch-python",
                          "no-such-python", "--link-rate", 1, DIGITS, "train.steps=15",
                          "exchange.shm=on", *SHORT)
        self.assertIn("through shared memory", text)
        report = self.report("compare")
        # All of it goes both ways: 4 bytes a parameter, and a little between tensors. Only headers
        # travel over sockets.
        tensors = report["advice"]["gradient_bytes"]
        for mode, way in itertools.product(("ps", "allreduce"), ("sent", "received")):
            figures = {m: report["modes"][mode][f"{m}bytes_{way}_per_step"]["median"]
                       for m in ("", "shm_")}
            self.assertAlmostEqual(figures["shm_"] / tensors, 1, delta=0.01)
            self.assertLess(figures[""], 0.02 * tensors)

    @needs_torch
    def test_ddp_stands_beside_it(self):
        self.bench("compare", "-s", 1, "-w", 2, "--rounds", 1, "--torch-python", TORCH, DIGITS,
                   "train.steps=12", "model.dropout=false", *SHORT)
        report = self.report("compare")
        ddp = next(m for m in report["modes"] if m.startswith("ddp"))
        ours, theirs = (report["modes"][m]["train_loss"]["median"] for m in ("ps", ddp))
        self.assertAlmostEqual(ours, theirs, 4)


class Network(BenchTest):
    """The parts of bench/network, on this host and without shaped links."""

    def setUp(self):
        super().setUp()
        sys.path.insert(0, str(ROOT / "bench"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench"))

    def test_all_reduce_alone_checks_its_sums_after_every_step(self):
        from benchlib import exchange_job
        e = exchange_job.Exchange(1 << 20, workers=3, servers=0, shm="off", steps=4, warmup=2)
        found = exchange_job.run(e, str(BIN.parent))  # it fails if a weight is not exact
        # Each rank sends 2 (n - 1) / n of the gradient, and a few bytes more.
        self.assertAlmostEqual(found["bytes_sent_per_step"] / (4 / 3 * e.nbytes), 1, delta=0.01)

    def test_plain_tcp_among_workers(self):
        from benchlib import peers
        for workers, servers in ((3, 0), (2, 0), (2, 3)):
            found = peers.tcp_exchange(str(BIN.parent), workers, servers, 1 << 20, 5)
            self.assertGreater(found["ms_p50"], 0)

    def ddp(self, hook, *keys):
        from benchlib.job_config import JobConfig
        from benchlib.processes import Group
        from jobs import free_port
        out, port = self.path(f"ddp-{hook}"), free_port()
        os.makedirs(out)
        JobConfig.load(str(BIN.parent), DIGITS, [*keys, "job.workers=2"]).write(
            os.path.join(out, "config.json"))
        with Group(120) as group:
            for rank in range(2):
                group.start(f"rank {rank}", [
                    TORCH, str(ROOT / "bench/ddp_job.py"), "--config",
                    os.path.join(out, "config.json"), "--out", out, "--hook", hook],
                    {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
                     "RANK": str(rank), "OMP_NUM_THREADS": "1"})
            group.finish()
        return self.summary(f"ddp-{hook}")

    @needs_torch
    def test_pytorchs_hooks_train(self):
        keys = ("train.steps=20", "train.warmup_steps=4", "model.dropout=false", *SHORT)
        plain = self.ddp("none", *keys)["train_loss"]
        half = self.ddp("fp16", *keys)["train_loss"]
        # Halves have 11 significant bits: the steps are nearly the same.
        self.assertAlmostEqual(half, plain, delta=0.01 * plain)
        self.assertNotEqual(half, plain)
        # The first four steps are DDP's own; then an approximation of rank 1.
        coarse = self.ddp("powersgd1", *keys)
        self.assertEqual(coarse["steps"], 20)
        self.assertNotEqual(coarse["train_loss"], plain)
        self.assertLess(coarse["train_loss"], 2.4)  # of ten classes at random: 2.3

    @needs_torch
    def test_pytorchs_post_local_sgd_trains(self):
        keys = ("train.steps=20", "model.dropout=false", *SHORT)
        plain = self.ddp("none", *keys)["train_loss"]
        # It averages after each step: with Adam that is not the step of the mean gradient.
        for period, delta in ((1, 0.2), (6, 0.4)):
            local = self.ddp(f"postlocal{period}", *keys)
            self.assertEqual(local["steps"], 20)
            self.assertNotEqual(local["train_loss"], plain)
            self.assertAlmostEqual(local["train_loss"], plain, delta=delta * plain)

    @needs_torch
    def test_a_hook_that_there_is_not_is_named(self):
        from benchlib.job_config import BenchError
        with self.assertRaisesRegex(BenchError, "powersgdN"):
            self.ddp("topk", "train.steps=2", *SHORT)


@nightly
class Security(JobTest):
    def test_what_keys_cost_a_byte(self):
        done = subprocess.run([sys.executable, ROOT / "bench/curve", "--sizes", "65536", "--mbytes", "1",
                               "--rounds", "1", "--out", self.path("curve.json")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        (row,) = json.loads(Path(self.path("curve.json")).read_text(encoding="utf-8"))
        self.assertGreater(row["arithmetic"], 0)

    def test_what_strangers_cost(self):
        done = subprocess.run([sys.executable, ROOT / "bench/attacked", "--rounds", "1", "--seconds", "1",
                               "--connections", "300", "--build-dir", BIN.parent,
                               "--out", self.path("attacked.json")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        (pair,) = json.loads(Path(self.path("attacked.json")).read_text(encoding="utf-8"))["pairs"]
        self.assertGreater(pair["ratio"], 0)  # strangers without processor time make no connection


class Step(BenchTest):
    @nightly
    def test_the_processors_time_is_that_of_all_threads(self):
        """It is compared with the kernel's count for the process, which does little except its steps."""
        argv = [BIN / "ps-bench-step", ROOT / "configs" / "mnist-basicnet.yaml", "30", "0",
                "train.threads=2"]
        with subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE) as process:
            result = json.load(process.stdout)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = status
        self.assertEqual(status, 0)
        all_ms = (usage.ru_utime + usage.ru_stime) * 1e3
        # The main thread alone has about half of it.
        self.assertGreater(sum(result["cpu_ms"]), 0.65 * all_ms)
        self.assertLessEqual(sum(result["cpu_ms"]), 1.02 * all_ms)

    @needs_torch
    def test_shapes_are_sorted_from_the_worst_on(self):
        text = self.bench("step", "--shapes", "--only", "digits", "--only", "linear 33",
                          "--rounds", 1, "--seconds", 0.02, "--torch-python", TORCH)
        with open(self.path("step", "shapes.json"), encoding="utf-8") as f:
            rows = json.load(f)["shapes"]
        self.assertEqual({row["case"] for row in rows},
                         {"digits-basicnet", "digits-mlp", "linear 33->65 b17"})
        ratios = [row["ratio"]["median"] for row in rows]
        self.assertEqual(ratios, sorted(ratios))
        self.assertGreater(ratios[0], 0)
        self.assertIn("of the whole process, all threads", text)

    def test_the_sweep_has_every_configuration_and_enough_shapes(self):
        sys.path.insert(0, str(ROOT / "bench"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench"))
        from benchlib import shapes
        names = [case.name for case in shapes.cases()]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 60)
        for config in (ROOT / "configs").glob("*.yaml"):
            self.assertTrue(any(name.split()[0] == config.stem for name in names), config)


class Rounding(BenchTest):
    LAYERS = ("[conv2d: {name: a, out: 16, kernel: 3}, conv2d: {name: b, out: 16, kernel: 5, padding: 2, groups: 16}, "
              "relu, conv2d: {name: c, out: 16, kernel: [3, 1]}, conv2d: {name: d, out: 8, kernel: 3, dilation: 2, "
              "groups: 2}, flatten, linear: 10]")

    def setUp(self):
        super().setUp()
        with open(self.path("convs.yaml"), "w", encoding="ascii") as f:
            f.write(f"model: {{input: [2, 12, 12], layers: {self.LAYERS}}}\ndata: {{kind: synthetic}}\n")

    def rounding(self, what, *args):
        self.bench("rounding", what, *args, "--seeds", 2, "--batch", 3, "--torch-python", TORCH,
                   self.path("convs.yaml"))
        return self.report("rounding")[what]

    @needs_torch
    def test_convolutions_of_every_kind(self):
        rows = self.rounding("layers")
        self.assertEqual({tuple(row["conv"][:7]) for row in rows},  # only square windows
                         {(2, 16, 3, 1, 0, 1, 1), (16, 16, 5, 1, 2, 1, 16), (16, 8, 3, 1, 0, 2, 2)})
        worst = max(e["median"] for row in rows for side in row["errors"].values() for e in side.values())
        self.assertLess(worst, 1e-5)
        errors = self.rounding("steps")[self.path("convs.yaml")]
        self.assertLess(max(max(e) for e in errors.values()), 1e-3)

    @needs_torch
    def test_bf16_is_as_near_as_autocast(self):
        for row in self.rounding("layers", "--bf16"):
            for what, theirs in row["errors"]["autocast"].items():
                ours = row["errors"]["bf16"][what]["median"]
                self.assertLessEqual(ours, 1.1 * theirs["median"], (row["conv"], what))
                self.assertGreater(ours, 1e-4)  # it did round


@nightly
class Trainer(BenchTest):
    def run_trainer(self, what, *args):
        self.bench("trainer", what, "--rounds", 1, *args)
        return self.report("trainer")

    def test_frozen_layers_are_not_sent(self):
        found = self.run_trainer("frozen", "--steps", 14, DIGITS, "train.freeze=[fc*]")
        self.assertLess(found["bytes_times_whole"]["median"], 0.9)

    @needs_torch
    def test_predictions_of_both_sides(self):
        found = self.run_trainer("predict", "--samples", 200, "--torch-python", TORCH, DIGITS)
        self.assertGreater(found["times_torch"]["median"], 0)

    def test_pictures(self):
        try:
            import PIL  # noqa: F401
        except ImportError:
            self.skipTest("no Pillow (python3-pil)")
        found = self.run_trainer("pictures", "--steps", 12, DIGITS, "model.input=[3,32,32]", "data.batch=8")
        self.assertGreater(found["times_memory"]["median"], 0)


class Scale(BenchTest):
    def test_every_figure_of_a_small_job(self):
        text = self.bench("scale", "--cases", "2x2,4x2", "--steps", "2", "--idle", "0.2")
        self.assertIn("idle, CPU us/s: coordinator", text)
        rows = self.report("scale")["figures"]
        self.assertEqual([(r["workers"], r["servers"], r["chunks"]) for r in rows], [(2, 2, 2), (4, 2, 2)])
        for row in rows:
            self.assertGreater(row["startup_cpu_us"]["all"], 0)
            self.assertGreater(row["memory_bytes"]["worker"], 100_000)
            self.assertGreater(row["descriptors"]["server"], 10)

    def test_a_case_that_cannot_be_is_refused(self):
        text = self.bench("scale", "--cases", "4by2", code=2)
        self.assertIn("'4by2' is not WORKERSxSERVERS", text)

    def test_growth_is_the_slope_of_logarithms(self):
        scale = runpy.run_path(str(ROOT / "bench" / "scale"))
        self.assertAlmostEqual(scale["exponent"]([(n, 3 * n ** 2) for n in (16, 64, 256)]), 2)
        self.assertIsNone(scale["exponent"]([(16, 3)]))


class Parity(BenchTest):
    def test_synthetic_data_is_refused(self):
        self.assertIn("name a configuration with data",
                      self.bench("parity", "teacher", ROOT / "configs/synthetic-vgg11.yaml", code=1))

    @needs_torch
    def test_every_step_from_ddps_weights(self):
        self.bench("parity", "teacher", "-w", "1,2,4", "--steps", 12, "--torch-python", TORCH,
                   DIGITS, *SHORT)

    @needs_torch
    def test_classes_that_weigh_differently_or_nothing(self):
        self.bench("parity", "teacher", "-w", 2, "--steps", 4, "--torch-python", TORCH, DIGITS, *SHORT,
                   "train.class_weights=[1,3,1,1,0.5,1,1,2,1,1]", "train.ignore_index=7")

    @needs_torch
    def test_a_step_with_a_tie_is_known(self):
        # the relu's input is x0 - x1
        code = ("import torch; from benchlib.ties import Ties\n"
                "model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.ReLU(), torch.nn.Linear(1, 1))\n"
                "model[0].weight.data[:] = torch.tensor([[1.0, -1.0]])\n"
                "model[2].weight.data[:], model[2].bias.data[:] = 1.0, 0.0\n"
                "ties = Ties(model, torch.nn.MSELoss(), lambda t: t, 1)\n"
                "for x in ([[1.0, 1.0]], [[1.0, 0.5]]):\n"
                "    x, y = torch.tensor(x), torch.tensor([[5.0]], dtype=torch.float64)\n"
                "    model.zero_grad()\n"
                "    torch.nn.functional.mse_loss(model(x), y.float()).backward()\n"
                "    ties.step(x, y)\n"
                "print(*ties.moves)")
        done = subprocess.run([TORCH, "-c", code], env=dict(os.environ, PYTHONPATH=str(ROOT / "bench")), check=True,
                              stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
        tie, none = map(float, done.stdout.split())
        self.assertGreater(tie, 0.1)
        self.assertLess(none, 5e-6)

    def test_a_tie_excuses_its_own_step_alone(self):
        errors = runpy.run_path(str(ROOT / "bench" / "parity"))["forced_errors"]
        line = {"loss": 1, "loss_ref": 1, "grad_err": 1e-7, "grad_max": 1, "weight_err": 0}
        wrong = dict(line, grad_err=1e-3)
        found = errors([line, wrong], [1e-7, 1e-2])
        self.assertEqual((found["ties"], found["gradient"]), (1, 1e-7))
        self.assertEqual(errors([line, wrong], [1e-2, 1e-7])["gradient"], 1e-3)  # the other step has the tie

    @needs_torch
    @nightly
    def test_running_free_stays_as_near_as_ddp_to_itself(self):
        self.bench("parity", "free", "-w", 2, "--seeds", 3, "--steps", 20, "--torch-python",
                   TORCH, DIGITS, "optimizer.name=sgd", "optimizer.lr=0.05", *SHORT)

    @needs_torch
    def test_steps_that_overflow_are_those_that_ddp_skips(self):
        if subprocess.run([TORCH, "-c", "import torch; torch.amp.GradScaler"], stderr=subprocess.DEVNULL,
                          timeout=DEADLINE_S).returncode:
            self.skipTest("GradScaler for the CPU came with PyTorch 2.3")
        # DDP divides by the number of workers after the backward pass, we before it. So DDP's step overflows where
        # a rank's gradient times the scale does, ours where the mean's does: often at another scale, and the runs part.
        # Here each step has the same samples, the largest gradient of a rank is 12.7, that of the mean is 9.5. From a
        # scale of 2^125 on both are too large, 2^124 is right for both: it grows to 2^125 twice in vain.
        self.bench("parity", "free", "-w", 2, "--seeds", 1, "--steps", 20, "--torch-python",
                   TORCH, DIGITS, "optimizer.name=sgd", "optimizer.lr=0.0001",
                   "optimizer.clip_norm=1", "data.scale=12", "loss_scale.use=on",
                   f"loss_scale.init={2.0 ** 127!r}", "loss_scale.interval=5", *SHORT, "data.train=0-63",
                   "data.shuffle=false")
        for run in ("ddp", "ps", "allreduce"):
            summary = self.summary(f"parity/w2-seed0/{run}")
            self.assertEqual((summary["skipped_steps"], summary["loss_scale"]), (3 + 2, 2.0 ** 125), run)

    @nightly
    def test_both_modes_give_the_same_bits(self):
        text = self.bench("parity", "bits", "-w", "2,3", "--steps", 30, DIGITS, *SHORT)
        self.assertEqual(text.count("equal bit for bit"), 4)

    @needs_torch
    @nightly
    def test_every_configuration_is_the_same_model_in_pytorch(self):
        check = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from benchlib import safetensors
from benchlib.job_config import JobConfig
from benchlib.torch_model import Model
config = JobConfig.load(sys.argv[2], sys.argv[3])
model = Model(config)
state = {k: torch.from_numpy(v.copy()) for k, v in safetensors.load(sys.argv[4]).items()}
model.load_state_dict(state, strict=True)
assert [n for n, _ in model.named_parameters()] == [t["name"] for t in config.tensors]
model.eval()
assert not any(m.training for m in model.modules())
"""
        for config in sorted((ROOT / "configs").glob("*.yaml")):
            with self.subTest(config.name):
                weights = self.path("init.safetensors")
                subprocess.run([BIN / "ps-init-weights", weights, config], check=True, timeout=DEADLINE_S)
                done = subprocess.run(
                    [TORCH, "-c", check, ROOT / "bench", BIN.parent, config, weights],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S)
                self.assertEqual(done.returncode, 0, done.stdout)


class Continue(BenchTest):
    """PyTorch goes on from our checkpoints, and we go on from PyTorch's."""
    NORMS = ("model.layers=[{conv2d: {name: conv, out: 16, kernel: 3, bias: false}}, {batch_norm2d: "
             "{name: norm}}, relu, flatten, {linear: {name: fc, out: 10}}, log_softmax]")

    def check_both_directions(self, options, overrides=()):
        text = self.bench("parity", "continue", "-w", 2, "--steps", 2, "--torch-python", TORCH,
                          *options, DIGITS, *SHORT, *overrides)
        results = self.report("parity")["results"]
        self.assertEqual(text.count("passed"), len(results))
        return results

    @needs_torch
    @nightly
    def test_every_optimizer(self):
        results = self.check_both_directions(["--modes", "ps"])
        self.assertEqual(len(results), 10)
        self.assertTrue(all(r["steps"] == 2 for r in results.values()))

    @needs_torch
    def test_batch_norm(self):
        results = self.check_both_directions(["--modes", "allreduce", "--optimizers", "adamw"],
                                             [self.NORMS])
        self.assertTrue(all(0 < r["buffer"] < 1e-5 for r in results.values()))

    @needs_torch
    @nightly
    def test_frozen_and_grouped_parameters(self):
        groups = "[{match: ['*.bias', norm.weight], weight_decay: 0}, {match: fc.*, lr: 0.003}]"
        results = self.check_both_directions(["--modes", "ps", "--optimizers", "adamw"],
                                             [self.NORMS, "train.freeze=[conv.*, norm.bias]",
                                              f"optimizer.groups={groups}"])
        self.assertTrue(all(0 < r["buffer"] < 1e-5 for r in results.values()))

    @needs_torch
    def test_the_lines_of_the_documentation(self):
        self.psrun("-m", "single", DIGITS, "train.steps=3", "checkpoint.every=3", *SHORT)
        page = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
        lines, = re.findall(r"```python\n(.*?)```", page, re.S)
        check = """
import sys, types
sys.path.insert(0, sys.argv[1])
import torch
from benchlib import safetensors as ours
from benchlib.job_config import JobConfig
from benchlib.torch_model import Model, optimizer_of
try:
    import safetensors.torch
except ImportError:  # it need not be there
    found = types.ModuleType("safetensors.torch")
    found.load_file = lambda path: {k: torch.from_numpy(v.copy())
                                    for k, v in ours.load(path).items()}
    sys.modules["safetensors"], sys.modules["safetensors.torch"] = types.ModuleType("safetensors"), found
config = JobConfig.load(sys.argv[2], sys.argv[3])
model, folder = Model(config), sys.argv[4]
optimizer = optimizer_of(config, model)
exec(sys.argv[5])
for p in model.parameters():
    state = optimizer.state[p]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"} and state["step"].item() == 3
    assert state["exp_avg"].shape == p.shape
model(torch.zeros(2, *config["model.input"])).sum().backward()
optimizer.step()
assert all(optimizer.state[p]["step"].item() == 4 for p in model.parameters())
"""
        done = subprocess.run(
            [TORCH, "-c", check, ROOT / "bench", BIN.parent, DIGITS, self.path("out/checkpoints/step-3"),
             lines], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout)


class Stopped(JobTest):
    def test_a_stopped_rank_is_named_and_nobody_hangs(self):
        """Its connections stay open, so only the missing heartbeats show it."""
        parts = self.start_job(0, 4, "exchange.name=gloo", "train.epochs=100000",
                               "net.heartbeat_ms=200", "net.dead_after_ms=4000", *SHORT)
        parts["worker 0"].wait_for("step")
        victim = parts.pop("worker 2")
        os.kill(victim.popen.pid, signal.SIGSTOP)
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertNotEqual(codes[name], 0, name)
            self.assertGreater(codes[name], 0, f"{name} died of a signal")
            self.assertIn("worker 2", part.text(), name)


if __name__ == "__main__":
    unittest.main()
