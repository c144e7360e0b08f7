"""Models of torch.compile: jobs whose workers are tests/system/python/compiled_cases.py."""
import subprocess
import unittest

from jobs import nightly
from test_python import PYTHON, WORKER, PythonTest, environment, works

NEW = "from torch._dynamo.backends.distributed import DDPOptimizer; DDPOptimizer.add_param"


class Compiled(PythonTest):
    def setUp(self):
        super().setUp()
        if not works(NEW):
            self.skipTest("this PyTorch is too old for pstrain.in_parts")

    def parts(self, way, backend="listening"):
        """How many gradients, or buckets, left after each part of the backward pass. The losses are DDP's."""
        text = self.job("compiled_by", way, backend, servers=1, timeout=500)
        self.assertEqual(text.count(": fine"), 2, text)
        return self.said(text, "parts")

    def test_an_optimizer(self):
        self.assertEqual(self.parts("parts"), ["1 1 1"] * 2)

    def test_in_ddp(self):
        """PyTorch cuts the model; Gloo's bits."""
        self.assertEqual(self.parts("hook"), ["1 1 1"] * 2)
        self.parts("group")

    def test_refusals(self):
        done = subprocess.run([PYTHON, WORKER, "parts_refused"], env=dict(environment(), RANK="0", WORLD_SIZE="1"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn(": fine", done.stdout)

    @nightly
    def test_by_inductor(self):
        for way in ("parts", "hook", "group"):
            with self.subTest(way=way):
                self.parts(way, "inductor")


class Rows(PythonTest):
    def test_a_lookup_is_one_graph_break(self):
        if not works("import torch._dynamo"):
            self.skipTest("this PyTorch has no torch.compile")
        text = self.job("rows_compiled", servers=1, timeout=500)
        # Two graphs, what comes before the second lookup and after it; for training and evaluation, for the first size of a
        # batch and for any.
        for line in self.said(text, "graphs"):
            first, breaks, every = map(int, line.split())
            self.assertEqual((first, breaks), (2, 2), text)
            self.assertLessEqual(every, 8, text)


if __name__ == "__main__":
    unittest.main()
