"""Parameters on a GPU: they and their gradients lie in two arenas there, and the library copies between these and the
host's (pstrain.h, "device"). It asks for the copies by itself; the program waits on streams, not on the host. Only what
is needed of PyTorch is here: memory, streams, and whether CUDA graphs are in use.
"""
from __future__ import annotations

import ctypes
import typing

import torch

from . import _library as c
from ._session import Session
from ._slots import Slot, place_of, write
from .errors import InputError

_DTYPES = {torch.float32: 0, torch.float16: 7, torch.bfloat16: 8}  # pstrain.h's numbers
_cuda: typing.Any = torch.cuda  # not all of its functions have types


class Gpu:
    """The GPU of a job's parameters, and their arenas there."""

    driver: "bytes | None" = None  # NVIDIA's

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._session: typing.Any = None  # from open to end

    # ---- what PyTorch has ----

    def _ordinal(self) -> int:
        return self.device.index if self.device.index is not None else int(_cuda.current_device())

    def _memory(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8, device=self.device)

    def _stream(self) -> "int | None":
        return int(_cuda.current_stream(self.device).cuda_stream) or None

    def is_capturing(self) -> bool:
        """Whether the program records a CUDA graph."""
        return bool(_cuda.is_current_stream_capturing())

    # ---- arenas ----

    def open(self, session: Session, slots: "typing.Collection[Slot]") -> None:
        """Between the session's open and start. The slots' weights and gradients become views of the arenas."""
        dtypes = (c.c_int * len(slots))(*(_DTYPES[slot.sent.dtype] for slot in slots))
        options = c.DeviceOptions(ctypes.sizeof(c.DeviceOptions), self._ordinal(), dtypes, self.driver)
        session.call("pstrain_device_open", c.byref(options))
        self._session = session
        n_bytes = int(session.library.pstrain_device_bytes(session.pointer()))
        try:
            arenas = self._memory(n_bytes), self._memory(n_bytes)
        except RuntimeError as error:  # torch.cuda.OutOfMemoryError
            raise InputError(f"rank {session.rank}: the GPU has no room for the parameters and gradients of "
                             f"pstrain.Optimizer, 2 x {n_bytes >> 20} MiB: {error}") from error
        session.memory().on_gpu = arenas  # until no copy is on its way
        session.call("pstrain_device_arenas", *(arena.data_ptr() for arena in arenas))
        for slot in slots:
            at = int(session.library.pstrain_device_offset(session.pointer(), slot.index))
            slot.weights, slot.grads = (
                place_of(slot.sent, arena[at:at + slot.sent.numel() * slot.sent.element_size()].view(slot.sent.dtype), 0)
                for arena in arenas)
            slot.grads = slot.grads.data  # with a version of its own

    def wait(self, first: int, n: int) -> None:
        """What the present stream is given from now on runs with the weights after all steps."""
        self._session.wait_here("pstrain_device_wait", first, n, self._stream())

    def push(self, slot: Slot, grad: torch.Tensor, factor: float) -> None:
        """The gradient, which the present stream writes, leaves times factor."""
        here = factor if slot.grads.dtype == torch.float32 else 1.0  # others are multiplied as float32, on the host
        if grad.data_ptr() != slot.grads.data_ptr() or here != 1.0:
            write(slot.grads, grad, here)
        self._session.call("pstrain_device_push", slot.index, self._stream(), factor / here)

    def push_none(self, first: int, n: int) -> None:
        self._session.call("pstrain_device_push_none", first, n, self._stream())

    def end(self) -> None:
        """Blocks until the copies are made. The arenas go when nobody holds a view of them."""
        session, self._session = self._session, None
        if session is not None and session.library.pstrain_device_close(session.pointer()) == c.OK:
            session.memory().on_gpu = None

    # ---- CUDA graphs of the program ----

    def before_forward(self, module: torch.nn.Module, slots: "list[Slot]", known: "dict[int, Slot]", rank: int,
                       captures: bool) -> "list[Slot]":
        """slots: of the module itself; known: all, by id of the parameter; captures: is_capturing(). Returns the slots to
        be waited for: of a module that was captured those of the modules in it, too, as its replay calls no hook. A
        graph keeps the places of parameters: it has to be captured when they are in the arena."""
        if captures:
            if self._session is None or not all(slot.fresh for slot in slots):
                raise InputError(f"rank {rank}: a CUDA graph of this model is captured before its weights are in "
                                 "their place: call optimizer.start(), and after steps optimizer.synchronize(), before")
            for slot in slots:
                slot.captured = True
            return []
        if getattr(module.__dict__.get("forward"), "__module__", "") != "torch.cuda.graphs":
            return slots
        inner = [known[id(p)] for p in module.parameters() if id(p) in known]
        for slot in inner:
            if not slot.captured:
                raise InputError(f"rank {rank}: the CUDA graph of this model was captured before parameter '{slot.name}' "
                                 "had its place: call optimizer.start() before torch.cuda.make_graphed_callables, and capture "
                                 "again when parameters were added or unfrozen, which moves all of them")
        return inner

    def on_gradient(self, slot: Slot, rank: int) -> None:
        slot.hooked = True
        if self.is_capturing():
            raise InputError(f"rank {rank}: the backward pass of parameter '{slot.name}' is captured in a CUDA graph, "
                             "whose replay would send no gradient: capture the forward pass alone "
                             "(torch.cuda.make_graphed_callables), or leave the graph")

    def check_step(self, slots: "typing.Iterable[Slot]", forward: bool, rank: int) -> None:
        """InputError where gradients come from the replay of a whole step: its forward pass has called no hook, and
        has used weights that nobody has waited for. forward: there was one that did."""
        for slot in slots:
            if slot.param.grad is not None and not slot.hooked and not forward:
                raise InputError(f"rank {rank}: parameter '{slot.name}' has a gradient, but there was neither a forward "
                                 "nor a backward pass since the last step(): the replay of a CUDA graph of whole steps "
                                 "cannot be used, since it reads weights that have not arrived")
            slot.hooked = False


def find(param: torch.Tensor) -> "Gpu | None":
    """The GPU where the parameter is; None: it is on the CPU."""
    return None if param.device.type == "cpu" else Gpu(param.device)
