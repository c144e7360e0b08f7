#!/usr/bin/env python3
"""One process of a job in PyTorch DDP that goes on from checkpoints, or leaves them.

bench/parity starts it once per rank, with torchrun's variables. Every checkpoint is a run of
its own, OUT/run-S/checkpoints/step-S, so that psrun --resume OUT/run-S goes on from it.

  --after N --steps K --init FILE   trains N + K steps, with checkpoints after N, N + 1 ... N + K
  --from FOLDER ...                 from each of these checkpoints one step, and its checkpoint

Writes OUT/steps.json: the mean loss of every such step over all ranks, by the step's number; and with
--ties how far roundings move its gradient.
"""
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True

import torch.distributed as dist  # noqa: E402

from benchlib import torch_checkpoint  # noqa: E402
from benchlib.ties import Ties  # noqa: E402
from ddp_job import Job, parser, run  # noqa: E402


def arguments():
    p = parser(__doc__)
    p.add_argument("--after", type=int, default=0)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--from", dest="checkpoints", nargs="+", default=[])
    p.add_argument("--ties", action="store_true")
    p.set_defaults(order="given", hook="none", package=None)
    return p.parse_args()


class Continued(Job):
    """A job that makes its steps one at a time."""

    def __init__(self, args, config):
        super().__init__(args, config)
        self.ddp.train()
        self.losses, self.moves = {}, {}
        if args.ties:
            self.ties = Ties(self.model, self.loss, dist.all_reduce, self.world)
        self.number, self.epoch, self.position = 0, 0, 0
        self.left = iter(self.groups(0))

    def load(self, folder):
        self.number, self.epoch, self.position = torch_checkpoint.load(folder, self.model, self.optimizer)
        self.left = self.groups(self.epoch)
        for _ in range(-(-self.position // (self.world * self.batch * self.accumulate))):
            next(self.left)

    def save(self):
        if self.rank == 0:
            name = f"step-{self.number}"
            folder = os.path.join(self.args.out, f"run-{self.number}", "checkpoints", name)
            shutil.rmtree(folder, ignore_errors=True)  # of a run before
            torch_checkpoint.save(folder, self.model, self.optimizer, self.number, self.epoch, self.position)

    def one_step(self):
        group = next(self.left, None)
        if group is None:
            self.epoch, self.position = self.epoch + 1, 0
            self.left = self.groups(self.epoch)
            group = next(self.left)
        self.step(group, self.number)
        self.number += 1
        self.position += self.world * sum(len(b) for b in group)
        loss_sum, n = self.over_ranks(self.since_record)
        self.since_record = [0.0, 0]
        self.losses[self.number] = loss_sum / n
        if self.ties:
            self.moves[self.number] = self.ties.moves[-1]

    def go_on(self):
        for folder in self.args.checkpoints:
            self.load(folder)
            self.one_step()
            self.save()

    def begin(self):
        for _ in range(self.args.after):
            self.one_step()
        self.save()
        for _ in range(self.args.steps):
            self.one_step()
            self.save()


def main(job):
    if job.args.checkpoints:
        job.go_on()
    else:
        job.begin()
    if job.rank == 0:
        with open(os.path.join(job.args.out, "steps.json"), "w", encoding="utf-8") as f:
            json.dump([job.losses, job.moves], f)


if __name__ == "__main__":
    run(arguments(), Continued, main)
