"""Faults that a job survives without a death: a part that reads slowly, a host without a network, a
process that is stopped, connections that are half open. The job goes on with the same bits, or ends
and names the part that was too slow."""
import os
import re
import signal
import time
import unittest

import cuts
from jobs import JobTest, listening_ports, nightly
from restarting import RestartTest
from slow_reader import TINY_BYTES, SlowReader

NO_CUTS = cuts.why_not()
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


if __name__ == "__main__":
    unittest.main()
