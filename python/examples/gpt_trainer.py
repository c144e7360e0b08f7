#!/usr/bin/env python3
"""A small GPT by Hugging Face's Trainer over the back end "pstrain".

    pip install transformers accelerate
    psrun -s 1 -w 2 -- python3 python/examples/gpt_trainer.py

The Trainer finds the process group that is there; its own option ddp_backend stays unset.
"""
import argparse

import torch
import torch.distributed as dist
import pstrain  # noqa: F401  (the back end)
from transformers import Trainer, TrainingArguments

from gpt import network, samples


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--out", default="runs/gpt")
    args = p.parse_args()
    dist.init_process_group("pstrain")
    settings = TrainingArguments(args.out, max_steps=args.steps, per_device_train_batch_size=8,
                                 learning_rate=1e-3, use_cpu=True, report_to=[], logging_steps=50,
                                 save_strategy="no", disable_tqdm=True)
    result = Trainer(model=network(), args=settings, train_dataset=samples()).train()
    if dist.get_rank() == 0:
        print(f"loss {result.training_loss:.4f}, {dist.get_world_size()} workers by {dist.get_backend()}")


if __name__ == "__main__":
    main()
