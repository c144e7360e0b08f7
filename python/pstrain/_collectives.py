"""Reductions and gathers of tensors of any dtype: what a process group and pstrain.horovod share."""
from __future__ import annotations

import typing

import torch

from . import job as jobs

SMALL = 1024  # elements: below, the coordinator is as fast as the servers
HALVES = (torch.float16, torch.bfloat16)
AVERAGE, SUM, MIN, MAX, PRODUCT = -1, 0, 1, 2, 3  # pstrain.h's numbers, and one for the mean


def n_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def reduce(job: jobs.Job, tensor: torch.Tensor, op: int, done: "typing.Callable[[BaseException | None], None]",
           codec: str = "") -> None:
    """The tensor becomes the reduction over all ranks, in rank order; done is called then, with the exception or None,
    by another thread. All ranks call it in the same order with tensors of one size and dtype (jobs.dtypes() or HALVES),
    contiguous and on the CPU. Integers are exact; a mean of them is rounded towards 0. Halves are summed in float32.

    codec: "fp16": a sum of float32 may travel so. Without it no codec is used that another call has asked for; that of
    the job's settings counts for all."""
    tensor = tensor.detach()
    values = tensor.float() if tensor.dtype in HALVES else tensor
    words = [f"exchange.codec={codec}"] if codec else []

    def finish() -> None:
        if tensor.dtype == torch.bool:
            values.copy_(values.view(torch.uint8) != 0)  # a sum may be 2
        elif op == AVERAGE:
            values.copy_(values / job.size)  # integers: towards 0
        if values is not tensor:
            tensor.copy_(values)

    def end(error: "BaseException | None") -> None:
        try:
            if error is None:
                with torch.inference_mode():  # of this thread: the tensors may be of that mode
                    finish()
        except Exception as raised:  # of PyTorch: no memory
            error = raised
        done(error)

    n, address = values.numel(), values.data_ptr()
    if n == 0:
        end(None)
    elif values.dtype == torch.float32 and op in (SUM, AVERAGE) and n >= SMALL and job.can_reduce(words):
        job.reducer(words).begin(address, n, end)
    else:
        if codec:
            values.copy_(values.half())
        code = jobs.dtypes()[values.dtype]
        job.session.later(lambda: job.session.all_reduce(address, n, code, max(op, 0)), end)


def gather(job: jobs.Job, tensor: torch.Tensor) -> torch.Tensor:
    """(size, the tensor's elements), of its dtype. Blocks. The tensor is contiguous, on the CPU and as large on every
    rank."""
    out = torch.empty((job.size, tensor.numel()), dtype=tensor.dtype)
    if tensor.numel():
        job.session.all_gather(tensor.data_ptr(), n_bytes(tensor), out.data_ptr())
    return out
