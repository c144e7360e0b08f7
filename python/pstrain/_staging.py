"""Parameters on a GPU: their gradients and weights pass through the arenas, which are in host
memory. No GPU was at hand when this was written: it is tested with a stand-in for the device.

Copies run on a stream of their own. A gradient leaves for the servers when its copy has arrived:
this is looked at whenever the next gradient is there, and at the end of the step.
"""
from __future__ import annotations

import collections
import typing

import torch

if typing.TYPE_CHECKING:
    from ._slots import Slot


class Cuda:
    """A GPU, its side stream, and the arenas as pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda: typing.Any = torch.cuda  # not all of its functions have types
        self.stream = cuda.Stream(device)
        self._runtime = cuda.cudart()

    def pin(self, arena: torch.Tensor) -> None:
        """Copies from and to pinned memory do not hold up the program. A refusal only makes them
        slower."""
        self._runtime.cudaHostRegister(arena.data_ptr(), arena.numel() * arena.element_size(), 0)

    def unpin(self, arena: torch.Tensor) -> None:
        self._runtime.cudaHostUnregister(arena.data_ptr())

    def copy(self, out: torch.Tensor, values: torch.Tensor, factor: float = 1.0) -> typing.Any:
        """out becomes values times factor, on the side stream, after what the program has asked
        for. Returns what can be waited for: query(), synchronize()."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            scaled = values if factor == 1.0 else values.float() * factor
            out.copy_(scaled, non_blocking=True)
            values.record_stream(self.stream) if values.is_cuda else out.record_stream(self.stream)
            return self.stream.record_event()

    def follow(self, copied: typing.Any) -> None:
        """What the program asks for from now on runs after the copy."""
        torch.cuda.current_stream(self.device).wait_event(copied)


class Staging:
    """The copies of one optimizer. device: Cuda, or what has its methods.
    push(first, n): hands arrived gradients to the servers."""

    def __init__(self, device: typing.Any, push: "typing.Callable[[int, int], None]",
                 arenas: "list[torch.Tensor]") -> None:
        self._device, self._push, self._arenas = device, push, arenas
        self._leaving: "collections.deque[tuple[int, typing.Any]]" = collections.deque()
        self._arriving: "dict[int, typing.Any]" = {}  # weights, by index
        for arena in arenas:
            device.pin(arena)

    def send(self, slot: "Slot", grad: torch.Tensor, factor: float) -> None:
        """Begins the copy of a gradient; pushes those that have arrived."""
        self._leaving.append((slot.index, self._device.copy(slot.grads, grad, factor)))
        while self._leaving and self._leaving[0][1].query():
            self._push(self._leaving.popleft()[0], 1)

    def finish(self) -> None:
        """Blocks until every gradient has been pushed."""
        while self._leaving:
            index, copied = self._leaving.popleft()
            copied.synchronize()
            self._push(index, 1)

    def take(self, slot: "Slot") -> None:
        """Its new weights go to the device, before whatever the program does next there."""
        with torch.no_grad():
            copied = self._device.copy(slot.param, slot.weights)
        self._device.follow(copied)
        self._arriving[slot.index] = copied

    def arrived(self, index: int) -> None:
        """Blocks until the weights of the parameter have left the arena."""
        copied = self._arriving.pop(index, None)
        if copied is not None:
            copied.synchronize()

    def end(self) -> None:
        for index in list(self._arriving):
            self.arrived(index)
        for arena in self._arenas:
            self._device.unpin(arena)
