"""torchvision's weights load as they are, and give the same outputs."""
import os
import subprocess
import unittest

from jobs import BIN, PSRUN, ROOT, JobTest, Psrun, first, run_well, torch_python

PYTHON = torch_python() or "python3"
MODELS = {"squeezenet1_1": "squeezenet", "mobilenet_v2": "mobilenetv2", "resnet50": "resnet50"}

# Writes random weights and samples, and PyTorch's outputs in float32 and in float64.
TEACHER = """
import copy, sys
import numpy, torch, torchvision
sys.path.insert(0, sys.argv[1])
from benchlib import safetensors
torch.manual_seed(1)
model = getattr(torchvision.models, sys.argv[2])(weights=None).eval()
safetensors.save(sys.argv[3] + "/weights.safetensors", {k: v.numpy() for k, v in model.state_dict().items()})
x = torch.randn(4, 3, 224, 224)
numpy.save(sys.argv[3] + "/x.npy", x.numpy())
with torch.no_grad():
    numpy.save(sys.argv[3] + "/narrow.npy", torch.softmax(model(x), 1).numpy())
    numpy.save(sys.argv[3] + "/exact.npy", torch.softmax(copy.deepcopy(model).double()(x.double()), 1).numpy())
"""
ERRORS = """
import sys, numpy
exact, narrow, ours = (numpy.load(path) for path in sys.argv[1:4])
print(abs(ours - exact).max(), abs(narrow - exact).max())
"""


def has_torchvision():
    return subprocess.run([PYTHON, "-c", "import torchvision"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(has_torchvision(), "no torchvision (PS_TORCH_PYTHON names a Python that has it)")
class Torchvision(JobTest):
    def python(self, script, *argv):
        return run_well([PYTHON, "-c", script, *argv])

    def test_outputs(self):
        for model, config in first(1, list(MODELS.items())):
            folder = self.path(model)
            os.mkdir(folder)
            self.python(TEACHER, ROOT / "bench", model, folder)
            done = Psrun.run(
                [PSRUN, "--build-dir", BIN.parent, "--predict", f"{folder}/x.npy", "--init",
                 f"{folder}/weights.safetensors", "--out", f"{folder}/out",
                 ROOT / "configs" / f"synthetic-{config}.yaml"])
            self.assertEqual(done.returncode, 0, done.stdout)
            ours, theirs = map(float, self.python(
                ERRORS, f"{folder}/exact.npy", f"{folder}/narrow.npy", f"{folder}/out/predictions.npy").split())
            # PyTorch's own rounding is the measure: in 50 layers it is more than 1e-6.
            self.assertLess(ours, 1e-6 + 2 * theirs, model)


if __name__ == "__main__":
    unittest.main()
