"""100 learning rates of each case of test_schedule, as float64, from PyTorch.

    schedule_vectors.py FILE
"""
import struct
import sys
import warnings

try:
    import torch
    from torch.optim import lr_scheduler as ls
    from torch.optim.lr_scheduler import LinearLR, SequentialLR  # since PyTorch 1.10
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

LR = 0.1


def constant(o):
    return ls.LambdaLR(o, lambda t: 1.0)


def steps(o):
    return ls.StepLR(o, step_size=30, gamma=0.5)


def cosine(o):
    return ls.CosineAnnealingLR(o, T_max=100, eta_min=0.001)


def linear(o):
    return LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=80)


def warm(o):
    return SequentialLR(o, [LinearLR(o, start_factor=0.25, total_iters=20),
                            ls.CosineAnnealingLR(o, T_max=80)], milestones=[20])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "wb") as out:
        for make in (constant, steps, cosine, linear, warm):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
            scheduler = make(optimizer)
            for _ in range(100):
                out.write(struct.pack("<d", optimizer.param_groups[0]["lr"]))
                optimizer.step()
                scheduler.step()
