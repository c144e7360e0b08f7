"""What the parts tell psrun, by which it decides; and the lines of their log, which it shows."""
import collections
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from events import tell
from jobs import BIN, DIGITS, PATIENCE_S, ROOT, JobTest
from psrunlib import attempts, commits, events, faults, hosts as hostfile, job, local, remote, screen, watched
from psrunlib.errors import JobError
from psrunlib.events import Failure
from psrunlib.log_line import parse, why
from psrunlib.restarts import Restarts, is_passing
from psrunlib.supervise import Supervisor


class Ended:
    """The part of watched.Watched that is_passing reads."""

    def __init__(self, errors, code=1, fault=""):
        self.errors, self.code, self.fault = errors, code, fault


class LogLines(unittest.TestCase):
    def test_a_line(self):
        said = parse('  12.345 worker/0 WARN  rejoin n=1/5 reason="worker 1 (host b) is dead" host=c')
        self.assertEqual((said.level, said.event), ("WARN", "rejoin"))
        self.assertEqual(said.fields, {"n": "1/5", "reason": "worker 1 (host b) is dead", "host": "c"})
        self.assertEqual(parse("0.001 server/1 INFO  end").fields, {})
        for line in ("", "epoch 1/2  step 3/9", "1.0 worker/0 LOUD  failed kind=IO", "Traceback: ERROR failed"):
            self.assertIsNone(parse(line))

    def test_lines_fit_a_terminal(self):
        terminal = unittest.mock.Mock(isatty=lambda: True)
        line = "[worker 0] epoch 1/6  test loss 0.7232 96.88%  train 0.9296 68.25%  best"
        self.assertEqual(screen.wrapped(line, terminal, 80, 11), line)
        self.assertEqual(screen.wrapped(line, terminal, 60, 11),
                         "[worker 0] epoch 1/6  test loss 0.7232 96.88%\n" + " " * 11 + "train 0.9296 68.25%  best")
        self.assertEqual(screen.wrapped("one two three", terminal, 8), "one two\n  three")
        terminal.isatty = lambda: False
        self.assertEqual(screen.wrapped(line, terminal, 60, 11), line)

    def test_why_a_program_failed(self):
        self.assertEqual(why('x\n1.0 worker ERROR failed kind=IO passing=false reason="no disk"\n', "-"), "no disk")
        self.assertEqual((why("sh: no\nsh: such program\n", "-"), why(" \n", "-")), ("sh: such program", "-"))

    def test_what_can_be_mended(self):
        passing, lasting = Failure("x", "PEER", True), Failure("x", "IO", False)
        self.assertTrue(is_passing(Ended([passing])) and is_passing(Ended([])) and
                        is_passing(Ended([Failure("KeyError: 1")])))
        self.assertTrue(is_passing(Ended([lasting], -9)) and is_passing(Ended([lasting], fault="was stopped")))
        self.assertFalse(is_passing(Ended([lasting])) or is_passing(Ended([passing, lasting])) or
                         is_passing(Ended([], 127)))
        for host, again, passes in ((None, True, False), ("a", False, False), ("a", True, True)):
            started = Ended([], 127)
            started.part = job.Part("worker", 0, [], {}, host)
            self.assertEqual(is_passing(started, again), passes)


class FullMemory(unittest.TestCase):
    """What lacks memory twice at the same place would lack it each time."""

    def dies(self, restarts, name, kind, code=1, fault=""):
        """Whether the part is started again."""
        one = unittest.mock.Mock(part=job.Part("worker", int(name[-1]), [], {}), code=code, fault=fault, spoke=True, lacks_memory=False,
                                 errors=[Failure("x", kind, True)], last_error=Failure("x", kind, True))
        mends = restarts.can_mend(one)
        if mends:
            restarts.replace(one, 0, True)
        return mends

    def test_it_is_tried_once_more_at_each_place(self):
        one = unittest.mock.Mock(restarts=9, resume=None, overwrite=False, hosts=[])
        one.parts = lambda: [job.Part("worker", rank, [], {}) for rank in range(2)]
        with unittest.mock.patch("psrunlib.restarts.Folder") as folder:
            folder.return_value.read_step.return_value = 0
            restarts = Restarts(one, unittest.mock.Mock())
            self.assertTrue(self.dies(restarts, "worker 1", "NOMEM"))
            self.assertTrue(self.dies(restarts, "worker 0", "NOMEM"))
            self.assertFalse(self.dies(restarts, "worker 1", "NOMEM"))
            for kind, code, fault in (("NOMEM", -9, ""), ("NET", 1, ""), ("NOMEM", None, "was silent")):  # psrun will kill it
                self.assertTrue(self.dies(restarts, "worker 1", kind, code, fault), (kind, code))
            restarts.hear(one.parts()[0], {"event": "resume", "step": 5, "steps_lost": None})
            self.assertTrue(self.dies(restarts, "worker 1", "NOMEM"))
            self.assertFalse(self.dies(restarts, "worker 1", "NOMEM"))

    def test_a_program_is_tried_three_times_at_each_commit(self):
        told = commits.Told(unittest.mock.Mock())
        told.hear({"event": "commit", "number": 3, "place": "step 3"})
        for n, kind in enumerate(("NOMEM", "PEER", "NOMEM", "NET", "NOMEM")):
            self.assertFalse(told.fails_again(), n)
            told.died(unittest.mock.Mock(code=1, errors=[Failure("x", kind)], last_error=Failure("x", kind)), 0)
        self.assertTrue(told.fails_again())
        told.hear({"event": "commit", "number": 4, "place": "step 4"})
        self.assertFalse(told.fails_again())


class Attempts(unittest.TestCase):
    def test_a_server_that_dies_between_two(self):
        """The others go with it, unless they have its rows."""
        for buddies, stays in ((True, ["server 0", "server 2"]), (False, [])):
            servers = [unittest.mock.Mock(part=job.Part("server", rank, [], {})) for rank in range(3)]
            for rank, server in enumerate(servers):
                server.process.poll.return_value = -9 if rank == 1 else None
            failed = unittest.mock.Mock(part=job.Part("worker", 0, [], {}), code=1, fault="", errors=[], how="x", ended_at=0)
            adopted = []

            def supervise(environment, heard, keeps, given, buddies=buddies, servers=servers, adopted=adopted, failed=failed):
                adopted.append([watched.part.name for watched in given])
                return unittest.mock.Mock(left_running=servers * keeps, watched=[failed], signal=None, cause=failed, now=0,
                                          buddies=buddies), int(keeps)

            one = unittest.mock.Mock(restarts=1, hosts=[], port_is_given=True, store_port=0)
            with unittest.mock.patch.object(attempts.commits, "Folders"):
                self.assertEqual(attempts.run(one, unittest.mock.Mock(), supervise)[1], 0)
            self.assertEqual(adopted, [[], stays])


class SpareHosts(unittest.TestCase):
    @staticmethod
    def answer(there):
        if not there:
            raise JobError("not reached")
        return []

    def test_one_that_does_not_answer(self):
        """The next one takes the results. Without any, the job waits for the host that was lost."""
        for down, taken, left in (("b", "c", "d"), ("bc", "d", ""), ("bcd", "b", "")):
            coordinator, lost, *spares = (hostfile.Host(name, name, name) for name in "abcd")
            one = job.Job("x.yaml", [], "build", "ps", 1, 1, "out", restarts=9, facts=collections.defaultdict(str),
                          server_hosts=[coordinator], worker_hosts=[lost], spares=spares)
            with unittest.mock.patch.object(remote, "stat", return_value=[]) as stat:
                restarts = Restarts(one, unittest.mock.Mock())
                stat.side_effect = lambda host, *_, gone=down: self.answer(host.name not in gone)
                restarts.started["worker 0"] = 1
                dead = unittest.mock.Mock(part=one.parts()[1], code=watched.SSH_FAILED, spoke=False)
                part, delay_s = restarts.replace(dead, 0, True)
            self.assertEqual((part.host.name, restarts.folder.host.name, "".join(h.name for h in one.spares)), (taken, taken, left))
            self.assertEqual(delay_s, int(taken == "b"))


    def test_a_host_that_boots(self):
        """ssh reaches it before its file server is mounted. At the first start that is a mistake."""
        coordinator, booting, spare = (hostfile.Host(name, name, name) for name in "abc")
        one = job.Job("x.yaml", [], "build", "ps", 1, 2, "out", restarts=2, facts=collections.defaultdict(str),
                      server_hosts=[coordinator], worker_hosts=[coordinator, booting], spares=[spare])
        with unittest.mock.patch.object(remote, "stat", return_value=[]):
            restarts = Restarts(one, unittest.mock.Mock())
            for code in (126, 127):
                dead = unittest.mock.Mock(part=one.parts()[2], code=code, fault="", errors=[], spoke=True)
                restarts.started.clear()
                self.assertFalse(restarts.can_mend(dead))
                restarts.started["worker 1"] = 1
                restarts.unreached.clear()
                for delay_s in (1, 2):
                    self.assertTrue(restarts.can_mend(dead))
                    part, waits_s = restarts.replace(dead, 0, True)
                    self.assertEqual((part.host.name, waits_s), ("b", delay_s))
                self.assertFalse(restarts.can_mend(dead))
        self.assertEqual(restarts.deaths, [])


class Events(JobTest):
    def test_lines(self):
        for line in ('{"event": "rejoin", "n": 3}', '{"event": "silent", "role": "server", "rank": 1}',
                     '{"event": "resume", "step": 3, "steps_lost": null}'):
            self.assertEqual(events.parse(line), json.loads(line))
        for line in ("", "x", "3", "[]", '{"event": 3}', '{"event": "no such"}', '{"event": "silent", "role": "server"}',
                     '{"event": "step", "step": "3"}', "[" * 100000, '{"event": "resume", "step": 3}'):
            self.assertIsNone(events.parse(line), line)

    def test_every_event_has_a_reader(self):
        """The names in tell.h, those that the programs tell, and those that psrun knows are the same."""
        header = (ROOT / "common/base/tell.h").read_text(encoding="utf-8")
        described = set(re.findall(r"(?m)^ \*   ([a-z]+)  ", header))
        code = [p.read_text(encoding="utf-8") for top in ("common", "coordinator", "session", "server", "worker")
                for p in (ROOT / top).rglob("*.c")] + [(ROOT / "python/pstrain/_events.py").read_text(encoding="utf-8")]
        told = set(re.findall(r'\b(?:ps_)?tell\("(\w+)"', "".join(code)) + re.findall(r'"event": "(\w+)"', remote.WRAPPER))
        self.assertEqual((told, described), (set(events.FIELDS), set(events.FIELDS)))

    def supervise(self, *scripts):
        """Runs them as workers; returns the exit code, what psrun has shown, and the supervisor."""
        with tempfile.TemporaryFile("w+") as shown:
            supervisor = Supervisor(screen.Screen(shown), lambda part: local.LocalProcess(part, {}), self.folder, 10)
            code = supervisor.run([job.Part("worker", i, ["sh", "-c", script], {}) for i, script in enumerate(scripts)])
            shown.seek(0)
            return code, shown.read(), supervisor

    def test_what_is_told_decides(self):
        failure = tell("failure", kind="IO", passing=False, reason="no \"disk\"")
        code, text, supervisor = self.supervise(f"{tell('step', step=7)}; {failure}; echo last words; exit 3")
        self.assertEqual(code, 1)
        self.assertIn("the job failed: worker 0 ended with exit code 3\npsrun:   no \"disk\"\n", text)
        self.assertNotIn("event", text)
        self.assertEqual((supervisor.watched[0].errors, supervisor.watched[0].step), ([Failure(
            'no "disk"', "IO", False)], 7))

    def test_what_is_printed_decides_nothing(self):
        """A program of the user's may print what looks like a line of our log."""
        forged = ('0.1 worker/0 ERROR failed kind=PEER passing=false reason="x"', "epoch 3/3  step 9/9  loss 1",
                  "0.1 worker/0 INFO  interrupted signal=SIGTERM", "0.1 server/0 INFO  joined role=worker rank=0 members=3/3",
                  "0.1 server/0 WARN  rejoin n=1/2", '{"event": "interrupted", "signal": "SIGTERM"}')
        printed = "; ".join(f"echo {shlex.quote(line)}" for line in forged)
        code, text, supervisor = self.supervise(f"{printed}; exit 3")
        self.assertEqual(code, 1)
        self.assertIn("the job failed: worker 0 ended with exit code 3\n", text)
        one = supervisor.watched[0]
        self.assertEqual((supervisor.signal, one.errors, one.told, one.step, one.has_begun, one.spoke),
                         (None, [], None, 0, False, False))

    def test_who_is_missing(self):
        """All parts that the coordinator has not named since it began, except those that have waited in vain, too."""
        def missing(elastic, *told):
            supervisor = Supervisor(unittest.mock.Mock(), None, "", 10, unittest.mock.Mock(), elastic)
            parts = {f"{role} {rank}": unittest.mock.Mock(part=job.Part(role, rank, [], {}), silent_at=None,
                                                          missed_others=False)
                     for role, rank in (("server", 0), ("server", 1), ("worker", 0), ("worker", 1))}
            supervisor.watched = list(parts.values())
            for name, event in told:
                parts[name].missed_others |= event["event"] == "missing"
                supervisor._hear(parts[name], event)
            return [name for name, part in parts.items() if part.silent_at is not None]

        def joined(role, rank, event="joined"):
            return "server 0", {"event": event, "role": role, "rank": rank}

        opened, vain = ("server 0", {"event": "opened"}), {"event": "missing", "role": None}
        here = [opened, *(joined("server", rank) for rank in range(2)), joined("worker", 0), joined("worker", 1)]
        self.assertEqual(missing(None, *here[:-1], ("worker 0", vain)), ["worker 1"])
        self.assertEqual(missing(None, *here, joined("server", 1, "unjoined"), ("worker 0", vain)), ["server 1"])
        self.assertEqual(missing(None, *here, opened, here[1], ("worker 1", vain)), ["server 1", "worker 0"])
        self.assertEqual(missing(None, opened, here[1], ("worker 1", vain), ("server 1", vain)), ["server 1", "worker 0"])
        self.assertEqual(missing(unittest.mock.Mock(), opened, here[1], ("worker 0", vain)), ["server 1"])
        self.assertEqual(missing(None, ("worker 0", {"event": "missing", "role": "server"})), ["server 0"])
        self.assertEqual(missing(None, ("worker 0", {"event": "silent", "role": "server", "rank": 1})), ["server 1"])

    def test_what_is_no_event_is_output(self):
        """Over ssh the words of ssh and sh come there."""
        code, text, supervisor = self.supervise('echo "{no event" >/dev/fd/${PS_EVENTS%%:*}; exit 3')
        self.assertIn("[worker 0] {no event\n", text)
        self.assertEqual((code, supervisor.watched[0].last_line), (1, "{no event"))

    def test_a_program_that_is_left_running(self):
        """It has the descriptor. psrun waits for it no longer than for the part itself."""
        sleeper = self.path("sleeper")
        code, _, _ = self.supervise(f"sleep 1000 >/dev/null 2>&1 & echo $! >{sleeper}; exit 0")
        with open(sleeper, encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)  # it is there still
        self.assertEqual(code, 0)

    def test_a_program_that_is_left_running_with_the_output(self):
        """What the part has said is shown, and nobody waits for more."""
        sleeper = self.path("sleeper")
        code, text, _ = self.supervise(f"sleep 1000 & echo $! >{sleeper}; echo last words; exit 3")
        with open(sleeper, encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        self.assertEqual(code, 1)
        self.assertIn("psrun:   last words\n", text)

    def test_signals_without_a_name(self):
        for number, name in ((9, "SIGKILL"), (40, "signal 40")):
            self.assertIn(f"worker 0 was ended by {name}\n", self.supervise(f"kill -{number} $$")[1])

    def test_what_is_written_in_pieces(self):
        """A character of two bytes that come one by one; a line that does not end."""
        part, shown = job.Part("worker", 0, [], {}), unittest.mock.Mock()
        one = watched.Watched(unittest.mock.Mock(part=part), None)
        for data in (b"caf\xc3", b"\xa9\n", b"x" * (watched.LONGEST + 1), b"y\n\xff\n"):
            one.take(data, shown)
        self.assertEqual([call.args[1] for call in shown.line.call_args_list],
                         ["caf\u00e9", "x" * (watched.LONGEST + 1), "y", "\ufffd"])

    def test_lines_of_a_program_for_other_terminals(self):
        """They end with both characters, which may come in two reads. A bar's states are none."""
        part, shown = job.Part("worker", 0, [], {}), unittest.mock.Mock()
        one = watched.Watched(unittest.mock.Mock(part=part), None)
        for data in (b"one\r\ntwo\r", b"\nstep 1\rstep 2\rthree\n", b"\r\nstep 3\r\rfour\r\n\n"):
            one.take(data, shown)
        self.assertEqual([call.args[1] for call in shown.line.call_args_list], ["one", "two", "three", "four"])

    def test_a_year_of_errors_and_warnings(self):
        """A program that handles, and prints, an error in each step; connections that are lost and mended."""
        part = job.Part("worker", 0, [], {})
        one, shown = watched.Watched(unittest.mock.Mock(part=part), None), unittest.mock.Mock(verbose=False)
        between = faults.Faults(shown)
        for n in range(3 * faults.MOST_WARNED):
            one.take(f"Traceback (most recent call last):\n  f()\nKeyError: {n}\n"
                     f"1.0 worker/0 WARN  connection-mended after_ms={n}\n".encode(), between)
            one.take(b"1.0 worker/0 WARN  connection-mended after_ms=0\n" * (n == 1), between)
        self.assertEqual((len(one.errors), one.last_error.text), (watched.MOST_ERRORS, f"KeyError: {n}"))
        self.assertLessEqual(len(between.warned), faults.MOST_WARNED)
        mended = [call.args[1] for call in shown.line.call_args_list if "mended" in call.args[1]]
        self.assertEqual(len(mended), 3 * faults.MOST_WARNED)  # each, and the same one once

    def test_more_parts_than_descriptors(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.addCleanup(setattr, local.LocalProcess, "limits", None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
        self.assertEqual(self.supervise(*["[ $(ulimit -n) = 60 ]"] * 24)[0], 0)

    ERROR = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    loss.backward()
pstrain.errors.PeerError: rank 0: worker 1 died"""

    def test_a_traceback_because_of_another_part(self):
        """psrun names that part. Where it does not, nothing else says what has happened."""
        for last, other, shows in (("exec sleep 100", "kill -KILL $$", False), ("exit 0", "exit 0", True)):
            said = self.path(f"said-{shows}")
            code, text, _ = self.supervise(f"echo {shlex.quote(self.ERROR)}; touch {said}; {last}",
                                           f"until [ -e {said} ]; do sleep 0.01; done; {other}")
            self.assertEqual("PeerError" in text, shows, text)
            self.assertEqual("worker 1 was ended by SIGKILL" in text, not shows, text)
            self.assertIn(self.ERROR, self.text_of("worker-0.log"))
            self.assertEqual(code, int(not shows))

    def test_a_traceback_of_its_own(self):
        own = self.ERROR.replace("pstrain.errors.PeerError: rank 0: worker 1 died", "KeyError: 'mine'")
        _, text, _ = self.supervise(f"echo {shlex.quote(own)}; echo more; exit 1")
        self.assertIn("".join(f"[worker 0] {line}\n" for line in [*own.splitlines(), "more"]), text)
        _, text, _ = self.supervise(f"echo {shlex.quote(own[:-10])}; exit 1")  # it was cut short
        self.assertIn("[worker 0] Traceback (most recent call last):\n", text)

    def test_a_terminal_without_escapes(self):
        """As a shell in Emacs is one: neither colours nor a bar that is drawn anew."""
        for term, escapes in (("xterm", True), ("dumb", False)):
            stream = io.StringIO()
            stream.isatty = lambda: True
            with unittest.mock.patch.dict(os.environ, TERM=term):
                shown = screen.Screen(stream)
            shown.waits = True
            shown.progress(job.Part("worker", 0, [], {}), "step 1/2")
            shown.say_in_red("no")
            self.assertEqual("\x1b" in stream.getvalue(), escapes)
            self.assertIn("no", stream.getvalue())

    def test_nobody_reads_for_hours(self):
        shown = screen.Screen(io.StringIO())
        shown._takes = lambda: False
        for n in range(8):
            shown.say(f"{n}" * (screen.MOST_HELD // 3))
        self.assertEqual([line[:12] for line in shown.held.splitlines()], ["psrun: nobod", "6" * 12, "7" * 12])

    def test_over_ssh(self):
        """The wrapper's program tells events on ssh's standard error, and writes on standard output."""
        part = job.Part("worker", 0, ["sh", "-c", f"{tell('step', step=7)}; echo out; echo error >&2"], {})
        host = unittest.mock.Mock(image="")
        with unittest.mock.patch.object(remote.hostfile, "folder", lambda _: self.folder):
            wrapper = remote.wrapped(part, host, {})
        with subprocess.Popen(["sh", "-c", wrapper], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as ssh:  # its input ends with the connection
            said, told = ssh.stdout.read(), ssh.stderr.read()
        self.assertEqual((said, list(map(events.parse, told.splitlines()))),
                         ("out\nerror\n", [{"event": "step", "step": 7}, {"event": "ended", "code": 0}]))

    def test_a_program_that_is_left_running_over_ssh(self):
        """ssh stays as long as anybody has the connection's output."""
        sleeper = self.path("sleeper")
        self.file("ssh", 'for command; do :; done\nexec 3>&1\nsh -c "$command" | cat >&3\n')
        part = job.Part("worker", 0, ["sh", "-c", f"sleep 1000 & echo $! >{sleeper}; echo last words; exit 3"], {},
                        hostfile.Host("a", "a", "a", dir=self.folder))
        with unittest.mock.patch.dict(os.environ, PS_SSH=f"sh {self.path('ssh')}"), tempfile.TemporaryFile("w+") as shown, \
                unittest.mock.patch.object(remote, "SSH_ENDS_WITHIN_S", 0):
            supervisor = Supervisor(screen.Screen(shown), lambda p: remote.RemoteProcess(p, p.host, {}), self.folder, 10)
            self.assertEqual(supervisor.run([part]), 1)
            shown.seek(0)
            self.assertIn("worker 0 ended with exit code 3\npsrun:   last words\n", shown.read())
        with open(sleeper, encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)

    def test_every_login_shell_of_a_host(self):
        """csh takes no line feed between quotes; fish takes a backslash before a quote or another one there."""
        says = "it's \\n \"$HOME\" ! `x` \\\\ 100%\n\nlast"
        command = remote.in_sh(f"printf '%s|' {shlex.quote(says)} two\nexit 3")
        self.assertNotRegex(command, r"\n|\\[\\']|!")
        for shell in filter(shutil.which, ("sh", "bash", "zsh", "fish", "tcsh", "csh")):
            done = subprocess.run([shell, "-c", command], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
            self.assertEqual((done.returncode, done.stdout), (3, says + "|two|"), shell)

    def test_the_programs_say_so(self):
        for program, settings, wanted in (
                ("ps-worker", ["train.step=1"], ("CONFIG", False)), ("ps-server", ["train.step=1"], ("CONFIG", False)),
                ("ps-worker", ["net.join_timeout_ms=1000"], ("TIMEOUT", True))):
            argv = [BIN / program, "--config", DIGITS, "--set", *settings, "--init-method", "tcp://127.0.0.1:9",
                    "--rank", "1"]
            code, _, supervisor = self.supervise(shlex.join(["exec", *map(str, argv)]))
            one = supervisor.watched[0]
            self.assertEqual((code, one.last_error.kind, one.last_error.passing), (1, *wanted))
            self.assertEqual((one.spoke, one.missed_others), (True, wanted[0] == "TIMEOUT"))


class Scripts(unittest.TestCase):
    def test_help_and_mistakes_build_nothing(self):
        """Nor do they install anything, nor make a folder of that name."""
        for words, code, says in (
                ("deploy/quickstart --help", 0, "deploy/quickstart [key=value ...]"),
                ("deploy/quickstart train", 2, "train: no such argument"),
                ("deploy/quickstart --epochs=3", 2, "--epochs=3: no such"),
                ("deploy/packages --help", 0, "deploy/packages build|test"), ("deploy/packages", 2, "deploy/packages build|test"),
                ("deploy/packages build --lst", 2, "--list prints"), ("deploy/packages build bench", 2, "--list prints"),
                ("deploy/build-packages --help", 0, "[OUTPUT_FOLDER]"), ("deploy/build-packages --out", 2, "--out: no such"),
                ("deploy/build-packages a b", 2, "b: one folder is enough"),
                ("python/build_wheel --help", 0, "[OUTPUT_FOLDER]"), ("python/build_wheel --out", 2, "--out: no such"),
                ("python/build_wheel a b", 2, "b: one folder is enough")):
            with self.subTest(words=words), tempfile.TemporaryDirectory() as folder:
                program, *arguments = words.split()
                done = subprocess.run([ROOT / program, *arguments], stdout=subprocess.PIPE, check=False, text=True, cwd=folder,
                                      stderr=subprocess.STDOUT, timeout=PATIENCE_S)
                self.assertEqual(done.returncode, code, done.stdout)
                self.assertIn(says, done.stdout)
                self.assertNotIn("1/3", done.stdout)
                self.assertEqual(os.listdir(folder), [])


class Packages(unittest.TestCase):
    def test_without_root_or_sudo(self):
        """Optional packages that are missing do not keep anybody from building."""
        for lacks, code, says in (("libgloo-dev", 0, "neither root nor sudo: what is optional and missing stays so\n"),
                                  ("libmsgpack-c-dev", 0, ""),
                                  ("libmsgpack-c-dev libmsgpack-dev", 1, "or sudo: libmsgpack-c-dev or libmsgpack-dev is missing\n")):
            with self.subTest(lacks=lacks), tempfile.TemporaryDirectory() as folder:
                for name, text in (("dpkg-query", f'case " {lacks} " in *" $4 "*) ;; *) printf installed ;; esac'),
                                   ("id", "echo 1000"), ("apt-get", "exit 9"), ("apt-cache", "exit 9")):
                    Path(folder, name).write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
                    Path(folder, name).chmod(0o755)
                for name in ("tr", "sed", "mktemp", "rm"):
                    os.symlink(shutil.which(name), os.path.join(folder, name))
                done = subprocess.run([ROOT / "deploy/packages", "build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      check=False, text=True, env={"PATH": folder}, timeout=PATIENCE_S)
                self.assertEqual((done.returncode, done.stdout.endswith(says), bool(done.stdout)), (code, True, bool(says)))


    def test_in_another_language(self):
        """apt-cache says it in the user's, where it is told nothing else."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("dpkg-query", "exit 1"), ("apt-get", "exit 9"), ("apt-cache", (
                    'case ${LC_ALL:-} in C) word=Candidate none=none ;; *) word=Installationskandidat none=keine ;; esac\n'
                    'case $2 in libmsgpack-c-dev) echo "  $word: ($none)" ;; *) echo "  $word: 1.0" ;; esac'))):
                Path(folder, name).write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
                Path(folder, name).chmod(0o755)
            done = subprocess.run([ROOT / "deploy/packages", "build", "--list"], stdout=subprocess.PIPE, check=True, text=True,
                                  env={"PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "de_DE.UTF-8"}, timeout=PATIENCE_S)
        self.assertEqual({"cmake", "libmsgpack-dev"} - set(done.stdout.split()), set())
        self.assertNotIn("libmsgpack-c-dev", done.stdout.split())


    def test_lists_that_are_old(self):
        """They name what the servers have no longer. New ones are fetched once."""
        for works, code, ran in (("[ -e {0}/new ]", 0, ["install", "update", "install"]), ("true", 0, ["install"]),
                                 ("false", 1, ["install", "update", "install"])):
            with tempfile.TemporaryDirectory() as folder:
                get = ('case $* in *update*) echo update >>{0}/ran; touch {0}/new ;; '
                       '*install*) echo install >>{0}/ran; echo "404 Not Found"; ' + works + ' ;; esac').format(folder)
                for name, text in (("dpkg-query", "exit 1"), ("id", "echo 0"), ("apt-get", get),
                                   ("apt-cache", 'echo "  Candidate: 1.0"')):
                    Path(folder, name).write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
                    Path(folder, name).chmod(0o755)
                done = subprocess.run([ROOT / "deploy/packages", "build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      check=False, text=True, env={"PATH": f"{folder}:{os.environ['PATH']}"},
                                      timeout=PATIENCE_S)
                self.assertEqual((done.returncode, Path(folder, "ran").read_text().split()), (code, ran), done.stdout)
                self.assertEqual("404 Not Found" in done.stdout, code == 1)


class Quietly(unittest.TestCase):
    def test_a_sign_of_life_and_the_exit_code(self):
        with tempfile.NamedTemporaryFile() as log, tempfile.NamedTemporaryFile() as out:
            runs_until_seen = f"echo '[1/2] first'; until [ -s {out.name} ]; do sleep 0.05; done; exit 3"
            done = subprocess.run([ROOT / "deploy/quietly", log.name, "sh", "-c", runs_until_seen], stdout=out, check=False,
                                  env=dict(os.environ, PS_QUIETLY_S="0.2"), timeout=PATIENCE_S)
            self.assertEqual((done.returncode, log.read()), (3, b"[1/2] first\n"))
            self.assertIn("s: [1/2] first\n", Path(out.name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
