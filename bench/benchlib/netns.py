"""Emulated hosts: a network namespace each, veth pairs to a bridge, tbf both ways.

Everything lives in namespaces named pstrain-<pid>-<random>-<host>, the bridge too: when
they are deleted, all links go with them. That happens at the end of a `with`, at exit and
on SIGTERM. The next benchmark, or --sweep, deletes what a killed benchmark has left.
"""
import atexit
import contextlib
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess

from psrunlib.ports import free_port

from .harness import Cannot
from .job_config import BenchError

NETWORK = "10.77.0"  # and a byte for each host
NAME = re.compile(r"^pstrain-(\d+)-[0-9a-f]+-\w+$")
BURST = 80_000  # bytes: one segmentation-offload packet, and no more credit after a pause
QUEUE_MS = 100  # what a link buffers: with 20 the incast of 4 senders loses packets and waits
PAYLOAD = 1448 / 1514  # of an Ethernet frame, as tbf counts it: the rest are headers
CONGESTION = "cubic"  # Linux's own default, whatever this machine prefers


def _ip(*words, check=True):
    return _run("ip", *words, check=check)


def _run(*argv, check=True):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise BenchError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def why_not():
    """None if hosts can be emulated, else the reason and how to mend it."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("taskset", "util-linux")):
        if not shutil.which(tool):
            return f"no program {tool}: install {package}"
    if os.geteuid() != 0:
        return "network namespaces need root: start it with sudo"
    name = f"pstrain-{os.getpid()}-{secrets.token_hex(3)}-try"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "dev", "try0", "type", "veth", "peer", "name", "try1")
        _tc(name, "try0", 100)
    except BenchError as error:
        return f"this machine cannot make links of a given rate ({error}); a container needs --privileged"
    finally:
        _ip("netns", "del", name, check=False)
    return None


def need():
    reason = why_not()
    if reason:
        raise Cannot(reason)


def _tc(namespace, device, mbit):
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", str(BURST),
         "latency", f"{QUEUE_MS}ms")


def ours():
    """All namespaces of benchmarks: (namespace, pid of the benchmark that made it)."""
    names = [line.split()[0] for line in _ip("netns", "list", check=False).splitlines() if line]
    return [(n, int(NAME.match(n).group(1))) for n in names if NAME.match(n)]


def _delete(namespace):
    for pid in _ip("netns", "pids", namespace, check=False).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    _ip("netns", "del", namespace, check=False)


def sweep():
    """Deletes the namespaces that dead benchmarks have left; returns their names."""
    dead = [name for name, pid in ours() if not os.path.exists(f"/proc/{pid}")]
    for name in dead:
        _delete(name)
    return dead


class Where:
    """Where parts run."""

    def init_method(self, kind="server"):
        host, port = self.address(kind, 0)
        return f"tcp://{host}:{port}"


class Local(Where):
    """All on this host."""

    interface = "lo"

    def prefix(self, kind, rank):
        return []

    enter = prefix

    def for_psrun(self, folder, bin_dir, keys=()):
        return [], {}

    def address(self, kind, rank):
        return "127.0.0.1", free_port()


def hosts(mbit, kinds, guests=None):
    """For a `with`: Hosts on links of that rate; without a rate this host."""
    if not mbit:
        return contextlib.nullcontext(Local())
    need()
    return Hosts(mbit, kinds, guests)


class Hosts(Where):
    """kinds: {"worker": 4, "server": 4}: a host for each, all on one switch. guests: which
    shares another's host: {("server", 3): ("worker", 0)}."""

    interface = "eth0"

    def __init__(self, mbit, kinds, guests=None):
        self.mbit, self.guests = mbit, guests or {}
        self.owner = os.getpid()
        self.prefix_name = f"pstrain-{self.owner}-{secrets.token_hex(3)}"
        self.hosts, self.made, self.next_port = {}, [], 29500
        for kind, n in kinds.items():
            for rank in range(n):
                if (kind, rank) not in self.guests:
                    self.hosts[kind, rank] = f"{NETWORK}.{len(self.hosts) + 1}"

    def __enter__(self):
        atexit.register(self.close)
        self.old_handler = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(143)))
        try:
            self._make("switch")
            _ip("-n", self.made[0], "link", "add", "dev", "br0", "type", "bridge")
            _ip("-n", self.made[0], "link", "set", "br0", "up")
            for key, address in self.hosts.items():
                self._host(key, address)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()
        atexit.unregister(self.close)
        signal.signal(signal.SIGTERM, self.old_handler)

    def _make(self, name):
        full = f"{self.prefix_name}-{name}"
        self.made.append(full)  # first: an interruption behind the command cannot lose it
        _ip("netns", "add", full)
        return full

    def _host(self, key, address):
        short, switch = f"{key[0][0]}{key[1]}", self.made[0]
        name = self._make(short)
        _ip("link", "add", "dev", "eth0", "netns", name, "type", "veth", "peer", "name", short, "netns", switch)
        _ip("-n", switch, "link", "set", short, "master", "br0", "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        # By the route: the namespace's own setting takes only what the machine allows to all.
        _ip("-n", name, "route", "change", f"{NETWORK}.0/24", "dev", "eth0", "congctl", CONGESTION)
        _tc(name, "eth0", self.mbit)    # what the host sends
        _tc(switch, short, self.mbit)   # towards the host

    def home(self, kind, rank):
        return self.guests.get((kind, rank), (kind, rank))

    def rate(self, kind, rank, inward, mbit):
        """Changes the rate of a host's link towards it, or of what it sends."""
        name = f"{kind[0]}{rank}"
        _tc(self.made[0] if inward else f"{self.prefix_name}-{name}", name if inward else "eth0", mbit)

    def plug(self, kind, rank, plugged):
        """Pulls a host's cable out of the switch, or plugs it in: without it packets vanish."""
        kind, rank = self.home(kind, rank)
        _ip("-n", self.made[0], "link", "set", f"{kind[0]}{rank}", "up" if plugged else "down")

    def close(self):
        if os.getpid() != self.owner:  # a forked child ends: nothing of its own
            return
        while self.made:
            _delete(self.made.pop())

    def enter(self, kind, rank):
        """As prefix, on any processor."""
        kind, rank = self.home(kind, rank)
        return ["ip", "netns", "exec", f"{self.prefix_name}-{kind[0]}{rank}"]

    def prefix(self, kind, rank):
        """The words to put before a command so that it runs on that host.

        A host has a processor of its own kind: hosts take turns at this machine's, and stay
        there. Left to the scheduler, one of four equal workers had half of two processors
        for some tens of milliseconds, and all others waited for the slowest.
        """
        cpus = sorted(os.sched_getaffinity(0))
        _, home = self.home(kind, rank)
        return [*self.enter(kind, rank), "taskset", "-c", str(cpus[home % len(cpus)])]

    def for_psrun(self, folder, bin_dir, keys=("server", "worker")):
        """(psrun's options, its environment) so that it starts the parts of these kinds here, as over
        ssh. Writes a hostfile, and an ssh that needs no network, into the folder."""
        ssh, hostfile = os.path.join(folder, "ssh"), os.path.join(folder, f"hosts-{'-'.join(keys)}")
        with open(ssh, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\nwhile [ "$1" != -- ]; do host=$1; shift; done\n'
                    f'exec ip netns exec "{self.prefix_name}-$host" sh -c "$2"\n')
        os.chmod(ssh, os.stat(ssh).st_mode | stat.S_IXUSR)
        with open(hostfile, "w", encoding="utf-8") as f:
            for (kind, rank), address in self.hosts.items():
                other = {"server": "workers", "worker": "servers"}[kind]
                if kind in keys:
                    f.write(f"{kind[0]}{rank} addr={address} {kind}s=1 {other}=0 bin={bin_dir}\n")
        return ["-H", hostfile, "--insecure"], {"PS_SSH": ssh}

    def address(self, kind, rank):
        self.next_port += 1
        return self.hosts[self.home(kind, rank)], self.next_port
