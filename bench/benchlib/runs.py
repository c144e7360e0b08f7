"""Runs of one job: through psrun, as workers without exchange, through PyTorch DDP."""
import datetime
import json
import os
import shutil
import subprocess
import sys
import time

from . import processes
from .job_config import ROOT, BenchError

sys.path.append(os.path.join(ROOT, "deploy"))
from psrunlib import report  # noqa: E402
from psrunlib.errors import JobError  # noqa: E402
from psrunlib.ports import free_port  # noqa: E402

PSRUN = os.path.join(ROOT, "deploy", "psrun")
DDP_JOB = os.path.join(ROOT, "bench", "ddp_job.py")
CONTINUE_JOB = os.path.join(ROOT, "bench", "continue_job.py")


def _fail(what, log):
    with open(log, errors="replace") as f:
        lines = [line for line in f.read().splitlines() if line.strip()]
    raise BenchError("\n  ".join([f"{what} failed; {log} ends with:"] + lines[-6:]))


class Started:
    """A process whose output goes to a log, in a session of its own."""

    def __init__(self, argv, log, env=None):
        self.what, self.log = os.path.basename(argv[0]), log
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "w") as f:
            self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                                          env=dict(os.environ, **(env or {})),
                                          start_new_session=True, preexec_fn=processes.end_with_parent)

    def stop(self):
        processes.stop_session(self.popen)


def finish(started, timeout_s):
    """Waits for all; the first failure or the time limit ends them all."""
    end = time.monotonic() + timeout_s
    try:
        left = list(started)
        while left:
            for p in [p for p in left if p.popen.poll() is not None]:
                if p.popen.returncode != 0:
                    _fail(p.what, p.log)
                left.remove(p)
            if time.monotonic() > end:
                raise BenchError(f"{left[0].what} took longer than {timeout_s} s; see "
                                 f"{left[0].log}")
            time.sleep(0.02)
    finally:
        for p in started:
            p.stop()


def read_summary(out):
    try:
        return report.read_summary(out)
    except JobError as error:
        raise BenchError(str(error)) from error


def read_losses(out):
    """The losses of metrics.jsonl by step: the mean over all ranks."""
    losses = {}
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            entry = json.loads(line)
            if "loss_mean" in entry:
                losses[entry["step"]] = entry["loss_mean"]
    return losses


class Runner:
    """The settings and paths that all runs of a comparison share."""

    def __init__(self, build_dir, config, out, servers, workers, timeout_s=3600, hosts=None):
        """hosts: netns.Hosts with one for each part; None: all are on this one."""
        self.build_dir, self.config, self.out = build_dir, config, out
        self.servers, self.workers, self.timeout_s = servers, workers, timeout_s
        self.hosts = hosts

    def _psrun(self, mode, out, overrides, workers, resume=None):
        one_level = [] if mode == "ps" else ["exchange.levels=1"]  # only servers have two
        on_hosts, env = [], {}
        if self.hosts:
            bin_dir = os.path.join(self.build_dir, "bin")
            kinds = ("server", "worker") if mode == "ps" else ("worker",)
            os.makedirs(self.out, exist_ok=True)
            on_hosts, env = self.hosts.for_psrun(self.out, bin_dir, kinds)
        argv = [PSRUN, "-m", mode, *on_hosts, "-s", str(self.servers if mode == "ps" else 0), "-w", str(workers),
                "--build-dir", self.build_dir, "--out", out, "--overwrite",
                *(["--resume", resume] if resume else []), self.config, *overrides,
                *one_level]
        return Started(argv, os.path.join(out, "psrun.log"), env)

    def path(self, name):
        """The folder of the results; emptied of what a run before has written there."""
        out = os.path.join(self.out, name)
        shutil.rmtree(out, ignore_errors=True)
        return out

    def start(self, mode, name, overrides):
        """As psrun, without waiting."""
        return self._psrun(mode, os.path.join(self.out, name), overrides, self.workers)

    def psrun(self, mode, name, overrides, workers=None, resume=None):
        """mode: ps, allreduce or single. resume: a run; the job goes on from its newest
        checkpoint. Returns the folder of the results."""
        out = os.path.join(self.out, name)
        finish([self._psrun(mode, out, overrides, workers or self.workers, resume)],
               self.timeout_s)
        return out

    def alone(self, name, overrides):
        """Runs as many workers as the job has, at the same time, without any exchange."""
        outs = [os.path.join(self.out, f"{name}-{r}") for r in range(self.workers)]
        finish([self._psrun("single", out, overrides, 1) for out in outs], self.timeout_s)
        return outs

    def ddp(self, python, name, job, init, extra=(), program=DDP_JOB):
        """job: a JobConfig. extra: options of the program."""
        out, ranks = self.start_ddp(python, name, job, init, extra, program)
        finish(ranks, self.timeout_s)
        return out

    def start_ddp(self, python, name, job, init, extra=(), program=DDP_JOB):
        """As ddp, without waiting: the folder, and the ranks."""
        out = os.path.join(self.out, name)
        os.makedirs(out, exist_ok=True)
        described = os.path.join(out, "config.json")
        job.write(described)
        argv = [python, program, "--config", described, "--out", out, "--init", init, *extra]
        address, port = self.hosts.address("worker", 0) if self.hosts else ("127.0.0.1", free_port())
        env = {"MASTER_ADDR": address, "MASTER_PORT": str(port),
               "WORLD_SIZE": str(self.workers),
               "OMP_NUM_THREADS": str(max(1, job["train.threads"]))}
        if self.hosts:
            env["GLOO_SOCKET_IFNAME"] = self.hosts.interface
        places = [self.hosts.enter("worker", r) if self.hosts else [] for r in range(self.workers)]
        ranks = [Started([*places[r], *argv], os.path.join(out, f"rank{r}.log"),
                         dict(env, RANK=str(r), LOCAL_RANK=str(r)))
                 for r in range(self.workers)]
        return out, ranks

    def initial_weights(self, overrides):
        """The job's first weights, as a safetensors file: what every mode starts from."""
        path = os.path.join(self.out, "init.safetensors")
        os.makedirs(self.out, exist_ok=True)
        argv = [os.path.join(self.build_dir, "bin", "ps-init-weights"), path, self.config,
                *overrides]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise BenchError(done.stdout.strip())
        return path


def torch_version(python):
    """(version, None), or (None, why there is no PyTorch)."""
    found = shutil.which(python)
    if not found:
        return None, f"no program {python}"
    done = subprocess.run(
        [found, "-c", "import torch, torch.distributed as d; assert d.is_gloo_available() "
         "if hasattr(d, 'is_gloo_available') else d.is_available(); print(torch.__version__)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return done.stdout.strip(), None
    lines = done.stderr.strip().splitlines() or ["it ended without a word"]
    return None, f"{python}: {lines[-1]}"


def origin():
    """When, how and where figures were measured; every report begins with it."""
    tool = os.path.relpath(os.path.realpath(sys.argv[0]), ROOT)
    return {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join([tool, *sys.argv[1:]]),
            "machine": _machine()}


def _system():
    with open("/etc/os-release", encoding="utf-8") as f:
        found = dict(line.rstrip().split("=", 1) for line in f if "=" in line)
    return found.get("PRETTY_NAME", "unknown").strip('"')


def _machine():
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
            "system": _system(), "python": sys.version.split()[0]}
