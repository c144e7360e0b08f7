"""Frozen parameters, parameter groups and the weights' moving average, in whole jobs."""
import os
import shutil
import unittest
from array import array

from jobs import BASICNET, read_safetensors
from test_checkpoints import CheckpointTest

JOB = ["train.epochs=1", "train.seed=3", "data.batch=20", "data.train=0-239", "train.eval_every=1", "train.log_every=4",
       "data.test=0-99"]
MODES = (("ps", 2, 2), ("allreduce", 0, 2), ("ps", 1, 1), ("single", 0, 1))


class FineTuneTest(CheckpointTest):
    def train(self, out, mode, servers, workers, *settings, **more):
        return self.run_job(out, mode, servers, workers, *JOB, *settings, **more)

    def model(self, out, name="model.safetensors"):
        return {k: v for k, (_, _, v) in read_safetensors(self.path(out, name))[0].items()}


class Freeze(FineTuneTest):
    def setUp(self):
        super().setUp()
        self.train("first", "single", 0, 1, "train.seed=7")
        self.first = self.model("first")
        self.init = f"train.init={self.path('first', 'model.safetensors')}"

    def test_frozen_parameters_stay_and_the_others_train(self):
        weights = {}
        for mode, servers, workers in MODES:
            self.train("out", mode, servers, workers, self.init, "train.freeze=[conv*, fc1.bias]",
                       "optimizer.name=adamw", "exchange.shm=off")
            trained = self.model("out")
            for name, values in trained.items():
                frozen = name.startswith("conv") or name == "fc1.bias"
                self.assertEqual(values == self.first[name], frozen, (mode, name))
            weights[mode, workers] = self.weights("out")
            shutil.rmtree(self.path("out"))
        self.assertEqual(weights["ps", 2], weights["allreduce", 2])
        self.assertEqual(weights["ps", 1], weights["single", 1])

    def test_their_gradients_do_not_travel(self):
        settings = [self.init, "exchange.shm=off", "train.steps=30", "train.epochs=100", "train.eval_every=0"]
        sizes = {name: 4 * len(values) for name, values in self.first.items()}
        left = sizes["fc2.weight"] + sizes["fc2.bias"]
        for mode, servers, workers in MODES[:2]:
            self.train("whole", mode, servers, workers, *settings)
            self.train("frozen", mode, servers, workers, *settings, "train.freeze=[conv*, fc1.*]")
            for key in ("bytes_sent_per_step", "bytes_received_per_step"):
                whole, frozen = (self.summary(out)[key] for out in ("whole", "frozen"))
                self.assertGreater(whole, sum(sizes.values()) * 0.9)
                self.assertLess(frozen, left * 1.1 + 4000, (mode, key))
            shutil.rmtree(self.path("whole"))
            shutil.rmtree(self.path("frozen"))

    def test_goes_on_from_a_checkpoint(self):
        self.check_resume("ps", 2, 2, self.init, "train.freeze=[conv1.*, fc2.weight]", "optimizer.name=adamw",
                          "train.ema=0.9", steps=[10])
        self.check_resume("allreduce", 0, 2, self.init, "train.freeze=[conv1.*]", "optimizer.name=rmsprop",
                          "optimizer.momentum=0.9", "train.ema=0.9", steps=[5])

    def test_checkpoints_have_no_state_of_them(self):
        self.train("out", "ps", 1, 1, self.init, "train.freeze=[conv*]", "optimizer.name=adagrad",
                   "checkpoint.every=6", "train.ema=0.9")
        states = self.model("out", "checkpoints/step-6/optimizer.safetensors")
        self.assertEqual({name.split(".")[0] for name in states}, {"fc1", "fc2"})
        self.assertEqual({name.split(".")[-1] for name in states}, {"sum", "ema", "step"})
        self.assertEqual(self.model("out", "checkpoints/step-6/model.safetensors").keys(), self.first.keys())

    def test_mistakes_are_named(self):
        said = self.train("out", "ps", 1, 1, "train.freeze=[conv3.*]", code=1)
        self.assertIn("train.freeze: 'conv3.*' matches no parameter of the model; it has conv1.weight, ", said)
        said = self.train("out", "ps", 1, 1, "train.freeze=['*']", code=1)
        self.assertIn("train.freeze: all parameters of the model are frozen", said)


class Groups(FineTuneTest):
    def test_each_group_has_its_numbers(self):
        sgd = ["optimizer.name=sgd", "optimizer.momentum=0", "schedule.name=constant", "train.steps=1"]
        groups = "[{match: [fc1.*], lr: 0.2}, {match: ['*.bias', fc1.weight], lr: 0}]"
        self.train("start", "single", 0, 1, *sgd, "optimizer.lr=0")
        self.train("plain", "ps", 2, 2, *sgd, "optimizer.lr=0.1")
        first, plain = self.model("start"), self.model("plain")
        for mode, servers, workers in MODES[:2]:
            self.train("out", mode, servers, workers, *sgd, "optimizer.lr=0.1", f"optimizer.groups={groups}")
            for name, values in self.model("out").items():
                factor = 2 if name.startswith("fc1.") else 0 if name.endswith("bias") else 1
                for at, begin, one in zip(values, first[name], plain[name]):
                    self.assertAlmostEqual(at - begin, factor * (one - begin), delta=1e-6, msg=(mode, name))
            shutil.rmtree(self.path("out"))

    def test_the_same_numbers_give_the_same_bits(self):
        adamw = ["optimizer.name=adamw", "optimizer.lr=0.002", "schedule={name: onecycle}"]
        self.train("plain", "ps", 2, 2, *adamw)
        self.train("groups", "ps", 1, 2, *adamw,
                   "optimizer.groups=[{match: '*.weight', lr: 0.002, weight_decay: 0.01}]")
        self.assertEqual(self.weights("plain"), self.weights("groups"))


class Average(FineTuneTest):
    DECAY = 0.8

    def by_hand(self, out):
        """Averages the weights after each step like torch.optim.swa_utils.AveragedModel."""
        average = None
        names = sorted(os.listdir(self.path(out, "checkpoints")), key=lambda n: int(n.split("-")[1].split(".")[0]))
        for name in names:
            weights = self.model(out, f"checkpoints/{name}")
            if average is None:
                average = weights
            for key, values in average.items():
                average[key] = array("f", [a + (1 - self.DECAY) * (w - a) for a, w in zip(values, weights[key])])
        return average

    def test_is_pytorchs(self):
        files = {}
        for mode, servers, workers in MODES[:3]:
            self.train("out", mode, servers, workers, f"train.ema={self.DECAY}", "train.save_every=1")
            files[mode, workers] = self.model("out", "ema.safetensors")
            wanted = self.by_hand("out")
            self.assertEqual(files[mode, workers].keys(), wanted.keys())
            for name, values in files[mode, workers].items():
                for a, b in zip(values, wanted[name]):
                    self.assertAlmostEqual(a, b, delta=2e-7 * max(1, abs(b)))
            shutil.rmtree(self.path("out"))
        self.assertEqual(files["ps", 2], files["allreduce", 2])

    def test_changes_nothing_and_is_evaluated_as_any_weights(self):
        self.train("plain", "ps", 1, 2, config=BASICNET)
        self.train("out", "ps", 1, 2, "train.ema=0.9", config=BASICNET)
        self.assertEqual(self.weights("plain"), self.weights("out"))
        self.assertFalse(os.path.exists(self.path("plain", "ema.safetensors")))
        self.train("eval", "single", 0, 1, "train.epochs=0", f"train.init={self.path('out', 'ema.safetensors')}", config=BASICNET)
        self.assertGreater(self.summary("eval")["test_accuracy"], 0.2)

    def test_goes_where_the_job_goes_on_without_it(self):
        self.train("out", "single", 0, 1, "train.ema=0.9", "checkpoint.every=2", "train.stop_after=4", code=75)
        self.assertTrue(os.path.exists(self.path("out", "ema.safetensors")))
        self.psrun("--resume", self.path("out"), "train.ema=0", "train.stop_after=0")
        self.assertFalse(os.path.exists(self.path("out", "ema.safetensors")))


if __name__ == "__main__":
    unittest.main()
