"""psrun with the user's own program as workers: what it gets, and how the job ends."""
import os
import re
import signal
import subprocess
import sys
import unittest
import unittest.mock

from jobs import ROOT, JobTest, free_port
from psrunlib import top
from psrunlib.events import Failure
from psrunlib.traceback import Traceback

PYTHON = sys.executable
WAIT = ("import os, signal, time\ntry:\n    print('up', flush=True)\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    ")
SAY = 'echo "$RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT $PS_INIT_METHOD"'


class Programs(JobTest):
    def run_program(self, script, *options, code=1, workers=2, servers=1):
        return self.psrun("-s", servers, "-w", workers, "--verbose", *options, "--", "sh", "-c", script, code=code)

    def test_torchruns_variables(self):
        port = free_port()
        # The first one that ends ends the job: it waits for what the other one says.
        spoke = self.path("spoke")
        script = (f"{SAY}; touch {spoke}-$RANK; "
                  f"until [ -e {spoke}-0 ] && [ -e {spoke}-1 ]; do sleep 0.01; done; exit 7")
        text = self.run_program(script, "--port", port)
        for rank in range(2):
            self.assertRegex(text, rf"\[worker {rank}\] {rank}/2 local {rank}/2 at 127.0.0.1:(?!{port})\d+ "
                                   rf"tcp://127.0.0.1:{port}\n")

    def test_a_store_that_every_pytorch_can_make(self):
        # Debian 13's PyTorch has no libuv, and asks for it where USE_LIBUV is not 0.
        script = 'echo "libuv $USE_LIBUV"; exit 7'
        for given, said in ((None, "0"), ("1", "1")):
            with self.subTest(given=given), unittest.mock.patch.dict(os.environ):
                os.environ.pop("USE_LIBUV", None)
                if given:
                    os.environ["USE_LIBUV"] = given
                self.assertIn(f"libuv {said}\n", self.run_program(script, workers=1))

    def test_names_the_worker_that_failed(self):
        text = self.run_program('[ $RANK = 1 ] && exit 3; exec sleep 1000')  # longer than the test waits
        self.assertIn("the job failed: worker 1 ended with exit code 3", text)

    def test_abort(self):
        """What the C++ library says of an exception that nobody handles stands before it."""
        text = self.run_program("echo '  what():  std::bad_alloc' >&2; kill -ABRT $$", workers=1)
        self.assertRegex(text, r"the job failed: worker 0 was ended by SIGABRT\npsrun:   +what\(\):  std::bad_alloc\n"
                               r"psrun:   with --restarts")

    def test_a_program_that_never_joins(self):
        text = self.run_program("true", workers=1)
        self.assertIn("worker 0 ended before it had joined the job (pstrain.init())", text)
        self.assertNotIn("--restarts", text)

    def test_names_a_python_programs_error(self):
        text = self.psrun("-s", 1, "-w", 1, "--", PYTHON, "-c", "raise ValueError('no such thing')", code=1)
        self.assertIn("psrun: the job failed: worker 0 ended with exit code 1\n"
                      "psrun:   ValueError: no such thing\n", text)

    def test_all_parts_are_started_again(self):
        # Worker 1 ends when worker 0 has spoken.
        script = f"""attempt=$TORCHELASTIC_RESTART_COUNT; echo "attempt $attempt of $TORCHELASTIC_MAX_RESTARTS"
            [ $RANK = 0 ] && touch {self.folder}/spoke-$attempt && exec sleep 100
            until [ -e {self.folder}/spoke-$attempt ]; do sleep 0.01; done; exit 3"""
        text = self.run_program(script, "--restarts", 2)
        for number in range(3):
            self.assertEqual(text.count(f"attempt {number} of 2\n"), 2 + 1)  # two workers' and the last words
        self.assertIn("psrun: all parts are started again (restart 1 of 2)\n", text)
        self.assertIn("psrun: all parts are started again (restart 2 of 2, in 1 s)\n", text)
        self.assertIn("psrun: all parts had been started again already (--restarts 2)\n", text)
        self.assertEqual(re.findall("psrun: (.*) failed: worker 1 ended with exit code 3\n", text),
                         ["this attempt", "this attempt", "the job"])

    def test_what_no_restart_mends(self):
        text = self.run_program("exit 127", "--restarts", 1, workers=1)
        self.assertIn("psrun: the job failed: worker 0 ended with exit code 127\n", text)
        self.assertNotIn("started again", text)

    def interrupt(self, *program, argv=None):
        run = subprocess.Popen((argv or self.psrun_argv)("-s", 1, "-w", 2, "--verbose", "--", *program),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        for _ in range(2):  # both workers
            while "up" not in run.stdout.readline():
                pass
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
        return run.returncode, text

    def test_ctrl_c(self):
        # exec: while a shell starts a child, it catches SIGINT and may go on silently.
        # A psrun that waited for servers that nobody has joined would not end.
        code, text = self.interrupt("sh", "-c", "echo up; exec sleep 100", argv=self.patient_psrun)
        self.assertEqual(code, 130, text)
        self.assertIn("the program ends in its own order, and keeps what it saves itself (once more: at once)\n", text)

    def test_ctrl_c_and_a_program_without_a_reason(self):
        """Like a Python that has lost its stderr. A program that gives a reason has failed."""
        code, text = self.interrupt(sys.executable, "-c", WAIT + "os.write(2, b'lost sys.stderr\\n')\n    os._exit(1)")
        self.assertEqual(code, 130, text)
        code, text = self.interrupt(sys.executable, "-c", WAIT + "raise OSError('the disk is full')")
        self.assertEqual(code, 1, text)
        self.assertIn("the disk is full", text.split("psrun: the job failed: ")[1])

    def test_ctrl_c_and_a_program_that_ends_well(self):
        """Nobody but the program knows whether it has done all its work."""
        code, text = self.interrupt(sys.executable, "-c", WAIT + "os._exit(0)")
        self.assertEqual(code, 130, text)

    def test_ctrl_c_and_the_first_that_ends_gives_no_reason(self):
        """The others end in their own time, and what they say counts."""
        code, text = self.interrupt(sys.executable, "-c", WAIT + "if os.environ['RANK'] == '1':\n        os._exit(1)\n"
                                    "    time.sleep(1)\n    raise OSError('the disk is full')")
        self.assertEqual(code, 1, text)
        self.assertIn("the disk is full", text.split("psrun: the job failed: worker 0 ")[1])
        self.assertNotIn("worker 1 ended", text)

    def psrun_with(self, settings, *args):
        program = (f"import sys; sys.path.insert(0, {str(ROOT / 'deploy')!r}); from psrunlib import cli, supervise;"
                   f"{settings}; sys.exit(cli.main(sys.argv[1:]))")
        return [PYTHON, "-c", program, *self.psrun_argv(*args)[1:]]

    def hasty_psrun(self, *args):
        """A psrun that gives programs little time to end."""
        return self.psrun_with("cli.PROGRAM_ENDS_S = supervise.KILL_S = 0.1", *args)

    def patient_psrun(self, *args):
        """A psrun that gives parts more time than the test has."""
        return self.psrun_with("supervise.GRACE_S = 1000", *args)

    def test_a_program_that_does_not_end(self):
        code, text = self.interrupt("sh", "-c", "trap : INT TERM; echo up; while :; do sleep 100; done",
                                    argv=self.hasty_psrun)
        self.assertEqual(code, 130, text)
        self.assertIn("psrun: worker 0, worker 1 did not end within 0.1 s; ending at once\n", text)

    def test_settings_reach_servers_and_workers(self):
        text = self.psrun("-s", 1, "-w", 1, "--dry-run", "net.step_timeout_ms=5000", "exchange.codec=int8",
                          "--", "train", "--x=1")
        server, worker = text.strip().splitlines()
        self.assertNotIn("exchange.codec", server)  # the workers tell the server
        self.assertIn("--set net.step_timeout_ms=5000", server)
        self.assertIn("\"net.step_timeout_ms=5000\", \"exchange.codec=int8\"]'", worker)
        for line in (server, worker):  # a program may import for long, and psrun knows that it lives
            self.assertIn("net.join_timeout_ms=900000", line)
        self.assertTrue(worker.endswith(" train --x=1"), worker)

    def test_the_page_is_the_servers(self):
        """metrics.port and metrics.bind: a program of the user's has no page, and its library refuses them."""
        server, worker = self.psrun("-s", 1, "-w", 1, "--dry-run", "metrics.port=9100", "metrics.bind=::1",
                                    "--", "train").strip().splitlines()
        self.assertIn("--set metrics.port=9100 --set metrics.bind=::1", server)
        self.assertNotIn("metrics", worker)
        server, worker = self.psrun("-s", 1, "-w", 1, "--dry-run", "metrics={port: 9100}", "net={heartbeat_ms: 100}",
                                    "--", "train").strip().splitlines()
        self.assertIn("--set 'metrics={port: 9100}' --set 'net={heartbeat_ms: 100}'", server)
        self.assertNotIn("metrics", worker)
        self.assertIn('"net={heartbeat_ms: 100}"]', worker)

    def test_what_a_program_does_not_take_is_said_once(self):
        """Before anything is started; the sections of it stand in the library's table."""
        began = self.path("began")
        for setting in ("train.epochs=3", "recovery.rejoins=2", "job.workers=2..4", "model={dropout: false}"):
            text = self.psrun("-s", 1, "-w", 2, "--restarts", 2, setting, "--", "touch", began, code=1)
            self.assertRegex(text, rf"\Apsrun: {re.escape(setting)}: not a setting of a program .*\n\Z")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_run_of_a_program(self):
        """--top finds its page in the folder; --resume says that the program goes on by itself."""
        job = self.path("out", "job.json")
        text = self.run_program(f"cat {job} >{self.path('job.json')}; exit 3", "metrics.port=9100", "metrics.bind=0.0.0.0",
                                workers=1)
        self.assertIn("ended with exit code 3", text)
        self.assertFalse(os.path.exists(job))
        self.assertEqual(top.find(self.folder), "http://127.0.0.1:9100/status.json")
        self.assertIn("its workers are a program of your own, which itself loads", self.psrun("--resume", self.folder, code=1))

    def test_spare_hosts_are_for_jobs_of_layers(self):
        hosts = self.file("hosts", "localhost servers=1 workers=1\nanother spare\n")
        for restarts in (0, 2):
            text = self.psrun("-H", hosts, "-s", 1, "-w", 1, "--restarts", restarts, "--dry-run", "--", "true")
            self.assertEqual("a spare host takes the place of no host of a program" in text, restarts > 0, text)

    def test_mistakes(self):
        for words, said in ((["job.yaml", "--", "true"], "a configuration or a program"),
                            (["--verify", "--", "true"], "--verify"),
                            (["--init", "w.safetensors", "--", "true"], "--init is not for a program of your own"),
                            (["--join", "run", "--", "true"], "--join is not for a program of your own"),
                            (["--replay-membership", "log", "--", "true"], "--replay-membership is not for a program"),
                            (["-m", "allreduce", "--", "true"], "-m allreduce is for our own workers"),
                            (["-m", "ps", "-s", "0", "--", "true"], "a program without servers has -s 0 alone"),
                            (["-m", "ps", "job.servers=0", "--", "true"], "a program without servers has -s 0 alone"),
                            (["-s", "-1", "--", "true"], "-1"),
                            (["net.no_such=1", "--", "true"], "net.no_such"),
                            (["--"], "name the program"),
                            (["python3", "train.py"], "-- python3"),
                            (["train.py"], "-- python train.py"),
                            (["--", "train.py", "--x=1"], "is a Python file, and no program that can be run by "
                                                          "itself; Python starts it: -- python train.py --x=1"),
                            (["--", "/no/such/program"], "/no/such/program'\n")):
            with self.subTest(words=words):
                self.assertIn(said, self.psrun(*words, code=1))
        with unittest.mock.patch.dict(os.environ, PATH=self.folder):
            self.assertIn("'python': is the virtual environment active?", self.psrun("--", "python", "x.py", code=1))


class Tracebacks(unittest.TestCase):
    """The errors that psrun reads from a Python program's output. Errors that name another part are
    of the kind PEER, like those of our own workers: they are not the cause."""

    def read(self, *lines):
        traceback = Traceback()
        return [error for line in lines if (error := traceback.take(line))]

    def after(self, line):
        found = self.read("Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    f()", line)
        return found[0] if found else None

    def test_kinds(self):
        for line, kind, error in (
                ("KeyError: 'mine'", "", "KeyError: 'mine'"), ("AssertionError", "", "AssertionError"),
                ("pstrain.errors.PeerError: rank 0: worker 1 died", "PEER", "rank 0: worker 1 died"),
                ("RuntimeError: PeerError: rank 0: worker 1 died", "PEER", "rank 0: worker 1 died"),
                ("RuntimeError: Got the following error when running the callback: PeerError: x", "PEER", "x"),
                ("RuntimeError: [a.cc:1] Connection closed by peer [::1]:5", "PEER",
                 "Connection closed by peer [::1]:5"),
                ("pstrain.errors.TimeoutError: rank 0: no worker 1", "TIMEOUT", "rank 0: no worker 1"),
                ("TimeoutError: of the program's own", "", "TimeoutError: of the program's own"),
                ("RuntimeError: KeyboardInterrupt: <EMPTY>", "PEER", "RuntimeError: KeyboardInterrupt: <EMPTY>"),
                ("RuntimeError: Cannot extract tensors from value: KeyboardInterrupt: <EMPTY>", "PEER",
                 "RuntimeError: Cannot extract tensors from value: KeyboardInterrupt: <EMPTY>")):
            self.assertEqual(self.after(line), Failure(error, kind))
        self.assertIsNone(self.after("KeyboardInterrupt"))

    def test_with_pytorchs_prefix(self):
        lines = ("Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: 3")
        self.assertEqual(self.read(*(f"[rank1]: {line}" for line in lines)), [Failure("ValueError: 3")])

    def test_places_in_cpp(self):
        """They belong to the exception: what PyTorch's DistributedDataParallel raises where a collective has failed."""
        lines = ("Traceback (most recent call last):", '  File "x.py", line 1', "RuntimeError: PeerError: worker 1 died", "At:",
                 "  /torch/futures/__init__.py(264): raise_error", "  /x.py(70): <lambda>", "epoch 2", "At:")
        traceback = Traceback()
        followed = [line for line in lines if traceback.follows(line) or traceback.take(line) and None]
        self.assertEqual(followed, list(lines[3:6]))

    def test_other_lines(self):
        self.assertEqual(self.read("ValueError: printed by hand", "epoch 1: loss 3"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
