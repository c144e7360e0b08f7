"""PyTorch as the teacher of test_loss_teacher.c: trains a small model with each loss in turn and
writes, for every step, to standard output (float32, little-endian, tensors as PyTorch has them):

  weights | inputs (32, 7) | labels (32, int32) or targets (32, 6) | loss | gradients

  python3 loss_teacher.py NAME... STEPS        exit code 77: there is no PyTorch
"""
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

WEIGHTS = torch.tensor([0.5, 2, 1, 0, 3, 0.25])
CLASSES = {
    "smoothing": lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    "weights": lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS),
    "ignore": lambda y, t: F.cross_entropy(y, t, ignore_index=2),
    "all": lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS, ignore_index=2, label_smoothing=0.3),
    "nll": lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, weight=WEIGHTS, ignore_index=2),
}
PROBABILITIES = {
    "soft": F.cross_entropy,
    "soft_all": lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS, label_smoothing=0.3),
}
NUMBERS = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "bce": F.binary_cross_entropy_with_logits,
}

out = sys.stdout.buffer


def write(t):
    out.write(bytes(t.detach().contiguous().reshape(-1).numpy().data))


def targets_of(name, y):
    if name in CLASSES:
        return (y + torch.randn_like(y)).argmax(1)
    if name in PROBABILITIES:  # like those of v2.MixUp
        own = F.one_hot((y + torch.randn_like(y)).argmax(1), 6).float()
        share = torch.rand(1)
        return own.roll(1, 0) * (1 - share) + own * share
    if name == "bce":
        return (y > 0).float()
    return 3 * y + torch.randn_like(y)


def teach(name, steps):
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    hidden = nn.Linear(7, 6)
    loss_of = {**CLASSES, **PROBABILITIES, **NUMBERS}[name]
    for _ in range(steps):
        x = torch.randn(32, 7)
        t = targets_of(name, hidden(x).detach())
        for p in model.parameters():
            write(p)
        write(x)
        write(t.to(torch.int32) if name in CLASSES else t)
        loss = loss_of(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        write(loss)
        for p in model.parameters():
            write(p.grad)
        optimizer.step()


torch.set_num_threads(1)
for name in sys.argv[1:-1]:
    teach(name, int(sys.argv[-1]))
