"""psrun --restarts with sync.quorum: a worker that dies is not waited for. It comes back while the others go on."""
import contextlib
import os
import random
import re
import shutil
import signal
import time
import unittest

from jobs import JobTest, SlowDevice, cpu_s, free_port, nightly, read_safetensors, wrapped_bin
from psrunlib.top import lines, read
from restarting import RestartTest

# An epoch of a thousand steps takes seconds, so that most of the time workers are within it; but hardly any
# processor time.
DEVICE = SlowDevice(us=120)
DATA = "data={kind: synthetic, samples: 18000, test_samples: 60, batch: 6}"
SETTINGS = [DATA, "train.epochs=2", "train.eval_every=1", "train.log_every=50", "optimizer.name=adamw",
            "checkpoint.every=100000", "train.threads=1"]
QUORUM = ["sync.policy=local", "sync.local_steps=8", "sync.quorum=2"]
KIND = ("ps", 2, 3)
JOBS = int(os.environ.get("PS_BACK_JOBS", "2"))
SEED = int(os.environ.get("PS_BACK_SEED", "1"))
BACK = re.compile(r"psrun: worker (\d) is back after ([0-9.]+) s; the others have gone on\n")


class BackTest(RestartTest):
    """Of a job with a quorum."""

    def orders(self, out="out"):
        """The lines of policy.log, without its head."""
        return self.text_of(out, "policy.log").splitlines()[1:]

    def begin(self, *more, args=()):
        psrun = self.start("out", KIND, "--restarts", "20", "--verbose", *args, settings=[*SETTINGS, *QUORUM, *more],
                           env=DEVICE.env)
        self.assertTrue(self.wait_until(psrun, lambda: "epoch 1/" in self.text("out")))
        # Before the first round is over, a death sends all back. A round takes a fraction of this time.
        began = {pid: cpu_s(pid) for pid in (self.find(psrun, "worker", rank) for rank in range(KIND[2]))}
        self.assertTrue(self.wait_until(psrun, lambda: all(cpu_s(pid) > at + 0.06 for pid, at in began.items())))
        return psrun

    def kill_and_wait(self, psrun, rank):
        """Kills a worker, and waits until it is back, or all have joined again."""
        seen = len(BACK.findall(self.text("out"))) + self.text("out").count("the job goes on from step")
        self.assertTrue(self.wait_for_part(psrun, "worker", rank))
        self.kill(psrun, "worker", rank)
        self.wait_until(psrun, lambda: len(BACK.findall(self.text("out")))
                        + self.text("out").count("the job goes on from step") > seen)


class GoesOn(BackTest):
    def check(self, *more, kills=(1, 0, 2)):
        psrun = self.begin(*more)
        for rank in kills:
            self.kill_and_wait(psrun, rank)
            time.sleep(0.2)
        text = self.end(psrun, "out")
        summary = self.summary("out")
        self.assertEqual(summary["steps"], 2000)
        self.assertEqual(len(summary["restarts"]), len(kills))
        back = [int(rank) for rank, _ in BACK.findall(text)]
        self.assertGreaterEqual(len(back), len(kills) - 1, text)  # one may have died at rest
        return text, summary

    def test_others_go_on(self):
        text, summary = self.check()
        free = [d for d in summary["restarts"] if d["seconds_lost"] == 0 and d["steps_lost"] == 0]
        self.assertEqual(len(free), len(BACK.findall(text)), summary["restarts"])
        self.assertIn("worker 1 was ended by SIGKILL", text)
        backs = [line for line in self.orders() if line.startswith("back ")]
        self.assertEqual(len(backs), len(BACK.findall(text)))
        said = self.psrun("--replay", self.path("out", "policy.log"), out="again", code=1)
        self.assertRegex(said, r"the record has the line 'back \d': a worker died there")

    @nightly
    def test_a_worker_that_is_back_at_the_rest(self):
        """It has made no step of its own in that epoch, which may be the last one."""
        os.makedirs(self.path("build"))
        wrapped_bin(self.path("build/bin"), "ps-worker", '[ "$PS_INCARNATION" = 1 ] && sleep 5')
        begun = time.monotonic()
        psrun = self.begin("sync.steps_by_speed=true", args=["--build-dir", self.path("build")])
        time.sleep(0.5)
        self.kill(psrun, "worker", 0)
        self.assertTrue(self.wait_until(psrun, lambda: "epoch 1/2  test loss" in self.text("out")))
        time.sleep(0.5)
        self.kill(psrun, "worker", 1)
        text = self.end(psrun, "out")
        self.assertEqual(sorted(rank for rank, _ in BACK.findall(text)), ["0", "1"], text)
        summary = self.summary("out")
        self.assertEqual(summary["steps"], 2000)
        self.assertGreater(summary["train_loss"], 0)
        self.assertEqual([r["step"] for r in self.records("out") if "loss_mean" in r], [1000, 2000])
        seconds = time.monotonic() - begun
        self.assertGreater(summary["seconds"], seconds / 3)
        self.assertLess(summary["seconds"], seconds)

    @nightly
    def test_rounds_by_speed(self):
        _, summary = self.check("sync.steps_by_speed=true")
        self.assertEqual(len(summary["round_steps"]), 3)

    @nightly
    def test_fragments(self):
        """Of a dead worker some may be on their way, and the others not sent yet."""
        _, summary = self.check("sync.fragments=2", "sync.overlap=1")
        self.assertGreater(min(summary["policy"]["counted_by_worker"]), 0)
        shutil.rmtree(self.path("out"))
        self.check("sync.fragments=4", "sync.grace_ms=2", "exchange.codec=int8", kills=(2, 1))

    @nightly
    def test_codecs(self):
        self.check("exchange.codec=int4", "exchange.codec_warmup=2", "exchange.codec_min=64")

    @nightly
    def test_batch_norm(self):
        """Its running statistics are worker 0's, whose new process goes on from those at the last rest."""
        self.check("model.layers=[{conv2d: {out: 32, kernel: 3}}, {batch_norm2d: {name: bn}}, relu, "
                   "{conv2d: {out: 32, kernel: 3}}, relu, flatten, {linear: 128}, relu, {linear: 10}]",
                   "model.loss=cross_entropy")
        mean = read_safetensors(self.path("out", "model.safetensors"))[0]["bn.running_mean"][2]
        self.assertTrue(all(abs(x) > 0 for x in mean), mean)

    @nightly
    def test_keys(self):
        psrun = self.begin(args=["--curve", self.path("keys")])
        self.kill_and_wait(psrun, 1)
        self.assertTrue(BACK.search(self.end(psrun, "out")))

    def test_one_that_waits_for_an_answer(self):
        """What it has pushed is forgotten, so that the first push of its new process counts."""
        psrun = self.begin("net.step_timeout_ms=15000")
        worker, *others = (self.find(psrun, "worker", rank) for rank in (1, 0, 2))
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        self.wait_until_idle(worker)
        os.kill(worker, signal.SIGKILL)
        self.assertTrue(self.wait_until(psrun, lambda: " away role=worker rank=1 " in self.text("out")))
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        text = self.end(psrun, "out")
        self.assertEqual([rank for rank, _ in BACK.findall(text)], ["1"], text)
        self.assertNotIn(" rejoin ", text)

    def test_worker_0_and_then_a_server(self):
        """The newest state is in another worker's memory then; the results stay as they are."""
        psrun = self.begin("checkpoint.every=400", "recovery.share=0.5")
        self.kill_and_wait(psrun, 0)
        self.assertEqual(len(BACK.findall(self.text("out"))), 1, self.text("out"))
        self.kill(psrun, "server", 1)
        text = self.end(psrun, "out")
        self.assertEqual(text.count("psrun: the job goes on from step"), 1, text)
        summary = self.summary("out")
        self.assertEqual(summary["steps"], 2000)
        self.assertEqual([d["part"] for d in summary["restarts"]], ["worker 0", "server 1"])
        steps = [line["step"] for line in self.records("out") if "loss_mean" in line]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 2000)

    def told_to_end_while_away(self, rank):
        """A process that is started again does not come until psrun is told to end."""
        os.makedirs(self.path("build"))
        wrapped_bin(self.path("build/bin"), "ps-worker",
                    f'[ -n "$PS_INCARNATION" ] && while [ ! -e {self.path("go")} ]; do sleep 0.05; done')
        psrun = self.begin(args=["--build-dir", self.path("build")])
        self.kill(psrun, "worker", rank)
        self.assertTrue(self.wait_until(psrun, lambda: f"WARN  away role=worker rank={rank}" in self.text("out")))
        psrun.send_signal(signal.SIGINT)
        with open(self.path("go"), "w", encoding="utf-8"):
            pass
        text = self.end(psrun, "out", code=130)
        self.assertIn("weights and results so far are in", text)
        self.assertTrue(self.weights("out"))

    @nightly
    def test_told_to_end_while_a_worker_is_away(self):
        self.told_to_end_while_away(2)

    def test_told_to_end_while_worker_0_is_away(self):
        self.told_to_end_while_away(0)

    @nightly
    def test_nobody_takes_its_place(self):
        """The job ends, and all join again."""
        os.makedirs(self.path("build"))
        wrapped_bin(self.path("build/bin"), "ps-worker", '[ "$PS_INCARNATION" = 1 ] && sleep 8')
        psrun = self.begin("net.dead_after_ms=2000", "net.heartbeat_ms=100",
                           args=["--build-dir", self.path("build")])
        self.kill(psrun, "worker", 2)
        text = self.end(psrun, "out")
        self.assertIn("no process has taken its place for 2.", text)
        self.assertEqual(self.summary("out")["steps"], 2000)


@nightly
class Seeded(BackTest):
    """Kills and stops at random, of any part. PS_BACK_JOBS: how many jobs (2); PS_BACK_SEED: the first one's seed (1)."""

    def disturb(self, psrun, chance):
        """Returns what it did, so that a failure can be repeated."""
        role, rank = chance.choice([("worker", r) for r in (0, 0, 1, 1, 2, 2)] + [("server", 0), ("server", 1)])
        pause, stops = chance.random() * 0.6, chance.random() < 0.25
        time.sleep(pause)
        if psrun.poll() is not None:
            return None
        pid = self.signal(psrun, role, rank, signal.SIGSTOP if stops else signal.SIGKILL)
        if stops and pid:
            time.sleep(chance.random() * 0.5)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return f"{role} {rank} {'stopped' if stops else 'killed'} after {pause:.2f} s"

    def test_jobs(self):
        for seed in range(SEED, SEED + JOBS):
            chance = random.Random(seed)
            more = chance.choice([[], ["sync.steps_by_speed=true"], ["exchange.codec=int8"], ["exchange.shm=off"]])
            psrun = self.begin("checkpoint.every=400", "recovery.share=0.1", *more, args=["--restarts", "40"])
            done = [self.disturb(psrun, chance) for _ in range(8)]
            with self.subTest(seed=seed, more=more, done=done):
                text = self.end(psrun, "out")
                self.assertEqual(self.summary("out")["steps"], 2000, text)
            shutil.rmtree(self.path("out"), ignore_errors=True)


@nightly
class ByHand(JobTest):
    def test_a_worker_that_was_taken_for_dead_comes_back(self):
        """It was stopped for too long. No other process takes its place: it joins again itself."""
        port = free_port()
        parts = self.start_job(2, 3, *SETTINGS, *QUORUM, "recovery.rejoins=5", "net.dead_after_ms=5000",
                               "net.heartbeat_ms=100", f"metrics.port={port}", prefix=DEVICE.prefix)
        parts["worker 0"].wait_for(r"epoch 1/2  step \d+")
        victim = parts["worker 1"].popen
        victim.send_signal(signal.SIGSTOP)
        parts["server 0"].wait_for("WARN  away role=worker rank=1")
        if "this build has no page" not in parts["server 0"].text():
            status = read(f"http://127.0.0.1:{port}/status.json")
            self.assertEqual([m["away"] for m in status["members"]], [False, False, False, True, False])
            self.assertNotEqual(status["waits_for"]["who"], "silent")
            self.assertGreater(status["members"][2]["values"]["step"], 0)  # before the first rest, too
            self.assertRegex("\n".join(text for text, _ in lines(status, 120)), r"worker 1 +\S+ +away")
        victim.send_signal(signal.SIGCONT)
        codes = self.wait_all(parts, 100)
        logs = "\n".join(f"--- {n}\n{p.text()}" for n, p in parts.items())
        self.assertEqual(set(codes.values()), {0}, logs)
        self.assertRegex(parts["worker 1"].text(), r"(?s)rejoin .*it was taken for dead.* INFO  back step=")


if __name__ == "__main__":
    unittest.main()
