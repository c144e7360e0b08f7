"""The Python package as a user installs it: pip install ./python into an empty environment."""
import os
import subprocess
import sys
import unittest

from jobs import ROOT, JobTest

PYTHON = os.environ.get("PS_TORCH_PYTHON", sys.executable)


HAS_VENV = subprocess.run([PYTHON, "-c", "import venv, ensurepip"], stderr=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(HAS_VENV, f"no venv for {PYTHON} (python3-venv)")
class Install(JobTest):
    def call(self, *words, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PS_", "PSTRAIN", "PYTHONPATH"))}
        done = subprocess.run(words, env=dict(clean, **env), cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=900)
        return done.returncode, done.stdout

    def test_install(self):
        self.call(PYTHON, "-m", "venv", "--system-site-packages", "env")
        code, text = self.call("env/bin/pip", "install", str(ROOT / "python"))
        if code != 0 and "No matching distribution found for scikit-build-core" in text:
            self.skipTest("pip cannot reach PyPI")
        self.assertEqual(code, 0, text)
        code, text = self.call("env/bin/python", "-m", "pstrain.doctor")
        self.assertIn("made a step", text)
        self.assertIn(self.folder, text)  # these are the installed library and programs
        code, text = self.call("env/bin/psrun", "-s", "1", "-w", "2", "--", "env/bin/python", "-c",
                               "import pstrain\nwith pstrain.init():\n  pstrain.barrier()\n"
                               "  print('ok', pstrain.size())")
        self.assertEqual(code, 0, text)
        self.assertIn("[worker 0] ok 2", text)
        code, text = self.call("env/bin/psrun", "-s", "0", "-w", "2", "--", "env/bin/python", "-c",  # it has no Gloo
                               "import pstrain, torch\npstrain.init()\nlayer = torch.nn.Linear(1, 1)\n"
                               "pstrain.Optimizer(layer.named_parameters(), 'sgd', lr=0.1).start()")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r"psrun: .*exchange gloo is not in this build: train through servers \(psrun -s 1\)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
