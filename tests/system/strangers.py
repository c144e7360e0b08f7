"""Strangers who speak ZMTP 3.0 (rfc.zeromq.org/spec/23) on raw sockets, and what they try."""
import contextlib
import os
import socket
import struct


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
        with contextlib.suppress(OSError):
            while more := self.socket.recv(65536):
                got += more
        return got
