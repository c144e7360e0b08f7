"""The programs that the package brings: psrun and ps-server."""
from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import typing

from . import errors
from ._library import PACKAGE

_TREE = PACKAGE.parent.parent  # of a checkout


def find(name: str) -> "str | None":
    """Of a program of pstrain: PS_BUILD_DIR's, the package's own, a checkout's, or that in PATH."""
    named = os.environ.get("PS_BUILD_DIR")
    folders = [os.path.join(named, "bin")] if named else []
    folders += [str(PACKAGE / "bin"), str(_TREE / "build" / "release" / "bin")]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name)


def why_no_server() -> str:
    """Where `find` has found none."""
    named = os.environ.get("PS_BUILD_DIR")
    return ("there is no ps-server" + (f" in {named}/bin (PS_BUILD_DIR), in the package or in PATH: correct it" if named else
            ": install pstrain again (pip install ./python brings it), or name the folder of a build with PS_BUILD_DIR"))


def server() -> None:
    """`pstrain-server`: the program ps-server, in this process. With --store HOST:PORT its address
    goes through torchrun's store."""
    path = find("ps-server")
    if path is None:
        sys.exit(f"pstrain-server: {why_no_server()}")
    if any(word.split("=")[0] == "--store" for word in sys.argv[1:]):
        from . import _store

        _store.main(path)
    os.execv(path, [path, *sys.argv[1:]])


def psrunlib(module: str) -> typing.Any:
    """A module of which psrun is made. The search path stays as it is."""
    for folder in (PACKAGE / "psrun", _TREE / "deploy"):
        if (folder / "psrunlib").is_dir():
            sys.path.insert(0, str(folder))
            try:
                return importlib.import_module(f"psrunlib.{module}")
            finally:
                sys.path.remove(str(folder))
    raise errors.Error(f"psrun is not in {PACKAGE}: install the package again")


def build_dir() -> "str | None":
    """The folder whose bin has the programs."""
    path = find("ps-server")
    return os.path.dirname(os.path.dirname(path)) if path else None


def killed_for_memory() -> int:
    """How many processes the kernel has killed up to now because no memory was left."""
    return int(psrunlib("cgroup").killed_for_memory())


def last_words(name: str, code: "int | None", killed_before: int) -> str:
    """What a server that has failed cannot tell itself: how it was killed, or that a worker was, which it only knows to be
    dead; "": nothing. code: None: it still runs; killed_before: killed_for_memory() at its begin."""
    lacks_memory = killed_for_memory() > killed_before
    if code is not None and code < 0:
        return f"{name} {psrunlib('watched').killed(-code, lacks_memory and code == -signal.SIGKILL)}"
    return f"the kernel has killed a process on the host of {name}: no memory was left" if lacks_memory and code != 0 else ""


def plan(program: "list[str]", servers: int, workers: int, settings: "list[str]", restarts: int = 0) -> typing.Any:
    """psrun's Job whose workers run the program."""
    for name, n, least in (("workers", workers, 1), ("servers", servers, 0), ("restarts", restarts, 0)):
        if isinstance(n, bool) or not isinstance(n, int) or n < least:
            raise errors.InputError(f"{name}: {n!r} is not a number from {least}")
    cli = psrunlib("cli")
    options = cli.parser().parse_args([])
    options.servers, options.workers, options.overrides = servers, str(workers), settings
    options.build_dir, options.restarts = build_dir(), restarts
    cli.take_numbers(options)
    return cli.plan_program(options, program)


@contextlib.contextmanager
def job_errors(who: str) -> "typing.Iterator[None]":
    """What psrun refuses is an InputError."""
    try:
        yield
    except psrunlib("errors").JobError as error:
        raise errors.InputError(f"{who}: {error}") from None


def psrun() -> "int":
    """`psrun`: starts servers and workers."""
    folder = build_dir()
    if folder is not None:
        os.environ.setdefault("PS_BUILD_DIR", folder)
    return int(psrunlib("cli").main(sys.argv[1:]))
