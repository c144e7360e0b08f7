"""Futures of PyTorch that another thread completes."""
from __future__ import annotations

import collections
import functools
import sys
import threading
import typing

import torch
import torch.distributed as dist

from ._session import is_own_thread
from .errors import Error, InputError, TimeoutError

_Any = typing.Any  # PyTorch's types differ between its versions
_Call = typing.TypeVar("_Call", bound="typing.Callable[..., typing.Any]")


def not_compiled(call: _Call) -> _Call:
    """torch.compile leaves it, and what it calls, alone: within a compiled DistributedDataParallel it would read what C++
    calls. torch.compiler.disable does so, too, and would import the compiler at once."""
    frames: _Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(call.__code__, frames._FrameExecStrategy(skip, skip))
    elif hasattr(frames, "skip_code"):  # before 2.7: it skips this frame, and none that it calls
        call = _without_compiler(call, frames.skip_code)
    setattr(call, "_torchdynamo_disable", True)
    return call


def _without_compiler(call: _Call, skip_code: "typing.Callable[[_Any], None]") -> _Call:
    found: "list[_Any]" = []

    @functools.wraps(call)
    def alone(*args: _Any, **options: _Any) -> _Any:
        if not found:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:  # nobody has the compiler yet
                return call(*args, **options)
            found.append(disable(call))
        return found[0](*args, **options)

    call_alone: _Any = alone
    skip_code(call_alone.__code__)
    return typing.cast(_Call, call_alone)


_BaseFuture: _Any = torch.futures.Future


class Future(_BaseFuture):  # type: ignore[misc]
    """What a program gets. Its callbacks run in the thread that adds them, as those of a future that is complete
    already. So a callback may wait for a collective (PowerSGD's do), which the thread that completes futures cannot;
    and all ranks call the collectives of callbacks in one order, which another thread would mix with the program's."""

    def then(self, callback: "typing.Callable[[_Any], _Any]") -> _Any:
        self._complete()
        return super().then(callback)

    def add_done_callback(self, callback: "typing.Callable[[_Any], None]") -> None:
        self._complete()
        super().add_done_callback(callback)

    def _complete(self) -> None:
        try:
            self.wait()
        except RuntimeError:
            pass  # the callback finds it


def check_thread() -> None:
    """Whether this thread may call a collective: its order among the others has to be the same on all ranks."""
    if is_own_thread():
        raise InputError("a collective in a callback that runs when another one is complete "
                         "(torch.futures.collect_all): add the callback to that one's own future")


class Promise:
    """A future and how it is kept. `inner` is the program's. `future` is PyTorch's: an exception set on a future that
    it holds would end the process, one that `then` passes on becomes a RuntimeError."""

    def __init__(self, value: _Any, devices: "list[torch.device] | None" = None) -> None:
        """devices: where the value is, other than the CPU."""
        check_thread()
        self.inner = Future(devices=devices) if devices else Future()
        self._value = value
        self._over = threading.Event()
        self._error: "BaseException | None" = None
        self.future: _Any = _BaseFuture.then(self.inner, lambda f: f.value())

    def keep(self, error: "BaseException | None" = None) -> None:
        """Completes the future with the value, or with the error."""
        self._error = error
        if error is None:
            self.inner.set_result(self._value)
        else:
            self.inner.set_exception(error if isinstance(error, Exception) else Error(str(error)))
        self._value = None
        self._over.set()

    def is_kept(self, well: bool = False) -> bool:
        """Whether it is completed; well: without an error."""
        return self._over.is_set() and not (well and self._error is not None)

    def wait(self, give_up: "typing.Callable[[], None]", seconds: "float | None" = None) -> bool:
        """Returns when it is kept, or False after that many seconds; raises the error. give_up lets it
        be kept early; used after a Ctrl-C."""
        try:
            kept = self._over.wait(seconds)
        except BaseException:
            give_up()
            self._over.wait()
            raise
        if self._error is not None:
            raise self._error
        return kept


_Base: _Any = dist.Work


class Work(_Base):  # type: ignore[misc]
    """What a process group's call returns. The one that PyTorch makes of a future ends its wait
    without a word when the future has failed: the program would go on with tensors half made."""

    def __init__(self, promise: Promise, give_up: "typing.Callable[[], None]", name: str) -> None:
        super().__init__()
        self._promise, self._give_up, self._name = promise, give_up, name
        hold(self)

    @not_compiled
    def wait(self, timeout: typing.Any = None) -> bool:
        """Blocks until the call is done; raises what went wrong. timeout (timedelta): TimeoutError after it, and the
        call goes on; none, or 0: the job's own deadline."""
        if not is_asked_by_autograd():  # within join() DistributedDataParallel asks for its future next
            let_go(self)
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._promise.wait(self._give_up, seconds if seconds > 0 else None):
            raise TimeoutError(f"{self._name} is not done after {seconds:g} s (timeout= of wait)")
        return True

    def synchronize(self) -> None:
        self.wait()

    @not_compiled
    def get_future(self) -> _Any:
        let_go(self)
        return self._promise.future if is_asked_by_autograd() else self._promise.inner

    def result(self) -> typing.Any:
        self.wait()
        return self._promise.inner.value()

    def is_completed(self) -> bool:
        return self._promise.is_kept()

    def is_success(self) -> bool:
        return self._promise.is_kept(well=True)


def is_asked_by_autograd() -> bool:
    """Whether the caller's caller is the C++ of DistributedDataParallel, within a backward pass."""
    try:
        return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.autograd")
    except ValueError:  # a thread of autograd's, without Python
        return True


# Callers in C++ keep a Work without its Python half in older versions of PyTorch, and would wait
# for ever: it has to live until they call it. Of those that nobody waits for, some live on.
MOST_HELD = 64
_held: "collections.OrderedDict[int, Work]" = collections.OrderedDict()
_held_lock = threading.RLock()


def hold(work: Work) -> None:
    with _held_lock:
        _held[id(work)] = work
        while len(_held) > MOST_HELD and next(iter(_held.values())).is_completed():
            _held.popitem(last=False)


def let_go(work: Work) -> None:
    with _held_lock:
        _held.pop(id(work), None)
