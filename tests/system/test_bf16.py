"""train.precision=bf16 on CPUs: its accuracy, its bits, and what the log says."""
import os
import re
import unittest
from pathlib import Path
from unittest import mock

from jobs import DIGITS, JobTest

BF16 = ["train.precision=bf16", "train.device=cpu"]
SHORT = ["train.steps=20", "train.eval_every=0", "train.seed=3"]


class Bf16(JobTest):
    def test_digits_reach_97_percent(self):
        self.psrun("-s", 1, "-w", 2, DIGITS, *BF16)
        s = self.summary()
        self.assertGreaterEqual(s["test_accuracy"], 0.97)
        self.assertEqual(s["precision"], "bf16")
        self.assertRegex(s["device"], "products in bf16: (amx_bf16|avx512_bf16|emulated)")

    def test_the_same_bits_over_servers_chunks_modes_and_runs(self):
        ways = {"ps": (["-s", 1], []), "servers": (["-s", 3], []), "again": (["-s", 1], []),
                "shards": (["-s", 2], ["server.shards=2"]),
                "chunks": (["-s", 2], ["exchange.chunk=16384"]),
                "allreduce": (["-m", "allreduce"], [])}
        for name, (options, settings) in ways.items():
            self.psrun("-w", 3, *options, DIGITS, *SHORT, *BF16, *settings, out=name)
        self.assertEqual({self.weights(name) for name in ways}, {self.weights("ps")})
        self.psrun("-w", 3, "-s", 1, DIGITS, *SHORT, "train.device=cpu", out="float32")
        self.assertNotEqual(self.weights("float32"), self.weights("ps"))

    def test_fp16_is_refused(self):
        shown = self.psrun("-m", "single", DIGITS, "train.precision=fp16", "train.device=cpu", code=1)
        self.assertRegex(shown, r"train\.precision is fp16.*this processor has")

    def test_one_warning_where_it_is_emulated(self):
        with mock.patch.dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2"):
            self.psrun("-m", "single", DIGITS, *SHORT, *BF16)
        log = Path(self.path("out/logs/worker-0.log")).read_text(encoding="utf-8")
        self.assertEqual(len(re.findall("emulated bf16", log)), 1, log)
        self.assertIn("products in bf16: emulated", log)


if __name__ == "__main__":
    unittest.main()
