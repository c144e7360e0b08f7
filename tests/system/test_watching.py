#!/usr/bin/env python3
"""Watching a job: the page, /metrics, psrun --top, TensorBoard's events, deploy/show-runs."""
import http.client
import importlib.util
import contextlib
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path

from jobs import DIGITS, LONG, PSRUN, ROOT, JobTest, Psrun, free_port, on_terminal, run_well, torch_python, wait_until
from psrunlib import report
from psrunlib.top import find, lines, read

SAMPLE = re.compile(r'(?P<name>pstrain_[a-z0-9_]+)\{job_name="(?P<job>[^"]*)",role="(?P<role>\w+)",'
                    r'rank="(?P<rank>\d+)"\} (?P<value>\S+)')
UNBUILT = "this build has no page"


def get(port, path, **headers):
    """Returns (status, body, headers) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(headers.pop("method", "GET"), path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def samples(text):
    """{name: (role, rank, value)} of Prometheus' text; each has its HELP and TYPE."""
    found, described = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            described.add(tuple(line.split()[1:3]))
            continue
        m = SAMPLE.fullmatch(line)
        assert m, line
        assert {("HELP", m["name"]), ("TYPE", m["name"])} <= described, line
        assert m["name"] not in found, line
        found[m["name"]] = (m["role"], int(m["rank"]), float(m["value"]))
    return found


class Watched(JobTest):
    def start(self, *args, config=(DIGITS, *LONG)):
        """Starts a job that runs until the test ends it. Returns the page's port once it shows steps."""
        port = free_port()
        job = self.start_psrun(*args, *config, f"metrics.port={port}")
        self.addCleanup(self.end, job)
        self.job = job
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.all_step(json.loads(get(port, "/status.json")[1])):
                    return port
            if job.poll() is not None:
                break
            time.sleep(0.1)
        job.terminate()
        said = job.communicate()[0]
        if UNBUILT in said:
            self.skipTest("built without libmicrohttpd (deploy/packages build)")
        self.fail(said)

    @staticmethod
    def all_step(status):
        members = status["members"]
        return members and all((m["values"].get("step") or 0) > 0 and m["values"].get("rss_bytes") for m in members)

    def end(self, job):
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
        said = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 130, said)


class Page(Watched):
    def test_servers_and_workers(self):
        port = self.start("-s", "2", "-w", "2")
        status = json.loads(get(port, "/status.json")[1])
        self.assertEqual([(m["role"], m["rank"]) for m in status["members"]],
                         [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)])
        self.assertEqual(status["job"]["state"], "running")
        self.assertEqual(status["job"]["name"], "digits")
        self.assertGreater(status["job"]["steps"], status["job"]["step"])
        self.assertGreater(len(status["curve"]["step"]), 0)
        self.assertIn(status["waits_for"]["who"], ("nobody", "worker", "exchange", "silent", "unknown"))
        targets = [t for group in json.loads(get(port, "/targets.json")[1]) for t in group["targets"]]
        self.assertEqual(len(targets), 4)
        seen = []
        for target in targets:
            status, text, headers = get(int(target.rpartition(":")[2]), "/metrics")
            self.assertEqual(status, 200)
            self.assertIn("version=0.0.4", headers["Content-Type"])
            found = samples(text)
            who = found["pstrain_info"][:2]
            seen.append(who)
            self.assertTrue(all(s[:2] == who for s in found.values()))
            self.assertGreater(found["pstrain_steps_total"][2], 0)
            self.assertGreater(found["pstrain_resident_memory_bytes"][2], 1e6)
            mine = {"server": "pstrain_apply_seconds_total", "worker": "pstrain_step_seconds_total"}[who[0]]
            self.assertGreater(found[mine][2], 0)
            self.assertNotEqual("pstrain_loss" in found, who[0] == "server")
        self.assertEqual(sorted(seen), [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)])
        status = json.loads(get(port, "/status.json")[1])
        self.assertEqual(status["tables"], [])
        self.check_document(status["metrics"] + status["table_metrics"])
        self.check_top(port)
        self.check_door(port)

    def check_document(self, metrics):
        """docs/watching.md lists all figures, and no others."""
        text = (ROOT / "docs/watching.md").read_text(encoding="utf-8")
        rows = [f"| `{m['name']}` | `{m['export']}` | {m['unit']} | {m['help']} |" for m in metrics]
        self.assertEqual([line for line in text.splitlines() if "| `pstrain_" in line], rows)

    def check_top(self, port):
        for where in (str(port), f"localhost:{port}", f"http://127.0.0.1:{port}/", self.path("out")):
            done = Psrun.run([PSRUN, "--top", where])
            self.assertEqual(done.returncode, 0, done.stdout)
            for name in ("server 0", "server 1", "worker 0", "worker 1", "everybody waits for: "):
                self.assertIn(f"\n{name}", done.stdout)
        for columns in (60, 80):
            text = [line for line, _ in lines(read(f"http://127.0.0.1:{port}/status.json"), columns)]
            self.assertLess(max(map(len, text)), columns, text)

    def check_door(self, port):
        """Only this host can open the page, and it can only read. Silent connections do no harm."""
        self.assertEqual(get(port, "/", method="POST")[0], 405)
        self.assertEqual(get(port, "/", method="DELETE")[0], 405)
        self.assertEqual(get(port, "/nothing")[0], 404)
        self.assertEqual(get(port, "/../../etc/passwd")[0], 404)
        self.assertEqual(get(port, "/", method="HEAD")[:2], (200, ""))
        for host, code in (("elsewhere.example", 403), ("127.0.0.1.elsewhere.example", 403), ("localhost", 200),
                           (f"[::1]:{port}", 200), (f"127.0.0.1:{port}", 200)):
            self.assertEqual(get(port, "/status.json", Host=host)[0], code, host)
        _, page, headers = get(port, "/")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn("<html lang=", page)
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(40)]
        silent[0].sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 100000)
        before = self.records()[-1]["step"]
        wait_until(lambda: self.records()[-1]["step"] != before, "the job stands still")
        for s in silent:
            s.close()

    def test_without_servers(self):
        """In all-reduce the coordinator is in worker 0. A single worker has none."""
        for args, names in ((("-m", "allreduce", "-w", "2"), ["worker 0", "worker 1"]),
                            (("-m", "single"), ["worker 0"])):
            with self.subTest(args):
                port = self.start(*args, "--overwrite")
                status = json.loads(get(port, "/status.json")[1])
                self.assertEqual([f"{m['role']} {m['rank']}" for m in status["members"]], names)
                self.assertIn('rank="0"', get(port, "/metrics")[1])
                self.end(self.job)


@unittest.skipUnless(importlib.util.find_spec("prometheus_client"), "no python3-prometheus-client")
class Prometheus(Watched):
    def test_its_own_reader_finds_the_same(self):
        from prometheus_client.parser import text_string_to_metric_families

        port = self.start("-s", "1", "-w", "1")
        for group in json.loads(get(port, "/targets.json")[1]):
            for target in group["targets"]:
                text = urllib.request.urlopen(f"http://{target}/metrics", timeout=10).read().decode()
                families = list(text_string_to_metric_families(text))
                found = {s.name: (s.labels["role"], int(s.labels["rank"]), s.value) for f in families for s in f.samples}
                self.assertEqual(repr(found), repr(samples(text)))  # repr: a loss may be nan
                for family in families:  # what promtool asks for
                    self.assertTrue(family.documentation, family)
                    self.assertIn(family.type, ("counter", "gauge"))
                    for sample in family.samples:
                        self.assertEqual(sample.name.endswith("_total"), family.type == "counter", sample)


class NoPage(JobTest):
    def test_a_busy_port_does_not_end_the_job(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            said = self.psrun("-s", "1", "-w", "1", DIGITS, "train.epochs=1", f"metrics.port={taken.getsockname()[1]}")
        self.assertIn("nobody can watch this process", said)
        self.assertRegex(said, "Address already in use|no page and no /metrics")

    def test_a_wrong_address_is_said(self):
        said = self.psrun("-m", "single", DIGITS, "train.epochs=1", "metrics.port=1", "metrics.bind=nowhere")
        self.assertRegex(said, "metrics.bind: nowhere is not an address|no page and no /metrics")
        self.assertIn("metrics.port", self.psrun("-m", "single", DIGITS, "metrics.port=65536", code=1))

    def test_top_without_a_job(self):
        port = free_port()
        Path(self.path("job.json")).write_text('{"metrics_port": 0}', encoding="utf-8")
        for where, says in ((str(port), "is the job running, with metrics.port"), (self.path(), "no job is running there"),
                            ("a b", "give the page's address"), (self.path("none", "x"), "give the page's address")):
            done = Psrun.run([PSRUN, "--top", where])
            self.assertEqual(done.returncode, 1)
            self.assertIn(says, done.stdout)
            self.assertEqual(done.stdout.count("\n"), 1, done.stdout)

    def test_top_of_what_is_no_run(self):
        """A summary and records of other programs."""
        for name, text, says in (("metrics.jsonl", '{"step": 7}\n3\n', "its last figures:\n  step                7"),
                                 ("summary.json", "[]", "not the summary of a job"),
                                 ("summary.json", "{}", "not the summary of a job")):
            self.file(name, text)
            done = Psrun.run([PSRUN, "--top", self.path()])
            self.assertIn(says, done.stdout)
            self.assertNotIn("Traceback", done.stdout)

    def test_curves_where_nothing_draws_them(self):
        with unittest.mock.patch.object(report.places, "HERE", self.path("nowhere", "psrunlib")):
            self.assertIsNone(report.draw_curves(self.path()))

    def test_where_the_page_of_a_run_is(self):
        for page, url in ((["127.0.0.1", 9100], "127.0.0.1:9100"), (["0.0.0.0", 80], "127.0.0.1:80"), (["::", 9], "[::1]:9"),
                          (["10.0.0.2", 9100], "10.0.0.2:9100"), (["fe80::1", 9100], "[fe80::1]:9100")):
            self.file("job.json", json.dumps({"page": page}))
            self.assertEqual(find(self.folder), f"http://{url}/status.json")

    def test_top_of_a_program(self):
        """Its steps, loss and accuracy are not known: nothing is said of them."""
        unknown = dict.fromkeys(("step", "steps", "epoch", "epochs", "loss", "samples_per_second", "seconds_left"))
        job = {"name": "mine", "state": "running", "reason": "", "restarts": 2, **unknown,
               "quality": {"name": "accuracy", "key": "test_accuracy", "value": None}}
        member = {"role": "server", "rank": 0, "host": "a", "away": False, "silent_seconds": 0.1, "cpu": 0.5, "values": {},
                  "sent_per_second": None, "received_per_second": None, "step_ms": {"sum": 1.0, "apply": 1.0}}
        status = {"job": job, "members": [member], "tables": [], "waits_for": {"who": "unknown", "text": "not known yet"}}
        self.assertEqual([text for text, _ in lines(status, 80)[:3]],
                         ["mine  running", "restarts 2", "everybody waits for: not known yet"])
        job.update(step=3, steps=9, epoch=0, epochs=2)
        self.assertIn("epoch 1/2  loss -", lines(status, 80)[2][0])


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """[(field, value)] of a protocol buffer."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = {0: None, 1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        if size is None:
            out.append((key >> 3, varint()))
            continue
        out.append((key >> 3, data[at:at + size]))
        at += size
    assert at == len(data)
    return out


def events_of(path):
    raw, at, events = Path(path).read_bytes(), 0, []
    while at < len(raw):
        length, crc = struct.unpack_from("<QI", raw, at)
        assert crc == masked(raw[at:at + 8])
        record = raw[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", raw, at + 12 + length)[0] == masked(record)
        events.append(dict(fields(record)))
        at += 16 + length
    assert events[0][3] == b"brain.Event:2"
    return events


def scalars(paths):
    """{tag: [(step, value)]} of a folder's event files. Where a session starts, TensorBoard drops what it has of its first
    step and later ones (event_accumulator.py, _Purge)."""
    found = {}
    for event in (event for path in paths for event in events_of(path)):
        if 7 in event:
            found = {tag: [s for s in of_tag if s[0] < event[2]] for tag, of_tag in found.items()}
        for _, value in fields(event.get(5, b"")):
            scalar = dict(fields(value))
            found.setdefault(scalar[1].decode(), []).append((event[2], struct.unpack("<f", scalar[2])[0]))
    return found


# An epoch has 12 steps.
GOES_ON = (DIGITS, "--tensorboard", "data.train=0-239", "data.batch=20", "train.epochs=3", "train.log_every=4", "checkpoint.every=4")


class Files(JobTest):
    def test_crc(self):
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)  # RFC 3720, B.4

    def test_tensorboard_and_show_runs(self):
        for k, args in enumerate((("-s", "1", "-w", "2"), ("-m", "single", "--overwrite"))):
            text = self.psrun(*args, "--tensorboard", DIGITS, "train.epochs=2", "train.log_every=5", out=f"run {k}")
            found = self.read_events(self.path(f"run {k}"))
            steps = [r for r in self.records(f"run {k}") if "loss_mean" in r]
            self.check_scalars(found["train/loss"], steps, "loss_mean")
            self.check_scalars(found["train/accuracy"], steps, "train_accuracy")
            self.check_evaluations(text, f"run {k}", found)
        self.psrun("-m", "single", "--overwrite", DIGITS, "train.epochs=1", out="run 1")
        self.assertEqual(list(Path(self.path("run 1")).glob("events*")), [], "--overwrite keeps an old run's events")
        self.check_show_runs()

    def test_tensorboard_of_a_job_that_goes_on(self):
        for step in (8, 12, 24):
            self.psrun("-m", "single", *GOES_ON, f"train.stop_after={step}", "--resume", "auto", code=75)
        self.psrun("-m", "single", *GOES_ON, "--resume", "auto")
        found, records = self.read_events(self.path("out")), self.records("out")
        self.check_scalars(found["train/loss"], [r for r in records if "loss_mean" in r], "loss_mean")
        self.check_scalars(found["test/loss"], [r for r in records if "test_loss" in r], "test_loss")

    def check_evaluations(self, text, run, found):
        """The screen, metrics.jsonl, TensorBoard and the summary say the same."""
        tested = [r for r in self.records(run) if "test_loss" in r]
        shown = re.findall(r"test loss (\S+) (\S+)%  train (\S+) (\S+)%(  best)?\n", text)
        names = ("test_loss", "test_accuracy", "epoch_loss", "epoch_accuracy")
        self.assertEqual([[f"{r[n]:.4f}" if "loss" in n else f"{100 * r[n]:.2f}" for n in names] for r in tested],
                         [list(line[:4]) for line in shown])
        self.assertEqual([r["best"] for r in tested], [line[4] != "" for line in shown])
        summary = self.summary(run)
        for name, tag, at_end in zip(names, ("test/loss", "test/accuracy", "train/epoch_loss", "train/epoch_accuracy"),
                                     ("test_loss", "test_accuracy", "train_loss", "train_accuracy")):
            self.assertEqual(tested[-1][name], summary[at_end])
            self.check_scalars(found[tag], tested, name)

    def check_scalars(self, scalars_of_tag, records, name):
        self.assertEqual([step for step, _ in scalars_of_tag], [r["step"] for r in records])
        for (_, value), record in zip(scalars_of_tag, records):
            self.assertAlmostEqual(value, record[name], delta=1e-6 * abs(value))

    @staticmethod
    def read_events(folder):
        return scalars(sorted(Path(folder).glob("events.out.tfevents.*")))

    def check_show_runs(self):
        runs, plot = [self.path("run 0"), self.path("run 1")], self.path("losses.svg")
        show = [str(ROOT / "deploy/show-runs"), "--plot", plot]
        said = run_well([*show, *runs])
        self.assertEqual(run_well([show[0], *runs, *show[1:]]), said)
        table = said.splitlines()
        self.assertIn("1.00x  " + runs[0], table[1])
        self.assertIn(runs[1], table[2])
        svg = ET.parse(plot).getroot()
        self.assertEqual([len(points) for points in self.curves(svg)[1::2]],
                         [sum(figure in r for r in self.records(f"run {k}"))
                          for k in range(2) for figure in ("test_loss", "test_accuracy")])
        logarithmic = run_well([*show, "--log", *runs])
        self.assertEqual(logarithmic, said)
        self.assertNotEqual(ET.tostring(ET.parse(plot).getroot()), ET.tostring(svg))
        self.assertIn(runs[0], [t.text for t in svg.findall("{http://www.w3.org/2000/svg}text")])
        for columns in (60, 80):
            self.assertIn("run 0", on_terminal([show[0], "run 0", "run 1"], columns, cwd=self.path()))
            self.assertRegex(on_terminal([PSRUN, "--top", "run 0"], columns, cwd=self.path()), "run 0 has finished\n(.*\n)+  test  ")
        for code, says, *args in ((2, "name the folders", "--plot", plot), (2, "no such option", "--what"),
                                  (1, "cannot", "--plot", "/none/x", runs[0])):
            self.assertIn(says, run_well([show[0], *args], code))


    @staticmethod
    def curves(svg):
        """The points of each curve: for each run training loss, test loss, and the two accuracies."""
        return [line.get("points").split() for line in svg.iter("{http://www.w3.org/2000/svg}polyline")]

    def test_runs_that_are_judged_by_other_figures(self):
        """Classes and numbers in one plot: it says which is which, whatever the order."""
        figures = {"classes": "accuracy", "numbers": "r2"}
        for name, figure in figures.items():
            Path(self.path(name)).mkdir()
            records = [{"step": step, "test_loss": 1, f"test_{figure}": step / 100, "test_quality": f"test_{figure}"}
                       for step in (10, 20)]
            self.file(f"{name}/metrics.jsonl", "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records))
            self.file(f"{name}/summary.json", "{}")
        for runs, title in ((["classes", "numbers"], "accuracy, R2"), (["numbers", "classes"], "R2, accuracy")):
            run_well([ROOT / "deploy/show-runs", "--plot", self.path("a.svg"), *map(self.path, runs)])
            svg = ET.parse(self.path("a.svg")).getroot()
            texts = [t.text for t in svg.findall("{http://www.w3.org/2000/svg}text")]
            for text in (title, f"{self.path('classes')} (accuracy)", f"{self.path('numbers')} (R2)"):
                self.assertIn(text, texts)
            self.assertFalse([t for t in texts if "%" in t])
            self.assertEqual([len(points) for points in self.curves(svg)], [2] * 4)

    def test_short_records_are_no_spikes(self):
        """Epochs of 11 steps, and a record every 10. A step counts as much in a long record as in a short one."""
        records = [{"step": step, "loss_mean": loss} for step, loss in ((10, 1), (11, 3), (20, 1), (22, 6))]
        records += [{"step": step, "test_loss": loss} for step, loss in ((10, 1), (22, (1 * 3 + 9 * 1 + 2 * 6) / 12))]
        Path(self.path("metrics.jsonl")).write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records))
        Path(self.path("summary.json")).write_text("{}")
        run_well([ROOT / "deploy/show-runs", "--plot", self.path("a.svg"), self.path()])
        train, test = self.curves(ET.parse(self.path("a.svg")).getroot())
        self.assertEqual(train, test)
        for code, says in ((1, "summary.json: "), (0, "did not finish; its last figures:\n  step                22\n")):
            done = Psrun.run([PSRUN, "--top", self.path()])
            self.assertEqual((done.returncode, says in done.stdout), (code, True), done.stdout)
            Path(self.path("summary.json")).unlink(missing_ok=True)


TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1])
reader.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}))
"""


class TensorBoard(JobTest):
    def test_it_reads_the_same(self):
        python = torch_python() or sys.executable
        if subprocess.run([python, "-c", "import tensorboard"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("no tensorboard (PS_TORCH_PYTHON names a Python that has it, from PyPI)")
        self.psrun("-s", "1", "-w", "2", *GOES_ON, "train.stop_after=12", code=75)
        self.psrun("--resume", self.path("out"), "train.stop_after=0")
        done = subprocess.run([python, "-c", TENSORBOARD, self.path("out")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        theirs = {tag: [tuple(e) for e in events] for tag, events in json.loads(done.stdout).items()}
        ours = Files.read_events(self.path("out"))
        self.assertEqual(len(ours["train/loss"]), sum("loss_mean" in r for r in self.records()))
        self.assertEqual(theirs, ours)


if __name__ == "__main__":
    unittest.main()
