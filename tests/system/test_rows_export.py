"""The memory of a rank that exports rows does not depend on the tables: workers are
tests/system/python/rows_export_worker.py."""
import unittest

from jobs import ROOT
from test_python import PYTHON, PythonTest

WORKER = str(ROOT / "tests/system/python/rows_export_worker.py")
DIM, FEW, MANY = 16, 1 << 16, 1 << 20
BYTES = (MANY - FEW) * (8 + 4 * DIM)


class RowsExport(PythonTest):
    def grown(self, rows):
        text = self.job(self.path(f"rows-{rows}"), rows, program=(PYTHON, WORKER), workers=1)
        return int(self.said(text, "grown", workers=1)[0])

    def test_memory_of_the_rank_that_exports(self):
        self.assertLess(self.grown(MANY) - self.grown(FEW), BYTES / 4)


if __name__ == "__main__":
    unittest.main()
