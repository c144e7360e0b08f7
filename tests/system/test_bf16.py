"""train.precision=bf16 on CPUs: its accuracy, its bits, and what the log says."""
import math
import os
import re
import subprocess
import unittest
from pathlib import Path
from unittest import mock

from jobs import BIN, DIGITS, ROOT, JobTest, nightly, read_safetensors
from test_bench import TORCH, needs_torch
from test_predict import read_npy

BF16 = ["train.precision=bf16", "train.device=cpu"]
SHORT = ["train.steps=20", "train.eval_every=0", "train.seed=3"]


class Narrow:
    """Tests for each precision of 16 bits; to be mixed with JobTest."""

    @nightly
    def test_digits_reach_97_percent(self):
        self.psrun("-s", 1, "-w", 2, DIGITS, *self.keys)
        s = self.summary()
        self.assertGreaterEqual(s["test_accuracy"], 0.97)
        self.assertEqual(f"train.precision={s['precision']}", self.keys[0])
        self.assertRegex(s["device"], self.products)

    def test_the_same_bits_over_servers_chunks_modes_and_runs(self):
        ways = {"ps": (["-s", 1], []), "servers": (["-s", 3], []), "again": (["-s", 1], []),
                "shards": (["-s", 2], ["server.shards=2"]),
                "chunks": (["-s", 2], ["exchange.chunk=16384"]),
                "allreduce": (["-m", "allreduce"], [])}
        for name, (options, settings) in ways.items():
            self.psrun("-w", 3, *options, DIGITS, *SHORT, *self.keys, *settings, out=name)
        self.assertEqual({self.weights(name) for name in ways}, {self.weights("ps")})
        self.psrun("-w", 3, "-s", 1, DIGITS, *SHORT, "train.device=cpu", out="float32")
        self.assertNotEqual(self.weights("float32"), self.weights("ps"))


class Bf16(Narrow, JobTest):
    keys = BF16
    products = "products in bf16: (amx_bf16|avx512_bf16|emulated)"

    def test_one_warning_where_it_is_emulated(self):
        with mock.patch.dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2"):
            self.psrun("-m", "single", DIGITS, *SHORT, *BF16)
        log = Path(self.path("out/logs/worker-0.log")).read_text(encoding="utf-8")
        self.assertEqual(len(re.findall("emulated bf16", log)), 1, log)
        self.assertIn("products in bf16: emulated", log)


BLOCKS = f"""
model:
  input: [1, 8, 8]
  layers:
    - conv2d: {{name: conv, out: 16, kernel: 3, padding: 1, bias: false}}
    - batch_norm2d: {{name: bn}}
    - relu
    - residual:
        name: a
        body: [conv2d: {{name: conv1, out: 16, kernel: 3, padding: 1}}, batch_norm2d: {{name: bn1}}, relu,
                 conv2d: {{name: conv2, out: 16, kernel: 5, padding: 2, groups: 16}}, batch_norm2d: {{name: bn2}}]
    - relu
    - residual:
        name: b
        body: [conv2d: {{name: conv1, out: 32, kernel: 3, stride: 2, padding: 1}}, batch_norm2d: {{name: bn1}}, relu,
                 conv2d: {{name: conv2, out: 32, kernel: 3, padding: 1}}, batch_norm2d: {{name: bn2}}]
        shortcut: [conv2d: {{name: conv, out: 32, kernel: 1, stride: 2}}, batch_norm2d: {{name: bn}}]
    - relu
    - avg_pool2d: global
    - flatten
    - linear: {{name: fc, out: 10}}
data: {{kind: idx, path: {ROOT / "configs/digits"}, scale: 0.0625, batch: 64}}
train: {{epochs: 3, device: cpu}}
optimizer: {{name: adamw, lr: 0.003}}
"""


def difference(a, b):
    """The length of a - b over that of b."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / sum(y * y for y in b))


@needs_torch
class AsAutocast(JobTest):
    """Residual blocks, a depthwise convolution and batch norm against torch.autocast: both are equally near to
    float32."""

    def setUp(self):
        super().setUp()
        self.config = self.path("blocks.yaml")
        Path(self.config).write_text(BLOCKS, encoding="ascii")
        self.psrun("-m", "single", self.config, out="trained")
        self.init = self.path("trained", "model.safetensors")
        # All of the training samples are one batch; a step of SGD is the gradient.
        self.keys = ["data.train=0-255", "data.batch=256", "train.epochs=1",
                     "optimizer={name: sgd, lr: 1}", "schedule.name=constant"]
        job = self.path("job.json")
        Path(job).write_bytes(subprocess.run([BIN / "ps-config-json", self.config, *self.keys], check=True,
                                             stdout=subprocess.PIPE).stdout)
        by_hand = [TORCH, ROOT / "tests/system/autocast_by_hand.py", job, self.init, self.path("by-hand")]
        status = subprocess.run(by_hand, check=False).returncode
        if status == 77:
            self.skipTest("PyTorch has no convolutions of bfloat16 for this processor")
        self.assertEqual(status, 0)
        self.by_hand = {name: list(values) for name, (_, _, values) in
                        read_safetensors(self.path("by-hand"))[0].items()}

    def check(self, name, ours):
        wide, narrow = (self.by_hand[f"{way}/{name}"] for way in ("float32", "autocast"))
        off, their = difference(ours, wide), difference(narrow, wide)
        self.assertLessEqual(off, 1.1 * their, name)
        self.assertGreater(off, 2**-14, name)  # it did round

    def test_gradients_answers_and_losses(self):
        before = read_safetensors(self.init)[0]
        self.psrun("-m", "single", self.config, *self.keys, f"train.init={self.init}", *BF16, out="step")
        after = read_safetensors(self.path("step", "model.safetensors"))[0]
        names = [name[8:] for name in self.by_hand if name.startswith("float32/") and name[8:] in before]
        self.assertEqual(len(names), 25)
        ours = [x - y for name in names for x, y in zip(before[name][2], after[name][2])]
        for way in ("float32", "autocast"):
            self.by_hand[f"{way}/gradient"] = [v for name in names for v in self.by_hand[f"{way}/{name}"]]
        self.check("gradient", ours)
        # No layer is far off. Before batch norm a bias has no gradient.
        for name in (n for n in names if not re.search(r"conv\d?\.bias", n)):
            off = difference([x - y for x, y in zip(before[name][2], after[name][2])], self.by_hand[f"float32/{name}"])
            their = difference(self.by_hand[f"autocast/{name}"], self.by_hand[f"float32/{name}"])
            self.assertLess(off, 2 * their + 2**-8, name)
        self.psrun("--predict", "test", "--init", self.init, self.config, *BF16, out="said")
        self.check("probabilities", [v for row in read_npy(self.path("said", "predictions.npy")) for v in row])
        self.psrun("-m", "single", self.config, "train.epochs=0", f"train.init={self.init}", *BF16, out="evaluated")
        loss = self.summary("evaluated")["test_loss"]
        self.assertAlmostEqual(loss / self.by_hand["autocast/loss"][0], 1, delta=2**-6)
        self.assertNotEqual(loss, self.summary("trained")["test_loss"])


if __name__ == "__main__":
    unittest.main()
