"""The merged trace of a job's processes, and the report on it."""
import json
import os
import signal
import subprocess
import sys
import unittest
from types import SimpleNamespace

from jobs import DIGITS, LONG, ROOT, JobTest, Part, find_part, free_port, run_well, wait_until
from benchlib import netns
from psrunlib import trace, trace_report

REASON = netns.why_not()
CLOCK_NS = 100_000  # the largest error of a clock


def report(*words, code=0):
    return run_well([ROOT / "deploy/trace-report", *words], code)


class Trace(JobTest):
    def events(self, out="out"):
        return json.loads(self.text_of(out, "trace.json"))["traceEvents"]

    def spans(self, events):
        """{(process's name, track): [(begin, end, event)]}, in order."""
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        tracks = {}
        for e in events:
            if e["ph"] == "X":
                tracks.setdefault((names[e["pid"]], e["tid"]), []).append(e)
        return names, tracks

    def check_tracks(self, tracks):
        """Times begin at 0 and grow; spans of a track lie in each other or after each other."""
        self.assertEqual(min(t[0]["ts"] for t in tracks.values()), 0)
        for name, track in tracks.items():
            ends = []
            for e in track:
                begin, end = e["ts"], e["ts"] + e["dur"]
                while ends and ends[-1] <= begin + 0.002:
                    ends.pop()
                self.assertTrue(not ends or end <= ends[-1] + 0.002, (name, e))
                ends.append(end)
            begins = [e["ts"] for e in track]
            self.assertEqual(begins, sorted(begins), name)

    def check_arrows(self, events, n):
        """Every arrow leads from a worker over its shard's three spans and back. Times grow on the way."""
        arrows = {}
        for e in events:
            if e["ph"] in "stf":
                arrows.setdefault(e["id"], []).append(e)
        self.assertEqual(len(arrows), n)
        begins = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
        for way in arrows.values():
            self.assertEqual("".join(e["ph"] for e in way), "stttf")
            self.assertEqual(way[0]["pid"], way[4]["pid"])
            self.assertEqual(len({e["pid"] for e in way[1:4]}), 1)
            times = [e["ts"] for e in way]
            self.assertEqual(times, sorted(times))
            for e in way:
                self.assertIn((e["pid"], e["tid"], e["ts"]), begins)

    def test_one_trace_of_all_processes(self):
        self.psrun("-s", 2, "-w", 2, DIGITS, "train.trace=true", "train.steps=20")
        events = self.events()
        names, tracks = self.spans(events)
        self.assertEqual(set(names.values()), {"worker 0", "worker 1", "server 0", "server 1",
                                               "coordinator"})
        self.check_tracks(tracks)
        pushed = [e for e in events if e["name"] == "send"]
        self.assertEqual({e["args"]["step"] for e in pushed}, set(range(20)))
        self.check_arrows(events, len(pushed))
        kinds = {e["name"] for e in events if e["ph"] == "X"}
        self.assertLessEqual({"step", "batch", "forward", "backward", "send", "decode", "receive",
                              "apply", "reply"}, kinds)
        text = report(self.path("out"))
        for words in ("critical path, medians over 19 steps", "most of it: ", "worker 1, server 1",
                      "clocks: one host"):
            self.assertIn(words, text)

    def test_only_the_steps_asked_for(self):
        self.psrun("-s", 1, "-w", 1, DIGITS, "train.trace=true", "train.steps=20", "trace.first=10",
                   "trace.steps=5")
        steps = {e["args"]["step"] for e in self.events() if e["ph"] == "X"}
        self.assertEqual(steps, set(range(10, 15)))

    def test_codecs_and_norms_are_seen(self):
        self.psrun("-s", 1, "-w", 2, DIGITS, "train.trace=true", "train.steps=5",
                   "exchange.codec=int8", "exchange.codec_warmup=0", "optimizer.clip_norm=1")
        events = self.events()
        _, tracks = self.spans(events)
        self.check_tracks(tracks)
        self.assertLessEqual({"encode", "sum", "norm", "add norm"}, {e["name"] for e in events})

    def test_all_reduce_has_a_report_too(self):
        self.psrun("-m", "allreduce", "-w", 2, DIGITS, "train.trace=true", "train.steps=5")
        self.assertIn("no way of a gradient through a server", report(self.path("out")))

    def test_at_their_own_pace_workers_have_no_path_in_common(self):
        for i, policy in enumerate((["asp"], ["local", "sync.local_steps=4", "sync.quorum=1"])):
            self.psrun("-s", 1, "-w", 2, DIGITS, "train.trace=true", "train.steps=8", f"sync.policy={policy[0]}",
                       *policy[1:], out=str(i))
            text = report(self.path(str(i)))
            self.assertIn("workers go on at their own pace: there is no path that all wait for", text)
            self.assertNotRegex(text, r"\s-\d")
            self.assertNotIn("gradient", {e["name"] for e in self.events(str(i))})

    def test_a_rest_at_their_own_pace_is_no_part_of_a_step(self):
        ms, what = 10**6, (("step", 0, 10, 0), ("wait", 2, 5, 0), ("step", 12, 22, 1), ("wait", 21, 100, 1))
        spans = [SimpleNamespace(kind=kind, begin=begin * ms, end=end * ms, step=step, duration=(end - begin) * ms)
                 for kind, begin, end, step in what]
        worker = SimpleNamespace(role="worker", rank=0, name="worker 0", own_pace=True, spans=spans)
        shown = "\n".join(trace_report._process_lines([worker], {}))
        self.assertRegex(shown, r"worker 0 +10\.00 +8\.00 +2\.00 +0\.00")

    def test_a_killed_worker_leaves_its_trace(self):
        job = self.start_psrun("-s", 1, "-w", 2, DIGITS, *LONG, "train.trace=true", stdout=subprocess.DEVNULL)
        path = self.path("out", "trace", "worker-1.trace")
        wait_until(lambda: os.path.exists(path) and os.path.getsize(path) >= 100_000)
        os.kill(find_part(job.pid, "worker", 1), signal.SIGKILL)
        self.assertEqual(job.wait(60), 1)
        self.assertIn("critical path", report(self.path("out")))

    def test_a_full_file_stops_the_trace_and_not_the_job(self):
        shown = self.psrun("-s", 1, "-w", 1, DIGITS, "train.trace=true", "train.steps=200",
                           "trace.limit=100000", "exchange.chunk=16384")
        self.assertIn("key=trace.limit", shown)
        for name in os.listdir(self.path("out", "trace")):
            self.assertLessEqual(os.path.getsize(self.path("out", "trace", name)), 100_000)
        self.assertIn("worker 0 has reached trace.limit", report(self.path("out")))

    def test_without_a_trace_there_is_one_error(self):
        os.mkdir(self.path("empty"))
        self.assertIn("has no trace: run the job with train.trace=true",
                      report(self.path("empty"), code=1))
        self.assertEqual(len(report(self.path("nowhere"), code=1).splitlines()), 1)
        os.mkdir(self.path("empty", "trace"))
        with open(self.path("empty", "trace", "worker-0.trace"), "wb") as f:
            f.write(b"\xff\x00 no trace")
        self.assertIn("is not a trace of this version", report(self.path("empty"), code=1))

    def test_a_part_that_dies_early(self):
        """It has written nothing, or does not know the coordinator's clock yet: the trace has the others."""
        self.psrun("-s", 1, "-w", 2, DIGITS, "train.trace=true", "train.steps=20")
        whole = report(self.path("out"))
        with open(self.path("out", "trace", "worker-1.1.trace"), "wb"):
            pass
        self.assertEqual(report(self.path("out")), whole)
        with open(self.path("out", "trace", "worker-1.trace"), "rb") as f:
            head, rest = f.read().split(b"\n", 1)
        about, size = json.loads(head), trace.RECORD.size
        records = [rest[at:at + size] for at in range(0, len(rest), size)]
        unclocked = [r for r in records if trace.RECORD.unpack(r)[5] != about["kinds"].index("#clock")]
        with open(self.path("out", "trace", "worker-1.1.trace"), "wb") as f:
            f.write(json.dumps({**about, "boot": "another host"}).encode() + b"\n" + b"".join(unclocked[:100]))
        text = report(self.path("out"))
        self.assertTrue(text.startswith(whole.splitlines()[0]), text)
        self.assertIn("worker 1 ended before it knew the coordinator's clock", text)

    @unittest.skipIf(REASON, f"{REASON}")
    def test_clocks_between_hosts(self):
        """Emulated hosts have one clock: the measured difference is no larger than its error."""
        with netns.Hosts(1000, {"server": 1, "worker": 2}) as hosts:
            env = {"PS_SERVERS": "1", "WORLD_SIZE": "2"}
            args = ["--config", DIGITS, "--out", self.path("out"), "--init-method",
                    f"tcp://{hosts.hosts['server', 0]}:{free_port()}"]
            for key in ("train.trace=true", "net.insecure=true", "train.epochs=10",
                        "net.heartbeat_ms=50"):
                args += ["--set", key]
            parts = {}
            for role, rank in hosts.hosts:
                name = {"server": "PS_SERVER_RANK", "worker": "RANK"}[role]
                part = Part(role, rank, args, dict(env, **{name: str(rank)}), hosts.prefix(role, rank))
                parts[part.name] = part
                self.addCleanup(part.end)
            self.assertEqual(set(self.wait_all(parts, 120).values()), {0})
        processes = trace.load(self.path("out"))
        for p in processes:
            self.assertTrue(p.clocks, p.name)
            for _, ahead, error in p.clocks:
                self.assertLessEqual(abs(ahead), error)
            _, ahead, _ = min(p.clocks, key=lambda clock: clock[2])  # the one that a trace uses
            self.assertLessEqual(abs(ahead), CLOCK_NS, p.name)
            p.boot = p.name  # as if each were on its own host
        trace.merge(processes)
        self.assertIn("wrong by", "\n".join(trace_report.lines(processes)))
        trace.write(processes, self.path("trace.json"))
        print("".join(f"{p.name}: clock wrong by {min(c[2] for c in p.clocks) / 1000:.0f} us at "
                      f"most, is {min(p.clocks, key=lambda c: c[2])[1] / 1000:.0f} us\n"
                      for p in processes), end="", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
