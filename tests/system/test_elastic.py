"""Elastic jobs: workers join, leave in order, and die while the job runs.

PS_ELASTIC_JOBS: how many seeded schedules (1); PS_ELASTIC_SEED: the first one's seed (1).
"""
import argparse
import collections
import contextlib
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from jobs import DIGITS, NIGHTLY, PSRUN, Psrun, children, environment, first, kill, sizes, wrapped_bin
from psrunlib import elastic, job, jobfile, supervise
from restarting import WAIT_S, RestartTest
from test_checkpoints import comparable

JOBS = int(os.environ.get("PS_ELASTIC_JOBS", "1"))
SEED = int(os.environ.get("PS_ELASTIC_SEED", "1"))
SAMPLES = 240
FEWEST, MOST = 1, 4
# More than a fast machine makes while processes come and go: the test ends the job after that.
MANY = 100000
# In these tests nobody dies, and the job shall begin with all workers that it is started with.
FOR_ALL = "recovery.wait_ms=20000"
SETTINGS = [f"job.workers={FEWEST}..{MOST}", "train.epochs=100000", "data.batch=20",
            f"data.train=0-{SAMPLES - 1}", "train.log_every=10", "schedule.name=cosine", "recovery.wait_ms=500",
            "checkpoint.every=100", "train.eval_every=20"]
KINDS = [("ps", 2, 2, "optimizer.name=adamw"), ("allreduce", 0, 2, "train.accumulate=2"),
         ("ps", 1, 3, "exchange.codec=onebit", "exchange.codec_warmup=50"), ("ps", 3, 1, "optimizer.clip_norm=0.5"),
         ("allreduce", 0, 3, "optimizer.name=adamw")]
WORKERS_LINE = re.compile(r"INFO  workers n=(\d+) step=(\d+)")
SAMPLES_LINE = re.compile(r"DEBUG samples job=(\w+) step=(\d+) epoch=(\d+) positions=([\d,]+)$", re.M)


class ElasticTest(RestartTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("build"))
        wrapped_bin(self.path("build", "bin"), "ps-worker", 'set -- "$@" --log-level debug')
        self.joiners = []

    def start_elastic(self, out, kind, steps, *args):
        return self.start(out, kind, "--build-dir", self.path("build"), *args,
                          settings=[*SETTINGS, f"train.steps={steps}"])

    def sizes(self, out):
        """The numbers of workers that the job has had so far."""
        return [int(n) for n, _ in WORKERS_LINE.findall(self.text(out))]

    def wait_for_size(self, psrun, out, n, after):
        """Waits for a size of the job, after that many earlier changes."""
        return self.wait_until(psrun, lambda: n in self.sizes(out)[after:])

    def wait_for_lines(self, psrun, out, more):
        lines = self.lines(out)
        return self.wait_until(psrun, lambda: self.lines(out) >= lines + more)

    def join(self, out):
        with open(self.path(f"{out}-joiner-{len(self.joiners)}.log"), "w", encoding="utf-8") as log:
            joiner = Psrun([PSRUN, "--build-dir", self.path("build"), "--join", self.path(out)], stdout=log)
        self.addCleanup(kill, joiner)
        self.joiners.append(joiner)
        return joiner

    def end_all(self, psrun, out, code=0):
        """Waits for the job's end. Ends joiners that came too late: these wait for a job."""
        self.assertEqual(psrun.wait(WAIT_S * 2), code, self.text(out)[-3000:])
        end = time.monotonic() + 2
        for joiner in self.joiners:
            with contextlib.suppress(subprocess.TimeoutExpired):
                joiner.wait(max(0, end - time.monotonic()))
        late = [j for j in self.joiners if j.poll() is None]
        for joiner in late:
            joiner.send_signal(signal.SIGTERM)
        codes = [j.wait(WAIT_S) for j in self.joiners]
        self.check_nothing_left(out)
        return [code for joiner, code in zip(self.joiners, codes) if joiner not in late]

    def stop(self, psrun, out):
        """Ends a job of MANY steps when it has made some more. Returns how many it has made, and joiners' codes."""
        self.assertTrue(self.wait_for_lines(psrun, out, 5))
        psrun.send_signal(signal.SIGTERM)
        codes = self.end_all(psrun, out, 75)
        return self.summary(out)["steps"], codes

    def workers(self, psrun):
        """Process ids of all workers except worker 0."""
        pids = [pid for name, pid in children(psrun.pid)
                if name == "ps-worker" and environment(pid).get("RANK") != "0"]
        for joiner in self.joiners:
            if joiner.poll() is None:
                pids += [pid for name, pid in children(joiner.pid) if name == "ps-worker"]
        return pids

    def stretches(self, out):
        return self.records(out, "membership.jsonl")

    def check_samples(self, out, steps):
        """Checks that every epoch has seen every sample once."""
        seen = collections.defaultdict(collections.Counter)
        stretches = self.stretches(out)
        of_job = {}
        for s, following in zip(stretches, [*stretches[1:], {"step": steps}]):
            of_job[s["job"]] = range(s["step"], following["step"])
        for path in glob.glob(self.path(out, "logs", "worker-*.log")) + glob.glob(self.path(f"{out}-joiner-*.log")):
            with open(path, encoding="utf-8") as f:
                for job, step, epoch, positions in SAMPLES_LINE.findall(f.read()):
                    if int(step) in of_job.get(job, ()):
                        seen[int(epoch)].update(map(int, positions.split(",")))
        self.assertGreater(len(seen), 2)
        for epoch in sorted(seen)[:-1]:
            once = [seen[epoch].pop(i, 0) for i in range(SAMPLES)]
            self.assertEqual(once, [1] * SAMPLES, f"epoch {epoch}")
            # The other samples make all workers' shares equal.
            self.assertEqual(sorted(seen[epoch]), list(range(SAMPLES, SAMPLES + len(seen[epoch]))))
            self.assertLess(len(seen[epoch]), MOST)
            self.assertLessEqual(set(seen[epoch].values()), {1})
        self.assertEqual(set(seen[max(seen)].values()), {1})

    def clear(self):
        """Prepares the folder for the next job."""
        self.joiners = []
        for name in os.listdir(self.folder):
            if name.startswith(("out", "replay")):
                path = self.path(name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def check_replay(self, out, kind):
        mode, servers, _, *more = kind
        self.psrun(*sizes(mode, servers), "--replay-membership", self.path(out, "membership.jsonl"), DIGITS,
                   *SETTINGS, f"train.steps={self.STEPS}", *more, out="replay")
        self.assertEqual(self.weights(out), self.weights("replay"))
        self.assertEqual([comparable(r) for r in self.records(out)],
                         [comparable(r) for r in self.records("replay")])


class Joiner(unittest.TestCase):
    def test_a_folder_of_no_job(self):
        """The option that was given is named, and what would mend it: --join takes no configuration."""
        with tempfile.TemporaryDirectory() as folder:
            args = argparse.Namespace(config=None, join=folder)
            for text, says in ((None, "give the folder of a job that runs on this host: "), ("[]", "job.json is of another program"),
                               ('{"program": true}', "its workers are a program of your own, psrun adds no worker to it")):
                if text:
                    Path(folder, "job.json").write_text(text, encoding="utf-8")
                with self.assertRaisesRegex(jobfile.JobError, f"^--join {folder}: .*{says}"):
                    elastic.join(args, None)

    def test_a_signal_while_the_worker_starts(self):
        """The worker, which is in a session of its own, is told."""
        told = []

        def start(*_, **more):
            os.kill(os.getpid(), signal.SIGTERM)
            return mock.Mock(send_signal=told.append, wait=lambda: 0)

        args = argparse.Namespace(config=None, join="run")
        for number in supervise.END_SIGNALS:
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        with mock.patch.object(elastic.jobfile, "recall", lambda *_: {"elastic": True, "master": ["h", 1]}), \
                mock.patch.object(elastic.subprocess, "Popen", start):
            self.assertEqual(elastic.join(args, lambda _: mock.Mock(newcomer=lambda: job.Part("worker", -1, [], {}))), 0)
        self.assertEqual(told, [signal.SIGTERM])


class WithRestarts(ElasticTest):
    """Workers come and go while parts are killed and started again, without a pause between."""

    STEPS, N_JOBS = 2000 if NIGHTLY else 1000, -(-JOBS // 3)
    PAUSES_S = (0, 0.02, 0.1, 0.4, 1.0)

    def disturb_once(self, psrun, out, kind, chance):
        what = chance.choice(["join", "leave", "kill", "kill"])
        if what == "join":
            self.join(out)
            return what
        if what == "leave":
            pids = self.workers(psrun)
            if len(pids) > 1:  # the death of the last worker would end the job
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGTERM)
            return what
        victim = chance.choice(["server", "worker"] if kind[1] else ["worker"]), chance.choice([0, 1])
        return what, *victim, self.kill(psrun, *victim)

    def test_seeded(self):
        for seed in range(SEED, SEED + self.N_JOBS):
            chance, kind = random.Random(seed), KINDS[seed % len(KINDS)]
            psrun = self.start_elastic("out", kind, self.STEPS, "--restarts", "30")
            self.wait_until(psrun, lambda: self.sizes("out"))
            self.wait_for_lines(psrun, "out", 3)
            done = []
            for _ in range(chance.randint(2, 4)):
                done.append(self.disturb_once(psrun, "out", kind, chance))
                time.sleep(chance.choice(self.PAUSES_S))
            with self.subTest(seed=seed, kind=kind, done=done):
                self.end_all(psrun, "out")
                self.check_samples("out", self.STEPS)
                self.check_replay("out", kind)
            self.clear()


class Workers(ElasticTest):
    KIND = ("ps", 1, 2)

    def test_one_comes_and_one_leaves(self):
        for kind in first(1, ((*self.KIND, FOR_ALL), ("allreduce", 0, 2, FOR_ALL))):
            psrun = self.start_elastic("out", kind, MANY)
            self.wait_for_lines(psrun, "out", 5)
            joiner = self.join("out")
            self.assertTrue(self.wait_for_size(psrun, "out", 3, 1))
            self.wait_for_lines(psrun, "out", 5)
            joiner.send_signal(signal.SIGTERM)
            self.assertEqual(joiner.wait(WAIT_S), 0)
            self.assertTrue(self.wait_for_size(psrun, "out", 2, 2))
            self.wait_for_lines(psrun, "out", 5)
            os.kill(self.find(psrun, "worker", 1), signal.SIGTERM)
            self.assertTrue(self.wait_for_size(psrun, "out", 1, 3))
            steps, _ = self.stop(psrun, "out")
            self.assertEqual([s["workers"] for s in self.stretches("out")], [2, 3, 2, 1])
            self.assertEqual(self.summary("out")["workers"], 1)
            self.check_samples("out", steps)
            self.joiners = []
            shutil.rmtree(self.path("out"))

    def test_one_dies(self):
        psrun = self.start_elastic("out", ("ps", 2, 3), MANY)
        self.assertTrue(self.wait_for_size(psrun, "out", 3, 0))
        self.wait_for_lines(psrun, "out", 5)
        changes = len(self.sizes("out"))
        self.kill(psrun, "worker", 1)
        self.assertTrue(self.wait_for_size(psrun, "out", 2, changes))
        self.stop(psrun, "out")
        self.assertIn("psrun: worker 1 was ended by SIGKILL; the job goes on without it\n", self.text("out"))

    def test_one_that_comes_too_late(self):
        """The job has begun and ended without it."""
        os.mkfifo(self.path("never"))
        os.mkdir(self.path("late"))
        wrapped_bin(self.path("late", "bin"), "ps-worker", f'[ "$RANK" != 1 ] || read -r line <{self.path("never")}')
        for restarts in first(1, (0, 2)):
            with self.subTest(restarts=restarts):
                psrun = self.start("out", ("ps", 1, 2), "--build-dir", self.path("late"), "--restarts", restarts, "--overwrite",
                                   settings=[*SETTINGS, "job.workers=1..2", "train.steps=20"])
                self.end(psrun, "out")
                self.assertEqual(self.summary("out")["workers"], 1)

    def test_a_full_job_takes_nobody(self):
        psrun = self.start("out", self.KIND, settings=[*SETTINGS, FOR_ALL, "job.workers=1..2",
                                                         "net.join_timeout_ms=500"])
        self.wait_for_lines(psrun, "out", 3)
        joiner = self.join("out")
        self.assertEqual(joiner.wait(WAIT_S), 1)
        self.assertIn("the job has as many workers as job.workers allows", self.text_of("out-joiner-0.log"))
        psrun.send_signal(signal.SIGINT)
        self.end(psrun, "out", code=130)

    def test_worker_0_and_the_last_ones_end_the_job(self):
        for workers, told in first(1, ((2, 0), (2, 1))):
            psrun = self.start("out", ("ps", 1, workers), settings=[*SETTINGS, "job.workers=2..4"])
            self.wait_for_lines(psrun, "out", 3)
            os.kill(self.find(psrun, "worker", told), signal.SIGTERM)
            self.assertEqual(psrun.wait(WAIT_S), 75, self.text("out"))
            shutil.rmtree(self.path("out"))

    def test_a_fixed_job_takes_nobody(self):
        psrun = self.start("out", self.KIND, settings=[*SETTINGS, "job.workers=2..2"])
        self.wait_for_lines(psrun, "out", 3)
        joiner = self.join("out")
        self.assertEqual(joiner.wait(WAIT_S), 1)
        with open(self.path("out-joiner-0.log"), encoding="utf-8") as f:
            self.assertIn("the job has a fixed number of workers: give job.workers a range", f.read())
        psrun.send_signal(signal.SIGINT)
        self.end(psrun, "out", code=130)

    def test_the_global_batch_stays(self):
        for batch in first(1, (100, 120)):  # 100: as 4 micro-batches of 13 and 12, then 2 of 17, 17 and 16
            settings = [*SETTINGS, FOR_ALL, f"data.global_batch={batch}", f"train.steps={MANY}"]
            psrun = self.start("out", self.KIND, "--build-dir", self.path("build"), settings=settings)
            self.wait_for_lines(psrun, "out", 5)
            self.join("out")
            self.assertTrue(self.wait_for_size(psrun, "out", 3, 1))
            steps, _ = self.stop(psrun, "out")
            self.assertEqual([s["workers"] for s in self.stretches("out")], [2, 3])
            self.assertEqual(self.summary("out")["batch"], batch)
            change = self.stretches("out")[1]
            steps_an_epoch = -(-SAMPLES // batch)
            self.assertEqual(change["step"], change["epoch"] * steps_an_epoch - (-change["position"] // batch))
            self.check_samples("out", steps)
            self.joiners = []
            shutil.rmtree(self.path("out"))


if __name__ == "__main__":
    unittest.main()
