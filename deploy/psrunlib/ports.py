"""Ports of this machine that nobody listens on."""
import random
import socket

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"  # from which the system gives ports to connections
LEAST = 10000  # well-known services listen below
TRIES = 100


def _is_free(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _of_the_system():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_port():
    """One that no connection takes before its user listens on it: outside the system's range."""
    try:
        with open(RANGE, encoding="ascii") as f:
            end = int(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return _of_the_system()
    ports = range(LEAST, end)
    tried = random.SystemRandom().sample(ports, min(TRIES, len(ports)))
    return next(filter(_is_free, tried), None) or _of_the_system()
