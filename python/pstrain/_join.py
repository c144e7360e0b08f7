"""Uneven inputs: a rank that has no batch left goes along with the others' steps."""
from __future__ import annotations

import types
import typing

import torch

from .errors import InputError

if typing.TYPE_CHECKING:
    from ._table import Table

# Instead of an optimizer's number:
_OUT = -1  # the rank has no batch left
_MEETS = -2  # it is in a forward pass of modules whose buffers and frozen parameters are to become rank 0's


class Join:
    """What Optimizer.join() returns. Before each step, and each first forward pass of a model with buffers or frozen
    parameters, the ranks tell each other what they do."""

    def __init__(self, table: "Table", by_all: bool, throws: bool) -> None:
        self._table, self._by_all, self._throws = table, by_all, throws
        self.factor = 1.0  # by which gradients count more, because some ranks have none
        self.root = 0  # whose buffers become everybody's

    def __enter__(self) -> "Join":
        if self._table.join is not None:
            raise InputError(f"rank {self._table.job.rank}: optimizer.join() within another one: one is for all "
                             "Optimizers of the job")
        self._table.refuse_begun("join()")
        self._table.start()  # a rank may have no batch at all
        self._table.join = self
        return self

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None",
                 where: "types.TracebackType | None") -> None:
        try:
            while kind is None:
                number = self.agree(_OUT)
                if number == _OUT:
                    break
                self._table.optimizers[number].shadow()
        finally:
            self._table.join = None

    def meet(self) -> None:
        """All ranks are in a model's first forward pass. Collective."""
        self.agree(_MEETS)

    def agree(self, number: int) -> int:
        """Returns which optimizer is stepped; _OUT: no rank has a batch left. Collective."""
        job, buffers = self._table.job, self._table.buffers
        assert buffers is not None
        mine = torch.tensor([number, buffers.n_met], dtype=torch.int32, device="cpu")
        all_of_them = torch.empty(job.size, 2, dtype=torch.int32, device="cpu")
        job.session.all_gather(mine.data_ptr(), 2 * mine.element_size(), all_of_them.data_ptr())
        numbers, met = all_of_them.t().tolist()
        going = [rank for rank, stepped in enumerate(numbers) if stepped != _OUT]
        if self._throws and 0 < len(going) < job.size:
            out = next(rank for rank in range(job.size) if rank not in going)
            raise InputError(f"rank {job.rank}: rank {out} has no batch left (throw_on_early_termination)")
        if not going:
            return _OUT
        self.root = going[-1]
        odd = next((rank for rank in range(job.size) if met[rank] != met[self.root]
                    or (numbers[rank] == _MEETS) != (numbers[self.root] == _MEETS)), None)
        if odd is not None:
            raise InputError(f"rank {job.rank}: rank {odd} has made no forward pass of all the modules with buffers (batch norm) or "
                             f"frozen parameters that rank {self.root} has, whose they would become: make one before join()")
        self.factor = 1.0 if self._by_all else job.size / len(going)
        return int(numbers[going[0]])
