#!/usr/bin/env python3
"""Handwritten digits by a small convolutional network: plain DistributedDataParallel.

    torchrun --nproc_per_node=2 python/examples/mnist_ddp.py

mnist.py is the same through parameter servers.
"""
import torch
import torch.distributed as dist

from digits import BasicNet, accuracy, arguments, load, shards

args = arguments()
torch.manual_seed(1)
train, test = load(args.data)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(BasicNet(train.size))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
rank, size = dist.get_rank(), dist.get_world_size()
for epoch in range(args.epochs):
    model.train()
    for images, labels in shards(train, args.batch, rank, size, epoch):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy(model, test):.4f}")
