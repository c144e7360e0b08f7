#!/usr/bin/env python3
"""A small GPT, initialised at random, by Hugging Face's Trainer over the back end "pstrain".

    pip install transformers accelerate
    psrun -s 1 -w 2 -- python3 python/examples/gpt_trainer.py

The text is the beginning of Charles Dickens, A Tale of Two Cities (1859), in the public domain.
The Trainer finds the process group that is there; its own option ddp_backend stays unset.
"""
import argparse

import torch
import torch.distributed as dist
import pstrain
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the
age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season
of Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we
had everything before us, we had nothing before us, we were all going direct to Heaven, we were all
going direct the other way - in short, the period was so far like the present period, that some of
its noisiest authorities insisted on its being received, for good or for evil, in the superlative
degree of comparison only. There were a king with a large jaw and a queen with a plain face, on the
throne of England; there were a king with a large jaw and a queen with a fair face, on the throne of
France. In both countries it was clearer than crystal to the lords of the State preserves of loaves
and fishes, that things in general were settled for ever. """
CONTEXT = 64  # characters


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--out", default="runs/gpt")
    args = p.parse_args()
    dist.init_process_group("pstrain")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=128, n_positions=CONTEXT))
    codes = torch.tensor(list(TEXT.encode("ascii")))
    windows = codes.unfold(0, CONTEXT, 3)
    samples = [{"input_ids": w, "labels": w} for w in windows]
    settings = TrainingArguments(args.out, max_steps=args.steps, per_device_train_batch_size=8,
                                 learning_rate=1e-3, use_cpu=True, report_to=[], logging_steps=50,
                                 save_strategy="no", disable_tqdm=True)
    result = Trainer(model=model, args=settings, train_dataset=samples).train()
    if pstrain.rank() == 0:
        print(f"loss {result.training_loss:.4f}, {dist.get_world_size()} workers by {dist.get_backend()}")
    pstrain.shutdown()


if __name__ == "__main__":
    main()
