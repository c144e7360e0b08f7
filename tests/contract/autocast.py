"""PyTorch as the teacher of test_autocast.c: BasicNet without dropout, in float32 and under
torch.autocast with bfloat16, from the same weights. For every step, to standard output
(float32, little-endian, tensors as PyTorch has them):

  weights | inputs (8, 1, 28, 28) | labels (8, int32) | loss | gradients | loss | gradients

first in float32, then under autocast; the loss itself is float32 in both.

  python3 autocast.py STEPS        exit code 77: there is no PyTorch, or one before 1.10
"""
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)
if not hasattr(torch, "autocast"):
    sys.exit(77)

BATCH = 8

torch.set_num_threads(1)
torch.manual_seed(11)
conv1, conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
fc1, fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
params = [p for m in (conv1, conv2, fc1, fc2) for p in m.parameters()]
optimizer = torch.optim.SGD(params, lr=0.05)
pictures = torch.randn(10, 1, 28, 28)
out = sys.stdout.buffer


def write(t):
    out.write(bytes(t.detach().float().contiguous().reshape(-1).numpy().data))


def step(x, labels, narrow):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        y = F.max_pool2d(F.relu(conv2(F.relu(conv1(x)))), 2)
        y = fc2(F.relu(fc1(torch.flatten(y, 1))))
    loss = F.nll_loss(F.log_softmax(y.float(), 1), labels)
    loss.backward()
    write(loss)
    for p in params:
        write(p.grad)


for _ in range(int(sys.argv[1])):
    labels = torch.randint(0, 10, (BATCH,))
    x = pictures[labels] * 0.2 + torch.randn(BATCH, 1, 28, 28)
    for p in params:
        write(p)
    write(x)
    out.write(bytes(labels.to(torch.int32).numpy().data))
    step(x, labels, False)
    step(x, labels, True)
    optimizer.step()
