"""Columns of many texts as embeddings: learned as PyTorch's nn.Embedding learns them, predicted, served and exported alike."""
import csv
import json
import random
import subprocess
import unittest
from pathlib import Path

from jobs import BIN, PSRUN, JobTest, run_well
from test_bench import TORCH, needs_torch

EXPORTED = str(Path(__file__).with_name("python") / "exported.py")
N = 400


class Categories(JobTest):
    def setUp(self):
        super().setUp()
        draw = random.Random(3)
        worth = [draw.gauss(0, 1) for _ in range(150)]
        self.lines = []
        for i in range(N):
            city, size, kind = i % 150, draw.uniform(0, 9), draw.choice("abc")
            self.lines.append({"size": "" if i % 40 == 7 else f"{size:.3f}", "city": "" if i % 47 == 9 else f"city {city:03}", "kind": kind,
                               "price": f"{10 * worth[city] + size + ord(kind) + draw.gauss(0, .5):.4f}"})
        self.save("all.csv", self.lines)
        self.save("new.csv", [*self.lines[:20], {**self.lines[0], "city": "Atlantis"}, {**self.lines[0], "city": ""}, {**self.lines[0], "kind": ""}])
        self.job = self.file("job.yaml", (
            "model: {loss: mse, layers: [{linear: {name: a, out: 8}}, tanh, {linear: {name: b, out: 1}}]}\n"
            f"data: {{kind: csv, train: all.csv, target: price, missing: mean, batch: {N // 2}}}\n"
            "train: {epochs: 5, threads: 1}\noptimizer: {name: sgd, lr: 0.5, momentum: 0.5}\n"))

    def save(self, name, lines):
        with open(self.path(name), "w", newline="", encoding="utf-8") as f:
            table = csv.DictWriter(f, ["city", "size", "kind", "price"])
            table.writeheader()
            table.writerows(lines)

    def export(self, run):
        with open(self.path("model.py"), "w", encoding="utf-8") as f:
            subprocess.run([PSRUN, "--build-dir", BIN.parent, "--export-torch", self.path(run)], stdout=f, check=True)

    def as_pytorch(self, *arguments):
        self.assertEqual(run_well([TORCH, EXPORTED, *map(str, arguments)]).strip(), "the same")

    @needs_torch
    def test_learned_as_pytorch_does(self):
        both = self.job, "data.encoding=embedding"
        self.psrun("-m", "single", *both, "train.epochs=0", f"data.batch={N}", out="first")
        self.psrun("-s", 2, "-w", 2, *both, out="last")
        config = json.loads(self.text_of("last", "config.json"))
        self.assertEqual((config["model"]["input"], config["model"]["categories"]), ([3], [151, 3]))
        self.export("last")
        first, last = (self.path(run, "model.safetensors") for run in ("first", "last"))
        self.as_pytorch("train", self.path("model.py"), first, last, self.path("all.csv"), 5, 0.5, 0.5)
        self.assertIn("1 cell of \"city\" has a text that the training samples do not have, such as \"Atlantis\"", self.predicts("last"))

    @needs_torch
    def test_one_hot(self):
        self.psrun("-m", "single", self.job, "train.epochs=2", "data.encoding=onehot", out="run")
        self.assertEqual(json.loads(self.text_of("run", "config.json"))["model"]["input"], [154])
        self.predicts("run")

    def predicts(self, run):
        """As PyTorch does with the exported model."""
        self.export(run)
        text = self.psrun("--predict", self.path("new.csv"), self.path(run), out="said")
        self.as_pytorch("predict", self.path("model.py"), self.path(run, "model.safetensors"), self.path("new.csv"),
                        self.path("said", "predictions.csv"))
        return text

    def test_by_choice(self):
        said = " ".join(self.psrun("--check-data", self.job).split())
        self.assertIn("embedding", said)
        for settings, says in ((["model.input=[5]"], "leave out model.input"), (["data.encoding=embedding", "data.normalize=[0, 1]"], "data.normalize"),
                               (["model.layers=[relu, {embedding: 3}, {linear: {out: 1}}]"], "stands before all others")):
            self.assertIn(says, " ".join(self.psrun("-m", "single", self.job, *settings, code=1).split()))
        self.psrun("-m", "single", self.job, "model.layers=[{embedding: {name: e, out: 3}}, {linear: {name: b, out: 1}}]", "train.epochs=1",
                   "train.freeze=[e.weight]", "data.test=20%", out="own")  # all cities are not in the training part
        rows, = json.loads(self.text_of("own", "config.json"))["model"]["categories"]
        self.assertTrue(100 < rows < 151)


if __name__ == "__main__":
    unittest.main()
