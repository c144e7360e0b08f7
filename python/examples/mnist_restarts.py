#!/usr/bin/env python3
"""mnist.py, which goes on after the death of any of its processes, with the same bits.

    deploy/psrun --restarts 5 -s 2 -w 2 -- python3 python/examples/mnist_restarts.py

`diff mnist.py mnist_restarts.py` shows what it takes.
"""
import torch
import pstrain

from digits import BasicNet, accuracy, arguments, load

args = arguments()
torch.manual_seed(1)
train, test = load(args.data)
pstrain.init()
model = BasicNet(train.size)
optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=args.lr)
data = torch.utils.data.TensorDataset(train.images, train.labels)
sampler = pstrain.DistributedSampler(data, drop_last=True)
loader = torch.utils.data.DataLoader(data, args.batch, sampler=sampler, drop_last=True)
state = pstrain.State(model, optimizer, sampler=sampler, epoch=0, step=0)
state.sync()
for state.epoch in range(state.epoch, args.epochs):
    model.train()
    sampler.set_epoch(state.epoch)
    for images, labels in sampler.batches(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        state.step += 1
        if state.step % 10 == 0:
            state.commit()
    if pstrain.rank() == 0:
        print(f"epoch {state.epoch + 1}: test accuracy {accuracy(model, test):.4f}")
