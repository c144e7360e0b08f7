"""Connections that are cut at random moments, or fall silent, between workers and shards, and
between members and the coordinator; hosts without a network for some seconds. Every job ends
with the weights that it would have had. A few real ones: ps-world has thousands.

PS_CUTS: how many cuts; PS_CUT_SEED: which. A failure names its seed."""
import os
import random
import time
import unittest
from pathlib import Path

import cuts
from jobs import JobTest, SlowDisk, first, listening_ports
from benchlib import netns

CUTS = int(os.environ.get("PS_CUTS", "8"))
SEED = int(os.environ.get("PS_CUT_SEED", "1"))
SHORT = ["train.epochs=5", "train.eval_every=2", "data.train=0-1199", "net.step_timeout_ms=20000",
         "train.save_every=60"]
# The step that is saved before the end of the shortest job. A job waits there until it has been disturbed.
WAITS_AT = 60
# servers, workers, settings. ps-world has jobs over TCP alone: through shared memory only headers travel.
JOBS = [
    (1, 2, ["exchange.shm=off"]),
    (2, 3, ["exchange.codec=onebit", "checkpoint.every=1", "checkpoint.keep=1"]),
    (1, 2, ["exchange.shm=on", "optimizer.clip_norm=0.5"]),
    (2, 2, ["exchange.codec=int8", "exchange.credit=16KiB", "exchange.chunk=16KiB"]),
]
SILENCE = ["net.heartbeat_ms=100", "exchange.shm=off"]  # silence is noticed after a second


class CutTest(JobTest):
    def setUp(self):
        super().setUp()
        reason = cuts.why_not()
        if reason:
            self.skipTest(reason)
        self.disk = SlowDisk(self.path("held"))

    def cut_one(self, parts, draw):
        """Cuts one connection of one part. Returns False if there is none."""
        part = parts[draw.choice(sorted(parts))]
        try:
            found = cuts.connections(part.popen.pid)
            if not found:
                return False
            fd, *_ = draw.choice(found)
            cuts.cut(part.popen.pid, fd, hard=draw.random() < 0.5)
        except OSError:  # the process, or that connection, has just ended
            return False
        return True

    def end_well(self, parts, out, settings):
        """Waits for the end. Returns the weights."""
        codes = self.wait_all(parts, 100)
        logs = "\n".join(f"--- {n}\n{p.text()}" for n, p in parts.items())
        self.assertEqual(set(codes.values()), {0}, f"{settings}\n{logs}")
        os.rename(self.path("worker-0"), self.path(out))
        return self.weights(out)

    def run_job(self, out, n_cuts, draw, job):
        """Runs a job with n_cuts cuts of connections. Returns the weights. A part that gets no core for longer than
        the coordinator waits for its connection joins again."""
        def cut(parts):
            return self.cut_one(parts, draw)
        parts = self.disturbed(job, n_cuts, draw, cut, *["recovery.rejoins=20"] * (n_cuts > 0))
        return self.end_well(parts, out, job[2]) + self.last_checkpoint(out)

    def disturbed(self, job, n, draw, disturb, *more):
        """Starts a job and disturbs it n times before it may end. disturb(parts) returns whether it
        did so."""
        servers, workers, settings = job
        if n:
            self.disk.hold_job(WAITS_AT)
        parts = self.start_job(servers, workers, *SHORT, *settings, *more, prefix=self.disk.prefix)
        done, given_up = 0, time.monotonic() + 100
        while done < n:
            self.assertLess(time.monotonic(), given_up, f"disturbed {done} times only: {job}")
            ended = [f"{name}:\n{p.text()}" for name, p in parts.items() if p.popen.poll() is not None]
            self.assertEqual(ended, [], "\n".join(ended))
            time.sleep(draw.random() * 0.06)
            done += disturb(parts)
        if n:
            self.disk.let_job_go(WAITS_AT)
        return parts

    def last_checkpoint(self, out):
        """Returns its files of servers and workers; none if the job makes no checkpoints."""
        folders = sorted(f for f in Path(self.path(out)).glob("checkpoints/step-*") if f.is_dir())
        return b"".join(f.read_bytes() for folder in folders[-1:]
                        for f in sorted(folder.glob("*.safetensors")))


class Cuts(CutTest):
    def test_every_job_ends_with_the_same_bits(self):
        draw, done, rounds = random.Random(SEED), 0, 0
        expected = {}
        while done < CUTS:
            i = rounds % len(JOBS)
            if i not in expected:
                expected[i] = self.run_job(f"calm-{i}", 0, draw, JOBS[i])
            n = min(8, CUTS - done)
            weights = self.run_job(f"cut-{rounds}", n, draw, JOBS[i])
            self.assertEqual(weights, expected[i], f"seed {SEED}, round {rounds}: {JOBS[i]}")
            done += n
            rounds += 1
        print(f"{done} cuts in {rounds} jobs, seed {SEED}")


class Silences(CutTest):
    """Connections on which nothing arrives any more, although no process has closed them."""

    def silence_one(self, parts, draw):
        """Silences both ends of a worker's connection. Returns False if it has just ended."""
        worker = parts[draw.choice([n for n in sorted(parts) if n.startswith("worker")])]
        try:
            listens = listening_ports(worker.popen.pid)
            fd, own, peer = draw.choice([c for c in cuts.connections(worker.popen.pid)
                                         if c[1] not in listens])
            there = [(p.popen.pid, c[0]) for p in parts.values()
                     for c in cuts.connections(p.popen.pid) if c[1:] == (peer, own)]
            for pid, number in [(worker.popen.pid, fd), *there]:
                cuts.deafen(pid, number)
        except (OSError, IndexError):
            return False
        return True

    def run_silenced(self, out, draw, job):
        def silence(parts):
            return self.silence_one(parts, draw)
        parts = self.disturbed(job, 3, draw, silence, *SILENCE)
        weights = self.end_well(parts, out, job[2])
        mended = [line for p in parts.values() for line in p.text().splitlines()
                  if "connection-mended" in line]
        self.assertTrue(mended, "no silence was noticed")
        return weights

    def test_a_connection_that_nobody_closed_is_made_again(self):
        draw = random.Random(SEED)
        calm = self.run_job("calm", 0, draw, JOBS[0])
        self.assertEqual(self.run_silenced("silent", draw, JOBS[0]), calm, f"seed {SEED}")


REASON = netns.why_not()
HOSTS = {"server": 2, "worker": 2}
OUTAGE_S = 3


@unittest.skipIf(REASON, f"{REASON}")
class Outages(CutTest):
    """Emulated hosts whose cables are pulled, in a job with keys."""

    def start_on(self, hosts, *settings):
        parts = self.start_job(HOSTS["server"], HOSTS["worker"], *settings,
                               f"net.curve={self.keys()}", host=hosts.hosts["server", 0],
                               prefix=lambda role, rank: [*hosts.prefix(role, rank), *self.disk.prefix])
        self.wait_for_steps("worker-0", 3)
        return parts

    def outage(self, out, victims, settings):
        """Runs a job in which hosts have no network for a while. Returns its weights."""
        with netns.Hosts(1000, HOSTS) as hosts:
            self.disk.hold_job(WAITS_AT)
            parts = self.start_on(hosts, *settings)
            for victim in victims:
                hosts.plug(*victim, False)
            self.disk.let_job_go(WAITS_AT)
            time.sleep(OUTAGE_S)
            ended = [n for n, p in parts.items() if p.popen.poll() is not None]
            for victim in victims:
                hosts.plug(*victim, True)
            self.assertEqual(ended, [], "before the network was back")
            weights = self.end_well(parts, out, settings)
        mended = sum(p.text().count("connection-mended") for p in parts.values())
        return weights, mended

    def test_a_job_goes_on_with_the_same_bits(self):
        common = ["train.epochs=6", "train.save_every=60", "data.train=0-1199", "train.eval_every=3",
                  "train.log_every=5", "net.step_timeout_ms=30000"]
        # TCP sends again after 0.2, 0.6, 1.4, 3 and 6.2 seconds: a connection that may be silent for 10 s outlives
        # the outage, even one that a busy machine makes longer; one that may be silent for 1 s is made again.
        outlives = ["net.heartbeat_ms=1000", "net.dead_after_ms=40000"]
        impatient = "net.heartbeat_ms=100"
        for i, (victims, settings, again) in enumerate(first(1, (
                ([("worker", 1)], outlives, False),
                ([("server", 0), ("worker", 0)], [impatient, "loss_scale.use=on"], True),
                ([("server", 1)], [impatient, "exchange.codec=onebit", "exchange.codec_warmup=8"], True)))):
            calm = self.start_job(2, 2, *common, *settings)
            expected = self.end_well(calm, f"calm-{i}", settings)
            weights, mended = self.outage(f"outage-{i}", victims, [*common, *settings])
            self.assertEqual(weights, expected, f"{victims}: {settings}")
            self.assertEqual(mended > 0, again, f"{victims}: {settings}")

    def test_who_has_vanished_is_named(self):
        with netns.Hosts(1000, HOSTS) as hosts:
            parts = self.start_on(hosts, "train.epochs=100000", "train.log_every=5",
                                  "train.eval_every=0", "net.heartbeat_ms=200",
                                  "net.dead_after_ms=3000", "net.step_timeout_ms=60000")
            hosts.plug("worker", 1, False)
            codes = self.wait_all(parts)
        self.assertNotIn(0, codes.values())
        for name, part in parts.items():
            says = ("the coordinator (server 0 at " if name == "worker 1" else "worker 1 (host ")
            self.assertRegex(part.text(), says.replace("(", r"\(") + ".*is dead: no sign of life for")


if __name__ == "__main__":
    unittest.main()
