"""Jobs with embedding tables, without Python, that go on: after deaths, from checkpoints, with other servers. What is
compared are the files of weights and of rows."""
import os
import socket
import unittest
from pathlib import Path

from jobs import Faults, JobTest, Psrun
from psrunlib import trace

# 20 steps of two workers, an evaluation after 10.
JOB = """
model:
  input: [13]
  loss: bce_with_logits
  layers:
    - interaction:
        name: pairs
        branches:
          - [linear: {name: bottom, out: 4}, relu]
          - [embedding_bag: {name: rows, tables: 26, dim: 4, lr: 0.1, init: normal, scale: 0.3, codec: int8}]
    - linear: {name: top, out: 1}
data: {kind: synthetic_clicks, samples: 320, test_samples: 64, batch: 16}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 2, device: cpu, log_every: 5}
"""
FILES = ("model.safetensors", "model.rows.safetensors", "best.safetensors", "best.rows.safetensors")


class RowJobs(JobTest):
    _wanted = {}  # of a job that is left alone

    def job(self):
        return self.file("job.yaml", JOB)

    def files(self, out):
        return {name: Path(self.path(out, name)).read_bytes() for name in FILES if Path(self.path(out, name)).exists()}

    def check(self, out):
        """Its files are those of a job that is left alone, on one server over TCP."""
        if not RowJobs._wanted:
            self.psrun("-s", "1", "-w", "2", self.job(), "exchange.shm=off", out="wanted")
            RowJobs._wanted = self.files("wanted")
        files = self.files(out)
        self.assertEqual(files.keys(), self._wanted.keys())
        for name, bytes_ in files.items():
            self.assertEqual(bytes_, self._wanted[name], name)

    def deaths(self, *armed, keys=(), out="out"):
        """What a job says of which parts die at fault points."""
        faults = Faults(self.path(f"faults-{out}"), *armed)
        argv = self.psrun_argv("--verbose", "-s", "2", "-w", "2", "--restarts", len(armed), self.job(), *keys, out=out)
        done = Psrun.run(argv, env=dict(os.environ, **faults.env))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(faults.have_been()), len(armed), done.stdout)
        self.check(out)
        return done.stdout

    def test_deaths_of_workers(self):
        """Servers go back by themselves; worker 0's death leaves the other worker's snapshot."""
        text = self.deaths("worker/1@step.begun:5:kill", "worker/0@step.made:16:kill")
        self.assertRegex(text, r"from=\"memory of worker 0\"")
        self.assertRegex(text, r"from=\"memory of worker 1\"")
        self.assertGreaterEqual(text.count("from=memory"), 4, text)

    def test_death_of_a_server(self):
        """All go back to the disk, where every server has written its rows."""
        text = self.deaths("server/1@rows.kept:2:kill", keys=("checkpoint.every=4", "recovery.share=0"))
        self.assertRegex(text, r"rows step=\d+ from=\S+/step-\d+")

    def test_workers_that_come_and_go(self):
        """One goes on without the other. Their log of members, as jobs that go on from the disk, gives the same."""
        faults = Faults(self.path("faults"), "worker/1@step.begun:8:kill")
        done = Psrun.run(self.psrun_argv("-s", "2", "-w", "2", self.job(), "job.workers=1..2", "recovery.wait_ms=100"),
                         env=dict(os.environ, **faults.env))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("the job goes on without it", done.stdout)
        self.psrun("--replay-membership", self.path("out", "membership.jsonl"), out="again")
        self.assertEqual(self.files("out"), self.files("again"))

    def test_rows_that_are_looked_up_ahead(self):
        """As it is over a network, which the address alone stands for here."""
        parts = self.start_job(2, 2, "exchange.shm=off", "train.trace=true", config=self.job(), host=socket.gethostname())
        codes = self.wait_all(parts)
        self.assertEqual(set(codes.values()), {0}, "\n".join(part.text() for part in parts.values()))
        spans = trace.read(self.path("worker-0", "trace", "worker-0.trace")).spans
        self.assertIn("prefetch", {s.kind for s in spans})
        self.check("worker-0")

    def test_resume_with_other_servers(self):
        self.psrun("-s", "2", "-w", "2", self.job(), "train.stop_after=13", code=75)
        self.psrun("-s", "3", "-w", "2", "--resume", self.path("out"), self.job(), "train.stop_after=17", code=75)
        self.psrun("-s", "3", "-w", "2", "--resume", self.path("out"), self.job())
        self.check("out")


if __name__ == "__main__":
    unittest.main()
