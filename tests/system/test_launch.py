"""pstrain.launch: jobs that a script, tests/system/python/launched.py, or a notebook starts.

PS_TORCH_PYTHON names another interpreter, with another PyTorch.
"""
import os
import re
import signal
import subprocess
import unittest

from jobs import ROOT, JobTest, alive, kill, nightly, python_with, run_well, wait_until
from test_python import PYTHON, WHY_NOT, environment, works

SCRIPT = str(ROOT / "tests/system/python/launched.py")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Launch(JobTest):
    def start(self, *words):
        """The workers' command lines name the folder: none may be left."""
        run = subprocess.Popen([PYTHON, SCRIPT, *words], env=dict(environment(), TMPDIR=self.folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(kill, run)
        return run

    def left(self):
        """Folders of launches. PyTorch has others there."""
        return [name for name in os.listdir(self.folder) if name.startswith("pstrain-launch-")]

    def said(self, *words, code=0):
        run = self.start(*words)
        text, _ = run.communicate(timeout=600)
        self.assertEqual(run.returncode, code, text)
        self.assertEqual(self.left(), [], text)
        return text

    def test_results(self):
        lines = self.said("results").replace(" \u2713", "").splitlines()
        self.assertEqual(lines[:2], ["rank 0 of 2 has stepped", "[(0, -0.75), (1, -0.75)]"])
        self.assertEqual(sorted(lines[2:5]), [f"[rank {r}] rank {r} of 3 has stepped" for r in (1, 2)] +
                         ["rank 0 of 3 has stepped"])
        self.assertEqual(lines[5:], ["[(0, -1.0), (1, -1.0), (2, -1.0)]", "rank 0 of 1 has stepped", "[True] server-0.log worker-0.log"])

    def test_without_servers(self):
        """They leave no descriptor open. A worker may launch others."""
        self.assertEqual(self.said("without_servers"), "[3.0, 3.0] 0\n[[1.0]]\n")

    def test_failures(self):
        text = self.said("failures")
        for name, why in (("raises", "rank 1 failed: ValueError: no such weight\n"),
                          ("raises_lines", "rank 1 failed: RuntimeError: the first\n"),
                          ("raises_wordless", r"rank 1 failed: Wordless: <its str\(\) failed>\n"),
                          ("kills", "rank 1 was ended by SIGKILL; if nobody killed it, memory was short"),
                          ("kills_server", "server 0 was ended by SIGKILL; if nobody killed it, memory was short"),
                          ("leaves", r"rank 1 failed: .*fn called sys.exit\(0\): it has to return\n"),
                          ("vanishes", "rank 1 ended with exit code 0 before fn had returned"),
                          ("result_that_stays", r"rank \d failed: .*the result of fn cannot be pickled: .*lambda"),
                          ("raises_early", "rank 1 failed: KeyError: 'early'\n"),
                          ("never_joins", r"rank \d ended before it had joined the job \(pstrain.init\(\)\)\n"),
                          ("returns_early", "rank 1 returned from fn, and others were not done: .*worker 1 has ended before step 2"),
                          ("launches", "rank 0 failed: pstrain.launch: rank 0 failed: pstrain.errors.PeerError: another job's\n"),
                          ("half_a_step", r"rank \d failed: .*fn has returned in the middle of a step")):
            self.assertRegex(text, f"(?m)^{name} gives {why}")
        self.assertIn('in raises\n    raise ValueError("no such weight")\n', text)
        self.assertEqual(text.count("Traceback"), 1, text)  # that one's: no rank has printed one

    def test_restarts(self):
        text = self.said("restarts")
        self.assertRegex(text, r"(?m)^\[\(3, -5.0\)\]$")
        self.assertRegex(text, r"(?m)^psrun: all workers are started again \(restart 1 of 1\)")

    @nightly
    def test_too_few_restarts(self):
        self.assertRegex(self.said("too_few_restarts"), r"(?m)^gives rank 1 was ended by SIGKILL")

    def test_signals(self):
        for number, code, last in ((signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt\n"),
                                   (signal.SIGTERM, -signal.SIGTERM, "waits\n")):
            run, text = self.start("interrupted"), ""
            while text.count("waits\n") < 2:
                text += run.stdout.readline() or self.fail(text)
            run.send_signal(number)
            text += run.communicate(timeout=60)[0]
            self.assertEqual(run.returncode, code, text)
            self.assertTrue(text.endswith(last), text)
            self.assertEqual(self.left(), [])

    def test_its_caller_is_killed(self):
        run, text = self.start("interrupted"), ""
        while text.count("waits\n") < 2:
            text += run.stdout.readline() or self.fail(text)
        self.assertEqual(len(self.left()), 1)
        run.kill()
        wait_until(lambda: not self.left() and not alive(self.folder), "it has left something")

    def test_mistakes(self):
        lines = self.said("mistakes").splitlines()
        for line, part in zip(lines, ("fn: 'train' is not a function", "args: 0.5 is not a tuple", "workers: 0 is not",
                                      "restarts: -1 is not", "servers: True is not", "net.no_such", "-w 2 and job.workers=3 contradict",
                                      "cloudpickle", "cannot be sent to a worker: ")):
            self.assertRegex(line, f"^InputError .*{part}")
        self.assertEqual(len(lines), 9, lines)

    def test_a_script_without_a_guard(self):
        script = self.file("script.py", "import pstrain\ndef f():\n    pstrain.init()\npstrain.launch(f)\n")
        run = subprocess.run([PYTHON, script], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn('put the call below `if __name__ == "__main__":`', run.stdout.splitlines()[-1])

    def test_a_package_that_is_run(self):
        """Its __main__.py is no module that multiprocessing imports."""
        os.mkdir(self.path("mine"))
        self.file("mine/__main__.py", "import pstrain\ndef f():\n    pstrain.init()\n    return pstrain.rank()\n"
                                      "if __name__ == '__main__':\n    print(pstrain.launch(f))\n")
        for words in (("-m", "mine"), ("mine",)):
            run = subprocess.run([os.environ.get("PS_WARM_PYTHON", PYTHON), *words], env=environment(), cwd=self.folder,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            last = run.stdout.splitlines()[-1]
            self.assertRegex(last, r"^\[0, 1\]$" if works("import cloudpickle") else "InputError: .*pip install cloudpickle")


@nightly
class Notebook(JobTest):
    def test_a_jupyter_kernel(self):
        python = python_with("torch", "jupyter_client", "ipykernel", "cloudpickle")
        text = run_well([python, ROOT / "tests/system/python/notebook.py"], env=dict(environment(), TMPDIR=self.folder))
        results = re.findall("^(?:result|error) .*", text, re.M)
        self.assertEqual(results[:3], ["result [(True, -0.75), (True, -0.75)]", "error KeyboardInterrupt ",
                                       "result [True, True]"], text)
        self.assertRegex(results[3], r"error PeerError rank \d failed: TypeError: train\(\) takes 1 positional argument")
        self.assertEqual(len(results), 4, text)
        for rank, shown in enumerate((3, 1)):  # verbose once
            self.assertEqual(text.count(f"rank {rank} has stepped"), shown, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
