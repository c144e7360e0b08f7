#!/usr/bin/env python3
"""dlrm_ddp.py by TorchRec over Gloo: its planner shares the tables out, FBGEMM's fused Adagrad steps them. A row's elements
must be a multiple of 4 (--model wide_deep: --dim 15).

    torchrun --nproc_per_node=2 python/examples/dlrm_torchrec.py
"""
import functools

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from clicks import find
from dlrm import MODELS, arguments, train
from dlrm_ddp import ROWS


class Sharded(nn.Module):
    def __init__(self, source, args):
        super().__init__()
        torch.manual_seed(1)
        self.names, self.model = source.tables, MODELS[args.model](source.dense, len(source.tables), args.dim)
        config = functools.partial(EmbeddingBagConfig, embedding_dim=args.dim + self.model.extra, num_embeddings=ROWS,
                                   init_fn=functools.partial(nn.init.normal_, std=0.01))
        self.rows = EmbeddingBagCollection([config(name=name, feature_names=[name]) for name in self.names], device=torch.device("cpu"))
        apply_optimizer_in_backward(torch.optim.Adagrad, self.rows.parameters(), {"lr": args.rows_lr})

    def forward(self, counts, ids):
        keyed = KeyedJaggedTensor(self.names, (ids % ROWS).t().flatten(), lengths=torch.ones(ids.numel(), dtype=torch.int32))
        return self.model(counts, self.rows(keyed).values().view(len(ids), len(self.names), -1))


def main():
    args = arguments()
    source = find(args.data, args.samples, args.ids)
    dist.init_process_group("gloo")
    whole = Sharded(source, args)
    layers = torch.optim.Adam(whole.model.parameters(), lr=args.lr)
    parallel = DistributedModelParallel(whole, device=torch.device("cpu"), sharders=[EmbeddingBagCollectionSharder()])
    train(args, source, parallel, [layers], dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
