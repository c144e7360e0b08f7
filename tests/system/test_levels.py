"""exchange.levels 2: workers of one host are summed there, and cross the network once per host.

Hosts are emulated: by net.host, which divides this machine, or by network namespaces.
"""
import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from jobs import DIGITS, PATIENCE_S, JobTest, nightly, wrapped_bin
from benchlib import netns

REASON = netns.why_not()
LEVELS = "exchange.levels=2"
JOB = ["train.epochs=1", "data.train=0-1023", "data.test=0-127", "train.threads=1", "train.eval_every=0",
       "model.dropout=false", "optimizer.name=adamw", LEVELS]
FOREVER = ["train.epochs=100000", "schedule.name=constant", "net.step_timeout_ms=30000",
           "net.dead_after_ms=6000", "net.heartbeat_ms=500"]


class LevelsTest(JobTest):
    def start(self, hosts, servers, *settings):
        """Starts a worker for each letter of hosts, on the host of that name. Servers have their own host."""
        def host_of(role, rank):
            return f"net.host={hosts[rank] if role == 'worker' else 'servers'}"
        return self.start_job(servers, len(hosts), *JOB, *settings, host_of)

    def train(self, hosts, servers, *settings):
        """Returns the weights, and worker 0's summary."""
        parts = self.start(hosts, servers, *settings)
        codes = self.wait_all(parts, 2 * PATIENCE_S)
        self.assertEqual(set(codes.values()), {0}, "\n".join(p.text() for p in parts.values()))
        return self.weights("worker-0"), self.summary("worker-0")


class Bits(LevelsTest):
    def test_servers_shards_and_chunks_change_nothing(self):
        first, summary = self.train("aabb", 1, "exchange.chunk=64KiB")
        for servers, *keys in ((3, "exchange.chunk=16KiB"), (2, "server.shards=2")):
            self.assertEqual(self.train("aabb", servers, *keys)[0], first, keys)
        self.assertNotEqual(self.train("abab", 1)[0], first)
        self.assertEqual(summary["workers"], 4)

    def psrun_on(self, hosts, *args, out="out", code=0):
        """Does the same through psrun."""
        build = self.path(f"build-{hosts}")
        if not os.path.isdir(build):
            os.mkdir(build)
            wrapped_bin(os.path.join(build, "bin"), "ps-worker",
                        f'set -- "$@" --set net.host=$(echo {hosts} | cut -c$((RANK + 1)))')
        return self.psrun("--build-dir", build, "-s", 1, "-w", len(hosts), *args, out=out, code=code)

    def test_every_worker_of_a_host_adds_a_part(self):
        self.psrun_on("aab", DIGITS, *JOB, "exchange.chunk=16KiB", "train.trace=true", "trace.steps=3", "train.steps=5")
        events = json.loads(self.text_of("out", "trace.json"))["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        added = {name: set() for name in names.values()}
        for event in events:
            if event["name"] == ("apply" if names.get(event["pid"]) == "server 0" else "sum"):
                added[names[event["pid"]]].add(event["args"]["chunk"])
        self.assertEqual(added["worker 0"] & added["worker 1"], set())
        self.assertEqual(added["worker 0"] | added["worker 1"], added["server 0"])
        self.assertGreater(len(added["worker 1"]), 2)
        self.assertEqual(added["worker 2"], set())  # alone on its host

    def test_resuming(self):
        job = [DIGITS, *JOB, "checkpoint.every=2", "exchange.codec=topk", "exchange.codec_warmup=1",
               "exchange.codec_cooldown=1"]
        self.psrun_on("aab", *job)
        whole = self.weights()
        folders = Path(self.path("out", "checkpoints"))
        newest = sorted(folders.iterdir())[-1]  # of the last step
        shutil.rmtree(newest)
        shutil.copytree(self.path("out"), self.path("other"), symlinks=True)
        self.assertIn("resume step=", self.psrun_on("aab", *job, "--resume", self.path("out")))
        self.assertEqual(self.weights(), whole)
        # Worker 2 has kept gradients back, and worker 0 would send for it now.
        said = self.psrun_on("aaa", *job, "--resume", self.path("other"), out="other", code=1)
        self.assertIn("exchange.levels: the checkpoint has gradients that worker 2 kept back", said)


class Deaths(LevelsTest):
    """A part that dies ends the job, and the others name it within the deadlines."""

    def test_killed(self):
        for name in ("worker 0", "worker 1", "worker 2", "worker 3", "server 1"):
            parts = self.start("aabb", 2, *FOREVER)
            parts["worker 0"].wait_for(r"step \d")
            parts[name].popen.kill()
            codes = self.wait_all(parts)
            for other in parts.keys() - {name}:
                self.assertEqual(codes[other], 1, parts[other].text())
                self.assertRegex(parts[other].text(), rf"ERROR failed .*\b{name}\b")


@unittest.skipIf(REASON, f"{REASON}")
class Links(LevelsTest):
    """Two hosts for workers and one for a server, each a network namespace."""

    @staticmethod
    def hosts(workers_per_host):
        kinds = {"server": 1, "worker": 2 * workers_per_host}
        return netns.Hosts(1000, kinds, {("worker", r): ("worker", r - r % workers_per_host)
                                         for r in range(2 * workers_per_host) if r % workers_per_host})

    def bytes_of(self, hosts, rank):
        words = hosts.prefix("worker", rank)[:4]
        return sum(int(subprocess.run([*words, "cat", f"/sys/class/net/eth0/statistics/{way}_bytes"],
                                      stdout=subprocess.PIPE, text=True, check=True).stdout)
                   for way in ("rx", "tx"))

    def train_on(self, workers_per_host, *settings):
        """Returns the weights, and the bytes over the link of each host with workers."""
        n = 2 * workers_per_host
        with self.hosts(workers_per_host) as hosts:
            parts = self.start_job(1, n, *settings, f"data.samples={512 * n}", "data.test_samples=32",
                                   "net.insecure=true", config=self.wide_model(4096),
                                   host=hosts.address("server", 0)[0],
                                   prefix=lambda role, rank: hosts.prefix(role, rank))
            codes = self.wait_all(parts, 2 * PATIENCE_S)
            self.assertEqual(set(codes.values()), {0}, "\n".join(p.text() for p in parts.values()))
            return self.weights("worker-0"), [self.bytes_of(hosts, rank) for rank in (0, n // 2)]

    @nightly
    def test_each_host_crosses_its_link_once(self):
        job = ["train.epochs=1", "train.threads=1",
               "train.eval_every=0", "data.batch=32"]
        _, lone = self.train_on(1, *job)
        weights, two = self.train_on(2, *job, LEVELS)
        flat, many = self.train_on(2, *job)
        for host in range(2):
            self.assertAlmostEqual(two[host] / lone[host], 1, delta=0.02, msg=(lone, two))
            self.assertAlmostEqual(many[host] / lone[host], 2, delta=0.05, msg=(lone, many))
        self.assertNotEqual(weights, flat)
        self.assertEqual(self.train_on(2, *job, LEVELS, "exchange.chunk=16KiB")[0], weights)


if __name__ == "__main__":
    unittest.main()
