"""The back end "pstrain" of torch.distributed.

    import torch.distributed as dist
    import pstrain
    dist.init_process_group("pstrain")

Sums of float32 go through the servers, in rank order; everything else through the coordinator,
where integers stay exact. It has what DistributedDataParallel needs: all-reduce, broadcast,
all-gather, reduce, gather, scatter and barrier, on the CPU.
"""
from __future__ import annotations

import os
import threading
import typing

import torch
import torch.distributed as dist

from . import _checks, job as jobs
from ._futures import Promise, Work
from .errors import InputError

NAME = "pstrain"
SMALL = 1024  # elements: below, the coordinator is as fast as the servers
HALVES = (torch.float16, torch.bfloat16)
_OPS = {dist.ReduceOp.SUM: 0, dist.ReduceOp.MIN: 1, dist.ReduceOp.MAX: 2, dist.ReduceOp.PRODUCT: 3}
if hasattr(dist.ReduceOp, "AVG"):
    _OPS[dist.ReduceOp.AVG] = -1


# Its type differs between the versions of PyTorch.
_Base: typing.Any = dist.ProcessGroup


class ProcessGroup(_Base):  # type: ignore[misc]
    """All workers of the job. Its calls return at once with a Work, which waits."""

    def __init__(self, job: jobs.Job) -> None:
        super().__init__(job.rank, job.size)
        self._job = job
        job.sums = True

    # ---- what PyTorch asks ----

    def getBackendName(self) -> str:
        return NAME

    def rank(self) -> int:
        return self._job.rank

    def size(self) -> int:
        return self._job.size

    # ---- collectives ----

    def allreduce(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        """tensors: a list of one (PyTorch's form); it becomes the reduction over all ranks."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = self._op(opts, "all_reduce")
        promise = Promise(tensors)
        left, failed, lock = len(tensors), False, threading.Lock()  # done: by two threads

        def done(error: "BaseException | None") -> None:
            nonlocal left, failed
            with lock:
                left -= 1
                keep = not failed and (error is not None or left == 0)
                failed = failed or error is not None
            if keep:
                promise.keep(error)

        for tensor in tensors:
            self._reduce(tensor, op, "all_reduce", done)
        return Work(promise, self._job.session.give_up)

    def allreduce_coalesced(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        """Of one tensor; the root's becomes the reduction, the others' stay."""
        [tensor] = tensors
        root = getattr(opts, "rootRank", 0)
        values = tensor if self.rank() == root else tensor.clone()
        promise = Promise(tensors)
        self._reduce(values, self._op(opts, "reduce"), "reduce", promise.keep)
        return Work(promise, self._job.session.give_up)

    def broadcast(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        root, session = getattr(opts, "rootRank", 0), self._job.session
        for tensor in tensors:
            self._check(tensor, "broadcast")

        def call() -> None:
            for tensor in tensors:
                if tensor.numel():
                    session.broadcast(tensor.data_ptr(), _bytes(tensor), root)

        return self._later(call, tensors)

    def allgather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """outputs: a list of size() tensors for each of the inputs."""
        for tensor in inputs:
            self._check(tensor, "all_gather")
        for mine, theirs in zip(inputs, outputs):
            for tensor in theirs:
                self._check_fits(tensor, mine, "all_gather")

        def call() -> None:
            for mine, theirs in zip(inputs, outputs):
                flat = self._gather(mine)
                for tensor, got in zip(theirs, flat):
                    tensor.copy_(got.view(tensor.shape))

        return self._later(call, outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor,
                        opts: typing.Any = None) -> typing.Any:
        """output: size() times as large as the input, in rank order."""
        self._check(tensor, "all_gather")
        self._check(output, "all_gather")
        if output.numel() != tensor.numel() * self.size() or output.dtype != tensor.dtype:
            raise InputError(f"rank {self.rank()}: all_gather of {tensor.numel()} {tensor.dtype} on "
                             f"{self.size()} ranks into {output.numel()} {output.dtype}")

        def call() -> None:
            output.view(-1).copy_(self._gather(tensor).view(-1))

        return self._later(call, output)

    all_gather_single = _allgather_base

    def gather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        [tensor] = inputs
        self._check(tensor, "gather")
        root = getattr(opts, "rootRank", 0)

        def call() -> None:
            got = self._gather(tensor)
            if self.rank() == root:
                for out, part in zip(outputs[0], got):
                    out.copy_(part.view(out.shape))

        return self._later(call, outputs)

    def scatter(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        [tensor] = outputs
        self._check(tensor, "scatter")
        root, session = getattr(opts, "rootRank", 0), self._job.session

        def call() -> None:
            parts = torch.empty((self.size(), tensor.numel()), dtype=tensor.dtype)
            if self.rank() == root:
                parts.copy_(torch.stack([t.reshape(-1) for t in inputs[0]]))
            if tensor.numel():
                session.broadcast(parts.data_ptr(), _bytes(parts), root)
            tensor.copy_(parts[self.rank()].view(tensor.shape))

        return self._later(call, outputs)

    def barrier(self, opts: typing.Any = None) -> typing.Any:
        return self._later(self._job.session.barrier, [torch.empty(0)])

    # ---- how ----

    def _op(self, opts: typing.Any, what: str) -> int:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for known, code in _OPS.items():
            if op == known:
                return code
        raise InputError(f"rank {self.rank()}: {what} by {op}: this back end has SUM, AVG, MIN, MAX and "
                         "PRODUCT")

    def _check(self, tensor: torch.Tensor, what: str,
               dtypes: "tuple[torch.dtype, ...] | None" = None) -> None:
        _checks.check(tensor, f"the tensor of {what}", self.rank(), dtypes or (tensor.dtype,))

    def _check_fits(self, out: torch.Tensor, tensor: torch.Tensor, what: str) -> None:
        if out.dtype != tensor.dtype or out.numel() != tensor.numel():
            raise InputError(
                f"rank {self.rank()}: {what} of {tuple(tensor.shape)} {tensor.dtype} into "
                f"{tuple(out.shape)} {out.dtype}")

    def _later(self, call: "typing.Callable[[], None]", value: typing.Any) -> typing.Any:
        promise = Promise(value)
        self._job.session.later(call, promise.keep)
        return Work(promise, self._job.session.give_up)

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """(size, the tensor's elements), of its dtype"""
        out = torch.empty((self.size(), tensor.numel()), dtype=tensor.dtype)
        if tensor.numel():
            self._job.session.all_gather(tensor.data_ptr(), _bytes(tensor), out.data_ptr())
        return out

    def _reduce(self, tensor: torch.Tensor, op: int, what: str,
                done: "typing.Callable[[BaseException | None], None]") -> None:
        """In place; done is called by another thread."""
        known = jobs.dtypes()
        self._check(tensor, what, (*known, *HALVES))
        mean, job = op == -1, self._job
        if mean and not tensor.is_floating_point():
            raise InputError(f"rank {self.rank()}: {what} by AVG of {tensor.dtype} would be rounded")
        values = tensor.detach()
        if tensor.dtype in HALVES:
            values = values.float()

        def end(error: "BaseException | None") -> None:
            if error is None and mean:
                values.mul_(1 / job.size)
            if error is None and values.dtype != tensor.dtype:
                tensor.detach().copy_(values)
            done(error)

        n, address = values.numel(), values.data_ptr()
        if n == 0:
            end(None)
        elif values.dtype == torch.float32 and op in (0, -1) and n >= SMALL and job.can_reduce():
            job.reducer().begin(address, n, end)
        else:
            code = known[values.dtype]
            job.session.later(lambda: job.session.all_reduce(address, n, code, max(op, 0)), end)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _create(store: typing.Any, rank: int, size: int, timeout: typing.Any) -> ProcessGroup:
    job = jobs.current() if jobs.is_initialized() else jobs.init(rank=rank, world_size=size)
    if (job.rank, job.size) != (rank, size):
        raise InputError(
            f"rank {job.rank}: a process group of {size} ranks in a job of {job.size}: this back end "
            'has groups of all workers; use dist.new_group(..., backend="gloo") for others')
    return ProcessGroup(job)


def register_backend() -> None:
    """Makes "pstrain" known to torch.distributed. Importing pstrain after torch, and
    pstrain.init, do this, too."""
    global _registered
    if _registered:
        return
    # init_process_group makes its store with libuv by default since PyTorch 2.4. A PyTorch that was
    # built without it (Debian 13's) refuses that; without it every PyTorch makes the same store.
    os.environ.setdefault("USE_LIBUV", "0")
    if hasattr(dist.Backend, "default_device_backend_map"):  # PyTorch 2
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    else:
        dist.Backend.register_backend(NAME, _create)
    _registered = True


_registered = False
