"""Strangers who speak ZMTP 3.0 (rfc.zeromq.org/spec/23) on raw sockets, and what they try."""
import itertools
import os
import resource
import select
import socket
import struct
import time


def greeting(mechanism):
    return (b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + b"\0").ljust(64, b"\0")


def command(name, body=b""):
    body = bytes([len(name)]) + name + body
    return b"\x04" + bytes([len(body)]) + body if len(body) < 256 else (
        b"\x06" + struct.pack(">Q", len(body)) + body)


def prop(name, value):
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def frame(body, more=False):
    if len(body) < 256:
        return bytes([1 if more else 0, len(body)]) + body
    return bytes([3 if more else 2]) + struct.pack(">Q", len(body)) + body


class Stranger:
    """Sends on a connection until the peer closes it."""

    def __init__(self, port, timeout=2):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def shake_hands(self, identity, mechanism=b"NULL"):
        self.send(greeting(mechanism))
        if mechanism == b"PLAIN":
            self.send(command(b"HELLO", b"\x06member" + bytes([16]) + os.urandom(16)))
        else:
            self.send(command(b"READY", prop(b"Socket-Type", b"DEALER") + prop(b"Identity", identity)))

    def hear(self, seconds=0.15):
        """Returns everything that comes until the other end closes or is silent for a while."""
        got = b""
        self.socket.settimeout(seconds)
        try:
            while more := self.socket.recv(65536):
                got += more
        except OSError:
            pass  # nothing more for a while, or it was cut off
        return got


class Crowd:
    """Strangers at some ports who hold up to `most` silent connections, and send endless messages,
    with `per_second` new connections of both kinds together. A connection that was cut is made anew."""

    SENT = (greeting(b"CURVE") + command(b"HELLO", b"\1\0" + os.urandom(192)) + command(b"INITIATE", os.urandom(300)),
            greeting(b"NULL"), greeting(b"PLAIN") + b"\x06" + struct.pack(">Q", 1 << 16))

    def __init__(self, ports, most, per_second):
        self.ports, self.most, self.per_second = itertools.cycle(ports), most, per_second
        self.silent, self.poll, self.made, self.cut = {}, select.epoll(), 0, 0

    def connect(self):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", next(self.ports)))
        self.made += 1
        return s

    def be_silent(self):
        if len(self.silent) < self.most:
            s = self.connect()
            self.silent[s.fileno()] = s
            self.poll.register(s.fileno(), select.EPOLLRDHUP)

    def send_without_end(self):
        s = self.connect()
        s.setblocking(True)
        s.settimeout(0.2)
        part = frame(bytes(60000), more=True)
        try:
            s.sendall(self.SENT[self.made % len(self.SENT)])
            for _ in range(100):
                s.sendall(part)
        except OSError:
            pass  # it was cut
        s.close()

    def go_on(self, until):
        """Until the clock (monotonic) says so."""
        begin, made = time.monotonic(), self.made
        while (now := time.monotonic()) < until:
            for fd, _ in self.poll.poll(0.01):
                self.silent.pop(fd).close()
                self.cut += 1
            while self.made - made < (now - begin) * self.per_second and time.monotonic() < until:
                if self.made % 10:
                    self.be_silent()
                else:
                    self.send_without_end()
                if len(self.silent) >= self.most:
                    break

    def close(self):
        for s in self.silent.values():
            s.close()
        self.poll.close()


def crowd_process(pipe):
    """Runs in a process of its own: for each (ports, most, per_second, seconds) that comes, a crowd;
    answers (connections made in a second, cut). None ends it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    while order := pipe.recv():
        ports, most, per_second, seconds = order
        crowd = Crowd(ports, min(most, hard - 100), per_second)
        begin = time.monotonic()
        crowd.go_on(begin + seconds)
        per_second = crowd.made / (time.monotonic() - begin)
        crowd.close()
        pipe.send((per_second, crowd.cut))
