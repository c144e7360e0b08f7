"""data.mixup in whole jobs: the gradient of a mixed batch, threads, resuming, what is refused."""
import math
import random
import unittest
from array import array
from pathlib import Path

from jobs import DIGITS, JobTest, npy, read_safetensors

CLASSES, FEATURES = 3, 4
WEIGHTS = [0.5, 2.0, 1.0]


def rolled(rows, share):
    """torchvision's MixUp of a batch of rows."""
    return [[share * a + (1 - share) * b for a, b in zip(row, rows[i - 1])] for i, row in enumerate(rows)]


def gradient(weight, bias, x, t, smoothing, weights):
    """Of F.cross_entropy(x W' + b, t, weights, label_smoothing=smoothing): the gradient by W's rows, each with its
    bias."""
    rows = [[0.0] * (FEATURES + 1) for _ in range(CLASSES)]
    for own, target in zip(x, t):
        y = [sum(w * v for w, v in zip(weight[c], own)) + bias[c] for c in range(CLASSES)]
        e = [math.exp(v) for v in y]
        q = [weights[c] * (smoothing / CLASSES + (1 - smoothing) * target[c]) for c in range(CLASSES)]
        for c in range(CLASSES):
            d = (sum(q) * e[c] / sum(e) - q[c]) / len(x)
            rows[c] = [g + d * v for g, v in zip(rows[c], own + [1.0])]
    return rows


class Mixup(JobTest):
    def write(self, name, content):
        Path(self.path(name)).write_bytes(content)

    def make_job(self, n, more=""):
        draw = random.Random(5)
        x = [array("f", [draw.gauss(0, 1) for _ in range(FEATURES)]).tolist() for _ in range(n)]
        labels = [draw.randrange(CLASSES) for _ in x]
        self.write("train_x.npy", npy("<f4", f"({n}, {FEATURES})", array("f", sum(x, [])).tobytes()))
        self.write("train_y.npy", npy("<i8", f"({n},)", array("q", labels).tobytes()))
        self.write("job.yaml", (
            f"model: {{input: [{FEATURES}], loss: cross_entropy, layers: [{{linear: {{name: fc, out: {CLASSES}}}}}]}}\n"
            f"train: {{steps: 1{more}}}\noptimizer: {{name: sgd, lr: 0.5}}\n"
            f"data: {{kind: npy, path: '{self.folder}', batch: {n}, shuffle: false, mixup: 0.4}}\n").encode())
        return x, [[float(c == k) for c in range(CLASSES)] for k in labels]

    def fc(self, out):
        tensors = read_safetensors(self.path(out, "model.safetensors"))[0]
        flat = list(tensors["fc.weight"][2])
        return [flat[c * FEATURES:(c + 1) * FEATURES] for c in range(CLASSES)], list(tensors["fc.bias"][2])

    def check_step(self, more, smoothing, weights):
        """One share of the samples explains the step's whole gradient."""
        x, t = self.make_job(6, more)
        name = f"s{smoothing}"
        self.psrun("-m", "single", self.path("job.yaml"), "optimizer.lr=0", out=name + "-zero")
        self.psrun("-m", "single", self.path("job.yaml"), out=name)
        (before, bias), (after, bias_after) = self.fc(name + "-zero"), self.fc(name)
        found = [[2 * (p - q) for p, q in zip(before[c] + [bias[c]], after[c] + [bias_after[c]])]
                 for c in range(CLASSES)]

        def miss(share):
            g = gradient(before, bias, rolled(x, share), rolled(t, share), smoothing, weights)
            return max(abs(a - b) for p, q in zip(g, found) for a, b in zip(p, q))

        best, width = min((k / 1000 for k in range(1001)), key=miss), 1e-3
        while width > 1e-8:
            best = min((best + k * width / 10 for k in range(-10, 11)), key=miss)
            width /= 5
        self.assertLess(miss(best), 2e-6)
        self.assertGreater(miss(0.0), 1e-3)  # a wrong share is noticed
        self.assertGreater(miss(1.0), 1e-3)

    def test_the_gradient_is_that_of_a_mixed_batch(self):
        self.check_step("", 0.0, [1.0] * CLASSES)
        self.check_step(", label_smoothing: 0.2, class_weights: [0.5, 2, 1]", 0.2, WEIGHTS)

    def test_neither_threads_nor_a_resume_change_it(self):
        model = "model={input: [64], loss: cross_entropy, layers: [{linear: 32}, relu, {linear: 10}]}"
        job = ("-m", "allreduce", "-w", "2", DIGITS, model, "data.mixup=0.2", "train.epochs=1")
        self.psrun(*job)
        self.psrun(*job, "data.threads=4", out="threads")
        self.assertEqual(self.weights("threads"), self.weights())
        self.psrun(*job, "data.mixup=0", out="none")
        self.assertNotEqual(self.weights("none"), self.weights())
        self.psrun(*job, "checkpoint.every=5", "train.stop_after=5", out="part", code=75)
        self.psrun("--resume", self.path("part"), out="part")
        self.assertEqual(self.weights("part"), self.weights())

    def test_what_has_no_meaning_is_refused(self):
        self.make_job(6)
        job = ("-m", "single", self.path("job.yaml"))
        said = self.psrun(*job, "model.loss=mse", code=1)
        self.assertIn("data.mixup: mixes classes and needs model.loss cross_entropy", said)
        said = self.psrun(*job, "train.ignore_index=1", code=1)
        self.assertIn("train.ignore_index: cannot be with data.mixup", said)
        self.write("train_y.npy", npy("<i8", "(6,)", array("q", [0, 1, 2, -100, 1, 1]).tobytes()))
        self.assertIn("label 3 is -100", self.psrun(*job, code=1))


if __name__ == "__main__":
    unittest.main()
