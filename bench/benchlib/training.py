"""Whole training on given hosts: through each codec, PyTorch DDP, and without exchange."""
import os
import shutil

from . import peers, runs
from .job_config import ROOT, BenchError, JobConfig
from .processes import Group
from .stats import spread

TIMEOUT_S = 1800
KEYS = ("samples_per_second", "step_ms_p50", "step_ms_p99", "test_accuracy", "train_loss",
        "bytes_sent_per_step", "bytes_received_per_step", "compression_ratio")


class Training:
    def __init__(self, build_dir, config, keys, where, workers, servers, out):
        self.build_dir, self.config, self.keys = build_dir, config, list(keys)
        self.where, self.workers, self.servers = where, workers, servers
        self.out = os.path.join(os.path.abspath(out), "training")
        self.job = JobConfig.load(build_dir, config, [*self.keys, f"job.workers={workers}"])

    def _sets(self, *more):
        return [w for key in [*self.keys, *more] for w in ("--set", key)]

    def _worker(self, group, rank, out, words):
        group.start(f"worker {rank}", [
            *self.where.prefix("worker", rank), os.path.join(self.build_dir, "bin", "ps-worker"),
            "--config", self.config, "--out", out, "--overwrite", *words])

    def ps(self, name, codec):
        out, init = os.path.join(self.out, name), self.where.init_method()
        words = ["--world-size", str(self.workers), "--servers", str(self.servers),
                 "--init-method", init, *self._sets(f"exchange.codec={codec}", "exchange.name=ps")]
        with Group(TIMEOUT_S) as group:
            for s in range(self.servers):
                group.start(f"server {s}", [
                    *self.where.prefix("server", s),
                    os.path.join(self.build_dir, "bin", "ps-server"), "--config", self.config,
                    "--rank", str(s), *words])
            for r in range(self.workers):
                self._worker(group, r, out, ["--rank", str(r), *words])
            group.finish()
        return runs.read_summary(out)

    def alone(self, steps):
        """As many workers at the same time, each a job of its own."""
        outs = [os.path.join(self.out, f"alone-{r}") for r in range(self.workers)]
        with Group(TIMEOUT_S) as group:
            for r, out in enumerate(outs):
                self._worker(group, r, out, ["--world-size", "1", "--servers", "0", *self._sets(
                    "exchange.name=none", f"train.steps={steps}", "train.eval_every=0")])
            group.finish()
        found = [runs.read_summary(out) for out in outs]
        slowest = max(found, key=lambda f: f["step_ms_p50"])
        return dict(slowest, samples_per_second=sum(f["samples_per_second"] or 0 for f in found),
                    test_accuracy=None)

    def ddp(self, python):
        out = os.path.join(self.out, "ddp")
        os.makedirs(out, exist_ok=True)
        described = os.path.join(out, "config.json")
        self.job.write(described)
        host, port = self.where.address("worker", 0)
        env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(self.workers),
               "GLOO_SOCKET_IFNAME": "eth0",
               "OMP_NUM_THREADS": str(max(1, self.job["train.threads"]))}
        script = os.path.join(ROOT, "bench", "ddp_job.py")
        with Group(TIMEOUT_S) as group:
            for r in range(self.workers):
                group.start(f"DDP rank {r}", [
                    *self.where.prefix("worker", r), shutil.which(python), script, "--config",
                    described, "--out", out], dict(env, RANK=str(r), LOCAL_RANK=str(r)))
            group.finish()
        return runs.read_summary(out)

    def line_ms(self, nbytes):
        """What the links take for so many bytes each way between a worker and all servers."""
        return peers.tcp_exchange(self.build_dir, self.workers, self.servers, int(nbytes), 10,
                                  self.where)["ms_p50"]

    def beside_tcp(self, summary):
        """A step alone while plain TCP carries a run's bytes at its pace between the same
        hosts: what moving them takes from the arithmetic, whoever moves them."""
        period_ms = summary["step_ms_p50"]
        enough = int(TIMEOUT_S * 1000 / period_ms)  # it is ended before
        with Group(TIMEOUT_S) as group:
            peers.start_tcp(group, self.build_dir, self.workers, self.servers,
                            int(summary["bytes_sent_per_step"]), enough, self.where, period_ms)
            alone = self.alone(summary["steps"])
            if any(part.popen.poll() is not None for part in group.parts):
                raise BenchError("plain TCP ended before the workers beside it")
        return alone["step_ms_p50"]

    def modes(self, codecs, python, tcp_beside=False):
        """(name, figures) of each: the codecs, alone, DDP where python has torch."""
        found = [(codec, self.ps(codec, codec)) for codec in codecs]
        if not found[0][1]["step_ms_p50"]:
            raise BenchError(f"{found[0][1]['steps']} steps, and train.warmup_steps is "
                             f"{self.job['train.warmup_steps']}: nothing was measured; raise "
                             "train.epochs or data.samples")
        alone = self.alone(found[0][1]["steps"])
        lines = {name: self.line_ms(summary["bytes_sent_per_step"]) for name, summary in found}
        beside = {name: self.beside_tcp(summary) for name, summary in found} if tcp_beside else {}
        if python:
            found.append(("DDP", self.ddp(python)))
        for name, summary in [*found, ("alone", alone)]:
            figures = {k: summary.get(k) for k in KEYS}
            line, tcp = lines.get(name), beside.get(name)
            to_limit = summary["step_ms_p50"] / max(alone["step_ms_p50"], line) if line else None
            yield name, dict(figures, line_ms=line, alone_ms=alone["step_ms_p50"],
                             step_to_limit=to_limit, beside_tcp_ms=tcp,
                             beside_tcp_to_alone=tcp / alone["step_ms_p50"] if tcp else None,
                             seed=self.job["train.seed"])


def medians(rows):
    """Per rate and mode: medians with extremes, and the ratio to DDP by rounds."""
    ddp = {(r["mbit"], r["round"]): r["samples_per_second"] for r in rows if r["mode"] == "DDP"}
    groups = {}
    for r in rows:
        base = ddp.get((r["mbit"], r["round"]))
        r["to_ddp"] = r["samples_per_second"] / base if base and r["samples_per_second"] else None
        groups.setdefault((r["mbit"], r["mode"]), []).append(r)
    return [dict({k: spread([r[k] for r in found]) for k in (*KEYS, "to_ddp", "step_to_limit",
                                                             "line_ms", "alone_ms",
                                                             "beside_tcp_ms",
                                                             "beside_tcp_to_alone")},
                 mbit=mbit, mode=mode, rounds=len(found))
            for (mbit, mode), found in groups.items()]


def _cell(values, form):
    return form.format(values["median"]) if values else "-"


def table(rows):
    head = ("Mbit/s", "training", "samples/s", "step ms", "sent MB", "ratio to DDP",
            "to the limit", "TCP beside", "accuracy")
    lines = ["".join(f"{h:>14}" for h in head)]
    for r in rows:
        sent = r["bytes_sent_per_step"]
        cells = (str(r["mbit"]), r["mode"], _cell(r["samples_per_second"], "{:,.0f}"),
                 _cell(r["step_ms_p50"], "{:.1f}"),
                 f"{sent['median'] * 1e-6:.3f}" if sent else "-", _cell(r["to_ddp"], "{:.2f}"),
                 _cell(r["step_to_limit"], "{:.3f}"),
                 _cell(r["beside_tcp_to_alone"], "{:.3f}"), _cell(r["test_accuracy"], "{:.4f}"))
        lines.append("".join(f"{c:>14}" for c in cells))
    return lines
