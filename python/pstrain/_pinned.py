"""Tensors on a GPU in calls that work in host memory: their copies in pinned memory."""
from __future__ import annotations

import functools
import typing

import torch

from ._futures import not_compiled
from ._session import own_thread

if typing.TYPE_CHECKING:
    import queue

_cuda: typing.Any = torch.cuda  # not all of its functions have types


class Copies:
    """A GPU's two streams for copies. Its methods are what a test without a GPU replaces."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out, self._in = _cuda.Stream(device), _cuda.Stream(device)

    def memory(self, like: torch.Tensor) -> torch.Tensor:
        """Contiguous, in host memory."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True, device="cpu")

    def leave(self, host: torch.Tensor, tensor: torch.Tensor, after: typing.Any) -> typing.Any:
        """host becomes the tensor, as it is after what the program has asked for, and not before the copy `after`, if
        there is one. Returns what has synchronize()."""
        self._out.wait_stream(_cuda.current_stream(self.device))
        if after is not None:
            self._out.wait_event(after)
        with _cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._out)
            return self._out.record_event()

    def arrive(self, tensor: torch.Tensor, host: torch.Tensor, then: "typing.Callable[[], None]") -> typing.Any:
        """The tensor becomes host. then is called with the stream of the copy as the present one."""
        with _cuda.stream(self._in):
            tensor.copy_(host, non_blocking=True)
            tensor.record_stream(self._in)
            copied = self._in.record_event()
            then()
            return copied

    def promise_devices(self) -> "list[torch.device]":
        """Of a future whose value is there."""
        return [self.device]


def is_on_gpu(tensor: typing.Any) -> bool:
    """Whether it is one that can be copied; others are refused as on the CPU."""
    return isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor.layout == torch.strided


_known: "dict[torch.device, Copies]" = {}


def copies_of(device: torch.device) -> Copies:
    if device not in _known:
        _known[device] = Copies(device)
    return _known[device]


def devices_of(tensors: typing.Any) -> "list[torch.device]":
    """For a future of these: where they are, other than the CPU."""
    return sorted({device for tensor in _flat(tensors) if is_on_gpu(tensor)
                   for device in copies_of(tensor.device).promise_devices()}, key=str)


# ---- calls of a process group ----

Call = typing.TypeVar("Call", bound="typing.Callable[..., typing.Any]")


def through_host(use: str) -> "typing.Callable[[Call], Call]":
    """A call of a process group that takes tensors on a GPU, too. They are copied to the host before it begins, which
    waits for what the program has asked for, and back when it is done. use: of the first argument: "in", "out" or
    "both"; the others are read."""
    def decorate(call: Call) -> Call:
        @functools.wraps(call)
        def called(self: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            if not _any_on_gpu(args) and not (kwargs and _any_on_gpu(kwargs.values())):
                return call(self, *args, **kwargs)
            awaited: "list[typing.Any]" = []
            back: "list[tuple[torch.Tensor, torch.Tensor]]" = []
            given = [_on_host(argument, awaited, back if i == 0 and use != "in" else None) for i, argument in enumerate(args)]
            named = {name: _on_host(argument, awaited, None) for name, argument in kwargs.items()}
            for copied in awaited:
                copied.synchronize()
            self.give_back(args[0], functools.partial(_bring, back))
            try:
                return call(self, *given, **named)
            finally:
                self.give_back(None, None)
        return typing.cast(Call, not_compiled(called))
    return decorate


def _any_on_gpu(arguments: "typing.Iterable[typing.Any]") -> bool:
    """Every call asks: no generator, which _flat would make for each list."""
    for argument in arguments:
        if _any_on_gpu(argument) if isinstance(argument, (list, tuple)) else is_on_gpu(argument):
            return True
    return False


def _flat(what: typing.Any) -> "typing.Iterator[typing.Any]":
    if isinstance(what, dict):
        what = what.values()
    elif not isinstance(what, (list, tuple)):
        yield what
        return
    for item in what:
        yield from _flat(item)


def _on_host(what: typing.Any, awaited: "list[typing.Any]",
             back: "list[tuple[torch.Tensor, torch.Tensor]] | None") -> typing.Any:
    """The same with tensors in host memory. awaited: copies; back: takes those that are written."""
    if isinstance(what, (list, tuple)):
        return [_on_host(item, awaited, back) for item in what]
    if not is_on_gpu(what):
        return what
    copies = copies_of(what.device)
    host = copies.memory(what)
    awaited.append(copies.leave(host, what.detach(), None))  # of what is only written, too: nobody uses it any more then
    if back is not None:
        back.append((what.detach(), host))
    return host


def _bring(back: "list[tuple[torch.Tensor, torch.Tensor]]") -> None:
    for copied in [copies_of(tensor.device).arrive(tensor, host, lambda: None) for tensor, host in back]:
        copied.synchronize()


# ---- sums of buckets ----

class Buckets:
    """Sums of DistributedDataParallel's buckets, which come and go while the backward pass runs."""

    def __init__(self) -> None:
        import queue

        # By the bucket's place: in pinned memory, and the last copy from there.
        self._hosts: "dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, typing.Any]]" = {}
        self._left: "queue.SimpleQueue[typing.Any]" = queue.SimpleQueue()
        self._thread = own_thread("buckets", self._run)

    def begin(self, buffer: torch.Tensor,
              begin: "typing.Callable[[torch.Tensor, typing.Callable[[BaseException | None], None]], None]",
              done: "typing.Callable[[BaseException | None], None]") -> None:
        """begin(host, done): called in order, when the bucket is in host memory. done: called when the sum is in the
        buffer, or will be there for what waits for the future, or with the error."""
        copies, key = copies_of(buffer.device), (buffer.data_ptr(), buffer.numel(), buffer.dtype)
        host, last = self._hosts.get(key) or (copies.memory(buffer), None)

        def arrive(error: "BaseException | None") -> None:
            if error is not None:
                done(error)
                return
            try:
                with torch.inference_mode():
                    self._hosts[key] = host, copies.arrive(buffer, host, lambda: done(None))
            except Exception as raised:  # of CUDA
                done(raised)

        self._left.put((copies.leave(host, buffer, last), host, begin, arrive))

    def _run(self) -> None:
        while True:
            copied, host, begin, arrive = self._left.get()
            if copied is None:
                return
            try:
                copied.synchronize()
                begin(host, arrive)
            except Exception as raised:  # of CUDA, or of the job
                arrive(raised)
            copied = host = begin = arrive = None

    def end(self) -> None:
        """Must be called before the sums end."""
        self._left.put((None, None, None, None))
        self._thread.join()
