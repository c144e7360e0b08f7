"""Servers and workers of a job on this machine, started from a script or a notebook.

A worker is a Python process of its own. It finds what to do in a folder of the launch, and leaves its result
there, or the traceback of the exception that has ended it. What psrun is made of starts the processes, watches
them and ends them together.
"""
from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
import typing

from . import _events, _programs, job as jobs
from .errors import Error, InputError, PeerError

log = logging.getLogger("pstrain")
T = typing.TypeVar("T")
_MAIN = ("init_main_from_name", "init_main_from_path")  # multiprocessing's words for where __main__ comes from
_imports = False  # this process is a worker, which imports the caller's script


def launch(fn: "typing.Callable[..., T]", args: "typing.Sequence[typing.Any]" = (), *, workers: int = 2,
           servers: int = 1, restarts: int = 0, settings: jobs.Settings = None, verbose: bool = False,
           logs: "str | os.PathLike[str] | None" = None) -> "list[T]":
    """Runs fn(*args) in each worker process of a job on this machine. Returns the results, in rank order.

        def train(lr):
            pstrain.init()
            ...
            return loss.item()

        if __name__ == "__main__":
            losses = pstrain.launch(train, (1e-3,), workers=4, servers=2)

    Each worker has torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...), and pstrain.init() needs no
    arguments. fn, args and results are pickled; each worker imports the script, as by multiprocessing's "spawn".
    Functions of a notebook, lambdas and local functions need the package cloudpickle.

    servers: 0 for a job that needs none, such as one whose sums the process group makes.
    restarts: how often all parts are started again after one has died, as by psrun --restarts: fn is called from its
    beginning, and goes on from the last commit of its pstrain.State. settings: as in `pstrain.init`. verbose: shows what
    all ranks print, and not rank 0 alone. logs: a folder that keeps what each part has printed.

    Raises PeerError, which names the rank or server that has failed, and why, with the traceback of an exception;
    KeyboardInterrupt after Ctrl-C. Nothing is left running. InputError: an argument cannot be used.
    """
    _check(fn, args)
    keeper = _programs.psrunlib("keeper")
    with _programs.job_errors("pstrain.launch"), keeper.folder("pstrain-launch", tempfile.gettempdir()) as folder:
        _write(os.path.join(folder, "call"), _pack(fn, args))
        kept = os.fspath(logs) if logs is not None else os.path.join(folder, "logs")
        job = _programs.plan(_program(folder), servers, workers, jobs.as_words(settings), restarts)
        try:
            os.makedirs(kept, exist_ok=True)
            supervisor = _run(folder, job, _Shown(verbose, restarts > 0), kept)
        finally:
            _programs.psrunlib("ports").give_back(job.master_port, job.store_port)
        if not supervisor.interrupts:
            return [_result(folder, supervisor.attempt, rank) for rank in range(workers)]
    signal.raise_signal(supervisor.signal)  # for the handler that it would have reached without psrun's
    raise KeyboardInterrupt


def _check(fn: typing.Any, args: typing.Any) -> None:
    if _imports:
        raise InputError('pstrain.launch is called again where a worker imports this script: put the call below '
                         '`if __name__ == "__main__":`')
    if not callable(fn):
        raise InputError(f"fn: {fn!r} is not a function")
    if not isinstance(args, (tuple, list)):
        raise InputError(f"args: {args!r} is not a tuple of fn's arguments")


def _program(folder: str) -> "list[str]":
    """A worker's command."""
    flags: typing.Any = getattr(subprocess, "_args_from_interpreter_flags")()
    code = f"import sys; sys.path[:] = {list(map(str, sys.path))}; from pstrain.launch import work; work({folder!r})"
    return [sys.executable, *flags, "-c", code]


def _run(folder: str, job: typing.Any, shown: "_Shown", logs: str) -> typing.Any:
    """Runs the job to its end. Returns its last supervisor."""
    cli = _programs.psrunlib("cli")
    supervisor, status = cli.run_program(job, shown, {}, logs)
    if not supervisor.interrupts:
        _check_end(folder, supervisor, status, cli)
    return supervisor


def _check_end(folder: str, supervisor: typing.Any, status: int, cli: typing.Any) -> None:
    for part in supervisor.watched:
        path = _path(folder, supervisor.attempt, part.part.rank, "result")
        if part.part.role == "worker" and part.code == 0 and not os.path.exists(path):
            raise _failed(f"rank {part.part.rank} ended with exit code 0 before fn had returned (os._exit?)")
    cause = supervisor.cause
    if status != 0:
        early, lacked = (supervisor.early(cause), supervisor.lacked_by(cause)) if cause else (None, "")
        if early:
            raise _failed(f"rank {early.part.rank} returned from fn, and others were not done: {cause.last_error.text}")
        raise _failed(_why(folder, supervisor.attempt, cause, lacked) if cause else
                      f"the job ended early: {cli.who_was_told(supervisor)}")


def _failed(why: str) -> PeerError:
    error = PeerError(why)
    error.of_launched = True
    return error


def _why(folder: str, attempt: str, cause: typing.Any, lacked: str) -> str:
    """The failed part and its reason. cause: psrun's Watched; lacked: whom it waited for."""
    is_worker, rank = cause.part.role == "worker", cause.part.rank
    name = f"rank {rank}" if is_worker else f"server {rank}"
    if is_worker and os.path.exists(path := _path(folder, attempt, rank, "error")):
        with open(path, encoding="utf-8") as f:
            line, _, text = f.read().rstrip().partition("\n")
        lacked = lacked and f" ({lacked.replace('worker', 'rank')})"
        return f"{name} failed: {line}{lacked}\n\nOn {name}:\n{text}"
    if cause.may_lack_memory:
        return f"{name} {cause.how}; if nobody killed it, memory was short (dmesg)"
    words = cause.last_error.text or cause.last_line if cause.has_last_words else ""
    return f"{name} {cause.how}" + (f": {words}" if words else "")


class _Shown:
    """psrun's screen, for workers: their lines go to this process's stdout, which may be a notebook's."""

    terminal, verbose = False, True  # all lines come here

    def __init__(self, everybody: bool, tells: bool) -> None:
        self._everybody = everybody
        self._tells = tells  # psrun's own words, too
        self._bar = 0  # the length of a progress bar's state that stands in the last line

    def line(self, part: typing.Any, text: str, _: object) -> None:
        if part.role == "worker" and (part.rank == 0 or self._everybody):
            text = f"[rank {part.rank}] {text}" if part.rank else text
            self._print(("\r" if self._bar else "") + text.ljust(self._bar) + "\n")
            self._bar = 0

    def progress(self, part: typing.Any, text: str) -> None:
        if part.name == "worker 0":
            self._print("\r" + text.ljust(self._bar))
            self._bar = len(text)

    def say(self, text: str = "") -> None:
        if self._tells and text:
            self._print(f"{text}\n")
        log.info("%s", text)

    say_in_red = say

    def begin(self) -> None:
        pass

    def keep_bar(self) -> None:
        if self._bar:
            self._print("\n")

    @staticmethod
    def _print(text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # which may lack some of the characters
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)


# ---- what travels ----

def _path(folder: str, attempt: str, rank: "int | str", what: str) -> str:
    return os.path.join(folder, f"{attempt}.{rank}.{what}")


def _write(path: str, content: bytes) -> None:
    with open(path + ".part", "wb") as f:
        f.write(content)
    os.rename(path + ".part", path)


def _pack(fn: typing.Any, args: typing.Any) -> bytes:
    """What a worker needs: multiprocessing's preparation, the call, whether its functions are inside."""
    from multiprocessing import spawn

    all_of_it = spawn.get_preparation_data("worker")
    prepares = {key: all_of_it[key] for key in ("sys_path", "sys_argv", *_MAIN) if key in all_of_it}
    if not os.path.exists(prepares.get(_MAIN[1], "/")):
        del prepares[_MAIN[1]]  # python3 < script
    if prepares.get(_MAIN[0], "").split(".")[-1] == "__main__":
        del prepares[_MAIN[0]]  # python3 -m package: spawn does not import its __main__.py
    call, by_value = _pickled(fn, tuple(args), any(key in prepares for key in _MAIN))
    if by_value or not _is_of_main(call):  # the script is not needed
        prepares = {key: value for key, value in prepares.items() if key not in _MAIN}
    return pickle.dumps((prepares, call, by_value))


def _is_of_main(call: bytes) -> bool:
    """Whether the script defines some of it; a worker that imports it has it by multiprocessing's name."""
    return b"__main__" in call or b"__mp_main__" in call


def _pickled(fn: typing.Any, args: "tuple[typing.Any, ...]", has_main: bool) -> "tuple[bytes, bool]":
    """(the call, whether its functions are inside); has_main: __main__ can be imported."""
    try:
        call = pickle.dumps((fn, args))
        if has_main or not _is_of_main(call):
            return call, False
        why = "a worker cannot import where it is defined (a notebook, standard input, a __main__.py)"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        why = str(error)
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise InputError(f"fn: {fn!r} or its arguments cannot be sent to a worker: {why}: pip install cloudpickle, or "
                         "put the function into a module") from None
    try:
        return cloudpickle.dumps((fn, args)), True
    except Exception as error:
        raise InputError(f"fn: {fn!r} or its arguments cannot be sent to a worker: {error}") from error


def _result(folder: str, attempt: str, rank: int) -> typing.Any:
    try:
        with open(_path(folder, attempt, rank, "result"), "rb") as f:
            return pickle.load(f)
    except Exception as error:
        raise Error(f"rank {rank}: the result of fn cannot be unpickled here: {error}") from error


# ---- a worker ----

def work(folder: str) -> None:
    """A worker process of `launch`, from its begin to its end."""
    global _imports
    mine = functools.partial(_path, folder, os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
    sys.excepthook = functools.partial(_keep, mine("error"))
    jobs.watch_exceptions()
    from multiprocessing import spawn

    with open(os.path.join(folder, "call"), "rb") as f:
        prepares, call, by_value = pickle.load(f)
    _imports = True
    spawn.prepare(prepares)
    fn, args = pickle.loads(call)
    _imports = False
    try:
        result = fn(*args)
    except SystemExit as end:
        raise Error(f"fn called sys.exit({end.code!r}): it has to return") from end
    packed = _pickled_result(result, by_value)
    if jobs.is_initialized() and jobs.current().in_step():
        raise Error("fn has returned in the middle of a step: after backward() comes optimizer.step()")
    _write(mine("result"), packed)
    if jobs.is_initialized():
        _events.tell_exits()
        with contextlib.suppress(PeerError):  # they tell their failure
            jobs.shutdown()


def _pickled_result(result: typing.Any, by_value: bool) -> bytes:
    try:
        if by_value:
            import cloudpickle

            return bytes(cloudpickle.dumps(result))
        return pickle.dumps(result)
    except Exception as error:
        raise Error(f"the result of fn cannot be pickled: {error}") from error


def _keep(path: str, kind: "type[BaseException]", error: BaseException, where: typing.Any) -> None:
    """sys.excepthook: the caller shows the traceback, below the line that says most."""
    text = "".join(traceback.format_exception(kind, error, where))
    _write(path, f"{_events.line_of(error)}\n{text}".encode(errors="backslashreplace"))
