"""Processes of a benchmark: started together, timed in CPU seconds, always ended."""
import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time

from .job_config import BenchError


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_parent():
    """For preexec_fn: SIGTERM when the benchmark dies, on which psrun ends its parts."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def cpu_seconds(pid):
    """CPU time of all threads of a process, as the scheduler counts it."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
                total += int(f.read().split()[0])
    except (OSError, ValueError):
        pass
    return total * 1e-9


def children(pid):
    """(name of the program, process id) of each. Those that have just ended are left out."""
    for child in _read(f"/proc/{pid}/task/{pid}/children").split():
        name = _read(f"/proc/{child.decode()}/comm").decode().strip()
        if name:
            yield name, int(child)


def _read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def descendants(pid):
    """As children, and theirs."""
    for name, child in children(pid):
        yield name, child
        yield from descendants(child)


def environment(pid):
    return dict(p.decode().split("=", 1) for p in _read(f"/proc/{pid}/environ").split(b"\0") if b"=" in p)


def find_part(psrun_pid, role, rank):
    """The process id of a part of psrun's job; None while it is being started."""
    key = "PS_SERVER_RANK" if role == "server" else "RANK"
    return next((pid for name, pid in descendants(psrun_pid)
                 if name == f"ps-{role}" and environment(pid).get(key) == str(rank)), None)


def stop_session(popen):
    """Ends a process that leads a session, and the session: first by SIGTERM, on which psrun ends its
    parts."""
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        if popen.poll() is None:
            os.killpg(popen.pid, number)
            try:
                popen.wait(patience)
            except subprocess.TimeoutExpired:
                continue


class Part:
    """A process with its output kept; stdin and stdout are pipes. in_order: it is ended by SIGTERM, as
    psrun, which then ends its own parts."""

    def __init__(self, name, argv, env=None, in_order=False):
        self.name, self.argv, self.in_order = name, argv, in_order
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.lines = []
        self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=self.errors, text=True, env=dict(os.environ, **(env or {})),
                                      start_new_session=in_order,
                                      preexec_fn=end_with_parent if in_order else _die_with_parent)

    def stop(self):
        if self.in_order:
            stop_session(self.popen)
        elif self.popen.poll() is None:
            self.popen.kill()

    def explain(self):
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        code = self.popen.returncode
        return f"{self.name} ended with {code}: " + " | ".join(lines[-3:])

    def result(self):
        """The last line, as JSON."""
        try:
            return json.loads(self.lines[-1])
        except (IndexError, ValueError) as error:
            raise BenchError(f"{self.explain()} (no result)") from error


class Group:
    """Parts that run together: one failure ends all. on_line(part, line) sees stdout."""

    def __init__(self, timeout_s):
        self.parts, self.deadline = [], time.monotonic() + timeout_s
        self.timeout_s = timeout_s

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in self.parts:
            part.stop()
        for part in self.parts:
            part.popen.wait()
            part.popen.stdin.close()
            part.popen.stdout.close()
            part.errors.close()

    def start(self, name, argv, env=None, in_order=False):
        self.parts.append(Part(name, argv, env, in_order))
        return self.parts[-1]

    def start_part(self, where, build_dir, kind, rank, words, program=None):
        """A ps-server or ps-worker on its host, or another program in its place."""
        return self.start(f"{kind} {rank}", [*where.prefix(kind, rank),
                                             os.path.join(build_dir, "bin", program or f"ps-{kind}"), *words])

    def _read(self, waiting, on_line):
        """Reads one line of each part that has one; removes parts at their end from waiting."""
        poll = select.poll()  # select() takes no descriptor above 1023
        for part in waiting:
            poll.register(part.popen.stdout, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(500)}
        for part in list(waiting):
            if part.popen.stdout.fileno() not in ready:
                continue
            line = part.popen.stdout.readline()
            if not line:
                waiting.remove(part)
                continue
            part.lines.append(line.strip())
            on_line(part, line.strip())

    def finish(self, on_line=lambda part, line: None):
        waiting = list(self.parts)
        while waiting:
            self._read(waiting, on_line)
            for part in self.parts:
                if part.popen.poll() not in (None, 0):
                    time.sleep(0.3)  # the one that failed first may still be writing
                    raise BenchError(part.explain())
            if time.monotonic() > self.deadline:
                raise BenchError(f"no end within {self.timeout_s} s")
        for part in self.parts:
            if part.popen.wait(20) != 0:
                raise BenchError(part.explain())
