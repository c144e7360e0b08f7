"""Embedding tables on the servers, by the Python package, against PyTorch's own sparse modules and optimizers."""
import hashlib
import subprocess
import unittest
from pathlib import Path

import cuts
from jobs import ROOT, Psrun, first
from test_python import FAST, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/rows_worker.py")


class RowsTest(PythonTest):
    def rows(self, *case, **how):
        return self.job(*case, program=(PYTHON, WORKER), **how)


class Steps(RowsTest):
    def test_same_steps_as_pytorch(self):
        # Two units for each of three steps; rowwise_adagrad may change an element by sqrt(dim) times the rate.
        for rule, most in first(2, (("sgd", 0), ("sparse_adam", 6), ("adagrad", 6), ("rowwise_adagrad", 8))):
            with self.subTest(rule=rule):
                text = self.rows("steps", rule, self.path("rows"), workers=2, servers=2)
                for line in self.said(text, "ulps"):
                    worst, same = line.split()
                    self.assertLessEqual(float(worst), most, text)
                    self.assertEqual(same == "True", most == 0 or float(worst) == 0, text)
                self.assertEqual(self.said(text, "ids"), ["True", "True"])

    def test_same_file_for_any_servers(self):
        # Each table by another codec. Shared memory and one server; two without it, connections that are cut, and rows
        # that are asked for ahead.
        outcomes = set()
        for servers, words in first(2, ((1, []), (2, ["cut", "ahead"]), (3, ["ahead"]))):
            file = self.path(f"rows{servers}")
            shm = ["exchange.shm=off"] if "cut" in words else []
            if shm and cuts.why_not():
                self.skipTest(cuts.why_not())
            text = self.rows("grown", "adagrad", file, *words, servers=servers, settings=[*FAST, *shm])
            outcomes.add((hashlib.sha256(Path(file).read_bytes()).hexdigest(), self.said(text, "hash", 1)[0]))
            self.assertEqual("connection-mended" in text, bool(shm), text)
        self.assertEqual(len(outcomes), 1)

    def test_at_their_own_pace(self):
        # The record gives another run the same bits, rows that are asked for ahead among them.
        outcomes = set()
        for key in ("log", "replay"):
            text = self.rows("grown", "adagrad", self.path(key), "ahead", servers=2,
                             settings=[*FAST, "rows.policy=asp", f"server.rows_{key}={self.path('order')}"])
            outcomes.add((Path(self.path(key)).read_bytes(), self.said(text, "hash", 1)[0]))
        self.assertEqual(len(outcomes), 1)

    def test_goes_on_from_a_state(self):
        text = self.rows("resume", "sparse_adam", servers=2)
        self.assertEqual([self.said(text, word) for word in ("same", "plain", "taken")],
                         [["True True"] * 2, ["True"] * 2, ["True"] * 2])

    def test_a_step_without_ids(self):
        for far in self.said(self.rows("no_ids", servers=1), "far"):
            self.assertLess(float(far), 1e-6)

    def test_goes_back_within_the_job(self):
        text = self.rows("back", servers=2)
        self.assertEqual((self.said(text, "back"), self.said(text, "loaded")), (["True 2"] * 2, ["True True"] * 2))

    def test_a_state_has_the_rows(self):
        files = []
        for servers, words in ((2, ["kill"]), (1, [])):
            files.append(self.path(f"rows{servers}"))
            argv = self.psrun_argv("--overwrite", "--verbose", "-s", servers, "-w", 2, "--restarts", 1, *FAST)
            done = Psrun.run([*argv, "--", PYTHON, WORKER, "dies", "sparse_adam", files[-1], *words], env=environment(),
                             stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual("the job goes on from commit 2" in done.stdout, bool(words), done.stdout)
        self.assertEqual(Path(files[0]).read_bytes(), Path(files[1]).read_bytes())


class Misuse(RowsTest):
    def test_one_sentence_each(self):
        self.assertEqual(self.said(self.rows("misuse", servers=1), "misuse"), ["ok"] * 2)

    def test_tables_that_differ(self):
        for what, words in first(1, (("dim", "dim: 4 and 8"), ("optimizer", "optimizer: adagrad and sgd"), ("seed", "seed: 0 and 1"),
                                     ("codec", "codec: none and int8"))):
            with self.subTest(what=what):
                text = self.rows("differ", what, code=1, servers=1)
                self.assertIn(f"worker 0 and worker 1 differ in embedding table 0, user: {words}", text)

    def test_what_only_ranks_know_differs(self):
        for what, words in first(1, (("mode", "mode: 'sum' and 'mean'"), ("padding_idx", "padding_idx: None and 1"))):
            with self.subTest(what=what):
                text = self.rows("differ", what, code=1, servers=1)
                self.assertIn(f"rank 0 and rank 1 differ in table 'user': {words}", text)


if __name__ == "__main__":
    unittest.main()
