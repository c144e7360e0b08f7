"""Jobs with embedding tables, without Python, that go on: after deaths, from checkpoints, with other servers. What is
compared are the files of weights and of rows."""
import json
import os
import re
import shutil
import signal
import unittest
from pathlib import Path

import cuts
from jobs import Faults, JobTest, Psrun, clicks_model, find_part, wait_until
from psrunlib import trace

# 20 steps of two workers, an evaluation after 10.
JOB = clicks_model("linear: {name: bottom, out: 4}, relu", "tables: 26, dim: 4, lr: 0.1, init: normal, scale: 0.3, codec: int8",
                   "linear: {name: top, out: 1}") + """
data: {kind: synthetic_clicks, samples: 320, test_samples: 64, batch: 16}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 2, device: cpu, log_every: 5}
"""
FILES = ("model.safetensors", "model.rows.safetensors", "best.safetensors", "best.rows.safetensors")


class RowTest(JobTest):
    _wanted = {}  # of jobs that are left alone, by their keys

    def job(self):
        return self.file("job.yaml", JOB)

    def files(self, out):
        return {name: Path(self.path(out, name)).read_bytes() for name in FILES if Path(self.path(out, name)).exists()}

    def check(self, out, *keys):
        """Its files are those of a job that is left alone, on one server over TCP."""
        if keys not in RowTest._wanted:
            self.psrun("-s", "1", "-w", "2", self.job(), "exchange.shm=off", *keys, out="wanted")
            RowTest._wanted[keys] = self.files("wanted")
        files, wanted = self.files(out), self._wanted[keys]
        self.assertEqual(files.keys(), wanted.keys())
        for name, bytes_ in files.items():
            self.assertEqual(bytes_, wanted[name], name)

    def death_of_a_server(self, *armed, keys):
        """What a job says whose server 1 is killed when a checkpoint is on the disk: worker 0 stands in its 14th step until
        then. armed: fault points of other parts."""
        faults = Faults(self.path("faults"), "worker/0@step.made:14:hold", *armed)
        job = self.start_psrun("--verbose", "-s", "2", "-w", "2", "--restarts", 2, self.job(), *keys,
                               env=dict(os.environ, **faults.env))
        faults.wait_for("step.made", job)
        wait_until(lambda: any(Path(self.path("out", "checkpoints")).glob("step-*/manifest.json")), "no checkpoint")
        os.kill(find_part(job.pid, "server", 1), signal.SIGKILL)
        faults.let_go("step.made")
        said, _ = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 0, said)
        self.assertEqual(len(faults.have_been()), 1 + len(armed), said)
        return said

    def deaths(self, *armed, keys=(), of_all=(), out="out"):
        """What a job says of which parts die at fault points. of_all: keys of the job that is left alone, too."""
        faults = Faults(self.path(f"faults-{out}"), *armed)
        argv = self.psrun_argv("--verbose", "-s", "2", "-w", "2", "--restarts", len(armed), self.job(), *keys, *of_all, out=out)
        done = Psrun.run(argv, env=dict(os.environ, **faults.env))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(faults.have_been()), len(armed), done.stdout)
        self.check(out, *of_all)
        return done.stdout


class RowJobs(RowTest):
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
        faults = Faults(self.path("faults"), "member.here:1:hold", "worker/1@step.begun:8:kill")
        job = self.start_psrun("--verbose", "-s", "2", "-w", "2", self.job(), "job.workers=1..2", "recovery.wait_ms=100",
                               "net.dead_after_ms=200000", env=dict(os.environ, **faults.env))
        faults.wait_for("member.here", job)  # the coordinator waits, until both workers ask
        wait_until(lambda: all(pid and cuts.connections(pid) for pid in (find_part(job.pid, "worker", r) for r in (0, 1))))
        faults.let_go("member.here")
        said, _ = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 0, said)
        self.assertIn("the job goes on without it", said)
        self.psrun("--replay-membership", self.path("out", "membership.jsonl"), out="again")
        self.assertEqual(self.files("out"), self.files("again"))

    def test_rows_that_are_looked_up_ahead(self):
        """As it is over a network, for which an address stands here that does not look like the loopback's."""
        parts = self.start_job(2, 2, "exchange.shm=off", "train.trace=true", config=self.job(), host="0x7f.1")
        codes = self.wait_all(parts)
        self.assertEqual(set(codes.values()), {0}, "\n".join(part.text() for part in parts.values()))
        spans = trace.read(self.path("worker-0", "trace", "worker-0.trace")).spans
        self.assertIn("prefetch", {s.kind for s in spans})
        tables = self.summary("worker-0")["tables"]
        self.assertTrue(tables and all(0 < t["ready"] < t["ahead"] for t in tables), tables)
        self.check("worker-0")

    def test_rows_on_a_disk(self):
        """All of them; a worker's death and the end leave nothing there."""
        os.mkdir(self.path("disk"))
        text = self.deaths("worker/1@step.begun:5:kill", keys=(f"server.rows_disk={self.path('disk')}",))
        self.assertGreaterEqual(text.count("from=memory"), 2, text)
        self.assertEqual(os.listdir(self.path("disk")), [])
        said = self.psrun("-s", "1", "-w", "1", self.job(), "server.rows_disk=/no/such", code=1, out="refused")
        self.assertRegex(said, "server.rows_disk: /no/such/rows-.*: No such file or directory")

    def test_at_their_own_pace(self):
        """rows.policy asp, with the deaths of a worker and a server. What they recorded gives the same without deaths."""
        said = self.death_of_a_server("worker/1@step.begun:5:kill", keys=(
            "rows.policy=asp", "checkpoint.every=4", "recovery.share=0.5", f"server.rows_log={self.path('order')}"))
        records = [Path(self.path("order", f"rows-{shard}.log")).read_text() for shard in (0, 1)]
        self.assertTrue(all("back " in record for record in records), (said, records))
        asp = ("-s", "2", "-w", "2", self.job(), "rows.policy=asp")
        self.psrun(*asp, f"server.rows_replay={self.path('order')}", out="again")
        self.assertEqual(self.files("out"), self.files("again"))
        said = self.psrun("-s", "1", *asp[2:], f"server.rows_replay={self.path('order')}", code=1, out="other")
        self.assertRegex(said, r"server.rows_replay: \S+ is not the record of a job with 2 workers and 1 shards")
        said = self.psrun(*asp, f"server.rows_replay={self.path('other')}", code=1, out="none")
        self.assertRegex(said, r"server.rows_replay: \S+/rows-[01].log: No such file")
        said = self.psrun("-s", "1", "-w", "2", self.job(), f"server.rows_log={self.path('order')}", code=1, out="bsp")
        self.assertIn("server.rows_log: with embedding_bag it needs rows.policy asp", said)

    def test_resume_with_other_servers(self):
        self.psrun("-s", "2", "-w", "2", self.job(), "train.stop_after=13", code=75)
        self.psrun("-s", "3", "-w", "2", "--resume", self.path("out"), self.job(), "train.stop_after=17", code=75)
        self.psrun("-s", "3", "-w", "2", "--resume", self.path("out"), self.job())
        self.check("out")


class Buddies(RowTest):
    """rows.buddy: a server's rows are in the next one's memory, too."""
    KEYS = ("rows.buddy=true", "recovery.share=0.5")
    LONG = ("train.epochs=30", "train.eval_every=15")  # for more points than are needed, on a busy machine, too

    def deaths(self, *armed, keys=(), of_all=LONG, out="out"):
        return super().deaths(*armed, keys=(*self.KEYS, *keys), of_all=of_all, out=out)

    def test_deaths_of_servers(self):
        """Without anything on the disk: one tells the other what has changed; one has set a point that it has not told."""
        for k, shm in enumerate(("exchange.shm=off", "exchange.shm=auto")):
            text = self.deaths("server/0@rows.twin:30:kill", "server/1@rows.kept:4:kill", keys=(shm,), out=f"out-{k}")
            for server in (0, 1):
                self.assertRegex(text, rf"rows step=[1-9]\d* from=\"memory of server {server}\"")
            self.assertNotIn("rows-lost", text)

    def test_death_of_a_worker(self):
        text = self.deaths("worker/1@step.begun:9:kill")
        self.assertEqual(text.count("from=memory"), 2, text)

    def test_deaths_of_two_neighbours(self):
        """Nobody has their rows any more but the disk."""
        text = self.death_of_a_server("server/0@rejoin.asked:1:kill", keys=(*self.KEYS, *self.LONG, "checkpoint.every=1"))
        self.check("out", *self.LONG)
        self.assertRegex(text, r"rows-lost server=0 note=\"no process has its rows in memory any more")
        self.assertRegex(text, r"rows step=\d+ from=\S+/step-\d+")
        self.assertNotIn("memory of server", text)


class Changes(RowTest):
    """checkpoint.rows_full_every: most checkpoints have what has changed since one with all rows."""
    KEYS = ("checkpoint.every=2", "checkpoint.rows_full_every=100", "checkpoint.keep=100")

    def checkpoint(self, step, out="out"):
        return Path(self.path(out, "checkpoints", f"step-{step}"))

    def steps(self, out="out"):
        """Of the checkpoints: one that would have come while the one before was being written was skipped."""
        return sorted(int(path.name[5:]) for path in self.checkpoint(0, out).parent.glob("step-*"))

    def written(self, step, out="out"):
        """At which steps the files of rows in a checkpoint were written. They are those that it names."""
        names = {path.name for path in self.checkpoint(step, out).glob("*rows-*")}
        manifest = json.loads((self.checkpoint(step, out) / "manifest.json").read_text(encoding="utf-8"))
        self.assertEqual(names, {f["name"] for f in manifest["rows"]["files"]})
        return sorted({int(re.fullmatch(r"step-(\d+)\.rows-\d+-\d+", name)[1]) for name in names})

    def test_all_rows_each_so_many_times(self):
        self.psrun("-s", "2", "-w", "2", self.job(), "checkpoint.every=1", "checkpoint.keep=100",
                   "checkpoint.rows_full_every=3")
        steps = self.steps()
        for n, step in enumerate(steps):
            self.assertEqual(self.written(step), sorted({steps[n - n % 3], step}))
        self.check("out")

    def test_resume_with_other_servers(self):
        """Of a checkpoint that was pruned, the files stay that others need. A job that goes on begins with all rows."""
        for servers, stop, first in ((2, 13, 2), (3, 17, 14), (1, 19, 18)):
            self.psrun("-s", servers, "-w", "2", *(("--resume", self.path("out")) if stop > 13 else ()), self.job(),
                       *self.KEYS, "checkpoint.keep=1", f"train.stop_after={stop}", code=75)
            self.assertEqual(self.steps(), [stop])
            self.assertEqual(self.written(stop), [first, stop])
            self.assertEqual(len(list(self.checkpoint(stop).glob("step-*"))), 2 * 26 * servers)
        self.psrun("-s", "2", "-w", "2", "--resume", self.path("out"), self.job())
        self.check("out")

    def test_deaths_while_parts_are_written(self):
        """A server dies after 5 of the 26 files of a checkpoint of changes: the others are of one before, by links."""
        text = self.deaths(f"server/1@rows.written:{26 + 5}:kill", keys=(*self.KEYS, "recovery.share=0"))
        self.assertRegex(text, r"rows step=\d+ from=\S+/step-\d+")
        self.deaths("worker/0@checkpoint.linked:7:kill", keys=(*self.KEYS, "recovery.share=0"), out="linked")

    def test_the_whole_job_dies_while_parts_are_written(self):
        for n, armed in enumerate((f"server/0@rows.written:{26 + 3}:kill", "worker/0@checkpoint.linked:40:kill")):
            out, faults = f"out-{n}", Faults(self.path(f"faults-{n}"), armed)
            done = Psrun.run(self.psrun_argv("-s", "2", "-w", "2", self.job(), *self.KEYS, out=out),
                             env=dict(os.environ, **faults.env))
            self.assertEqual(done.returncode, 1, done.stdout)
            self.psrun("-s", "3", "-w", "2", "--resume", self.path(out), self.job(), out=out)
            self.check(out)

    def test_a_damaged_file(self):
        """One error names the file and the mend, which leads to the same result."""
        for of in (9, 6):
            with self.subTest(of=of):
                for stop, more in ((5, ("--overwrite",)), (9, ("--resume", self.path("out")))):
                    self.psrun("-s", "2", "-w", "2", *more, self.job(), *self.KEYS, f"train.stop_after={stop}", code=75)
                self.assertEqual([self.written(step) for step in (2, 5, 6, 9)], [[2], [2, 5], [6], [6, 9]])
                file = self.checkpoint(9) / f"step-{of}.rows-3-1"
                bytes_ = bytearray(file.read_bytes())
                bytes_[len(bytes_) // 2] ^= 1
                file.write_bytes(bytes_)
                text = self.psrun("-s", "2", "-w", "2", "--resume", self.path("out"), self.job(), code=1)
                self.assertRegex(text, rf"step-9/step-{of}\.rows-3-1: its (size or )?checksum .*damaged.*"
                                 "Remove each checkpoint that has this file")
                for has in list(self.checkpoint(9).parent.glob(f"*/{file.name}")):
                    shutil.rmtree(has.parent)
                self.assertIn(self.steps()[-1], (6, 8) if of == 9 else (5,))
                self.psrun("-s", "2", "-w", "2", "--resume", self.path("out"), self.job())
                self.check("out")

    def test_without_links(self):
        """Where a file before is gone, a checkpoint has all rows."""
        faults = Faults(self.path("faults"), "checkpoint.kept:1:hold")
        job = self.start_psrun("-s", "2", "-w", "2", self.job(), *self.KEYS, env=dict(os.environ, **faults.env))
        faults.wait_for("checkpoint.kept", job)
        (self.checkpoint(2) / "step-2.rows-3-1").unlink()
        faults.let_go("checkpoint.kept")
        text = job.communicate()[0]
        self.assertEqual(job.returncode, 0, text)
        self.assertIn("cannot link the rows of the checkpoint before", text)
        second = self.steps()[1]
        self.assertEqual(self.written(second), [second])
        self.check("out")

    def test_bytes_of_what_has_changed(self):
        """With 1% of the rows touched, at most 1.5% of the bytes of all."""
        rows, batch = 8000, 400
        ids = [*range(rows), *(k % (rows // 100) for k in range(batch))]
        cells = ["\t".join(["0", *["1"] * 13, *[f"{id_:x}"] * 26]) + "\n" for id_ in ids]
        self.file("clicks.txt", "".join(cells))
        model = clicks_model("linear: {name: bottom, out: 16}", "tables: [C1, C26], dim: 16, optimizer: adagrad, lr: 0.1",
                             "linear: {name: top, out: 1}")
        job = self.file("wide.yaml", model + """
data: {kind: criteo, path: '.', train: clicks.txt, batch: 400, shuffle: false}
train: {epochs: 1, device: cpu}
""")
        self.psrun("-s", "2", "-w", "1", job, f"checkpoint.every={rows // batch}", "checkpoint.rows_full_every=10")
        last = rows // batch + 1
        self.assertEqual(self.written(last), [last - 1, last])
        full, changes = (sum(path.stat().st_size for path in self.checkpoint(last).glob(f"step-{step}.rows-*"))
                         for step in (last - 1, last))
        self.assertGreater(full, 2 * rows * 2 * 16 * 4)
        self.assertLessEqual(changes, 0.015 * full)


if __name__ == "__main__":
    unittest.main()
