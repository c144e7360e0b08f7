"""Others with the same bytes: Gloo through PyTorch, and plain TCP."""
import os
import shutil

from .job_config import ROOT
from .netns import Local
from .processes import Group
from .stats import of_times

TIMEOUT_S = 300


def gloo(python, workers, nbytes, steps, warmup=3, where=None):
    """Figures of torch's all-reduce; python: one that can import torch."""
    where = where or Local()
    script, init = os.path.join(ROOT, "bench", "gloo_peer.py"), where.init_method("worker")
    env = {"GLOO_SOCKET_IFNAME": where.interface, "OMP_NUM_THREADS": "1"}
    with Group(TIMEOUT_S) as group:
        for r in range(workers):
            group.start(f"Gloo rank {r}", [*where.prefix("worker", r), shutil.which(python), script, init, str(r),
                                           str(workers), str(steps), str(warmup), str(nbytes)], env)
        group.finish()
        return of_times(ns for p in group.parts for ns in p.result()["step_ns"])


def start_tcp(group, build_dir, workers, servers, nbytes, steps, where, period_ms=0):
    """Starts a raw full-duplex exchange: every worker sends nbytes and receives as many, all
    at once, every period_ms. It exchanges a part of them with each server or, without servers,
    with each other worker, as all-reduce does. Returns the workers' parts."""
    program, part = os.path.join(build_dir, "bin", "ps-bench-raw"), str(nbytes // (servers or workers - 1))
    kind, n = ("server", servers) if servers else ("worker", workers)
    addresses = [where.address(kind, i) for i in range(n)]
    hosts = [f"{host}:{port}" for host, port in addresses]

    def start(kind, rank, port, accepted, *to):
        return group.start(f"raw {kind} {rank}", [*where.prefix(kind, rank), program, kind, part, str(steps),
                                                  str(int(period_ms * 1000)), str(port), str(accepted), *to])
    for s in range(servers):
        start("server", s, addresses[s][1], workers)
    if servers:
        return [start("worker", r, 0, 0, *hosts) for r in range(workers)]
    return [start("worker", r, addresses[r][1], workers - 1 - r, *hosts[:r]) for r in range(workers)]


def tcp_exchange(build_dir, workers, servers, nbytes, steps, where=None):
    """The figures of start_tcp's exchange without a period, so at full speed."""
    with Group(TIMEOUT_S) as group:
        ranks = start_tcp(group, build_dir, workers, servers, nbytes, steps, where or Local())
        group.finish()
        return of_times(t for r in ranks for t in r.result()["ns"][1:])  # the first step connects as well


def loopback_bytes_per_second(build_dir):
    """Of TCP between two processes of this machine, in both directions at once."""
    nbytes = 64 << 20
    return nbytes / (tcp_exchange(build_dir, 1, 1, nbytes, 6)["ms_p50"] * 1e-3)
