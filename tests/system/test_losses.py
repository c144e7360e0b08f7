"""Losses of classes and of numbers in whole jobs: what is trained, evaluated, predicted, refused."""
import csv
import json
import math
import os
import random
import subprocess
import unittest
from array import array
from pathlib import Path
from xml.etree import ElementTree

from jobs import DIGITS, ROOT, JobTest, npy, read_safetensors
from psrunlib.report import figure

CLASSES, FEATURES = 3, 4
WEIGHTS = [0.5, 2.0, 1.0]


def softmax(logits):
    parts = [math.exp(v - max(logits)) for v in logits]
    return [p / sum(parts) for p in parts]


def micro_batch_gradient(weight, bias, samples, smoothing, ignore):
    """Returns the gradient of PyTorch's weighted mean, for logits x W' + b: [d/dW rows, d/db]."""
    rows = [[0.0] * FEATURES for _ in range(CLASSES)]
    column, total = [0.0] * CLASSES, 0.0
    for x, label in samples:
        if label == ignore:
            continue
        total += WEIGHTS[label]
        p = softmax([sum(w * v for w, v in zip(weight[c], x)) + bias[c] for c in range(CLASSES)])
        q = [WEIGHTS[c] * (smoothing / CLASSES + (1 - smoothing) * (c == label)) for c in range(CLASSES)]
        for c in range(CLASSES):
            d = sum(q) * p[c] - q[c]
            column[c] += d
            rows[c] = [g + d * v for g, v in zip(rows[c], x)]
    total = total or 1.0
    return [[g / total for g in row] for row in rows], [g / total for g in column]


class Classes(JobTest):
    def test_workers_and_micro_batches_are_averaged_as_ddp_does(self):
        """Two workers, two micro-batches a step, against plain loops in double."""
        draw = random.Random(5)
        x = [[draw.gauss(0, 1) for _ in range(FEATURES)] for _ in range(48)]
        labels = [draw.choice([0, 1, 2, -100]) for _ in x]
        Path(self.path("train_x.npy")).write_bytes(
            npy("<f4", f"({len(x)}, {FEATURES})", array("f", sum(x, [])).tobytes()))
        Path(self.path("train_y.npy")).write_bytes(npy("<i8", f"({len(x)},)", array("q", labels).tobytes()))
        Path(self.path("job.yaml")).write_text(
            "model: {input: [4], loss: cross_entropy, layers: [{linear: {name: fc, out: 3}}]}\n"
            "train: {epochs: 2, accumulate: 2, class_weights: [0.5, 2, 1], label_smoothing: 0.2}\n"
            f"data: {{kind: npy, path: '{self.folder}', batch: 4, shuffle: false}}\n"
            "optimizer: {name: sgd, lr: 0.5}\n", encoding="ascii")
        self.psrun("-w", "2", "-s", "1", self.path("job.yaml"), "optimizer.lr=0", out="zero")
        start = read_safetensors(self.path("zero", "model.safetensors"))[0]
        weight = [list(start["fc.weight"][2][c * FEATURES:(c + 1) * FEATURES]) for c in range(CLASSES)]
        bias = list(start["fc.bias"][2])
        self.psrun("-w", "2", "-s", "1", self.path("job.yaml"))
        samples = [(array("f", v).tolist(), k) for v, k in zip(x, labels)]
        for step in range(6):
            rows = [[0.0] * FEATURES for _ in range(CLASSES)]
            column = [0.0] * CLASSES
            for rank in range(2):
                own = samples[rank::2] * 2
                for m in range(2):
                    begin = step * 8 + m * 4
                    g, b = micro_batch_gradient(weight, bias, own[begin:begin + 4], 0.2, -100)
                    rows = [[a + v / 4 for a, v in zip(p, q)] for p, q in zip(rows, g)]
                    column = [a + v / 4 for a, v in zip(column, b)]
            weight = [[w - 0.5 * v for w, v in zip(p, q)] for p, q in zip(weight, rows)]
            bias = [w - 0.5 * v for w, v in zip(bias, column)]
        found = read_safetensors(self.path("out", "model.safetensors"))[0]
        for have, want in zip(list(found["fc.weight"][2]) + list(found["fc.bias"][2]), sum(weight, []) + bias):
            self.assertAlmostEqual(have, want, 5)

    def test_the_best_of_very_many_classes(self):
        """There are no figures of each class. The right answers are counted."""
        self.file("many.csv", "".join(f"{i % 9},{int(i % 9 > 3)}\n" for i in range(45)))
        job = self.file("many.yaml", "model: {input: [1], layers: [linear: 16385]}\ntrain: {epochs: 4, threads: 1}\n"
                                     "data: {kind: csv, train: many.csv, test: many.csv, batch: 9}\noptimizer: {lr: 0.1}\n")
        self.psrun("-s", "1", "-w", "2", job, "checkpoint.best=accuracy")
        self.psrun("--predict", "test", self.path("out"), out="said")
        lines = list(csv.DictReader(self.text_of("said", "predictions.csv").splitlines()))
        right = sum(line["class"] == line["truth"] for line in lines)
        self.assertTrue(0 < right < len(lines))
        self.assertEqual(self.summary()["test_accuracy"], right / len(lines))

    def test_the_last_evaluation_is_in_the_runs_folder(self):
        self.psrun("-w", "3", "-s", "1", DIGITS, "train.epochs=1")
        self.psrun("--predict", "test", "--init", self.path("out", "model.safetensors"), DIGITS, out="said")
        found = json.loads(Path(self.path("out", "evaluation.json")).read_text(encoding="ascii"))
        said = json.loads(Path(self.path("said", "confusion.json")).read_text(encoding="ascii"))
        s = self.summary()
        for figures in (found, said):
            self.assertAlmostEqual(figures.pop("loss"), s["test_loss"], 5)
        self.assertEqual(found, said)
        self.assertAlmostEqual(found["accuracy"], s["test_accuracy"], 5)
        self.assertAlmostEqual(found["top5_accuracy"], s["test_top5_accuracy"], 5)
        self.assertEqual(self.records()[-1]["test_top5_accuracy"], s["test_top5_accuracy"])
        ElementTree.parse(self.path("out", "evaluation.svg"))
        # A run without an evaluation removes the results of the run before it.
        self.psrun("-m", "single", self.wide_model(64), "train.steps=1", "data.test_samples=0", "--overwrite")
        self.assertFalse(os.path.exists(self.path("out", "evaluation.json")))

    def test_mistakes_are_named(self):
        for setting, says in (("train.class_weights=[1,2]", "2 weights; the model has 10 classes"),
                              ("train.class_weights=[0,0,0,0,0,0,0,0,0,0]", "all weights are 0"),
                              ("train.class_weights=[1,-1]", "train.class_weights"),
                              ("train.label_smoothing=1.5", "train.label_smoothing"),
                              ("train.ignore_index=1.5", "train.ignore_index")):
            self.assertIn(says, self.psrun(DIGITS, setting, code=1))


class Numbers(JobTest):
    def write(self, name, shape, values, descr="<f4", kind="f"):
        Path(self.path(name)).write_bytes(npy(descr, str(tuple(shape)), array(kind, values).tobytes()))

    def setUp(self):
        super().setUp()
        draw = random.Random(3)
        self.x = [[draw.gauss(0, 1) for _ in range(2)] for _ in range(64)]
        self.write("train_x.npy", (64, 2), sum(self.x, []))
        self.write("test_x.npy", (64, 2), sum(self.x, []))

    def job(self, loss, outputs, *settings, **options):
        Path(self.path("job.yaml")).write_text(
            f"model: {{input: [2], loss: {loss}, layers: [{{linear: {{name: fc, out: {outputs}}}}}]}}\n"
            f"train: {{epochs: 60}}\ndata: {{kind: npy, path: '{self.folder}', batch: 8}}\n"
            "optimizer: {name: adam, lr: 0.05}\nschedule: {name: constant}\n", encoding="ascii")
        return self.psrun("-w", "2", "-s", "1", self.path("job.yaml"), *settings, **options)

    def targets(self, values, columns, **options):
        for name in ("train_y.npy", "test_y.npy"):
            self.write(name, (64, columns) if columns else (64,), values, **options)

    def test_regression(self):
        self.targets([3 * a - b + 1 for a, b in self.x], 0)
        shown = self.job("mse", 1, "train.patience=20", "checkpoint.best=loss", "checkpoint.every=50")
        s = self.summary()
        self.assertLess(s["test_loss"], 1e-3)
        self.assertIsNone(s["test_accuracy"])
        self.assertRegex(shown, r"test +R2 1\.0000, MAE \S+, RMSE \S+, loss \d\.\de-\d")
        self.assertNotIn("accuracy", shown)
        found = json.loads(self.text_of("out", "evaluation.json"))
        self.assertGreater(found["r2"], 0.999)
        self.assertAlmostEqual(found["loss"], s["test_loss"], 6)
        self.assertNotIn("test_accuracy", self.records()[-1])
        table = subprocess.run([ROOT / "deploy/show-runs", self.path("out")], stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        self.assertRegex(table.splitlines()[1], r" 0\.000\d +R2 1\.0000 ")
        weight = read_safetensors(self.path("out", "model.safetensors"))[0]["fc.weight"][2]
        self.assertAlmostEqual(weight[0], 3, 1)
        self.assertAlmostEqual(weight[1], -1, 1)
        model = self.path("out", "model.safetensors")
        said = self.psrun("--predict", "test", "--init", model, self.path("job.yaml"), out="said")
        self.assertIn(f"loss {figure(s['test_loss'])}\n", said)
        lines = list(csv.DictReader(self.text_of("said", "predictions.csv").splitlines()))
        self.assertEqual(list(lines[0]), ["index", "truth", "output_0"])
        for (a, b), line in zip(self.x, lines, strict=True):
            self.assertAlmostEqual(float(line["output_0"]), 3 * a - b + 1, 0)

    def test_several_outputs(self):
        self.targets([v for a, b in self.x for v in (a + b, a - b, 2.0)], 3, descr="<f8", kind="d")
        for loss in ("l1", "smooth_l1"):
            self.job(loss, 3, out=loss)
            self.assertLess(self.summary(loss)["test_loss"], 0.1)

    def test_several_labels_of_a_sample(self):
        self.targets([int(v > 0) for a, b in self.x for v in (a, b)], 2, descr="|u1", kind="B")
        self.job("bce_with_logits", 2)
        s = self.summary()
        self.assertLess(s["test_loss"], 0.2)
        self.assertIsNone(s["test_accuracy"])
        self.psrun("--predict", self.path("test_x.npy"), "--init", self.path("out", "model.safetensors"),
                   self.path("job.yaml"), out="said")
        lines = list(csv.DictReader(self.text_of("said", "predictions.csv").splitlines()))
        for (a, b), line in zip(self.x, lines, strict=True):
            for v, name in ((a, "probability_0"), (b, "probability_1")):
                if abs(v) > 0.5:
                    self.assertEqual(float(line[name]) > 0.5, v > 0)

    def test_mistakes_are_named(self):
        good = [a for a, _ in self.x]
        bad = good[:10] + [math.nan] + good[11:]
        for loss, outputs, columns, values, options, says in (
                ("mse", 1, 0, bad, {}, "train_y.npy: sample 10: number 0 to compare with is nan"),
                ("mse", 3, 2, good * 2, {}, "train_y.npy: has 2 numbers for each sample; the model has 3 outputs"),
                ("bce_with_logits", 1, 1, good, {}, "bce_with_logits takes 0 to 1"),
                ("cross_entropy", 2, 0, good, {}, "labels are integers, these are of type f4"),
                ("l1", 1, 0, good, {"descr": "<c8"}, "of type c8"),
                ("cross_entropy", 2, 0, [-100] * 64, {"descr": "<i4", "kind": "i"}, "all samples have the label -100"),
                ("cross_entropy", 2, 0, [-1] * 64, {"descr": "<i4", "kind": "i"}, "label 0 is -1"),
                ("mse", 4, 0, [7] * 64, {"descr": "<i4", "kind": "i"}, "the model's 4 classes are 0 to 3")):
            self.targets(values, columns, **options)
            self.assertIn(says, self.job(loss, outputs, "--overwrite", code=1))
        self.targets(good, 0)
        self.assertIn("accuracy is of classes", self.job("mse", 1, "checkpoint.best=accuracy", "--overwrite", code=1))
        self.assertIn("auc is of two classes", self.job("mse", 1, "checkpoint.best=auc", "--overwrite", code=1))
        said = self.job("mse", 1, "schedule={name: plateau, metric: accuracy}", "--overwrite", code=1)
        self.assertIn("schedule.metric: accuracy is of classes", said)
        self.assertNotIn("epoch 1/", said)  # before there is anything to lose
        self.assertIn("train.label_smoothing: is for the losses cross_entropy and nll",
                      self.job("mse", 1, "train.label_smoothing=0.1", "--overwrite", code=1))
        self.write("train_y.npy", (63,), good[:63])
        self.assertIn("64 samples, ", self.job("mse", 1, "--overwrite", code=1))
        self.targets(good, 0)
        for split in ("test", "train"):  # the test set's shape is checked first
            self.assertIn(f"data.{split}: data is (2), the model's input is (3)",
                          self.job("mse", 1, "--overwrite", "model.input=[3]", code=1))
            self.write("test_x.npy", (64, 3), good * 3)


if __name__ == "__main__":
    unittest.main()
