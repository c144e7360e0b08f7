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

from . import _checks, _collectives, job as jobs
from ._collectives import HALVES, n_bytes as _bytes
from ._futures import Promise, Work
from .errors import InputError

NAME = "pstrain"
_OPS = {dist.ReduceOp.SUM: _collectives.SUM, dist.ReduceOp.MIN: _collectives.MIN, dist.ReduceOp.MAX: _collectives.MAX,
        dist.ReduceOp.PRODUCT: _collectives.PRODUCT}
if hasattr(dist.ReduceOp, "AVG"):
    _OPS[dist.ReduceOp.AVG] = _collectives.AVERAGE
OFFERED = "all_reduce, broadcast, all_gather, reduce, gather, scatter and barrier"
GLOO = 'take a group of Gloo\'s for it: dist.new_group(backend="gloo")'


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
        tensors = _listed(tensors)
        op = self._op(opts, "all_reduce")
        if not tensors:
            raise InputError(f"rank {self.rank()}: all_reduce of no tensors")
        for tensor in tensors:
            self._check_reduced(tensor, "all_reduce")
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
            self._reduce(tensor, op, done)
        return self._work(promise, "all_reduce")

    def allreduce_coalesced(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        """Of one tensor; the root's becomes the reduction, the others' stay."""
        [tensor] = _listed(tensors)
        op = self._op(opts, "reduce")
        self._check_reduced(tensor, "reduce")
        values = tensor if self.rank() == _root(opts) else tensor.detach().clone()
        promise = Promise(tensors)
        self._reduce(values, op, promise.keep)
        return self._work(promise, "reduce")

    def broadcast(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        tensors = _listed(tensors)
        root, session = _root(opts), self._job.session
        for tensor in tensors:
            self._check(tensor, "broadcast")

        def call() -> None:
            for tensor in tensors:
                if tensor.numel():
                    session.broadcast(tensor.data_ptr(), _bytes(tensor), root)

        return self._later(call, tensors, "broadcast")

    def allgather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """outputs: a list of size() tensors for each of the inputs."""
        inputs = _listed(inputs)
        if len(outputs) != len(inputs):
            raise InputError(f"rank {self.rank()}: all_gather of {len(inputs)} tensors into {len(outputs)} lists")
        for mine, theirs in zip(inputs, outputs):
            self._check_parts(theirs, mine, "all_gather")

        def call() -> None:
            for mine, theirs in zip(inputs, outputs):
                for tensor, got in zip(theirs, self._gather(mine)):
                    tensor.copy_(got.view(tensor.shape))

        return self._later(call, outputs, "all_gather")

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

        return self._later(call, output, "all_gather")

    all_gather_single = _allgather_base

    def gather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        [tensor] = _listed(inputs)
        self._check(tensor, "gather")
        is_root = self.rank() == _root(opts)
        if is_root:
            self._check_parts(outputs[0], tensor, "gather")

        def call() -> None:
            got = self._gather(tensor)
            if is_root:
                for out, part in zip(outputs[0], got):
                    out.copy_(part.view(out.shape))

        return self._later(call, outputs, "gather")

    def scatter(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        [tensor] = _listed(outputs)
        self._check(tensor, "scatter")
        root, session = _root(opts), self._job.session
        if self.rank() == root:
            self._check_parts(inputs[0], tensor, "scatter")

        def call() -> None:
            parts = torch.empty((self.size(), tensor.numel()), dtype=tensor.dtype)
            if self.rank() == root:
                parts.copy_(torch.stack([t.reshape(-1) for t in inputs[0]]))
            if tensor.numel():
                session.broadcast(parts.data_ptr(), _bytes(parts), root)
            tensor.copy_(parts[self.rank()].view(tensor.shape))

        return self._later(call, outputs, "scatter")

    def barrier(self, opts: typing.Any = None) -> typing.Any:
        return self._later(self._job.session.barrier, [torch.empty(0)], "barrier")

    # ---- how ----

    def _op(self, opts: typing.Any, what: str) -> int:
        """opts: PyTorch's, or the operation itself."""
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
        for known, code in _OPS.items():
            if op == known:
                return code
        name = next((n for n in ("BAND", "BOR", "BXOR", "PREMUL_SUM") if op == getattr(dist.ReduceOp, n, None)),
                    "another operation")
        raise InputError(f"rank {self.rank()}: {what} by {name}: this back end has SUM, AVG, MIN, MAX and "
                         f"PRODUCT; {GLOO}")

    def _check(self, tensor: torch.Tensor, what: str,
               dtypes: "tuple[torch.dtype, ...] | None" = None) -> None:
        _checks.check(tensor, f"the tensor of {what}", self.rank(), dtypes or (tensor.dtype,))

    def _check_reduced(self, tensor: torch.Tensor, what: str) -> None:
        self._check(tensor, what, (*jobs.dtypes(), *HALVES))

    def _check_parts(self, parts: "typing.Sequence[torch.Tensor]", tensor: torch.Tensor, what: str) -> None:
        """Those of all ranks, and this rank's own."""
        self._check(tensor, what)
        if len(parts) != self.size():
            raise InputError(f"rank {self.rank()}: {what} of {self.size()} ranks has {len(parts)} tensors in its list")
        for part in parts:
            if part.dtype != tensor.dtype or part.numel() != tensor.numel():
                raise InputError(f"rank {self.rank()}: {what} of {tuple(tensor.shape)} {tensor.dtype} and "
                                 f"{tuple(part.shape)} {part.dtype}: they have to be alike")

    def _later(self, call: "typing.Callable[[], None]", value: typing.Any, what: str) -> typing.Any:
        def quietly() -> None:
            with torch.inference_mode():  # of this thread: the tensors may be of that mode
                call()

        promise = Promise(value)
        self._job.session.later(quietly, promise.keep)
        return self._work(promise, what)

    def _work(self, promise: Promise, what: str) -> Work:
        return Work(promise, self._job.session.give_up, f"rank {self.rank()}: {what}")

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """(size, the tensor's elements), of its dtype"""
        return _collectives.gather(self._job, tensor)

    def _reduce(self, tensor: torch.Tensor, op: int, done: "typing.Callable[[BaseException | None], None]") -> None:
        """In place; done is called by another thread."""
        _collectives.reduce(self._job, tensor, op, done)


def _refusal(name: str) -> "typing.Callable[..., typing.Any]":
    def refuse(self: ProcessGroup, *_: typing.Any, **__: typing.Any) -> typing.Any:
        raise InputError(f"rank {self.rank()}: this back end has no {name}; it has {OFFERED}; {GLOO}")

    return refuse


for _name, _methods in {
        "send": "send", "recv": "recv recv_anysource",
        "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced",
        "all_to_all": "alltoall alltoall_base all_to_all_single",
        "all_gather_coalesced": "allgather_coalesced allgather_into_tensor_coalesced"}.items():
    for _method in _methods.split():
        setattr(ProcessGroup, _method, _refusal(_name))


def _listed(tensors: typing.Any) -> "typing.Sequence[torch.Tensor]":
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _root(opts: typing.Any) -> int:
    """opts: PyTorch's, or the rank itself."""
    return opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)


def _create(store: typing.Any, rank: int, size: int, timeout: typing.Any) -> ProcessGroup:
    words = _deadlines(timeout)
    job = jobs.current() if jobs.is_initialized() else jobs.init(rank=rank, world_size=size, settings=words)
    if (job.rank, job.size) != (rank, size):
        raise InputError(
            f"rank {job.rank}: a process group of {size} ranks in a job of {job.size}: this back end "
            'has groups of all workers; use dist.new_group(..., backend="gloo") for others')
    if words and words[-1] not in job.settings:
        key, _, value = words[-1].partition("=")
        raise InputError(f"rank {job.rank}: timeout={timeout} of a process group: the job has its deadlines since "
                         f'pstrain.init(): give it there, pstrain.init(settings={{"{key}": {value}}})')
    return ProcessGroup(job)


def _deadlines(timeout: typing.Any) -> "list[str]":
    """timeout= of init_process_group as settings. PyTorch's default says nothing: the job's are shorter."""
    if not timeout or timeout == dist.distributed_c10d.default_pg_timeout:
        return []
    ms = max(1, round(timeout.total_seconds() * 1000))
    return [f"net.{what}_timeout_ms={ms}" for what in ("join", "step")]


def register_backend() -> None:
    """Makes "pstrain" known to torch.distributed. Importing pstrain and torch does this."""
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
