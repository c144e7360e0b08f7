"""sync.policy local: workers make steps by themselves, and the outer optimizer takes the mean change."""
import shutil
import unittest

from jobs import SMOOTH, first, nightly, read_safetensors
from test_checkpoints import CheckpointTest
from test_bench import TORCH, needs_torch

SETTINGS = ["train.epochs=2", "train.seed=3", "data.batch=20", "data.train=0-239", "train.eval_every=0",
            "train.log_every=4"]
LOCAL = ["sync.policy=local", "sync.local_steps=4"]
NESTEROV = ["sync.outer_lr=0.7", "sync.outer_momentum=0.9", "sync.outer_nesterov=true"]
ADAMW = ["optimizer.name=adamw", "optimizer.lr=0.002"]
STREAMING = ["sync.policy=local", "sync.local_steps=6", "sync.fragments=3", "sync.overlap=1"]
SGD = ["optimizer={name: sgd, lr: 0.05, weight_decay: 0}", "schedule.name=constant", "model.dropout=false"]


class LocalTest(CheckpointTest):
    def train(self, out, mode, servers, workers, *settings, **more):
        return self.run_job(out, mode, servers, workers, *SETTINGS, *settings, **more)

    def model(self, out, name="model.safetensors"):
        return read_safetensors(self.path(out, name))[0]

    def distance(self, a, b):
        """Returns the largest difference of two models' weights."""
        self.assertEqual(a.keys(), b.keys())
        return max(abs(x - y) for name in a for x, y in zip(a[name][2], b[name][2]))

    def given_rounds(self, *lines):
        log = self.file("given.log",
                        '{"policy":"backup","workers":3,"first":0,"total":4,"stretch":2}\n' + "\n".join(lines) + "\n")
        return f"sync.replay={log}"


class ClosedForms(LocalTest):
    def train(self, out, *job):
        return super().train(out, *job, SMOOTH)

    def test_unequal_shares_of_a_step_count_by_their_samples(self):
        batches = "data.batch=[10, 30]"
        self.train("bsp", "ps", 1, 2, *SGD, batches)
        self.train("local", "ps", 1, 2, *SGD, batches, "sync.policy=local", "sync.local_steps=1")
        self.assertLess(self.distance(self.model("bsp"), self.model("local")), 1e-5)

    def test_with_momentum_too_where_each_step_is_synchronised(self):
        """The mean of the momentum buffers is bsp's, because SGD is linear in the gradient."""
        momentum = ["optimizer={name: sgd, lr: 0.02, momentum: 0.9}", "schedule.name=constant", "model.dropout=false"]
        self.train("bsp", "ps", 1, 3, *momentum)
        self.train("local", "ps", 1, 3, *momentum, *LOCAL, "sync.local_after=1000")
        self.assertLess(self.distance(self.model("bsp"), self.model("local")), 1e-4)

    def test_a_worker_alone_trains_as_without_servers(self):
        for more in first(1, ([*SGD], [*ADAMW, "optimizer.clip_norm=0.5", "train.accumulate=2"])):
            self.train("alone", "single", 0, 1, *more)
            self.train("local", "ps", 2, 1, *more, *LOCAL)
            # AdamW enlarges a difference in a last bit where a gradient is small.
            bound = 1e-6 if more == SGD else 1e-4
            self.assertLess(self.distance(self.model("alone"), self.model("local")), bound)
            shutil.rmtree(self.path("alone"))
            shutil.rmtree(self.path("local"))

    @needs_torch
    def test_pytorch_by_hand(self):
        # DiLoCo. With this eps Adam does not enlarge a gradient's last bits.
        diloco = [*ADAMW, "optimizer.eps=0.001", *NESTEROV]
        for workers, more in first(4, [
                (3, [*SGD, *NESTEROV]), (2, diloco),
                (2, ["optimizer={name: sgd, lr: 0.02, momentum: 0.9}", "sync.local_after=3", "optimizer.clip_norm=1"]),
                # Streaming DiLoCo
                (3, [*diloco, *STREAMING, "sync.mixing=0.25", "sync.local_after=1"]),
                (2, [*SGD, *NESTEROV, *STREAMING]), (2, [*SGD, "sync.overlap=3", "sync.local_steps=5"]),
                (2, [*SGD, "sync.fragments=2"]), (2, [*SGD])]):
            # How 240 samples are distributed to 2 or 3 ranks, in batches of 20.
            keys = [*SETTINGS, SMOOTH, "schedule.name=constant", "model.dropout=false", *LOCAL, *more,
                    f"job.workers={workers}"]
            with self.subTest(workers=workers, more=more):
                self.run_job("local", "ps", 2, workers, *keys)
                self.by_hand(keys)
                ours, theirs = self.model("local"), read_safetensors(self.path("by-hand.safetensors"))[0]
                self.assertLess(self.distance(ours, theirs), 1e-5)
            shutil.rmtree(self.path("local"))

    def by_hand(self, keys):
        self.train_by_hand(TORCH, "local_by_hand.py", keys)


class SameBits(LocalTest):
    def test_servers_shards_chunks_and_all_reduce(self):
        job = [*ADAMW, *LOCAL, *NESTEROV]
        self.train("out", "ps", 1, 3, *job)
        for i, (mode, servers, *more) in enumerate((
                ("ps", 3, "server.shards=2", "exchange.chunk=16384", "exchange.shm=off"), ("allreduce", 0))):
            self.train(str(i), mode, servers, 3, *job, *more)
            self.assertEqual(self.weights("out"), self.weights(str(i)), (mode, servers, more))

    def test_fragments_on_servers_shards_and_chunks(self):
        job = [*ADAMW, *STREAMING, *NESTEROV]
        self.train("out", "ps", 1, 3, *job)
        for i, (servers, *more) in enumerate((
                (3, "server.shards=2", "exchange.chunk=16384", "exchange.shm=off"),
                (2, "train.eval_every=1", "train.save_every=1"))):
            self.train(str(i), "ps", servers, 3, *job, *more)
            self.assertEqual(self.model("out"), self.model(str(i)), (servers, more))

    def test_an_overlap_with_all_reduce(self):
        job = [*ADAMW, *LOCAL, *NESTEROV, "sync.overlap=2"]
        self.train("servers", "ps", 2, 3, *job)
        self.train("allreduce", "allreduce", 0, 3, *job)
        self.assertEqual(self.weights("servers"), self.weights("allreduce"))

    def test_fragments_are_synchronised_in_turn(self):
        self.train("out", "ps", 1, 2, *ADAMW, *LOCAL, "sync.fragments=2", "train.save_every=1", "train.steps=10")
        at = [self.flat(f"checkpoints/step-{i}.safetensors") for i in range(1, 11)]
        changed = [[a != b for a, b in zip(x, y)] for x, y in zip(at, at[1:])]
        middle = len(at[0]) / 2
        for step, change in enumerate(changed, 2):
            self.assertEqual(any(change), step % 2 == 0, step)
            if step in (2, 4, 6, 8):  # fragments 0, 1, 0, 1: the model's end is fragment 0
                first, last = change.index(True), len(change) - change[::-1].index(True)
                self.assertTrue(first > middle - 4096 if step % 4 else last < middle + 4096, (step, first, last))
        half = len(at[0]) // 2  # the job's end synchronises all fragments
        self.assertTrue(any(changed[-1][:half]) and any(changed[-1][half:]))

    def flat(self, name):
        """All weights, in the order of the model."""
        model = self.model("out", name)
        return [x for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")
                for x in model[f"{layer}.{kind}"][2]]

    def test_evaluation_changes_nothing(self):
        self.train("out", "ps", 1, 2, *ADAMW, *LOCAL, "sync.local_steps=5")
        said = self.train("eval", "ps", 1, 2, *ADAMW, *LOCAL, "sync.local_steps=5", "train.eval_every=1",
                          "train.save_every=3")
        self.assertEqual(said.count("evaluation step=6 note=\"within a round: "), 1, said)
        self.assertEqual(self.model("out"), self.model("eval"))

    def test_files_have_the_weights_of_the_last_synchronisation(self):
        self.train("out", "ps", 1, 2, *ADAMW, *LOCAL, "train.save_every=1", "train.steps=10")
        at = [None] + [self.model("out", f"checkpoints/step-{i}.safetensors") for i in range(1, 11)]
        for same in ((1, 2, 3), (4, 5, 6, 7), (8, 9)):
            for step in same:
                self.assertEqual(at[same[0]], at[step], step)
        self.assertNotEqual(at[3], at[4])
        self.assertNotEqual(at[9], at[10])  # the end synchronises
        self.assertEqual(at[10], self.model("out"))

    def test_bytes_fall_by_the_number_of_steps(self):
        long = ["exchange.shm=off", "train.steps=32", "train.epochs=10"]
        self.train("bsp", "ps", 2, 2, *long)
        self.train("local", "ps", 2, 2, *long, *LOCAL, "sync.local_steps=16")
        for key in ("bytes_sent_per_step", "bytes_received_per_step"):
            self.assertAlmostEqual(self.summary("bsp")[key] / self.summary("local")[key], 16, delta=0.5)

    @nightly
    def test_codecs_learn(self):
        job = ["data.train=", "train.epochs=4", "train.eval_every=4", *ADAMW, "sync.policy=local", "sync.local_steps=4",
               "exchange.codec_warmup=2", "exchange.codec_cooldown=2"]
        streaming = ["sync.fragments=2", "sync.overlap=1"]
        for codec in ("none", "int8", "int4", "onebit"):
            self.train(codec, "ps", 2, 2, *job, f"exchange.codec={codec}")
            self.train(f"streaming-{codec}", "ps", 2, 2, *job, *streaming, f"exchange.codec={codec}")
        none = self.summary("none")["test_loss"]
        for run, bound in (("int8", 1.15), ("int4", 1.15), ("onebit", 1.15), ("streaming-none", 1.3),
                           ("streaming-int8", 1.3), ("streaming-int4", 1.3), ("streaming-onebit", 1.3)):
            self.assertLess(self.summary(run)["test_loss"], bound * none, run)


class Quorum(LocalTest):
    """Of three workers: four steps, so two rounds an epoch."""
    JOB = [*ADAMW, *NESTEROV, "sync.policy=local", "sync.local_steps=2"]

    @nightly
    def test_of_all_workers_it_is_local(self):
        for codec in ("none", "int8"):
            job = [*self.JOB, f"exchange.codec={codec}", "train.eval_every=1"]
            self.train(f"local-{codec}", "ps", 1, 3, *job)
            for i, more in enumerate((["sync.quorum=3"], ["sync.quorum=3", "exchange.shm=off"],
                                      ["sync.quorum=1", "sync.grace_ms=30000"])):
                self.train(f"{codec}-{i}", "ps", 2, 3, *job, *more)
                self.assertEqual(self.weights(f"local-{codec}"), self.weights(f"{codec}-{i}"), (codec, more))
                self.assertEqual(self.summary(f"{codec}-{i}")["policy"]["counted_by_worker"], [4, 4, 4])

    def test_late_changes_count_in_the_next_round_and_runs_are_repeated(self):
        lines = ["0-1 0-1", "0,2 -", "- 0-2 rest", "1-2 1-2", "0-1 -", "- 0-2 end"]
        job = [*self.JOB, "sync.quorum=2"]
        for i, more in enumerate(([], ["exchange.shm=off", "server.shards=2"])):
            self.train(str(i), "ps", 1 + i, 3, *job, *more, self.given_rounds(*lines))
            self.assertEqual(self.text_of(str(i), "policy.log").splitlines()[1:], lines)
        self.assertEqual(self.weights("0"), self.weights("1"))
        policy = self.summary("0")["policy"]
        self.assertEqual(policy["policy"], "local")
        self.assertEqual((policy["counted_by_worker"], policy["dropped_by_worker"]), ([3, 3, 2], [0, 1, 1]))
        self.assertEqual(policy["staleness"], [6, 2])

    def test_rounds_that_do_not_divide_an_epoch(self):
        self.train("out", "ps", 1, 3, *ADAMW, "sync.policy=local", "sync.local_steps=3", "sync.quorum=3")
        self.assertEqual(self.summary("out")["steps"], 8)
        self.assertEqual(self.summary("out")["policy"]["versions"], 4)

    ALL = ("0-2 0-2", "0-2 0-2 rest")
    BY_SPEED = [*JOB, "sync.quorum=3", "sync.steps_by_speed=true"]

    def test_equal_speeds_change_nothing(self):
        self.train("plain", "ps", 1, 3, *self.JOB)
        given = self.given_rounds("steps 2 2 2", *self.ALL, "steps 2 2 2", *self.ALL)
        self.train("out", "ps", 2, 3, *self.BY_SPEED, given)
        self.assertEqual(self.weights("plain"), self.weights("out"))
        self.assertEqual(self.summary("out")["round_steps"], [2, 2, 2])

    @nightly
    def test_a_bad_line_of_steps_is_named(self):
        for line in ("steps 2 2", "steps 2 2 2 2", "steps 2 0 2", "steps 2 3 2", "steps 2 x 2", "steps"):
            given = self.given_rounds("steps 2 2 2", *self.ALL, line, *self.ALL)
            said = self.train("out", "ps", 1, 3, *self.BY_SPEED, given, code=1)
            self.assertIn(f'sync.replay: "{line}" does not have 1 to 2 steps', said)
            shutil.rmtree(self.path("out"))

    @needs_torch
    def test_changes_count_by_their_steps(self):
        keys = [*self.BY_SPEED, SMOOTH, "optimizer.eps=0.001", "schedule.name=constant", "model.dropout=false",
                self.given_rounds("steps 2 2 2", *self.ALL, "steps 2 1 2", *self.ALL)]
        self.train("out", "ps", 2, 3, *keys)
        self.assertIn("steps 2 1 2", self.text_of("out", "policy.log").splitlines())
        self.train_by_hand(TORCH, "local_by_hand.py", [*SETTINGS, *keys, "job.workers=3"],
                           "[[2, 2, 2], [2, 1, 2]]")
        ours, theirs = self.model("out"), read_safetensors(self.path("by-hand.safetensors"))[0]
        self.assertLess(self.distance(ours, theirs), 1e-5)

    @nightly
    def test_a_bad_line_of_cuts_is_named(self):
        for line in ("cut 0 1:1 0:0", "cut 0 1:1 0:0 0:0 0:0", "cut 0 1:1 0:0 1:0", "cut x 0:0 0:0 0:0", "cut 0 1 2 3"):
            given = self.given_rounds(*self.ALL, line, *self.ALL)
            said = self.train("out", "ps", 1, 3, *self.JOB, "sync.quorum=3", given, code=1)
            self.assertIn(f'sync.replay: "{line}" does not have a rest, and ROUND:STEPS', said)
            shutil.rmtree(self.path("out"))
        said = self.train("out", "ps", 1, 3, *self.JOB, "sync.quorum=3",
                          self.given_rounds(*self.ALL, "cut 0 3:1 0:0 0:0", *self.ALL), code=1)
        self.assertIn("the record cuts round 3 short, which was not made", said)

    def test_checkpoints_are_between_rounds(self):
        """Of 5 steps, the last one of each epoch (of 12) shorter; every 4 steps are a round, rounded up."""
        steps = [5, 10, 12, 17, 22, 24]
        self.run_whole(steps, "ps", 1, 2, *SETTINGS, *LOCAL, "sync.local_steps=5", "sync.quorum=1",
                       "checkpoint.every=4", "checkpoint.keep=100", "data.batch=10", "data.train=0-239")
        self.assertEqual(self.steps_of("whole"), steps)
        self.train("bsp", "ps", 1, 2, *LOCAL, "sync.local_steps=5", "checkpoint.every=10", "train.stop_after=10",
                   code=75)
        said = self.train("bsp", "ps", 1, 2, *LOCAL, "sync.local_steps=5", "sync.quorum=2", "train.stop_after=0",
                          args=["--resume", self.path("bsp")])
        self.assertIn("resume step=10 ", said)


class QuorumOfFragments(LocalTest):
    """Each fragment has its own quorum. Epochs of eight steps, so of two rounds."""
    JOB = [*ADAMW, *NESTEROV, *LOCAL, "sync.fragments=2", "data.batch=10"]

    @nightly
    def test_of_all_workers_it_is_local(self):
        """Up to the last round, in which local sends all fragments with the job's last step. With a codec workers
        get the exact weights when they rest, as local does not."""
        steps = [4, 8, 12]
        for codec in ("none", "int4"):
            job = [*SETTINGS, *self.JOB, f"exchange.codec={codec}", "checkpoint.every=4", "checkpoint.keep=100"]
            models = []
            for more in ((), ("sync.quorum=3",), ("sync.quorum=3", "exchange.shm=off", "server.shards=2"),
                         ("sync.quorum=1", "sync.grace_ms=30000")):
                self.run_whole(steps, "ps", 2, 3, *job, *more)
                models.append([self.model("whole", f"checkpoints/step-{step}/model.safetensors") for step in steps])
                shutil.rmtree(self.path("whole"))
            same = models if codec == "none" else models[1:]
            for i, one in enumerate(same):
                self.assertTrue(one == same[0], (codec, i))

    @nightly
    def test_they_learn_and_are_repeated(self):
        job = ["data.train=", "train.epochs=4", "train.eval_every=4", *ADAMW, *LOCAL]
        self.train("local", "ps", 2, 3, *job)
        kinds = ((1.3,), (1.4, "sync.fragments=2"), (1.4, "sync.fragments=2", "sync.overlap=1"))
        for i, (bound, *more) in enumerate(kinds):
            run = f"quorum-{i}"
            self.train(run, "ps", 2, 3, *job, "sync.quorum=2", "sync.grace_ms=2", *more)
            self.assertLess(self.summary(run)["test_loss"], bound * self.summary("local")["test_loss"])
            self.assertEqual(self.summary(run)["steps"], self.summary("local")["steps"])
            if more:
                lines = self.text_of(run, "policy.log").splitlines()[1:]
                self.assertEqual({line.split()[0] for line in lines} - {"cut"}, {"f0", "f1"})
            self.psrun("--replay", self.path(run, "policy.log"), "-s", 1, "exchange.shm=off", out=f"again-{i}")
            self.assertEqual(self.weights(run), self.weights(f"again-{i}"))

    def test_more_shards_than_chunks_of_a_fragment(self):
        self.train("one", "ps", 1, 3, *self.JOB, "sync.quorum=3", "server.shards=1")
        self.train("many", "ps", 2, 3, *self.JOB, "sync.quorum=3", "server.shards=4", "exchange.chunk=64KiB")
        self.assertEqual(self.weights("one"), self.weights("many"))

    @nightly
    def test_a_job_goes_on_from_a_checkpoint(self):
        """With all workers in every round, and rounds that fill an epoch, the bits are those of a whole run."""
        for more in ([], ["sync.fragments=2"], ["sync.fragments=2", "sync.overlap=1"]):
            job = [*ADAMW, *NESTEROV, *LOCAL, "data.batch=10", "sync.quorum=3", "sync.grace_ms=30000",
                   "checkpoint.every=4", *more]
            self.train("whole", "ps", 2, 3, *job)
            for step in (4, 8, 12):
                part = f"part-{step}"
                self.train(part, "ps", 2, 3, *job, f"train.stop_after={step}", code=75)
                said = self.train(part, "ps", 1, 3, *job, args=["--resume", self.path(part)])
                self.assertIn(f"resume step={step} ", said)
                self.assertEqual(self.weights("whole"), self.weights(part), (more, step))
                shutil.rmtree(self.path(part))
            shutil.rmtree(self.path("whole"))

    def test_rounds_by_speed_have_all_fragments(self):
        job = ["data.train=0-719", *ADAMW, "sync.policy=local", "sync.local_steps=8", "sync.quorum=2",
               "sync.fragments=2", "sync.overlap=1", "sync.steps_by_speed=true"]
        self.train("out", "ps", 2, 3, *job)
        steps = self.summary("out")["round_steps"]
        self.assertTrue(steps and all(4 <= n <= 8 for n in steps), steps)
        self.psrun("--replay", self.path("out", "policy.log"), out="again")
        self.assertEqual(self.weights("out"), self.weights("again"))
        said = self.train("few", "ps", 1, 3, *job, "sync.local_steps=4", code=1)
        self.assertIn("sync.steps_by_speed: needs sync.local_steps of at least 6", said)

    def test_a_bad_record_is_named(self):
        said = self.train("out", "ps", 1, 3, *self.JOB, "sync.quorum=2", self.given_rounds("0-2 0-2"), code=1)
        self.assertIn("'0-2 0-2' does not name one of the job's 2 fragments (sync.fragments)", said)

    def test_a_model_that_is_too_small(self):
        said = self.train("out", "ps", 1, 2, *LOCAL, "sync.local_steps=64", "sync.fragments=50", code=1)
        self.assertIn("psrun: --set: sync.fragments: the model's 20458 parameters cannot be cut into 50 fragments",
                      said)


class Checkpoints(LocalTest):
    """Steps 5 and 10 of rounds of 4 are within a round, 24 is the end."""

    def test_momenta_of_both_optimizers(self):
        self.check_resume("ps", 2, 3, *ADAMW, *LOCAL, *NESTEROV, steps=[10, 20], others=((1, 3),))

    @nightly
    def test_all_reduce_clipping_and_the_first_round(self):
        self.check_resume("allreduce", 0, 2, *LOCAL, "sync.local_steps=7", "optimizer.clip_norm=0.5", *NESTEROV,
                          steps=[5])

    def test_codecs_with_feedback(self):
        self.check_resume("ps", 2, 2, *LOCAL, "sync.local_steps=2", "exchange.codec=onebit",
                          "exchange.codec_warmup=2", "exchange.codec_cooldown=2", steps=[15])

    def test_loss_scale_and_unequal_batches(self):
        self.check_resume("ps", 2, 2, *LOCAL, "loss_scale={use: on, init: 1e38, interval: 3}", "data.batch=[5, 20]",
                          steps=[10])

    @nightly
    def test_fragments_on_their_way(self):
        """Fragments go with steps 2, 4, 6, ... of rounds of 6: after step 10 two of the three are a round ahead."""
        self.check_resume("ps", 2, 3, *ADAMW, *STREAMING, *NESTEROV, steps=[5, 10, 15, 20], others=((1, 3),))
        self.check_resume("allreduce", 0, 2, *LOCAL, "sync.overlap=3", *NESTEROV, steps=[10, 20])

    @nightly
    def test_fragments_with_a_codec(self):
        self.check_resume("ps", 2, 2, *STREAMING, "exchange.codec=onebit", "exchange.codec_warmup=1",
                          "exchange.codec_cooldown=1", steps=[10, 15])

    @nightly
    def test_another_number_of_workers_goes_on(self):
        keep = ["checkpoint.every=10", "train.steps=30", "train.epochs=10"]
        self.train("two", "ps", 1, 2, *keep, *ADAMW, *LOCAL, "train.stop_after=10", code=75)
        for workers in (1, 3):
            said = self.train(f"w{workers}", "ps", 1, workers, *keep, *ADAMW, *LOCAL,
                              args=["--resume", self.path("two")])
            self.assertIn("resume step=10 ", said)
            self.assertLess(self.summary(f"w{workers}")["train_loss"], 2.3)


if __name__ == "__main__":
    unittest.main()
