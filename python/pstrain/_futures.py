"""Futures of PyTorch that another thread completes."""
from __future__ import annotations

import collections
import threading
import typing

import torch
import torch.distributed as dist

from .errors import Error


class Promise:
    """A future and how it is kept. `future` is what PyTorch gets: an exception set on a future
    that it holds would end the process, one that `then` passes on becomes a RuntimeError."""

    def __init__(self, value: typing.Any) -> None:
        self._inner: "torch.futures.Future[typing.Any]" = torch.futures.Future()
        self._value = value
        self._over = threading.Event()
        self._error: "BaseException | None" = None
        self.future = self._inner.then(lambda f: f.value())

    def keep(self, error: "BaseException | None" = None) -> None:
        """Completes the future with the value, or with the error."""
        self._error = error
        if error is None:
            self._inner.set_result(self._value)
        else:
            self._inner.set_exception(error if isinstance(error, Exception) else Error(str(error)))
        self._value = None
        self._over.set()

    def is_kept(self, well: bool = False) -> bool:
        """Whether it is completed; well: without an error."""
        return self._over.is_set() and not (well and self._error is not None)

    def wait(self, give_up: "typing.Callable[[], None]") -> None:
        """Returns when it is kept; raises the error. give_up lets it be kept early; used after a
        Ctrl-C."""
        try:
            self._over.wait()
        except BaseException:
            give_up()
            self._over.wait()
            raise
        if self._error is not None:
            raise self._error


_Base: typing.Any = dist.Work  # its type differs between the versions of PyTorch


class Work(_Base):  # type: ignore[misc]
    """What a process group's call returns. The one that PyTorch makes of a future ends its wait
    without a word when the future has failed: the program would go on with tensors half made."""

    def __init__(self, promise: Promise, give_up: "typing.Callable[[], None]") -> None:
        super().__init__()
        self._promise, self._give_up = promise, give_up
        _hold(self)

    def wait(self, timeout: typing.Any = None) -> bool:
        """Blocks until the call is done; raises what went wrong. timeout: the job has its own."""
        _let_go(self)
        self._promise.wait(self._give_up)
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> "torch.futures.Future[typing.Any]":
        _let_go(self)
        return self._promise.future

    def result(self) -> typing.Any:
        return self._promise.future.wait()

    def is_completed(self) -> bool:
        return self._promise.is_kept()

    def is_success(self) -> bool:
        return self._promise.is_kept(well=True)


# Callers in C++ keep a Work without its Python half in older versions of PyTorch, and would wait
# for ever: it has to live until they call it. Of those that nobody waits for, some live on.
MOST_HELD = 64
_held: "collections.OrderedDict[int, Work]" = collections.OrderedDict()
_held_lock = threading.RLock()


def _hold(work: Work) -> None:
    with _held_lock:
        _held[id(work)] = work
        while len(_held) > MOST_HELD and next(iter(_held.values())).is_completed():
            _held.popitem(last=False)


def _let_go(work: Work) -> None:
    with _held_lock:
        _held.pop(id(work), None)
