#!/usr/bin/env python3
"""A small GPT by Accelerate over the back end "pstrain".

    pip install transformers accelerate
    psrun -s 1 -w 2 -- python3 python/examples/gpt_accelerate.py

Accelerate finds the process group that is there. To compress what travels, give what prepare
returns a hook: model.register_comm_hook("int8", pstrain.comm_hook).
"""
import argparse
import time

import torch
import torch.distributed as dist
import pstrain  # noqa: F401  (the back end)
from accelerate import Accelerator
from torch.utils.data import DataLoader

from gpt import CONTEXT, network, samples


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch", type=int, default=8, help="of each worker")
    args = p.parse_args()
    dist.init_process_group("pstrain")
    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(samples(), batch_size=args.batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        begun = time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
        tokens = len(loader) * args.batch * CONTEXT * accelerator.num_processes
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch + 1}: loss {mean.item():.4f}, "
                          f"{tokens / (time.perf_counter() - begun):,.0f} tokens/s")


if __name__ == "__main__":
    main()
