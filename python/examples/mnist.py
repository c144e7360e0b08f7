#!/usr/bin/env python3
"""Handwritten digits by a small convolutional network, through parameter servers.

    deploy/psrun -s 2 -w 2 -- python3 python/examples/mnist.py

`diff mnist_ddp.py mnist.py` shows what differs from DistributedDataParallel.
"""
import torch
import pstrain

from digits import BasicNet, accuracy, arguments, load, shards

args = arguments()
torch.manual_seed(1)
train, test = load(args.data)
pstrain.init()
model = BasicNet(train.size)
optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=args.lr)
rank, size = pstrain.rank(), pstrain.size()
for epoch in range(args.epochs):
    model.train()
    for images, labels in shards(train, args.batch, rank, size, epoch):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy(model, test):.4f}")
