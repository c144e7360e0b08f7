"""psrun --mps, with a stand-in for NVIDIA's daemon (support/stand_in_mps_control)."""
import glob
import os
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from jobs import BIN, DIGITS, ROOT, JobTest, wait_until
from psrunlib import mps
from psrunlib.errors import JobError

CONTROL = "nvidia-cuda-mps-control"
SHORT = ["-s", 1, "-w", 2, DIGITS, "train.epochs=1"]


class Mps(JobTest):
    def setUp(self):
        super().setUp()
        for name in ("path", "bin", "seen"):
            os.mkdir(self.path(name))
        for name in os.listdir(BIN):
            if name != "ps-worker":
                os.symlink(BIN / name, self.path("bin", name))
        os.symlink(ROOT / "tests/support/stand_in_mps_control", self.path("path", CONTROL))
        worker = Path(self.path("bin", "ps-worker"))  # notes what it gets
        worker.write_text(f"#!/bin/sh\n[ -z \"$RANK\" ] || env | grep ^CUDA_ | sort > '{self.path('seen')}'/$RANK\n"
                          f"exec {BIN}/ps-worker \"$@\"\n", encoding="utf-8")
        worker.chmod(0o755)
        self.change(PATH=f"{self.path('path')}:{os.environ['PATH']}", CUDA_MPS_PIPE_DIRECTORY="", CUDA_VISIBLE_DEVICES="")
        temp = mock.patch.object(tempfile, "tempdir", self.folder)  # psrun is forked from this process
        temp.start()
        self.addCleanup(temp.stop)

    def change(self, **variables):
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)

    def run_job(self, *args, **more):
        return self.psrun("--build-dir", self.folder, "--mps", *args, **more)

    def pipes(self):
        return glob.glob(self.path("pstrain-mps-*"))

    def daemons(self):
        """The processes of the stand-in: the daemon and its server, which name this test's folder."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                words = Path(path).read_bytes().split(b"\0")
            except OSError:
                continue
            if {b"--daemon", b"--server"} & set(words) and any(word.startswith(os.fsencode(self.folder)) for word in words):
                found.append(int(path.split("/")[2]))
        return found

    def log(self, out="out"):
        return self.text_of(out, "logs", "mps", "control.log").splitlines()

    def assert_gone(self):
        self.assertEqual((self.pipes(), self.daemons()), ([], []))

    def test_workers_find_the_daemon_which_ends_with_the_job(self):
        self.change(CUDA_VISIBLE_DEVICES="2,5")
        self.run_job(*SHORT)
        for rank in "01":
            seen = dict(line.split("=", 1) for line in self.text_of("seen", rank).splitlines())
            self.assertEqual(seen["CUDA_VISIBLE_DEVICES"], "0,1")  # the daemon's second GPU is its clients' GPU 1
            self.assertEqual(seen["CUDA_MPS_LOG_DIRECTORY"], self.path("out", "logs", "mps"))
            self.assertTrue(seen["CUDA_MPS_PIPE_DIRECTORY"].startswith(self.path("pstrain-mps-")), seen)
        self.assertEqual(self.log(), ["start 2,5", "quit -t 10"])
        self.assert_gone()

    def test_sockets_have_short_names(self):
        with mock.patch.object(tempfile, "tempdir", "/" + "long" * 20):
            self.assertEqual(mps.short_folder(), "/tmp")

    def test_names_of_gpus_stay(self):
        self.change(CUDA_VISIBLE_DEVICES="GPU-8932f937,GPU-0a")
        self.run_job(*SHORT)
        self.assertIn("CUDA_VISIBLE_DEVICES=GPU-8932f937,GPU-0a\n", self.text_of("seen", "1"))

    def test_a_daemon_that_does_not_end_is_killed(self):
        self.change(PS_MPS_STUCK="1")
        self.run_job(*SHORT)
        self.assertEqual(self.log(), ["start ", "quit -t 10"])
        self.assert_gone()

    def test_it_ends_also_when_psrun_is_killed_or_told_to_end(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            name = number.name
            psrun = self.start_psrun("--build-dir", self.folder, "--mps", "-s", 1, "-w", 2, DIGITS, "train.epochs=100000",
                                     out=name)
            self.wait_for_steps(name)
            self.assertEqual(len(self.daemons()), 2)
            psrun.send_signal(number)
            psrun.communicate()
            if number == signal.SIGTERM:
                self.assert_gone()
            wait_until(lambda: not self.pipes() and not self.daemons(), f"{name}: the daemon is still there")
            self.assertEqual(self.log(name), ["start ", "quit -t 10"])

    def test_it_ends_also_when_psrun_is_killed_while_it_starts(self):
        gate = self.path("gate")
        os.mkfifo(gate)
        self.change(PS_MPS_GATE=gate)
        psrun = self.start_psrun("--build-dir", self.folder, "--mps", *SHORT)
        with open(gate, "w", encoding="ascii") as go:  # there is somebody who reads
            psrun.kill()
            psrun.communicate()
            go.write("go\n")
        wait_until(lambda: not self.pipes(), "the daemon's folder is still there")
        self.assert_gone()
        self.assertEqual(self.log(), ["start ", "quit -t 10"])

    def test_a_driver_that_hangs(self):
        """No signal ends what waits for it, and nothing is said."""
        guard = f"read -r line; rm -rf \"${mps.PIPES}\""  # until psrun is gone
        with mock.patch.multiple(mps, GUARD=guard, STARTS_WITHIN_S=0, KILLED_WITHIN_S=0.1), \
                self.assertRaisesRegex(JobError, f"--mps: {CONTROL} -d has not started within 0 s: it said nothing"):
            mps.Daemon(self.path("logs")).__enter__()

    def test_what_is_wrong_is_one_error(self):
        cases = [({"PS_MPS_SAYS": "Failed to open the lock file"}, SHORT,
                  f"--mps: {CONTROL} -d ended with 1: Failed to open the lock file; its logs are in "),
                 ({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, SHORT, "--mps: CUDA_MPS_PIPE_DIRECTORY is set: "),
                 ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, SHORT, "--mps: CUDA_VISIBLE_DEVICES names parts of GPUs (MIG)"),
                 ({}, [*SHORT, "train.device=cpu"], "--mps lets workers share a GPU, and train.device is cpu: "),
                 ({}, ["-H", self.file("hosts", "localhost slots=2\n"), *SHORT], "--mps is for the workers of this machine"),
                 ({}, ["--describe", DIGITS], "--mps is for a job that psrun starts: leave it out with --describe"),
                 ({"PATH": self.path_without_it()}, SHORT, f"--mps: there is no {CONTROL} on this machine: ")]
        for k, (variables, args, words) in enumerate(cases):
            with mock.patch.dict(os.environ, variables):
                said = self.run_job(*args, out=f"run {k}", code=1)
            text = " ".join(said.split())
            self.assertIn(f"psrun: {words}", text)
            self.assertEqual(text.count("psrun: "), 1, said)
            self.assertEqual(os.path.exists(self.path(f"run {k}")), k == 0, words)
            self.assert_gone()

    def path_without_it(self):
        folders = [f for f in os.environ["PATH"].split(":") if not os.path.exists(os.path.join(f, CONTROL))]
        return ":".join(folders)


if __name__ == "__main__":
    unittest.main()
