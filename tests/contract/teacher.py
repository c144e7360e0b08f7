"""PyTorch as the teacher of test_teacher.c: trains BasicNet without dropout and writes,
for every step, to standard output (float32, little-endian, tensors as PyTorch has them):

  weights | inputs (N, 1, 28, 28) | labels (N, int32) | loss | gradients

  python3 teacher.py [autocast] STEPS        exit code 77: there is no PyTorch

With autocast, for test_autocast.c, a second loss and gradients follow, from the same weights under
torch.autocast with bfloat16, which PyTorch has since 1.10. The loss itself is float32 in both.
"""
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)
AUTOCAST = "autocast" in sys.argv
if AUTOCAST and not hasattr(torch, "autocast"):
    sys.exit(77)

BATCH = 8 if AUTOCAST else 64

torch.set_num_threads(1)
torch.manual_seed(11)
conv1, conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
fc1, fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
params = [p for m in (conv1, conv2, fc1, fc2) for p in m.parameters()]
optimizer = torch.optim.SGD(params, lr=0.05) if AUTOCAST else torch.optim.AdamW(params, lr=1e-3)
pictures = torch.randn(10, 1, 28, 28)
out = sys.stdout.buffer


def write(t):
    out.write(bytes(t.detach().contiguous().reshape(-1).numpy().data))


def logits(x):
    y = F.max_pool2d(F.relu(conv2(F.relu(conv1(x)))), 2)
    return fc2(F.relu(fc1(torch.flatten(y, 1))))


def step(y, labels):
    optimizer.zero_grad()
    loss = F.nll_loss(F.log_softmax(y.float(), 1), labels)
    loss.backward()
    write(loss)
    for p in params:
        write(p.grad)


# Noise keeps the loss well above 0. Near 0 the gradients are so small that PyTorch's own rounding
# of log_softmax is more than 1e-5 of them.
for _ in range(int(sys.argv[-1])):
    labels = torch.randint(0, 10, (BATCH,))
    x = pictures[labels] * 0.2 + torch.randn(BATCH, 1, 28, 28)
    for p in params:
        write(p)
    write(x)
    write(labels.to(torch.int32))
    step(logits(x), labels)
    if AUTOCAST:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = logits(x)
        step(y, labels)
    optimizer.step()
