"""The snippets of the documents run as they stand: shell, Python, YAML. They run in a folder that looks like the
checkout and has little data."""
import gzip
import os
import re
import shutil
import struct
import subprocess
import textwrap
import unittest
from array import array
from pathlib import Path

from jobs import BIN, ROOT, JobTest, npy, run_well
from test_python import PYTHON, WHY_NOT, environment

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "python/README.md",
         *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")
                 if page.name not in ("tutorial.md", "recipes.md"))]  # which have tests of their own
FENCE = re.compile(r"^( *)```(sh|python|diff|yaml)\n(.*?)^\1```", re.S | re.M)
HOSTS = re.compile(r"A hostfile says.*?```\n(.*?)```", re.S)  # in docs/machines.md
OVER_SSH = re.compile(r"psrun (?=.*-H )")  # shows its commands here
# What changes the machine, builds, or needs other machines, other programs or a job that runs. Others test it:
# test_run_folder, _packages, _pip, _wheel, _library, _install, _compose, _slurm, _kubernetes, _torchrun, _elastic, _watching, _ssh.
NOT_HERE = re.compile(
    r"(\w+=\S+ )*(apt|apt-get|cc|cmake|curl|ctest|docker-compose|kubectl|kill|pip|prometheus|pstrain-server|sbatch|tensorboard|"
    r"torchrun|python3 -m venv|deploy/(packages|build-packages|compose-demo|quickstart|psrun --(join|top|build-dir|predict new))|"
    r"python/build_wheel|tests/|python3 tests/|ps-(server|worker) --config FILE|ps-server --make-keys)\b"
    r"|export MASTER_ADDR|.* metrics\.port=9100|ps-server &|psrun .*/usr/share|.* --doctor|.*pstrain\.doctor")

SMALL = ("out: 32", "out: 2"), ("out: 64", "out: 2")  # channels of a configuration
NEW = "a snippet came or went: say here how it runs"

# ---- what Python takes as given, and what it does next ----

NET = """import torch, torch.distributed as dist, pstrain
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
"""
STEPS = """for _ in range(2):
    optimizer.zero_grad()
    {}.backward()
    optimizer.step()
print("trained", flush=True)
"""
OURS, DDPS = (STEPS.format(f"{name}(torch.ones(2, 4)).sum()") for name in ("model", "ddp"))
BATCHES = "def batches(rank, size):\n    return [(torch.ones(2, 4), torch.ones(2, 3))] * 2\n"
LAUNCHED = '    print("trained", flush=True)\n'
SCALED = STEPS.format("optimizer.scale(model(torch.ones(2, 4)).sum())")
SAVED = """import sys, types, torch
sys.path += ["tests", "python/examples"]
from jobs import read_safetensors
from digits import BasicNet
safetensors = sys.modules["safetensors"] = types.ModuleType("safetensors")  # where the machine has none
sys.modules["safetensors.torch"] = types.SimpleNamespace(load_file=lambda path: {
    name: torch.tensor(values).reshape(shape) for name, (_, shape, values) in read_safetensors(path)[0].items()})
model, folder = BasicNet(8), "runs/mine/checkpoints/step-60"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
RESUMED = """assert all(state["exp_avg_sq"].any() and state["step"] == 60 for state in optimizer.state.values()), optimizer.state
assert len(optimizer.state) == 8
torch.nn.functional.nll_loss(model(torch.ones(2, 1, 8, 8)), torch.tensor([1, 2])).backward()
optimizer.step()
print("trained")
"""
COMMITS = NET + """pstrain.init()
model, loss = Net(), torch.nn.CrossEntropyLoss()
optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-3)
data = torch.utils.data.TensorDataset(torch.rand(70, 4), torch.arange(70) % 3)
"""
ROWS = NET + """import types
pstrain.init()
dense, ids, lists, offsets = torch.nn.Linear(16, 3), torch.tensor([1, 2, 5]), [[1], [2, 3]], {"user": torch.tensor([0, 2])}
loss = types.SimpleNamespace(backward=lambda: (dense(out["user"]).sum() + out["item"].sum()).backward())
"""
SERVED = ROWS.replace("pstrain.init()", "import os\npstrain.init()") + """rows = pstrain.Embeddings({"user": dict(dim=16), "item": dict(dim=16)}, lr=0.1)
rows({"user": lists, "item": lists})["item"].sum().backward()
rows.step()
address = os.environ["PS_INIT_METHOD"]
"""
RATES = """import torch
import pstrain
pstrain.init()
rows, layer = pstrain.Embeddings({"user": dict(dim=2)}, optimizer="sgd", lr=0.05), torch.nn.Linear(2, 1)
optimizer = pstrain.Optimizer(layer.named_parameters(), "adamw", lr=0.001)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
def moves():
    row = rows({"user": torch.tensor([[1]])})["user"]
    (row.sum() + layer(torch.ones(1, 2)).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        return float((row - rows({"user": torch.tensor([[1]])})["user"]).max())
assert abs(moves() - 0.05) < 1e-6
"""
RATED = "assert abs(moves() - 0.005) < 1e-6\nprint('trained', flush=True)\n"
AROUND = {"README.md": [(NET, OURS)],
          "python/README.md": [(NET, OURS), (NET + BATCHES, LAUNCHED), (NET, DDPS), (NET, DDPS), (NET + "pstrain.init()\nmodel = Net()\n", SCALED)],
          "docs/checkpoints.md": [(SAVED, RESUMED)],
          "docs/embeddings.md": [(ROWS, "print('trained', flush=True)\n"), (RATES, RATED),
                                 (SERVED, "assert 0 <= first <= last <= 1 and out['user'].shape == (2, 16)\nprint('trained', flush=True)\n")],
          "docs/recovery.md": [(COMMITS, "assert state.step == 20\nprint('trained', flush=True)\n")]}


def snippets(page, *languages):
    """Of a difference its new side."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [re.sub(r"^-.*\n|^[+ ]", "", body, flags=re.M) if language == "diff" else textwrap.dedent(body)
            for _, language, body in FENCE.findall(text) if language in languages]


def count(*languages):
    """How many each page has, without those that have none."""
    return {page: n for page in PAGES if (n := len(snippets(page, *languages)))}


def programs(page):
    return [before + body + after for body, (before, after) in zip(snippets(page, "python", "diff"), AROUND[page])]


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Snippets(JobTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        for name, there in (("deploy", ROOT / "deploy"), ("tests", ROOT / "tests/system"), ("bin/python", PYTHON),
                            ("bin/psrun", ROOT / "deploy/psrun")):
            os.symlink(there, self.path(name))
        for folder in ("configs", "python/examples"):
            shutil.copytree(ROOT / folder, self.path(folder))
        for split, n in (("train", 256), ("test", 32)):  # a few of the digits
            for kind, head, size in (("images-idx3", 16, 64), ("labels-idx1", 8, 1)):
                path = Path(self.path("configs/digits", f"{split}-{kind}-ubyte.gz"))
                raw = gzip.decompress(path.read_bytes())
                path.write_bytes(gzip.compress(raw[:4] + struct.pack(">I", n) + raw[8:head + size * n], 1))
        self.change("configs/mnist-basicnet.yaml", ("@0-7999", "@0-255"), ("@8000-9999", "@256-287"), *SMALL,
                    ("epochs: 5", "epochs: 1"))
        self.change("configs/digits-basicnet.yaml", ("epochs: 30", "epochs: 15"))  # 60 steps of two workers
        os.mkdir(self.path("FOLDER"))  # of MNIST
        for name, head, body in (("images-idx3", (0x803, 288, 28, 28), bytes(288 * 784)),
                                 ("labels-idx1", (0x801, 288), bytes(i % 10 for i in range(288)))):
            self.write(f"FOLDER/t10k-{name}-ubyte.gz", gzip.compress(struct.pack(f">{len(head)}I", *head) + body, 1))
        self.write("hosts", HOSTS.search((ROOT / "docs/machines.md").read_text(encoding="utf-8"))[1].encode())
        self.write("train.py", programs("python/README.md")[0].encode())

    def write(self, name, content):
        Path(self.path(name)).write_bytes(content)

    def change(self, name, *pairs):
        text = Path(self.path(name)).read_text(encoding="utf-8")
        for old, new in pairs:
            text = text.replace(old, new)
        self.write(name, text.encode())

    def shell(self, text):
        """Runs it here; returns what it says."""
        env = dict(environment(), PATH=f"{self.path('bin')}:{os.environ['PATH']}", PS_BUILD_DIR=str(BIN.parent.resolve()))
        return run_well(["bash", "-ex"], input=text, cwd=self.folder, env=env, timeout=300)

    def test_shell(self):
        run = 0
        self.change("configs/digits-basicnet.yaml", *SMALL)
        for page in PAGES:
            lines = [line for text in snippets(page, "sh") for line in text.replace("\\\n", " ").splitlines()
                     if line and not NOT_HERE.match(line)]
            run += len(lines)
            with self.subTest(page=page):
                shutil.rmtree(self.path("runs"), ignore_errors=True)
                if page == "docs/optimizers.md":  # it begins with weights
                    subprocess.run([BIN / "ps-bench-step", "--weights", self.path("model.safetensors"),
                                    self.path("configs/digits-basicnet.yaml")], check=True)
                self.shell("\n".join(OVER_SSH.sub("psrun --dry-run ", line) for line in lines))
        self.assertGreater(run, 30)  # of 75

    def test_python(self):
        self.assertEqual(count("python", "diff"), {page: len(around) for page, around in AROUND.items()}, NEW)
        self.shell("deploy/psrun --out runs/mine configs/digits-basicnet.yaml checkpoint.every=60 train.steps=60")
        for page, program in ((page, program) for page in AROUND for program in programs(page)):
            with self.subTest(page=page, program=program):
                self.write("snippet.py", program.encode())
                by_psrun = "pstrain" in program and "pstrain.launch" not in program
                launcher, n = ("psrun -s 2 -w 2 --verbose -- ", 2) if by_psrun else ("", 1)
                said = self.shell(f"{launcher}python snippet.py")
                self.assertEqual(said.count("trained\n"), n, said)

    def test_yaml(self):
        """README.md's is in test_readme."""
        self.assertEqual(count("yaml"), {"README.md": 1, "docs/configuration.md": 1, "docs/losses.md": 1, "docs/models.md": 1,
                                         "docs/optimizers.md": 1}, NEW)
        for part, n in (("train", 128), ("test", 16)):
            self.write(f"{part}_x.npy", npy("<f4", f"({n}, 13)", array("f", range(13 * n)).tobytes()))
            self.write(f"{part}_y.npy", npy("<f4", f"({n},)", array("f", range(n)).tobytes()))
        layers = "[conv2d: {name: conv, out: 2, kernel: 3}, batch_norm2d: {name: bn}, flatten, linear: {name: fc, out: 10}]"
        own = f"model: {{input: [1, 8, 8], loss: cross_entropy, layers: {layers}}}\ndata: {{kind: synthetic}}\n"
        self.write("losses.yaml", snippets("docs/losses.md", "yaml")[0].encode())
        self.write("models.yaml", (snippets("docs/models.md", "yaml")[0] + "data: {kind: synthetic}\n").encode())
        self.write("groups.yaml", (snippets("docs/optimizers.md", "yaml")[0] + own).encode())
        self.write("tables.yaml", (snippets("docs/configuration.md", "yaml")[0] +
                                   "model: {loss: mse, layers: [linear: {name: fc, out: 1}]}\n").encode())
        self.write("all.csv", "".join(["id,place,size,price\n", *(f"{i},{'ab'[i % 2]},{i % 7},{i * 3}\n" for i in range(100))]).encode())
        for name in ("losses", "models", "groups", "tables"):
            self.shell(f"deploy/psrun -m single --out {name} {name}.yaml train.steps=2")
            self.assertEqual(self.summary(name)["steps"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
