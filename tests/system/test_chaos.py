"""Jobs of 3 servers and 3 workers under psrun --restarts, whose parts are killed, stopped and cut
off: each ends with the bits of a job that was left alone.

PS_CHAOS_JOBS: how many (1); PS_CHAOS_SEED: the first one's seed (1104). A failure says how to
repeat its job.
"""
import collections
import os
import shutil
import statistics
import time
import unittest
from pathlib import Path

import chaos
from chaos import Kind, netns
from jobs import DIGITS, ROOT, alive
from restarting import RestartTest

JOBS = int(os.environ.get("PS_CHAOS_JOBS", "1"))
SEED = int(os.environ.get("PS_CHAOS_SEED", "1104"))
SETTINGS = ["train.steps=200", "train.epochs=1000", "data.batch=10", "train.log_every=4",
            "train.eval_every=3", "train.threads=1", "checkpoint.every=5",
            "net.heartbeat_ms=200", "net.dead_after_ms=2000",
            "net.join_timeout_ms=12000"]
DATA = {"digits": ["data.train=0-239"], "norms": [], "clicks": []}
NORMS = """
model:
  input: [3, 8, 8]
  layers:
    - conv2d: {out: 8, kernel: 3}
    - batch_norm2d
    - relu
    - dropout: 0.25
    - flatten
    - linear: 10
data: {kind: synthetic, samples: 240, test_samples: 50, flip: true, crop_padding: 1}
"""
CLICKS = """
model:
  input: [13]
  loss: bce_with_logits
  layers:
    - interaction:
        branches:
          - [linear: 4, relu]
          - [embedding_bag: {name: rows, tables: 26, dim: 4, lr: 0.1, init: normal, scale: 0.3}]
    - linear: 1
data: {kind: synthetic_clicks, samples: 240, test_samples: 50}
"""
MOMENTUM = "optimizer={name: sgd, lr: 0.05, momentum: 0.9}"
# For local steps.
OUTER = ("sync.policy=local", "sync.local_steps=7", "sync.outer_lr=0.7", "sync.outer_momentum=0.9")
# What ps-world does not have: all-reduce, hosts of their own.
KINDS = [
    Kind("ps", (*OUTER, "loss_scale={use: on, init: 1e38, interval: 3}", "optimizer.clip_norm=0.5"), hosts=True),
    Kind("allreduce", ("optimizer.name=adamw",)),
    Kind("ps", ("optimizer.name=adamw",), hosts=True),
    Kind("allreduce", (*OUTER, "optimizer.name=adamw", "optimizer.clip_norm=0.5")),
    Kind("ps", (MOMENTUM, "exchange.shm=off", "server.shards=2"), "norms", hosts=True),
    Kind("allreduce", (MOMENTUM, "train.accumulate=2"), hosts=True),
    Kind("ps", ("exchange.codec=topk", "exchange.codec_warmup=10", "checkpoint.best=loss"), hosts=True),
    Kind("allreduce", ("loss_scale={use: on, init: 1e38, interval: 3}", MOMENTUM), "norms"),
    Kind("ps", ("optimizer.name=adam", "checkpoint.rows_full_every=3"), "clicks", hosts=True),
    Kind("ps", ("optimizer.name=adam", "rows.buddy=on", "checkpoint.best=auc"), "clicks", hosts=True),
    Kind("ps", ("exchange.codec=onebit", "exchange.codec_warmup=5", "optimizer.clip_norm=0.5"), hosts=True),
]
SAID = {"started again": "; it is started again (restart ", "joins again": " WARN  rejoin ", "goes on": " resume step="}
RESTARTS = 40  # far more than there are faults: a fault may cost several
NO_HOSTS = netns.why_not()


class Chaos(RestartTest):
    def setUp(self):
        super().setUp()
        # In the test's folder: processes that are left over have its path in their command lines.
        for name, text in (("digits", self.digits()), ("norms", NORMS), ("clicks", CLICKS)):
            with open(self.path(name + ".yaml"), "w", encoding="utf-8") as f:
                f.write(text)
        self.hosts = None
        self.later = chaos.Later()
        self.addCleanup(self.later.finish)
        self.whole = set()
        self.counts = collections.Counter()
        self.stalls = []  # after kills

    @staticmethod
    def digits():
        return Path(DIGITS).read_text(encoding="utf-8").replace("../../configs", str(ROOT / "configs"))

    def settings(self, kind):
        return [*SETTINGS, *DATA[kind.config]]

    def start_job(self, out, kind):
        on_hosts, env = self.hosts.for_psrun(kind) if kind.hosts and self.hosts else ([], None)
        return self.start(out, kind.job, "--restarts", RESTARTS, "--verbose", *on_hosts,
                          settings=self.settings(kind), config=self.path(kind.config + ".yaml"),
                          env=env)

    def rows(self, out):
        """Those of its embedding tables."""
        file = Path(self.path(out, "model.rows.safetensors"))
        return file.read_bytes() if file.exists() else None

    def make_whole(self, kind):
        """The same job, left alone, on one host."""
        name = f"whole-{KINDS.index(kind)}"
        if name not in self.whole:
            self.run_job(name, kind.mode, kind.servers, chaos.WORKERS, *self.settings(kind),
                         *kind.settings, config=self.path(kind.config + ".yaml"))
            self.whole.add(name)
        return name

    def moment(self, what, out, chance):
        if what in SAID:  # once more or, if no part has died yet, a little later
            seen, end = self.text(out).count(SAID[what]), time.monotonic() + 0.4
            return lambda: self.text(out).count(SAID[what]) > seen or time.monotonic() > end
        return (lambda: True) if what == "at once" else super().moment(what, out, chance)

    def strike(self, fault, psrun):
        """Returns whether it hit a part."""
        if fault.what == "cut":
            self.hosts.cut(fault.role, fault.rank)
            self.later.add(fault.seconds, self.hosts.mend, fault.role, fault.rank)
            return True
        pid = self.signal(psrun, fault.role, fault.rank, chaos.SIGNALS[fault.what])
        if pid and fault.what == "stop":
            self.later.add(fault.seconds, chaos.continue_process, pid, self.folder)
        return pid is not None

    def disturb(self, psrun, out, faults, chance):
        """Disturbs the job until its end; returns what was done."""
        done = []
        for fault in faults:
            if not self.wait_until(psrun, self.moment(fault.moment, out, chance)):
                break
            if not self.wait_for_part(psrun, fault.role, fault.rank):
                break
            if self.strike(fault, psrun):
                done.append(fault)
        return done

    def run_schedule(self, seed):
        kind, faults, chance = chaos.draw_schedule(
            seed, KINDS if self.hosts else [k for k in KINDS if not k.hosts])
        whole = self.make_whole(kind)
        with self.subTest(seed=seed, kind=kind, faults=[str(f) for f in faults],
                          repeat=f"PS_CHAOS_SEED={seed} PS_CHAOS_JOBS=1 {__file__}"):
            began = time.monotonic()
            psrun = self.start_job("out", kind)
            try:
                done = self.disturb(psrun, "out", faults, chance)
                self.end(psrun, "out")
                restarts = self.check_restarted(whole, "out")
                self.assertEqual(self.rows(whole), self.rows("out"))
            except BaseException:
                print(f"--- seed {seed}\n{self.text('out')}", flush=True)
                raise
            finally:
                self.give_up(psrun)
            self.note(seed, kind, done, restarts, time.monotonic() - began)
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def give_up(self, psrun):
        """Ends a job that has failed, so that it does not run beside the next one."""
        self.later.finish()
        psrun.kill()
        psrun.wait()
        end = time.monotonic() + 10  # a part on a host ends when it misses psrun
        while alive(self.folder) and time.monotonic() < end:
            time.sleep(0.1)

    def check_nothing_left(self, out):
        super().check_nothing_left(out)
        self.assertEqual(alive(self.folder), [])  # servers' command lines name their configuration
        self.assertEqual([n for n in self.listdir(out, "checkpoints") if n.endswith(".damaged")], [])

    def note(self, seed, kind, done, restarts, seconds):
        self.counts.update(f.what for f in done)
        self.counts["restarts"] += len(restarts)
        if all(f.what == "kill" for f in done):
            self.stalls += [r["seconds_lost"] for r in restarts]
        print(f"seed {seed}: {kind.mode} {kind.config} {' '.join(kind.settings)}"
              f"{' on hosts' * kind.hosts}: {', '.join(map(str, done))}; {len(restarts)} restarts, "
              f"{seconds:.1f} s", flush=True)

    def run_schedules(self):
        for seed in range(SEED, SEED + JOBS):
            self.run_schedule(seed)
        print(f"{JOBS} jobs from seed {SEED}: {dict(self.counts)}")
        if self.stalls:
            print(f"after a kill: {statistics.median(self.stalls):.2f} s to the next step (median of "
                  f"{len(self.stalls)}), {max(self.stalls):.2f} s at most")

    def test_schedules(self):
        if NO_HOSTS:
            self.run_schedules()
            self.skipTest(f"the jobs on hosts of their own: {NO_HOSTS}")  # the others have run
        with chaos.Hosts(self.folder) as self.hosts:
            self.run_schedules()
        self.assertNotIn(os.getpid(), [pid for _, pid in netns.ours()])


if __name__ == "__main__":
    unittest.main()
