"""The Python package: jobs of psrun whose workers are tests/system/python/worker.py.

PS_PYTHON names another interpreter, with another PyTorch.
"""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from jobs import BIN, ROOT, JobTest, Part, alive, free_port

PYTHON = os.environ.get("PS_PYTHON", sys.executable)
WORKER = str(ROOT / "tests/system/python/worker.py")
LIBRARY = next((str(p) for p in BIN.parent.glob("**/libpstrain.so.0")), "")
FAST = ["net.join_timeout_ms=30000", "net.step_timeout_ms=20000"]


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
    return dict(os.environ, PSTRAIN_LIBRARY=LIBRARY, PYTHONPATH=os.pathsep.join(filter(None, path)),
                PYTHONDONTWRITEBYTECODE="1")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class PythonTest(JobTest):
    def start(self, *case, workers=2, servers=2, settings=FAST, program=(PYTHON, WORKER)):
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", servers, "-w", workers, *settings)
        run = subprocess.Popen([*argv, "--", *program, *case], env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        return run

    def job(self, *case, code=0, timeout=120, **how):
        """Runs a case on all ranks; returns the job's output."""
        run = self.start(*case, **how)
        text, _ = run.communicate(timeout=timeout)
        self.assertEqual(run.returncode, code, text)
        return text

    def said(self, text, word, workers=2):
        """What each rank printed after the word."""
        found = dict(re.findall(rf"rank (\d+): {word} (.*)", text))
        self.assertEqual(sorted(found), [str(r) for r in range(workers)], text)
        return [found[str(r)] for r in range(workers)]


class Bits(PythonTest):
    def test_ddp_ends_with_gloos_bits(self):
        # For two ranks: a sum of two floats does not depend on the order.
        text = self.job("ddp", timeout=300)
        for name in ("sgd", "adamw"):
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
        for name, most in (("sgd", 0), ("momentum", 0), ("nesterov", 0), ("adam", 2), ("adamw", 2)):
            with self.subTest(name=name):
                said = self.said(self.job("same_step", name), "ulps")
                self.assertEqual(len(set(said)), 1, "the ranks have other weights")
                self.assertLessEqual(float(said[0].split()[0]), most)

    def test_three_ranks(self):
        said = self.said(self.job("same_step", "sgd", workers=3, servers=1), "ulps", 3)
        self.assertEqual([s.split()[0] for s in said], ["0.0"] * 3)

    def test_four_ranks_of_a_process_group(self):
        self.assertEqual(self.job("collectives", workers=4, servers=1).count(": fine"), 4)

    def test_save_and_load(self):
        for name in ("momentum", "adamw"):
            with self.subTest(name=name):
                whole = self.said(self.job("save", name, self.folder), "whole")
                self.assertEqual(self.said(self.job("load", name, self.folder), "whole"), whole)

    def test_save_and_load_with_a_codec(self):
        whole = self.said(self.job("resume_coded", self.folder, "save"), "whole")
        self.assertEqual(self.said(self.job("resume_coded", self.folder, "load"), "whole"), whole)


class Uses(PythonTest):
    def fine(self, *case):
        text = self.job(*case)
        self.assertEqual(text.count(": fine"), 2, text)

    def test_collectives(self):
        self.fine("collectives")

    def test_groups_frozen_unused_tied(self):
        self.fine("groups")

    def test_accumulation(self):
        text = self.job("accumulate", code=1)  # it ends its job after the refusal
        self.assertEqual(text.count(": fine"), 2, text)

    def test_local_clipping(self):
        self.fine("push_at_step")

    def test_clipping_and_scaling_on_the_servers(self):
        self.fine("on_the_servers")

    def test_bfloat16(self):
        self.fine("bfloat16")

    def test_attention_and_evaluation(self):
        text = self.job("attention")
        self.assertEqual(len(set(self.said(text, "fine"))), 1, text)

    def test_example(self):
        example = str(ROOT / "python/examples/mnist.py")
        text = self.job("--epochs", "2", program=(PYTHON, example))
        self.assertRegex(text, r"epoch 2: loss \S+, test accuracy 0\.[5-9]")

    def test_example_differs_in_few_lines(self):
        plain, ours = (set((ROOT / "python/examples" / n).read_text(encoding="utf-8").split("import pstrain")[-1]
                           .split("import torch.distributed as dist")[-1].split("args = ")[1].splitlines())
                       for n in ("mnist_ddp.py", "mnist.py"))
        self.assertEqual(len(ours - plain), 4)  # init, model, optimizer, rank and size

    def test_doctor(self):
        done = subprocess.run([PYTHON, "-m", "pstrain.doctor"], env=dict(environment(), PS_BUILD_DIR=str(BIN.parent)),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("nothing to mend", done.stdout)


class Torchrun(PythonTest):
    """Servers beside it, as the package's README says."""

    def test_servers_beside_it(self):
        env = dict(environment(), PS_INIT_METHOD=f"tcp://127.0.0.1:{free_port()}", PS_SERVERS="1")
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc_per_node=2"]
        if subprocess.run([*torchrun, "--standalone", "--no_python", "true"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no torchrun here that starts programs: it comes with PyTorch 2")
        server = Part("server", 0, ["--init-method", env["PS_INIT_METHOD"], "--rank", "0", "--world-size", "2"],
                      {"PS_SERVERS": "1"})
        self.addCleanup(self._end, server)
        done = subprocess.run([*torchrun, WORKER, "same_step", "sgd"], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.said(done.stdout, "ulps")
        self.assertEqual(self.wait_all({"server 0": server}, 20), {"server 0": 0})


class Refusals(PythonTest):
    def refused(self, *case):
        text = self.job(*case, code=1)
        self.assertEqual(text.count(": fine"), 2, text)

    def test_arguments(self):
        self.refused("refusals")

    def test_misuse(self):
        for what in ("sparse", "scaler", "replaced", "changed", "late", "old"):
            with self.subTest(what=what):
                self.refused("misuse", what)

    def test_tensors_outlive_the_job(self):
        self.assertEqual(self.job("misuse", "alias").count(": fine"), 2)

    def test_other_model(self):
        for error in self.said(self.job("other_model", code=1), "PeerError"):
            self.assertIn("1.weight", error)
            self.assertIn("worker 1", error)


class Deaths(PythonTest):
    """Whatever happens to a rank: the job ends soon, and psrun names the rank and the reason."""

    def ends(self, *case, code=1):
        begin = time.monotonic()
        text = self.job("dies", *case, code=code, timeout=60)
        self.assertLess(time.monotonic() - begin, 45)
        return text

    def test_killed(self):
        for how in ("optimizer", "hook", "backend"):
            with self.subTest(how=how):
                text = self.ends("kill", how)
                self.assertIn("worker 1 was ended by SIGKILL", text.splitlines()[-3] + text.splitlines()[-2])

    def test_raises(self):
        for how in ("optimizer", "hook", "backend"):
            with self.subTest(how=how):
                text = self.ends("raise", how)
                self.assertRegex(text, r"the job failed: worker 1 ended with exit code 1\n"
                                       r"psrun:   ValueError: a mistake of the program")
                self.assertRegex(text, r"\[worker 0\] .*PeerError: .*worker 1.*a mistake of the program")

    def test_exits(self):
        text = self.ends("stop", "optimizer")
        self.assertRegex(text, r"\[worker 0\] .*PeerError: .*worker 1.*ended in the middle of a step")

    def test_ctrl_c(self):
        for how in ("optimizer", "hook", "backend"):
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

    def test_server_killed(self):
        run = self.start("dies", "wait", "optimizer")
        for line in run.stdout:
            if "training" in line:
                break
        pids = [pid for pid, line in alive("ps-server") if f"--set {FAST[0]}" in line]
        os.kill(max(pids), signal.SIGKILL)
        text, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1, text)
        self.assertRegex(text, r"the job failed: server \d was ended by SIGKILL")


if __name__ == "__main__":
    unittest.main(verbosity=2)
