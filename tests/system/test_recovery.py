"""What the death of a process costs: bench/recovery measures it. Two workers hold the newest state
of a job, so that no single death makes it go back to a checkpoint on the disk."""
import json
import re
import sys
import unittest

from jobs import BIN, DIGITS, ROOT, JobTest, Part, SlowDisk, nightly, run_well
from restarting import SETTINGS, RestartTest

# The jobs go on from memory: before the last step the disk has no checkpoint. Memory gets one as often as possible,
# because every kill must go back to a later step than the one before.
HELD = [*SETTINGS, "train.steps=120", "train.log_every=1", "checkpoint.every=1000000", "recovery.share=0.5",
        "train.save_every=40"]
HELD_AT = (40, 80)  # at the latest, there are two kills


class Memory(RestartTest):
    def check_kills(self, kind, ranks):
        """Kills those workers one after the other. Returns psrun's output."""
        self.run_job("whole", *kind[:3], *HELD, *kind[3:])
        psrun = self.start_held("out", kind, HELD_AT, "--restarts", len(ranks), settings=HELD)
        for step, rank in zip(HELD_AT, ranks):
            self.kill_before(psrun, "out", step, "worker", rank)
        text = self.end(psrun, "out")
        deaths = self.check_restarted("whole", "out")
        self.assertEqual(len(deaths), len(ranks))
        steps = [d["from_step"] for d in deaths]
        self.assertGreater(steps[0], 0, text)
        self.assertEqual(steps, sorted(set(steps)), text)  # each time at a later step
        self.assertNotIn("it came no further", text)  # so nobody waits
        return text

    def test_worker_0(self):
        text = self.check_kills(("ps", 2, 2, "optimizer.name=adamw"), [0, 0])
        self.assertEqual(len(re.findall('INFO  resume step=.* from="memory of worker 1"', text)), 2)

    def test_all_reduce(self):
        self.check_kills(("allreduce", 0, 3, "optimizer.name=adamw"), [0, 1])


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
