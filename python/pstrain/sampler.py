"""PyTorch's DistributedSampler, with a place in the epoch from which a job can go on."""
from __future__ import annotations

import math
import typing

import torch
import torch.utils.data.distributed

from . import job as jobs
from .errors import InputError

_Base: typing.Any = torch.utils.data.distributed.DistributedSampler


def _nothing() -> None:
    """There is no State."""


class DistributedSampler(_Base):  # type: ignore[misc]
    """torch.utils.data.DistributedSampler, which it extends: the same samples in the same order for the same seed
    and epoch. In addition it knows how many of them this rank has consumed, and goes on behind them.

    dataset: anything with a length. num_replicas, rank: not given: the job's. shuffle, seed, drop_last: PyTorch's.

        sampler = pstrain.DistributedSampler(data)
        loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=4)
        for state.epoch in range(state.epoch, epochs):
            sampler.set_epoch(state.epoch)
            for images, labels in sampler.batches(loader):
                ...

    `batches(loader)` counts the batches that the loop gets; those that the loader has fetched ahead do not count. A
    loop of its own, `for batch in loader`, calls `advance(n)` for each batch of n samples.

    set_epoch of another epoch begins that one; of the same epoch, as a program does that goes on, nothing. In a
    process that goes on at the end of an epoch, the first iteration has no samples. len() is that of the whole epoch.
    """

    def __init__(self, dataset: typing.Any, num_replicas: "int | None" = None, rank: "int | None" = None,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        if num_replicas is None and rank is None:
            num_replicas, rank = jobs.size(), jobs.rank()
        if num_replicas is None or rank is None or not 0 <= rank < num_replicas:
            raise InputError(f"rank={rank}, num_replicas={num_replicas}: give both, or none of them in a job")
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=shuffle, seed=seed,
                         drop_last=drop_last)
        self._before = 0  # samples of all ranks in this epoch, when the job had another number of them
        self._position = 0  # samples that this rank has consumed since
        self._goes_on = False  # nothing was drawn since load_state_dict
        self._loads = 0  # calls of load_state_dict
        self._given = 0  # samples that the present iteration has given a loader
        self._counted = False  # somebody counts them in this epoch
        self._handed_at: typing.Any = None  # made_steps() when batches() handed out the last one; None: it is over
        # A State's: what begins where an iteration goes on within an epoch, and how many steps were made.
        self.begins: "typing.Callable[[], None]" = _nothing
        self.made_steps: "typing.Callable[[], typing.Any]" = _nothing

    def __getstate__(self) -> "dict[str, typing.Any]":
        """A copy, or that of another process, is of no State."""
        return {**vars(self), "begins": _nothing, "made_steps": _nothing}

    @property
    def position(self) -> int:
        """How many samples this rank has consumed in this epoch."""
        return int(self._position)

    def _total(self) -> int:
        """How many samples all ranks have from `before` on; the last ones are there twice, or none of them."""
        left, ranks = max(0, len(self.dataset) - self._before), int(self.num_replicas)
        return left // ranks * ranks if self.drop_last else math.ceil(left / ranks) * ranks

    def _end(self) -> int:
        """The position at the epoch's end."""
        return self._total() // int(self.num_replicas)

    def _rest(self) -> "list[int]":
        """This rank's samples from `before` on."""
        n, total = len(self.dataset), self._total()
        if self.shuffle:  # as PyTorch's
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed + self.epoch), device="cpu").tolist()
        else:
            order = list(range(n))
        order = order[self._before:]
        padded = order * math.ceil(total / len(order)) if order else order
        return padded[self.rank:total:self.num_replicas]

    def __iter__(self) -> "typing.Iterator[int]":
        # A generator: DataLoader begins it when it has drawn its own random number.
        goes_on, self._goes_on = self._goes_on, False
        if goes_on and (self._position or self._before):
            self.begins()
        elif self._position >= self._end():
            self._position = self._before = 0  # a program that calls no set_epoch
        self._given = 0
        for index in self._rest()[self._position:]:
            self._given += 1
            yield index

    def set_epoch(self, epoch: int) -> None:
        """Of another epoch than the present one: it begins."""
        if epoch != self.epoch:
            self._position = self._before = self._given = 0
            self._goes_on = self._counted = False
        super().set_epoch(epoch)

    def advance(self, n: int) -> None:
        """This rank has consumed n more samples."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError(f"rank {self.rank}: sampler.advance({n!r}): give the number of this rank's samples, "
                             "such as len(labels)")
        left = self._end() - self._position
        if n > left:
            raise InputError(f"rank {self.rank}: sampler.advance({n}): this rank has {left} samples left in this "
                             "epoch: give the number of its own samples, not of all ranks'")
        self._position += n
        self._counted = True

    def batches(self, loader: typing.Any) -> "typing.Iterator[typing.Any]":
        """The loader's batches. Each counts as consumed when the loop gets it. loader: a DataLoader of this sampler."""
        of = getattr(loader, "batch_sampler", None) or loader
        size = getattr(of, "batch_size", None) or (1 if of is loader else None)
        if getattr(of, "sampler", None) is not self or not isinstance(size, int):
            raise InputError(f"rank {self.rank}: sampler.batches() needs a DataLoader that was made with "
                             "sampler=sampler and a batch size; with another one call sampler.advance(n) for each "
                             "batch of n samples")
        batches: "typing.Iterator[typing.Any]" = self._batches(loader, size)
        return batches

    def _batches(self, loader: typing.Any, size: int) -> "typing.Iterator[typing.Any]":
        loads = self._loads
        try:
            for batch in loader:
                if self._loads != loads:
                    raise InputError(f"rank {self.rank}: the sampler has gone back within a loop over its batches: "
                                     "leave the loop after restore(), and begin another one")
                self._position += min(size, self._end() - self._position)
                self._counted, self._handed_at = True, self.made_steps()
                yield batch
            self._position = self._end()  # also the rest that drop_last of the loader leaves
        finally:
            self._handed_at = None

    def check_between(self, what: str) -> None:
        """InputError where a State would not know which samples have trained the model. what: the State does."""
        if self._given and not self._counted:
            raise InputError(f"rank {self.rank}: {what}: the sampler has given {self._given} samples, and none was "
                             "counted: iterate over sampler.batches(loader), or call sampler.advance(n) for each "
                             "batch of n")
        if self._handed_at is not None and self._handed_at == self.made_steps():
            raise InputError(f"rank {self.rank}: {what} between a batch and its step: call it after optimizer.step()")

    def _order(self) -> "dict[str, typing.Any]":
        """What the order of an epoch depends on."""
        return {"samples": len(self.dataset), "seed": self.seed, "shuffle": self.shuffle, "drop_last": self.drop_last}

    def state_dict(self) -> "dict[str, typing.Any]":
        """The epoch, and the place in it. The same on every rank, where all have consumed as much."""
        return {**self._order(), "epoch": self.epoch, "ranks": self.num_replicas, "before": self._before,
                "position": self._position, "over": self._position >= self._end()}

    def load_state_dict(self, state_dict: "dict[str, typing.Any]") -> None:
        """Goes on from that place, also with another number of ranks. InputError where the epoch's order is another
        one now: with other samples, another seed, and so on."""
        try:
            said = {key: state_dict[key] for key in ("epoch", "ranks", "before", "position", "over", *self._order())}
        except (KeyError, TypeError):
            raise InputError(f"rank {self.rank}: this is no state of a pstrain.DistributedSampler") from None
        began = said["position"] or said["before"]
        now = self._order()
        for key, value in now.items() if began and not said["over"] else ():
            if said[key] != value:
                raise InputError(f"rank {self.rank}: the sampler's state is of an epoch with {key} {said[key]}, and "
                                 f"it has {value} now: the epoch has another order, and cannot be gone on with")
        super().set_epoch(said["epoch"])
        self._before, self._position = said["before"], said["position"]
        if said["over"]:
            self._before, self._position = 0, 0
            self._position = self._end()
        elif said["ranks"] != self.num_replicas:
            self._before, self._position = said["before"] + said["position"] * said["ranks"], 0
        self._goes_on, self._counted, self._given, self._handed_at = True, True, 0, None
        self._loads += 1
