"""schedule.name plateau: the learning rate follows the evaluations as PyTorch's ReduceLROnPlateau does."""
import json
import subprocess
import unittest

from jobs import DIGITS, first, sizes
from test_bench import TORCH, needs_torch
from test_checkpoints import CheckpointTest

SMALL = ["data.train=0-239", "data.batch=20", "train.eval_every=1", "train.epochs=12", "train.log_every=1"]
PLATEAU = [*SMALL, "schedule.name=plateau", "schedule.patience=0", "schedule.threshold=0.15",
           "schedule.factor=0.3", "schedule.cooldown=1", "optimizer.lr=0.02"]
SGD = "optimizer={name: sgd, momentum: 0.9, groups: [{match: ['*.bias'], lr: 0.01}]}"
ADAMW = "optimizer={name: adamw, groups: [{match: ['conv*'], lr: 0.01, weight_decay: 0}]}"
WHERE = (("single", 1, 1), ("ps", 1, 2), ("ps", 3, 2), ("allreduce", 1, 2))
BY_TORCH = """
import json, sys, torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.02)
s = ReduceLROnPlateau(o, **json.loads(sys.argv[1]))
for value in json.loads(sys.argv[2]):
    o.step(); s.step(value); print(repr(o.param_groups[0]["lr"]))
"""


class PlateauTest(CheckpointTest):
    def train(self, out, where, *settings, args=()):
        mode, servers, workers = where
        return self.psrun(*sizes(mode, servers, workers), *args, DIGITS, *settings, out=out)

    def lines(self, out):
        """Returns the rates of the steps before each evaluation, and the evaluations."""
        rates, evaluations = [[]], []
        for record in self.records(out):
            if "test_loss" in record:
                evaluations.append(record)
                rates.append([])
            else:
                rates[-1].append(record["lr"])
        return rates, evaluations


class Rates(PlateauTest):
    def check(self, out, options, metric="test_loss"):
        rates, evaluations = self.lines(out)
        values = [e[metric] for e in evaluations]
        by_torch = subprocess.run([TORCH, "-c", BY_TORCH, json.dumps(options), json.dumps(values)],
                                  check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        wanted = [0.02, *map(float, by_torch)]
        for epoch, of_epoch in enumerate(rates[:-1]):
            self.assertEqual(set(of_epoch), {wanted[epoch]}, (out, epoch))
        self.assertLess(wanted[-2], 0.02 * options["factor"], "the rate fell less than twice")

    @needs_torch
    def test_are_pytorchs(self):
        for i, where in enumerate(WHERE):
            self.train(f"loss-{i}", where, *PLATEAU)
            self.check(f"loss-{i}", {"patience": 0, "threshold": 0.15, "factor": 0.3, "cooldown": 1})
        self.train("accuracy", WHERE[1], *PLATEAU, "schedule.metric=accuracy", "schedule.min_lr=0.0005",
                   "schedule.threshold=0.05", "schedule.cooldown=0", "schedule.patience=1")
        self.check("accuracy", {"mode": "max", "patience": 1, "threshold": 0.05, "factor": 0.3, "min_lr": 0.0005},
                   "test_accuracy")

    def test_reach_every_weight(self):
        """No evaluation can be better, so the rate is halved after each epoch, as with schedule.name=step."""
        plateau = ["schedule={name: plateau, patience: 0, threshold: 1, factor: 0.5}"]
        for optimizer in first(1, (ADAMW, SGD)):
            for i, where in enumerate(WHERE):
                steps = 12 // where[2]
                step = [f"schedule={{name: step, step_size: {steps}, gamma: 0.5}}"]
                for out, schedule in (("plateau", plateau), ("step", step)):
                    self.train(f"{out}-{i}", where, *SMALL, optimizer, *schedule, "optimizer.lr=0.05",
                               args=("--overwrite",))
                self.assertEqual(self.weights(f"plateau-{i}"), self.weights(f"step-{i}"), (optimizer, where))
            self.assertEqual(self.weights("plateau-1"), self.weights("plateau-2"), optimizer)
            self.assertEqual(self.weights("plateau-1"), self.weights("plateau-3"), optimizer)
            for i, more in enumerate(first(1, ("exchange.levels=2", "exchange.shm=off", "optimizer.clip_norm=1e9"))):
                self.train(f"more-{i}", WHERE[2], *SMALL, optimizer, *plateau, "optimizer.lr=0.05", more,
                           args=("--overwrite",))
                self.assertEqual(self.weights("plateau-1"), self.weights(f"more-{i}"), (optimizer, more))

    def test_rise_in_a_warm_up_first(self):
        self.train("out", WHERE[1], *PLATEAU, "schedule.warmup=10")
        rates, _ = self.lines("out")
        self.assertEqual(rates[0], [0.02 * (i / 10) for i in range(6)])
        self.assertEqual(rates[1][4:], [0.02] * 2)


class GoesOn(PlateauTest):
    """The state of the schedule is part of every checkpoint."""

    SETTINGS = [*PLATEAU, "checkpoint.every=3", "checkpoint.keep=100", "optimizer.name=adamw"]

    def test_with_the_same_bits(self):
        for mode, servers, workers in first(1, (("ps", 2, 2), ("allreduce", 0, 2), ("single", 0, 1))):
            job = (mode, servers, workers, *self.SETTINGS, f"train.steps={72 // workers}")
            steps = first(2, [15, 18, 6, 33])  # an epoch has 6 steps, with one worker 12
            self.run_whole(steps, *job)
            self.check_from(steps, job, ((None, None),))
            subprocess.run(["rm", "-r", self.path("whole")], check=True)


class Refusals(PlateauTest):
    def test_say_what_would_mend_it(self):
        for settings, words in (
                (["train.eval_every=0"], "train.eval_every is 0: set it to 1"),
                (["sync={policy: local, local_steps: 2}"], "plateau needs sync.policy bsp"),
                (["sync={policy: ssp, staleness: 2}"], "plateau needs sync.policy bsp"),
                (["schedule.factor=1"], "schedule.factor: has to be below 1"),
                (["data.kind=synthetic", "data.train=", "data.test_samples=0"], "the test split has no samples")):
            text = self.psrun("-w", 2, DIGITS, *PLATEAU, *settings, code=1)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
