"""Ctrl-C and SIGTERM: whatever the job is doing, it ends in order, soon, and keeps the weights."""
import fcntl
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

from jobs import (DIGITS, LONG, NIGHTLY, PATIENCE_S, Faults, JobTest, Psrun, alive, children, environment, first, kill,
                  nightly, read_safetensors, read_until, sizes, wait_until, wrapped_bin)

MODES = (("ps", 2, 2), ("allreduce", 0, 2), ("single", 0, 1))


def signals_of(pid, thread, field):
    """A mask of a thread's status: bit n - 1 is signal n. None: the thread has ended."""
    try:
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as f:
            mask = next(int(line.split()[1], 16) for line in f if line.startswith(field + ":"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {n for n in (signal.SIGINT, signal.SIGTERM) if mask >> (n - 1) & 1}


class SlowEvaluation(JobTest):
    def slow_evaluation(self):
        """A configuration with seconds of evaluation after every step."""
        config = self.file("slow.yaml",
                           "model:\n  input: [8]\n  layers:\n    - linear: 1024\n"
                           "    - linear: 256\n    - linear: 2\n"
                           "train: {eval_every: 1}\n"
                           "data: {kind: synthetic, batch: 8, samples: 16, test_samples: 200000,"
                           " eval_batch: 1}\n")
        return config


class Interrupts(SlowEvaluation):
    def start(self, mode, servers, workers, *settings, out, config=DIGITS, argv=None, popen=Psrun, env=None):
        psrun = (subprocess.Popen if argv else popen)(
            (argv or self.psrun_argv)(*sizes(mode, servers, workers), config, *settings, out=out),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.addCleanup(kill, psrun)
        return psrun

    def worker(self, rank):
        return next(pid for pid, line in alive(self.folder)
                    if "ps-worker" in line and environment(pid).get("RANK") == str(rank))

    def finish(self, psrun, code=130):
        text, _ = psrun.communicate(timeout=PATIENCE_S)
        self.assertEqual(psrun.returncode, code, text)
        return text

    def check_kept(self, out, text=None):
        if text is not None:
            self.assertIn("weights and results so far are in", text)
        self.assertTrue(os.path.exists(self.path(out, "summary.json")), text)
        self.assertTrue(self.summary(out)["interrupted"])
        tensors, metadata = read_safetensors(self.path(out, "model.safetensors"))
        self.assertEqual(int(metadata["step"]), self.summary(out)["steps"])
        return tensors

    def interrupt(self, psrun, out, number=signal.SIGINT, passed_on=True):
        name = signal.Signals(number).name
        psrun.send_signal(number)
        kept = self.check_kept(out, self.finish(psrun, code=128 + number))
        self.assertEqual(self.summary(out)["signal"], name)
        log = Path(self.path(out, "logs/worker-0.log")).read_text(encoding="utf-8")
        if passed_on:
            self.assertIn(f"psrun: got {name}; this worker gets SIGINT\n", log)
        return kept

    def server(self, psrun, rank):
        return next(pid for name, pid in children(psrun.pid) if name == "ps-server"
                    and environment(pid)["PS_SERVER_RANK"] == str(rank))

    def test_while_it_trains(self):
        for mode, servers, workers in MODES:
            psrun = self.start(mode, servers, workers, *LONG, out=mode)
            self.wait_for_steps(mode)
            self.assertEqual(len(self.interrupt(psrun, mode)), 8)

    def test_what_job_managers_send(self):
        for (mode, servers, workers), number in first(2, [(mode, number) for mode, number in zip(
                MODES * 2, (signal.SIGTERM, signal.SIGHUP) * 3)]):
            out = f"{mode}-{number.name}"
            psrun = self.start(mode, servers, workers, *LONG, out=out)
            self.wait_for_steps(out)
            self.interrupt(psrun, out, number)

    def test_what_job_managers_send_to_every_process(self):
        # systemd signals all processes: psrun passes on what its parts have already been told.
        for mode, servers, workers in first(1, MODES):
            psrun = self.start(mode, servers, workers, *LONG, out=mode)
            self.wait_for_steps(mode)
            for _, pid in list(children(psrun.pid)):
                os.kill(pid, signal.SIGTERM)
            self.interrupt(psrun, mode, signal.SIGTERM, passed_on=False)

    def wait_until_told(self, psrun):
        """Waits until psrun has taken the signal and passed it on."""
        self.assertTrue(read_until(psrun.stdout, "keeping the weights"))

    def test_a_second_one_ends_all_at_once(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            psrun = self.start("ps", 2, 2, *LONG, out=number.name, argv=self.patient_psrun)
            self.wait_for_steps(number.name)
            os.kill(self.worker(1), signal.SIGSTOP)  # no part can end in order
            psrun.send_signal(number)
            self.wait_until_told(psrun)
            psrun.send_signal(signal.SIGTERM)
            self.assertIn("no weights were written", self.finish(psrun, code=128 + number))

    def test_when_the_work_is_done(self):
        """The workers have written all, and end: nothing was interrupted."""
        for number in (signal.SIGINT, signal.SIGTERM):
            faults = Faults(self.path(f"faults-{number.name}"), "worker/0@job.left:1:hold")
            psrun = self.start("ps", 1, 2, "train.steps=5", out=number.name, env={**os.environ, **faults.env})
            faults.wait_for("job.left", psrun)
            psrun.send_signal(number)
            self.wait_until_told(psrun)
            faults.let_go("job.left")
            self.assertRegex(self.finish(psrun, code=0), "(?m)^  test  +accuracy")
            self.assertFalse(self.summary(number.name)["interrupted"])
            self.assertNotIn("signal", self.summary(number.name))

    def test_nohup(self):
        psrun = subprocess.Popen(
            ["nohup", *self.psrun_argv("-m", "single", DIGITS, "train.epochs=6")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(kill, psrun)
        self.wait_for_steps("out")
        psrun.send_signal(signal.SIGHUP)
        self.finish(psrun, code=0)

    @nightly
    def test_while_it_evaluates(self):
        config = self.slow_evaluation()
        for mode, servers, workers in MODES:
            psrun = self.start(mode, servers, workers, *LONG, out=mode, config=config)
            self.wait_for_steps(mode)
            self.interrupt(psrun, mode)
            self.assertIsNone(self.summary(mode)["test_loss"])  # not waited for
            # The same file as that of a job which ends before that evaluation.
            self.psrun(*sizes(mode, servers, workers), config, *LONG, "data.test_samples=8",
                       f"train.stop_after={self.summary(mode)['steps']}", out=f"{mode}-again", code=75)
            self.assertEqual(self.weights(mode), self.weights(f"{mode}-again"))

    def test_while_it_starts(self):
        for mode, servers, workers in first(2, MODES):
            for ms in first(2, (50, 150, 100, 200)):
                out = f"{mode}-{ms}"
                psrun = self.start(mode, servers, workers, *LONG, out=out)
                while not os.path.exists(self.path(out, "logs")):
                    self.assertIsNone(psrun.poll())
                time.sleep(ms / 1000 - 0.05)
                psrun.send_signal(signal.SIGINT)
                text = self.finish(psrun)
                if os.path.exists(self.path(out, "metrics.jsonl")) and self.records(out):
                    self.check_kept(out, text)
                else:
                    self.assertRegex(text, "psrun: interrupted; ")

    def test_before_a_part_is_started(self):
        # Reading the configuration does not end.
        os.mkfifo(self.path("never"))
        wrapped_bin(self.path("bin"), "ps-config-json", f"touch {self.path('reads')}; read line < {self.path('never')}")
        for number, said in ((signal.SIGINT, "psrun: interrupted; no part of a job is running\n"),
                             (signal.SIGTERM, "psrun: told to end (SIGTERM); no part of a job is running\n"), (signal.SIGKILL, "")):
            psrun = self.start("ps", 1, 1, "--build-dir", self.folder, out="early")
            while not os.path.exists(self.path("reads")):
                self.assertIsNone(psrun.poll())
            os.remove(self.path("reads"))
            psrun.send_signal(number)
            self.assertEqual(self.finish(psrun, code=-number if number == signal.SIGKILL else 128 + number), said)
            wait_until(lambda: not alive(self.folder), "what psrun has run for an answer has ended")
            self.assertFalse(os.path.exists(self.path("early")))

    def test_at_any_moment_of_the_start(self):
        # Python first reads its own modules. Interrupted there, it would show a traceback.
        for ms in range(0, 320, 8 if NIGHTLY else 80):
            psrun = self.start("single", 0, 1, *LONG, out=f"after-{ms}", popen=subprocess.Popen)
            time.sleep(ms / 1000)
            psrun.send_signal(signal.SIGINT)
            text, _ = psrun.communicate(timeout=PATIENCE_S)
            self.assertIn(psrun.returncode, (130, -signal.SIGINT), text)  # -: it was still sh
            self.assertNotIn("Traceback", text)
            self.assertNotIn("Error", text)

    def test_one_worker_alone_is_told(self):
        for (mode, servers, workers), rank in first(2, [(MODES[0], 0), (MODES[1], 1), (MODES[0], 1), (MODES[1], 0)]):
            out = f"{mode}-{rank}"
            psrun = self.start(mode, servers, workers, *LONG, out=out)
            number = (signal.SIGINT, signal.SIGTERM)[rank]
            self.wait_for_steps(out)
            os.kill(self.worker(rank), number)
            self.check_told(psrun, out, f"worker {rank}", number)

    def check_told(self, psrun, out, name, number):
        text = self.finish(psrun, code=128 + number)
        self.check_kept(out, text)
        self.assertIn(f"psrun: {name} was told to end ({number.name}); the job ends in order", text)
        self.assertIn(f"psrun: {name} was told to end ({number.name}); weights", text)
        self.assertNotIn("interrupted;", text)
        self.assertNotIn("exit code", text)

    def test_one_server_alone_is_told(self):
        for rank in range(2):  # server 0 hosts the coordinator
            out = f"server-{rank}"
            psrun = self.start("ps", 2, 2, *LONG, out=out)
            self.wait_for_steps(out)
            number = (signal.SIGTERM, signal.SIGINT)[rank]
            os.kill(self.server(psrun, rank), number)
            self.check_told(psrun, out, f"server {rank}", number)

    def test_a_stray_signal_leaves_a_server_all_ears(self):
        psrun = self.start("ps", 2, 2, *LONG, out="out")
        self.wait_for_steps("out")
        for rank in range(2):
            os.kill(self.server(psrun, rank), signal.SIGUSR1)
        self.wait_for_steps("out", records=len(self.records()) + 5)
        os.kill(self.server(psrun, 1), signal.SIGTERM)
        self.check_told(psrun, "out", "server 1", signal.SIGTERM)

    def test_one_alone_is_told_before_all_have_joined(self):
        wrapped_bin(self.path("bin"), "ps-worker", '[ "$RANK" != 1 ] || exec sleep 60')
        for name in ("ps-worker", "ps-server"):
            psrun = self.start("ps", 1, 2, "--build-dir", self.folder, out=name)
            log = self.path(name, "logs", "server-0.log")
            wait_until(lambda: os.path.exists(log) and "role=worker rank=0" in Path(log).read_text())
            part = next(pid for program, pid in children(psrun.pid) if program == name)
            os.kill(part, signal.SIGINT)
            text = self.finish(psrun)
            role, rank = name[3:], "0"
            self.assertIn(f"psrun: {role} {rank} was told to end (SIGINT); no weights were written",
                          text)

    def test_when_who_reads_along_is_gone(self):
        # Ctrl-C in `psrun | tee` ends tee, too.
        psrun = self.start("ps", 1, 2, *LONG, out="out")
        self.wait_for_steps("out")
        psrun.stdout.close()
        psrun.send_signal(signal.SIGINT)
        self.assertEqual(psrun.wait(PATIENCE_S), 130)
        self.check_kept("out")

    def test_when_nobody_reads_along(self):
        # As in a pager, the pipe fills. psrun must still react.
        psrun = self.start("ps", 1, 2, *LONG, "data.train=0-63", "data.test=0-0",
                           "train.eval_every=1", out="out")
        fcntl.fcntl(psrun.stdout, fcntl.F_SETPIPE_SZ, 4096)
        self.wait_for_steps("out")
        self.wait_for_steps("out", 200)
        psrun.send_signal(signal.SIGINT)
        wait_until(lambda: os.path.exists(self.path("out/summary.json")), "psrun waits for its reader")
        text = self.finish(psrun)
        self.check_kept("out", text)
        shown = [int(n) for n in re.findall(r"epoch (\d+)/\d+  test loss", text)]
        self.assertEqual(shown, list(range(1, len(shown) + 1)))

    def test_a_part_that_dies_after_it_is_named(self):
        psrun = self.start("ps", 1, 2, *LONG, out="out")
        self.wait_for_steps("out")
        victim = self.worker(1)
        os.kill(victim, signal.SIGSTOP)
        psrun.send_signal(signal.SIGINT)
        self.wait_until_told(psrun)
        os.kill(victim, signal.SIGKILL)
        text = self.finish(psrun, code=1)
        self.assertIn("the job failed: worker 1 was ended by SIGKILL", text)
        self.assertIn("the weights could not be kept", text)

    def test_no_thread_that_computes_runs_a_handler(self):
        # oneDNN's kernels point the stack pointer elsewhere: a handler's frame would be
        # written over what lies there.
        psrun = self.start("ps", 1, 2, *LONG, "train.threads=2", out="out")
        self.wait_for_steps("out")
        pid = self.worker(0)
        both = {signal.SIGINT, signal.SIGTERM}
        self.assertEqual(signals_of(pid, pid, "SigCgt"), set())
        threads = os.listdir(f"/proc/{pid}/task")
        open_to = [t for t in threads if signals_of(pid, t, "SigBlk") not in (both, None)]
        self.assertEqual(len(open_to), 1, "the thread that waits for signals")
        self.assertNotEqual(open_to, [str(pid)])
        self.interrupt(psrun, "out")


class ByHand(SlowEvaluation):
    """Parts that one shell started: Ctrl-C reaches them all."""

    def start(self, *settings):
        parts = self.start_job(2, 2, *LONG, *settings)
        self.wait_for_steps("worker-0")
        return parts

    @staticmethod
    def tell(parts, *names):
        for name in names:
            parts[name].popen.send_signal(signal.SIGINT)

    def test_all_at_once(self):
        parts = self.start()
        self.tell(parts, *parts)  # the servers first
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertEqual(codes[name], 130, f"{name}:\n{part.text()}")
            self.assertNotIn("ERROR", part.text(), name)
        self.assertRegex(parts["server 1"].text(), "interrupted signal=SIGINT ends=.with the workers")
        self.assertTrue(self.summary("worker-0")["interrupted"])
        _, metadata = read_safetensors(self.path("worker-0", "model.safetensors"))
        self.assertEqual(int(metadata["step"]), self.summary("worker-0")["steps"])

    def test_a_server_alone(self):
        for told in ("server 0", "server 1"):
            parts = self.start()
            self.tell(parts, told)
            codes = self.wait_all(parts)
            for name, part in parts.items():
                other_server = name.startswith("server") and name != told
                self.assertEqual(codes[name], 0 if other_server else 130, f"{name}:\n{part.text()}")
                self.assertNotIn("ERROR", part.text(), name)
            self.assertTrue(self.summary("worker-0")["interrupted"])
            self.assertTrue(os.path.exists(self.path("worker-0", "model.safetensors")))
            os.rename(self.path("worker-0"), self.path(told))

    def test_a_server_alone_while_the_workers_evaluate(self):
        config = self.slow_evaluation()
        parts = self.start_job(1, 2, *LONG, config=config)
        self.wait_for_steps("worker-0")
        self.tell(parts, "server 0")
        self.assertEqual(set(self.wait_all(parts).values()), {130})
        self.assertIsNone(self.summary("worker-0")["test_loss"])  # not waited for

    def check_ended_by_server_1(self, parts, reason):
        said = rf"(?m)ERROR.*server 1 was told to stop {reason}"
        parts["server 0"].wait_for(said)
        parts["worker 0"].popen.send_signal(signal.SIGCONT)
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertEqual(codes[name], 1, f"{name}:\n{part.text()}")
            self.assertRegex(part.text(), said)

    def start_stuck(self, *settings):
        """A worker that cannot end."""
        parts = self.start_job(2, 1, *LONG, *settings)
        self.wait_for_steps("worker-0")
        parts["worker 0"].popen.send_signal(signal.SIGSTOP)
        self.tell(parts, "server 1")
        return parts

    def test_a_server_told_again(self):
        parts = self.start_stuck()
        parts["server 1"].wait_for("interrupted")
        self.tell(parts, "server 1")
        self.check_ended_by_server_1(parts, r'at once \(SIGINT\)"$')

    def test_a_server_until_the_limit(self):
        parts = self.start_stuck("net.step_timeout_ms=4000", "train.file_timeout_ms=500")
        self.check_ended_by_server_1(parts,
                                     r"\(SIGINT\), and the workers had not ended 4\.5 s later")

    def test_sigterm(self):
        parts = self.start()
        for part in parts.values():
            part.popen.send_signal(signal.SIGTERM)
        self.assertEqual(set(self.wait_all(parts).values()), {143})
        self.assertTrue(self.summary("worker-0")["interrupted"])
        self.assertTrue(os.path.exists(self.path("worker-0", "model.safetensors")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
