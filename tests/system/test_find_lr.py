"""psrun --find-lr: the learning rate range test, its table, its plot, and what it refuses."""
import math
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

from jobs import DIGITS, ROOT, JobTest
from psrunlib import find_lr
from psrunlib.errors import JobError


class Curves(unittest.TestCase):
    def test_the_average_of_a_constant_is_the_constant(self):
        for value in find_lr.smooth([3.0] * 50):
            self.assertAlmostEqual(value, 3.0, 12)

    def test_half_of_the_way_of_a_known_curve(self):
        falls = [1 / (1 + math.exp((i - 40) / 3)) for i in range(80)]
        self.assertEqual(find_lr.halfway(falls), 40)
        # Noise at the low rates, and what comes after the lowest loss, are not the way.
        self.assertEqual(find_lr.halfway([1.0, 0.4, 1.0, 1.2] + falls + [5.0, 0.1, 9.0]), 44)
        self.assertIsNone(find_lr.halfway([float(i) for i in range(80)]))
        self.assertIsNone(find_lr.halfway([1.0] * 3))
        self.assertIsNone(find_lr.halfway([]))

    def test_the_curve_ends_where_training_diverges(self):
        self.assertEqual(len(find_lr.smooth([2.0] * 30 + [1e30] + [2.0] * 30)), 31)
        self.assertEqual(len(find_lr.smooth([2.0] * 30 + [None, 2.0])), 30)
        self.assertEqual(len(find_lr.smooth([2.0] * 30 + [math.nan, 2.0])), 30)
        # Losses may be negative.
        self.assertEqual(len(find_lr.smooth([-2.0 - i for i in range(30)])), 30)

    def test_losses_that_the_disk_had_no_room_for(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "metrics.jsonl")
            path.write_text('{"step":1,"loss_mean":3}\n{"step":2,"loss_mean":null}\n{"step":2,"test_loss":1}\n')
            self.assertEqual(find_lr.read_losses(path), [3, None])
            path.write_text('{"step":1,"loss_mean":3}\n{"step":3,"loss_mean":2}\n')
            with self.assertRaisesRegex(JobError, "lacks the losses of some steps"):
                find_lr.read_losses(path)

    def test_the_plot(self):
        self.assertEqual(find_lr.ticks(0.0269, 1.41), [0.5, 1])
        rates, losses = [10 ** (i / 20 - 6) for i in range(140)], [1.0] * 100 + [1 - i / 50 for i in range(20)]
        losses += [1e30] * 20  # training diverges
        for made in (losses, [1.0] * 140, [0.0] * 140):
            smoothed = find_lr.smooth(made)
            best = find_lr.halfway(smoothed)
            texts = [t.text for t in ElementTree.fromstring(find_lr.draw(rates, made, smoothed, best)).iter()
                     if t.get("text-anchor") == "end" and not t.get("class")]
            self.assertTrue(2 <= len(set(texts)) == len(texts) <= 7, texts)
            low, high = find_lr.bounds(made, smoothed, best)
            self.assertTrue(low < min(made) and high < 2, (low, high))
            shown = list(find_lr.table(rates, made, smoothed, best))
            self.assertEqual((max(map(len, shown)) <= 60, any(s.endswith("<- suggested") for s in shown)),
                             (True, best is not None))


class Jobs(JobTest):
    def find(self, *args, **options):
        return self.psrun("--find-lr", DIGITS, "train.steps=60", *args, **options)

    def suggested(self, text):
        line = text.strip().splitlines()[-1]
        self.assertIn("suggested: optimizer.lr=", line)
        return float(line.split("optimizer.lr=")[1].split(";")[0])

    def test_a_rate_is_suggested_and_drawn(self):
        text = self.find("-s", 1, "-w", 2, "optimizer.lr=1e-5")
        rate = self.suggested(text)
        self.assertTrue(1e-5 < rate < 1, rate)
        self.assertIn("learning rate", text)
        self.assertNotIn("throughput", text)  # the summary of a run
        drawn = ElementTree.parse(self.path("out", "find-lr.svg"))
        self.assertEqual(drawn.getroot().get("aria-label"), "loss by learning rate")
        # The next run in the folder is another one.
        self.psrun("-m", "single", DIGITS, "train.steps=1", "--overwrite")
        self.assertFalse(Path(self.path("out", "find-lr.svg")).exists())

    def test_each_step_has_its_rate(self):
        # An elastic job has checkpoints always; the folder of a job's checkpoints gets none of this one.
        self.find("-s", 1, "-w", 1, "optimizer.lr=0.001", "train.steps=41", "job.workers=1..2",
                  f"checkpoint.path={self.path('kept')}")
        self.assertFalse(Path(self.path("kept")).exists())
        rates = [r["lr"] for r in self.records() if "lr" in r]
        for i, rate in enumerate(rates):
            self.assertAlmostEqual(rate / (0.001 * 10 ** (i / 10)), 1, 6)

    def test_a_job_that_would_stop_early_goes_on(self):
        self.suggested(self.find("-m", "single", "train.stop_after=5",
                                 "optimizer.groups=[{match: ['*.bias'], weight_decay: 0}]"))

    def test_mistakes_are_named(self):
        for setting, says in (("optimizer.lr=20", "between 0 and 10"), ("optimizer.lr=x", "needs a number"),
                              ("train.steps=5", "at least 20 steps"), ("sync.policy=asp", "sync.policy=bsp"),
                              ("optimizer.groups=[{match: [fc1*], lr: 0.1}]", "lr of their own")):
            self.assertIn(says, self.find("-s", 1, "-w", 2, setting, code=1))
        self.assertIn("add sync.quorum=0", self.find("-s", 1, "-w", 2, "sync.policy=local", "sync.quorum=1", code=1))
        for option, says in (("--dry-run", "--dry-run shows the commands of a job"),
                             ("--describe", "not allowed with argument --find-lr")):
            self.assertIn(says, self.find(option, code=1 if option == "--dry-run" else 2))
        clicks = self.psrun("--find-lr", "-s", 1, ROOT / "configs/criteo-dlrm.yaml", code=1)
        self.assertIn("the tables of embedding_bag have an lr of their own", clicks)
        self.assertFalse(Path(self.path("out")).exists())
        self.assertIn("--find-lr is not for a program", self.psrun("--find-lr", "--", "true", code=1))


if __name__ == "__main__":
    unittest.main()
