"""300 learning rates of each case of test_schedule, as float64, from PyTorch.

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


def polynomial(o):
    return ls.PolynomialLR(o, total_iters=250, power=2.5)


def restarts(o):
    return ls.CosineAnnealingWarmRestarts(o, T_0=30, T_mult=2, eta_min=0.002)


def even_restarts(o):
    return ls.CosineAnnealingWarmRestarts(o, T_0=45)


def after_warm_up(o, steps, start, main):
    return SequentialLR(o, [LinearLR(o, start_factor=start, total_iters=steps), main],
                        milestones=[steps])


def warm_restarts(o):
    return after_warm_up(o, 25, 1e-30, ls.CosineAnnealingWarmRestarts(o, T_0=40, T_mult=3))


def warm_polynomial(o):
    return after_warm_up(o, 40, 0.1, ls.PolynomialLR(o, total_iters=250, power=0.5))


def one_cycle(o, **options):
    return ls.OneCycleLR(o, max_lr=LR, total_steps=300, cycle_momentum=False, **options)


def linear_cycle(o):
    return one_cycle(o, pct_start=0.17, anneal_strategy="linear", div_factor=10,
                     final_div_factor=100)


def three_phases(o):
    return one_cycle(o, pct_start=0.4, three_phase=True)


def fall_alone(o):
    return one_cycle(o, pct_start=0.0)


CASES = (constant, steps, cosine, linear, warm, polynomial, restarts, even_restarts, warm_restarts,
         warm_polynomial, one_cycle, linear_cycle, three_phases, fall_alone)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "wb") as out:
        for make in CASES:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
            scheduler = make(optimizer)
            for step in range(300):
                out.write(struct.pack("<d", optimizer.param_groups[0]["lr"]))
                optimizer.step()
                if step < 299:
                    scheduler.step()
