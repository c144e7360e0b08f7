"""train.precision=fp16 on CPUs: its accuracy, its bits, its loss scale, and how it is refused."""
import os
import re
import unittest
from unittest import mock

from jobs import DIGITS, JobTest, nightly
from test_bf16 import SHORT, Narrow

FP16 = ["train.precision=fp16", "train.device=cpu"]


@nightly  # it needs AVX512-FP16, which few processors have
class Fp16(Narrow, JobTest):
    keys = FP16
    products = "products in fp16: (amx_fp16|avx512_fp16)"

    def setUp(self):
        super().setUp()
        refused = re.search("Not on this machine: (.*)", self.psrun("--describe", DIGITS, *FP16))
        if refused:
            self.skipTest(refused.group(1))

    def test_as_accurate_as_float32(self):
        """Of 1,797 digits 360 are for the test: a standard error is about half a percent."""
        accuracies = {}
        for precision in ("float32", "fp16"):
            self.psrun("-m", "single", DIGITS, f"train.precision={precision}", "train.device=cpu", out=precision)
            accuracies[precision] = self.summary(precision)["test_accuracy"]
        self.assertAlmostEqual(accuracies["fp16"], accuracies["float32"], delta=0.01)

    def test_steps_that_overflow_are_skipped(self):
        """A scale of 2^30 makes gradients above 65504, in every mode in the same steps."""
        for mode in ("ps", "allreduce", "single"):
            workers = [] if mode == "single" else ["-w", 2]
            self.psrun("-m", mode, *workers, DIGITS, *SHORT, *FP16, f"loss_scale.init={2.0 ** 30}", out=mode)
            s = self.summary(mode)
            self.assertGreater(s["skipped_steps"], 5)
            self.assertLess(s["skipped_steps"], 20)
            self.assertEqual(s["loss_scale"], 2.0 ** 30 / 2 ** s["skipped_steps"])
        self.assertEqual(self.weights("ps"), self.weights("allreduce"))


class Refusal(JobTest):
    def test_it_says_what_there_is_and_what_to_take(self):
        """The job has only AVX2. No processor without AVX512-FP16 can do more."""
        with mock.patch.dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2"):
            shown = self.psrun("-m", "single", DIGITS, *FP16, code=1)
        self.assertRegex(shown, r"train\.precision is fp16; this processor has .*oneDNN \d+\.\d+")
        self.assertRegex(shown, r"take train\.precision=float32")


if __name__ == "__main__":
    unittest.main()
