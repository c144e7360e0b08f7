"""A job on emulated hosts in which members and links are slowed down on purpose."""
import os
import random
import re
import signal
import subprocess
import threading
import time

from . import netns
from .job_config import BenchError

JOB = """\
job: {{name: straggler, servers: 2, workers: {workers}}}
data: {{kind: synthetic, batch: {batch}, samples: 1000000, test_samples: 0}}
model:
  input: [64]
  layers: [{{linear: {width}}}, relu, {{linear: 64}}, relu, {{linear: 10}}]
optimizer: {{name: sgd, lr: 0.0001}}
"""
STEP = re.compile(r" pace step=(\d+) ms=([\d.]+)")
NAMED = re.compile(r' straggler who="(\w+ \d+)[^"]*" cause="([^"]+)"(?: step=(\d+))?')
GONE = re.compile(r" straggler-gone ")
RUN_S, PAUSE_S = 0.010, 0.030  # of a process that gets a quarter of its time
SLOWER = 8  # a link
KINDS = ("compute", "link in", "link out", "server", "stop")


class Process:
    """A member of the job; its log is read as it comes."""

    def __init__(self, name, argv, env):
        self.name, self.lines = name, []
        self.popen = subprocess.Popen(argv, env=dict(os.environ, **env), text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            self.lines.append((time.monotonic(), line))


class Job:
    """For use with `with`."""

    def __init__(self, build_dir, folder, workers=3, mbit=400, width=4096, batch=64):
        self.hosts = netns.Hosts(mbit, {"server": 2, "worker": workers})
        self.build_dir, self.folder, self.workers, self.mbit = build_dir, folder, workers, mbit
        self.text = JOB.format(workers=workers, width=width, batch=batch)
        self.members = {}

    def __enter__(self):
        self.hosts.__enter__()
        config = os.path.join(self.folder, "job.yaml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(self.text)
        init = self.hosts.init_method()
        for role, rank in self.hosts.hosts:
            argv = [*self.hosts.prefix(role, rank), os.path.join(self.build_dir, "bin", f"ps-{role}"),
                    "--config", config, "--rank", str(rank), "--init-method", init, "--set",
                    "net.insecure=true", "--set", "train.log_every=1000000", "--log-level", "debug"]
            if role == "worker":
                argv += ["--out", os.path.join(self.folder, f"out-{rank}"), "--overwrite"]
            self.members[role, rank] = Process(f"{role} {rank}", argv, {"OMP_NUM_THREADS": "1"})
        return self

    def __exit__(self, *_):
        for p in self.members.values():
            p.popen.kill()
            p.popen.wait()
            p.reader.join()
            p.popen.stdout.close()
        self.hosts.__exit__()

    @property
    def log(self):
        return self.members["server", 0].lines

    def wait(self, pattern, start, seconds):
        """The first match in the coordinator's log from line `start`, or None."""
        end, at = time.monotonic() + seconds, start
        while time.monotonic() < end:
            while at < len(self.log):
                found = pattern.search(self.log[at][1])
                at += 1
                if found:
                    return found
            if self.members["server", 0].popen.poll() is not None:
                raise BenchError("the job has ended:\n" + "".join(
                    line for p in self.members.values() for _, line in p.lines[-4:]))
            time.sleep(0.002)
        return None

    def step(self):
        """The number of the last step that the coordinator knows."""
        for _, line in reversed(self.log):
            found = STEP.search(line)
            if found:
                return int(found.group(1))
        return -1

    def go_on(self, steps, seconds=60):
        """Waits for that many more steps."""
        goal, end = self.step() + steps, time.monotonic() + seconds
        while self.step() < goal:
            if time.monotonic() > end:
                raise BenchError(f"only step {self.step()} of {goal}")
            self.wait(STEP, len(self.log), 1)

    def rate(self, role, rank, inward, mbit):
        short = f"{role[0]}{rank}"
        if inward:
            netns._tc(self.hosts.made[0], short, mbit)
        else:
            netns._tc(f"{self.hosts.prefix_name}-{short}", "eth0", mbit)


class Slowdown:
    """One injected fault: begin, and end. The culprit and the cause that the job should name."""

    CAUSES = {"compute": "slow compute", "link in": "slow link in", "link out": "slow link out",
              "server": "slow server", "stop": "stopped"}

    def __init__(self, job, kind, draw):
        self.job, self.kind, self.cause = job, kind, self.CAUSES[kind]
        if kind in ("compute", "server"):
            role = "worker" if kind == "compute" else "server"
        else:
            role = draw.choice(("worker", "server"))
        rank = draw.randrange(job.workers if role == "worker" else 2)
        if kind == "stop" and (role, rank) == ("server", 0):  # it is the coordinator's process
            rank = 1
        self.role, self.rank = role, rank
        self.who = f"{role} {rank}"
        self.pid = job.members[role, rank].popen.pid
        self.over = threading.Event()

    def __str__(self):
        return f"{self.who}: {self.cause}"

    def begin(self):
        if self.kind == "stop":
            os.kill(self.pid, signal.SIGSTOP)
        elif self.kind.startswith("link"):
            self.job.rate(self.role, self.rank, self.kind == "link in", self.job.mbit / SLOWER)
        else:
            self.thread = threading.Thread(target=self._take_turns)
            self.thread.start()

    def _take_turns(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(RUN_S)

    def end(self):
        self.over.set()
        if self.kind == "stop":
            os.kill(self.pid, signal.SIGCONT)
        elif self.kind.startswith("link"):
            self.job.rate(self.role, self.rank, self.kind == "link in", self.job.mbit)
        else:
            self.thread.join()


def inject(job, kind, draw, within=5, seconds=20):
    """Slows something down until the job names somebody; returns a row of the result."""
    job.go_on(6)
    fault, start, before = Slowdown(job, kind, draw), len(job.log), job.step()
    fault.begin()
    at = time.monotonic()
    found = None
    try:
        while time.monotonic() < at + seconds and job.step() <= before + 3 * within and not found:
            found = job.wait(NAMED, start, 0.01)
    finally:
        took, named_at = time.monotonic() - at, job.step()
        fault.end()
    steps = (int(found.group(3)) if found else named_at) - before
    right = bool(found) and found.group(1) == fault.who and found.group(2) == fault.cause
    said = f"{found.group(1)}: {found.group(2)}" if found else "nobody"
    if found:
        job.wait(GONE, start, 30)
    return {"injected": str(fault), "named": said, "steps": steps, "seconds": round(took, 2),
            "right": right and steps <= within}


def draw_kinds(n, seed):
    draw = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(n)]
    draw.shuffle(kinds)
    return draw, kinds
