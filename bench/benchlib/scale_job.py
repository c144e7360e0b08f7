"""One job of many tiny members on this machine: what each member costs.

The members are real servers and ps-bench-exchange. A server has one shard, and every shard has one
chunk, so that a step sends workers x servers messages each way. Processor time is the scheduler's:
other load on the machine makes a case longer, but not the figures, except the start-up's seconds.
"""
import os
import resource
import tempfile
import time

from . import exchange_job
from .exchange_job import Exchange
from .job_config import BenchError
from .processes import Group
from .stats import percentile

CHUNK = 4096 * 4  # bytes: the smallest chunk
COORDINATOR = "coordinator"
FDS_PER_PART = 3  # that this process keeps for a part: stdin, stdout, stderr
BYTES_PER_PART = 24 << 20  # more than a member takes: cases that do not fit are refused
HEARTBEAT_MS = 2000  # with the default of 500, hundreds of processes on a few busy cores miss beats
SETTINGS = [f"net.heartbeat_ms={HEARTBEAT_MS}", "net.join_timeout_ms=110000", "net.dead_after_ms=100000",
            "net.step_timeout_ms=100000"]


def why_not(workers, servers):
    """None if the machine has room for the case, else what is missing."""
    parts = workers + servers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FDS_PER_PART * parts + 64
    if need > soft:
        if need > hard:
            return f"{parts} parts need {need} open files here, the limit is {hard} (ulimit -Hn)"
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo", encoding="ascii") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
    if parts * BYTES_PER_PART > free:
        return f"{parts} parts may need {parts * BYTES_PER_PART >> 20} MiB, {free >> 20} are available"
    return None


def threads_cpu(pid):
    """Seconds of processor time by the threads' name."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as f:
                name = f.read().strip()
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
                found[name] = found.get(name, 0) + int(f.read().split()[0]) * 1e-9
        except (OSError, ValueError):
            pass  # it has just ended
    return found


def private_bytes(pid):
    """What the process has for itself, and its part of what it shares."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))


class Sample:
    """The processor time of all parts at one moment."""

    def __init__(self, servers, workers):
        self.at = time.monotonic()
        self.servers = [threads_cpu(p.popen.pid) for p in servers]
        self.workers = [threads_cpu(p.popen.pid) for p in workers]


def _middle(values):
    return percentile(values, 0.5)


def between(before, after, units):
    """Processor time in microseconds per unit (a second, or a step)."""
    def used(a, b):
        return [sum(y.values()) - sum(x.values()) for x, y in zip(a, b)]

    scale = 1e6 / units
    servers, workers = used(before.servers, after.servers), used(before.workers, after.workers)
    thread = after.servers[0].get(COORDINATOR, 0) - before.servers[0].get(COORDINATOR, 0)
    others = _middle(servers[1:]) if len(servers) > 1 else 0
    return {"coordinator": max(0, servers[0] - others) * scale, "coordinator_thread": thread * scale,
            "server": others * scale, "worker": _middle(workers) * scale,
            "all": (sum(servers) + sum(workers)) * scale}


class _Watch:
    """Takes the samples at rank 0's marks; the first is followed by an idle time."""

    def __init__(self, servers, workers, idle_s):
        self.servers, self.workers, self.idle_s = servers, workers, idle_s
        self.began = time.monotonic()
        self.samples, self.memory, self.fds = [], {}, {}

    def sample(self):
        self.samples.append(Sample(self.servers, self.workers))

    def _sizes(self):
        for role, parts in (("server", self.servers), ("worker", self.workers)):
            pids = [p.popen.pid for p in parts]
            self.memory[role] = _middle([private_bytes(p) for p in pids[1:] or pids])
            self.fds[role] = max(len(os.listdir(f"/proc/{p}/fd")) for p in pids)
        self.memory["coordinator"] = private_bytes(self.servers[0].popen.pid) - self.memory["server"]

    def __call__(self, part, line):
        if line != "mark":
            return
        self.sample()
        if len(self.samples) == 1:
            self._sizes()
            self.sample()
            time.sleep(self.idle_s)
            self.sample()
        part.popen.stdin.write("go\n")
        part.popen.stdin.flush()


def run(build_dir, workers, servers, steps, idle_s, timeout_s, keys=()):
    """Runs one case; returns its figures. Raises BenchError, also after timeout_s."""
    why = why_not(workers, servers)
    if why:
        raise BenchError(why)
    job = Exchange(servers * CHUNK, workers, servers, 1, "none", "off", CHUNK, steps, 1,
                   [*SETTINGS, *keys])
    with tempfile.TemporaryDirectory(prefix="pstrain-scale-") as folder, Group(timeout_s) as group:
        config = os.path.join(folder, "scale.yaml")
        job.write(config)
        began = time.monotonic()
        worker_parts = exchange_job.start(group, job, build_dir, config, exchange_job.Local(), [])
        watch = _Watch(group.parts[:servers], worker_parts, idle_s)
        watch.began = began
        group.finish(watch)
        results = [w.result() for w in worker_parts]
    if len(watch.samples) != 4:
        raise BenchError("the workers did not time their steps")
    return figures(job, watch, results)


def beside(step, idle, seconds):
    """What a step costs more than idling for as long: heartbeats go on during steps."""
    return {who: max(0, cost - idle[who] * seconds) for who, cost in step.items()}


def figures(job, watch, results):
    begun, idle_from, idle_to, end = watch.samples
    idle = between(idle_from, idle_to, idle_to.at - idle_from.at)
    step = between(idle_to, end, job.steps)
    nothing = Sample([], [])
    nothing.servers = [{} for _ in begun.servers]
    nothing.workers = [{} for _ in begun.workers]
    return {"workers": job.workers, "servers": job.servers, "members": job.workers + job.servers,
            "startup_s": begun.at - watch.began,
            "startup_cpu_us": between(nothing, begun, 1),
            "idle_cpu_us_per_s": idle,
            "step_cpu_us": beside(step, idle, (end.at - idle_to.at) / job.steps),
            "step_ms": 1e-6 * percentile([ns for r in results for ns in r["step_ns"]], 0.5),
            "memory_bytes": watch.memory, "descriptors": watch.fds,
            "chunks": results[0]["chunks"]}
