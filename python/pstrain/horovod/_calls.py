"""Horovod's calls of tensors, and BytePS's."""
from __future__ import annotations

import operator
import typing

import torch

from .. import _checks, job as jobs
from ._membership import check_set, here, rank, size, wrong
from ._negotiation import NO_NAME, Call, Negotiation

Average, Sum, Min, Max, Product, Adasum = "average", "sum", "min", "max", "product", "adasum"
Tensors = typing.Sequence[torch.Tensor]


class Handle:
    """A call that is on the way."""

    def __init__(self, negotiation: Negotiation, calls: "list[Call]",
                 finish: "typing.Callable[[], typing.Any]") -> None:
        self._negotiation = negotiation
        self.calls = calls
        self._finish: "typing.Callable[[], typing.Any] | None" = finish
        self._result: typing.Any = None

    def is_done(self) -> bool:
        return all(call.promise is not None and call.promise.is_kept() for call in self.calls)

    def wait(self) -> typing.Any:
        """The result; raises what went wrong."""
        for call in self.calls:
            assert call.promise is not None
            self._negotiation.wait(call.promise)
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result

    @property
    def heads(self) -> "list[dict[str, typing.Any]]":
        """Of a call that is done: what each rank has called."""
        return [self.calls[0].heads[r] for r in range(size())]


def poll(handle: Handle) -> bool:
    """Whether synchronize(handle) would not wait."""
    return handle.is_done()


def synchronize(handle: Handle) -> typing.Any:
    """Waits for the call. Returns its result, of a grouped call a list of them. InputError where ranks have called it
    in different ways; TimeoutError where some have not called it; PeerError where one has failed."""
    return handle.wait()


def _begin(tensor: torch.Tensor, kind: str, name: "str | None", in_place: bool, finish: typing.Any = None,
           what: str = "", **how: typing.Any) -> Handle:
    """Submits the call. finish(result, call): makes another result of it. what: the word for it, where kind is not."""
    state, what = here(), what or kind
    jobs.current()  # in a process that was forked: an InputError
    name = f"{what}.{name}" if name else f"{what}{NO_NAME}{next(state.counts[what])}"
    values = _staged(tensor, f"the tensor of {name}", in_place, kind == "allreduce")
    call = Call(values, kind, name, **how)
    state.negotiation.submit(call)

    def end() -> typing.Any:
        result = tensor
        if not in_place:
            result = values.to(tensor.device)
        elif values.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(values)
        return finish(result, call) if finish else result

    return Handle(state.negotiation, [call], end)


def _staged(tensor: torch.Tensor, what: str, in_place: bool, is_reduced: bool) -> torch.Tensor:
    """Its values on the CPU, contiguous; in memory of their own unless in_place."""
    if not isinstance(tensor, torch.Tensor):
        raise wrong(f"{what} is a {type(tensor).__name__}: give a torch.Tensor")
    values = tensor.detach()
    if values.layout == torch.strided:
        values = values.contiguous()
    dtypes = tuple(jobs.dtypes()) if is_reduced else (values.dtype,)
    _checks.check(values, what, rank(), dtypes, gpu=True)
    values = values.cpu()
    return values.clone() if not in_place and values.data_ptr() == tensor.data_ptr() else values


def together(handles: "list[Handle]") -> Handle:
    return Handle(here().negotiation, [call for handle in handles for call in handle.calls],
                  lambda: [handle.wait() for handle in handles])


def _names(name: "str | None", n: int) -> "list[str | None]":
    """Of the tensors of a grouped call."""
    return [name and f"{name}.{i}" for i in range(n)]


class _Differentiable(torch.autograd.Function):
    """call(*tensors) with the gradients back(*gradients). Backward passes through it are collective."""

    @staticmethod
    def forward(ctx: typing.Any, call: typing.Any, back: typing.Any, *tensors: torch.Tensor) -> typing.Any:
        ctx.back = back
        return call(*tensors)

    @staticmethod
    def backward(ctx: typing.Any, *gradients: torch.Tensor) -> typing.Any:
        return (None, None, *ctx.back(*gradients))


def _differentiable(call: typing.Any, back: typing.Any, *tensors: torch.Tensor) -> typing.Any:
    return _Differentiable.apply(call, back, *tensors)


def _back(name: "str | None") -> "str | None":
    """Of the call in the backward pass."""
    return name and f"{name}.gradient"


# ---- compression ----

class _NoCompression:
    """Interface of what `compression` may be."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> "tuple[torch.Tensor, typing.Any]":
        """(what is reduced, what decompress gets besides)"""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: typing.Any) -> torch.Tensor:
        return tensor


class _Float16Compression(_NoCompression):
    @staticmethod
    def compress(tensor: torch.Tensor) -> "tuple[torch.Tensor, typing.Any]":
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: typing.Any) -> torch.Tensor:
        return tensor.to(context)


class Compression:
    """How reductions travel. fp16: sums of float32 by the servers' codec fp16. Where the servers do plain sums already,
    they are rounded to float16 and travel as float32."""

    none = _NoCompression
    fp16 = _Float16Compression


def compressed(tensor: torch.Tensor, compression: typing.Any) -> typing.Any:
    """(what is reduced, its codec, the function that gives the result its type)"""
    if compression is Compression.fp16 and tensor.dtype == torch.float32:
        return tensor, "fp16", lambda result: result
    values, context = compression.compress(tensor)
    return values, "", lambda result: compression.decompress(result, context)


# ---- reductions ----

def checked_op(op: "str | None", average: "bool | None" = None) -> str:
    if op is not None and average is not None:
        raise wrong("op and average were given: give op alone")
    op = op if op is not None else Sum if average is False else Average
    if op == Adasum:
        raise wrong("op=Adasum is not here: use Average, and scale the learning rate by size()")
    if op not in (Average, Sum, Min, Max, Product):
        raise wrong(f"op={op!r} is not one of hvd.Average, Sum, Min, Max, Product")
    return op


def reduce_async(tensor: torch.Tensor, name: "str | None", op: str, prescale_factor: float, postscale_factor: float,
            in_place: bool = False, codec: str = "", **how: typing.Any) -> Handle:
    return _begin(tensor, "allreduce", name, in_place, op=op, prescale=float(prescale_factor),
                  postscale=float(postscale_factor), codec=codec, **how)


def allreduce_async(tensor: torch.Tensor, average: "bool | None" = None, name: "str | None" = None,
                    op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: typing.Any = None) -> Handle:
    """A handle of a new tensor: the reduction over all ranks. tensor: of the same shape and dtype on each. op: Average
    (the default), Sum, Min, Max, Product. Factors multiply before and after; those of integers are cut off."""
    check_set(process_set)
    return reduce_async(tensor, name, checked_op(op, average), prescale_factor, postscale_factor)


def allreduce_async_(tensor: torch.Tensor, average: "bool | None" = None, name: "str | None" = None,
                     op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: typing.Any = None) -> Handle:
    """As allreduce_async, in place."""
    check_set(process_set)
    return reduce_async(tensor, name, checked_op(op, average), prescale_factor, postscale_factor, in_place=True)


def allreduce_(tensor: torch.Tensor, average: "bool | None" = None, name: "str | None" = None,
               op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: typing.Any = None) -> torch.Tensor:
    """As allreduce_async_, and waits. Returns the tensor."""
    return typing.cast(torch.Tensor, allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor,
                                                      process_set).wait())


def allreduce(tensor: torch.Tensor, average: "bool | None" = None, name: "str | None" = None,
              compression: typing.Any = Compression.none, op: "str | None" = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, process_set: typing.Any = None) -> torch.Tensor:
    """As allreduce_async, and waits. Differentiable. Returns a new tensor."""
    check_set(process_set)
    return _reduced([tensor], [name], compression, checked_op(op, average), prescale_factor, postscale_factor)[0]


def grouped_allreduce_async(tensors: Tensors, average: "bool | None" = None, name: "str | None" = None,
                            op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: typing.Any = None) -> Handle:
    """As allreduce_async of each tensor."""
    return together([allreduce_async(tensor, average, own, op, prescale_factor, postscale_factor, process_set)
                      for tensor, own in zip(tensors, _names(name, len(tensors)))])


def grouped_allreduce_async_(tensors: Tensors, average: "bool | None" = None, name: "str | None" = None,
                             op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: typing.Any = None) -> Handle:
    """As allreduce_async_ of each tensor."""
    return together([allreduce_async_(tensor, average, own, op, prescale_factor, postscale_factor, process_set)
                      for tensor, own in zip(tensors, _names(name, len(tensors)))])


def grouped_allreduce_(tensors: Tensors, average: "bool | None" = None, name: "str | None" = None,
                       op: "str | None" = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: typing.Any = None) -> "list[torch.Tensor]":
    """As allreduce_ of each tensor."""
    return list(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor,
                                         process_set).wait())


def grouped_allreduce(tensors: Tensors, average: "bool | None" = None, name: "str | None" = None,
                      compression: typing.Any = Compression.none, op: "str | None" = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: typing.Any = None) -> "list[torch.Tensor]":
    """As allreduce of each tensor."""
    check_set(process_set)
    return _reduced(tensors, _names(name, len(tensors)), compression, checked_op(op, average), prescale_factor,
                    postscale_factor)


def _reduced(tensors: Tensors, names: "list[str | None]", compression: typing.Any, op: str, prescale_factor: float,
             postscale_factor: float) -> "list[torch.Tensor]":
    packed = [compressed(tensor, compression) for tensor in tensors]

    def call(*values: torch.Tensor) -> typing.Any:
        return tuple(together([reduce_async(value, name, op, prescale_factor, postscale_factor, codec=codec)
                                for value, name, (_, codec, _) in zip(values, names, packed)]).wait())

    def back(*gradients: torch.Tensor) -> typing.Any:
        return _reduced(gradients, [_back(name) for name in names], Compression.none, op, prescale_factor,
                        postscale_factor)

    results = _differentiable(call, back, *(values for values, _, _ in packed)) if packed else []
    return [unpack(result) for result, (_, _, unpack) in zip(results, packed)]


def reducescatter_async(tensor: torch.Tensor, name: "str | None" = None, op: str = Average,
                        process_set: typing.Any = None, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """A handle of this rank's rows of the reduction. The first dimension is cut evenly; the first ranks get one more
    row where it cannot be."""
    check_set(process_set)
    _check_rows(tensor, "reducescatter")

    def own(result: torch.Tensor, _: Call) -> torch.Tensor:
        return result.tensor_split(size())[rank()].clone()

    return reduce_async(tensor, name, checked_op(op), prescale_factor, postscale_factor, finish=own,
                        what="reducescatter")


def reducescatter(tensor: torch.Tensor, name: "str | None" = None, compression: typing.Any = Compression.none,
                  op: str = Average, process_set: typing.Any = None, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """As reducescatter_async, and waits. Differentiable for Average and Sum."""
    values, context = compression.compress(tensor)

    def call(mine: torch.Tensor) -> typing.Any:
        return reducescatter_async(mine, name, op, process_set, prescale_factor, postscale_factor).wait()

    def back(gradient: torch.Tensor) -> typing.Any:
        factor = (size() if op == Sum else 1) * prescale_factor * postscale_factor
        return [allgather(gradient * factor, _back(name))]

    return typing.cast(torch.Tensor, compression.decompress(_differentiable(call, back, values), context))


def grouped_reducescatter_async(tensors: Tensors, name: "str | None" = None, op: str = Average,
                                process_set: typing.Any = None, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """As reducescatter_async of each tensor."""
    return together([reducescatter_async(tensor, own, op, process_set, prescale_factor, postscale_factor)
                      for tensor, own in zip(tensors, _names(name, len(tensors)))])


def grouped_reducescatter(tensors: Tensors, name: "str | None" = None, compression: typing.Any = Compression.none,
                          op: str = Average, process_set: typing.Any = None, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> "list[torch.Tensor]":
    """As reducescatter of each tensor."""
    return [reducescatter(tensor, own, compression, op, process_set, prescale_factor, postscale_factor)
            for tensor, own in zip(tensors, _names(name, len(tensors)))]


# ---- gathers and broadcasts ----

def _check_rows(tensor: typing.Any, what: str) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        raise wrong(f"{what} of a tensor without dimensions: give tensor.view(1)")


def allgather_async(tensor: torch.Tensor, name: "str | None" = None, process_set: typing.Any = None) -> Handle:
    """A handle of all ranks' tensors, one after another along the first dimension, in which alone they may differ."""
    check_set(process_set)
    _check_rows(tensor, "allgather")
    return _begin(tensor, "allgather", name, False, lambda _, call: torch.cat(call.parts).to(tensor.device))


def allgather(tensor: torch.Tensor, name: "str | None" = None, process_set: typing.Any = None) -> torch.Tensor:
    """As allgather_async, and waits. Differentiable."""
    rows: "list[int]" = []

    def call(mine: torch.Tensor) -> typing.Any:
        handle = allgather_async(mine, name, process_set)
        result = handle.wait()
        rows.extend(head["shape"][0] for head in handle.heads)
        return result

    def back(gradient: torch.Tensor) -> typing.Any:
        mean = allreduce(gradient, name=_back(name), op=Average)
        return [mean.narrow(0, sum(rows[:rank()]), rows[rank()])]

    return typing.cast(torch.Tensor, _differentiable(call, back, tensor))


def grouped_allgather_async(tensors: Tensors, name: "str | None" = None, process_set: typing.Any = None) -> Handle:
    """As allgather_async of each tensor."""
    return together([allgather_async(tensor, own, process_set)
                      for tensor, own in zip(tensors, _names(name, len(tensors)))])


def grouped_allgather(tensors: Tensors, name: "str | None" = None,
                      process_set: typing.Any = None) -> "list[torch.Tensor]":
    """As allgather of each tensor."""
    return [allgather(tensor, own, process_set) for tensor, own in zip(tensors, _names(name, len(tensors)))]


def _broadcast(tensor: torch.Tensor, root_rank: int, name: "str | None", process_set: typing.Any,
               in_place: bool) -> Handle:
    check_set(process_set)
    if not (hasattr(root_rank, "__index__") and 0 <= root_rank < size()):
        raise wrong(f"root_rank={root_rank!r} is not a rank of 0 .. {size() - 1}")
    return _begin(tensor, "broadcast", name, in_place, root=operator.index(root_rank))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: "str | None" = None,
                    process_set: typing.Any = None) -> Handle:
    """A handle of a new tensor with the root's values. tensor: of the same shape and dtype on each rank."""
    return _broadcast(tensor, root_rank, name, process_set, False)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: "str | None" = None,
                     process_set: typing.Any = None) -> Handle:
    """As broadcast_async, in place."""
    return _broadcast(tensor, root_rank, name, process_set, True)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: "str | None" = None,
               process_set: typing.Any = None) -> torch.Tensor:
    """As broadcast_async_, and waits. Returns the tensor."""
    return typing.cast(torch.Tensor, broadcast_async_(tensor, root_rank, name, process_set).wait())


def broadcast(tensor: torch.Tensor, root_rank: int, name: "str | None" = None,
              process_set: typing.Any = None) -> torch.Tensor:
    """As broadcast_async, and waits. Differentiable."""
    def call(mine: torch.Tensor) -> typing.Any:
        return broadcast_async(mine, root_rank, name, process_set).wait()

    def back(gradient: torch.Tensor) -> typing.Any:
        mean = allreduce(gradient, name=_back(name), op=Average)
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return typing.cast(torch.Tensor, _differentiable(call, back, tensor))


def alltoall_async(tensor: torch.Tensor, splits: typing.Any = None, name: "str | None" = None,
                   process_set: typing.Any = None) -> Handle:
    """A handle of (the rows that all ranks have sent to this one, in rank order; how many each has sent). splits: how
    many rows go to each rank, a list or a tensor; None: as many to each."""
    check_set(process_set)
    _check_rows(tensor, "alltoall")
    counts = _splits(tensor, splits)
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32

    def own(_: torch.Tensor, call: Call) -> typing.Any:
        theirs = [call.heads[r]["splits"] for r in range(size())]
        parts = [part.narrow(0, sum(cuts[:rank()]), cuts[rank()]) for part, cuts in zip(call.parts, theirs)]
        return torch.cat(parts).to(tensor.device), torch.tensor([cuts[rank()] for cuts in theirs], dtype=dtype, device="cpu")

    return _begin(tensor, "alltoall", name, False, own, splits=counts)


def _splits(tensor: torch.Tensor, splits: typing.Any) -> "list[int]":
    rows, n = int(tensor.shape[0]), size()
    if splits is None:
        if rows % n:
            raise wrong(f"alltoall of {rows} rows to {n} ranks: give splits")
        return [rows // n] * n
    given = torch.as_tensor(splits, device="cpu")
    if given.dim() != 1 or given.is_floating_point():
        raise wrong(f"splits of alltoall is {tuple(given.shape)} {given.dtype}: give a list of integers")
    counts = [int(count) for count in given]
    if len(counts) != n or min(counts) < 0 or sum(counts) != rows:
        raise wrong(f"splits={counts} of alltoall of {rows} rows: give {n} counts with this sum")
    return counts


def alltoall(tensor: torch.Tensor, splits: typing.Any = None, name: "str | None" = None,
             process_set: typing.Any = None) -> typing.Any:
    """As alltoall_async, and waits. Returns the rows alone where splits is None. Differentiable."""
    received: "list[torch.Tensor]" = []

    def call(mine: torch.Tensor) -> typing.Any:
        result, counts = alltoall_async(mine, splits, name, process_set).wait()
        received.append(counts)
        return result

    def back(gradient: torch.Tensor) -> typing.Any:
        return alltoall(gradient, received[0], _back(name))[:1]

    result = _differentiable(call, back, tensor)
    return result if splits is None else (result, received[0])


# ---- ranks that wait ----

def join(device: int = -1) -> int:
    """For a rank that has no more data: takes part in the other ranks' sums, with zeros, until all have called it.
    Returns the rank that called it last (of several in one round the highest). device is not looked at."""
    jobs.current()
    last = here().negotiation.join()
    here().counts.clear()  # ranks have made different numbers of calls without names
    return last


def barrier(process_set: typing.Any = None) -> None:
    """Returns when every rank has called it."""
    check_set(process_set)
    _begin(torch.empty(0, dtype=torch.float32, device="cpu"), "barrier", None, False, lambda *_: None).wait()


# ---- BytePS's words ----

def push_pull_async(tensor: torch.Tensor, average: bool = True, name: "str | None" = None, version: int = 0,
                    priority: int = 0) -> Handle:
    """As allreduce_async by Average or Sum. version and priority change no result, and are not looked at."""
    return allreduce_async(tensor, average, name)


def push_pull_async_inplace(tensor: torch.Tensor, average: bool = True, name: "str | None" = None, version: int = 0,
                            priority: int = 0) -> Handle:
    """As push_pull_async, in place."""
    return allreduce_async_(tensor, average, name)


def push_pull_inplace(tensor: torch.Tensor, average: bool = True, name: "str | None" = None, version: int = 0,
                      priority: int = 0) -> torch.Tensor:
    """As push_pull_async_inplace, and waits. Returns the tensor."""
    return allreduce_(tensor, average, name)


def push_pull(tensor: torch.Tensor, average: bool = True, name: "str | None" = None, version: int = 0,
              priority: int = 0, compression: typing.Any = Compression.none) -> torch.Tensor:
    """As push_pull_async, and waits. Differentiable. Returns a new tensor."""
    return allreduce(tensor, average, name, compression)


def declare(name: str) -> int:
    """Tensors need not be declared here."""
    return 0
