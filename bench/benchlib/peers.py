"""Other programs with the same bytes: Gloo through PyTorch, MPI; and the raw limits."""
import json
import os
import shutil
import subprocess
import tempfile

from .exchange_job import Local
from .job_config import ROOT, BenchError
from .processes import Group
from .stats import percentile, spread


def summary(ns):
    ms = [v * 1e-6 for v in ns]
    return {"ms": spread(ms), "ms_p50": percentile(ms, 0.5), "ms_p99": percentile(ms, 0.99)}


def gloo(python, workers, sizes, steps, warmup=3, where=None, interface="lo", timeout_s=300):
    """{bytes: figures} of torch's all-reduce; python: one that can import torch."""
    where = where or Local()
    script, init = os.path.join(ROOT, "bench", "gloo_peer.py"), where.init_method("worker")
    env = {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
    with Group(timeout_s) as group:
        for r in range(workers):
            group.start(f"Gloo rank {r}", [
                *where.prefix("worker", r), shutil.which(python), script, init, str(r),
                str(workers), str(steps), str(warmup), *map(str, sizes)], env)
        group.finish()
        ranks = [p.result() for p in group.parts]
    return {n: summary([t for rank in ranks for t in rank[str(n)]]) for n in sizes}


def mpi_missing():
    missing = [name for name in ("mpirun", "mpicc") if not shutil.which(name)]
    return f"no {' and no '.join(missing)}" if missing else None


def mpi(workers, sizes, steps, warmup=3, timeout_s=300):
    """{bytes: figures} of MPI's all-reduce on this host."""
    with tempfile.TemporaryDirectory(prefix="pstrain-mpi-") as folder:
        program = os.path.join(folder, "mpi_peer")
        subprocess.run(["mpicc", "-O2", "-o", program, os.path.join(ROOT, "bench", "mpi_peer.c")],
                       check=True)
        argv = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(workers)]
        if os.geteuid() == 0:
            argv.append("--allow-run-as-root")
        try:
            done = subprocess.run([*argv, program, str(steps), str(warmup), *map(str, sizes)],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"mpirun took longer than {timeout_s} s") from error
    if done.returncode != 0:
        raise BenchError(f"mpirun: {done.stderr.strip().splitlines()[-1:]}")
    return {int(n): summary(ns) for n, ns in json.loads(done.stdout).items()}


def raw(build_dir, *words, timeout_s=300):
    """Returns the nanoseconds that ps-bench-raw prints for these arguments."""
    argv = [os.path.join(build_dir, "bin", "ps-bench-raw"), *map(str, words)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout_s)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip() or f"{' '.join(argv)} ended with {done.returncode}")
    return json.loads(done.stdout)["ns"]


def memory_rates(build_dir, nbytes=64 << 20):
    """Bytes/s of memcpy and of summing (of one operand), medians."""
    return {name: nbytes / (percentile(raw(build_dir, name, nbytes), 0.5) * 1e-9)
            for name in ("memcpy", "sum")}


def start_tcp(group, build_dir, workers, servers, nbytes, steps, where, period_ms=0):
    """Starts a raw full-duplex exchange: every worker sends nbytes and receives as many, all
    at once, every period_ms. It exchanges a part of them with each server or, without servers,
    with each other worker, as all-reduce does. Returns the workers' parts."""
    program, pace = os.path.join(build_dir, "bin", "ps-bench-raw"), str(int(period_ms * 1000))
    part = str(nbytes // (servers or workers - 1))
    addresses = [where.address("server", s) for s in range(servers)] or [
        where.address("worker", r) for r in range(workers)]
    hosts = [f"{host}:{port}" for host, port in addresses]
    for s in range(servers):
        group.start(f"raw server {s}", [*where.prefix("server", s), program, "tcp-server",
                                        str(addresses[s][1]), str(workers), part, str(steps)])
    kind = "tcp-worker" if servers else "tcp-mesh"
    return [group.start(f"raw worker {r}", [
        *where.prefix("worker", r), program, kind, part, str(steps), pace,
        *([] if servers else [str(r)]), *hosts]) for r in range(workers)]


def tcp_exchange(build_dir, workers, servers, nbytes, steps, where=None, timeout_s=300):
    """The figures of start_tcp's exchange without a period, so at full speed."""
    with Group(timeout_s) as group:
        ranks = start_tcp(group, build_dir, workers, servers, nbytes, steps, where or Local())
        group.finish()
        times = [r.result()["ns"][1:] for r in ranks]  # the first step connects as well
    return summary([t for rank in times for t in rank])
