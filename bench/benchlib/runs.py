"""Runs of one job: through psrun, as workers without exchange, through PyTorch."""
import json
import os
import shutil
import subprocess
import sys

from psrunlib import report
from psrunlib.errors import JobError

from .job_config import ROOT, BenchError, JobConfig
from .netns import Local
from .processes import Group


PSRUN = os.path.join(ROOT, "deploy", "psrun")
TIMEOUT_S = 3600


def read_summary(out):
    try:
        return report.read_summary(out)
    except JobError as error:
        raise BenchError(str(error)) from error


def read_metrics(out, key):
    """The lines of metrics.jsonl that have the key."""
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return [line for line in map(json.loads, f) if key in line]


def read_losses(out):
    """The losses of metrics.jsonl by step: the mean over all ranks."""
    return {line["step"]: line["loss_mean"] for line in read_metrics(out, "loss_mean")}


def start_pytorch(group, where, python, out, job, words, env=(), program="ddp_job.py", pinned=True):
    """Adds bench/PROGRAM's ranks to the group; job: a JobConfig. Returns them."""
    os.makedirs(out, exist_ok=True)
    described, workers = os.path.join(out, "config.json"), job["job.workers"]
    job.write(described)
    host, port = where.address("worker", 0)
    env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(workers),
           "GLOO_SOCKET_IFNAME": where.interface, "OMP_NUM_THREADS": str(max(1, job["train.threads"])), **dict(env)}
    argv = [shutil.which(python), os.path.join(ROOT, "bench", program), "--config", described, "--out", out, *words]
    place = where.prefix if pinned else where.enter
    return [group.start(f"PyTorch rank {r}", [*place("worker", r), *argv], dict(env, RANK=str(r), LOCAL_RANK=str(r)))
            for r in range(workers)]


class Runner:
    """The settings and paths that all runs of a comparison share."""

    def __init__(self, build_dir, config, out, servers, workers, where=None):
        """where: netns.Hosts with one for each part; None: all are on this one."""
        self.build_dir, self.config, self.out = build_dir, config, out
        self.servers, self.workers, self.where = servers, workers, where or Local()

    def path(self, name):
        return os.path.join(self.out, name)

    def start(self, group, mode, name, overrides, workers=None, resume=None):
        """Adds psrun to the group; mode: ps, allreduce or single. resume: a run; the job goes on from its
        newest checkpoint. Returns psrun's part."""
        one_level = [] if mode == "ps" else ["exchange.levels=1"]  # only servers have two
        os.makedirs(self.out, exist_ok=True)
        on_hosts, env = self.where.for_psrun(self.out, os.path.join(self.build_dir, "bin"),
                                             ("server", "worker") if mode == "ps" else ("worker",))
        return group.start(name, [
            sys.executable, PSRUN, "-m", mode, *on_hosts, "-s", str(self.servers if mode == "ps" else 0), "-w",
            str(workers or self.workers), "--build-dir", self.build_dir, "--out", self.path(name), "--overwrite",
            *(["--resume", resume] if resume else []), self.config, *overrides, *one_level], env, in_order=True)

    def psrun(self, mode, name, overrides, workers=None, resume=None):
        """As start, and waits. Returns the folder of the results."""
        with Group(TIMEOUT_S) as group:
            self.start(group, mode, name, overrides, workers, resume)
            group.finish()
        return self.path(name)

    def alone(self, name, overrides):
        """Runs as many workers as the job has, at the same time, without any exchange."""
        names = [f"{name}-{r}" for r in range(self.workers)]
        with Group(TIMEOUT_S) as group:
            for each in names:
                self.start(group, "single", each, overrides, 1)
            group.finish()
        return [self.path(each) for each in names]

    def ddp(self, python, name, job, words, program="ddp_job.py"):
        """Returns the folder of the results of a job in PyTorch; words: of the program."""
        with Group(TIMEOUT_S) as group:
            start_pytorch(group, self.where, python, self.path(name), job, words, program=program)
            group.finish()
        return self.path(name)

    def job(self, overrides):
        return JobConfig.load(self.build_dir, self.config, [*overrides, f"job.workers={self.workers}"])

    def initial_weights(self, overrides):
        """The job's first weights, as a safetensors file: what every mode starts from."""
        path = self.path("init.safetensors")
        os.makedirs(self.out, exist_ok=True)
        argv = [os.path.join(self.build_dir, "bin", "ps-bench-step"), "--weights", path, self.config, *overrides]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise BenchError(done.stdout.strip())
        return path


def need_torch(python):
    version, why = torch_version(python)
    if why:
        raise BenchError(f"this needs PyTorch: {why}")
    return version


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
