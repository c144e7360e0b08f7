"""Reductions and gathers of tensors of any dtype: what a process group and pstrain.horovod share."""
from __future__ import annotations

import typing

import torch

from . import job as jobs
from ._reducer import Reducer

SMALL = 1024  # elements: below, the coordinator is as fast as the servers
HALVES = (torch.float16, torch.bfloat16)
SUM, MIN, MAX, PRODUCT, AVERAGE = range(5)  # pstrain_op's numbers


def n_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def reduce(job: jobs.Job, tensor: torch.Tensor, op: int, done: "typing.Callable[[BaseException | None], None]",
           codec: str = "", by_servers: bool = True) -> None:
    """The tensor becomes the reduction over all ranks, in rank order; done is called then, with the exception or None,
    by another thread. All ranks call it in the same order with tensors of one size and dtype (jobs.dtypes()),
    contiguous and on the CPU. Integers are exact; a mean of them is rounded towards 0. Halves are summed in float32.

    codec: "fp16": a sum of float32 may travel so. Without it no codec is used that another call has asked for; that of
    the job's settings counts for all. by_servers: large sums go through them (Job.lets_sum)."""
    tensor = tensor.detach()
    n, words = tensor.numel(), [f"exchange.codec={codec}"] if codec else []
    is_sum = op in (SUM, AVERAGE) and tensor.dtype in (torch.float32, *HALVES)
    if n == 0:
        done(None)
    elif is_sum and by_servers and n >= SMALL and job.can_reduce(words):
        _reduce_by_servers(job.reducer(words), tensor, job.size if op == AVERAGE else 1, done)
    else:
        if codec:
            tensor.copy_(tensor.half())
        job.session.later(lambda: job.all_reduce(tensor, op), done)


def _reduce_by_servers(reducer: "Reducer", tensor: torch.Tensor, divisor: int,
                       done: "typing.Callable[[BaseException | None], None]") -> None:
    values = tensor.float() if tensor.dtype in HALVES else tensor

    def end(error: "BaseException | None") -> None:
        try:
            if error is None:
                with torch.inference_mode():  # of this thread: the tensors may be of that mode
                    tensor.copy_(values / divisor if divisor > 1 else values)
        except Exception as raised:  # of PyTorch: no memory
            error = raised
        done(error)

    reducer.begin(values.data_ptr(), values.numel(), end)


def gather(job: jobs.Job, tensor: torch.Tensor) -> torch.Tensor:
    """(size, the tensor's elements), of its dtype. Blocks. The tensor is contiguous, on the CPU and as large on every
    rank."""
    out = torch.empty((job.size, tensor.numel()), dtype=tensor.dtype, device="cpu")
    if tensor.numel():
        job.session.all_gather(tensor.data_ptr(), n_bytes(tensor), out.data_ptr())
    return out
