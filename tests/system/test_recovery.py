"""What the death of a process costs: bench/recovery measures it. Two workers hold the newest state
of a job, so that no single death makes it go back to a checkpoint on the disk."""
import json
import os
import re
import shutil
import signal
import sys
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, ROOT, JobTest, Part, SlowDisk, nightly, run_well, wrapped_bin
from restarting import SETTINGS, RestartTest
from test_chaos import NORMS

# The jobs go on from memory: before the last step the disk has no checkpoint. Memory gets one as often as possible,
# because every kill must go back to a later step than the one before.
IN_MEMORY = [*SETTINGS, "train.steps=120", "train.log_every=1", "checkpoint.every=1000000", "recovery.share=0.5"]
HELD_AT = (40, 80)  # at the latest, there are two kills
HELD = [*IN_MEMORY, "train.save_every=40"]


class Memory(RestartTest):
    def check_kills(self, kind, role, ranks, config=DIGITS, args=(), settings=HELD):
        """Kills those parts one after the other. Returns psrun's output."""
        self.run_job("whole", *kind[:3], *settings, *kind[3:], config=config)
        at = HELD_AT[:len(ranks)]
        psrun = self.start_held("out", kind, at, "--restarts", len(ranks), *args, settings=settings, config=config)
        for step, rank in zip(at, ranks):
            self.kill_before(psrun, "out", step, role, rank)
        text = self.end(psrun, "out")
        deaths = self.check_restarted("whole", "out")
        self.assertEqual(len(deaths), len(ranks))
        steps = [d["from_step"] for d in deaths]
        self.assertGreater(steps[0], 0, text)
        self.assertEqual(steps, sorted(set(steps)), text)  # each time at a later step
        self.assertNotIn("it came no further", text)  # so nobody waits
        return text

    def test_worker_0(self):
        text = self.check_kills(("ps", 2, 2, "optimizer.name=adamw"), "worker", [0, 0])
        self.assertEqual(len(re.findall('INFO  resume step=.* from="memory of worker 1"', text)), 2)

    def test_all_reduce(self):
        self.check_kills(("allreduce", 0, 3, "optimizer.name=adamw"), "worker", [0, 1])

    @nightly
    def test_running_statistics(self):
        with open(self.path("norms.yaml"), "w", encoding="utf-8") as f:
            f.write(NORMS)
        self.check_kills(("ps", 1, 2), "worker", [0], config=self.path("norms.yaml"))

    @nightly
    def test_over_an_old_run(self):
        """The job goes on from memory and uses nothing of the run that it has replaced."""
        # It is short: until the new run has begun, its last step may be taken for the new run's.
        self.run_job("out", "ps", 1, 2, *SETTINGS, "train.seed=7", "train.steps=20")
        self.check_kills(("ps", 1, 2), "worker", [0], args=["--overwrite"])


class AtOnce(RestartTest):
    """Several parts are killed at the same time. Those that live keep their processes."""

    def check(self, kind, *victims):
        settings, at = [*HELD, "checkpoint.every=10", "train.steps=160"], (80, 120)
        self.run_job("whole", *kind[:3], *settings, *kind[3:])
        psrun = self.start_held("out", kind, at, "--restarts", len(victims), settings=settings)
        parts = [("server", r) for r in range(kind[1])] + [("worker", r) for r in range(kind[2])]
        self.assertTrue(self.wait_until(psrun, lambda: self.last_step("out") > 20 and self.on_disk("out")))
        before = {part: self.find(psrun, *part) for part in parts}
        for part in victims:
            os.kill(before[part], signal.SIGSTOP)  # so that no part hears of another's death
        for part in victims:
            os.kill(before[part], signal.SIGKILL)
        self.disk.let_job_go(at[0])
        self.assertTrue(self.wait_until(psrun, lambda: self.goes_on("out") > 0))
        now = {part: self.find(psrun, *part) for part in parts}
        self.disk.let_job_go(at[1])
        self.assertNotIn(None, now.values())
        text = self.end(psrun, "out")
        self.assertEqual({part for part in parts if before[part] != now[part]}, set(victims), text)
        deaths = self.check_restarted("whole", "out")
        self.assertEqual({d["part"] for d in deaths}, {f"{role} {rank}" for role, rank in victims})
        self.assertGreater(min(d["from_step"] for d in deaths), 0, text)

    @nightly
    def test_all_reduce_with_one_survivor(self):
        self.check(("allreduce", 0, 3, "optimizer.name=adamw"), ("worker", 0), ("worker", 2))


class ToldToEnd(RestartTest):
    """SIGTERM while parts are missing: the job can go on from where it was, and psrun says so."""

    KIND = ("ps", 1, 2)

    def start_with(self, before, settings):
        """Starts a job. A worker that is started again first runs the commands `before`."""
        os.makedirs(self.path("build"))
        wrapped_bin(self.path("build/bin"), "ps-worker", f'[ -n "$PS_INCARNATION" ] && {{ {before}; }}')
        psrun = self.start("out", self.KIND, "--restarts", "9", "--build-dir", self.path("build"), settings=settings)
        self.assertTrue(self.wait_until(psrun, lambda: self.last_step("out") > 8))
        return psrun

    def tell(self, psrun, settings):
        psrun.send_signal(signal.SIGTERM)
        self.assertIn(f"psrun --resume {self.path('out')} goes on", self.end(psrun, "out", code=75))
        self.run_job("whole", *self.KIND, *settings)
        self.run_job("out", *self.KIND, *settings, args=["--resume", "auto"])
        self.check_same("whole", "out")
        self.check_nothing_left("out")

    @nightly
    def test_while_the_others_join_again(self):
        """Worker 0 writes what it has in memory to the disk."""
        # It must not be over when worker 1 is killed.
        settings = [*IN_MEMORY, "train.steps=1500", "train.epochs=300"]
        psrun = self.start_with("exec sleep 1000", settings)
        self.kill(psrun, "worker", 1)
        log = Path(self.path("out", "logs", "server-0.log"))
        self.assertTrue(self.wait_until(
            psrun, lambda: log.read_text(encoding="utf-8").count("joined role=worker rank=0") > 1))
        self.assertEqual(self.listdir("out", "checkpoints"), [])
        self.tell(psrun, settings)

    @nightly
    def test_while_worker_0_waits_for_its_start(self):
        """The job goes on from the disk: worker 0, which writes, is not there. A slow disk skips some checkpoints."""
        settings = [*SETTINGS, "train.steps=1500", "train.epochs=300", "train.log_every=1"]
        psrun = self.start_with("kill -SEGV $$", settings)
        self.assertTrue(self.wait_until(psrun, lambda: self.on_disk("out")))
        self.kill(psrun, "worker", 0)
        self.assertTrue(self.wait_until(psrun, lambda: "in 2 s: it came no further" in self.text("out")))
        self.tell(psrun, settings)


class ByHand(JobTest):
    """Without psrun and PS_INCARNATION: the user who starts the dead part again does not count starts."""

    SETTINGS = ["train.epochs=12", "train.eval_every=0", "schedule.name=constant", "train.log_every=5",
                "checkpoint.every=20", "recovery.rejoins=10", "train.save_every=60"]

    def start_held(self, servers, workers, settings, at):
        """Starts a job that waits at each of these steps until the test lets it go on, or worker 0 is another one."""
        self.disk = SlowDisk(self.path("held"))
        self.disk.hold_job(*at)
        return self.start_job(servers, workers, *settings,
                              prefix=lambda role, rank: self.disk.prefix if (role, rank) == ("worker", 0) else ())

    def start_again(self, part, *more):
        """The same command in the same environment, in another terminal."""
        role, rank = part.name.split()
        argv = [a for a in part.args if a != "--overwrite" or more]
        return Part(role, int(rank), argv + ([] if more or role == "server" else ["--resume", "auto"]) + list(more),
                    part.env)

    def end_well(self, parts):
        codes = self.wait_all(parts, 100)
        logs = "\n".join(f"--- {n}\n{p.text()}" for n, p in parts.items())
        self.assertEqual(set(codes.values()), {0}, logs)
        return self.weights("worker-0")

    def test_the_dead_are_started_again(self):
        expected = self.end_well(self.start_job(2, 2, *self.SETTINGS))
        at = (60, 120, 180, 240)
        parts = self.start_held(2, 2, self.SETTINGS, at)
        for step, name in zip(at, ("worker 1", "server 1", "server 0", "worker 0")):
            parts["worker 0"].wait_for(r" checkpoint step=")
            parts[name].popen.kill()
            parts[name].popen.wait()
            seen = parts["worker 0"].text().count(" resume step=")
            self.disk.let_job_go(step)
            parts[name] = self.start_again(parts[name])
            self.addCleanup(parts[name].end)
            parts["worker 0"].wait_for("(?s)" + r" resume step=.*" * (1 if name == "worker 0" else seen + 1))
        self.assertEqual(self.end_well(parts), expected)

    @nightly
    def test_worker_0_goes_on_from_the_memory_of_another(self):
        settings = [*self.SETTINGS, "train.epochs=150", "checkpoint.every=100000", "recovery.share=0.5"]
        expected = self.end_well(self.start_job(1, 2, *settings))
        shutil.rmtree(self.path("worker-0"))
        parts = self.start_held(1, 2, settings, (300,))
        self.wait_for_steps("worker-0", 20)
        parts["worker 0"].popen.kill()
        parts["worker 0"].popen.wait()
        parts["worker 0"] = self.start_again(parts["worker 0"])
        self.addCleanup(parts["worker 0"].end)
        self.assertEqual(self.end_well(parts), expected)
        self.assertRegex(parts["worker 0"].text(), r'resume step=\d+ .*from="memory of worker 1"')

    @nightly
    def test_two_of_one_rank(self):
        """The second one is refused, and does no harm."""
        parts = self.start_held(2, 2, self.SETTINGS, (300,))
        parts["worker 0"].wait_for(r" checkpoint step=")
        second = self.start_again(parts["worker 1"], "--out", self.path("second"),
                                  "--set", "net.join_timeout_ms=5000")
        self.addCleanup(second.end)
        self.assertNotEqual(second.popen.wait(30), 0, second.text())
        self.assertRegex(second.text(), "kind=TIMEOUT .*joining job .*: the job is running and has all its members")
        self.assertNotIn(" rejoin ", parts["worker 0"].text())
        self.disk.let_job_go(300)
        self.end_well(parts)


class Bench(RestartTest):
    def bench(self, *args, code=0):
        return run_well([sys.executable, ROOT / "bench/recovery", "--build-dir", BIN.parent, "--out", self.path("out"),
                           *map(str, args), DIGITS], code=code, timeout=250)

    def report(self):
        return json.loads(self.text_of("out/recovery.json"))

    @nightly
    def test_stalls(self):
        text = self.bench("--kills", 2, "--minutes", 0, "--parts", "worker 1", "--parts", "server", "--seed", 3,
                          "-s", 1)
        report = self.report()
        self.assertEqual(report["stalls"]["all"]["kills"], 2)
        self.assertEqual(len(report["kills"]), 2)
        self.assertLessEqual({k["part"] for k in report["kills"]}, {"worker 1", "server 0"})
        self.assertTrue(all(k["seconds"] > 0 and k["from_step"] >= 0 for k in report["kills"]))
        self.assertRegex(text, r"all +2 +\d+\.\d\d \(\d+\.\d\d-\d+\.\d\d\) +\d+ \(\d+-\d+\)\n")
        self.assertIsNone(report["throughput"])

    @nightly
    def test_throughput(self):
        text = self.bench("--kills", 0, "--minutes", 0.1, "--alone", 0.05, "--rounds", 1, "--fault-every", 5,
                          "-m", "allreduce")
        report = self.report()["throughput"]
        self.assertEqual((report["faults"], report["seconds"], report["alone_seconds"]), (1, 6, 3))
        self.assertGreater(report["alone"]["median"], 0)
        self.assertGreater(report["faulty"]["median"], 0)
        self.assertRegex(text, r"1 fault in 6 s, one per 5 s: [\d,]+ useful samples/s, [\d,]+ alone: [\d.]+ \([\d.]+-[\d.]+\) %")

    def test_what_makes_no_sense(self):
        self.assertIn("the job has none of them", self.bench("--parts", "worker 7", "--kills", 1, code=1))
        self.assertIn("no fault each 29 s fits in", self.bench("--minutes", 0.1, "--kills", 0, code=1))
        self.assertIn("--alone 0: minutes, above 0", self.bench("--alone", 0, "--kills", 0, code=1))


if __name__ == "__main__":
    unittest.main()
