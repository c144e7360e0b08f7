"""Embedding tables in other people's models, exported rows, and the example with clicks."""
import re
import unittest
from pathlib import Path

from jobs import ROOT, first, run_well
from test_python import FAST, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/embedding_worker.py")
EXAMPLE = str(ROOT / "python/examples/dlrm.py")


class Models(PythonTest):
    def test_losses_and_rows_of_pytorch(self):
        text = self.job("like_pytorch", self.folder, program=(PYTHON, WORKER))
        for line in self.said(text, "far"):
            loss, rows = map(float, line.split())
            self.assertLess(loss, 1e-5, text)
            self.assertLess(rows, 1e-4, text)

    def test_zero_grad_discards_gradients_of_rows(self):
        for how in first(2, ("servers", "tables", "own")):
            with self.subTest(how=how):
                for line in self.said(self.job("zeroes", self.folder, how, program=(PYTHON, WORKER)), "zeroes"):
                    self.assertEqual(line.split()[0], "True", line)

    def test_what_pytorchs_modules_do(self):
        self.assertEqual(self.said(self.job("surprises", self.folder, program=(PYTHON, WORKER)), "surprises"), ["ok"] * 2)

    def test_what_is_done_to_a_model_around_tables(self):
        for what in "around", "types":
            with self.subTest(what=what):
                self.assertEqual(self.said(self.job(what, self.folder, program=(PYTHON, WORKER)), what), ["ok"] * 2)

    def test_rows_that_rank_0_does_not_load(self):
        text = self.job("loads_alone", self.folder, program=(PYTHON, WORKER), code=1)
        self.assertIn("rank 1: table 'rows' was given rows on this rank, and none on rank 0", text)

    def test_edges_and_exported_rows(self):
        self.assertEqual(self.said(self.job("edges", self.folder, program=(PYTHON, WORKER)), "edges"), ["ok"] * 2)


class Example(PythonTest):
    def test_data(self):
        self.assertEqual(run_well([PYTHON, WORKER, "data", self.folder], env=environment()), "data ok\n")

    def test_trains_and_exports(self):
        rows, ahead = self.path("rows"), self.path("ahead")
        words = ("--model", "wide_deep", "--samples", 6000, "--batch", 100, "--ids", 50, "--export")
        text = self.job(*words, rows, program=(PYTHON, EXAMPLE))
        self.job(*words, ahead, "--ahead", program=(PYTHON, EXAMPLE), settings=[*FAST, "exchange.shm=off"])
        self.assertEqual(Path(rows).read_bytes(), Path(ahead).read_bytes())
        (auc, loss), (best, least) = re.findall(r": AUC (\S+), log loss (\S+)", text)
        self.assertGreater(float(auc), 0.55, text)
        self.assertLess(float(auc), float(best), text)
        self.assertGreater(float(loss), float(least), text)
        said = run_well([PYTHON, "-c", "import pstrain, sys; print(len(pstrain.rows(sys.argv[1]).tables))", rows],
                        env=environment())
        self.assertEqual(said, "26\n")


if __name__ == "__main__":
    unittest.main()
