"""The hostfile: which hosts there are, and which part of a job runs where.

    # name         what it may run, and how
    node1          servers=1 workers=2
    me@node2:2222  slots=4 dir=/data/pstrain bin=/opt/pstrain/bin addr=10.0.0.2
    node3          slots=2 image=/images/pstrain.sif link=25
    node4          spare

slots: at most this many workers (default 1). servers, workers: exactly this many. dir: the
working folder on the host (default: the same as here). bin: the folder of the programs
(default: the same as here). addr: the address at which the other hosts reach it. image: an
Apptainer image that has the programs. link: the rate of the host's link, in any unit that is the
same for all (default 1); servers hold parts of the parameters that keep all links busy equally
long. share: the part of each server on this host relative to the others', instead. spare: it runs
nothing until another host does not answer any more; then it runs all parts of that one
(psrun --restarts).
"""
import os
import re
from dataclasses import dataclass

from .errors import JobError

# ssh would take a name that begins with - for an option.
NAME = re.compile(r"^(?!-)(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\])"
                  r"(?::(?P<port>[0-9]{1,5}))?$")
NUMBER = re.compile(r"[0-9]{1,6}")
RATIO = re.compile(r"^(?=.*[1-9])\d{1,6}(\.\d{1,6})?$")
NUMBERS = ("slots", "servers", "workers")
TEXTS = ("dir", "bin", "addr", "image")
RATIOS = ("link", "share")
KEYS = NUMBERS + RATIOS + TEXTS


@dataclass
class Host:
    name: str  # as the hostfile has it, which tells it from others: user@host:port
    login: str  # as ssh takes it: host, user@host
    host: str
    port: int = 0  # of sshd; 0: ssh's own choice
    slots: int = 1
    servers: int = -1  # -1: not given
    workers: int = -1
    dir: str = ""
    bin: str = ""
    addr: str = ""
    image: str = ""
    link: float = 0  # 0: not given
    share: float = 0
    spare: bool = False

    @property
    def address(self):
        """Two names with one address are one machine: two users, or two sshd."""
        return self.addr or self.host


def read_hostfile(path):
    try:
        with open(path, encoding="utf-8-sig") as f:
            lines = f.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read the hostfile {path}: {error}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if words:
            hosts.append(_host(f"{path}:{number}", words))
    if all(h.spare for h in hosts):
        raise JobError(f"{path} names no host" + (" that is not a spare one" if hosts else ""))
    names = [h.name for h in hosts]
    for name in names:
        if names.count(name) > 1:
            raise JobError(f"{path}: {name} is there twice: give it more slots instead")
    return hosts


def _host(place, words):
    found = NAME.match(words[0])
    if not found:
        raise JobError(f"{place}: '{words[0]}' is not a host, user@host or host:port")
    user, name, port = found["user"], found["host"].strip("[]"), int(found["port"] or 0)
    if found["port"] and not 1 <= port <= 65535:
        raise JobError(f"{place}: {port} is not a port (1 .. 65535)")
    host = Host(name=words[0], login=f"{user}@{name}" if user else name, host=name, port=port)
    for word in words[1:]:
        if word == "spare":
            host.spare = True
            continue
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS or not value:
            raise JobError(f"{place}: '{word}' is not one of {', '.join(KEYS)}, as key=value, or spare")
        if key in NUMBERS and not NUMBER.fullmatch(value):
            raise JobError(f"{place}: {key}={value} is not a number")
        if key in RATIOS and not RATIO.match(value):
            raise JobError(f"{place}: {key}={value} is not a number above 0")
        setattr(host, key, int(value) if key in NUMBERS else float(value) if key in RATIOS else value)
    if host.spare and (host.servers, host.workers, host.slots) != (-1, -1, 1):
        raise JobError(f"{place}: a spare host runs the parts of the one that it replaces: it has no slots=, "
                       "servers= or workers=")
    return host


def place(hosts, servers, workers):
    """(servers' hosts, workers' hosts), by rank. Hosts with servers= or workers= get that many.
    The other servers are dealt out one per host in turn; the other workers fill the slots of
    one host after another. Spare hosts get none."""
    hosts = [h for h in hosts if not h.spare]
    server_hosts = _exact(hosts, "servers", servers)
    worker_hosts = _exact(hosts, "workers", workers)
    free = [h for h in hosts if h.servers < 0] or hosts
    for i in range(servers - len(server_hosts)):
        server_hosts.append(free[i % len(free)])
    for host in hosts:
        if host.workers < 0:
            worker_hosts += [host] * min(host.slots, workers - len(worker_hosts))
    if len(server_hosts) > servers or len(worker_hosts) != workers:
        raise JobError(
            f"the hostfile places {len(server_hosts)} servers and {len(worker_hosts)} workers, "
            f"but the job needs {servers} and {workers}: change slots=, servers= or workers= there, "
            "or -s and -w")
    return server_hosts, worker_hosts


def _exact(hosts, what, most):
    named = []
    for host in hosts:
        named += [host] * max(0, getattr(host, what) if most else 0)
    return named


def local_ranks(placed):
    """By rank: the worker's number on its machine, and how many workers that one has."""
    seen, ranks = {}, []
    for host in placed:
        ranks.append(seen.get(host.address, 0))
        seen[host.address] = ranks[-1] + 1
    return ranks, [seen[host.address] for host in placed]


def folder(host):
    return host.dir or os.getcwd()
