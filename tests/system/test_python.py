"""The Python package: jobs of psrun whose workers are tests/system/python/worker.py.

PS_TORCH_PYTHON names another interpreter, with another PyTorch.
"""
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import unittest
from array import array
from pathlib import Path

from jobs import (BIN, DIGITS, ROOT, JobTest, Part, Psrun, children, find_part, first, free_port, is_killed, kill, nightly, npy,
                  python_with, read_safetensors, run_well, torch_python, wait_until)

PYTHON = torch_python() or sys.executable
WORKER = str(ROOT / "tests/system/python/worker.py")
LIBRARY = next((str(p) for p in BIN.parent.glob("lib*/**/libpstrain.so.0")), "")  # not that of another processor
# Importing PyTorch alone takes half a minute where many tests run at the same time.
FAST = ["net.join_timeout_ms=120000", "net.step_timeout_ms=60000"]
# Longer than a test has.
PATIENT = ["net.join_timeout_ms=120000", "net.step_timeout_ms=1000000", "net.dead_after_ms=1000000"]


def works(code, *words):
    return subprocess.run([PYTHON, "-c", code, *words], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def why_not():
    """Why these tests cannot run; "" if they can."""
    if not LIBRARY:
        return "libpstrain was not built"
    if not works("import torch, torch.distributed as d; assert d.is_available()"):
        return f"no PyTorch for {PYTHON} (python3-torch)"
    if not works("import ctypes, sys; ctypes.CDLL(sys.argv[1])", LIBRARY):
        return f"{PYTHON} cannot load {LIBRARY}: it was built with a sanitizer"
    return ""


WHY_NOT = why_not()


def environment():
    path = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ, PSTRAIN_LIBRARY=LIBRARY, PYTHONPATH=os.pathsep.join(filter(None, path)))


@unittest.skipIf(WHY_NOT, WHY_NOT)
class PythonTest(JobTest):
    def start(self, *case, workers=2, servers=2, settings=FAST, program=(PYTHON, WORKER)):
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", servers, "-w", workers, *settings)
        run = Psrun([*argv, "--", *program, *case], env=environment(), stdin=subprocess.DEVNULL)
        self.addCleanup(kill, run)
        return run

    def job(self, *case, code=0, timeout=120, **how):
        """Runs a case on all ranks; returns the job's output."""
        run = self.start(*case, **how)
        text, _ = run.communicate(timeout=timeout)
        self.assertEqual(run.returncode, code, text)
        return text

    def said(self, text, word, workers=2):
        """Returns what each rank has printed after the word."""
        found = dict(re.findall(rf"rank (\d+): {word} (.*)", text))
        self.assertEqual(sorted(found), [str(r) for r in range(workers)], text)
        return [found[str(r)] for r in range(workers)]


class Bits(PythonTest):
    def test_ddp_ends_with_gloos_bits(self):
        # There are two ranks: a sum of two floats does not depend on their order.
        text = self.job("ddp", timeout=300)
        for name in ("sgd", "adamw", "torch.float64", "torch.bfloat16"):
            for line in self.said(text, name):
                gloo, hook, backend = line.split()
                self.assertEqual(hook, gloo, text)
                self.assertEqual(backend, gloo, text)

    def test_hook_with_a_codec(self):
        text = self.job("codec")
        first, second = self.said(text, "weights")
        self.assertEqual(first, second)
        coded, plain = first.split()
        self.assertNotEqual(coded, plain)

    def test_same_steps_as_pytorch(self):
        # PyPI's PyTorch 2 takes square roots from MKL, often a unit off. If an update is larger than the new weight,
        # that is several units of the weight.
        mkl = works("import torch; assert torch.__version__[0] != '1'")
        for name, most in first(4, (("momentum", 0), ("adamw", 2), ("rmsprop", 8 if mkl else 2), ("lamb", 4 if mkl else 2),
                                    ("sgd", 0), ("nesterov", 0), ("adam", 2), ("adagrad", 2))):
            with self.subTest(name=name):
                said = self.said(self.job("same_step", name), "ulps")
                self.assertEqual(len(set(said)), 1, "the ranks have other weights")
                theirs, nearest = map(float, said[0].split()[:2])
                self.assertLessEqual(theirs, most)
                self.assertEqual(nearest, 0)

    def test_same_bits_as_ps_worker(self):
        # A sample has one number, a power of two. So all its gradients are exact in every program.
        samples = [((-1) ** (i // 3) * 2.0 ** (i % 4 - 2), i * 7 % 64) for i in range(60)]
        for name, body in (("x", npy("<f4", "(60, 1)", array("f", [x for x, _ in samples]).tobytes())),
                           ("y", npy("<i8", "(60,)", array("q", [y for _, y in samples]).tobytes()))):
            Path(self.path(f"{name}.npy")).write_bytes(body)
        config = self.path("linear.yaml")
        Path(config).write_text("model: {input: [1], loss: mse, layers: [linear: {name: fc, out: 64}]}\n"
                                f"data: {{kind: npy, path: {self.folder}, train: 'x.npy,y.npy', batch: 1, "
                                "test: 'x.npy,y.npy', shuffle: false}\n", encoding="utf-8")
        subprocess.run([BIN / "ps-bench-step", "--weights", self.path("init"), config], check=True)
        start = read_safetensors(self.path("init"))[0]
        for keys, options in first(2, (
                ({"name": "sgd", "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.01}, {}),
                ({"name": "adam"}, {"codec": "int8", "settings": ["exchange.codec_min=0"]}),
                ({"name": "adamw"}, {}))):
            with self.subTest(**keys, **options):
                self._same_bits(config, samples, start, dict(keys, lr=0.03), options)

    def _same_bits(self, config, samples, first, keys, options):
        text = self.job("ps_worker", json.dumps({
            "outputs": 64, "samples": samples, "optimizer": {**keys, **options},
            "weights": [list(first[f"fc.{kind}"][2]) for kind in ("weight", "bias")]}))
        words = [f"optimizer.{key}={value}" for key, value in keys.items()]
        # Last bits of Adam differ between PyTorch 1 and 2; the package takes those of its PyTorch.
        new = works("import torch; assert torch.__version__[0] != '1'")
        words.append(f"optimizer.pytorch={2 if new else 1}")
        words += [f"exchange.codec={options['codec']}", *options["settings"]] if options else []
        self.psrun("-s", 2, "-w", 2, "--overwrite", config, f"train.init={self.path('init')}", *words, out="theirs")
        last = read_safetensors(self.path("theirs/model.safetensors"))[0]
        wanted = " ".join(last[f"fc.{kind}"][2].tobytes().hex() for kind in ("weight", "bias"))
        self.assertNotEqual(last["fc.bias"][2], first["fc.bias"][2])
        self.assertEqual(self.said(text, "weights"), [wanted, wanted])

    def test_three_ranks(self):
        said = self.said(self.job("same_step", "sgd", workers=3, servers=1), "ulps", 3)
        self.assertEqual([s.split()[0] for s in said], ["0.0"] * 3)

    def test_save_and_load(self):
        for name in first(1, ("adamw", "momentum", "rmsprop", "adagrad", "lamb")):
            with self.subTest(name=name):
                whole = self.said(self.job("save", name, self.folder), "whole")
                self.assertEqual(self.said(self.job("load", name, self.folder), "whole"), whole)

    def test_load_what_others_have_saved(self):
        for name in ("lamb", "lion"):
            text = self.job("load_from_others", name)
            self.assertEqual(text.count(": fine"), 2, text)

    def test_save_and_load_with_a_codec(self):
        for how in first(1, (["late"], [])):
            whole = self.said(self.job("resume_coded", self.folder, "save", *how), "whole")
            self.assertEqual(self.said(self.job("resume_coded", self.folder, "load", *how), "whole"), whole)


    def test_save_and_load_of_16_bits(self):
        for codec in first(1, ("none", "int8")):
            whole = self.said(self.job("resume_rounded", self.folder, "save", codec), "whole")
            self.assertEqual(self.said(self.job("resume_rounded", self.folder, "load", codec), "whole"), whole)


class Uses(PythonTest):
    def fine(self, *case, **how):
        text = self.job(*case, **how)
        self.assertEqual(text.count(": fine"), 2, text)

    def test_collectives(self):
        self.fine("collectives")

    def test_odd_arguments_of_collectives(self):
        self.fine("odd_collectives")

    def test_callbacks_that_wait_for_collectives(self):
        self.fine("powersgd")

    def test_unused_parameters_in_ddp(self):
        self.fine("unused")

    def test_complex_numbers(self):
        self.fine("complex_numbers")

    def test_groups_frozen_unused_tied(self):
        self.fine("groups")

    def test_parameters_without_a_gradient(self):
        gloo = {"servers": 0, "settings": [*FAST, "exchange.name=gloo"]}
        for where in first(2, ({}, gloo)):
            self.fine("absent", "adamw", "none", self.folder, "save", **where)
            self.fine("absent", "adamw", "none", self.folder, "load", **where)
        for name, codec, where in first(3, (("sgd", "none", gloo), ("lamb", "none", {}), ("adamw", "topk", {}),
                                            ("sgd", "fp16", {}), ("adamw", "int8", {}), ("adamw", "onebit", {}),
                                            ("sgd", "none", {}), ("lamb", "none", gloo), ("adagrad", "none", gloo))):
            with self.subTest(name=name, codec=codec, where=where):
                self.fine("absent", name, codec, self.folder, "whole", **where)

    def test_other_defaults_of_pytorch(self):
        self.fine("defaults")

    def test_zeroed_gradients(self):
        self.fine("zeroed")

    def test_closures(self):
        for rule in first(2, ("servers", "own", "two")):
            with self.subTest(rule=rule):
                for said in self.said(self.job("closures", rule, servers=1), "losses"):
                    ours, theirs = map(json.loads, said.split("; "))
                    for our, their in zip(ours, theirs, strict=True):
                        self.assertAlmostEqual(our, their, delta=2e-6 * abs(their))

    def test_accumulation(self):
        text = self.job("accumulate", code=1)  # it ends its job after the refusal
        self.assertEqual(text.count(": fine"), 2, text)

    def test_unequal_batches(self):
        for codec in ("none", "fp16"):
            self.fine("unequal", codec)

    def test_gradients_in_the_arena(self):
        own, *others = (self.said(self.job("views", how), "views") for how in ("own", "view", "kept", "moved"))
        self.assertEqual(others, [own] * 3)
        self.assertEqual(self.job("views", "late", code=1).count(": refused"), 2)

    def test_seen_by_hooks_and_profiler(self):
        self.fine("watched")

    def test_hooks_of_states(self):
        for rule in ("adam", "nadam"):
            self.fine("hooks_of_state", rule)

    def test_local_clipping(self):
        self.fine("push_at_step")

    def test_clipping_and_scaling_on_the_servers(self):
        self.fine("on_the_servers")

    def test_bfloat16(self):
        self.fine("bfloat16")

    def test_weights_read_after_a_step(self):
        self.fine("read_after_step")

    def test_weights_read_before_a_step(self):
        self.fine("read_before_step", settings=[*FAST, "exchange.chunk=65536", "exchange.shm=off"])

    def test_forward_passes_without_a_backward(self):
        for how in ("at once", "overlap"):
            self.fine("forward_alone", how)

    def test_a_thread_reads_while_the_step_waits(self):
        self.fine("read_meanwhile", self.folder)

    def test_options_of_pytorchs(self):
        self.fine("options_of_pytorch")

    def test_buffers_are_rank_0s(self):
        for how in ("shared", "own"):
            self.fine("buffers", how)

    def test_whole_models_are_saved(self):
        for how in first(1, ("overlap", "at once")):
            self.fine("whole_models", how)

    def test_attention_and_evaluation(self):
        text = self.job("attention")
        self.assertEqual(len(set(self.said(text, "fine"))), 1, text)

    def test_channels_last(self):
        self.fine("channels_last", servers=1)

    def test_on_a_gpu(self):
        """As on the CPU, bit for bit. The driver is a stand-in."""
        for form in first(2, ("plain", "bf16", "overlap", "views", "channels_last", "local", "doubles", "codec", "scale", "step", "frozen", "two")):
            with self.subTest(form):
                theirs, ours = (self.job("device", where, form, servers=1) for where in ("cpu", "gpu"))
                for word in ("digest", "after"):
                    self.assertEqual(self.said(ours, word), self.said(theirs, word))

    def test_collectives_on_a_gpu(self):
        """What counts as a GPU's memory is the host's."""
        self.fine("collectives_on_gpu")

    @nightly
    def test_ddp_on_a_gpu(self):
        text = self.job("ddp_on_gpu", timeout=300)
        for line in self.said(text, "sgd"):
            self.assertEqual(len(set(line.split())), 1, text)

    def test_graphs_on_a_gpu(self):
        text = self.job("graphs", workers=1, servers=1, code=1)
        self.assertIn(": fine", text)
        for case in ("graphs_of_modules", "graphs_after_the_job"):
            self.assertIn(": fine", self.job(case, workers=1, servers=1))

    def test_parameter_of_no_module(self):
        self.fine("bare", servers=1)

    def test_scripted(self):
        for how in ("whole", "overlap"):
            self.fine("scripted", how)

    def test_compiled(self):
        if not works("import torch, sys; sys.exit(not hasattr(torch.nn.Module, 'compile'))"):
            self.skipTest(f"the PyTorch of {PYTHON} has no torch.compile for modules")
        for form in first(1, ("overlap", "default")):
            text = self.job("compiled", form, code=1, servers=1)  # it ends its job after the refusal
            self.assertEqual(text.count(": fine"), 2, text)

    @nightly  # it imports PyTorch itself
    def test_pstrain_imported_before_pytorch(self):
        code = ("import pstrain, sys; assert 'torch' not in sys.modules; import torch.distributed as dist; "
                "assert 'PSTRAIN' in dist.Backend._plugins")
        subprocess.run([os.environ.get("PS_WARM_PYTHON", PYTHON), "-c", code], env=environment(), check=True)

    @nightly  # it imports PyTorch itself
    def test_the_import_starts_no_cuda(self):
        """Processes that are forked afterwards could not use GPUs."""
        code = ("import torch, torch.distributed as dist\n"
                "def started(*_): raise SystemExit('CUDA was started')\n"
                "torch.cuda.is_available = torch.cuda.device_count = torch.cuda.init = started\n"
                "import pstrain\n"
                "assert 'PSTRAIN' in dist.Backend._plugins")
        subprocess.run([os.environ.get("PS_WARM_PYTHON", PYTHON), "-c", code], env=environment(), check=True)

    def test_example(self):
        example = str(ROOT / "python/examples/mnist.py")
        text = self.job("--epochs", "2", program=(PYTHON, example))
        self.assertRegex(text, r"epoch 2: loss \S+, test accuracy 0\.[5-9]")

    @nightly
    def test_example_resnet18(self):
        saved = self.path("model.pt")
        for split in ("train", "test"):  # a few of the digits
            for kind, head, size in (("images-idx3", 16, 64), ("labels-idx1", 8, 1)):
                name = f"{split}-{kind}-ubyte.gz"
                raw = gzip.decompress((ROOT / "configs/digits" / name).read_bytes())
                few = raw[:4] + struct.pack(">I", 64) + raw[8:head + 64 * size]
                Path(self.path(name)).write_bytes(gzip.compress(few))
        text = self.job("--epochs", "1", "--batch", "16", "--save", saved, "--data", self.folder, timeout=500,
                        program=(PYTHON, str(ROOT / "python/examples/resnet18.py")))
        self.assertRegex(text, r"epoch 1: loss \S+, test accuracy 0\.\d+")
        self.assertTrue(works("import torch, sys; s = torch.load(sys.argv[1]); assert s['optimizer']['state']", saved))

    def test_example_differs_in_few_lines(self):
        plain, ours = (set((ROOT / "python/examples" / n).read_text(encoding="utf-8").split("import pstrain")[-1]
                           .split("import torch.distributed as dist")[-1].split("args = ")[1].splitlines())
                       for n in ("mnist_ddp.py", "mnist.py"))
        self.assertEqual(len(ours - plain), 4)  # init, model, optimizer, rank and size

    def test_doctor_where_a_program_hangs(self):
        os.makedirs(self.path("bin"))
        program = Path(self.path("bin", "ps-server"))
        program.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="ascii")
        program.chmod(0o755)
        ask = "from pstrain import doctor; doctor.ANSWERS_WITHIN_S = 0.2; print(doctor.server()[1])"
        said = run_well([PYTHON, "-c", ask], env=dict(environment(), PS_BUILD_DIR=self.folder))
        self.assertEqual(said, f"{program} --version has not ended within 0.2 s: does the disk answer?\n")

    def test_doctors_mends(self):
        """PyTorch is a stand-in that does not load, so that no trial is made."""
        os.mkdir(self.path("torch"))
        self.file("torch/__init__.py", "raise ImportError('libstand_in.so: cannot open shared object file')")
        shutil.copytree(ROOT / "python/pstrain", self.path("pstrain"))  # there is no build beside it
        self.file("zmq.c", "void zmq_version(int *a, int *b, int *c) { *a = 4, *b = 2, *c = 5; }")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.path("libzmq.so.5"), self.path("zmq.c")], check=True)
        here, wrong = {"PSTRAIN_LIBRARY": LIBRARY, "PS_BUILD_DIR": str(BIN.parent)}, "PSTRAIN_LIBRARY names it: correct it, or unset it"
        ask = "import sys; from pstrain import doctor; sys.exit(doctor.main())"
        for given, mends in (
                ({}, [r"library: .*cannot be loaded: .*pip install", r"server: there is no ps-server: install pstrain again \(pip"]),
                ({"PS_BUILD_DIR": self.folder}, ["library: .*", rf"server: .* in {self.folder}/bin \(PS_BUILD_DIR\).*: correct it"]),
                ({**here, "PSTRAIN_LIBRARY": "/no/lib.so"}, [f"library: .*/no/lib.so: cannot open .*: {wrong}"]),
                ({**here, "PSTRAIN_LIBRARY": self.path("zmq.c")}, [f"library: .*(file too short|invalid ELF header): {wrong}"]),
                ({**here, "PSTRAIN_LIBRARY": self.path("libzmq.so.5")}, [f"library: .* is not libpstrain: {wrong}"]),
                ({**here, "LD_LIBRARY_PATH": self.folder}, ["library: .*undefined symbol: zmq_.*: .*apt install libzmq5, 4.3 or later",
                                                            "server: .* does not run: .*undefined symbol: zmq_.*apt install libzmq5"])):
            with self.subTest(given=given):
                env = {k: v for k, v in environment().items() if not k.startswith("PS")}
                said = run_well([PYTHON, "-c", ask], code=1, env=dict(env, PYTHONPATH=self.folder, PATH="/usr/bin:/bin", **given))
                found = [line for line in said.splitlines() if line.startswith("to mend: ")]
                for line, mend in zip(found, [*mends, r"pytorch: .*libstand_in.so.*install it again"]):
                    self.assertRegex(line, f"^to mend: {mend}")
                self.assertEqual(len(found), len(mends) + 1, said)
        ask = "import ctypes; from pstrain import doctor; print(doctor._old_zmq(ctypes.CDLL('libzmq.so.5')))"
        python = os.environ.get("PS_WARM_PYTHON", PYTHON)  # which looks for libraries anew
        said = run_well([python, "-c", ask], env=dict(environment(), LD_LIBRARY_PATH=self.folder))
        self.assertIn("libzmq 4.2.5 is too old: pstrain needs 4.3 or later (apt install libzmq5", said)

    @nightly
    def test_doctor(self):
        said = run_well([PYTHON, "-m", "pstrain.doctor"], env=dict(environment(), PS_BUILD_DIR=str(BIN.parent)),
                        timeout=400)
        self.assertIn("nothing to mend", said)
        if not os.path.exists("/dev/nvidiactl"):
            said = run_well([PYTHON, "-m", "pstrain.doctor", "--gpu"], code=1, timeout=400,
                            env=dict(environment(), PS_BUILD_DIR=str(BIN.parent)))
            self.assertIn("to mend: driver: NVIDIA's driver", said)


@nightly
class HuggingFace(PythonTest):
    """The examples with transformers and accelerate."""

    def example(self, name, *words):
        program = python_with("torch", "transformers", "accelerate"), str(ROOT / "python/examples" / name)
        return self.job(*words, program=program, servers=1, timeout=500)

    def test_trainer(self):
        text = self.example("gpt_trainer.py", "--steps", "4", "--out", self.path("gpt"))
        self.assertRegex(text, r"loss \d\.\d+, 2 workers by pstrain")

    def test_accelerate(self):
        text = self.example("gpt_accelerate.py", "--epochs", "2")
        first, second = re.findall(r"epoch \d: loss (\S+), [\d,]+ tokens/s", text)
        self.assertLess(float(second), float(first))


@nightly
class Bench(PythonTest):
    def test_package_beside_ddp(self):
        run_well([sys.executable, ROOT / "bench/pytorch", "--build-dir", BIN.parent, "--torch", PYTHON, "--rounds",
                  "1", "--out", self.path("out"), DIGITS, "train.steps=6", "train.warmup_steps=2", "train.threads=1",
                  "model.dropout=false", "net.join_timeout_ms=120000"], timeout=900)
        report = json.loads(Path(self.path("out/pytorch.json")).read_text(encoding="utf-8"))
        plain, ours = report["figures"]
        self.assertEqual((plain["mode"], ours["mode"]), ("DDP", "Optimizer"))
        self.assertEqual(ours["test_accuracy"], plain["test_accuracy"])
        self.assertGreater(ours["cpu_ms_per_step_to_ddp"]["median"], 0)
        [pair] = report["pairs"]
        self.assertEqual((pair["ours"], pair["theirs"], pair["accuracy"]["mean"]), ("Optimizer", "DDP", 0))


SUM = """import torch
import torch.distributed as dist
import pstrain
dist.init_process_group("pstrain")
x = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(x)
print("sum", x.item())
dist.destroy_process_group()
"""


class Torchrun(PythonTest):
    """Servers beside it, as the package's README says."""

    def torchrun(self, *words, **env):
        command = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node=2"]
        if subprocess.run([*command, "--standalone", "--no_python", "true"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no torchrun here that starts programs: it comes with PyPI's PyTorch 2")
        run = subprocess.Popen([*command, *words], env=dict(environment(), **env), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        self.addCleanup(kill, run)
        return run

    def pstrain_server(self, *words):
        code = "import sys, pstrain._programs as p; sys.exit(p.server())"
        python = os.environ.get("PS_WARM_PYTHON", PYTHON)  # one that starts its own children
        server = subprocess.Popen([python, "-c", code, *words], env=dict(environment(), PS_BUILD_DIR=str(BIN.parent)),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(kill, server)
        return server

    @staticmethod
    def program_of(server):
        return wait_until(lambda: [pid for name, pid in children(server.pid) if name == "ps-server"])[0]

    def test_servers_beside_it(self):
        init = f"tcp://127.0.0.1:{free_port()}"
        run = self.torchrun(WORKER, "same_step", "sgd", PS_INIT_METHOD=init, PS_SERVERS="1")
        server = Part("server", 0, ["--init-method", init, "--rank", "0", "--world-size", "2"], {"PS_SERVERS": "1"})
        self.addCleanup(server.end)
        text, _ = run.communicate(timeout=240)
        self.assertEqual(run.returncode, 0, text)
        self.said(text, "ulps")
        self.assertEqual(self.wait_all({"server 0": server}, 60), {"server 0": 0})

    def test_their_address_by_torchruns_store(self):
        store = f"127.0.0.1:{free_port()}"
        words = ["--store", store, "--world-size", "2", "--servers", "2", "--max-restarts", "1"]
        servers = [self.pstrain_server(*words, "--rank", str(rank)) for rank in range(2)]
        # Its rank 1 fails in the first attempt; the servers follow it into the second.
        run = self.torchrun("--master_addr=127.0.0.1", f"--master_port={store[10:]}", "--max_restarts=1", WORKER,
                            "once_more")
        text, _ = run.communicate(timeout=400)
        self.assertEqual(run.returncode, 0, text)
        self.assertEqual(text.count(": fine"), 2, text)
        for server in servers:
            said, _ = server.communicate(timeout=60)
            self.assertEqual(server.returncode, 0, said)

    def its_store(self):
        """Debian's torchruns start no programs. Their PyTorch has the store, and may lack libuv. Returns its port; the end of
        self.store's input ends it."""
        code = ("import sys, torch.distributed as d\nwords = '127.0.0.1', int(sys.argv[1]), None, True\n"
                "try:\n    store = d.TCPStore(*words, use_libuv=False)\nexcept TypeError:\n"
                "    store = d.TCPStore(*words)\nprint('up', flush=True)\nsys.stdin.read()")
        port = str(free_port())
        self.store = subprocess.Popen([PYTHON, "-c", code, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.store.communicate, timeout=60)
        self.assertEqual(self.store.stdout.readline(), "up\n")
        return port

    def beside_it(self, port, *words, **more):
        """What two workers say, which are started as torchrun does."""
        env = dict(environment(), **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
                                     "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", **more})
        workers = [subprocess.Popen([PYTHON, *words], env=dict(env, RANK=str(rank)),
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
        for worker in workers:
            self.addCleanup(kill, worker)
        texts = [worker.communicate(timeout=240)[0] for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [0, 0], texts)
        return "".join(texts)

    def test_a_job_without_servers(self):
        """PS_SERVERS=0: nobody waits for a pstrain-server."""
        code = "import torch.distributed as d; d.TCPStore('127.0.0.1', 0, None, True)"
        if subprocess.run([PYTHON, "-c", code], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest(f"the PyTorch of {PYTHON} has no libuv: its init_process_group cannot read torchrun's store")
        text = self.beside_it(self.its_store(), "-c", SUM, PS_SERVERS="0")
        self.assertEqual(text.count("sum 3.0\n"), 2, text)

    def test_the_port_after_its_store(self):
        """It may be another program's. A job without servers meets in the store: also the second of the same processes, and that
        of torchrun's next attempt."""
        port = self.its_store()
        code = "import pstrain, torch\nfor _ in range(2):\n    with pstrain.init():\n        print(pstrain.all_reduce(torch.ones(1)))"
        with socket.socket() as other:
            with contextlib.suppress(OSError):  # somebody has it
                other.bind(("127.0.0.1", int(port) + 1))
                other.listen()
            for attempt in "01":
                text = self.beside_it(port, "-c", code, PS_SERVERS="0", TORCHELASTIC_RESTART_COUNT=attempt)
                self.assertEqual(text.count("tensor([2.])\n"), 4, text)

    def test_an_address_for_other_hosts(self):
        """On the store's host its name may be 127.0.1.1's (Debian), which is another host elsewhere."""
        port = self.its_store()
        code = """
import socket
from unittest import mock
from pstrain import _store
real = socket.create_connection
def named(address, *more, **words):
    return real(({"node0": "127.0.0.1"}.get(address[0], address[0]), address[1]), *more, **words)
with mock.patch("socket.create_connection", named), mock.patch("pstrain._store._connect"):
    print(*[_store.publish(host, PORT, 0, 1) for host in ("node0", "127.0.0.1")])
"""
        said = run_well([PYTHON, "-c", code.replace("PORT", port)], env=environment())
        self.assertRegex(said, r"^tcp://node0:\d+ tcp://127.0.0.1:\d+$")

    def test_a_job_without_servers_and_a_launcher(self):
        """As a script has it that calls torch.multiprocessing.spawn: PyTorch's store is in rank 0, at MASTER_PORT."""
        text = self.beside_it(str(free_port()), "-c", SUM, PS_SERVERS="0", MASTER_ADDR="localhost", TORCHELASTIC_USE_AGENT_STORE="")
        self.assertEqual(text.count("sum 3.0\n"), 2, text)

    def test_its_store_without_it(self):
        port = self.its_store()
        server = self.pstrain_server("--store", f"127.0.0.1:{port}", "--world-size", "2")
        self.said(self.beside_it(port, WORKER, "same_step", "sgd"), "ulps")
        said, _ = server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0, said)

    def test_its_server_is_killed(self):
        store = f"127.0.0.1:{self.its_store()}"
        server = self.pstrain_server("--store", store, "--world-size", "2")
        pid = self.program_of(server)
        server.kill()
        wait_until(lambda: is_killed(pid), "ps-server was left running")
        server = self.pstrain_server("--store", store, "--world-size", "2")
        os.kill(self.program_of(server), signal.SIGKILL)
        self.assertIn("pstrain-server: server 0 was ended by SIGKILL", server.communicate(timeout=60)[0])

    def test_it_ends_before_its_workers_have_joined(self):
        server = self.pstrain_server("--store", f"127.0.0.1:{self.its_store()}", "--world-size", "2", "--max-restarts", "3",
                                     "--set", "net.join_timeout_ms=900000")
        self.program_of(server)  # it runs
        self.store.communicate(timeout=60)
        said, _ = server.communicate(timeout=60)
        self.assertTrue(said.endswith("pstrain-server: torchrun has ended\n"), said)

    def test_nobody_has_said_the_address(self):
        text, _ = self.torchrun(WORKER, "endless_join",
                                PS_SETTINGS='["net.join_timeout_ms=2000"]').communicate(timeout=240)
        self.assertRegex(text, r"pstrain-server --store \S+:\d+ --world-size 2")

    def test_servers_of_earlier_attempts(self):
        """Where nobody joined they wait for their time, one after the other."""
        env = {"MASTER_PORT": self.its_store(), "TORCHELASTIC_RESTART_COUNT": "2"}
        code = (f"from pstrain import _store, errors\ntry:\n    _store.find({env}, 0.5)\n"
                "except errors.TimeoutError as e:\n    print(e)")
        self.assertIn("within 1.5 s: start", run_well([PYTHON, "-c", code], env=environment()))

    def test_no_torchrun_there(self):
        server = self.pstrain_server("--store", "nothing", "--world-size", "1")
        said, _ = server.communicate(timeout=240)
        self.assertEqual(server.returncode, 1, said)
        self.assertIn("HOST:PORT", said)


class Refusals(PythonTest):
    def refused(self, *case):
        text = self.job(*case, code=1)
        self.assertEqual(text.count(": fine"), 2, text)

    def test_arguments(self):
        self.refused("refusals")

    def test_misuse(self):
        for what in first(6, ("clipped", "double", "scaler", "changed", "wrapped", "old", "sparse", "replaced", "late", "total")):
            with self.subTest(what=what):
                self.refused("misuse", what)

    def test_state_dict_of_the_model_waits(self):
        if not works("import torch, sys; sys.exit(not hasattr(torch.nn.Module, 'register_state_dict_pre_hook'))"):
            self.skipTest(f"the modules of {PYTHON}'s PyTorch do not say that they are read")
        self.refused("misuse", "unread")

    def test_tensors_outlive_the_job(self):
        self.assertEqual(self.job("misuse", "alias").count(": fine"), 2)

    def test_other_model(self):
        for case, parameter in ((["other_model"], "1.weight"), (["other_model", "more"], "2.weight"),
                                (["other_order"], "conv.weight")):
            with self.subTest(case=case):
                for error in self.said(self.job(*case, code=1, servers=1), "PeerError"):
                    self.assertIn(parameter, error)
                    self.assertIn("worker 1", error)


    def test_other_model_in_ddp(self):
        # Rank 1 finds the difference and ends the job: rank 0 would wait for its next collective.
        text = self.job("other_model_in_ddp", code=1, servers=1)
        self.assertRegex(text, r"psrun: the job failed: .*\npsrun:   .*params\[0\]")

    def test_timeout_of_a_process_group(self):
        self.assertEqual(self.job("timeout", code=1, servers=1).count(": fine"), 2)

    def test_other_size_in_a_collective(self):
        self.assertEqual(self.job("other_size", code=1).count(": fine"), 2)

    def test_hook_of_other_dtype(self):
        self.assertEqual(self.job("hook_of_other_dtype", servers=1).count(": fine"), 2)


HOWS = ("optimizer", "backend", "hook", "collectives")


class Deaths(PythonTest):
    """In whatever way a rank ends, the job ends before any time limit, and psrun names the rank and the reason."""

    def test_an_exception_that_is_not_printed(self):
        """psrun is told of it; what looks like one in the output counts less."""
        script = ("import sys, pstrain\nsys.excepthook = lambda *_: None\npstrain.init()\n"
                  "print('Traceback (most recent call last):\\nKeyError: printed', flush=True)\n"
                  "raise ValueError('told\\nin two lines')")
        text = self.job("-c", script, workers=1, servers=1, program=(PYTHON,), code=1)
        self.assertTrue(re.search(r"psrun: the job failed: worker 0 .*\npsrun:   ValueError: told\n", text), text)

    def ends(self, *case):
        text = self.job(*case, code=1, timeout=240, settings=PATIENT)
        self.assertIn("training", text)
        return text

    def test_killed(self):
        for how in first(2, HOWS):
            with self.subTest(how=how):
                text = self.ends("dies", "kill", how)
                self.assertIn("worker 1 was ended by SIGKILL", text.splitlines()[-3] + text.splitlines()[-2])
                # with the hook, the model's buffers go over Gloo
                self.assertRegex(text, r"\[worker 0\] .*(PeerError: .*worker 1|Connection (closed|reset) by peer)")

    def test_raises(self):
        for how in first(2, HOWS):
            with self.subTest(how=how):
                text = self.ends("dies", "raise", how)
                self.assertRegex(text, r"the job failed: worker 1 ended with exit code 1\n"
                                       r"psrun:   ValueError: a mistake of the program")
                self.assertRegex(text, r"\[worker 0\] .*PeerError: .*worker 1.*a mistake of the program")

    def test_aborts(self):
        text = self.ends("dies", "abort", "optimizer")
        self.assertRegex(text, r"the job failed: worker 1 ended with exit code 1\npsrun:   pstrain.abort: no data is left\n")
        self.assertRegex(text, r"\[worker 0\] .*PeerError: .*worker 1.*no data is left")

    def test_torchruns_root_cause(self):
        """As its own code finds it in the files of the ranks: the one that has raised or ended, not the one that heard of it."""
        code = ("import os, sys\nfrom unittest import mock\n"
                "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure\n"
                "noticed = os.stat(f'{sys.argv[1]}/0').st_mtime + 20\nwith mock.patch('time.time', lambda: noticed):\n"
                "    failures = {r: ProcessFailure(r, 7, 1, f'{sys.argv[1]}/{r}') for r in range(2)}\n"
                "print(ChildFailedError('job', failures))")
        for way, own, heard in (("raise", ".*ValueError: a mistake of the program", "a mistake of the program"),
                                ("stop", ".*exitcode +: 1", "has (ended before step|left the job)")):
            with self.subTest(way=way):
                files = self.path(way)
                os.mkdir(files)
                how = ("sh", "-c", f'TORCHELASTIC_ERROR_FILE={files}/$RANK exec "$0" "$@"', PYTHON, WORKER)
                self.job("dies", way, "optimizer", code=1, settings=PATIENT, program=how)
                others, root = run_well([PYTHON, "-c", code, files]).split("Root Cause")
                self.assertRegex(root, rf"(?s)rank +: 1 {own}")
                self.assertRegex(others, rf"(?s)rank +: 0 .*PeerError: .*worker 1.*{heard}")

    def test_exits(self):
        text = self.ends("dies", "stop", "optimizer")
        # A server says so, or the coordinator, for whose answer about the model's buffers worker 0 may wait just then.
        self.assertRegex(text, r"\[worker 0\] .*PeerError: .*worker 1 has (ended before step|left the job: every worker)")
        self.assertRegex(text, r"(?m)^psrun: .*worker 1 has ended before step 11")

    def test_exits_in_a_step(self):
        """The server has no error of its own then, and its end comes first."""
        script = """
import contextlib, os, sys, torch, pstrain
code, within = int(sys.argv[1]), sys.argv[2] == "within"
job = pstrain.init()
with job if within else contextlib.nullcontext():
    model = torch.nn.Linear(2, 1)
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        if step == 1 and job.rank == 1:
            sys.exit(code)
        optimizer.step()
"""
        for code, where, how in ((3, "", ""), (3, "within", ""), (0, "within", ", and others were not done")):
            with self.subTest(code=code, where=where):
                text = self.job("-c", script, str(code), where, servers=1, settings=PATIENT, program=(PYTHON,), code=1)
                self.assertIn(f"psrun: the job failed: worker 1 ended with exit code {code}{how}\n", text)
                self.assertNotIn("drop_last", text)

    def test_hangs(self):
        """Worker 0 does not know for whom the server waits; the server does."""
        settings = ["net.join_timeout_ms=120000", "net.step_timeout_ms=5000"]
        text = self.job("dies", "hang", "optimizer", code=1, servers=1, settings=settings)
        self.assertRegex(text, r"psrun: the job failed: worker 0 .*\npsrun:   .*\n"
                               r"psrun:   worker 1 had not sent its gradients of the step\n")
        self.assertIn('waits for="worker 1"', self.text_of("out/logs/server-0.log"))

    def test_what_is_said_of_an_exception(self):
        """Also what lies beneath it: the exception of a DataLoader's worker, a full disk, and what the kernel counts."""
        code = """
import torch
import os
from unittest import mock
from pstrain import _events, _programs
from pstrain._events import line_of
def fails(*_):
    raise KeyError("no such sample")
def saves(how):
    try:
        open("/dev/full", "w").write("x" * 10000)
    except OSError as error:
        how(error)
def hides(error):
    raise RuntimeError("unexpected pos") from None
def follows(error):
    raise RuntimeError("unexpected pos")
def dies(*_):
    os.kill(os.getpid(), 9)
def loads(how):
    class Samples(list):
        __getitem__ = how
    list(torch.utils.data.DataLoader(Samples([0]), num_workers=1))
calls = lambda: loads(fails), lambda: saves(hides), lambda: saves(follows), lambda: loads(dies), lambda: loads(dies)
for n, call in enumerate(calls):
    try:
        call()
    except Exception as error:
        print(line_of(error))
        _programs.psrunlib("cgroup").killed_for_memory = mock.Mock(side_effect=[0, int(n == 2)])
        _events.begin()
"""
        *said, short, killed = run_well([PYTHON, "-c", code], env=environment()).splitlines()
        self.assertEqual(said, [
            "KeyError: Caught KeyError in DataLoader worker process 0: KeyError: 'no such sample'", "RuntimeError: unexpected pos",
            "RuntimeError: unexpected pos (OSError: [Errno 28] No space left on device)"])
        gone = r"RuntimeError: DataLoader worker \(pid.*(exited unexpectedly|killed by signal: Killed\.)"
        self.assertRegex(short, rf"^{gone} \(it seems by the kernel: no memory was left\)$")
        self.assertRegex(killed, rf"^{gone}$")

    def test_what_a_server_cannot_tell(self):
        """Of one that ends now: (the code, how many were killed before)."""
        code = """
from pstrain import _programs
_programs.psrunlib("cgroup").killed_for_memory = lambda: 1
for ended in ((-9, 1), (-9, 0), (-11, 0), (1, 0), (None, 0), (1, 1), (0, 0)):
    print(_programs.last_words("server 1", *ended))
"""
        words = "server 1 was ended by "
        memory = "the kernel has killed a process on the host of server 1: no memory was left"
        self.assertEqual(run_well([PYTHON, "-c", code], env=environment()).split("\n"), [
            words + "SIGKILL", words + "SIGKILL (it seems by the kernel: no memory was left)", words + "SIGSEGV", memory, memory,
            "", "", ""])

    def uneven(self, how, short):
        """Returns what the other rank says, and the whole output. Each rank says it once."""
        text = self.ends("uneven", how, str(short))
        other = 1 - short
        error = re.search(rf"rank {other}: failed (.*)", text)[1]
        self.assertNotIn("Exception ignored", text)
        self.assertNotIn("atexit", text)
        self.assertEqual(len(re.findall(rf"\[worker {short}\] .*Error: ", text)), 1, text)
        return error, text

    def test_a_step_less(self):
        for how in first(1, ("sooner", "later")):
            for short in range(2):
                with self.subTest(how=how, short=short):
                    error, text = self.uneven(how, short)
                    said = (f"worker {short} has ended before step 4, and worker {1 - short} waits for its "
                            "gradients: every rank must make the same number of steps")
                    self.assertRegex(error, f"^PeerError: rank {1 - short}: .*{said}.*drop_last")
                    last = text.split("psrun: the job failed: ")[1]
                    self.assertTrue(last.startswith(f"worker {short} ended with exit code 0, and others were not done\n"), text)
                    self.assertIn(said, last)

    @nightly
    def test_a_step_less_elsewhere(self):
        # "backend" is DDP's collectives, "at once" a rank without data.
        for how in ("backend", "at once"):
            for short in range(2):
                with self.subTest(how=how, short=short):
                    error, _ = self.uneven(how, short)
                    self.assertRegex(error, rf"PeerError: .*worker {short} has (ended|left the job).*: every")

    def test_ends_without_an_optimizer(self):
        text = self.ends("without_optimizer")
        self.assertRegex(text, r"rank 0: failed PeerError: .*worker 1.*it has sent the servers no gradient")

    def test_forgotten_optimizer(self):
        for how in first(1, ("at exit", "shutdown")):
            with self.subTest(how=how):
                self.assertRegex(self.job("forgotten", how, code=1), r"no pstrain\.Optimizer, and an optimizer of PyTorch")

    def test_a_program_without_pytorch(self):
        """It trains nothing by itself; so does the trial of pstrain.doctor where there is no PyTorch."""
        program = "import pstrain\nwith pstrain.init():\n    pstrain.barrier()\n    print('met', pstrain.size())"
        self.assertIn("met 2\n", self.job(program=(sys.executable, "-c", program), servers=1))  # PYTHON may have it already

    def test_ends_before_it_has_joined(self):
        program = PYTHON, "-c", "import os, pstrain\nif os.environ['RANK'] == '0':\n    pstrain.init()"
        text = self.job(program=program, servers=1, code=1)
        self.assertIn("job failed: worker 1 ended before it had joined the job (pstrain.init())", text)

    def test_ends_well(self):
        for how in first(2, range(4)):
            with self.subTest(how=how):
                self.assertEqual(self.job("ends_well", str(how)).count(": fine"), 2)

    def test_ctrl_c(self):
        for how in first(2, HOWS):
            with self.subTest(how=how):
                run = self.start("dies", "wait", how)
                text = ""
                for line in run.stdout:
                    text += line
                    if "training" in line:
                        break
                run.send_signal(signal.SIGINT)
                rest, _ = run.communicate(timeout=45)
                self.assertEqual(run.returncode, 130, text + rest)

    def test_ctrl_c_while_it_waits(self):
        for how in ("optimizer", "collectives"):
            with self.subTest(how=how):
                text = self.job("interrupted", how, code=1, timeout=240)
                self.assertIn("rank 0: interrupted while it waited", text)

    def test_server_killed(self):
        run = self.start("dies", "wait", "optimizer")
        for line in run.stdout:
            if "training" in line:
                break
        os.kill(find_part(run.pid, "server", 1), signal.SIGKILL)
        text, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1, text)
        self.assertRegex(text, "the job failed: server 1 was ended by SIGKILL")


if __name__ == "__main__":
    unittest.main(verbosity=2)
