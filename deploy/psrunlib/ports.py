"""Ports of this machine that nobody listens on."""
import random
import socket

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"  # from which the system gives ports to connections
LEAST = 10000  # well-known services listen below
TRIES = 100
given = set()


def _is_free(port):
    with socket.socket() as s:
        try:
            s.bind(("", port))  # fails, too, where another address of this machine is listened on
        except OSError:
            return False
        return port not in given


def _of_the_system():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_port():
    """One that no connection takes before its user listens on it: outside the system's range. Never the same twice."""
    try:
        with open(RANGE, encoding="ascii") as f:
            end = int(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return _of_the_system()
    ports = range(LEAST, end)
    tried = random.SystemRandom().sample(ports, min(TRIES, len(ports)))
    port = next(filter(_is_free, tried), None) or _of_the_system()
    given.add(port)
    return port
