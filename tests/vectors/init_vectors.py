"""The first bytes of PyTorch's default weights, for test_init_weights.

    init_vectors.py FILE

float32: BasicNet with seed 7, its state_dict in order; then a small network of
convolutions, norms and a linear layer with seed 3.
"""
import sys

try:
    import torch
    from torch import nn
except ImportError:
    print("skipped: no module torch")
    sys.exit(77)


def dump(out, modules):
    for module in modules:
        for p in module.parameters():
            out.write(p.detach().numpy().tobytes())


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as out:
        torch.manual_seed(7)
        dump(out, [nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), nn.Linear(9216, 128),
                   nn.Linear(128, 10)])
        torch.manual_seed(3)
        dump(out, [nn.Conv2d(3, 5, (3, 2), bias=False), nn.BatchNorm2d(5),
                   nn.Conv2d(5, 10, 1, groups=5), nn.GroupNorm(2, 10), nn.LayerNorm(300),
                   nn.Linear(300, 7)])
