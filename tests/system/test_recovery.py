"""What the death of a process costs: bench/recovery measures it."""
import json
import subprocess
import sys
import unittest

from jobs import BIN, DIGITS, ROOT
from restarting import RestartTest


class Bench(RestartTest):
    def bench(self, *args, code=0):
        done = subprocess.run([sys.executable, ROOT / "bench/recovery", "--build-dir", BIN.parent,
                               "--json", self.path("recovery.json"), *map(str, args), DIGITS],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def report(self):
        with open(self.path("recovery.json"), encoding="utf-8") as f:
            return json.load(f)

    def test_stalls(self):
        text = self.bench("--kills", 2, "--minutes", 0, "--parts", "worker 1", "--parts", "server", "--seed", 3,
                          "-s", 1)
        report = self.report()
        self.assertEqual(report["stalls"]["all"]["kills"], 2)
        self.assertEqual(len(report["kills"]), 2)
        self.assertLessEqual({k["part"] for k in report["kills"]}, {"worker 1", "server 0"})
        self.assertTrue(all(k["seconds"] > 0 and k["from_step"] >= 0 for k in report["kills"]))
        self.assertRegex(text, r"all +2 +\d+\.\d\d +\d+\.\d\d +\d+ +\d+\n")
        self.assertIsNone(report["throughput"])

    def test_throughput(self):
        text = self.bench("--kills", 0, "--minutes", 0.1, "--rounds", 1, "--fault-every", 5, "-m", "allreduce")
        report = self.report()["throughput"]
        self.assertEqual(report["faults"], 1)
        self.assertGreater(report["alone"]["median"], 0)
        self.assertGreater(report["faulty"]["median"], 0)
        self.assertRegex(text, r"1 fault in 6 s, one per 5 s: [\d,]+ useful samples/s, [\d,]+ alone: [\d.]+ %")

    def test_what_makes_no_sense(self):
        self.assertIn("the job has none of them", self.bench("--parts", "worker 7", "--kills", 1, code=1))
        self.assertIn("no fault each 29 s fits in", self.bench("--minutes", 0.1, "--kills", 0, code=1))


if __name__ == "__main__":
    unittest.main()
