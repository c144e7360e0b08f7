#!/usr/bin/env python3
"""dlrm.py by DistributedDataParallel over Gloo: each worker has all tables, with a fixed number of rows; gradients of
rows are sparse, or, with --dense, whole tables.

    torchrun --nproc_per_node=2 python/examples/dlrm_ddp.py
"""
import sys

import torch
import torch.distributed as dist
from torch import nn

from clicks import find
from dlrm import MODELS, arguments, test, train

ROWS = 100_000  # of a table: ids are taken modulo this number


class Whole(nn.Module):
    """Tables and layers."""

    def __init__(self, source, args, sparse):
        super().__init__()
        torch.manual_seed(1)
        self.model = MODELS[args.model](source.dense, len(source.tables), args.dim)
        dim = args.dim + self.model.extra
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, dim, mode="sum", sparse=sparse) for _ in source.tables)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, counts, ids):
        of_tables = [table(each[:, None]) for table, each in zip(self.tables, ids.t() % ROWS)]
        return self.model(counts, torch.stack(of_tables, 1))


def main():
    dense = "--dense" in sys.argv
    if dense:
        sys.argv.remove("--dense")
    args = arguments()
    source = find(args.data, args.samples, args.ids)
    dist.init_process_group("gloo")
    whole = Whole(source, args, sparse=not dense)
    ddp = nn.parallel.DistributedDataParallel(whole)
    optimizers = [torch.optim.Adagrad(whole.tables.parameters(), lr=args.rows_lr),
                  torch.optim.Adam(whole.model.parameters(), lr=args.lr)]
    train(args, source, ddp, optimizers, dist.get_rank(), dist.get_world_size())
    test(source, whole, dist.get_rank(), dist.get_world_size(), dist.all_reduce)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
