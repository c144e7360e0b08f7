#!/usr/bin/env python3
"""One process that trains the small GPT of python/examples: by DistributedDataParallel over Gloo,
or by the Python package's Optimizer (--package). bench/pytorch starts it once per rank, with
torchrun's variables. It needs transformers.

Rank 0 prints "mark" and waits for a line before and after the timed steps. Its last line is
{"step_ms": [...], "seconds": of all timed steps, "loss": of the last one, over all ranks}.
"""
import argparse
import json
import os
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "python", "examples")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import gpt  # noqa: E402
from benchlib import torch_hooks  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--hook", default="none", help="PyTorch's communication hook")
    p.add_argument("--package", metavar="CODEC", help="no DDP: pstrain.Optimizer with this codec")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10, help="steps of these that are not timed")
    p.add_argument("--batch", type=int, default=8, help="sequences of each rank in a step")
    p.add_argument("--threads", type=int, default=1)
    return p.parse_args()


class Needs(dict):
    """What torch_hooks asks a job's configuration for."""

    def __init__(self, model, warmup):
        super().__init__({"train.warmup_steps": warmup})
        self._bytes = sum(4 * p.numel() for p in model.parameters())

    def gradient_bytes(self):
        return self._bytes


def exchange(args, model):
    """(the model to call, the optimizer)"""
    if args.package:
        import pstrain

        pstrain.init()
        return model, pstrain.Optimizer(
            model.named_parameters(), "adamw", lr=1e-3, codec=args.package,
            settings={"exchange.codec_warmup": args.warmup})
    needs = Needs(model, args.warmup)
    ddp = DistributedDataParallel(model, **torch_hooks.buckets(args.hook, needs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return ddp, torch_hooks.register(ddp, args.hook, needs, optimizer)


def mark(optimizer):
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    dist.barrier()
    if dist.get_rank() == 0:
        print("mark", flush=True)
        sys.stdin.readline()
    dist.barrier()


def batches(args):
    """Each rank's own sequences, the same in every run."""
    samples = gpt.samples()
    order = torch.Generator().manual_seed(1)
    for _ in range(args.steps):
        drawn = torch.randint(len(samples), (dist.get_world_size(), args.batch), generator=order)
        ids = torch.stack([samples[i]["input_ids"] for i in drawn[dist.get_rank()]])
        yield {"input_ids": ids, "labels": ids}


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    model, optimizer = exchange(args, gpt.network())
    took, loss = [], torch.zeros(())
    for number, batch in enumerate(batches(args)):
        if number == args.warmup:
            mark(optimizer)
            began = time.perf_counter()
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        took.append(1e3 * (time.perf_counter() - begun))
    mark(optimizer)
    seconds = time.perf_counter() - began
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": took[args.warmup:], "seconds": seconds,
                          "loss": mean.item() / dist.get_world_size()}), flush=True)
    dist.barrier()
    if args.package:
        import pstrain

        pstrain.shutdown()
    os._exit(0)  # as ddp_job.py: nothing is left to do


if __name__ == "__main__":
    main()
