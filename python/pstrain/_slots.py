"""The parameters of an Optimizer, and their places in the library's arenas."""
from __future__ import annotations

import ctypes
import functools
import math
import typing
import weakref

import torch

from . import _checks, _library
from ._session import Session
from .errors import InputError


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Slot:
    """One trained parameter: its place in the arenas, and what this step has done with it."""

    __slots__ = ("index", "name", "owner", "group", "param", "sent", "weights", "grads", "place", "host", "address", "version", "sum",
                 "fresh", "pushed", "pushed_version", "pushed_sum", "seen", "hooked", "captured", "__weakref__")

    def __init__(self, name: str, param: torch.Tensor, group: int, doubles: bool) -> None:
        """doubles: a float64 parameter may have its place: the workers sum its gradients."""
        self.index = -1
        self.owner = 0  # the number of its Optimizer
        self.group = group  # its place in that one's param_groups
        self.name = name
        self.param = param
        self.sent = param  # what goes to the servers; of a float64 one: that the rank has a gradient
        if doubles and param.dtype == torch.float64:
            self.sent = torch.ones(1, dtype=torch.float32, device=param.device)
        self.weights: torch.Tensor  # views of the arenas, of the parameter's shape; on a GPU of those there
        self.grads: torch.Tensor
        self.place = 0  # where the gradient's view has to be: the program can move it (share_memory_(), .grad.data = ...)
        self.host: torch.Tensor  # the weights in the library's arena
        self.address = 0  # of the parameter's own memory
        # When only this optimizer had written the parameter: its version, on a GPU; a sum of its memory, else.
        self.version = 0
        self.sum: "int | None" = None
        self.fresh = True  # its weights are those of this step
        self.pushed: "torch.Tensor | None" = None  # the gradient that was sent
        self.pushed_version = 0
        self.pushed_sum: "int | None" = None  # of its memory
        self.seen = False  # a module that owns it has been called
        self.hooked = False  # on a GPU: a backward pass has given it a gradient since the last step
        self.captured = False  # on a GPU: in a CUDA graph, at its present place

    @property
    def is_double(self) -> bool:
        return self.sent is not self.param

    def exact(self) -> torch.Tensor:
        """Its weights in float32, where it has been in a table."""
        return self.host if hasattr(self, "host") else self.sent.detach()


def runs(slots: "list[Slot]") -> "typing.Iterator[tuple[int, int]]":
    """Neighbours together: (index of the first, how many)."""
    first = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at].index != slots[at - 1].index + 1:
            yield slots[first].index, at - first
            first = at


def lacks(total: torch.Tensor) -> bool:
    """Whether no rank has had a gradient: as the library sends it, it is -0.0 (absent.h)."""
    first = total.as_strided((1,), (1,))
    return bool(first == 0 and torch.signbit(first)) and not total.any()


def check_parameter(slot: Slot, rank: int) -> None:
    if slot.param.dtype == torch.float64 and not slot.is_double:
        raise InputError(f"rank {rank}: parameter '{slot.name}' is float64, and the servers step in float32: give the class "
                         "of an optimizer of PyTorch's (torch.optim.AdamW), which each rank then steps; a parameter has its "
                         "dtype when it is given")
    _checks.check(slot.param, f"parameter '{slot.name}'", rank, (torch.float64,) if slot.is_double else DTYPES,
                  any_format=True, gpu=True)


def check_apart(slots: "typing.Iterable[Slot]", rank: int) -> None:
    """InputError where two parameters have memory in common, which the weights of the last one would fill."""
    placed = sorted(slots, key=lambda slot: slot.param.data_ptr())
    for slot, following in zip(placed, placed[1:]):
        if slot.param.data_ptr() + slot.param.numel() * slot.param.element_size() > following.param.data_ptr():
            raise InputError(f"rank {rank}: parameters '{slot.name}' and '{following.name}' are in the same memory (.data = ...): give "
                             "both modules one Parameter (b.weight = a.weight)")


def memory_sum(tensor: torch.Tensor) -> int:
    """Of a dense tensor on the CPU. What is written into it changes the sum, past its version (.data, numpy()), too."""
    return int(_library.load().pstrain_checksum(tensor.data_ptr(), tensor.numel() * tensor.element_size()))


def gradient_sum(slot: Slot, grad: torch.Tensor) -> "int | None":
    """None: it is on a GPU, or in another order in memory than the parameter, which is dense."""
    return memory_sum(grad) if grad.is_cpu and grad.stride() == slot.param.stride() else None


def check_weights(slot: Slot, rank: int) -> None:
    """InputError where somebody else has written or replaced the parameter. It may lie elsewhere (share_memory_())."""
    moved = slot.param.data_ptr() != slot.address
    if slot.sum is not None and slot.fresh:
        fault = memory_sum(slot.param) != slot.sum
    else:
        fault = moved or slot.fresh and slot.param._version != slot.version
    if fault and moved:
        refuse_weights(slot, rank, "was replaced (.to(), .half(), load_state_dict(assign=True))")
    if fault:
        refuse_weights(slot, rank)
    slot.address = slot.param.data_ptr()


def check_late(slot: Slot, rank: int) -> None:
    """InputError where somebody has written the parameter while its new weights were on the way."""
    if not slot.fresh and (memory_sum(slot.param) != slot.sum if slot.sum is not None else slot.param._version != slot.version):
        refuse_weights(slot, rank, "was changed while its new weights were on the way (overlap_forward)")


def refuse_weights(slot: Slot, rank: int,
                   what: str = "was changed by the program (load_state_dict, .data, an in-place operation)") -> None:
    raise InputError(
        f"rank {rank}: parameter '{slot.name}' {what}, which the servers do not see: do this before the "
        "first step, or make a new job; a program that changes weights in each step (clipping them) keeps "
        "PyTorch's optimizer, in DistributedDataParallel with pstrain.comm_hook")


def check_sent(slot: Slot, rank: int) -> None:
    """InputError where the program has written a gradient in the arena while it was sent."""
    if slot.param.grad is slot.grads and slot.grads._version != slot.pushed_version:
        raise InputError(
            f"rank {rank}: the gradient of parameter '{slot.name}' was changed while it "
            "was on the way to the servers (gradient_as_arena_view): call optimizer.synchronize() "
            "before, or optimizer.zero_grad()")


def check_pushed(slot: Slot, rank: int) -> None:
    """InputError where the program has changed a gradient between its push and step(), has replaced or dropped it."""
    grad, pushed = slot.param.grad, slot.pushed
    if pushed is None:
        return
    if grad is None:
        raise InputError(
            f"rank {rank}: the gradient of parameter '{slot.name}' was dropped between backward() and step() "
            "(zero_grad()), and had left for the servers: call zero_grad() before backward(), or take push='step'")
    if grad is not pushed or grad._version != slot.pushed_version or grad is slot.grads and moved(slot) \
            or slot.pushed_sum is not None and gradient_sum(slot, grad) != slot.pushed_sum:
        raise InputError(
            f"rank {rank}: the gradient of parameter '{slot.name}' was {'changed' if grad is pushed else 'replaced'} after it "
            "had left for the servers (clip_grad_norm_, clip_grad_value_, .grad.data, GradScaler.unscale_): use clip_norm= or "
            "loss_scale= of pstrain.Optimizer, or push='step'")


_sent: "weakref.WeakValueDictionary[int, Slot]" = weakref.WeakValueDictionary()  # whose gradients leave early, by id of the parameter


def let_norms_be_read(slots: "typing.Iterable[Slot]") -> None:
    """Trainers read a norm by clip_grad_norm_(parameters, inf), which multiplies gradients by 1: from now on it counts as no
    change. It is PyTorch's function that knows the number."""
    _sent.update((id(slot.param), slot) for slot in slots)
    plain = torch.nn.utils.clip_grad_norm_
    if hasattr(plain, "tells_slots"):
        return

    @functools.wraps(plain)
    def clip_grad_norm_(parameters: typing.Any, max_norm: typing.Any, *more: typing.Any, **words: typing.Any) -> typing.Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        slots = [_sent[id(p)] for p in parameters if id(p) in _sent] if float(max_norm) == math.inf else []
        whole = [(slot, pushed) for slot in slots if (pushed := slot.pushed) is not None and pushed is slot.param.grad
                 and pushed is not slot.grads and pushed._version == slot.pushed_version]
        norm = plain(parameters, max_norm, *more, **words)
        for slot, pushed in whole:  # on the CPU the sum still says whether they were changed: by an infinite norm, to NaN
            slot.pushed_version = pushed._version
        return norm

    setattr(clip_grad_norm_, "tells_slots", True)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        setattr(module, "clip_grad_norm_", clip_grad_norm_)


def moved(slot: Slot) -> bool:
    """Whether the view of its gradient in the arena is of other memory by now."""
    return slot.grads.data_ptr() != slot.place


def check_fresh(slot: Slot, rank: int) -> None:
    """InputError where weights were used before they had arrived."""
    if not slot.fresh:
        raise InputError(
            f"rank {rank}: parameter '{slot.name}' was used without a call of its "
            "module, while its weights were on the way: call optimizer.synchronize() after "
            "each step")


def arena(session: Session, address: int, n: int) -> torch.Tensor:
    """The library's memory (n float32) as a tensor of its own: torch.save writes no more than these. The memory lives as
    long as a tensor in it: state_dict() of a model has such tensors."""
    memory = (ctypes.c_float * n).from_address(address)
    setattr(memory, "arenas", session.arenas())
    return torch.frombuffer(memory, dtype=torch.float32)


_copy_all = getattr(torch, "_foreach_copy_", None)  # PyTorch 2


def take_weights(slots: "list[Slot]") -> None:
    """Those that have arrived become the parameters', which are on the CPU."""
    params, weights = [slot.param for slot in slots], [slot.weights for slot in slots]
    with torch.no_grad():
        if _copy_all is not None:
            _copy_all(params, weights)
        else:
            for param, given in zip(params, weights):
                param.copy_(given)
    for slot in slots:
        slot.sum = memory_sum(slot.param)


def place_of(param: torch.Tensor, array: torch.Tensor, at: int) -> torch.Tensor:
    """Its numbers within an array of the arena's form: of its shape, and its order in memory."""
    return array.as_strided(param.shape, param.stride(), int(array.storage_offset()) + at)


def has_form_of(grad: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether grad is other memory with the same order of the same numbers."""
    return (grad.dtype == torch.float32 and grad.stride() == out.stride()
            and grad.data_ptr() != out.data_ptr() and not grad.is_neg())


def write(out: torch.Tensor, grad: torch.Tensor, factor: float) -> None:
    """A gradient, times factor, goes to its place in the arena."""
    if grad.data_ptr() == out.data_ptr():
        if factor != 1.0:
            out.mul_(factor)
    elif grad.dtype == torch.float32 and factor != 1.0:
        torch.mul(grad, factor, out=out)
    else:
        out.copy_(grad)
        if factor != 1.0:
            out.mul_(factor)
