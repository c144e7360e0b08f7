"""The job that this process is a worker of: joining, leaving, and small collectives."""
from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import json
import logging
import os
import re
import sys
import types
import typing
import weakref

from . import _checks, _events, _library, _store, errors
from ._defaults import DEFAULTS
from ._reducer import Reducer
from ._session import Session

if typing.TYPE_CHECKING:
    import torch

    from ._pinned import Buckets
    from ._transfers import Links
    from .process_group import ProcessGroup

log = logging.getLogger("pstrain")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
MEND = ("every rank has to make the same calls and steps: where they have different numbers of batches, cut them "
        "(drop_last=True) or take join()")
_OPS = {"sum": 0, "min": 1, "max": 2, "product": 3, "mean": 4}  # pstrain_op's numbers
OF_BOOLS = {0: 2, 4: 2, 3: 1}  # instead of these, where a sum of bytes would be 2

Settings = typing.Union[typing.Mapping[str, typing.Any], typing.Iterable[str], None]


class Job:
    """What `init` returns. As a context manager it leaves the job at the end of the block, and
    ends it for everybody, with the reason, if the block raises."""

    def __init__(self, session: Session, settings: "list[str]") -> None:
        self.session = session
        self.settings = settings
        self.opened_by = ""  # what the servers do in this job: "Optimizer" or "sums"
        self.sums = False  # there is a process group or a hook, which may sum
        self._summed_by = ""  # lets_sum
        self.at_end: "list[typing.Callable[[], None]]" = []
        self.in_step: "typing.Callable[[], bool]" = lambda: False  # whether a step has begun
        self.before_leaving: "list[typing.Callable[[], None]]" = []
        self._reducer: "Reducer | None" = None
        self._reducer_settings: "list[str]" = []
        self._buckets: "Buckets | None" = None
        self._table: typing.Any = None
        self._rows: typing.Any = None
        self._links: "Links | None" = None
        self.everybody: "ProcessGroup | None" = None  # process_group.of_everybody
        # Parameters that hook.py has looked at, by their ids.
        self.hooked: "weakref.WeakValueDictionary[int, torch.Tensor]" = weakref.WeakValueDictionary()

    @property
    def rank(self) -> int:
        return self.session.rank

    @property
    def size(self) -> int:
        return self.session.world_size

    def claim(self, what: str) -> None:
        """The servers of a job do one thing."""
        if self.opened_by:
            raise errors.InputError(
                f"rank {self.rank}: this job's servers already work for {self.opened_by}: "
                f"{what} needs a job of its own (another process, with servers of its own)")
        self.opened_by = what

    def table(self, make: "typing.Callable[[Job], typing.Any]") -> typing.Any:
        """The table of all Optimizers, made by the first one."""
        if self._table is None:
            self.claim("a pstrain.Optimizer")
            self._table = make(self)
        return self._table

    def rows(self, make: "typing.Callable[[Job], typing.Any] | None" = None) -> typing.Any:
        """The embedding tables; made by the first module that has one. None: there are none."""
        if self._rows is None and make is not None:
            self._rows = make(self)
        return self._rows

    def start_table(self) -> bool:
        """Opens the job with the Optimizers' parameters. False: there is no Optimizer."""
        if self._table is not None:
            self._table.start()
        return self._table is not None

    def is_opened(self) -> bool:
        return bool(self._table.opened if self._table is not None else self.opened_by)

    def reducer(self, settings: "typing.Sequence[str]" = ()) -> Reducer:
        """The sums by the servers, opened by the first call. Collective then."""
        if self._reducer is None:
            self.claim("sums of gradients (a hook or a process group)")
            self._reducer = Reducer(self.session, list(settings))
            self._reducer_settings = _unlike_default(settings)
        return self._reducer

    def lets_sum(self, who: str) -> bool:
        """Whether large sums of this one's calls may go through the servers: those of the first that asks, for the servers
        match sums by their order, which ranks keep among the calls of one alone. All ranks ask in the same order."""
        self._summed_by = self._summed_by or who
        return self._summed_by == who

    def buckets(self) -> "Buckets":
        """Of DistributedDataParallel, on a GPU, whose sums the servers make."""
        if self._buckets is None:
            from ._pinned import Buckets

            self._buckets = Buckets()
        return self._buckets

    def links(self) -> "Links":
        """Between the workers; made by the first call, which is collective."""
        if self._links is None:
            from ._transfers import Links  # it imports PyTorch

            self._links = Links(self.session)
            self.at_end.append(self._links.end)
        return self._links

    def all_reduce(self, tensor: "torch.Tensor", op: int) -> None:
        """Through the coordinator. op: pstrain_op's number; the tensor is one that travels (_checks)."""
        import torch

        op = OF_BOOLS.get(op, op) if tensor.dtype == torch.bool else op
        if tensor.numel():
            self.session.all_reduce(tensor.data_ptr(), tensor.numel(), dtypes()[tensor.dtype], op)

    def can_reduce(self, settings: "typing.Sequence[str]" = ()) -> bool:
        """False where an Optimizer has the servers, or sums with other settings have."""
        if self._reducer is not None:
            return self._reducer_settings == _unlike_default(settings)
        return not self.opened_by and (self.session.servers > 0 or self.size == 1)

    def _trains_alone(self) -> bool:
        """Whether PyTorch may have trained here without the servers that there are."""
        return ("torch" in sys.modules and self.session.servers > 0 and not self.opened_by and not self.sums
                and not self.session.failure)

    def leave(self) -> None:
        """Waits until every worker has called it."""
        if self.session.pid != os.getpid():
            return  # the job is the parent's
        if not self.session.failure:
            for call in self.before_leaving:
                call()
        if self._trains_alone():
            why = ("it has sent the servers no gradient: the program made no pstrain.Optimizer, and an optimizer of "
                   "PyTorch's trains each worker's model by itself")
            self.abort(why)
            raise errors.InputError(f"rank {self.rank}: {why}")
        self._end(self._close)

    def _close(self) -> None:
        try:
            self.session.close()
        except errors.TimeoutError as error:
            raise errors.TimeoutError(f"{error}: {MEND}") from None

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. The others get a PeerError with the reason."""
        self._end(lambda: self.session.abort(reason))

    def end_at_once(self, reason: str) -> None:
        """As abort, and returns when the others have been told: the process ends."""
        self._end(lambda: self.session.abort(reason), at_once=True)

    def _end(self, how: "typing.Callable[[], None]", at_once: bool = False) -> None:
        global _job, _was_left
        if self.session.pid != os.getpid():
            return  # the job is the parent's
        if _job is self:
            _job, _was_left = None, True
        try:
            how()
        except BaseException as error:
            # No call waits any more.
            self.session.abort(f"it could not leave the job: {_reason(error)}")
            raise
        finally:
            if self._buckets is not None:
                self._buckets.end()
            if self._reducer is not None:
                self._reducer.end()
            for call in self.at_end:
                call()
            self.session.destroy(at_once)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None",
                 where: "types.TracebackType | None") -> None:
        if _job is not self:
            return  # shut down already
        if error is None or isinstance(error, SystemExit) and not error.code and not self.in_step():
            self.leave()
            return
        if isinstance(error, SystemExit):
            _tell_exits(self)
        self.abort(_reason(error))


def _unlike_default(settings: "typing.Sequence[str]") -> "list[str]":
    return [word for word in settings if word != "exchange.codec=none"]


_job: "Job | None" = None
_was_left = False  # a job


def init(init_method: "str | None" = None, *, rank: "int | None" = None,
         world_size: "int | None" = None, servers: "int | None" = None,
         settings: Settings = None) -> Job:
    """Joins the job, and waits until all its workers and servers have joined.

    init_method: where server 0 is: "tcp://host:port", "file:///path" on a file system that all
    see, or "env://" (MASTER_ADDR and PS_PORT or MASTER_PORT). Not given: as psrun says; under
    torchrun what `pstrain-server --store`, or rank 0 of a job without servers, has said in its store; else env://.
    rank, world_size, servers: not given: RANK, WORLD_SIZE and PS_SERVERS.
    settings: keys of docs/configuration.md, as {"exchange.codec": "int8"} or
    ["exchange.codec=int8"]; the same on every rank.

    Raises InputError (a bad argument, or a second call), TimeoutError (names who is missing
    after net.join_timeout_ms), PeerError (this worker was refused, with the reason).
    """
    global _job
    if _job is not None:
        raise errors.InputError(f"rank {_job.rank}: pstrain.init was called twice: a process is "
                                "in one job; pstrain.shutdown() leaves it")
    watch_exceptions()
    words = json.loads(os.environ.get("PS_SETTINGS") or "[]") + as_words(settings)
    check_effect(words)
    by_launcher = "PS_SETTINGS" in os.environ or _store.is_torchruns(os.environ)  # it has started the servers
    if _was_left and init_method is None and by_launcher:
        raise errors.InputError("this process has left its job, and the job's servers have ended: under psrun and "
                                "torchrun a process is in one job. Call pstrain.shutdown() once, at the end; "
                                "start psrun again for another job")
    init_method = init_method or os.environ.get("PS_INIT_METHOD")
    if init_method is None and _store.is_there(os.environ):
        patience = seconds(words, "net.join_timeout_ms")
        if servers != 0 and _store.is_torchruns(os.environ):
            init_method, servers = _store.find(os.environ, patience)
        elif not servers:
            init_method = _store.meet(os.environ, int(os.environ.get("RANK", "0")) if rank is None else rank, patience)
    session = Session(init_method, rank, world_size, servers, words)
    try:
        session.join()
    except BaseException:
        session.destroy()
        raise
    _job = Job(session, words)
    _register_backend()
    return _job


def value_of(words: "list[str]", key: str) -> "str | None":
    """Of settings: the last one's, which may be in its section: exchange={codec: int8}. None: it is not given."""
    section, _, name = key.partition(".")
    for word in reversed(words):
        given, _, value = word.partition("=")
        if given == key:
            return value.strip()
        found = re.search(rf"""[{{,\s"']{name}["']?\s*:\s*["']?([^,}}"'\s]+)""", value) if given == section else None
        if found is not None:
            return found[1]
    return None


def seconds(words: "list[str]", key: str) -> float:
    """Of settings: a time in ms."""
    value = value_of(words, key)
    return int(value) / 1000 if value is not None and value.isdigit() else _store.JOIN_SECONDS


# Keys of jobs of layers. In a program its optimizer says them: they would be overridden without a word.
_MENDS = {"optimizer.name": "name it where the program makes its optimizer",
          **{f"optimizer.{option}": f"give {option}= where the program makes its optimizer" for options in DEFAULTS.values()
             for option in options},
          "optimizer.decay_bias_norm": "give biases and norms a parameter group with weight_decay=0",
          **{f"schedule.{name}": "take a scheduler of PyTorch's (torch.optim.lr_scheduler)" for name in ("name", "warmup")}}


def check_effect(words: "list[str]", who: str = "") -> None:
    """InputError for a setting that a program in Python would ignore."""
    for key, mend in _MENDS.items():
        if value_of(words, key) is not None:
            raise errors.InputError(f"{who}settings: {key} has no effect on a PyTorch program: {mend}")
    if value_of(words, "loss_scale.use") in ("on", "true"):
        raise errors.InputError(f"{who}settings: loss_scale.use has no effect on a PyTorch program: give loss_scale=True to "
                                "pstrain.Optimizer, and scale the loss (optimizer.scale)")


def _register_backend() -> None:
    if "torch.distributed" in sys.modules:
        from . import process_group

        process_group.register_backend()


def as_words(settings: Settings) -> "list[str]":
    """Settings as "key=value"."""
    if settings is None:
        return []
    if isinstance(settings, str):
        raise errors.InputError(f"settings: '{settings}' has to be in a list or a dict")
    if isinstance(settings, typing.Mapping):
        words: "list[str]" = []
        for key, value in settings.items():
            section = as_words(value) if isinstance(value, typing.Mapping) else None
            words += [f"{key}={_word(value)}"] if section is None else [f"{key}.{word}" for word in section]
        return words
    return list(settings)


def _word(value: typing.Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def current() -> Job:
    """The job. InputError without one."""
    if _job is None:
        raise errors.InputError("there is no job: call pstrain.init() first, or it has been left "
                                "by pstrain.shutdown()")
    if _job.session.pid != os.getpid():
        raise errors.InputError(f"rank {_job.rank}: a process that was forked cannot use its "
                                "parent's job")
    return _job


def is_initialized() -> bool:
    return _job is not None


def rank() -> int:
    """0 to size() - 1."""
    return current().rank


def size() -> int:
    """How many workers the job has."""
    return current().size


def shutdown() -> None:
    """Leaves the job. Waits until every worker has called it; TimeoutError names the missing."""
    current().leave()


def abort(reason: str) -> None:
    """Ends the job for everybody at once; the others get a PeerError with the reason."""
    job = current()
    _events.tell_abort(reason)
    job.abort(reason)


def should_stop() -> bool:
    """Whether all workers were asked to end in order (Ctrl-C or SIGTERM of a server)."""
    return current().session.should_stop()


def barrier() -> None:
    """Returns when every worker has called it."""
    current().session.barrier()


def all_reduce(tensor: "torch.Tensor", op: str = "sum") -> "torch.Tensor":
    """The tensor becomes the reduction over all ranks, in rank order; returns it.

    op: sum, mean, min, max or product. Integers are exact, halves are reduced in float32. The tensor has the same shape and
    dtype on every rank, is contiguous and on the CPU. It goes through the coordinator: meant for
    small things, such as losses and counts. Raises InputError, PeerError, TimeoutError.
    """
    job = current()
    if op not in _OPS:
        raise errors.InputError(f"rank {job.rank}: op {op!r} is not one of sum, mean, min, max, "
                                "product")
    _checks.check(tensor, "the tensor of all_reduce", job.rank, tuple(dtypes()))
    if op == "mean" and not tensor.is_floating_point():
        raise errors.InputError(f"rank {job.rank}: the mean of {tensor.dtype} would be rounded: "
                                "convert it, or use op='sum'")
    job.all_reduce(tensor, _OPS[op])
    return tensor


@functools.lru_cache(None)
def dtypes() -> "dict[torch.dtype, int]":
    """What collectives take, and its number in pstrain.h."""
    import torch

    return {torch.float32: 0, torch.float64: 1, torch.int8: 2, torch.uint8: 3, torch.bool: 3,
            torch.int16: 4, torch.int32: 5, torch.int64: 6, torch.float16: 7, torch.bfloat16: 8}


def broadcast(what: typing.Any, root: int = 0) -> typing.Any:
    """root's values become everybody's; returns what.

    what: a tensor; a dict, list or tuple of them; or a module, of which all parameters and
    buffers are meant. Any dtype; contiguous, on the CPU, the same shapes and dtypes, in the same order on every rank
    (InputError names the first that is not).
    """
    job = current()
    if not 0 <= root < job.size:
        raise errors.InputError(f"rank {job.rank}: root {root} is not a rank of 0 .. {job.size - 1}")
    named = list(_named(what))
    for name, tensor in named:
        _checks.check(tensor, name, job.rank, (getattr(tensor, "dtype", None),))
    _check_alike(job, [f"{name}: {tuple(t.shape)} {str(t.dtype).replace('torch.', '')}" for name, t in named])
    for _, tensor in named:
        if tensor.numel():
            job.session.broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size(), root)
    return what


def _check_alike(job: Job, words: "list[str]") -> None:
    """InputError on every rank where bytes would become those of another tensor. words: of each tensor."""
    if job.size == 1:
        return
    said = job.session.gather_bytes(hashlib.sha256("\n".join(words).encode()).digest())
    other = next((rank for rank, digest in enumerate(said) if digest != said[0]), None)
    if other is None:
        return
    texts = job.session.gather_texts("\n".join(words))
    first, theirs = texts[0].split("\n"), texts[other].split("\n")
    at = next((i for i, pair in enumerate(zip(first, theirs)) if pair[0] != pair[1]), min(len(first), len(theirs)))
    mine = [list_of[at] if at < len(list_of) else "nothing more" for list_of in (first, theirs)]
    raise errors.InputError(f"rank {job.rank}: broadcast of {mine[0]} on rank 0, and of {mine[1]} on rank {other}: they have to be "
                            "alike, in the same order")


def _named(what: typing.Any) -> "typing.Iterator[tuple[str, torch.Tensor]]":
    import torch

    if isinstance(what, torch.Tensor):
        yield "the tensor of broadcast", what
    elif isinstance(what, torch.nn.Module):
        yield from what.named_parameters()
        yield from what.named_buffers()
    elif isinstance(what, typing.Mapping):
        yield from what.items()
    elif not hasattr(what, "__iter__"):
        yield "the tensor of broadcast", what
    else:
        for index, item in enumerate(what):
            yield from [item] if isinstance(item, tuple) else [(f"tensor {index}", item)]


# ---- the end of the process ----

def _reason(error: BaseException) -> str:
    """For the other ranks."""
    text = _events.text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def watch_exceptions() -> None:
    """psrun is told of an exception that nobody handles, and the job ends for everybody, with its text."""
    global _previous_hook, _pid
    if _previous_hook is None:
        _previous_hook, _pid = sys.excepthook, os.getpid()
        _events.begin()
        sys.excepthook = _on_exception
        atexit.register(_at_exit)


_previous_hook: "typing.Callable[..., typing.Any] | None" = None
_pid = 0  # a child that was forked is not what psrun has started


def _on_exception(kind: "type[BaseException]", error: BaseException,
                  where: "types.TracebackType | None") -> None:
    assert _previous_hook is not None
    if _pid == os.getpid() and not sys.flags.interactive:
        _events.tell_exception(error)
        _events.tell_torchrun(error)
    _previous_hook(kind, error, where)
    sys.stderr.flush()  # before the others' words about it
    if _job is not None and sys.flags.interactive:
        _job.abort(_reason(error))
    elif _job is not None:
        _job.end_at_once(_reason(error))


def _at_exit() -> None:
    """A script that has ended well may have left out shutdown()."""
    if _job is None:
        return
    _tell_exits(_job)
    if _job.session.failure:
        _job.end_at_once(f"it has failed: {_job.session.failure}")
    elif _job.in_step():
        _job.end_at_once("it has ended in the middle of a step (sys.exit?)")
    else:
        _leave_at_exit(_job)


def _tell_exits(job: Job) -> None:
    """Of one whose job has failed already the others are the cause."""
    if _pid == os.getpid() and not job.session.failure:
        _events.tell_exits()


def _leave_at_exit(job: Job) -> None:
    """The others' failure is one line here: nothing of this program can handle it, and its
    traceback would show Python's end."""
    try:
        job.leave()
    except errors.Error as error:
        print(f"{type(error).__module__}.{type(error).__qualname__}: {error}", file=sys.stderr,
              flush=True)


# ---- the library's words ----

def _on_log(_: object, level: int, line: bytes) -> None:
    log.log(_LEVELS[level], "pstrain: %s", line.decode(errors="replace"))


_on_log_c = _library.LOG_FN(_on_log)  # the library calls it as long as it is loaded


def listen(level: int = 2) -> None:
    """The library's log goes to Python's logger "pstrain". level: 0 debug, 1, 2, 3 error.
    Called before there is a job."""
    _library.load().pstrain_set_log(_on_log_c, ctypes.c_void_p(), level)
