"""Others with the same bytes: Gloo through PyTorch, and plain TCP."""
import os
import shutil

from .job_config import ROOT
from .netns import Local
from .processes import Group
from .stats import of_times


def gloo(python, workers, nbytes, steps, warmup=3, where=None, timeout_s=300):
    """Figures of torch's all-reduce; python: one that can import torch."""
    where = where or Local()
    script, init = os.path.join(ROOT, "bench", "gloo_peer.py"), where.init_method("worker")
    env = {"GLOO_SOCKET_IFNAME": where.interface, "OMP_NUM_THREADS": "1"}
    with Group(timeout_s) as group:
        for r in range(workers):
            group.start(f"Gloo rank {r}", [*where.prefix("worker", r), shutil.which(python), script, init, str(r),
                                           str(workers), str(steps), str(warmup), str(nbytes)], env)
        group.finish()
        return of_times(ns for p in group.parts for ns in p.result()["step_ns"])


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
        group.start(f"raw server {s}", [*where.prefix("server", s), program, "server",
                                        str(addresses[s][1]), str(workers), part, str(steps)])
    return [group.start(f"raw worker {r}", [
        *where.prefix("worker", r), program, "worker" if servers else "mesh", part, str(steps), pace,
        *([] if servers else [str(r)]), *hosts]) for r in range(workers)]


def tcp_exchange(build_dir, workers, servers, nbytes, steps, where=None, timeout_s=300):
    """The figures of start_tcp's exchange without a period, so at full speed."""
    with Group(timeout_s) as group:
        ranks = start_tcp(group, build_dir, workers, servers, nbytes, steps, where or Local())
        group.finish()
        return of_times(t for r in ranks for t in r.result()["ns"][1:])  # the first step connects as well


def loopback_bytes_per_second(build_dir, nbytes=64 << 20):
    """Of TCP between two processes of this machine, in both directions at once."""
    return nbytes / (tcp_exchange(build_dir, 1, 1, nbytes, 6)["ms_p50"] * 1e-3)
