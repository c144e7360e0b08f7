"""PyTorch's own communication hooks, which DDP users have for slow links."""
import re

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers, utils
from torch.distributed.optim import PostLocalSGDOptimizer

from .job_config import BenchError


def buckets(hook, config):
    """DistributedDataParallel's options for its buckets.

    PowerSGD gets all gradients in one: over Gloo the callbacks of two run at the same time,
    in another order on another rank, and the process aborts. The others keep DDP's buckets,
    of which the first travel during the backward pass.
    """
    if not hook.startswith("powersgd"):
        return {}
    whole = config.gradient_bytes() + 1
    dist._DEFAULT_FIRST_BUCKET_BYTES = whole  # PyTorch 1's first bucket has a cap of its own
    return {"bucket_cap_mb": whole / 2**20 + 1}


def _powersgd(rank, warmup):
    """Uncompressed in the steps that are not timed, as PyTorch's documentation advises for
    the first ones: all that is timed is compressed."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=max(2, warmup))

    def hook(state, bucket):
        if bucket.index() > 0 or not bucket.is_last():
            raise BenchError("PowerSGD over Gloo wants all gradients in one bucket")
        return powerSGD_hook.powerSGD_hook(state, bucket)
    return state, hook


def _post_local(ddp, optimizer, period):
    """Local SGD after the first `period` steps: each rank steps by itself, and every `period` steps the
    weights are averaged. Returns the optimizer that does so."""
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]
    state = post_localSGD_hook.PostLocalSGDState(None, alone, period)
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return PostLocalSGDOptimizer(optimizer, averagers.PeriodicModelAverager(period, warmup_steps=period))


def register(ddp, hook, config, optimizer):
    """hook: none, fp16, powersgdN, N being the rank of the approximation, or postlocalK, K being the
    steps between two averages. Returns the optimizer to take."""
    named = re.fullmatch(r"(powersgd|postlocal)([1-9]\d*)", hook)
    if hook == "none":
        return optimizer
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif named and named[1] == "powersgd":
        ddp.register_comm_hook(*_powersgd(int(named[2]), config["train.warmup_steps"]))
    elif named:
        return _post_local(ddp, optimizer, int(named[2]))
    else:
        raise BenchError(f"communication hook {hook}: there are none, fp16, powersgdN and postlocalK")
    return optimizer


def average(model, hook):
    """Before an evaluation: ranks that step by themselves have other weights."""
    if hook.startswith("postlocal"):
        utils.average_parameters(model.parameters(), dist.group.WORLD)
