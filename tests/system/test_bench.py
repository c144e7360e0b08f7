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

from jobs import BIN, DIGITS, NIGHTLY, ROOT, JobTest, nightly, run_well, torch_python

SHORT = ("data.train=0-319", "train.threads=1", "train.eval_every=0")
DEADLINE_S = 250  # of a program that a test starts


TORCH = torch_python()
needs_torch = unittest.skipUnless(TORCH, "no PyTorch (python3-torch)")


class BenchTest(JobTest):
    def bench(self, program, *args, code=0):
        argv = [sys.executable, str(ROOT / "bench" / program), "--build-dir", str(BIN.parent),
                "--out", self.path(program), *map(str, args)]
        return run_well(argv, code=code, timeout=DEADLINE_S)

    def report(self, program):
        return json.loads(self.text_of(program, f"{program}.json"))


class Verify(JobTest):
    def test_two_workers_are_equal_bit_for_bit(self):
        # Of a job that would follow its evaluations, or stop before.
        text = self.psrun("--verify", "-s", 2, "-w", 2, DIGITS, *SHORT[:2], "train.patience=1", "schedule.name=plateau",
                          "train.stop_after=5")
        self.assertIn("after 20 steps are equal bit for bit with 2 workers", text)

    @nightly
    def test_more_workers_and_both_optimizers(self):
        for workers, name in itertools.product((2, 3), ("sgd", "adamw")):
            text = self.psrun("--verify", "-s", 2, "-w", workers, DIGITS, "model.dropout=false", "train.steps=30",
                              f"optimizer.name={name}", *SHORT, out=f"{name}-{workers}")
            self.assertIn(f"equal bit for bit with {workers} workers", text)

    def test_three_workers_stay_within_the_bound(self):
        # The folder of a job's checkpoints gets none of these two jobs.
        text = self.psrun("--verify", "-s", 1, "-w", 3, DIGITS, "train.steps=10", "checkpoint.every=5",
                          f"checkpoint.path={self.path('kept')}", *SHORT)
        self.assertRegex(text, "within the bound|equal bit for bit")
        self.assertFalse(os.path.exists(self.path("kept")))

    def test_weights_that_are_no_numbers_are_not_within_it(self):
        from psrunlib import verify
        two = [{"w": ("F32", struct.pack("<2f", 1, x), [2])} for x in (2, float("nan"))]
        code, text = verify.verdict(3, 20, *verify.compare(*two))
        self.assertEqual(code, 1)
        self.assertIn("NOT within the bound", text)


class Compare(BenchTest):
    JOB = (DIGITS, "train.steps=12", "model.dropout=false", *SHORT)

    @needs_torch
    def test_three_ways_from_the_same_weights(self):
        text = self.bench("compare", "-s", 1, "-w", 2, "--rounds", 1, "--torch", TORCH, "--link-rate", 1, *self.JOB,
                          "exchange.shm=off")
        report = self.report("compare")
        self.assertLessEqual(max(len(line) for line in text.splitlines() if not line.endswith("compare.json")), 80)
        self.assertEqual(list(report["modes"]), ["alone", "ps", "allreduce", "ddp"])
        loss = {m: report["modes"][m]["train_loss"]["median"] for m in ("ps", "allreduce", "ddp")}
        self.assertEqual(loss["ps"], loss["allreduce"])
        self.assertAlmostEqual(loss["ps"], loss["ddp"], 4)
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
    def test_without_pytorch_and_bytes_in_shared_memory(self):
        text = self.bench("compare", "-s", 1, "-w", 2, "--rounds", 1, "--torch", "no-such-python", *self.JOB,
                          "exchange.shm=on")
        self.assertIn("no program no-such-python", text)
        self.assertIn("through shared memory", text)
        report = self.report("compare")
        # All of it goes both ways: 4 bytes a parameter, and a little between tensors. Only headers
        # travel over sockets.
        tensors = report["advice"]["gradient_bytes"]
        for mode, way in itertools.product(("ps", "allreduce"), ("sent", "received")):
            figures = {m: report["modes"][mode][f"{m}bytes_{way}_per_step"]["median"] for m in ("", "shm_")}
            self.assertAlmostEqual(figures["shm_"] / tensors, 1, delta=0.01)
            self.assertLess(figures[""], 0.02 * tensors)


class Network(BenchTest):
    """The parts of bench/network, on this host and without shaped links."""

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
        from benchlib.runs import Runner
        runner = Runner(str(BIN.parent), DIGITS, self.path("ddp"), 0, 2)
        runner.ddp(TORCH, hook, runner.job(keys), ["--hook", hook])
        return self.summary(f"ddp/{hook}")

    @needs_torch
    @nightly
    def test_pytorchs_hooks_train(self):
        keys = ("train.steps=20", "train.warmup_steps=4", "model.dropout=false", *SHORT)
        plain = self.ddp("none", *keys)["train_loss"]
        # Halves have 11 significant bits: the steps are nearly the same. The first four steps of PowerSGD are DDP's
        # own; then an approximation of rank 1. Averages after each step are, with Adam, not the step of the mean
        # gradient.
        for hook, delta in (("fp16", 0.01), ("powersgd1", 1), ("postlocal1", 0.2), ("postlocal6", 0.4)):
            found = self.ddp(hook, *keys)
            self.assertEqual(found["steps"], 20)
            self.assertNotEqual(found["train_loss"], plain, hook)
            self.assertAlmostEqual(found["train_loss"], plain, delta=delta * plain, msg=hook)
            self.assertLess(found["train_loss"], 2.4)  # of ten classes at random: 2.3


class Policies(BenchTest):
    def test_local_steps_send_fewer_bytes(self):
        self.bench("policies", "--share", 1, "--slow", 1, "--seeds", 1, "-w", 2, "--torch", "none", "--modes",
                   "bsp;local sync.local_steps=4;allreduce", DIGITS, "train.steps=16", "exchange.shm=off", *SHORT[:2])
        bsp, local, allreduce = self.report("policies")["modes"]
        self.assertEqual(bsp["accuracy_gained"]["mean"], 0)
        self.assertEqual(allreduce["test_loss"], bsp["test_loss"])
        self.assertAlmostEqual(local["bytes_per_step_to_first"]["median"], 1 / 4, delta=0.02)


class Group(BenchTest):
    @needs_torch
    def test_both_backends_at_each_size(self):
        self.bench("group", "--torch", TORCH, "--rounds", 2, "--steps", 2, "--sizes", "4096,100000")
        figures = self.report("group")["figures"]
        calls = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "send")
        lacking = {"all_gather", "reduce_scatter"}  # of Gloo in PyTorch 1
        self.assertIn({*calls} - {f["call"] for f in figures}, (set(), lacking))
        self.assertEqual([f["bytes"] for f in figures], [4096, 100000] * (len(figures) // 2))
        for f in figures:
            self.assertTrue(all(f[key]["median"] > 0 for key in ("gloo_ms", "pstrain_cpu_ms", "gloo_over_pstrain")), f)

    @needs_torch
    def test_steps_have_ddps_losses(self):
        self.bench("group", "--torch", TORCH, "--rounds", 1, "--steps", 2, "--calls", "gan")
        for f in self.report("group")["figures"]:
            self.assertLess(f["losses_differ"], 1e-5, f)
            self.assertGreater(f["gloo_over_pstrain_cpu"]["median"], 0, f)


class Step(BenchTest):
    @nightly
    def test_the_processors_time_is_that_of_all_threads(self):
        """It is compared with the kernel's count for the process, which does little except its steps."""
        argv = [BIN / "ps-bench-step", ROOT / "configs" / "mnist-basicnet.yaml", "30", "0", "60", "train.threads=2"]
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
                          "--rounds", 1, "--seconds", 0.02, "--torch", TORCH)
        rows = self.report("step")["figures"]
        self.assertEqual({row["case"] for row in rows},
                         {"digits-basicnet", "digits-mlp", "linear 33->65 b17"})
        ratios = [row["ratio"]["median"] for row in rows]
        self.assertEqual(ratios, sorted(ratios))
        self.assertGreater(ratios[0], 0)
        self.assertIn("all threads of the process", text)

    def test_the_sweep_has_every_configuration_and_enough_shapes(self):
        from benchlib import shapes
        names = [case.name for case in shapes.cases()]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 60)
        for config in (ROOT / "configs").glob("*.yaml"):
            self.assertTrue(any(name.split()[0] == config.stem for name in names), config)


class Parity(BenchTest):
    def test_synthetic_data_is_refused(self):
        self.assertIn("name a configuration with data",
                      self.bench("parity", "teacher", ROOT / "configs/synthetic-vgg11.yaml", code=1))

    @needs_torch
    def test_every_step_from_ddps_weights(self):
        self.bench("parity", "teacher", "-w", "1,2,4", "--steps", 8 if NIGHTLY else 3, "--torch", TORCH,
                   DIGITS, *SHORT)

    @needs_torch
    def test_classes_that_weigh_differently_or_nothing(self):
        self.bench("parity", "teacher", "-w", 2, "--steps", 2, "--torch", TORCH, DIGITS, *SHORT,
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
        errors = runpy.run_path(str(ROOT / "bench" / "parity"))["without_ties"]
        line = {"loss": 0, "gradient": 1e-7, "weight": 0, "buffer": 0}
        wrong = dict(line, gradient=1e-3)
        found = errors([line, wrong], [1e-7, 1e-2])
        self.assertEqual((found["ties"], found["gradient"]), (1, 1e-7))
        self.assertEqual(errors([line, wrong], [1e-2, 1e-7])["gradient"], 1e-3)  # the other step has the tie

    @needs_torch
    @nightly
    def test_running_free_stays_as_near_as_ddp_to_itself(self):
        self.bench("parity", "free", "-w", 2, "--seeds", 3, "--steps", 20, "--torch",
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
        self.bench("parity", "free", "-w", 2, "--seeds", 1, "--steps", 20, "--torch",
                   TORCH, DIGITS, "optimizer.name=sgd", "optimizer.lr=0.0001",
                   "optimizer.clip_norm=1", "data.scale=12", "loss_scale.use=on",
                   f"loss_scale.init={2.0 ** 127!r}", "loss_scale.interval=5", *SHORT, "data.train=0-63",
                   "data.shuffle=false")
        for run in ("ddp", "ps", "allreduce"):
            summary = self.summary(f"parity/w2-seed0/{run}")
            self.assertEqual((summary["skipped_steps"], summary["loss_scale"]), (3 + 2, 2.0 ** 125), run)

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
                subprocess.run([BIN / "ps-bench-step", "--weights", weights, config], check=True, timeout=DEADLINE_S)
                run_well([TORCH, "-c", check, ROOT / "bench", BIN.parent, config, weights], timeout=DEADLINE_S)


class Continue(BenchTest):
    """PyTorch goes on from our checkpoints, and we go on from PyTorch's."""
    NORMS = ("model.layers=[{conv2d: {name: conv, out: 16, kernel: 3, bias: false}}, {batch_norm2d: "
             "{name: norm}}, relu, flatten, {linear: {name: fc, out: 10}}, log_softmax]")

    def check_both_directions(self, options, overrides=()):
        text = self.bench("parity", "continue", "-w", 2, "--steps", 2, "--torch", TORCH,
                          *options, DIGITS, *SHORT, *overrides)
        results = self.report("parity")["results"]
        self.assertEqual(text.count("passed"), len(results))
        self.assertTrue(results)
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
        run_well([TORCH, "-c", check, ROOT / "bench", BIN.parent, DIGITS, self.path("out/checkpoints/step-3"), lines],
                 timeout=DEADLINE_S)


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
