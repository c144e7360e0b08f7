#!/usr/bin/env python3
"""Clicks by DLRM, Wide & Deep or DeepFM: embedding tables live on the servers and grow by id, layers are trained beside.

    deploy/psrun -s 2 -w 2 -- python3 python/examples/dlrm.py
    deploy/psrun -s 2 -w 2 -- python3 python/examples/dlrm.py --model deepfm --data train.txt.gz --export rows.safetensors

--data: Criteo's TSV file, plain or gzip, or MovieLens' ratings; without it samples are generated, and the best possible
AUC is known. Every tenth sample is held out. dlrm_ddp.py is the same by DistributedDataParallel, dlrm_torchrec.py by TorchRec.
"""
import argparse
import itertools
import time

import torch
import pstrain
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from clicks import Scores, batches, find


def layers(*sizes):
    """Linear layers with relu between them."""
    pairs = [(nn.Linear(*pair), nn.ReLU()) for pair in zip(sizes, sizes[1:])]
    return nn.Sequential(*[each for pair in pairs for each in pair][:-1])


class DLRM(nn.Module):
    """Naumov et al. 2019, of the shape for Kaggle's data: products of all pairs of rows."""

    extra = 0  # elements of a row beside dim

    def __init__(self, dense, tables, dim):
        super().__init__()
        self.bottom = layers(dense, 512, 256, 64, dim)
        self.top = layers(dim + tables * (tables + 1) // 2, 512, 256, 1)
        self.pairs = torch.tril_indices(tables + 1, tables + 1, -1)

    def forward(self, counts, rows):
        x = self.bottom(counts).relu()
        all_rows = torch.cat([x[:, None], rows], 1)
        products = torch.bmm(all_rows, all_rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], 1)).squeeze(1)


class WideDeep(nn.Module):
    """Cheng et al. 2016. The first element of a row is the id's weight in the wide part."""

    extra = 1

    def __init__(self, dense, tables, dim):
        super().__init__()
        self.wide = nn.Linear(dense, 1)
        self.deep = layers(dense + tables * dim, 64, 32, 1)

    def forward(self, counts, rows):
        deep = self.deep(torch.cat([counts, rows[..., 1:].flatten(1)], 1))
        return (self.wide(counts) + deep).squeeze(1) + rows[..., 0].sum(1)


class DeepFM(WideDeep):
    """Guo et al. 2017: Wide & Deep, and a factorization machine over the same rows."""

    def forward(self, counts, rows):
        factors = rows[..., 1:]
        pairs = factors.sum(1) ** 2 - (factors ** 2).sum(1)
        return super().forward(counts, rows) + pairs.sum(1) / 2


MODELS = {"dlrm": DLRM, "wide_deep": WideDeep, "deepfm": DeepFM}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="dlrm")
    p.add_argument("--data", help="Criteo's file, or MovieLens' ratings or their folder")
    p.add_argument("--samples", type=int, default=100_000, help="that are generated where there is no --data")
    p.add_argument("--ids", type=int, default=1000, help="of each table, likewise")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--batch", type=int, default=512, help="of all workers together")
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3, help="of the layers")
    p.add_argument("--rows-lr", type=float, default=0.05)
    p.add_argument("--codec", default="none", choices=["none", "fp16", "int8"], help="of rows and their gradients that travel")
    p.add_argument("--ahead", action="store_true",
                   help="ask for the next batch's rows before this one's backward pass: worth it between hosts")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ready", action="store_true", help="make all samples before the first step: for timings")
    p.add_argument("--export", help="write the rows into this file, for pstrain.rows")
    return p.parse_args()


def train(args, source, predict, optimizers, rank, size, prefetch=None):
    """predict: of (counts, ids) the logits. prefetch: asks for the rows of ids, of the next batch."""
    for epoch in range(args.epochs):
        all_batches = batches(source, args.batch, rank, size)
        these, those = itertools.tee(list(all_batches) if args.ready else all_batches)
        begun, seen = time.perf_counter(), 0
        for step, (batch, following) in enumerate(itertools.zip_longest(these, itertools.islice(those, 1, None))):
            (counts, ids, labels, _), n = batch
            for optimizer in optimizers:
                optimizer.zero_grad()
            # The mean over all workers' samples: their gradients are averaged, and parts may differ by a sample.
            loss = binary_cross_entropy_with_logits(predict(counts, ids), labels, reduction="sum") * (size / n)
            if prefetch and following:
                prefetch(following[0][1])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            seen += n
            if rank == 0 and step % 50 == 49:
                print(f"epoch {epoch + 1}, {seen:,} samples: loss {loss.item():.4f}, "
                      f"{seen / (time.perf_counter() - begun):,.0f} samples/s", flush=True)


@torch.no_grad()
def test(source, predict, rank, size, all_reduce):
    scores, best = Scores(), Scores()
    for (counts, ids, labels, truth), _ in batches(source, 8192, rank, size, tests=True):
        scores.add(predict(counts, ids), labels)
        if truth is not None:
            best.add(truth, labels)
    for tensor in (scores.counts, scores.loss, best.counts, best.loss):
        all_reduce(tensor)
    if rank == 0:
        print("test: AUC {:.4f}, log loss {:.4f}".format(*scores.result()), flush=True)
        if best.counts.any():
            print("best possible: AUC {:.4f}, log loss {:.4f}".format(*best.result()), flush=True)


def main():
    args = arguments()
    source = find(args.data, args.samples, args.ids)
    with pstrain.init():
        torch.manual_seed(args.seed)
        model = MODELS[args.model](source.dense, len(source.tables), args.dim)
        table = dict(dim=args.dim + model.extra, mode=None, init="normal", scale=0.01, codec=args.codec)
        rows = pstrain.Embeddings({name: table for name in source.tables}, optimizer="adagrad", lr=args.rows_lr,
                                  seed=args.seed)
        optimizer = pstrain.Optimizer(model.named_parameters(), "adam", lr=args.lr)  # its step is the rows', too

        def by_table(ids):
            return dict(zip(source.tables, ids.t().contiguous()))

        def predict(counts, ids):
            return model(counts, torch.stack(list(rows(by_table(ids)).values()), 1))  # rows by table: (n, dim)

        train(args, source, predict, [optimizer], pstrain.rank(), pstrain.size(),
              (lambda ids: rows.prefetch(by_table(ids))) if args.ahead else None)
        test(source, predict, pstrain.rank(), pstrain.size(), pstrain.all_reduce)
        if args.export and pstrain.rank() == 0:
            rows.export(args.export)


if __name__ == "__main__":
    main()
