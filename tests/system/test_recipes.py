"""The recipes of docs/recipes.md run as they stand. Others run Slurm's, Kubernetes', Ray's and a notebook's: test_slurm,
test_kubernetes, test_ray, test_launch; and Hugging Face's: test_python."""
import os
import re
import subprocess
import unittest

from jobs import BIN, ROOT, free_port, kill, nightly, python_with, run_well
from test_python import PYTHON, WHY_NOT, PythonTest, environment
from test_snippets import FENCE

PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")


def snippets(section):
    """(language, text) of that section."""
    (body,) = re.findall(rf"(?ms)^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE)
    return [(language, text) for _, language, text in FENCE.findall(body)]


def lines(section):
    return [line for language, text in snippets(section) if language == "sh" for line in text.splitlines()]


SCRIPT = snippets("A script")[0][1]
TRAIN = SCRIPT.split("if __name__")[0] + 'print("loss", train(0.1))\n'


class RecipeTest(PythonTest):
    def setUp(self):
        super().setUp()
        self.file("train.py", TRAIN)
        os.mkdir(self.path("bin"))
        for name, there in (("python", PYTHON), ("psrun", ROOT / "deploy/psrun")):
            os.symlink(there, self.path("bin", name))
        self.env = dict(environment(), PATH=f"{self.path('bin')}:{os.environ['PATH']}", PS_BUILD_DIR=str(BIN.parent.resolve()))

    def shell(self, line):
        return run_well(["bash", "-ec", line], cwd=self.folder, env=self.env, timeout=600)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Launchers(RecipeTest):
    def test_psrun(self):
        self.assertRegex(self.shell(lines("psrun")[0]), r"\[worker 0\] loss \d")

    def test_ignite(self):
        """IDIST_STAND_IN takes the place of Ignite. The weights are those of DistributedDataParallel over Gloo, bit for bit."""
        (_, lines), = snippets("Ignite")
        self.file("idist.py", IDIST_STAND_IN)
        text = self.job(program=(PYTHON, self.file("train.py", IGNITED[0] + lines + IGNITED[1])), servers=1, timeout=300)
        self.assertEqual(text.count("same weights True sums"), 2, text)  # by the servers

    def test_a_script(self):
        first, second = map(float, re.findall(r"[\d.e-]+", self.shell(f"python {self.file('script.py', SCRIPT)}")))
        self.assertLess(max(first, second), 0.5)


@nightly
class Trainers(RecipeTest):
    def test_torchrun(self):
        from test_torchrun import TORCHRUN
        if TORCHRUN is None:
            self.skipTest("no torchrun here that starts programs: it comes with PyPI's PyTorch 2")
        words = f"{PYTHON} -c 'from pstrain._programs import server; server()'"
        port = str(free_port())
        server, workers = (line.replace("29500", port) for line in lines("torchrun"))
        run = subprocess.Popen(["bash", "-c", server.rstrip("& ").replace("pstrain-server", f"exec {words}")], env=self.env)
        self.addCleanup(kill, run)
        said = self.shell(workers.replace("torchrun", " ".join(TORCHRUN)))
        self.assertEqual(len(re.findall(r"loss \d", said)), 2, said)
        self.assertEqual(run.wait(60), 0)

    def test_lightning(self):
        """The weights of DistributedDataParallel over Gloo, bit for bit."""
        python = python_with("torch", "lightning")
        program = self.file("fit.py", BY_GLOO + snippets("Lightning")[0][1] + COMPARED)
        text = self.job(f"file://{self.path('gloo')}", program=(python, program), servers=1, timeout=600)
        self.assertEqual(text.count("same weights True"), 2, text)

    def test_lightning_fabric(self):
        """The same, for Fabric."""
        python = python_with("torch", "lightning")
        program = self.file("fabric.py", BY_GLOO + "from lightning.fabric import Fabric\n" + snippets("Lightning Fabric")[0][1] +
                            BY_FABRIC + COMPARED)
        text = self.job(f"file://{self.path('gloo')}", program=(python, program), servers=1, timeout=600)
        self.assertEqual(text.count("same weights True pstrain"), 2, text)


IDIST_STAND_IN = """
import torch
import torch.distributed as dist

class Parallel:
    def __init__(self, backend):
        if backend not in ("nccl", "gloo", "mpi"):
            raise ValueError(f"Unknown backend '{backend}'")
        dist.init_process_group(backend)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        dist.destroy_process_group()

def auto_model(model):
    wraps = dist.get_world_size() > 1 and dist.get_backend() in ("nccl", "gloo", "mpi")
    return torch.nn.parallel.DistributedDataParallel(model) if wraps else model
"""
IGNITED = """
import torch
import idist
import pstrain

def trained(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 8), step + idist.dist.get_rank() + 1.0)).square().mean().backward()
        optimizer.step()
    return torch.cat([param.detach().flatten() for param in model.parameters()])

models = [torch.nn.Linear(8, 3) for _ in range(2)]
models[1].load_state_dict(models[0].state_dict())
model = models[1]
""", """
    ours = trained(model)
    theirs = trained(idist.auto_model(models[0]))
    print("same weights", torch.equal(ours, theirs), pstrain.job.current().opened_by)
"""
BY_GLOO = """
import os
import sys
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=0.01)

data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)), torch.linspace(-1, 1, 64)[:, None])
os.chdir(os.path.dirname(os.path.abspath(__file__)))  # Lightning writes there
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
theirs = Net()
ddp, optimizer = torch.nn.parallel.DistributedDataParallel(theirs.net), theirs.configure_optimizers()
for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):  # Lightning's
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(ddp(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
model, loader = Net(), DataLoader(data, batch_size=4)
"""
BY_FABRIC = """
fabric.launch()
assert fabric.world_size == 2 and fabric.global_rank == int(os.environ["RANK"])
net, optimizer = fabric.setup(model.net, model.configure_optimizers())
for x, y in fabric.setup_dataloaders(DataLoader(data, batch_size=4, sampler=DistributedSampler(data))):
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.mse_loss(net(x), y))
    optimizer.step()
"""
COMPARED = """
same = [torch.equal(a, b) for a, b in zip(theirs.net.parameters(), model.net.parameters())]
moved = not torch.equal(model.net[0].weight, Net().net[0].weight)
print("same weights", all(same) and moved, dist.get_backend())
"""


if __name__ == "__main__":
    unittest.main(verbosity=2)
