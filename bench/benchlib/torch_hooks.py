"""PyTorch's own communication hooks, which DDP users have for slow links."""
import re

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

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
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank,
                                        start_powerSGD_iter=max(2, warmup))

    def hook(state, bucket):
        if bucket.index() > 0 or not bucket.is_last():
            raise BenchError("PowerSGD over Gloo wants all gradients in one bucket")
        return powerSGD_hook.powerSGD_hook(state, bucket)
    return state, hook


def register(ddp, hook, config):
    """hook: none, fp16, or powersgdN, N being the rank of the approximation."""
    rank = re.fullmatch(r"powersgd([1-9]\d*)", hook)
    if hook == "none":
        return
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif rank:
        ddp.register_comm_hook(*_powersgd(int(rank[1]), config["train.warmup_steps"]))
    else:
        raise BenchError(f"communication hook {hook}: there are none, fp16 and powersgdN")
