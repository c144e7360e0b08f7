#!/usr/bin/env python3
"""ResNet-18 for small images through parameter servers: gradients travel in 8 bits.

    deploy/psrun -s 2 -w 2 -- python3 python/examples/resnet18.py

Batch norm, a schedule of the learning rate, and saving. Each rank has the running means of its
own batches: rank 0's are saved, as in DistributedDataParallel.
"""
import torch
import pstrain
from torch import nn
from torch.nn import functional as F

from digits import accuracy, arguments, load, shards


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        same = stride == 1 and c_in == c_out
        self.downsample = nn.Sequential() if same else nn.Sequential(
            nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.downsample(x))


class ResNet18(nn.Module):
    """As torchvision's, with a first layer for small images: 11.2 million parameters."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.Sequential(*(
            Block(c_in if i == 0 else c_out, c_out, 2 if i == 0 and c_out > 64 else 1)
            for c_in, c_out in zip(widths, widths[1:]) for i in range(2)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def main():
    args = arguments(epochs=2, lr=0.02, saves=True)
    torch.manual_seed(1)
    train, test = load(args.data)
    with pstrain.init():
        rank, size = pstrain.rank(), pstrain.size()
        model = ResNet18()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=args.lr, momentum=0.9,
                                      weight_decay=5e-4, codec="int8")
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        for epoch in range(args.epochs):
            model.train()
            for images, labels in shards(train, args.batch, rank, size, epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
            scheduler.step()
            if rank == 0:
                print(f"epoch {epoch + 1}: loss {loss.item():.4f}, "
                      f"test accuracy {accuracy(model, test):.4f}", flush=True)
        saved = optimizer.state_dict()  # every rank calls it
        if rank == 0 and args.save:
            torch.save({"model": model.state_dict(), "optimizer": saved}, args.save)


if __name__ == "__main__":
    main()
