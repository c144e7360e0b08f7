"""Faults that a job survives without a death: a part that reads slowly, a host without a network, a
process that is stopped, connections that are half open. The job goes on with the same bits, or ends
and names the part that was too slow.

PS_FAULTS=long: also faults that last as long as the restart of a switch, or the sleep of a laptop.
"""
import contextlib
import os
import re
import signal
import threading
import time
import unittest

import cuts
from chaos import netns
from jobs import BIN, JobTest, listening_ports, nightly
from restarting import RestartTest
from slow_reader import TINY_BYTES, SlowReader
from test_elastic import MANY, SETTINGS as ELASTIC_SETTINGS, ElasticTest

LONG = os.environ.get("PS_FAULTS") == "long"
OUTAGE_S, STOP_S = 10, 30
NO_CUTS, NO_HOSTS = cuts.why_not(), netns.why_not()
long = (lambda case: case) if LONG else (lambda case: None)
MENDED = re.compile(r"WARN  connection-mended .* repeated=(\d+)$", re.M)


@unittest.skipIf(NO_CUTS, f"{NO_CUTS}")
class SlowReaders(RestartTest):
    SETTINGS = ["exchange.shm=off", "train.log_every=1", "data.samples=512", "train.epochs=6"]
    # The part reads slowly until that many steps are made, or that time is over. The records of 16 steps that were
    # made before may come meanwhile.
    STEPS, SLOW_S = 20, 5

    def check(self, kind, role, rank, *args, stands_s=0.17, settings=()):
        """Returns psrun's words."""
        config, settings = self.wide_model(2048), [*self.SETTINGS, *settings]
        self.run_job("whole", *kind[:3], *settings, *kind[3:], config=config)
        psrun = self.start("out", kind, *args, settings=settings, config=config)
        self.assertTrue(self.wait_until(psrun, lambda: self.lines("out") > 2))
        with SlowReader(self.find(psrun, role, rank), stands_s=stands_s):
            lines, end = self.lines("out"), time.monotonic() + self.SLOW_S
            self.wait_until(psrun, lambda: self.lines("out") >= lines + self.STEPS or time.monotonic() > end)
        text = self.end(psrun, "out")
        self.assertEqual(self.weights("whole"), self.weights("out"))
        return text

    @nightly
    def test_a_worker(self):
        self.check(("ps", 2, 2), "worker", 1)

    @nightly
    def test_a_server_of_a_job_with_a_codec(self):
        self.check(("ps", 2, 2, "exchange.codec=onebit", "exchange.codec_warmup=4"), "server", 1)

    def test_the_coordinator(self):
        self.check(("ps", 2, 2, "optimizer.clip_norm=0.5"), "server", 0)

    @nightly
    def test_all_reduce(self):
        self.check(("allreduce", 0, 3), "worker", 1)

    @nightly
    def test_one_that_is_too_slow_for_a_while(self):
        """All parts join again, and make the step once more."""
        text = self.check(("ps", 2, 2), "server", 1, "--restarts", 9, stands_s=5,
                          settings=["net.step_timeout_ms=2500", "checkpoint.every=5"])
        self.assertRegex(text, 'WARN  rejoin n=1/.*net.step_timeout_ms')
        self.assertEqual(self.summary()["recovery"]["deaths"], 0, text)


@unittest.skipIf(NO_CUTS, f"{NO_CUTS}")
class TooSlow(JobTest):
    def check(self, role, rank):
        parts = self.start_job(2, 3, "train.epochs=100000", "exchange.shm=off", "train.log_every=20",
                               "net.step_timeout_ms=4000", "net.dead_after_ms=100000", config=self.wide_model(4096))
        self.wait_for_steps("worker-0", 3)
        with SlowReader(parts[f"{role} {rank}"].popen.pid, runs_s=0.001, stands_s=60, buffer_bytes=TINY_BYTES):
            parts["server 0"].wait_for("ERROR failed")
        self.assertNotIn(0, self.wait_all(parts).values())
        named = rf"{role} {rank} \(host [^)]*\)"
        self.assertRegex(parts["server 0"].text(), f'WARN  straggler who="{named}" cause="stopped"')
        self.assertRegex(parts["server 0"].text(),
                         f"ERROR failed kind=PEER .*; the job has waited for {named}: stopped")

    def test_a_worker_is_named(self):
        self.check("worker", 1)

    def test_a_server_is_named(self):
        self.check("server", 1)


@unittest.skipIf(NO_CUTS, f"{NO_CUTS}")
class Told(RestartTest):
    def test_lost_connections_and_what_was_sent_again(self):
        settings = ["exchange.shm=off", "train.epochs=1000", "train.steps=400", "train.log_every=4",
                    "train.save_every=200"]
        self.run_job("whole", "ps", 1, 2, *settings)
        psrun = self.start_held("out", ("ps", 1, 2), (200,), settings=settings)
        self.assertTrue(self.wait_until(psrun, lambda: self.lines("out") > 2))
        server, worker = self.find(psrun, "server", 0), self.find(psrun, "worker", 1)
        listens = listening_ports(server)
        os.kill(server, signal.SIGSTOP)
        self.wait_until_idle(worker)  # it waits for an answer
        for fd, _, peer in cuts.connections(worker):
            if peer in listens:
                cuts.cut(worker, fd, hard=True)
        os.kill(server, signal.SIGCONT)
        self.disk.let_job_go(200)
        text = self.end(psrun, "out")
        self.assertEqual(self.weights("whole"), self.weights("out"))
        repeated = [int(n) for n in MENDED.findall(text)]
        recovery = self.summary()["recovery"]
        self.assertGreaterEqual(sum(repeated), 1, text)
        self.assertEqual((recovery["mended_connections"], recovery["repeated_messages"]),
                         (len(repeated), sum(repeated)))
        self.assertRegex(text, rf"events +{len(repeated)} lost connections? mended, "
                               rf"{sum(repeated)} messages? sent again\n")


@long
class Long(RestartTest):
    """All deadlines have their defaults. The jobs of a test are disturbed at the same time: they
    only wait."""

    SETTINGS = ["train.epochs=100000", "train.steps=4000", "train.eval_every=0", "schedule.name=cosine",
                "train.log_every=20", "checkpoint.every=400"]
    PARTS = [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
    KINDS = {"ps": ("ps", 2, 2), "codec": ("ps", 2, 2, "exchange.codec=onebit", "exchange.codec_warmup=20",
                                            "optimizer.clip_norm=0.5"), "allreduce": ("allreduce", 0, 2)}

    def setUp(self):
        super().setUp()
        self.whole = set()

    def expected(self, kind):
        name = f"whole-{kind}"
        if name not in self.whole:
            self.run_job(name, *self.KINDS[kind][:3], *self.SETTINGS, *self.KINDS[kind][3:])
            self.whole.add(name)
        return name

    def parts_of(self, kind):
        return [p for p in self.PARTS if self.KINDS[kind][1] or p[0] == "worker"]

    def check_end(self, psrun, out, kind, restarts=None):
        text = self.end(psrun, out)
        self.assertEqual(self.weights(self.expected(kind)), self.weights(out), text)
        if restarts is not None:
            self.assertEqual(self.summary(out)["recovery"]["deaths"], restarts, text)
        return text

    def disturb_each(self, kinds, disturb, *args, seconds, settings=(), restarts=None):
        """Runs a job for each kind and part. disturb(psrun, role, rank) returns the function that ends the fault."""
        jobs = []
        for kind in kinds:
            self.expected(kind)
            for role, rank in self.parts_of(kind):
                out = f"{kind}-{role}-{rank}"
                psrun = self.start(out, self.KINDS[kind], *args, settings=[*self.SETTINGS, *settings])
                self.assertTrue(self.wait_until(psrun, lambda name=out: self.lines(name) > 4))
                timer = threading.Timer(seconds, disturb(psrun, role, rank))
                timer.start()
                jobs.append((psrun, out, kind, timer))
        for psrun, out, kind, timer in jobs:
            timer.join()
            with self.subTest(job=out):
                self.check_end(psrun, out, kind, restarts)

    def stop(self, psrun, role, rank):
        pid = self.signal(psrun, role, rank, signal.SIGSTOP)

        def go_on():
            if self.find(psrun, role, rank) == pid:
                os.kill(pid, signal.SIGCONT)
        return go_on

    def test_a_process_is_stopped_and_nobody_may_die(self):
        self.disturb_each(self.KINDS, self.stop, seconds=STOP_S,
                          settings=["net.dead_after_ms=60000"])

    def test_a_process_is_stopped_longer_than_it_may(self):
        self.disturb_each(self.KINDS, self.stop, "--restarts", 9, seconds=STOP_S, restarts=1)

    def deafen(self, psrun, role, rank):
        """Nothing reaches the part on its present connections; its peers do not notice."""
        pid = self.find(psrun, role, rank)
        for fd, *_ in cuts.connections(pid):
            with contextlib.suppress(OSError):
                cuts.deafen(pid, fd)
        return lambda: None

    @unittest.skipIf(NO_CUTS, f"{NO_CUTS}")
    def test_connections_are_half_open(self):
        self.disturb_each(self.KINDS, self.deafen, "--restarts", 9, seconds=0,
                          settings=["exchange.shm=off"])

    @unittest.skipIf(NO_HOSTS, f"{NO_HOSTS}")
    def test_a_link_is_down(self):
        for kind, (mode, servers, workers, *_) in self.KINDS.items():
            self.expected(kind)
            with netns.Hosts(1000, {"server": max(servers, 1), "worker": workers}) as hosts:
                on_hosts, env = hosts.for_psrun(self.folder, BIN, ("server", "worker") if servers else ("worker",))
                for role, rank in self.parts_of(kind):
                    out = f"{kind}-{role}-{rank}"
                    psrun = self.start(out, self.KINDS[kind], "--restarts", 9, *on_hosts,
                                       settings=self.SETTINGS, env=env)
                    self.assertTrue(self.wait_until(psrun, lambda name=out: self.lines(name) > 4))
                    hosts.plug(role, rank, False)
                    time.sleep(OUTAGE_S)
                    hosts.plug(role, rank, True)
                    with self.subTest(job=out):
                        self.check_end(psrun, out, kind)


@long
@unittest.skipIf(NO_HOSTS, f"{NO_HOSTS}")
class LongElastic(ElasticTest):
    """An elastic job goes on without a worker that has no network. The worker comes back later."""

    KIND = ("ps", 2, 3, "optimizer.name=adamw")

    def test_a_link_is_down(self):
        with netns.Hosts(1000, {"server": 2, "worker": 3}) as hosts:
            on_hosts, env = hosts.for_psrun(self.folder, self.path("build", "bin"))
            psrun = self.start("out", self.KIND, *on_hosts, env=env,
                               settings=[*ELASTIC_SETTINGS, f"train.steps={MANY}", "net.dead_after_ms=2000"])
            self.assertTrue(self.wait_until(psrun, lambda: self.lines("out") > 8))
            hosts.plug("worker", 1, False)
            self.assertTrue(self.wait_for_size(psrun, "out", 2, 1))
            hosts.plug("worker", 1, True)
            self.assertTrue(self.wait_for_size(psrun, "out", 3, 2))
            steps, _ = self.stop(psrun, "out")
        recovery = self.summary()["recovery"]
        self.assertEqual((recovery["leaves"], recovery["joins"], recovery["deaths"]), (1, 1, 0))
        self.check_samples("out", steps)
        self.check_replay("out", self.KIND, MANY, steps)


if __name__ == "__main__":
    unittest.main()
