"""Averaging the gradients of a model: Horovod's DistributedOptimizer, and BytePS's DistributedDataParallel."""
from __future__ import annotations

import collections
import contextlib
import itertools
import typing

import torch

from ._calls import Average, Compression, Handle, Sum, checked_op, compressed, reduce_async
from ._gradients import Gradients
from ._membership import check_set, rank, size, wrong
from ._models import broadcast_parameters
from ._negotiation import Call

Named = typing.Iterable[typing.Tuple[str, torch.Tensor]]


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: "Named | None" = None,
                         compression: typing.Any = Compression.none, backward_passes_per_step: int = 1,
                         op: str = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: typing.Any = None, sparse_as_dense: bool = False,
                         process_set: typing.Any = None) -> typing.Any:
    """Returns the optimizer, which from now on averages the gradients over all ranks: each leaves when the backward
    pass has made it, and step() waits for all. Broadcast the parameters before the first step (broadcast_parameters).

    synchronize() waits, so that gradients may be changed (clipped) before step(). A parameter without a gradient counts
    as zeros, on all ranks. Parameters that are unfrozen or added later are averaged, too. num_groups and groups, which
    say what Horovod sends together, are checked and change nothing: neighbours travel together by themselves.

    Raises InputError (a ValueError) for op=Adasum, process_set, LBFGS, and names that are not unique or missing.
    """
    check_set(process_set)
    if op not in (Average, Sum):
        checked_op(op)
        raise wrong(f"op={op!r} of a DistributedOptimizer: use Average or Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise wrong("gradient_predivide_factor works with op=Average alone")
    if backward_passes_per_step <= 0:
        raise wrong(f"backward_passes_per_step={backward_passes_per_step} has to be above 0")
    if isinstance(optimizer, (torch.optim.LBFGS, _Averaging)) or not isinstance(optimizer, torch.optim.Optimizer):
        raise wrong(f"a DistributedOptimizer of {type(optimizer).__name__}: give an optimizer of PyTorch's that was "
                     "not wrapped before, and not LBFGS, whose steps depend on each rank's own loss")
    _check_groups(groups if groups is not None else num_groups)
    named = _named(optimizer, named_parameters)

    def send(name: str, gradient: torch.Tensor) -> Handle:
        return _send(name, gradient, compression, op, float(gradient_predivide_factor))

    # In place, so that schedulers that have it already see its steps.
    optimizer.__dict__.pop("step", None)  # such a scheduler's: it would call the class's own
    wrapped: typing.Any = optimizer
    wrapped.__class__ = type(type(optimizer).__name__, (_Averaging, type(optimizer)), {})
    if size() > 1:
        wrapped._gradients = Gradients(named, rank(), send, backward_passes_per_step, sparse_as_dense)
    return wrapped


def _send(name: str, gradient: torch.Tensor, compression: typing.Any, op: str, predivide: float) -> Handle:
    """The sum of a gradient, in place where it is not compressed."""
    values, codec, unpack = compressed(gradient.detach(), compression)

    def finish(result: torch.Tensor, _: Call) -> torch.Tensor:
        return gradient if result.data_ptr() == gradient.data_ptr() else typing.cast(torch.Tensor, unpack(result))

    return reduce_async(values, name, op, 1.0 / predivide, predivide, in_place=True, codec=codec, finish=finish)


def _check_groups(groups: typing.Any) -> None:
    if not isinstance(groups, list):
        if not isinstance(groups, int) or groups < 0:
            raise wrong(f"groups={groups!r}: give a number, or lists of tensors")
        return
    seen: "set[int]" = set()
    for param in itertools.chain.from_iterable(groups):
        if not isinstance(param, torch.Tensor) or id(param) in seen:
            raise wrong("groups: lists of tensors, each of them once")
        seen.add(id(param))


def _named(optimizer: torch.optim.Optimizer, named_parameters: "Named | None") -> "list[tuple[str, torch.Tensor]]":
    """Those of the optimizer, with their names."""
    if named_parameters is None:
        return [(f"parameter.{i}.{j}", param) for i, group in enumerate(optimizer.param_groups)
                for j, param in enumerate(group["params"])]
    named = list(named_parameters)
    if any(not isinstance(entry, tuple) for entry in named):
        raise wrong("named_parameters has to be pairs of (name, parameter): model.named_parameters()")
    twice = sorted(name for name, n in collections.Counter(name for name, _ in named).items() if n > 1)
    if twice:
        raise wrong(f"named_parameters has several called {', '.join(twice)}: names have to be unique")
    names = {param: name for name, param in named}
    for i, group in enumerate(optimizer.param_groups):
        for j, param in enumerate(group["params"]):
            if param not in names:
                raise wrong(f"named_parameters lacks parameter {j} of group {i}, {tuple(param.shape)}: give all "
                             "that the optimizer has, or none")
    return [(names[param], param) for group in optimizer.param_groups for param in group["params"]]


class _Averaging:
    """What DistributedOptimizer adds to the class of an optimizer."""

    _gradients: "Gradients | None" = None
    _synchronized = False
    _should_synchronize = True
    param_groups: "list[dict[str, typing.Any]]"

    def step(self, closure: "typing.Callable[[], typing.Any] | None" = None, *args: typing.Any,
             **kwargs: typing.Any) -> typing.Any:
        """Waits for the gradients, unless synchronize() has, or skip_synchronize() says so, and makes the step."""
        def synchronized() -> typing.Any:
            assert closure is not None
            loss = closure()
            self._synchronize_once()
            return loss

        if closure is None:
            self._synchronize_once()
        # As a scheduler's wrapper of step would: in the words of PyTorch up to 2.2, and since.
        self._step_count = getattr(self, "_step_count", 0) + 1
        self._opt_called = True
        out = super().step(closure and synchronized, *args, **kwargs)  # type: ignore[misc]
        self._synchronized = False
        return out

    for _mark in ("hooked", "_with_counter", "_wrapped_by_lr_sched"):  # PyTorch leaves it as it is
        setattr(step, _mark, True)

    def _synchronize_once(self) -> None:
        new = self._gradients is not None and self._gradients.are_new()
        if self._should_synchronize and (new or not self._synchronized):
            self.synchronize()

    def synchronize(self) -> None:
        """Blocks until the gradients are those of all ranks."""
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> "typing.Iterator[None]":
        """Within it step() does not wait for gradients: synchronize() was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def zero_grad(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        """As the optimizer's. InputError while gradients are on the way."""
        if self._gradients is not None and self._gradients.is_on_the_way():
            raise wrong("zero_grad() between backward() and step(), where gradients are on the way: call it after "
                        "step() or synchronize(). A backward pass for another optimizer wants requires_grad_(False) of "
                        "these parameters")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        if self._gradients is not None:
            self._gradients.passes = passes
            self._gradients.restart()

    def add_param_group(self, param_group: "dict[str, typing.Any]") -> None:
        super().add_param_group(param_group)  # type: ignore[misc]
        if self._gradients is not None:
            place = len(self.param_groups) - 1
            self._gradients.add([(f"parameter.{place}.{j}", param)
                                 for j, param in enumerate(self.param_groups[place]["params"])])


class DistributedDataParallel(torch.nn.Module):
    """BytePS's: averages the gradients of the module over all ranks in each backward pass, which ends when they are
    there. Rank 0's weights become everybody's at the beginning, and, with broadcast_buffers, its buffers before each
    forward pass. device_ids is not looked at."""

    def __init__(self, module: torch.nn.Module, device_ids: typing.Any = None, broadcast_buffers: bool = True,
                 compression: typing.Any = Compression.none) -> None:
        super().__init__()
        self.module = module
        self._shares_buffers = broadcast_buffers and size() > 1
        self._is_queued = False
        broadcast_parameters(module.state_dict(), 0)

        def send(name: str, gradient: torch.Tensor) -> Handle:
            return _send(name, gradient, compression, Average, 1.0)

        self._gradients: "Gradients | None" = None
        if size() > 1:
            self._gradients = Gradients(module.named_parameters(), rank(), send, when_sent=self._queue)

    def forward(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if self._shares_buffers:
            broadcast_parameters(dict(self.module.named_buffers()), 0, "buffer.")
        return self.module(*args, **kwargs)

    def _queue(self) -> None:
        """Once in a backward pass."""
        if not self._is_queued:
            self._is_queued = True
            engine: typing.Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        assert self._gradients is not None
        try:
            self._gradients.synchronize()
        finally:
            self._is_queued = False

    def synchronize(self) -> None:
        """Nothing is left to wait for after a backward pass."""

    @contextlib.contextmanager
    def no_sync(self) -> "typing.Iterator[None]":
        """Within it gradients add up on this rank."""
        if self._gradients is None:
            yield
            return
        self._gradients.is_paused = True
        try:
            yield
        finally:
            self._gradients.is_paused = False
