"""Ports of this machine that nobody listens on."""
import os
import random
import socket

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"  # from which the system gives ports to connections
LEAST = 10000  # well-known services listen below
TRIES = 100
_marks = {}  # descriptors, by the port that this process was given


def _take(port):
    """Whether nobody listens on a port, and no process was given it."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0pstrain-port-{port}")  # a name without a file, of the network in which the port is, too
        with socket.socket() as s:
            s.bind(("", port))  # fails, too, where another address of this machine is listened on
    except OSError:
        mark.close()
        return False
    _marks[port] = mark.detach()
    return True


def give_back(*ports):
    """Those of a job that is over. A process may run many."""
    for mark in [_marks.pop(port) for port in ports if port in _marks]:
        os.close(mark)


def beside(port):
    """Another one, of a host on which nobody can look for one."""
    return port + 1 if port < 65535 else port - 1


def _of_the_system():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_port():
    """One that no connection takes before its user listens on it: outside the system's range.

    No other process is given it while this one lives, and has not given it back.
    """
    try:
        with open(RANGE, encoding="ascii") as f:
            end = int(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return _of_the_system()
    ports = range(LEAST, end)
    tried = random.SystemRandom().sample(ports, min(TRIES, len(ports)))
    return next(filter(_take, tried), None) or _of_the_system()
