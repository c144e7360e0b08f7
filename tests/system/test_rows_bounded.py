"""state_dict() of embedding tables that admit, expire and evict has all that they go by: workers are
tests/system/python/bounded_worker.py. A job that goes on from one has the bits of a job that was never interrupted."""
import subprocess
import unittest

from jobs import ROOT, Psrun, first
from test_python import FAST, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/bounded_worker.py")
SAME = """
import sys, torch
a, b = (torch.load(path) for path in sys.argv[1:])
print(sorted(a) == sorted(b) and all(torch.equal(a[key], b[key]) for key in a), len(a["ids"]), *sorted(a))
"""


class Bounded(PythonTest):
    def run_job(self, name, begin, end, *words, servers=2):
        argv = self.psrun_argv("--overwrite", "-s", servers, "-w", 2, *FAST)
        done = Psrun.run([*argv, "--", PYTHON, WORKER, self.path(name), str(begin), str(end), *words], env=environment(),
                         stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout)

    def compare(self, a, b):
        return subprocess.run([PYTHON, "-c", SAME, self.path(a), self.path(b)], text=True, capture_output=True,
                              env=environment(), check=True).stdout.split()

    def test_a_state_dict_goes_on(self):
        # Expire 10 looks at half of the partitions in a step: which ones depends on the step's number.
        for words in first(2, (["admit=2", "expire=10"], ["max_bytes=76800", "evict=1"], ["admit=3"], ["expire=6"])):
            with self.subTest(words=words):
                self.run_job("whole", 0, 31, *words)
                self.run_job("parts", 0, 15, *words, servers=1)
                self.run_job("parts", 15, 31, *words)
                same, n, *keys = self.compare("whole", "parts")
                self.assertEqual((same, keys), ("True", ["ages", "candidates", "clock", "ids", "state", "steps", "weight"]), n)
                self.assertGreater(int(n), 40)

    def test_where_all_ids_wait_for_admission(self):
        """There are no rows yet."""
        for name, begin, end, servers in (("whole", 0, 12, 2), ("parts", 0, 5, 1), ("parts", 5, 12, 2)):
            self.run_job(name, begin, end, "admit=6", servers=servers)
        same, n, *_ = self.compare("whole", "parts")
        self.assertEqual(same, "True")
        self.assertGreater(int(n), 20)

    def test_in_a_job_that_has_other_rows(self):
        words = ["admit=2", "expire=10"]
        self.run_job("whole", 0, 25, *words)
        self.run_job("parts", 0, 15, *words)
        self.run_job("parts", 15, 25, *words, "earlier=4")
        self.assertEqual(self.compare("whole", "parts")[0], "True")


if __name__ == "__main__":
    unittest.main()
