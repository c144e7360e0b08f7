"""Under torchrun the coordinator's address goes through torchrun's own store.

torchrun's agent holds MASTER_PORT, so server 0, or worker 0 of a job without servers, cannot listen there. It takes a
free port, and says under a key of that store where it is and how many servers there are. A restart of the
workers by torchrun is a new job: each attempt has a key of its own.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import typing

from . import _programs, errors

JOIN_SECONDS = 60  # net.join_timeout_ms and net.step_timeout_ms, where they are not set
AFTER_TORCHRUN_S = 5  # a server ends by itself, because its workers are dead
_jobs = itertools.count()  # without servers, of this process


def _key(attempt: int) -> str:
    return f"pstrain/{attempt}/server-0"


def _attempt(env: "typing.Mapping[str, str]") -> int:
    return int(env.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _place(env: "typing.Mapping[str, str]") -> "tuple[str, int]":
    return env.get("MASTER_ADDR", "127.0.0.1"), int(env["MASTER_PORT"])


def _connect(host: str, port: int, seconds: float) -> typing.Any:
    import torch.distributed

    make: typing.Any = getattr(torch.distributed, "TCPStore")
    argv = host, port, None, False, datetime.timedelta(seconds=seconds)
    try:
        # Only the store's own process needs libuv; but a PyTorch that was built without it (Debian
        # 13's) refuses the default, which asks for it.
        return make(*argv, use_libuv=False)
    except TypeError:  # an older PyTorch has no such argument
        return make(*argv)


def is_there(env: "typing.Mapping[str, str]") -> bool:
    """Whether torchrun has started this process, and nothing else names the coordinator."""
    return (env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "MASTER_PORT" in env
            and not any(name in env for name in ("PS_INIT_METHOD", "PS_PORT")))


def is_torchruns(env: "typing.Mapping[str, str]") -> bool:
    """As is_there, and there are servers."""
    return is_there(env) and env.get("PS_SERVERS") != "0"


def find(env: "typing.Mapping[str, str]", seconds: float = JOIN_SECONDS) -> "tuple[str, int]":
    """(the address of server 0, the number of servers), when a server has said it. TimeoutError
    otherwise. seconds: for each attempt up to this one, which the server waits for if its workers died before they joined."""
    (host, port), attempt = _place(env), _attempt(env)
    seconds *= attempt + 1
    try:
        store = _connect(host, port, seconds)
        said = json.loads(store.get(_key(attempt)))
    except RuntimeError as error:  # PyTorch's error for a time that is over is one
        raise errors.TimeoutError(
            f"no server has said in torchrun's store at {host}:{port} where it is, within "
            f"{seconds:g} s: start `pstrain-server --store {host}:{port} --world-size "
            f"{env.get('WORLD_SIZE', 'N')}` beside torchrun, or set PS_INIT_METHOD ({_first(error)})"
        ) from None
    return said["init_method"], said["servers"]


def meet(env: "typing.Mapping[str, str]", rank: int, seconds: float) -> str:
    """The address of the coordinator of a job without servers, which rank 0 chooses in each call: all ranks make as many in an
    attempt. TimeoutError where it has not within that time."""
    host, port = _place(env)
    key = f"pstrain/{_attempt(env)}/{next(_jobs)}/worker-0"
    try:
        store = _connect(host, port, seconds)
        if rank != 0:
            return bytes(store.get(key)).decode()
        address = _free_address(host, port)
        store.set(key, address)
        return address
    except (RuntimeError, OSError) as error:
        raise errors.TimeoutError(f"rank 0 has not said in torchrun's store at {host}:{port} where it is, within {seconds:g} s "
                                  f"(net.join_timeout_ms): each rank has to call pstrain.init ({_first(error)})") from None


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def free_port(address: str) -> int:
    """Of this host's address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


def _free_address(host: str, port: int) -> str:
    """Of this host, as those see it that reach the store there: a free port."""
    with socket.create_connection((host, port), timeout=JOIN_SECONDS) as s:
        own, store = s.getsockname()[0], s.getpeername()[0]
    # On the store's own host the name may be that of an address which is another host's elsewhere (Debian's 127.0.1.1).
    return f"tcp://{url_host(host if own == store else own)}:{free_port('::' if ':' in own else '')}"


def publish(host: str, port: int, attempt: int, servers: int) -> str:
    """Server 0's part: chooses a free port; returns its address."""
    init_method = _free_address(host, port)
    said = json.dumps({"init_method": init_method, "servers": servers})
    _connect(host, port, JOIN_SECONDS).set(_key(attempt), said)
    return init_method


# ---- pstrain-server --store ----

def _arguments(argv: "list[str]") -> "tuple[argparse.Namespace, list[str]]":
    p = argparse.ArgumentParser("pstrain-server", add_help=False, allow_abbrev=False)
    p.add_argument("--store", required=True)
    p.add_argument("--max-restarts", type=int, default=0)
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--servers", type=int, default=1)
    return p.parse_known_args(argv)


def serve(program: str, argv: "list[str]") -> int:
    """`pstrain-server --store HOST:PORT [--max-restarts N] ...`: ps-server in each attempt of
    torchrun, which has the store there. Returns the last one's exit code."""
    args, rest = _arguments(argv)
    host, colon, port = args.store.rpartition(":")
    if not (colon and port.isdigit()):
        raise errors.InputError(f"--store {args.store}: give torchrun's --master_addr and "
                                "--master_port as HOST:PORT")
    address = host.strip("[]"), int(port)
    code = 1
    for attempt in range(args.max_restarts + 1):
        if attempt > 0 and not _listens(address):
            break
        init_method = _address(args, *address, attempt)
        code, goes_on = _run([program, "--init-method", init_method, "--rank", str(args.rank), "--servers",
                              str(args.servers), *rest], f"server {args.rank}", address)
        if not goes_on:
            break
    return code if code >= 0 else 128 - code


def _address(args: argparse.Namespace, host: str, port: int, attempt: int) -> str:
    try:
        _connect(host, port, JOIN_SECONDS)  # waits for torchrun
        if args.rank == 0:
            return publish(host, port, attempt, args.servers)
        env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        return find(env)[0]
    except (RuntimeError, OSError) as error:
        raise errors.TimeoutError(f"torchrun's store does not answer at {args.store}: start torchrun with "
                                  f"--master_addr and --master_port ({_first(error)})") from None


def _run(argv: "list[str]", name: str, store: "tuple[str, int]") -> "tuple[int, bool]":
    """(the program's exit code, whether there may be another attempt). Signals to this process reach the program, which ends
    in order; it ends with torchrun, too, whose store is there."""
    killed_before = _programs.killed_for_memory()
    child = subprocess.Popen(argv, preexec_fn=_programs.psrunlib("local").die_with_parent)
    before = {number: signal.signal(number, lambda n, _: child.send_signal(n))
              for number in (signal.SIGTERM, signal.SIGINT)}
    left = threading.Event()
    threading.Thread(target=_end_with_torchrun, args=(child, store, left), daemon=True).start()
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    ends = code in (0, -signal.SIGTERM, -signal.SIGINT)
    why = "torchrun has ended" if left.is_set() else "" if ends else _programs.last_words(name, code, killed_before)
    if why:
        print(f"pstrain-server: {why}", file=sys.stderr, flush=True)
    return code, not ends and not left.is_set()


def _end_with_torchrun(child: "subprocess.Popen[bytes]", store: "tuple[str, int]", left: threading.Event) -> None:
    """Ends a server that waits for workers which torchrun will never start."""
    while _listens(store, until_closed=True):
        pass
    try:
        child.wait(AFTER_TORCHRUN_S)
    except subprocess.TimeoutExpired:
        left.set()
        child.terminate()


def _listens(address: "tuple[str, int]", until_closed: bool = False) -> bool:
    """until_closed: returns when the other side has closed the connection."""
    try:
        with socket.create_connection(address, JOIN_SECONDS) as s, contextlib.suppress(ConnectionError):
            s.settimeout(None)
            if until_closed:
                s.recv(1)
        return True
    except OSError:
        return False


def main(program: str) -> typing.NoReturn:
    try:
        sys.exit(serve(program, sys.argv[1:]))
    except errors.Error as error:
        sys.exit(f"pstrain-server: {error}")
