#!/usr/bin/env python3
"""One rank of PyTorch's all-reduce over Gloo, timed: gloo_peer.py INIT RANK WORLD STEPS
WARMUP BYTES. Prints {"step_ns": [...]}."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main(init, rank, world, steps, warmup, nbytes):
    torch.set_num_threads(1)
    os.environ.setdefault("USE_LIBUV", "0")  # Debian's PyTorch has none, and asks for it
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    tensor, times = torch.zeros(nbytes // 4), []
    for _ in range(warmup + steps):
        begun = time.perf_counter_ns()
        dist.all_reduce(tensor)
        times.append(time.perf_counter_ns() - begun)
    dist.barrier()
    print(json.dumps({"step_ns": times[warmup:]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
