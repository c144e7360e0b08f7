"""Horovod's and BytePS's calls for PyTorch.

    import pstrain.horovod as hvd       # instead of: import horovod.torch as hvd, import byteps.torch as bps

    psrun -s 1 -w 2 -- python train.py  # instead of: horovodrun -np 2 python train.py

Calls are matched by their names, in whatever order each rank makes them (_negotiation.py). What two ranks call in
different ways, and calls that wait for each other, are an exception on each of them. Sums are in rank order. Tensors
are dense, on the CPU, or on a GPU, from which they are copied. A handle (of the `_async` calls) is for `poll` and
`synchronize`; until then the tensor must not be written.

What Horovod has besides is refused with a sentence: Adasum, process sets, sparse sums, timelines, elastic jobs.
"""
from __future__ import annotations

import typing

from .. import errors
from ._calls import (Adasum, Average, Compression, Handle, Max, Min, Product, Sum, allgather, allgather_async,
                     allreduce, allreduce_, allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier,
                     broadcast, broadcast_, broadcast_async, broadcast_async_, declare, grouped_allgather,
                     grouped_allgather_async, grouped_allreduce, grouped_allreduce_, grouped_allreduce_async,
                     grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async, join, poll,
                     push_pull, push_pull_async, push_pull_async_inplace, push_pull_inplace, reducescatter,
                     reducescatter_async, synchronize)
from ._membership import (ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built,
                          gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size, mpi_built,
                          mpi_enabled, mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size)
from ._models import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._optimizer import DistributedDataParallel, DistributedOptimizer
from ._sync_batch_norm import SyncBatchNorm

HorovodInternalError = errors.Error

__all__ = ["Adasum", "Average", "Compression", "DistributedDataParallel", "DistributedOptimizer", "Handle",
           "HorovodInternalError", "Max", "Min", "Product", "Sum", "SyncBatchNorm", "allgather", "allgather_async",
           "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall",
           "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
           "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "ccl_built", "cross_rank",
           "cross_size", "cuda_built", "ddl_built", "declare", "global_process_set", "gloo_built", "gloo_enabled",
           "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
           "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
           "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join", "local_rank",
           "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "push_pull",
           "push_pull_async", "push_pull_async_inplace", "push_pull_inplace", "rank", "reducescatter",
           "reducescatter_async", "rocm_built", "shutdown", "size", "synchronize"]

_REFUSED = {
    "elastic": "jobs that go on after a death are pstrain.State's",
    "ProcessSet": "calls are of all ranks", "add_process_set": "calls are of all ranks",
    "remove_process_set": "calls are of all ranks",
    "sparse_allreduce_async": "give a dense tensor (.to_dense()), or sparse_as_dense=True",
    "start_timeline": "see docs/tracing.md", "stop_timeline": "see docs/tracing.md",
    "suspend": "jobs that change their size are pstrain.State's",
    "resume": "jobs that change their size are pstrain.State's",
    "push_pull_group_sync_inplace": "use DistributedDataParallel or DistributedOptimizer"}


def __getattr__(name: str) -> typing.Any:
    if name in _REFUSED:
        raise errors.InputError(f"pstrain.horovod has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'pstrain.horovod' has no attribute {name!r}")
