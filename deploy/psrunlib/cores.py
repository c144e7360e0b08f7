"""How many cores psrun may use: as common/base/cpu_quota.h counts them for the programs."""
import os


def usable(cgroups="/proc/self/cgroup", mount="/sys/fs/cgroup"):
    """Cores that this process is bound to, and no more than its cgroup's quota of time; at least 1."""
    quotas = [len(os.sched_getaffinity(0))]
    for line in _read(cgroups).splitlines():  # "4:cpu,cpuacct:/path", "0::/path"
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            quotas += _quotas(mount + "/cpu" * bool(controllers), path.strip("/"))
    return max(1, int(min(quotas)))


def _quotas(top, path):
    """Of a cgroup and those above it, up to the one that is mounted: in a container, the path may be
    the host's."""
    while True:
        folder = os.path.join(top, path)
        words = _read(f"{folder}/cpu.max").split() or (
            _read(f"{folder}/cpu.cfs_quota_us") + _read(f"{folder}/cpu.cfs_period_us")).split()
        if len(words) == 2 and words[0] not in ("max", "-1"):
            yield int(words[0]) / int(words[1])
        if not path:
            return
        path = os.path.dirname(path)


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:  # names of cgroups may be any bytes
            return f.read()
    except OSError:
        return ""
