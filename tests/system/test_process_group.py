"""The process group "pstrain" of torch.distributed: jobs whose workers are tests/system/python/group_cases.py."""
import unittest

from jobs import first
from test_python import FAST, PythonTest, works

NEW = "import torch, sys; sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 6))"


class Calls(PythonTest):
    def fine(self, *case, workers=2, servers=1, **how):
        text = self.job(*case, workers=workers, servers=servers, **how)
        self.assertEqual(text.count(": fine"), workers, text)

    def test_every_call(self):
        for workers in first(2, (2, 3, 4, 5)):
            with self.subTest(workers=workers):
                self.fine("every_call", workers=workers)

    def test_by_tcp_with_keys(self):
        self.fine("every_call", workers=3, settings=["--curve", self.path("keys"), *FAST, "exchange.shm=off"])

    def test_large_sums_between_hosts_go_through_the_servers(self):
        self.fine("by_servers", settings=["exchange.shm=off"])

    def test_models_that_nothing_joins(self):
        if not works("import torch; assert torch.__version__[0] != '1'"):
            self.skipTest("PyTorch 1 tells nobody of steps")
        for how in first(2, ("auto_model", "ddp", "local")):
            with self.subTest(how=how):
                self.fine("trained_apart", how)

    def test_odd_calls_without_servers(self):
        self.fine("odd_calls", servers=0)

    def test_groups_are_made_again(self):
        self.fine("made_again")

    def test_monitored_barrier(self):
        self.fine("monitored", workers=3)

    def test_what_pytorch_builds_on_it(self):
        if not works(NEW):
            self.skipTest("this PyTorch has no fully_shard (2.6)")
        for workers in first(1, (2, 4)):
            with self.subTest(workers=workers):
                self.fine("sharded", workers=workers)

    def test_a_rank_sums_nothing(self):
        text = self.job("one_has_nothing", code=1, workers=2, servers=0)
        self.assertEqual(text.count(": fine"), 2, text)

    def test_a_rank_ends(self):
        text = self.job("left_alone", code=1, workers=3, servers=1)
        self.assertEqual(text.count(": fine"), 2, text)


if __name__ == "__main__":
    unittest.main()
