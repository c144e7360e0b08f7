"""What is not trained: buffers (batch norm's means) and frozen parameters. Rank 0's become everybody's before a model's
first step; buffers that change do so after each step again, as a rule rank 0's."""
from __future__ import annotations

import logging
import struct
import typing
import weakref
import zlib

import torch
from torch.nn.parameter import is_lazy

from . import _library
from .errors import InputError

if typing.TYPE_CHECKING:
    from ._slots import Slot
    from .job import Job

log = logging.getLogger("pstrain")
_WORD = struct.Struct("<II")  # of a tensor: its form, its numbers
Named = typing.List[typing.Tuple[str, torch.Tensor]]


def _buffers_of(module: torch.nn.Module) -> "list[torch.Tensor]":
    return [b for b in module._buffers.values() if b is not None and b.layout == torch.strided and not is_lazy(b)]


def _state(module: torch.nn.Module) -> "list[tuple[int, int]]":
    """Changes when the module writes or replaces one of its buffers."""
    return [(id(b), b._version) for b in module._buffers.values() if b is not None]


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _sum_of(tensor: torch.Tensor) -> int:
    here = _on_host(tensor)
    return int(_library.load().pstrain_checksum(here.data_ptr(), here.numel() * here.element_size()))


def _word(tensor: torch.Tensor) -> bytes:
    return _WORD.pack(zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode()), _sum_of(tensor))


class _Still:
    """A module whose buffers have not changed so far."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._state, self._sums, self._steps = _state(module), [_sum_of(b) for b in _buffers_of(module)], 0
        self.is_on_cpu = all(b.is_cpu for b in _buffers_of(module))
        self.bytes = sum(b.numel() * b.element_size() for b in _buffers_of(module))

    def has_changed(self, module: torch.nn.Module, looks: bool) -> bool:
        """What is written past a buffer's version (.data) is found where the numbers are looked at: in each step, or in
        steps 1, 2, 4, 8, ..."""
        self._steps += 1
        looks = looks or self._steps & (self._steps - 1) == 0
        return _state(module) != self._state or looks and [_sum_of(b) for b in _buffers_of(module)] != self._sums


class Buffers:
    """DistributedDataParallel sends all of it when it is made, and all buffers before each forward pass. Here what differs
    is sent, and after a step the buffers of its modules that have changed theirs before: rank 0 says which ones have done so
    for the first time."""

    def __init__(self, job: "Job", trained: "typing.Mapping[int, Slot]", shares: bool) -> None:
        """trained: by id of the parameter. shares: buffers are shared at all. Frozen parameters are rank 0's in any case."""
        self._job, self._trained, self.shares = job, trained, shares
        self._met: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
        # In the same order on every rank:
        self._new: "list[tuple[torch.nn.Module, Named]]" = []  # which ranks have not compared
        self._still: "dict[torch.nn.Module, _Still]" = {}
        self._sent: "list[torch.nn.Module]" = []  # after each step
        self._owners: "weakref.WeakKeyDictionary[torch.nn.Module, frozenset[int]]" = weakref.WeakKeyDictionary()
        self._looks = False  # at the numbers of those that are still, in each step

    def meet(self, model: torch.nn.Module) -> None:
        """A forward pass of the model begins, which is to have a backward pass."""
        own: "list[str]" = []
        owners: "dict[str, frozenset[int]]" = {"": frozenset()}
        for path, module in model.named_modules() if self._job.size > 1 else ():
            trained = (self._trained.get(id(p)) for p in module.parameters())
            owners[path] = frozenset(slot.owner for slot in trained if slot is not None) or owners[path.rpartition(".")[0]]
            if module in self._met:
                continue
            self._owners[module] = owners[path]
            self._met.add(module)
            start = f"{path}." if path else ""
            own += [start + name for name, p in module._parameters.items()
                    if p is not None and p.requires_grad and id(p) not in self._trained and (is_lazy(p) or p.numel())]
            mine = self._untrained(start, module)
            if mine:
                self._new.append((module, mine))
        if own and self._job.rank == 0:
            log.warning("pstrain: parameters that require a gradient, and that no pstrain.Optimizer has: %s%s. Each rank keeps its "
                        "own numbers of them; with requires_grad_(False) rank 0's become everybody's",
                        ", ".join(own[:4]), f" and {len(own) - 4} more" if len(own) > 4 else "")

    def _untrained(self, path: str, module: torch.nn.Module) -> Named:
        found: Named = [(name, p) for name, p in module._parameters.items()
                        if p is not None and not p.requires_grad and p.layout == torch.strided and not is_lazy(p)
                        and id(p) not in self._trained]
        found += [(name, b) for name, b in module._buffers.items() if self.shares and b is not None and b.layout == torch.strided
                  and not is_lazy(b)]
        return [(path + name, tensor) for name, tensor in found if tensor.numel()]

    @property
    def n_met(self) -> int:
        """Modules that have any of it. They have to be as many on every rank."""
        return len(self._new) + len(self._still) + len(self._sent)

    @property
    def has_new(self) -> bool:
        """agree() has something to do."""
        return bool(self._new)

    def agree(self) -> None:
        """Of models that were met since the last call rank 0's become everybody's. Collective where there are any."""
        new, self._new = self._new, []
        if new:
            self._take([each for _, mine in new for each in mine])
        self._still.update((module, _Still(module)) for module, _ in new if self.shares and _buffers_of(module))
        if new:
            self._looks = self._costs_little()

    def _costs_little(self) -> bool:
        """A step goes through the trained parameters ten times and more. On a GPU each look is a copy and a wait; masks of
        attention are larger than a small model."""
        trained = sum(slot.param.numel() * slot.param.element_size() for slot in self._trained.values())
        return all(still.is_on_cpu for still in self._still.values()) \
            and 5 * sum(still.bytes for still in self._still.values()) <= trained

    def _take(self, untrained: Named) -> None:
        rank, session = self._job.rank, self._job.session
        try:
            said = session.gather_bytes(b"".join(_word(tensor) for _, tensor in untrained))
        except InputError as error:
            raise InputError(f"rank {rank}: {error}: the ranks' models differ in their buffers or frozen parameters; this rank "
                             f"has {', '.join(name for name, _ in untrained[:4])} and so on") from None
        for at, (name, tensor) in enumerate(untrained):
            words = [_WORD.unpack_from(each, at * _WORD.size) for each in said]
            other = next((r for r, (form, _) in enumerate(words) if form != words[0][0]), None)
            if other is not None:
                raise InputError(f"rank {rank}: '{name}', which is not trained, has another shape or type on rank {other} than on "
                                 f"rank 0, whose become everybody's; here it is {tensor.dtype} {tuple(tensor.shape)}: where ranks "
                                 "are to have buffers of their own, give broadcast_buffers=False")
            if any(word != words[0] for word in words):
                host = _on_host(tensor).clone()
                session.broadcast(host.data_ptr(), host.numel() * host.element_size(), 0)
                with torch.no_grad():
                    tensor.copy_(host)

    def share(self, owner: int, root: int = 0) -> None:
        """After that optimizer's step root's buffers of what it trains become everybody's. Those of others may be needed by
        a backward pass that is to come, such as a GAN's generator's. Collective."""
        still = [module for module in self._still if owner in self._owners[module]]
        sent = [module for module in self._sent if owner in self._owners[module]]
        if not still and not sent:
            return
        first = [self._still[module].has_changed(module, self._looks) for module in still]
        more = torch.tensor([any(first)], dtype=torch.uint8, device="cpu")
        self._broadcast(sent, more, root)
        if not more.item():
            return
        which = torch.tensor(first, dtype=torch.uint8, device="cpu")
        self._broadcast([], which, root)
        changed = [module for module, one in zip(still, which.tolist()) if one]
        self._broadcast(changed, torch.zeros(0, dtype=torch.uint8, device="cpu"), root)
        self._sent += changed
        for module in changed:
            del self._still[module]

    def _broadcast(self, modules: "list[torch.nn.Module]", head: torch.Tensor, root: int) -> None:
        """head becomes root's, and so do the modules' buffers."""
        buffers = [b for module in modules for b in _buffers_of(module) if b.numel()]
        parts = [b.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8) for b in buffers]
        places = {part.device for part in parts}
        device = places.pop() if len(places) == 1 else head.device  # a GPU: one copy for all of them
        flat = torch.cat([part.to(device) for part in (head, *parts)]).cpu()
        self._job.session.broadcast(flat.data_ptr(), flat.numel(), root)
        if self._job.rank == root:
            return
        arrived = torch.split(flat.to(device), [head.numel(), *(part.numel() for part in parts)])
        head.copy_(arrived[0])
        with torch.no_grad():
            for buffer, part in zip(buffers, arrived[1:]):
                # a copy: its first byte may be anywhere
                buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))
