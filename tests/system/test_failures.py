"""Failures: each ends with one clear error and an exit code that is not 0. Nothing hangs, and
nothing is left running."""
import json
import math
import os
import re
import shutil
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from cuts import connections
from events import tell
from jobs import (BASICNET, BIN, DIGITS, LONG, NIGHTLY, PATIENCE_S, PSRUN, ROOT, Faults, JobTest, Part, Psrun, alive, environment,
                  free_port, listening_ports, needs_memory_groups, on_terminal, run_well, wait_until, wrapped_bin)
from psrunlib import cli, doctor, job, local, regular_file, screen, supervise
from psrunlib.out import Before

# A member is taken for dead after eight seconds; no other limit ends a job within PATIENCE_S.
SOON = ["net.heartbeat_ms=200", "net.dead_after_ms=8000"]
SILENT = "net.dead_after_ms=4000"  # where the test waits for that

NO_MOUNTS = (subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL,
                            check=False).returncode != 0,
             "mounts of our own need root")


# The coordinator's: the parts end in their own time then.
BEGUN = tell("joined", role="worker", rank=1, here=3, of=3) + "; "


class Deaths(JobTest):
    def start_running(self, exchange, servers):
        parts = self.start_job(servers, 3, *LONG, *SOON, f"exchange.name={exchange}")
        parts["worker 0"].wait_for(r"step [\d,]+/")
        return parts

    def kill_and_watch(self, parts, victim):
        parts[victim].popen.kill()
        codes = self.wait_all(parts)
        role, rank = victim.split()
        for name, part in parts.items():
            if name == victim:
                continue
            self.assertNotEqual(codes[name], 0, f"{name}:\n{part.text()}")
            self.assertGreater(codes[name], 0, f"{name} was ended by a signal:\n{part.text()}")
            self.assertRegex(part.text(), rf"ERROR.*{role} {rank}\b", name)

    def test_a_killed_worker_in_all_reduce_mode(self):
        self.kill_and_watch(self.start_running("allreduce", 0), "worker 2")

    def test_a_worker_gone_in_the_middle_of_an_all_reduce_message(self):
        # For most of a step, segments are on their way. A stopped process leaves its connections open.
        for number in (signal.SIGKILL, signal.SIGSTOP) * (2 if NIGHTLY else 1):
            with self.subTest(number=number):
                parts = self.start_job(0, 2, *LONG, *SOON, SILENT, "exchange.name=gloo",
                                       "exchange.shm=off", config=self.wide_model())
                parts["worker 0"].wait_for(r"step [\d,]+/")
                self.wait_until_full(parts)
                parts["worker 1"].popen.send_signal(number)
                code = parts["worker 0"].popen.wait(PATIENCE_S)
                self.assertEqual(code, 1, parts["worker 0"].text())
                parts["worker 1"].popen.kill()
                shutil.rmtree(self.path("worker-0"), ignore_errors=True)

    def wait_until_full(self, parts):
        """Waits until a good part of a segment is on its way between the parts."""
        ours = {port for part in parts.values() for _, port, _ in connections(part.popen.pid)}

        def most():
            rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
            queues = [row[4].split(":") for row in rows if int(row[1].split(":")[1], 16) in ours]
            return max((int(n, 16) for pair in queues for n in pair), default=0)

        wait_until(lambda: most() >= 1 << 16, "no large message on its way")

    def test_a_worker_killed_while_all_reduce_connects(self):
        parts = self.start_job(0, 2, *LONG, *SOON, "exchange.name=allreduce",
                               "net.join_timeout_ms=20000")
        parts["worker 0"].wait_for(r"joined role=worker rank=1")
        self.kill_and_watch(parts, "worker 1")

    def test_psrun_names_the_part_that_was_killed(self):
        # On a busy machine the log may name worker 1 for its slowness, too.
        psrun = self.start_psrun("-s", 2, "-w", 2, DIGITS, *LONG, *SOON, "trace.straggler=false")
        self.wait_for_steps("out")
        victim = next(pid for pid, _ in alive(self.folder) if environment(pid).get("RANK") == "1")
        os.kill(victim, signal.SIGKILL)
        text, _ = psrun.communicate(timeout=PATIENCE_S)
        self.assertEqual(psrun.returncode, 1, text)
        # Once, with what to do; that the others miss it is in the logs.
        self.assertEqual(text.count("worker 1"), 1, text)
        end = text[text.index("psrun: "):].splitlines()
        self.assertEqual(end[0], "psrun: the job failed: worker 1 was ended by SIGKILL")
        self.assertIn("--restarts", end[1])
        self.assertEqual(end[2:], [f"psrun: logs are in {self.path('out/logs')}"])
        self.assertIn("ERROR", Path(self.path("out/logs/server-0.log")).read_text(encoding="utf-8"))

    def take_memory(self):
        """Worker 1 takes all that there is."""
        wrapped_bin(self.path("bin"), "ps-worker",
                    '[ "$RANK" != 1 ] || exec /usr/bin/python3 -c "[bytearray(b\'x\' * (1 << 20)) for _ in range(1 << 20)]"')

    @needs_memory_groups
    def test_psrun_names_the_lack_of_memory(self):
        """Of a part that the kernel has killed for it; the second time the job ends, as it came no further."""
        self.take_memory()
        group = self.memory_group(400)
        for args, n in (([], 0), (["--restarts", "3"], 1)):
            psrun = self.start_psrun("-s", 1, "-w", 2, DIGITS, *LONG, *args, "--build-dir", self.folder, "--overwrite",
                                     before=lambda: group.write_text("0", encoding="ascii"))
            text, _ = psrun.communicate(timeout=PATIENCE_S)
            how = "worker 1 was ended by SIGKILL (it seems by the kernel: no memory was left)"
            self.assertEqual((psrun.returncode, text.count(f"{how}; it is started again")), (1, n), text)
            self.assertIn(f"psrun: the job failed: {how}\n", text)
            self.assertNotIn("dmesg", text)

    @needs_memory_groups
    def test_psrun_names_the_lack_of_memory_of_a_host(self):
        """Its kernel counts, and not this one's. The ssh stays here."""
        self.take_memory()
        group = self.memory_group(400)
        self.file("hosts", "one servers=1 workers=1 addr=127.0.0.1\ntwo workers=1 addr=127.0.0.1\n")
        ssh = self.file("ssh", f'for word; do host=$before before=$last last=$word; done\n[ "$host" != two ] || echo 0 >{group}\n'
                               'exec sh -c "$last"\n')
        psrun = self.start_psrun("--insecure", "-H", self.path("hosts"), "--port", free_port(), "-s", 1, "-w", 2, DIGITS, *LONG,
                                 "--build-dir", self.folder, env=dict(os.environ, PS_SSH=f"sh {ssh}"))
        text, _ = psrun.communicate(timeout=PATIENCE_S)
        self.assertIn("psrun: the job failed: worker 1 was ended by SIGKILL (it seems by the kernel: no memory was left)\n", text)

    def test_psrun_says_once_what_all_workers_say(self):
        config, data = self.path("job.yaml"), "data.train: d.csv: sample 3 has the label 9; "
        Path(self.path("d.csv")).write_text("".join(f"{i}.5,{(0, 1, 2, 9)[i]}\n" for i in range(4)), encoding="ascii")
        Path(config).write_text("model: {input: [1], loss: cross_entropy, layers: [{linear: {name: fc, out: 3}}]}\n"
                                "data: {kind: csv,\n  path: .,\n  train: d.csv}\n", encoding="ascii")
        text = self.psrun("-s", 2, "-w", 2, config, code=1)
        self.assertRegex(text, r"\Apsrun: the job failed: worker [01] ended with exit code 1\n"
                         f"psrun:   {config}:4: {data}the model's 3 classes are 0 to 2: set out: 10 in "
                         rf"linear \"fc\" \({config}:1\), or mend the label\npsrun: logs are in ")
        self.assertEqual(len(text.splitlines()), 3)

    def test_psrun_does_not_wait_for_who_cannot_be_ended(self):
        class Hanging:  # like a process that waits for a dead file server
            def __init__(self, part):
                self.part = part
                read, self.other_end = os.pipe()
                self.output, self.events = open(read, "rb"), open(os.dup(read), "rb")

            poll = stopped_by = lambda self: None

            def signal(self, number):
                pass

        def launch(part):
            process = Hanging(part) if part.rank == 0 else local.LocalProcess(part, {})
            self.addCleanup(process.output.close)
            self.addCleanup(process.events.close)
            return process

        times = mock.patch.multiple(supervise, GRACE_S=0.2, KILL_S=0.2, LEFT_S=0.2)
        with tempfile.TemporaryFile("w+") as shown, times:
            code = supervise.Supervisor(screen.Screen(shown), launch, self.folder, 10).run(
                [job.Part("worker", 0, [], {}), job.Part("worker", 1, ["sh", "-c", "exit 3"], {})])
            shown.seek(0)
            text = shown.read()
        self.assertEqual(code, 1)
        self.assertIn("worker 0 does not end, not even by SIGKILL", text)
        self.assertIn("the job failed: worker 1 ended with exit code 3", text)

    def test_psrun_names_who_failed_though_it_ended_last(self):
        def part(role, kind, reason, then):
            told = f'{{"event": "failure", "kind": "{kind}", "passing": false, "reason": "{reason}"}}'
            return job.Part(role, 0, ["sh", "-c", f"echo '{told}' >/dev/fd/${{PS_EVENTS%%:*}}; {then}"], {})

        held = self.path("held")
        with tempfile.TemporaryFile("w+") as shown, mock.patch.multiple(supervise, GRACE_S=0.2):
            code = supervise.Supervisor(screen.Screen(shown), lambda p: local.LocalProcess(p, {}), self.folder, 10).run(
                [part("server", "PEER", "worker 0 has failed", f"while [ ! -e {held} ]; do sleep 0.01; done; exit 1"),
                 part("worker", "CONFIG", "no such layer", f"touch {held}; sleep 100; true")])
            shown.seek(0)
            text = shown.read()
        self.assertEqual(code, 1)
        self.assertIn("the job failed: worker 0 failed, and did not end by itself\npsrun:   no such layer\n", text)

    def test_psrun_names_who_has_left_though_no_worker_ends_in_time(self):
        """Worker 0 has missed worker 1, and has ended the job: both have much to do then."""
        over = tell("failure", kind="PEER", passing=True, reason="worker 1 has left the job")
        held = [self.path(f"held{rank}") for rank in range(2)]
        scripts = [f"until [ -e {held[0]} ] && [ -e {held[1]} ]; do sleep 0.01; done; {BEGUN}"
                   f"{tell('aborts', role='worker', rank=0)}; {over}; exit 1",
                   f"{over}; touch {held[0]}; sleep 100; true", f"{tell('exits')}; touch {held[1]}; sleep 100; true"]
        with tempfile.TemporaryFile("w+") as shown, mock.patch.multiple(supervise, GRACE_S=0.2):
            supervise.Supervisor(screen.Screen(shown), lambda p: local.LocalProcess(p, {}), self.folder, 10).run(
                [job.Part(name, rank, ["sh", "-c", script], {})
                 for name, rank, script in zip(("server", "worker", "worker"), (0, 0, 1), scripts)])
            shown.seek(0)
            said = shown.read()
        self.assertIn("the job failed: worker 1 ended, and others were not done\npsrun:   worker 1 has left the job\n", said)

    def first_cause(self, *parts):
        """What psrun says last of parts (role, rank, a shell's words), of which each goes on once the one before it has ended."""
        files = [os.path.join(tempfile.mkdtemp(dir=self.folder), "ended") for _ in parts]
        waits = ["", *(f"until [ -e {file} ]; do sleep 0.01; done; " for file in files)]
        scripts = [f"trap 'touch {file}' EXIT; {wait}{words}" for file, wait, (_, _, words) in zip(files, waits, parts)]
        with tempfile.TemporaryFile("w+") as shown:
            code = supervise.Supervisor(screen.Screen(shown), lambda p: local.LocalProcess(p, {}), self.folder, 10).run(
                [job.Part(role, rank, ["sh", "-c", script], {}) for (role, rank, _), script in zip(parts, scripts)])
            shown.seek(0)
            self.assertEqual(code, 1)
            return shown.read().split("psrun: the job failed: ")[1]

    def test_psrun_names_a_program_that_has_ended_by_itself(self):
        """With the words of sys.exit("words"): the server fails because of it, and ends first. Of one that has ended well, or
        without words, the server's are all there is besides."""
        why = BEGUN + tell("failure", kind="ARG", passing=False, reason="worker 1 has ended")
        over = tell("failure", kind="PEER", passing=True, reason="the job is over")
        words = f"{tell('exits')}; {over}; echo %s; echo pstrain.errors"
        for code, error, shown in ((3, "PeerError", "worker 1 ended with exit code 3\npsrun:   no such folder\npsrun:   worker 1 has ended\n"),
                                   (3, "PeerError", "worker 1 ended with exit code 3\npsrun:   worker 1 has ended\npsrun: logs"),
                                   (1, "TimeoutError", "worker 1 ended with exit code 1\npsrun:   no such folder\n"),
                                   (0, "PeerError", "worker 1 ended with exit code 0, and others were not done\n"
                                                    "psrun:   worker 1 has ended\n")):
            own = "" if "logs" in shown else "no such folder"
            with self.subTest(code=code, own=own):
                said = self.first_cause(("server", 0, f"{why}; exit 1"), ("worker", 0, f"{over}; exit 1"),
                                        ("worker", 1, f"{words % own}.{error}: not ended; exit {code}"))
                self.assertTrue(said.startswith(shown), said)

    def test_psrun_names_who_fails_while_another_waits_at_its_end(self):
        """That one has ended well, and is not what the others have missed."""
        for role, error in (("worker", tell("exception", line="ValueError: no")),
                            ("server", tell("failure", kind="IO", passing=True, reason="ValueError: no"))):
            said = self.first_cause(("worker", 1, f"{BEGUN}{tell('exits')}; exit 0"), (role, 0, f"{error}; exit 1"))
            self.assertTrue(said.startswith(f"{role} 0 ended with exit code 1\npsrun:   ValueError: no\n"), said)

    def test_psrun_names_who_has_ended_the_job(self):
        """Where all say that it is another, as a worker does of whose tensors the others differ."""
        over, own = (tell("failure", kind="PEER", passing=True, reason=reason) for reason in ("worker 1", "other tensors"))
        said = self.first_cause(("server", 0, f"{BEGUN}{tell('aborts', role='worker', rank=1)}; {over}; exit 1"),
                                ("worker", 0, f"{over}; exit 1"), ("worker", 1, f"{own}; exit 1"))
        self.assertTrue(said.startswith("worker 1 ended with exit code 1\npsrun:   other tensors\n"), said)

    def test_nothing_outlives_a_killed_psrun(self):
        psrun = self.start_psrun("-s", 1, "-w", 2, DIGITS, *LONG, stdout=subprocess.DEVNULL)
        self.wait_for_steps("out")
        psrun.kill()
        psrun.wait()
        wait_until(lambda: not alive(self.folder), lambda: alive(self.folder))


class Descriptors(JobTest):
    """A limit of open files or connections that is too low is reported early, before the job reaches it."""

    JOB = ("train.steps=5", "server.shards=8", "optimizer.clip_norm=1", "net.join_timeout_ms=20000")

    @staticmethod
    def limited(limit):
        return ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"]

    def needs(self, *settings, **more):
        """Returns {name: least need} of the parts whose limits may be too low."""
        parts = self.start_job(2, 3, *self.JOB, *settings, prefix=self.limited(24), config=BASICNET, **more)
        codes = self.wait_all(parts)
        said = {}
        for name, part in parts.items():
            self.assertEqual(codes[name], 1, part.text())
            found = re.search(r"ERROR failed kind=UNSUPPORTED passing=false reason=\".* needs up to (\d+) open "
                              r"files and connections here, and the limit is 24: raise it \(ulimit -n (\d+)",
                              part.text())
            self.assertIsNotNone(found, part.text())
            said[name] = int(found.group(1))
        return said

    def test_need_and_mend_are_named_and_the_need_suffices(self):
        for shm in ("auto", "off"):
            needs = self.needs(f"exchange.shm={shm}")
            self.assertGreater(needs["server 0"], needs["server 1"])
            parts = self.start_job(2, 3, *self.JOB, *LONG[1:], f"exchange.shm={shm}",
                                   "train.steps=100000", prefix=self.limited(max(needs.values())), config=BASICNET)
            parts["worker 0"].wait_for(r"step [\d,]+/")
            open_now = {name: len(os.listdir(f"/proc/{part.popen.pid}/fd"))
                        for name, part in parts.items()}
            for name, part in parts.items():
                part.popen.kill()
                part.popen.wait()
                self.assertLessEqual(open_now[name], needs[name], name)
                self.assertGreater(open_now[name], needs[name] - 24, name)

    def test_few_more_are_enough_for_what_must_be(self):
        most, least = self.needs("exchange.shm=auto"), self.needs("exchange.shm=off")
        limit = (most["server 0"] + least["server 0"]) // 2
        parts = self.start_job(2, 3, *self.JOB, prefix=self.limited(limit), config=BASICNET)
        codes = self.wait_all(parts, 60)
        self.assertEqual(set(codes.values()), {0}, "\n".join(p.text() for p in parts.values()))
        self.assertRegex(parts["server 0"].text(),
                         rf"WARN  descriptors limit={limit} need={most['server 0']} ")


class Joining(JobTest):
    def test_a_worker_that_never_comes(self):
        parts = self.start_job(1, 2, "net.join_timeout_ms=5000", skip=["worker 1"])
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertEqual(codes[name], 1, part.text())
            self.assertRegex(part.text(), r"ERROR.*worker 1", name)

    def test_a_part_that_fails_before_joining_ends_the_job(self):
        wrapped_bin(self.path("bin"), "ps-worker",
                    '[ "$RANK" != 1 ] || { echo "no data"; exit 3; }')
        text = self.psrun("--build-dir", self.folder, "-s", 1, "-w", 2, DIGITS,
                          "net.join_timeout_ms=1000000", code=1)  # longer than the test waits
        self.assertRegex(text, "the job failed: worker 1 ended with exit code 3\n.*no data")

    def test_a_signal_ends_a_worker_that_joins(self):
        parts = self.start_job(1, 2, skip=["worker 1"])
        parts["server 0"].wait_for(r"joined role=worker rank=0")
        parts["worker 0"].popen.send_signal(signal.SIGINT)
        self.assertEqual(parts["worker 0"].popen.wait(PATIENCE_S), 130)

    def test_a_coordinator_that_dies_while_others_join(self):
        # Both members ask ten times a second, so the worker has heard for which ones it waits.
        faults = Faults(self.path("faults"), "member.here:12:kill")
        parts = self.start_job(2, 1, "net.join_timeout_ms=10000", "net.heartbeat_ms=100",
                               skip=["server 1"], prefix=faults.prefix)
        self.assertEqual(self.wait_all(parts)["worker 0"], 1)
        self.assertRegex(parts["worker 0"].text(),
                         "ERROR.*no coordinator at .*is server 0 running")

    @unittest.skipIf(*NO_MOUNTS)
    def test_a_coordinator_whose_name_never_resolves(self):
        _, prefix = self.own_names()
        parts = self.start_job(2, 1, "net.join_timeout_ms=1500", host="no-such-host.invalid",
                               skip=["server 0"], prefix=prefix)
        self.assertEqual(set(self.wait_all(parts).values()), {1})
        for part in parts.values():
            self.assertRegex(part.text(), r"waiting reason=.*no-such-host\.invalid")
            self.assertRegex(part.text(), r"ERROR.*no-such-host\.invalid: the name does not resolve")

    @unittest.skipIf(*NO_MOUNTS)
    def test_a_coordinator_whose_name_resolves_later(self):
        hosts, prefix = self.own_names()
        parts = self.start_job(2, 1, "train.steps=2", host="late", prefix=prefix)
        for part in parts.values():
            part.wait_for("waiting reason=.*late: the name does not resolve")
        with open(hosts, "a", encoding="ascii") as f:
            f.write("127.0.0.1 late\n")
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertEqual(codes[name], 0, part.text())

    def own_names(self):
        """A file of hosts, and the command that makes it all the names that a program knows:
        a name server elsewhere may take longer than a test."""
        hosts, switch = self.path("hosts"), self.path("nsswitch.conf")
        for path, text in ((hosts, "127.0.0.1 localhost\n"), (switch, "hosts: files\n")):
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
        mounts = " && ".join(f"mount --bind {path} /etc/{os.path.basename(path)}"
                             for path in (hosts, switch))
        return hosts, ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh"]

    def test_a_member_of_another_job(self):
        parts = self.start_job(1, 2, "net.join_timeout_ms=6000", skip=["worker 1"])
        env = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "PS_SERVERS": "1", "RANK": "1"}
        env["MASTER_PORT"] = parts["worker 0"].env["MASTER_PORT"]
        said = run_well([BIN / "ps-worker", "--config", DIGITS, "--set", "optimizer.lr=0.5", "--out",
                         self.path("stranger")], code=1, env=dict(os.environ, **env), timeout=PATIENCE_S)
        self.assertRegex(said, r"ERROR.*configuration")
        self.assertNotIn(0, self.wait_all(parts).values())

    def test_a_server_of_a_job_without_servers(self):
        """Beside workers that reduce by themselves it would wait for them, and take their coordinator's port."""
        said = run_well([BIN / "ps-server", "--config", DIGITS, "--rank", "0", "--set", "exchange.name=allreduce"], code=1,
                        timeout=PATIENCE_S)
        self.assertRegex(said, "ERROR.*exchange.name: a job with allreduce has no servers: .* PS_SERVERS=0, or set "
                               "exchange.name=ps")


class Deaf:
    """Another address with all ports of a coordinator. Once the worker has said that it leaves,
    nothing comes back through it."""

    LEAVE = re.compile(rb"[\x90-\x9f][\x01-\x0f]\x08\xcf")
    ADDRESS = "127.0.0.2"

    def __init__(self, ports):
        self.heard, self.open = threading.Event(), []
        for port in ports:
            listener = socket.create_server((self.ADDRESS, port))
            self.open.append(listener)
            threading.Thread(target=self._accept, args=[listener, port], daemon=True).start()

    def _accept(self, listener, port):
        while True:
            try:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", port), 5)
            except OSError:
                return
            self.open += [here, there]
            for ends in ((here, there, True), (there, here, False)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, target, ours):
        try:
            while chunk := source.recv(65536):
                if ours and self.LEAVE.search(chunk):
                    self.heard.set()
                if ours or not self.heard.is_set():
                    target.sendall(chunk)
        except OSError:
            pass
        if ours or not self.heard.is_set():
            target.close()

    def close(self):
        for end in self.open:
            end.close()


class LostWords(JobTest):
    def test_a_worker_that_hears_no_answer_at_the_end(self):
        parts = self.start_job(1, 2, "train.steps=5", "net.dead_after_ms=5000", skip=["worker 1"])
        env = dict(parts["worker 0"].env, RANK="1")
        parts["server 0"].wait_for("joined role=worker")  # it listens at all of its ports
        way = Deaf(listening_ports(parts["server 0"].popen.pid))
        self.addCleanup(way.close)
        self._start(parts, "worker", 1,
                    ["--config", DIGITS, "--set", "train.steps=5", "--set", "net.dead_after_ms=5000",
                     "--out", self.path("worker-1")],
                    dict(env, MASTER_ADDR=way.ADDRESS), (), ())
        codes = self.wait_all(parts)
        logs = "\n".join(p.text() for p in parts.values())
        self.assertTrue(way.heard.is_set(), logs)
        self.assertEqual(set(codes.values()), {0}, logs)
        self.assertIn("all was done before", parts["worker 1"].text())


class BadInput(JobTest):
    """psrun with one worker: each mistake gives a message of one line, quickly, before anything runs."""

    def refused(self, pattern, *args, config=DIGITS):
        text = self.psrun("-m", "single", config, *args, code=1, timeout=PATIENCE_S)
        self.assertRegex(text, pattern)
        self.assertLessEqual(len(text.splitlines()), 6, text)
        self.assertNotIn("Traceback", text)

    def write(self, name, content):
        path = self.path(name)
        with open(path, "wb") as f:
            f.write(content)
        return path

    def config(self, text):
        return self.write("bad.yaml", text.encode())

    # test_config, test_model_spec, test_idx and test_npy have all mistakes, these show what becomes of one.
    def test_keys_and_values(self):
        self.refused(r"optimizer\.lrr.*optimizer\.lr", "optimizer.lrr=1")
        self.refused(r"mode single has one worker, not 2", "-w", 2)
        self.refused(r"job\.workers.*2000", "-w", 2000)
        self.refused(r"bad\.yaml:2: .*epoch", config=self.config("train:\n  epoch: 3\n"))
        self.refused(r"nowhere\.yaml.*No such file", config=self.path("nowhere.yaml"))
        self.refused(r"-s 2 and job\.servers=1 contradict each other", "-s", 2, "job.servers=1")
        self.refused(r"-w 1 and job\.workers=3 contradict", "-w", 1, "job.workers=2", "job.workers=3")

    def test_models_that_do_not_fit(self):
        layers = "model:\n  input: [1, 8, 8]\n  layers:\n    - %s\n"
        self.refused(r"bad\.yaml:4.*cnv2d.*did you mean .conv2d.*all: conv2d, linear, .*log_softmax",
                     config=self.config(layers % "cnv2d: {out: 4}"))
        self.refused(r"bad\.yaml:4.*transformer.*there are conv2d, linear,",
                     config=self.config(layers % "transformer"))

    def test_what_no_part_could_begin_with(self):
        """One line, that names the place, and no folder."""
        tiny = self.config("model: {input: [4], layers: [{linear: {out: 2}}]}\n"
                           "data: {kind: synthetic, samples: 8, test_samples: 0}\nexchange: {codec: int4}\n")
        local = ("sync.policy=local", "sync.local_steps=8")
        servers = ("-s", 1, "-w", 2)
        for args, says in ((("-m", "single", "sync.policy=ssp"), "sync.policy ssp it has to be ps"),
                           (("-m", "single", *local), "sync.policy: local needs other workers"),
                           (("-m", "allreduce", "-w", 2, "sync.policy=asp"), "sync.policy asp it has to be ps"),
                           (("-m", "allreduce", "-w", 2, "exchange.levels=2"), "exchange.levels 2 it has to be ps"),
                           ((*servers, "--restarts", 2, "exchange.levels=2"), "recovery.rejoins: with exchange.levels 2"),
                           ((*servers, "loss_scale.use=on"), r"bad\.yaml:3: exchange\.codec: int4 keeps"),
                           ((*servers, "exchange.shm=on"), r"exchange\.shm: cannot be on with exchange\.codec int4"),
                           ((*servers, *local, "sync.fragments=8"), r"sync\.fragments: the model's 10 parameters"),
                           ((*servers, "server.shards=8"), r"server\.shards: the model's 10 parameters make at most"),
                           (("-s", 3, "-w", 2, "exchange.codec=none"), r"job\.servers: the model's 10 parameters make"),
                           ((*servers, "exchange.codec=none", "server.share=[1,2]"), r"server\.share has 2 numbers"),
                           (("-m", "allreduce", "-w", 2, "exchange.name=nccl", "train.device=cpu"), "nccl sums in the"),
                           ((*servers, "checkpoint.rows_full_every=2"), r"checkpoint\.rows_full_every: without")):
            with self.subTest(args):
                said = self.psrun(*args, tiny, code=1, timeout=PATIENCE_S)
                self.assertRegex(said, r"\Apsrun: .*" + says + r".*\n\Z")
                self.assertFalse(os.path.exists(self.path("out")))

    def test_data_files(self):
        self.refused(r"nowhere", "data.path=" + self.path("nowhere"))
        self.write("labels", struct.pack(">II", 2049, 100) + bytes(100))
        self.write("images", struct.pack(">IIII", 2051, 100, 8, 8) + bytes(6399))
        self.refused(r"images", "data.path=" + self.folder, "data.train=images,labels")
        self.refused(r"data\.train.*9999", "data.train=0-9999")

    def test_weights_that_are_no_numbers(self):
        self.psrun("-m", "single", DIGITS, "train.steps=1")
        raw = bytearray(self.weights())
        raw[-12:-8] = struct.pack("<f", math.nan)
        self.write("nan.safetensors", bytes(raw))
        self.refused(r"nan\.safetensors: \S+: element \d+ is -?nan: training cannot start from it",
                     "--overwrite", "train.init=" + self.path("nan.safetensors"))

    def test_a_loss_that_is_not_finite_at_the_end(self):
        settings = ("-m", "single", DIGITS, "train.steps=1", "optimizer.name=sgd", "optimizer.lr=1e9",
                    "data.scale=10000")
        said = r"the last loss is not finite \(training [\d.]+, test (inf|nan|-nan)\): a lower optimizer"
        self.assertRegex(self.psrun(*settings, code=1, out="error"), "(?m)^psrun: +" + said)
        self.assertTrue(os.path.exists(self.path("error/model.safetensors")))
        self.assertRegex(self.psrun(*settings, "exchange.nan=allow", out="allow"), "WARN  loss " + said)

    def test_weights(self):
        self.refused(r"train\.init: .*none\.safetensors", "train.init=" + self.path("none.safetensors"))
        cut = self.write("cut.safetensors", struct.pack("<Q", 1000) + b"{}")
        self.refused(r"cut\.safetensors", f"train.init={cut}")

    def test_a_folder_that_cannot_be_made(self):
        self.write("file", b"")
        text = self.psrun("-m", "single", DIGITS, out="file/below", code=1)
        self.assertRegex(text, r"cannot make .*file/below")

    def test_a_log_that_cannot_be_written(self):
        os.makedirs(self.path("out/logs/worker-0.log"))
        text = self.psrun("-s", 1, "-w", 1, DIGITS, "train.steps=5", code=1)
        self.assertEqual(text, f"psrun: cannot write {self.path('out/logs/worker-0.log')}: "
                               "Is a directory\n")

    def test_logs_that_are_a_file(self):
        os.mkdir(self.path("out"))
        self.write("out/logs", b"mine")
        text = self.psrun("-m", "single", DIGITS, code=1)
        self.assertEqual(text, f"psrun: cannot make {self.path('out/logs')}: File exists\n")

    def test_calls(self):
        def call(*words):
            done = Psrun.run([PSRUN, "--build-dir", BIN.parent, *words])
            self.assertNotEqual(done.returncode, 0)
            self.assertNotIn("Traceback", done.stdout)
            return done.stdout.splitlines()[-1]
        self.assertRegex(call(), "give a configuration, as in: deploy/psrun configs/")
        for port in ("99999", "-1", "0", "x"):
            self.assertIn(f"'{port}' is not a port (1 .. 65535)", call("--port=" + port, DIGITS))

    def test_names_that_are_no_text(self):
        for name in (os.fsdecode(b"caf\xe9.yaml"), "two\nlines.yaml"):
            text = self.psrun("-m", "single", self.path(name), code=1)
            self.assertTrue(text.startswith("psrun: "), text)
            self.assertIn("No such file", text)

    def test_a_dry_run_starts_nothing(self):
        for words in (["--join", "run"], ["--replay-membership", "log"], ["--top", "9100"], ["--convert", "x.parquet"]):
            self.assertIn(f"give it without {words[0]}\n", self.psrun("--dry-run", *words, code=1))

    def test_what_does_not_go_on_with_a_run(self):
        for words, says in ((["--join", "run"], "--join adds a worker"), (["--find-lr"], "--find-lr runs a short job"),
                            (["--verify"], "--verify compares"), (["--replay", "log"], "--resume RUN sync.replay=LOG"),
                            (["--replay-membership", "log"], "--replay-membership repeats a run from its first step"),
                            (["--init", "x.safetensors"], "so --init x.safetensors would have no effect")):
            said = self.psrun("--resume", self.folder, *words, DIGITS, code=1)
            self.assertIn(says, said)
            self.assertIn("leave out one of them", said)

    def test_a_run_that_is_another_programs(self):
        other = json.dumps({"config": "x.yaml", "overrides": None, "mode": "ps", "servers": "2", "workers": 2})
        for text in ("[]", "{}", '{"config": "x.yaml"}', other):
            self.write("job.json", text.encode())
            self.assertRegex(self.psrun("--resume", self.folder, code=1),
                             r"\Apsrun: --resume .* cannot find out which job it was: .*job\.json (is of|lacks).*\n\Z")

    def test_resume_auto_finds_the_job_in_its_folder(self):
        run = self.path("run")
        os.mkdir(run)
        known = {"config": DIGITS, "overrides": ["train.epochs=7"], "mode": "single", "servers": 0, "workers": 1}
        self.write("run/job.json", json.dumps(known).encode())
        self.assertIn("train.epochs=7", self.psrun("--resume", "auto", "--dry-run", out="run"))
        done = Psrun.run([PSRUN, "--resume", "auto"])
        self.assertEqual((done.returncode, done.stdout), (1, "psrun: --resume auto needs --out: name the folder of the run\n"))

    def test_a_fifo_as_configuration(self):
        os.mkfifo(self.path("fifo.yaml"))
        self.refused(r"fifo\.yaml: is not a regular file", config=self.path("fifo.yaml"))

    def test_one_part_that_cannot_start_ends_the_others_at_once(self):
        for setting, said in (("data.path=/nowhere", "there is no folder /nowhere"),
                              ("net.interface=nonsense", 'no interface that is up fits "nonsense"')):
            argv = self.patient_psrun("-s", 2, "-w", 2, DIGITS, setting, out=setting[:4])
            text = run_well(argv, code=1, timeout=PATIENCE_S)
            self.assertIn(said, text.splitlines()[-2])

    def test_missing_programs(self):
        done = Psrun.run([PSRUN, "--build-dir", self.folder, DIGITS])
        self.assertEqual(done.returncode, 1)
        self.assertIn("no ps-worker", done.stdout)


class Rerun(JobTest):
    """A folder holds one run."""

    SHORT = ("-m", "single", DIGITS, "train.eval_every=0")

    def test_is_refused_unless_it_may_overwrite(self):
        self.psrun(*self.SHORT, "train.steps=6", "train.save_every=2")
        for name in ("mine.txt", "checkpoints/mine.txt", "logs/mine.log"):
            Path(self.path("out", name)).write_text("kept", encoding="utf-8")
        before = self.weights()
        text = self.psrun(*self.SHORT, "train.steps=3", code=1)
        self.assertRegex(text, r"^psrun: \S+/out holds a run already \(metrics.jsonl\): give another "
                               r"folder with --out, or replace it with --overwrite\n$")
        self.assertEqual(self.weights(), before)
        self.psrun(*self.SHORT, "train.steps=3", "train.save_every=3", "--overwrite")
        self.assertEqual(self.summary()["steps"], 3)
        self.assertEqual(sorted(os.listdir(self.path("out/checkpoints"))),
                         ["mine.txt", "step-3.safetensors"])
        for name in ("mine.txt", "checkpoints/mine.txt", "logs/mine.log"):
            self.assertEqual(Path(self.path("out", name)).read_text(encoding="utf-8"), "kept")

    def test_by_hand(self):
        def worker(*flags):
            part = Part("worker", 0, ["--config", DIGITS, "--set", "exchange.name=none", "--set",
                                      "job.workers=1", "--set", "train.steps=2", "--out",
                                      self.path("out"), *flags], {})
            self.addCleanup(part.end)
            return part.popen.wait(PATIENCE_S), part.text()
        self.assertEqual(worker()[0], 0)
        code, text = worker()
        self.assertEqual(code, 1)
        self.assertRegex(text, r'ERROR failed kind=IO passing=false reason="\S+/out holds a run already '
                               r'\(summary.json\): ')
        self.assertEqual(worker("--overwrite")[0], 0)
        self.assertEqual(len([r for r in self.records() if "lr" in r]), 1)

    def test_two_by_hand_at_once(self):
        parts = self.start_job(0, 1, *LONG, "exchange.name=none")
        self.wait_for_steps("worker-0")
        again = self.start_job(0, 1, *LONG, "exchange.name=none")  # with --overwrite
        self.assertEqual(self.wait_all(again), {"worker 0": 1})
        self.assertRegex(again["worker 0"].text(), "another job is writing into it")
        parts["worker 0"].popen.send_signal(signal.SIGINT)
        self.assertEqual(self.wait_all(parts), {"worker 0": 130})

    def test_a_start_that_fails_leaves_no_folder(self):
        # What was wrong has been said, once.
        said = run_well([PSRUN, "--build-dir", BIN.parent, "-m", "single", DIGITS, "train.device=cuda:900"], code=1,
                        cwd=self.folder)
        self.assertEqual(os.listdir(self.path("runs")), [])
        self.assertEqual(said.count("cuda:900"), 1, said)
        self.assertNotIn("logs are in", said)
        part = Part("worker", 0, ["--config", DIGITS, "--set", "exchange.name=none", "--set",
                                  "job.workers=1", "--set", "train.device=cuda:900", "--out",
                                  self.path("by-hand")], {})
        self.addCleanup(part.end)
        self.assertEqual(part.popen.wait(PATIENCE_S), 1)
        self.assertFalse(os.path.exists(self.path("by-hand")), part.text())


class GoesOn(JobTest):
    def test_the_command_is_said(self):
        run = self.path("a run")
        for options, says in (
                ({}, f"psrun --resume '{run}'"),
                ({"restarts": 5, "mps": True}, f"psrun --restarts 5 --mps --resume '{run}'"),
                ({"hosts": ["node1"], "restarts": 5}, f"the same command with --resume '{run}'")):
            one = mock.Mock(**{"hosts": [], "restarts": 0, "mps": False, "out": run, **options})
            self.assertIn(f"; {says} goes on", cli.what_is_left(one, supervise.RESUMABLE, Before(run)))
            self.assertNotIn("goes on", cli.what_is_left(one, 143, Before(run)))


class Output(JobTest):
    def test_streams_that_are_closed(self):
        """A log, or a part's pipe, would get their numbers."""
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
        run_well([*closed, *self.psrun_argv("-s", 1, "-w", 1, "--", "sh", "-c", "echo said; exit 3")], code=1)
        self.assertEqual(self.text_of("out", "logs", "worker-0.log"), "said\n")
        run_well([*closed, *self.psrun_argv("--dry-run", DIGITS)])
        run_well([*closed, *self.psrun_argv("--no-such-option")], code=2)

    def test_nobody_takes_it(self):
        """psrun ... | head; a full disk."""
        read, write = os.pipe()
        os.close(read)
        full = os.open("/dev/full", os.O_WRONLY)
        for stdout, says in ((write, ""), (full, "psrun: its output: No space left on device\n")):
            done = subprocess.run(self.psrun_argv("--dry-run", DIGITS), stdout=stdout, stderr=subprocess.PIPE, text=True,
                                  check=False, timeout=PATIENCE_S)
            os.close(stdout)
            self.assertEqual((done.returncode, done.stderr), (1, says))


class Doctor(JobTest):
    def test_who_does_not_answer_in_time_is_named(self):
        for facts, fault in (({}, "dir: no answer"), ({"dir": "ok", "config": "ok"}, "data: no answer"),
                             ({"dir": "no folder /x"}, "no folder /x"), ({"dir": "ok", "config": "ok", "data": "ok"}, "")):
            node = doctor.Node(None, [], None)
            node.facts = facts
            doctor._judge([node])
            self.assertEqual(len(node.faults), bool(fault), node.faults)
            self.assertTrue(all(said.startswith(fault) for said in node.faults), node.faults)

    def test_data_of_the_job_that_is_asked_for(self):
        for mode in ("ps", "allreduce"):
            text = self.psrun("--doctor", "-m", mode, *["-s", 1][:2 * (mode == "ps")], "-w", 3, DIGITS,
                              "data.batch=[16,32,8]")
            self.assertIn("nothing to mend", text)

    def test_a_narrow_terminal(self):
        text = on_terminal(self.psrun_argv("--doctor", "-s", 1, "-w", 2, DIGITS), 60)
        self.assertRegex(text, r"(?m)^here  \S+ +ok +\d+ ")
        self.assertRegex(text, r"(?m)^here  here  127.0.0.1 +\d+ us +\d+ Mbit/s$")

    def hangs(self, which, limit):
        """What it says where a program hangs when its words match, and it waits for a second."""
        os.makedirs(self.path("build/bin"))
        for name in ("ps-config-json", "ps-server", "ps-worker"):
            path = Path(self.path("build/bin", name))
            path.write_text(f"#!/bin/sh\ncase $* in {which}) exec sleep 1000;; esac\n"
                            f'exec {BIN}/{name} "$@"\n')
            path.chmod(0o755)
        patient = ("import sys; sys.path.insert(0, sys.argv.pop(1)); from psrunlib import cli, doctor;"
                   f"doctor.{limit} = 1; sys.exit(cli.main(sys.argv[1:]))")
        return run_well(["python3", "-c", patient, ROOT / "deploy", "--build-dir", self.path("build"), "--doctor",
                         "-s", "1", "-w", "1", DIGITS], code=1, timeout=PATIENCE_S)

    def test_a_probe_that_hangs(self):
        self.assertIn("to mend: here: the probe did not start", self.hangs("*serve:*", "PROBE_S"))

    def test_data_that_are_not_read(self):
        self.assertIn("to mend: here: the data were not read within 1 s (--check-data)", self.hangs("*--check-data*", "WITHIN_S"))

    def test_a_program_that_keeps_its_output_open(self):
        """As one that waits for a device does: no signal ends it."""
        sleeper = self.path("sleeper")
        process = doctor.Node(None, [], None).start(f"sleep 1000 & echo $! >{sleeper}; echo dir=ok")
        process.wait(PATIENCE_S)
        with mock.patch.object(doctor, "ENDS_S", 0.1):
            said = doctor._finish(process, time.monotonic())
        os.kill(int(Path(sleeper).read_text(encoding="ascii")), signal.SIGKILL)  # it is there still
        process.communicate()
        self.assertEqual(said, ("dir=ok\n", "\nno answer in time"))


class LimitedFiles(JobTest):
    def test_is_a_full_disk(self):
        """The weights have 207 KiB."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))  # noqa: E731
        done = Psrun.run(self.psrun_argv("-s", 1, "-w", 1, BASICNET, "train.steps=5", "exchange.shm=off"), PATIENCE_S,
                         before=limit)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"psrun:   .*model\.safetensors.*File too large \(ulimit -f")


    def test_what_psrun_cannot_write_leaves_what_was_there(self):
        path = self.path("some.json")
        with regular_file.new_text(path) as f:
            f.write("before")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with self.assertRaises(OSError), regular_file.new_text(path) as f:
                f.write("x" * 5000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertEqual(self.text_of("some.json"), "before")
        self.assertEqual(os.listdir(self.folder), ["some.json"])


class FullDisk(JobTest):
    def setUp(self):
        super().setUp()
        self.disk = self.path("disk")
        os.mkdir(self.disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "none", self.disk],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if mounted.returncode != 0:
            self.skipTest("a full disk needs a small tmpfs, and mounting one needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])

    def test_logs_do_not_fit(self):
        with open(self.path("disk/filler"), "wb") as f:
            f.write(bytes(150 * 1024))
        text = self.psrun("-s", 1, "-w", 2, DIGITS, "train.steps=400", "train.log_every=1",
                          out="disk/out", code=1)
        self.assertRegex(text, r"psrun: .*No space left on device")
        self.assertNotIn("Traceback", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
