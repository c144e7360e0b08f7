"""Connections that are cut at random moments: between workers and shards, and between members
and the coordinator. Every job ends with the weights that it would have had.

PS_CUTS: how many cuts; PS_CUT_SEED: which. A failure names its seed."""
import os
import random
import time
import unittest
from pathlib import Path

import cuts
from jobs import JobTest

CUTS = int(os.environ.get("PS_CUTS", "20"))
SEED = int(os.environ.get("PS_CUT_SEED", "1"))
SHORT = ["train.epochs=8", "train.eval_every=2", "data.train=0-1199", "net.step_timeout_ms=20000"]
# servers, workers, settings: every codec, the two global decisions, several shards, and
# shared memory, where the headers alone travel.
JOBS = [
    (1, 2, ["exchange.shm=off"]),
    (2, 3, ["exchange.shm=off", "server.shards=2", "exchange.codec=fp16"]),
    (2, 2, ["exchange.codec=int8", "optimizer.clip_norm=0.5"]),
    (1, 4, ["exchange.codec=onebit", "server.shards=3"]),
    (2, 2, ["exchange.codec=topk", "exchange.codec_warmup=3"]),
    (2, 3, ["exchange.shm=off", "loss_scale.use=on", "server.shards=2"]),
    (1, 2, ["exchange.shm=on", "optimizer.clip_norm=0.5"]),
    (2, 2, ["exchange.codec=onebit", "exchange.codec_warmup=0", "exchange.credit=16KiB",
            "exchange.chunk=16KiB"]),
    (2, 2, ["checkpoint.every=1", "checkpoint.keep=1", "exchange.shm=off"]),
    (2, 3, ["checkpoint.every=1", "checkpoint.keep=1", "exchange.codec=onebit"]),
]


class Cuts(JobTest):
    def setUp(self):
        super().setUp()
        reason = cuts.why_not()
        if reason:
            self.skipTest(reason)

    def cut_one(self, parts, draw):
        """Cuts one connection of one part; False when there is none."""
        part = draw.choice(sorted(parts))
        pid = parts[part].popen.pid
        try:
            found = cuts.connections(pid)
            if not found:
                return False
            fd, *_ = draw.choice(found)
            cuts.cut(pid, fd, hard=draw.random() < 0.5)
        except OSError:  # the process, or that connection, has just ended
            return False
        return True

    def run_job(self, out, n_cuts, draw, job):
        """The weights, and how many connections were cut."""
        servers, workers, settings = job
        parts = self.start_job(servers, workers, *SHORT, *settings)
        done, given_up = 0, time.monotonic() + 100
        while done < n_cuts and time.monotonic() < given_up:
            if any(p.popen.poll() is not None for p in parts.values()):
                break
            time.sleep(draw.random() * 0.06)
            done += self.cut_one(parts, draw)
        codes = self.wait_all(parts, 100)
        logs = "\n".join(f"--- {n}\n{p.text()}" for n, p in parts.items())
        self.assertEqual(set(codes.values()), {0}, f"{settings}\n{logs}")
        os.rename(self.path("worker-0"), self.path(out))
        return self.weights(out) + self.last_checkpoint(out), done

    def last_checkpoint(self, out):
        """What it holds of the servers and workers; nothing where the job makes none."""
        folders = sorted(Path(self.path(out)).glob("checkpoints/step-*"))
        return b"".join(f.read_bytes() for folder in folders[-1:]
                        for f in sorted(folder.glob("*.safetensors")))

    def test_every_job_ends_with_the_same_bits(self):
        draw, done, rounds = random.Random(SEED), 0, 0
        expected = {}
        while done < CUTS:
            i = rounds % len(JOBS)
            if i not in expected:
                expected[i], _ = self.run_job(f"calm-{i}", 0, draw, JOBS[i])
            weights, n = self.run_job(f"cut-{rounds}", min(8, CUTS - done), draw, JOBS[i])
            self.assertEqual(weights, expected[i], f"seed {SEED}, round {rounds}: {JOBS[i]}")
            done += n
            rounds += 1
            self.assertLess(rounds, 4 * CUTS, "the jobs end before they are cut")
        print(f"{done} cuts in {rounds} jobs, seed {SEED}")


if __name__ == "__main__":
    unittest.main()
