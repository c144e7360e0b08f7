"""Forks Python processes that have already imported PyTorch, for warm-python: warm_server.py SOCKET PROCESS.

The import takes 1.3 s of a core, and the tests need it hundreds of times. A process of its own is what each of them
gets: with its own arguments, environment, output, network namespace and cores. It ends with the program that asked
for it, and all end with the server, which ends with PROCESS.
"""
import contextlib
import atexit
import builtins
import ctypes
import gc
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import types

import torch
import torch.distributed  # noqa: F401
import torch.nn.parallel  # noqa: F401

# PyTorch 2 imports its compiler for the first optimizer, which takes as long as all the rest.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

CLONE_NEWNET = 0x40000000


class Request:
    """What a client sends: its connection, its words, and the descriptors of its input and output."""

    def __init__(self, connection):
        self.connection = connection
        head, self.fds, _, _ = socket.recv_fds(connection, 4, 4)
        self.events = self.fds.pop() if len(self.fds) > 3 else None
        (left,) = struct.unpack("=I", head)
        data = b""
        while len(data) < left:
            data += connection.recv(left - len(data)) or self._ended()
        self.cwd, n, *words = [os.fsdecode(word) for word in data.split(b"\0")[:-1]]
        self.argv, self.env = words[:int(n)], words[int(n):]
        self.peer = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    @staticmethod
    def _ended():
        raise EOFError

    def note(self, usage):
        """A line for `timed`: the processor time of what ran for its test."""
        env = dict(word.split("=", 1) for word in self.env if word.startswith(("PS_TIMES=", "PS_TEST=")))
        if len(env) == 2:
            with open(env["PS_TIMES"], "a", encoding="utf-8") as f:
                f.write(f"0 {usage.ru_utime + usage.ru_stime:.2f} {env['PS_TEST']}\n")

    def close_fds(self):
        for fd in self.fds:
            os.close(fd)

    def close(self):
        self.close_fds()
        if self.events is not None:
            os.close(self.events)


def serve(path, owner):
    """Returns in each process that it forks, with its request."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    owner = os.pidfd_open(owner)
    for what in (listener, woken, owner):
        selector.register(what, selectors.EVENT_READ)
    running = {}  # process id: request
    while True:
        for key, _ in selector.select():
            if key.fileobj is owner:
                end_all(running)
            elif key.fileobj is woken:
                woken.recv(100)
                reap(running, selector)
            elif key.fileobj is listener:
                request = accepted(listener)
                pid = request and os.fork()
                if pid == 0:
                    selector.close()
                    os.close(owner)
                    for held in (listener, woken, wakes, request.connection, *(r.connection for r in running.values())):
                        held.close()
                    return request
                if pid:
                    request.close()
                    request.connection.sendall(struct.pack("=i", pid))
                    running[pid] = request
                    selector.register(request.connection, selectors.EVENT_READ, pid)
            elif key.data in running:  # the client has ended
                selector.unregister(key.fileobj)
                running[key.data].connection.close()
                os.kill(key.data, signal.SIGKILL)


def accepted(listener):
    connection, _ = listener.accept()
    try:
        return Request(connection)
    except (EOFError, OSError, struct.error):
        connection.close()
        return None


def reap(running, selector):
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        request = running.pop(pid)
        request.note(usage)
        if request.connection.fileno() >= 0:
            selector.unregister(request.connection)
            with contextlib.suppress(OSError):
                request.connection.sendall(struct.pack("=i", status))
            request.connection.close()


def end_all(running):
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    os.unlink(sys.argv[1])
    os._exit(0)


def become(request):
    """Makes this process what the client would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(request.fds):
        os.dup2(fd, number)
    request.close_fds()
    theirs = f"/proc/{request.peer}/ns/net"
    if os.readlink(theirs) != os.readlink("/proc/self/ns/net"):
        with open(theirs, encoding="ascii") as f:
            if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET) != 0:
                sys.exit(f"warm-python: setns: {os.strerror(ctypes.get_errno())}")
    os.sched_setaffinity(0, os.sched_getaffinity(request.peer))
    os.setsid()  # its signals come from the client alone, not from the client's terminal as well
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(word.split("=", 1) for word in request.env if "=" in word)
    if request.events is not None:
        os.set_inheritable(request.events, True)
        os.environ["PS_EVENTS"] = f"{request.events}:{os.fstat(request.events).st_ino}"
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    line = os.isatty(1) or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # a pipe has no position, unlike the server's own
    sys.stdout.reconfigure(line_buffering=line, write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or len(os.sched_getaffinity(0)))
    sys.executable = request.argv[0]


def run(argv):
    """As the interpreter does with these arguments: [options] SCRIPT, -c CODE or -m MODULE, and theirs."""
    while argv and argv[0].startswith("-") and argv[0][1:2] not in "cm":
        if argv[0] == "-u":
            sys.stdout.reconfigure(line_buffering=True, write_through=True)
        elif argv[0] not in ("-B", "-W"):
            sys.exit(f"warm-python: no option {argv[0]} here")
        argv = argv[2 if argv[0] == "-W" else 1:]
    if argv[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = argv[1:]
        runpy._run_module_as_main(argv[1])
        return
    main = sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")  # multiprocessing's, too
    main.__builtins__ = builtins
    if argv[0] == "-c":
        sys.path[0], code, name = "", argv[1], "<string>"
        sys.argv = ["-c", *argv[2:]]
    else:
        sys.argv = argv
        name = main.__file__ = os.path.abspath(argv[0])
        sys.path[0] = os.path.dirname(name)
        with open(name, "rb") as f:
            code = f.read()
    exec(compile(code, name, "exec"), main.__dict__)


def end_as_interpreter(error):
    """What an interpreter does at its end, except that it does not take its modules apart: that takes half a second of
    a core with PyTorch's."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, (int, type(None))):
            print(error.code, file=sys.stderr)
    elif error:
        code = 1
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 120
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 255)


if __name__ == "__main__":
    gc.freeze()  # so that a collection in a child copies no pages
    mine, end = serve(sys.argv[1], int(sys.argv[2])), None
    try:
        become(mine)
        run(mine.argv[1:])
    except BaseException as error:
        end = error
    end_as_interpreter(end)
