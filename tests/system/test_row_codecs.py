"""Accuracy of an example whose rows travel by codecs: the area under the curve after one pass, by seeds."""
import re
import unittest

from jobs import ROOT
from test_python import PYTHON, PythonTest

EXAMPLE = str(ROOT / "python/examples/dlrm.py")
MOST = {"fp16": 0.001, "int8": 0.003}


class Accuracy(PythonTest):
    def area(self, codec, seed):
        text = self.job("--model", "wide_deep", "--samples", 100_000, "--seed", seed, "--codec", codec, program=(PYTHON, EXAMPLE),
                        servers=1)
        return float(re.search(r"test: AUC (\S+),", text).group(1))

    def test_area_under_the_curve(self):
        for seed in (1, 2):
            exact = self.area("none", seed)
            for codec, most in MOST.items():
                with self.subTest(codec=codec, seed=seed):
                    self.assertAlmostEqual(self.area(codec, seed), exact, delta=most)


if __name__ == "__main__":
    unittest.main()
