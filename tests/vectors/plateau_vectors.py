"""Learning rates of test_plateau from torch.optim.lr_scheduler.ReduceLROnPlateau.

    plateau_vectors.py FILE

For each case: 200 evaluations, and the rates of two groups after each of them, as float64.
"""
import random
import struct
import sys

try:
    import torch
    from torch.optim.lr_scheduler import ReduceLROnPlateau
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

RATES = (0.1, 0.003)
CASES = (
    {},
    {"factor": 0.5, "patience": 0, "threshold": 0.0},
    {"factor": 0.3, "patience": 2, "threshold": 0.05, "cooldown": 3, "min_lr": 1e-5},
    {"factor": 0.9, "patience": 1, "threshold": 1.0, "cooldown": 1},
    {"mode": "max", "factor": 0.7, "patience": 3, "threshold": 0.01},
    {"mode": "max", "factor": 0.0, "patience": 5, "threshold": 0.1, "min_lr": 0.004},
)


def evaluations(draw):
    """Results that fall and then stand still, some equal, some that are no numbers."""
    value = 2.0
    for i in range(200):
        value *= draw.choice([1.0, 1.0, 0.97, 0.9, 1.02])
        yield draw.choice([float("nan"), float("inf"), -float("inf") if i > 150 else 0.5]) \
            if draw.random() < 0.04 else value


if __name__ == "__main__":
    rng = random.Random(3)
    with open(sys.argv[1], "wb") as out:
        for case in CASES:
            groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in RATES]
            optimizer = torch.optim.SGD(groups, lr=RATES[0])
            scheduler = ReduceLROnPlateau(optimizer, **case)
            for result in evaluations(rng):
                optimizer.step()
                scheduler.step(result)
                out.write(struct.pack("<3d", result, *(g["lr"] for g in optimizer.param_groups)))
