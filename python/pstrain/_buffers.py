"""Buffers (batch norm's means): after each step one rank's, as a rule rank 0's, become everybody's."""
from __future__ import annotations

import typing

import torch

if typing.TYPE_CHECKING:
    from .job import Job


def _state(module: torch.nn.Module) -> "list[tuple[int, int]]":
    """Changes when the module writes or replaces one of its buffers."""
    return [(id(b), b._version) for b in module._buffers.values() if b is not None]


class Buffers:
    """DistributedDataParallel sends all buffers before each forward pass. Here modules whose buffers have never
    changed are left out: masks of attention are large. Rank 0 says which ones have changed for the first time."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._still: "dict[torch.nn.Module, list[tuple[int, int]]]" = {}  # not changed so far; in the same order
        self._sent: "list[torch.nn.Module]" = []  # on every rank

    def add(self, module: torch.nn.Module) -> None:
        """Must be called before the first forward pass of the module, on every rank."""
        for each in module.modules():
            if each not in self._still and each not in self._sent and any(b is not None for b in each._buffers.values()):
                self._still[each] = _state(each)

    def share(self, root: int = 0) -> None:
        """root's become everybody's. Collective."""
        if not self._still and not self._sent or self._job.size == 1:
            return
        first = [_state(module) != before for module, before in self._still.items()]
        more = torch.tensor([any(first)], dtype=torch.uint8)
        self._broadcast(self._sent, more, root)
        if not more.item():
            return
        which = torch.tensor(first, dtype=torch.uint8)
        self._broadcast([], which, root)
        changed = [module for module, one in zip(list(self._still), which.tolist()) if one]
        self._broadcast(changed, torch.zeros(0, dtype=torch.uint8), root)
        self._sent += changed
        for module in changed:
            del self._still[module]

    def _broadcast(self, modules: "list[torch.nn.Module]", head: torch.Tensor, root: int) -> None:
        """head becomes root's, and so do the modules' buffers."""
        buffers = [b for module in modules for b in module._buffers.values() if b is not None and b.numel()]
        parts = [b.detach().reshape(-1).contiguous().view(torch.uint8) for b in buffers]
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
