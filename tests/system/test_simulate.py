"""bench/simulate: the simulation has the times that the formulas give where they are exact, and the
command draws and refuses what it should."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from jobs import ROOT
from benchlib import simulator, stats

G, RATE = 25e6, 1e8
LINKS = simulator.Costs(rate=RATE, latency=0, message=0, byte=0, local=0)  # nothing else costs


def seconds(arrangement, n, servers=None, costs=LINKS):
    return simulator.seconds(arrangement, n, G, costs, servers)


class Formulas(unittest.TestCase):
    def test_the_ring(self):
        for n in (2, 3, 8, 100):
            self.assertAlmostEqual(seconds("ring", n), stats.exchange_seconds(n, 0, G, RATE)["ring"])

    def test_servers_take_the_busiest_links_time_and_the_last_chunks(self):
        for n, k in ((4, 4), (8, 4), (16, 4), (16, 16), (32, 8)):
            links = stats.exchange_seconds(n, k, G, RATE)["servers"]
            round_trip = n * simulator.chunk_bytes(G, k) / RATE
            self.assertGreaterEqual(seconds("ps", n, k), links)
            self.assertLessEqual(seconds("ps", n, k), links + 2 * round_trip, (n, k))

    def test_a_link_in_a_tree_carries_three_gradients_each_way(self):
        for n in (8, 64, 1000):
            self.assertGreater(seconds("tree", n), 3 * G / RATE)
            self.assertLess(seconds("tree", n), 4 * G / RATE)

    def test_two_levels_are_servers_among_the_hosts(self):
        self.assertAlmostEqual(seconds("two levels", 64, 8), seconds("ps", 8, 8))

    def test_latency_counts_in_every_turn_of_a_ring_and_once_each_way_with_servers(self):
        slow = simulator.Costs(rate=RATE, latency=1e-3, message=0, byte=0)
        self.assertAlmostEqual(seconds("ring", 8, costs=slow) - seconds("ring", 8), 14e-3)
        self.assertAlmostEqual(seconds("ps", 8, 8, slow) - seconds("ps", 8, 8), 2e-3, 4)

    def test_a_message_costs_a_server_time_for_every_worker(self):
        busy = simulator.Costs(rate=1e15, latency=0, message=1e-3, byte=0)
        self.assertGreater(simulator.seconds("ps", 64, 1000, busy, 1), 64e-3)

    def test_one_worker_exchanges_nothing(self):
        for arrangement in ("ring", "tree", "ps", "two levels"):
            self.assertEqual(seconds(arrangement, 1), 0)


class Command(unittest.TestCase):
    def simulate(self, out, *words):
        return subprocess.run([sys.executable, ROOT / "bench/simulate", "--out", out, *words], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)

    def test_it_writes_what_it_prints(self):
        with tempfile.TemporaryDirectory(prefix="pstrain-test-") as out:
            done = self.simulate(out, "--members", "2,16,64", "--mbit", "200")
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(os.path.join(out, "simulate.json"), encoding="utf-8") as f:
                rows = json.load(f)["simulated_ms"]
        self.assertEqual([r["members"] for r in rows], [2, 16, 64])
        self.assertIn(f"{rows[2]['ring']:,.1f}", done.stdout)

    def test_wrong_numbers_are_named(self):
        for words in (("--members", "0"), ("--members", "x"), ("--mbit", "0")):
            with self.subTest(words=words), tempfile.TemporaryDirectory(prefix="pstrain-test-") as out:
                done = self.simulate(out, *words)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(words[0], done.stdout)


if __name__ == "__main__":
    unittest.main()
