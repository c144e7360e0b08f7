"""A job under psrun --restarts, of which parts are killed, and what each kill costs."""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from . import processes
from .job_config import BenchError
from .runs import PSRUN, read_summary

# psrun's, when worker 0 has made its first step since the death.
GOES_ON = re.compile(r"psrun: the job goes on from step (?P<step>\d+), [\d.]+ s after .*; (?P<lost>\d+) steps? lost")
# psrun's, of a worker that the others have not waited for.
IS_BACK = re.compile(r"psrun: worker \d+ is back after ")
# Worker 0's, after its first step.
FIRST_STEP = re.compile(r"\[worker 0\] epoch [\d,]+/[\d,]+  step [\d,]+/")
RESTARTS = 100000
START_S, MEND_S, END_S = 120, 120, 120


@dataclass
class Stall:
    """What a kill has cost."""
    part: str
    seconds: float  # from the kill to the first step that was made after it
    from_step: int
    steps_lost: int  # steps that were made again


class Job:
    """A job that is running. Its output is read as it comes."""

    def __init__(self, build_dir, config, out, shape, settings, restarts=RESTARTS, hosts=([], {})):
        """shape: (mode, servers, workers). hosts: psrun's options and environment."""
        mode, servers, workers = shape
        self.out, self.lines = out, []
        self.first_step = threading.Event()
        self.went_on = threading.Condition()
        self.on_again = []  # (when, the step it goes on from, steps lost)
        options, env = hosts
        self.argv = [sys.executable, PSRUN, "--restarts", str(restarts), "-m", mode, "-s", str(servers),
                     "-w", str(workers), "--build-dir", build_dir, "--out", out, *options, config, *settings]
        self.env = env
        self._start("--overwrite")

    def _start(self, *more):
        self.popen = subprocess.Popen([*self.argv, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                      env=dict(os.environ, **self.env), preexec_fn=processes.end_with_parent)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        processes.stop_session(self.popen)
        self.reader.join()
        self.popen.stdout.close()

    def _read(self):
        for line in self.popen.stdout:
            now = time.monotonic()
            self.lines.append(line.rstrip())
            if FIRST_STEP.match(line):
                self.first_step.set()
            found = GOES_ON.match(line)
            if found or IS_BACK.match(line):
                with self.went_on:
                    self.on_again.append((now, *(map(int, found.groups()) if found else (0, 0))))
                    self.went_on.notify_all()

    def explain(self, what):
        return BenchError("\n  ".join([f"{what}; its last lines:", *self.lines[-8:]]))

    def wait_for_first_step(self):
        end = time.monotonic() + START_S
        while not self.first_step.wait(0.1):
            if self.popen.poll() is not None or time.monotonic() > end:
                raise self.explain("the job makes no step")

    def _kill(self, role, rank, end):
        """As soon as there is the part. Returns when, and how often the job had gone on before."""
        pid = processes.find_part(self.popen.pid, role, rank)
        while pid is None and self.popen.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
            pid = processes.find_part(self.popen.pid, role, rank)
        if pid is None:
            raise self.explain(f"there is no {role} {rank}")
        known, at = len(self.on_again), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return at, known

    def kill(self, role, rank):
        """Kills a part, and waits until the job makes steps again, or, where the others have not waited, until
        the part is back."""
        end = time.monotonic() + MEND_S
        at, known = self._kill(role, rank, end)
        with self.went_on:
            while len(self.on_again) == known:
                if self.popen.poll() is not None or time.monotonic() > end:
                    raise self.explain(f"the job does not go on after the death of {role} {rank}")
                self.went_on.wait(0.1)
            when, step, lost = self.on_again[-1]
        return Stall(f"{role} {rank}", when - at, step, lost)

    def step(self):
        """Of the last record of metrics.jsonl; None where there is none yet."""
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), "rb") as f:
                begin = max(0, f.seek(0, os.SEEK_END) - 4096)
                f.seek(begin)
                whole = f.read().split(b"\n")[1 if begin else 0:-1]
            return max([json.loads(line)["step"] for line in whole], default=None)
        except (OSError, ValueError, KeyError):
            return None

    def _wait(self, patience):
        try:
            code = self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            raise self.explain("the job does not end") from None
        self.reader.join()
        return code

    def end(self):
        """Ends the job in order. Returns its summary."""
        self.popen.send_signal(signal.SIGINT)
        code = self._wait(END_S)
        if code != 128 + signal.SIGINT:
            raise self.explain(f"the job ended with exit code {code}")
        return read_summary(self.out)


class WholeJob(Job):
    """A job without --restarts: it ends with the part that is killed, and is started again from its newest
    checkpoint."""

    def kill(self, role, rank):
        at, _ = self._kill(role, rank, time.monotonic() + MEND_S)
        self._wait(MEND_S)
        self.popen.stdout.close()
        self.first_step.clear()
        self._start("--resume", "auto")
        self.wait_for_first_step()
        return Stall(f"{role} {rank}", time.monotonic() - at, 0, 0)
