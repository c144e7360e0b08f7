"""Parameters that come into a job later: groups, another Optimizer, layers that are unfrozen. Cases are in
tests/system/python/growing_cases.py; PyTorch's optimizers with Gloo's sums are the yardstick."""
import unittest

from jobs import ROOT, first, nightly
from test_python import FAST, PYTHON, WHY_NOT, PythonTest

CASES = str(ROOT / "tests/system/python/growing_cases.py")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Growing(PythonTest):
    def case(self, *words, **how):
        how.setdefault("servers", 1)
        return self.job(*words, program=(PYTHON, CASES), **how)

    def test_grows_with_pytorchs_bits(self):
        of_one, of_all = ["exchange.name=none"], ["exchange.name=gloo"]
        for how, rule, servers, workers, words in first(2, (
                ("groups", "adam", 2, 2, []), ("unfreeze", "momentum", 0, 2, of_all), ("unfreeze", "adam", 1, 2, []),
                ("groups", "own", 1, 2, []), ("groups", "momentum", 1, 2, ["exchange.shm=off"]),
                ("groups", "adam", 0, 1, of_one), ("unfreeze", "own", 0, 2, of_all),
                ("groups", "momentum", 1, 2, ["exchange.levels=2"]))):
            with self.subTest(how=how, rule=rule, servers=servers, words=words):
                text = self.case("grown", how, rule, servers=servers, workers=workers, settings=[*FAST, *words])
                steps = ["3"] * 2 + ["5"] * 2 + ["7"] * 4 if rule != "momentum" else []
                for word in ("weights", "after"):
                    for rank, said in enumerate(self.said(text, word, workers)):
                        theirs, ours, *found = said.split()
                        self.assertEqual(ours, theirs)
                        self.assertEqual(found, steps if (word, rank) == ("weights", 0) else found)

    def test_clipping_scaling_codecs(self):
        for word, most in first(1, (("int8", 0.01), ("clip", 1e-6), ("scale", 1e-6), ("fp16", 1e-4), ("topk", 0.05))):
            with self.subTest(word=word):
                one, other = self.said(self.case("approximate", word), "weights")
                self.assertEqual(one, other)
                self.assertLess(float(one.split()[1]), most)

    def test_another_optimizer(self):
        self.assertEqual(self.case("another_optimizer").count(": weights True"), 4)

    def test_moments_of_what_was_frozen_when_they_were_loaded(self):
        self.assertEqual(self.case("frozen_at_load").count(": weights True"), 2)

    def test_what_was_read_before_goes_on(self):
        self.assertEqual(self.case("old_weights").count(": fine"), 2)

    def test_saved_for_pytorch(self):
        self.assertEqual(self.case("saved").count(": fine"), 2)

    def test_ranks_that_differ(self):
        for what in first(2, ("alone", "shape", "options", "end")):
            self.assertEqual(self.case("differs", what, code=1).count(": refused"), 2)

    @nightly
    def test_ranks_that_differ_where_no_server_sees_it(self):
        for words, servers in ((["exchange.name=gloo"], 0), (["exchange.levels=2"], 1)):
            text = self.case("differs", "unseen", code=1, servers=servers, settings=[*FAST, "net.step_timeout_ms=6000", *words])
            self.assertEqual(text.count(": refused"), 2)

    def test_refusals(self):
        self.assertEqual(self.case("refusals", code=1).count(": fine"), 2)


if __name__ == "__main__":
    unittest.main()
