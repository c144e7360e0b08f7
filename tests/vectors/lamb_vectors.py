"""Steps of LAMB in PyTorch, for test_lamb.

    lamb_vectors.py FILE

LAMB is written out here as plainly as in timm's and apex's optimizers; the norms are added up
in float64, and square roots are rounded from float64, as those of pip's PyTorch 2 are often one
unit off. For each case 8 doubles (lr, weight decay, beta1, beta2, eps, factor of the gradients,
elements, steps), then the weights, and for each step gradients, weights, exp_avg and exp_avg_sq
(float32), tensor after tensor.
"""
import math
import struct
import sys

try:
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

COUNTS = (3, 4096, 4097, 9000, 10)
STEPS = 20
CASES = (
    dict(),
    dict(lr=0.02, weight_decay=0.1, betas=(0.8, 0.99)),
    dict(weight_decay=0.0, eps=1e-4),
    dict(lr=0.1, factor=0.25),
)


def lamb(p, g, m, v, t, lr, weight_decay, betas, eps):
    """One step, in place."""
    b1, b2 = betas
    m.mul_(b1).add_(g, alpha=1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    update = (m / (1 - b1**t)).div_((v.double().sqrt().float() / math.sqrt(1 - b2**t)).add_(eps))
    update.add_(p, alpha=weight_decay)
    size, step = p.double().norm(), update.double().norm()
    if weight_decay != 0 and size > 0 and step > 0:
        update.mul_((size / step).float())
    p.add_(update, alpha=-lr)


def write_case(out, number, lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-6, factor=1.0):
    draw = torch.Generator().manual_seed(number)
    p = [torch.randn(n, generator=draw) * 10.0 ** -i for i, n in enumerate(COUNTS)]
    p[-1].zero_()  # a norm of 0
    m, v = ([torch.zeros(n) for n in COUNTS] for _ in range(2))
    write = lambda tensors: [out.write(x.numpy().tobytes()) for x in tensors]
    out.write(struct.pack("<8d", lr, weight_decay, *betas, eps, factor, sum(COUNTS), STEPS))
    write(p)
    for t in range(1, STEPS + 1):
        g = [torch.randn(n, generator=draw) * 10.0 ** (i - 3) for i, n in enumerate(COUNTS)]
        g[1][::2] = 0
        write(g)
        for i in range(len(COUNTS)):
            lamb(p[i], g[i] * factor, m[i], v[i], t, lr, weight_decay, betas, eps)
        write([*p, *m, *v])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open(sys.argv[1], "wb") as file:
        for i, case in enumerate(CASES):
            write_case(file, i, **case)
