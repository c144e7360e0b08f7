"""The Optimizer of the Python package for every script: several of them in one job. Cases are in
tests/system/python/optimizer_cases.py; DDP over Gloo is the yardstick."""
import unittest

from jobs import ROOT, first, nightly
from test_python import FAST, PYTHON, WHY_NOT, PythonTest

CASES = str(ROOT / "tests/system/python/optimizer_cases.py")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Several(PythonTest):
    def case(self, *words, **how):
        how.setdefault("servers", 1)
        return self.job(*words, program=(PYTHON, CASES), **how)

    def test_a_gan_has_ddps_bits(self):
        for how, servers in first(2, (("at once", 2), ("overlap", 1), ("view", 1))):
            for said in self.said(self.case("gan", how, servers=servers), "weights"):
                words = said.split()
                self.assertEqual(words[:2], words[2:])

    def test_a_gan_with_batch_norm(self):
        text = self.case("gan_of_norms")
        for said in self.said(text, "weights"):
            words = said.split()
            self.assertEqual(words[:2], words[2:])
        (theirs, _), ours = zip(*(said.split() for said in self.said(text, "buffers")))
        self.assertEqual([theirs] * 2, list(ours))  # DDP's rank 0

    def test_without_servers(self):
        for workers, exchange in first(1, ((2, "gloo"), (1, "none"))):
            text = self.case("gan", "at once", workers=workers, servers=0, settings=[*FAST, f"exchange.name={exchange}"])
            for said in self.said(text, "weights", workers):
                self.assertEqual(said.split()[:2], said.split()[2:])

    def test_clipping_scaling_codecs(self):
        for how, most in first(2, (("clip", 1e-5), ("codec", 0.1), ("scale", 1e-5), ("topk", 0.5))):
            with self.subTest(how=how):
                one, other = self.said(self.case("gan_whole", how), "weights")
                self.assertEqual(one, other)
                self.assertLess(float(one.split()[2]), most)

    def test_save_and_load(self):
        self.case("gan_saved", self.folder, "save")
        loaded = self.said(self.case("gan_saved", self.folder, "load"), "weights")
        self.assertEqual(loaded, self.said(self.case("gan_saved", self.folder, "whole"), "weights"))

    def test_a_step_costs_nothing_of_the_others(self):
        for shm in first(1, ("auto", "off")):
            text = self.case("gan_bytes", settings=[*FAST, f"exchange.shm={shm}"])
            self.assertEqual(text.count(": fine"), 2, text)

    def test_another_order_of_steps(self):
        for servers, word, code in first(1, ((0, "exchange.name=gloo", 0), (1, "exchange.levels=2", 1), (1, "exchange.shm=auto", 1))):
            text = self.case("other_order", code=code, servers=servers, settings=[*FAST, word])
            self.assertEqual(text.count(": refused"), 2, text)

    def test_own_rules_have_ddps_bits(self):
        for rule in first(3, ("class", "mixed", "free", "doubles", "amsgrad", "own", "name", "maker")):
            with self.subTest(rule=rule):
                for said in self.said(self.case("own_rule", rule), "weights"):
                    self.assertEqual(*said.split())

    @nightly
    def test_own_rules_of_a_gan(self):
        for said in self.said(self.case("own_rules_of_a_gan"), "weights"):
            self.assertEqual(said.split()[:2], said.split()[2:])

    def test_doubles_of_a_gan(self):
        for which in first(2, ("first", "both", "second")):
            with self.subTest(which=which):
                for said in self.said(self.case("doubles_of_a_gan", which), "weights"):
                    self.assertEqual(said.split()[:2], said.split()[2:])

    def test_uneven_inputs_have_ddps_bits(self):
        for words in first(3, (("3", "all", "apart"), ("5", "some", "own"), ("3", "some", "doubles"), ("3", "some", "servers"),
                               ("3", "all", "servers"), ("5", "all", "own"), ("5", "all", "doubles"))):
            with self.subTest(words=words):
                text = self.case("uneven", *words)
                for said in self.said(text, "weights"):
                    self.assertEqual(*said.split())
                self.assertEqual(*self.said(text, "buffers"))

    def test_saved_before_its_first_step(self):
        self.case("saved_before_its_first_step", self.folder, "save")
        self.assertEqual(self.case("saved_before_its_first_step", self.folder, "load").count(": fine"), 2)

    def test_uneven_inputs_of_a_gan(self):
        self.assertEqual(*self.said(self.case("uneven_gan"), "weights"))

    def test_uneven_inputs_refused(self):
        for case in ("uneven_from_the_start", "uneven_refused"):
            self.assertEqual(self.case(case, code=1).count(": fine"), 2)

    def test_refusals_of_own_rules(self):
        self.assertEqual(self.case("own_refusals", code=1).count(": refused"), 2)

    def test_refusals(self):
        self.assertEqual(self.case("refusals").count(": fine"), 2)


if __name__ == "__main__":
    unittest.main()
