"""What the examples with images need: the data, the network, and its accuracy.

The images are those of configs/digits, or of a folder with MNIST's files. Where only MNIST's
test files (t10k) are there, images 0 to 7,999 are for training and 8,000 to 9,999 for the test.
"""
import argparse
import dataclasses
import gzip
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "digits"


def arguments(epochs=10, lr=1e-3, saves=False):
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=DIGITS, type=pathlib.Path, help="folder with the files of MNIST's form")
    p.add_argument("--epochs", type=int, default=epochs)
    p.add_argument("--batch", type=int, default=32, help="of each worker")
    p.add_argument("--lr", type=float, default=lr)
    if saves:
        p.add_argument("--save", help="write the weights into this file")
    return p.parse_args()


@dataclasses.dataclass
class Split:
    images: torch.Tensor  # (n, 1, size, size), 0 to 1
    labels: torch.Tensor  # (n)

    @property
    def size(self):
        return self.images.shape[-1]


def load(folder):
    """(training split, test split)"""
    named = [n for n in ("test", "t10k") if (folder / f"{n}-images-idx3-ubyte.gz").exists()]
    if not named:
        raise SystemExit(f"{folder} has no files such as test-images-idx3-ubyte.gz: name another with --data")
    test = _split(folder, named[0])
    if (folder / "train-images-idx3-ubyte.gz").exists():
        return _split(folder, "train"), test
    return (Split(test.images[:8000], test.labels[:8000]), Split(test.images[8000:], test.labels[8000:]))


def _split(folder, name):
    images = _read(folder / f"{name}-images-idx3-ubyte.gz").unsqueeze(1).float()
    return Split(images / images.max(), _read(folder / f"{name}-labels-idx1-ubyte.gz").long())


def _read(path):
    """An IDX file of bytes: a magic number whose last byte is the number of dimensions, the
    dimensions as big-endian 32-bit numbers, the values."""
    with gzip.open(path) as f:
        raw = bytearray(f.read())
    n = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(n)]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * n).view(shape)


def shards(split, batch, rank, size, epoch):
    """This rank's batches of an epoch: the ranks share one permutation."""
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(epoch))
    for at in range(0, len(order) - batch * size + 1, batch * size):
        own = order[at + batch * rank:at + batch * (rank + 1)]
        yield split.images[own], split.labels[own]


class BasicNet(nn.Module):
    """PyTorch's MNIST example. Images of size x size pixels."""

    def __init__(self, size):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * ((size - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.dropout(torch.flatten(F.max_pool2d(x, 2), 1), 0.25, self.training)
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


@torch.no_grad()
def accuracy(model, split):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item()
                for x, y in zip(split.images.split(500), split.labels.split(500)))
    return right / len(split.labels)
