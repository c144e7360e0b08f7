"""A stranger on every port of a job that runs, with and without keys. It gets no answer, changes no
bit, and costs a bounded amount of memory. Raw sockets that speak ZMTP 3.0 (rfc.zeromq.org/spec/23).
PS_STRANGERS: connections at a time to each port."""
import contextlib
import os
import re
import resource
import socket
import struct
import threading
import time
import unittest
from pathlib import Path

from jobs import ROOT, Faults, JobTest, listening_ports, nightly, resident_bytes

from strangers import Stranger, command, frame, greeting

# Worker 0 is held in the middle, until every attack has met this job.
SETTINGS = ["train.epochs=3", "data.batch=8", "train.threads=1", "exchange.shm=off",
            "net.heartbeat_ms=500", "net.dead_after_ms=20000", "train.log_every=50"]
GROWTH = 50_000_000  # by how many bytes one process may grow, under all attacks together
_, MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
CONNECTIONS = int(os.environ.get("PS_STRANGERS", 500))  # connections to each port
if MOST_FILES >= 0:
    CONNECTIONS = min(CONNECTIONS, (MOST_FILES - 200) // 4)
PUT, GET, NORM, ABORT = 5, 6, 7, 3


def uint(n):
    return b"\xcf" + struct.pack(">Q", n)


def text(s):
    return b"\xd9" + bytes([len(s)]) + s.encode()


# The version of the control plane: strangers with another version would only be told so.
VERSION = int(re.search(r"PS_CONTROL_VERSION = (\d+)", (ROOT / "common/control/control.h").read_text())[1])


def control(kind, *items, nonce=0, request=1):
    parts = [uint(VERSION), uint(kind), uint(nonce), uint(request), *items]
    return bytes([0x90 + len(parts)]) + b"".join(parts)


def value(b):
    return b"\xc6" + struct.pack(">I", len(b)) + b


def what_was_said(heard):
    """Returns the messages that came after the greeting and READY."""
    rest = heard[64:]
    if rest[:1] == b"\x04":
        rest = rest[2 + rest[1]:]
    return rest


class Attack(threading.Thread):
    """Repeats all known attacks on one port while the job runs."""

    def __init__(self, port, stop):
        super().__init__()
        self.port, self.stop, self.answers, self.done = port, stop, [], set()

    def run(self):
        attacks = [self.old_routing_id, self.wrong_secret, self.junk, self.members_messages,
                   self.floods_of_get, self.norms_of_nobody, self.endless_message,
                   self.ping_behind_a_flood, self.long_handshake, self.slow_greetings,
                   self.curve_junk, self.many_connections]
        while not self.stop.is_set():
            for attack in attacks:
                if self.stop.is_set():
                    return
                try:
                    attack(self.port)
                except OSError:
                    continue  # the job has ended, or the stranger is not let in
                self.done.add(attack.__name__)

    def say(self, port, *messages, identity=None, mechanism=b"NULL"):
        s = Stranger(port)
        s.shake_hands(os.urandom(18) if identity is None else identity, mechanism)
        for m in messages:
            if not s.send(m):
                break
        said = what_was_said(s.hear())
        s.close()
        if said:
            self.answers.append((port, [m[:40] for m in messages[:2]], said[:200]))

    def old_routing_id(self, port):
        # HELLO, PUSH of chunk 0 and BYE of an older program, with a guessed rank and secret.
        wire = [b"\x9c" + b"".join(uint(n) for n in (VERSION, kind, 0, 1, 0, 0, 0, 0, 8, 0, 0, 0))
                for kind in (1, 3, 5)]
        for identity in (b"w\0\0\0\0", b"w\0\0\0\1", b"\0\0\0\0" + b"\0" * 16):
            self.say(port, *[frame(w) for w in wire], identity=identity)

    def wrong_secret(self, port):
        self.say(port, mechanism=b"PLAIN")

    def junk(self, port):
        self.say(port, frame(b"x"))
        self.say(port, frame(b"a", more=True) + frame(b"b", more=True) + frame(b"c"))

    def members_messages(self, port):
        self.say(port, frame(control(PUT, text("job/total_steps"), value(struct.pack("<Q", 3)))),
                 frame(control(ABORT, uint(9), text("stop"))), frame(control(8, uint(0))), frame(control(9)),
                 frame(control(10)))

    def floods_of_get(self, port):
        self.say(port, *[frame(control(GET, uint(60000), text("buffers/0"), request=i + 1))
                         for i in range(60)])
        self.say(port, b"".join(frame(control(GET, uint(60000), text(f"never/{i}"), request=i + 1))
                                for i in range(16384)))

    def norms_of_nobody(self, port):
        part = struct.pack("<QQQd", 1, 0, 1, 1.0)
        for _ in range(4):
            self.say(port, frame(control(NORM, uint(0), uint(4), uint(4), value(part))))

    def endless_message(self, port):
        s = Stranger(port, timeout=5)
        s.shake_hands(os.urandom(18))
        one = frame(b"\0" * 60000, more=True)
        sent, end = 0, time.monotonic() + 5
        while sent < 2 << 30 and time.monotonic() < end and s.send(one):
            sent += len(one)
        s.close()

    def ping_behind_a_flood(self, port):
        """A connection that fails while its messages wait, and a PING among them: libzmq's answer to it
        would end the process by an assertion."""
        s = Stranger(port)
        s.shake_hands(os.urandom(18))
        s.send((frame(b"x") * 40 + command(b"PING", b"\0\0")) * 60)
        s.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def long_handshake(self, port):
        s = Stranger(port, timeout=5)
        s.send(greeting(b"PLAIN") + b"\x06" + struct.pack(">Q", 1 << 16))
        for _ in range(16):
            if not s.send(b"\0" * 4095):
                break
        s.close()

    def curve_junk(self, port):
        """HELLO and INITIATE of CURVE (rfc.zeromq.org/spec/26), as long as they have to be."""
        for hello in (b"\1\0" + os.urandom(192), os.urandom(194), b""):
            s = Stranger(port)
            s.send(greeting(b"CURVE") + command(b"HELLO", hello))
            s.send(command(b"INITIATE", os.urandom(300)))
            s.send(b"".join(frame(os.urandom(60000), more=True) for _ in range(20)))
            said = what_was_said(s.hear())
            s.close()
            if said:
                self.answers.append((port, hello, said[:200]))

    def slow_greetings(self, port):
        slow = [Stranger(port) for _ in range(20)]
        for byte in greeting(b"NULL")[:12]:
            for s in slow:
                s.send(bytes([byte]))
            if self.stop.wait(0.02):
                break
        for s in slow:
            s.close()

    def many_connections(self, port):
        many = []
        try:
            for _ in range(CONNECTIONS):
                many.append(Stranger(port))
        finally:
            self.stop.wait(0.5)
            for s in many:
                s.close()


class Strangers(JobTest):
    calm = None  # the weights of a job that is not disturbed

    def end_well(self, parts):
        codes = self.wait_all(parts, 250)
        for name, code in codes.items():
            self.assertEqual(code, 0, f"{name}:\n{parts[name].text()}")
        return Path(self.path("worker-0", "model.safetensors")).read_bytes()

    def test_on_every_port_harm_nobody(self):
        self.attack()

    @nightly
    def test_on_every_port_harm_nobody_with_keys(self):
        self.attack(f"net.curve={self.keys()}")

    def attack(self, *settings):
        # AddressSanitizer keeps 256 MiB of freed memory, which is no growth of ours.
        os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=16")
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, soft)
        if Strangers.calm is None:
            Strangers.calm = self.end_well(self.start_job(2, 2, *SETTINGS))
        faults = Faults(self.path("faults"), "worker/0@step.begun:100:hold")  # it lasts until all attacks have been made
        parts = self.start_job(2, 2, *SETTINGS, *settings,
                               prefix=lambda role, rank: faults.prefix if role == "worker" else [])
        parts["worker 0"].wait_for(r"step [\d,]+/", 60)
        pids = {name: p.popen.pid for name, p in parts.items() if name.startswith("server")}
        ports = sorted(set().union(*(listening_ports(pid) for pid in pids.values())))
        self.assertEqual(len(ports), 4, "a door, a ROUTER of members and two shards")
        before = {name: resident_bytes(pid) for name, pid in pids.items()}
        most = dict(before)
        stop = threading.Event()
        attacks = [Attack(port, stop) for port in ports]
        for attack in attacks:
            attack.start()
        try:
            while parts["worker 0"].popen.poll() is None:
                if all("many_connections" in attack.done for attack in attacks):
                    faults.let_go("step.begun")
                for name, pid in pids.items():
                    with contextlib.suppress(OSError, AttributeError):  # it has ended
                        most[name] = max(most[name], resident_bytes(pid))
                time.sleep(0.02)
        finally:
            stop.set()
            for attack in attacks:
                attack.join()
        attacked = self.end_well(parts)
        for attack in attacks:
            self.assertEqual(attack.answers, [], f"port {attack.port} of {ports}")
            self.assertIn("many_connections", attack.done)
        self.assertEqual(attacked, Strangers.calm, "other weights than without strangers")
        for name in pids:
            growth = most[name] - before[name]
            self.assertLess(growth, GROWTH, f"{name} grew by {growth >> 20} MiB")
            print(f"{name} grew by {growth >> 20} MiB", end=" ")


if __name__ == "__main__":
    unittest.main()
