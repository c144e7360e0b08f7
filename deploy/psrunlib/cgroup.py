"""What this process's cgroup has: cores, as common/base/cpu_quota.h counts them for the programs, and memory."""
import os
import re

LACKS_MEMORY = " (it seems by the kernel: no memory was left)"  # of a process that is killed, when there is one more of them


def cores(cgroups="/proc/self/cgroup", mount="/sys/fs/cgroup"):
    """Cores that this process is bound to, and no more than its cgroup's quota of time; at least 1."""
    quotas = [len(os.sched_getaffinity(0))]
    for line in _read(cgroups).splitlines():  # "4:cpu,cpuacct:/path", "0::/path"
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            quotas += _quotas(mount + "/cpu" * bool(controllers), path.strip("/"))
    return max(1, int(min(quotas)))


def killed_for_memory(cgroups="/proc/self/cgroup", mount="/sys/fs/cgroup", whole="/proc/vmstat"):
    """How many of its processes the kernel has killed up to now because no memory was left, the cgroup's or the host's; of
    the host's processes where there is no such cgroup."""
    files = [whole]
    for line in _read(cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            name = "memory/{}/memory.oom_control" if controllers else "{}/memory.events"
            files.insert(0, os.path.join(mount, name.format(path.strip("/"))))
    counts = (re.search(r"^oom_kill (\d+)$", _read(file), re.MULTILINE) for file in files)
    return next((int(count[1]) for count in counts if count), 0)


# killed_for_memory for a host that may lack Python: a function of sh.
IN_SH = r"""killed_for_memory() {{
    for file in $(sed -n 's|^0::\(.*\)|{mount}\1/memory.events|p
                          s|^[0-9]*:\([^:]*,\)*memory\(,[^:]*\)*:\(.*\)|{mount}/memory\3/memory.oom_control|p' {cgroups}) {whole}; do
        sed -n 's/^oom_kill //p' "$file" 2>/dev/null | grep . && return
    done
}}
"""


def in_sh(cgroups="/proc/self/cgroup", mount="/sys/fs/cgroup", whole="/proc/vmstat"):
    return IN_SH.format(cgroups=cgroups, mount=mount, whole=whole)


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
