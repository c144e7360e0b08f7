"""Whole training on given hosts: through servers and each codec, by all-reduce, through
PyTorch DDP with its communication hooks, and without exchange."""
import json
import os
import subprocess

from . import harness, peers, runs, stats
from .exchange_job import Marks
from .job_config import ROOT, BenchError, JobConfig
from .processes import Group

TIMEOUT_S = 1800
# Of emulated hosts, where several interpreters load PyTorch at once.
PACKAGE_SETTINGS = ["net.insecure=true", "net.join_timeout_ms=300000"]
ALONE_STEPS = 100  # of the workers alone: their steps are all equal
KEYS = ("samples_per_second", "step_ms_p50", "step_ms_p99", "exchange_wait_ms_p50",
        "test_accuracy", "train_loss", "bytes_sent_per_step", "bytes_received_per_step",
        "compression_ratio")
# A step's limits, of our own modes.
LIMITS = ("alone_ms", "line_ms", "beside_tcp_ms", "step_to_alone", "beside_tcp_to_alone", "step_to_limit")


def package_env(build_dir):
    """The Python package of this checkout, with a build's library."""
    library = os.path.join(build_dir, "lib", "libpstrain.so.0")
    if not os.path.exists(library):
        raise BenchError(f"no {library}: build the target pstrain")
    return {"PSTRAIN_LIBRARY": library, "PYTHONPATH": os.path.join(ROOT, "python"),
            "PYTHONDONTWRITEBYTECODE": "1", "PS_SETTINGS": json.dumps(PACKAGE_SETTINGS)}


def package_job(args, build_dir, name, program, job, *words):
    """Runs bench/PROGRAM, with the job as JSON: under psrun with these words, or, without any, in one process. Returns the
    JSON that it prints behind its name."""
    argv = [args.torch, os.path.join(ROOT, "bench", program), json.dumps(job)]
    if words:
        argv = [runs.PSRUN, "--build-dir", build_dir, "--overwrite", "--out", os.path.join(args.out, name),
                *map(str, words), "--", *argv]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, **package_env(build_dir), OMP_NUM_THREADS="1"))
    head = program.removesuffix(".py") + " "
    for line in done.stdout.splitlines():
        if any(head + begin in line for begin in "[{"):
            return json.loads(line.split(head, 1)[1])
    raise BenchError(f"{name}: {done.stdout.strip()}")


def start_servers(group, build_dir, where, workers, servers):
    """Servers without a model; returns what the workers of the Python package need to know."""
    init = where.init_method("server")
    for s in range(servers):
        group.start_part(where, build_dir, "server", s, [
            "--rank", str(s), "--world-size", str(workers), "--servers", str(servers), "--init-method", init,
            *(word for key in PACKAGE_SETTINGS for word in ("--set", key))])
    return {"PS_INIT_METHOD": init, "PS_SERVERS": str(servers), **package_env(build_dir)}


def ps_name(codec):
    return "ps" if codec == "none" else f"ps {codec}"


def ddp_name(hook):
    return {"none": "DDP", "fp16": "DDP fp16"}.get(hook, f"DDP {hook}").replace("powersgd", "PowerSGD ")


class Training:
    """One round, with its own seed of weights and dropout: so the spread of the accuracies
    shows how much one accuracy can vary by chance."""

    def __init__(self, build_dir, config, keys, where, workers, servers, out, number):
        self.build_dir, self.config, self.where = build_dir, config, where
        self.workers, self.servers = workers, servers
        self.out = os.path.join(os.path.abspath(out), "training")
        self.seed = JobConfig.load(build_dir, config, keys)["train.seed"] + number
        self.keys = [*keys, f"train.seed={self.seed}"]
        self.job = JobConfig.load(build_dir, config, [*self.keys, f"job.workers={workers}"])

    def _sets(self, *more):
        # Emulated hosts are this machine's own.
        return [w for key in ["net.insecure=true", *self.keys, *more] for w in ("--set", key)]

    def _start(self, group, kind, rank, *words):
        group.start_part(self.where, self.build_dir, kind, rank, ["--config", self.config, *words])

    def ours(self, name, servers, *keys):
        """A job with these keys; without servers its first worker is the coordinator."""
        out = os.path.join(self.out, name.replace(" ", "-"))
        init = self.where.init_method("server" if servers else "worker")
        words = ["--world-size", str(self.workers), "--servers", str(servers), "--init-method", init, *self._sets(*keys)]
        with Group(TIMEOUT_S) as group:
            for s in range(servers):
                self._start(group, "server", s, "--rank", str(s), *words)
            for r in range(self.workers):
                self._start(group, "worker", r, "--rank", str(r), "--out", out, "--overwrite", *words)
            group.finish()
        return self._timed(runs.read_summary(out))

    def alone(self):
        """Runs as many workers at the same time, each as a job of its own."""
        outs = [os.path.join(self.out, f"alone-{r}") for r in range(self.workers)]
        steps = min(ALONE_STEPS, self.job["train.steps"] or ALONE_STEPS)
        with Group(TIMEOUT_S) as group:
            for r, out in enumerate(outs):
                self._start(group, "worker", r, "--out", out, "--overwrite", "--world-size", "1", "--servers", "0",
                            *self._sets("exchange.name=none", f"train.steps={steps}", "train.eval_every=0"))
            group.finish()
        found = [self._timed(runs.read_summary(out)) for out in outs]
        slowest = max(found, key=lambda f: f["step_ms_p50"])
        return dict(slowest, test_accuracy=None, samples_per_second=sum(f["samples_per_second"] or 0 for f in found))

    def _timed(self, summary):
        if summary["step_ms_p50"]:
            return summary
        raise BenchError(f"{summary['steps']} steps, and train.warmup_steps is "
                         f"{self.job['train.warmup_steps']}: nothing was measured; raise "
                         "train.epochs or data.samples")

    def ddp(self, python, hook):
        with Group(TIMEOUT_S) as group:
            return self._pytorch(group, python, f"ddp-{hook}", {}, "--hook", hook)

    def package(self, python, codec):
        """PyTorch's arithmetic and the Python package's Optimizer, whose step the servers make."""
        with Group(TIMEOUT_S) as group:
            env = start_servers(group, self.build_dir, self.where, self.workers, self.servers)
            return self._pytorch(group, python, f"package-{codec}", env, "--package", codec)

    def _pytorch(self, group, python, name, env, *words):
        """Adds ddp_job.py's ranks to the group, and waits for its end. Gives rank 0's summary, with the
        processor time of all parts in a step."""
        out = os.path.join(self.out, name)
        runs.start_pytorch(group, self.where, python, out, self.job, ["--marks", *words], env)
        marks = Marks(group)
        group.finish(marks)
        summary = runs.read_summary(out)
        steps = summary["steps"] - self.job["train.warmup_steps"]
        return dict(self._timed(summary), cpu_ms_per_step=marks.seconds() * 1e3 / steps)

    def _beside_tcp(self, summary, servers):
        """A step alone while plain TCP carries a run's bytes at its pace between the same
        hosts: the processor time that moving them takes from the arithmetic, in any process."""
        period_ms = summary["step_ms_p50"]
        enough = int(TIMEOUT_S * 1000 / period_ms)  # it is ended before
        with Group(TIMEOUT_S) as group:
            peers.start_tcp(group, self.build_dir, self.workers, servers,
                            int(summary["bytes_sent_per_step"]), enough, self.where, period_ms)
            alone = self.alone()
            if any(part.popen.poll() is not None for part in group.parts):
                raise BenchError("plain TCP ended before the workers beside it")
        return alone["step_ms_p50"]

    def _limits(self, summary, servers, alone_ms):
        """No exchange of these bytes can be faster than plain TCP, and no worker than one that
        exchanges nothing while plain TCP carries them on the same machine."""
        step_ms = summary["step_ms_p50"]
        line_ms = peers.tcp_exchange(self.build_dir, self.workers, servers,
                                     int(summary["bytes_sent_per_step"]), 10,
                                     self.where)["ms_p50"]
        beside_ms = self._beside_tcp(summary, servers)
        return {"alone_ms": alone_ms, "line_ms": line_ms, "beside_tcp_ms": beside_ms,
                "step_to_alone": step_ms / alone_ms, "beside_tcp_to_alone": beside_ms / alone_ms,
                "step_to_limit": step_ms / max(beside_ms, line_ms)}

    def modes(self, codecs, allreduce, python, hooks):
        """(name, figures) of each: the codecs, all-reduce, alone, DDP where python has torch."""
        alone = self.alone()
        yield "alone", self._figures(alone)
        ours = [(ps_name(c), self.servers, ("exchange.name=ps", f"exchange.codec={c}")) for c in codecs]
        if allreduce:
            ours.append(("all-reduce", 0, ("exchange.name=allreduce",)))
        for name, servers, keys in ours:
            summary = self.ours(name, servers, *keys)
            yield name, self._figures(summary, self._limits(summary, servers, alone["step_ms_p50"]))
        for hook in ["none", *hooks] if python else []:
            yield ddp_name(hook), self._figures(self.ddp(python, hook))

    def _figures(self, summary, limits=None):
        figures = {key: summary.get(key) for key in KEYS}
        return dict(figures, **(limits or dict.fromkeys(LIMITS)), seed=self.seed)


def medians(rows):
    """Per number of workers, rate and mode: medians with extremes, and the ratio to DDP by
    rounds."""
    ddp = {(r["workers"], r["mbit"], r["round"]): r["samples_per_second"] for r in rows if r["mode"] == "DDP"}
    for r in rows:
        base = ddp.get((r["workers"], r["mbit"], r["round"]))
        r["to_ddp"] = r["samples_per_second"] / base if base and r["samples_per_second"] else None
    return stats.medians(rows, ("workers", "mbit", "mode"), (*KEYS, *LIMITS, "to_ddp"))


def table(rows):
    return harness.table(
        ["", "workers", "Mbit/s", "samples/s", "step ms", "sent MB", "to DDP", "x alone", "TCP beside", "x limit", "accuracy"],
        [[r["mode"], str(r["workers"]), str(r["mbit"]), harness.cell(r["samples_per_second"], "{:,.0f}"),
          harness.cell(r["step_ms_p50"], "{:.1f}"), harness.cell(r["bytes_sent_per_step"], "{:.3f}", 1e-6),
          harness.span(r["to_ddp"]), harness.cell(r["step_to_alone"]), harness.cell(r["beside_tcp_to_alone"]),
          harness.span(r["step_to_limit"]), harness.span(r["test_accuracy"], "{:.4f}")] for r in rows])
