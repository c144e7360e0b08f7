"""A communication hook for DistributedDataParallel: its gradients are summed by the servers."""
# Annotations are objects here, not texts: DistributedDataParallel compares them.
import gc
import typing

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _checks, _pinned, job as jobs
from ._futures import Promise
from .errors import InputError
from .process_group import of_everybody

if typing.TYPE_CHECKING:
    GradBucket = typing.Any  # PyTorch's types lack it
else:
    GradBucket = dist.GradBucket

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def comm_hook(state: typing.Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `ddp.register_comm_hook(state, pstrain.comm_hook)`.

    state: the codec by which gradients travel: "none", "fp16", "bf16" or "int8"; None: as the
    settings of pstrain.init say, by default "none". The first call's counts for the whole job.
    DistributedDataParallel has to be of all workers of the job. Returns a future of the bucket's
    mean over all ranks. With "none" it has the bits of the sum in rank order; for two ranks these
    are those of DDP over Gloo. Float16 and bfloat16 are summed in float32; float64, which the
    servers lack, by the workers, without a codec. Buckets on a GPU are copied through pinned memory
    while the backward pass runs.
    """
    job = jobs.current()
    job.sums = True
    buffer = bucket.buffer()
    _checks.check(buffer, f"the gradients of bucket {bucket.index()}", job.rank, DTYPES, gpu=True)
    _check_group(job, bucket)
    if buffer.dtype == torch.float64:
        return _sum_doubles(job, state, buffer)
    words = [f"exchange.codec={state}"] if state is not None else []
    job.reducer(words)
    if _pinned.is_on_gpu(buffer):
        promise = Promise(buffer, _pinned.copies_of(buffer.device).promise_devices())
        job.buckets().begin(buffer, lambda host, done: _sum(job, words, host, done), promise.keep)
    else:
        promise = Promise(buffer)
        _sum(job, words, buffer, promise.keep)
    return typing.cast("torch.futures.Future[torch.Tensor]", promise.future)


def _check_group(job: jobs.Job, bucket: GradBucket) -> None:
    """InputError where DistributedDataParallel is of some workers: its gradients would be averaged over all. PyTorch does
    not tell a hook whose it is: among all objects the one with these parameters is."""
    params = bucket.parameters()
    if bucket.index() or not params or job.hooked.get(id(params[0])) is params[0]:
        return
    # By the type's bases: issubclass of this abstract class takes seconds for the objects that torch.compile makes.
    owners = [each for each in gc.get_objects() if DistributedDataParallel in type(each).__mro__
              and any(param is params[0] for param in each.parameters())]
    sizes = [owner.process_group.size() for owner in owners]
    if sizes and job.size not in sizes:
        raise InputError(f"rank {job.rank}: comm_hook in DistributedDataParallel of {sizes[0]} of the job's {job.size} workers: "
                         'the servers sum over all: leave out the hook there, and give it a group of the back end "pstrain"')
    job.hooked[id(params[0])] = params[0]


def _sum(job: jobs.Job, words: "list[str]", buffer: torch.Tensor,
         done: "typing.Callable[[typing.Optional[BaseException]], None]") -> None:
    """The buffer, in host memory, becomes the mean; done is called then."""
    values = buffer if buffer.dtype == torch.float32 else buffer.float()
    values.mul_(1 / job.size)

    def finish(error: typing.Optional[BaseException]) -> None:
        if error is None and values is not buffer:
            buffer.copy_(values)
        done(error)

    job.reducer(words).begin(values.data_ptr(), values.numel(), finish)


def _sum_doubles(job: jobs.Job, codec: typing.Any, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    if codec not in (None, "none"):
        raise InputError(f"rank {job.rank}: gradients in float64 have no codec: comm_hook with {codec!r}")
    return of_everybody(job).sum_later(buffer.mul_(1 / job.size))
