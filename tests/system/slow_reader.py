"""Makes a part read slowly: it has small receive buffers and runs only for short times. The sockets
to it fill."""
import contextlib
import os
import signal
import socket
import threading

import cuts

# TINY_BYTES is for a part that must not recover. Below two segments (64 KB each on loopback) the
# kernel waits 0.2 s before it sends one, and may still do so when the buffer is large again.
TINY_BYTES, SMALL_BYTES, USUAL_BYTES = 16 << 10, 128 << 10, 4 << 20


def set_buffers(pid, size):
    for fd, *_ in cuts.connections(pid):
        with contextlib.suppress(OSError):
            with socket.socket(fileno=cuts.duplicate(pid, fd)) as ours:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


class SlowReader:
    """with SlowReader(pid): the process reads slowly."""

    def __init__(self, pid, runs_s=0.03, stands_s=0.17, buffer_bytes=SMALL_BYTES):
        self.pid, self.runs_s, self.stands_s, self.buffer_bytes = pid, runs_s, stands_s, buffer_bytes
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._slow_down)

    def __enter__(self):
        set_buffers(self.pid, self.buffer_bytes)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        with contextlib.suppress(FileNotFoundError):
            set_buffers(self.pid, USUAL_BYTES)

    def _slow_down(self):
        try:
            while not self.over.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self.over.wait(self.stands_s)
                os.kill(self.pid, signal.SIGCONT)
                self.over.wait(self.runs_s)
        except ProcessLookupError:
            pass  # it has ended
