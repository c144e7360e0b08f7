"""psrun --restarts: a job of which parts are killed has the results of a job that was left alone.

PS_RESTART_JOBS: how many jobs are killed at fault points (1); PS_RESTART_SEED: which points and kinds (1). They are
those of all-reduce, which ps-world does not have.
"""
import os
import random
import re
import shutil
import signal
import time
import unittest

from jobs import BIN, Faults, nightly, wrapped_bin
from psrunlib.restarts import read_step
from restarting import SETTINGS, RestartTest

JOBS = int(os.environ.get("PS_RESTART_JOBS", "1"))
SEED = int(os.environ.get("PS_RESTART_SEED", "1"))
KINDS = [("allreduce", 0, 2, "train.accumulate=2", "checkpoint.best=loss"), ("allreduce", 0, 3, "optimizer.name=adamw", "data.global_batch=48")]
# Who comes to which fault points, and how often at least in a job of SETTINGS that is not disturbed.
WORKERS = {"step.begun": 60, "step.made": 60, "evaluation.batch": 5, "evaluation.made": 5, "model.due": 1}
WORKER_0 = {"checkpoint.taken": 12, "checkpoint.begun": 2, "checkpoint.written": 2, "checkpoint.renamed": 2,
            "checkpoint.kept": 2}


class Kills(RestartTest):
    @staticmethod
    def points(kind):
        """Pairs of a part and a fault point, with how often it comes there."""
        return {(f"worker/{rank}", name): n for rank in range(kind[2])
                for name, n in {**WORKERS, **(WORKER_0 if rank == 0 else {})}.items()}

    def check(self, kind, armed):
        faults = Faults(self.path("faults"), *armed)
        text = self.end(self.start("out", kind, "--restarts", len(armed), env=faults.env), "out")
        restarts = self.check_restarted(f"whole-{KINDS.index(kind)}", "out")
        self.assertEqual(len(restarts), len(faults.have_been()), text)
        self.assertEqual(len(restarts), text.count("; it is started again (restart "))
        shutil.rmtree(self.path("out"))
        shutil.rmtree(self.path("faults"))
        return len(restarts)

    def test_at_each_point(self):
        """Each job's parts are killed at points that no job before it had, three deaths a job."""
        chance, had, deaths = random.Random(SEED), set(), 0
        for i in range(JOBS):
            kind = KINDS[(SEED + i) % len(KINDS)]
            if not os.path.exists(self.path(f"whole-{KINDS.index(kind)}")):
                self.run_job(f"whole-{KINDS.index(kind)}", *kind[:3], *SETTINGS, *kind[3:])
            points = self.points(kind)
            names = sorted({name for _, name in points} - had) or sorted({name for _, name in points})
            names = chance.sample(names, min(3, len(names)))
            had |= set(names)
            armed = []
            for name in names:
                (role, _), n = chance.choice(sorted((p, n) for p, n in points.items() if p[1] == name))
                armed.append(f"{role}@{name}:{chance.randint(1, n)}:kill")
            with self.subTest(kind=kind, armed=armed):
                deaths += self.check(kind, armed)
        self.assertGreater(deaths, JOBS)  # a part that dies begins to count anew, so some are not reached


class Ends(RestartTest):
    KIND = ("ps", 1, 2)
    LONG = [*SETTINGS, "train.steps=100000", "train.epochs=100000", "schedule.name=constant"]

    def test_who_died_and_what_it_cost(self):
        settings = [*SETTINGS, "train.steps=200", "train.save_every=100"]
        self.run_job("whole", *self.KIND, *settings)
        psrun = self.start_held("out", self.KIND, (100,), "--restarts", "1", settings=settings)
        self.kill_before(psrun, "out", 100, "worker", 1, after=24)
        text = self.end(psrun, "out")
        self.assertIn("psrun: worker 1 was ended by SIGKILL; it is started again (restart 1 of 1)\n", text)
        said = re.search(r"psrun: the job goes on from step (\d+), [0-9.]+ s after worker 1 was ended by SIGKILL; "
                         r"\d+ steps? lost\n", text)
        death, = self.check_restarted("whole", "out")
        self.assertEqual((death["part"], death["cause"]), ("worker 1", "was ended by SIGKILL"))
        self.assertEqual(death["from_step"], int(said[1]))
        self.assertEqual(death["steps_lost"], death["step"] - death["from_step"])
        self.assertRegex(text, r"restarts    1, [0-9.]+ s and \d+ steps lost: worker 1 was ended by SIGKILL\n")

    def test_too_many(self):
        psrun = self.start("out", self.KIND, "--restarts", "2", settings=self.LONG)
        last = None
        for _ in range(3):
            self.assertTrue(self.wait_for_part(psrun, "server", 0, before=last))
            lines = self.lines("out")
            self.assertTrue(self.wait_until(psrun, lambda n=lines: self.lines("out") > n + 4))
            last = self.kill(psrun, "server", 0)
        text = self.end(psrun, "out", code=1)
        self.assertEqual(text.splitlines()[-3:],
                         ["psrun: the job failed: server 0 was ended by SIGKILL",
                          f"psrun: logs are in {self.path('out/logs')}",
                          "psrun: parts had been started again 2 times (--restarts 2)"])

    def test_two_at_once_and_one_restart(self):
        # Nothing is saved: a worker that is killed while it writes a checkpoint leaves an unfinished folder.
        psrun = self.start("out", self.KIND, "--restarts", "1",
                           settings=[*self.LONG, "checkpoint.every=1000000", "train.eval_every=0"])
        self.assertTrue(self.wait_until(psrun, lambda: self.lines("out") > 4))
        pids = [self.find(psrun, "worker", rank) for rank in range(2)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that psrun hears of both in one round
            for pid in pids:
                os.kill(pid, number)
        text = self.end(psrun, "out", code=1)
        self.assertNotIn("restart 2 of 1", text)
        self.assertIn("psrun: the job failed: worker ", text)

    def test_a_part_that_dies_each_time(self):
        for name, before, cause in (("signal", '[ "$RANK" = 1 ] && kill -SEGV $$', "was ended by SIGSEGV"),
                                    ("code", '[ "$RANK" = 1 ] && { echo no luck; exit 3; }', "ended with exit code 3")):
            wrapped_bin(self.path(name), "ps-worker", before)
            os.makedirs(self.path("build-" + name))
            os.rename(self.path(name), self.path("build-" + name, "bin"))
            began = time.monotonic()
            text = self.run_job(name, *self.KIND, *SETTINGS, code=1,
                                args=["--build-dir", self.path("build-" + name), "--restarts", "2"])
            self.assertGreater(time.monotonic() - began, 1)  # the second restart in a row waits
            self.assertIn(f"worker 1 {cause}; it is started again (restart 1 of 2)", text)
            self.assertIn("(restart 2 of 2, in 1 s: ", text)
            self.assertIn(f"psrun: the job failed: worker 1 {cause}", text)
            self.check_nothing_left(name)

    def test_the_last_worker_dies_when_it_has_left(self):
        """Its servers end, soon or when it has been started again, and then nobody is there to join."""
        faults = Faults(self.path("faults"), "worker/0@job.left:1:kill")
        self.end(self.start("out", ("ps", 2, 1), "--restarts", "2", env=faults.env), "out")
        self.assertEqual(len(faults.have_been()), 1)
        self.assertIn("model.safetensors", os.listdir(self.path("out")))
        self.assertEqual(self.summary("out")["steps"], 60)

    def test_a_part_that_dies_when_its_work_is_done(self):
        """When it is started again, it finds no job, and nobody waits for it. Worker 0 stays until the dead part has started."""
        again = self.path("again")
        wrapped_bin(self.path("bin"), "ps-worker", f'''
if [ -n "$PS_INCARNATION" ]; then
    touch {again}
else
    {BIN.resolve()}/ps-worker "$@"
    [ "$RANK" = 0 ] || kill -KILL $$
    until [ -e {again} ]; do sleep 0.05; done
    exit
fi''')
        text = self.run_job("out", "allreduce", 0, 2, *SETTINGS, "net.join_timeout_ms=1000000",  # longer than it waits
                            args=["--build-dir", self.folder, "--restarts", "2"])
        self.assertIn("worker 1 was ended by SIGKILL; it is started again (restart 1 of 2)\n", text)
        self.assertNotIn("told to end", text)
        self.check_nothing_left("out")

    def test_a_log_that_cannot_be_opened_again(self):
        """As on a disk that has become read-only. The others and their work are there still."""
        log = self.path("out", "logs", "worker-1.log")
        wrapped_bin(self.path("bin"), "ps-worker",
                    f'[ "$RANK$PS_INCARNATION" != 1 ] || {{ rm {log}; mkdir {log}; kill -KILL $$; }}')
        text = self.run_job("out", *self.KIND, *SETTINGS, args=["--build-dir", self.folder, "--restarts", "2"])
        self.assertIn(f"psrun: cannot write {log}: Is a directory; worker 1 has no log from here on\n", text)
        self.assertEqual(self.summary("out")["steps"], 60)
        self.check_nothing_left("out")

    def test_what_no_restart_mends(self):
        for out, settings, says in (("far", ["optimizer={name: sgd, lr: 1e9}", "data.scale=10000"], "not finite"),
                                    ("none", ["data.path=/no/such/folder"], "no folder")):
            text = self.run_job(out, *self.KIND, *SETTINGS, *settings, code=1, args=["--restarts", "3"])
            self.assertIn(says, text)
            self.assertNotIn("started again", text)

    def test_checkpoints_are_chosen(self):
        for why, keys, chosen in ((["--restarts", "1"], [], "checkpoint.minutes=5 checkpoint.keep=1"),
                                  (["--restarts", "1"], ["checkpoint.keep=7"], "checkpoint.minutes=5"),
                                  (["--resume", "auto"], [], "checkpoint.minutes=5 checkpoint.keep=1")):
            text = self.run_job("out", *self.KIND, "train.steps=5", *keys, args=[*why, "--dry-run"])
            self.assertRegex(text, f"psrun: {why[0]}( auto)?: no key says when to write checkpoints; {chosen}\n")
            commands = [line for line in text.splitlines() if "/ps-" in line]
            self.assertEqual(len(commands), text.count("--set checkpoint.minutes=5"))

    def test_the_last_step_where_a_record_is_cut_short(self):
        whole = '{"step": 40, "loss": 1.5}\n{"step": 41, "loss": 1.25}\n'
        for text, step in ((whole, 41), (whole + '{"step": 42, "lo', 41), (whole + "\0\0\0", 41), (whole + '{"step": 42}', 41),
                           ('{"step": 4', 0), ("", 0), ("[]\n", 0), ("x" * (3 << 16) + "\n" + whole, 41)):
            self.assertEqual(read_step(self.file("metrics.jsonl", text)), step, text)
        self.assertEqual(read_step(self.path("none.jsonl")), 0)

    def test_signals(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
            psrun = self.start("out", self.KIND, "--restarts", "3", "--resume", "auto", settings=self.LONG)
            self.assertTrue(self.wait_for_part(psrun, "worker", 0))
            lines = self.lines("out")
            self.assertTrue(self.wait_until(psrun, lambda n=lines: self.lines("out") > n + 4))
            old = self.kill(psrun, "worker", 0)
            self.assertTrue(self.wait_for_part(psrun, "worker", 0, before=old))
            self.assertTrue(self.wait_until(
                psrun, lambda: "resume step=" in self.text("out").partition("; it is started again")[2]))
            time.sleep(0.2)
            psrun.send_signal(number)
            self.end(psrun, "out", code=code)
            self.assertEqual(len(self.summary()["restarts"]), 1)

    def test_a_signal_while_it_waits(self):
        wrapped_bin(self.path("bin"), "ps-worker", "kill -SEGV $$")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            psrun = self.start("out", self.KIND, "--restarts", "9", "--build-dir", self.folder)
            self.assertTrue(self.wait_until(psrun, lambda: "in 4 s" in self.text("out")))
            psrun.send_signal(number)
            self.end(psrun, "out", code=code)
            self.assertFalse(self.exists("out", "metrics.jsonl"))  # nothing was begun


class Folders(RestartTest):
    """A restarted part goes on with its own job's checkpoints, never with those of another job."""

    KIND = ("ps", 1, 2)

    def die_early(self, out, *args, settings=SETTINGS):
        """A worker is killed before worker 0 can have claimed the folder."""
        psrun = self.start_held(out, self.KIND, (50,), "--restarts", "3", *args,
                                settings=[*settings, "train.save_every=50"])
        self.assertTrue(self.wait_for_part(psrun, "worker", 1))
        self.kill(psrun, "worker", 1)
        self.disk.let_job_go(50)
        return self.end(psrun, out)

    @nightly
    def test_an_old_run_that_is_replaced(self):
        self.run_job("whole", *self.KIND, *SETTINGS)
        self.run_job("out", *self.KIND, *SETTINGS, "train.seed=7")
        text = self.die_early("out", "--overwrite")
        self.assertIn("it is started again (restart 1 of 3)", text)
        self.check_restarted("whole", "out")

    def test_an_old_run_that_stays(self):
        self.run_job("out", *self.KIND, *SETTINGS)
        text = self.run_job("out", *self.KIND, *SETTINGS, code=1, args=["--restarts", "3"])
        self.assertIn("holds a run already", text)

    @nightly
    def test_a_run_that_is_resumed(self):
        self.run_job("whole", *self.KIND, *SETTINGS, "schedule.name=constant")
        for name, args in (("in-place", ["--resume", self.path("in-place")]),
                           ("auto", ["--resume", "auto"]),
                           ("elsewhere", ["--resume", self.path("part")])):
            self.run_job("part" if name == "elsewhere" else name, *self.KIND, *SETTINGS,
                         "schedule.name=constant", "train.steps=20")
            text = self.die_early(name, *args, settings=[*SETTINGS, "schedule.name=constant"])
            self.assertIn("it is started again (restart 1 of 3)", text)
            self.assertEqual(self.weights("whole"), self.weights(name))


if __name__ == "__main__":
    unittest.main()
