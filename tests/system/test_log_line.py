"""What psrun reads of the log of its parts: the events and fields by which it decides."""
import os
import subprocess
import tempfile
import unittest
import unittest.mock

from jobs import BIN, DIGITS, ROOT
from psrunlib.log_line import Failure, failure, parse, part_names, why
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

    def test_what_a_peer_says_counts_not(self):
        said = parse('1.0 server/0 INFO  joined role=worker rank=1 members=2/3 host=a rank=0 members=3/3')
        self.assertEqual((said.fields["rank"], said.fields["members"]), ("1", "2/3"))
        said = parse('1.0 server/0 INFO  abort reason="x role=server rank=0" role=worker')
        self.assertEqual((said.fields["role"], "rank" in said.fields), ("worker", False))
        self.assertIsNone(failure(parse(
            '1.0 server/0 WARN  refused host=b ERROR failed kind=IO passing=false reason="x"')))

    def test_failures(self):
        start = "1.0 worker/0 ERROR "
        for line, wanted in (
                ('failed kind=IO passing=false reason="a "b" passing=true reason="c"',
                 Failure('IO: a "b" passing=true reason="c', "IO", False)),
                ('failed kind=PEER passing=true reason="it was cut', Failure("PEER: it was cut", "PEER", True)),
                ('checkpoint step=3 reason="disk full"', Failure('step=3 reason="disk full"')),
                ('answer kind=DONE error="x"', Failure('kind=DONE error="x"'))):
            self.assertEqual(failure(parse(start + line)), wanted)

    def test_why_a_program_failed(self):
        self.assertEqual(why('x\n1.0 worker ERROR failed kind=IO passing=false reason="no disk"\n', "-"), "IO: no disk")
        self.assertEqual((why("sh: no\nsh: such program\n", "-"), why(" \n", "-")), ("sh: such program", "-"))

    def test_names_of_parts(self):
        for text, names in (("servers 1, 3-4 of 8, worker 0 of 3", ["server 1", "server 3", "server 4", "worker 0"]),
                            ("server 0", ["server 0"]), ("2 of 4 servers, 1 of 3 workers", []), ("", [])):
            self.assertEqual(list(part_names(text)), names)

    def test_what_can_be_mended(self):
        passing, lasting = Failure("PEER: x", "PEER", True), Failure("IO: x", "IO", False)
        self.assertTrue(is_passing(Ended([passing])) and is_passing(Ended([])) and
                        is_passing(Ended([Failure("KeyError: 1")])))
        self.assertTrue(is_passing(Ended([lasting], -9)) and is_passing(Ended([lasting], fault="was stopped")))
        self.assertFalse(is_passing(Ended([lasting])) or is_passing(Ended([passing, lasting])) or
                         is_passing(Ended([], 127)))

    def test_words_that_are_read_after_the_end(self):
        """A part waits for its restart. By then its log says that no restart helps."""
        for late, starts in (([], True), ([Failure("NUMERIC: x", "NUMERIC", False)], False)):
            restarts = Restarts.__new__(Restarts)  # without a job
            restarts.replace = lambda *_: ("part", 0)
            supervisor = Supervisor(unittest.mock.Mock(), None, "", 1, restarts)
            ended = unittest.mock.Mock(errors=late, code=1, fault="", step=1)
            supervisor.watched, supervisor.waiting = [ended], [(0, ended)]
            supervisor.restarts.job = unittest.mock.Mock(restarts=0)
            restarts.deaths = []
            supervisor._start_again()
            self.assertEqual(supervisor.waiting, [(0, ended, "part")] if starts else [])
            self.assertEqual(supervisor.failed_at is None, starts)

    def test_the_programs_say_so(self):
        for program, settings, wanted in (
                ("ps-worker", ["train.step=1"], ("CONFIG", False)), ("ps-server", ["train.step=1"], ("CONFIG", False)),
                ("ps-worker", ["net.join_timeout_ms=1000"], ("TIMEOUT", True))):
            done = subprocess.run(
                [BIN / program, "--config", DIGITS, "--set", *settings, "--init-method", "tcp://127.0.0.1:9",
                 "--rank", "1"],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False)
            lines = [parse(line) for line in done.stderr.splitlines()]
            last = failure(lines[-1])
            self.assertEqual((done.returncode, last.kind, last.passing), (1, *wanted), done.stderr)
            missing = [line.fields["parts"] for line in lines if line.event == "missing"]
            self.assertEqual(missing, ["server 0"] if wanted[0] == "TIMEOUT" else [])


class Quietly(unittest.TestCase):
    def test_a_sign_of_life_and_the_exit_code(self):
        with tempfile.NamedTemporaryFile() as log:
            done = subprocess.run([ROOT / "deploy/quietly", log.name, "sh", "-c", "echo '[1/2] first'; sleep 0.4; exit 3"],
                                  env=dict(os.environ, PS_QUIETLY_S="0.2"), stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual((done.returncode, log.read()), (3, b"[1/2] first\n"))
        self.assertIn("s: [1/2] first\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
