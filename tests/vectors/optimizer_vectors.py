"""Steps of PyTorch's optimizers, as a binary file for test_optimizer or as a C header.

    optimizer_vectors.py binary FILE     # 100 steps of every case, at test time
    optimizer_vectors.py header FILE     # a few steps: tests/vectors/optimizer_vectors.h

Binary, little-endian float64 and float32: for each case a record of 16 doubles (kind, lr,
momentum, dampening, nesterov, weight_decay, beta1, beta2 or alpha, eps, n, steps, major version
of torch, centered, lr_decay, initial_accumulator_value, decay of the weights' average), then n initial weights, then for each
step n gradients, weights and three states.
"""
import struct
import sys

try:
    import torch
except ImportError:
    print("skipped: no module torch")
    sys.exit(77)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675, as plainly as it stands there."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].get("exp_avg", torch.zeros_like(p))
                direction = m.mul(b1).add(p.grad, alpha=1 - b1).sign()
                p.mul_(1 - lr * group["weight_decay"]).sub_(direction, alpha=lr)
                self.state[p]["exp_avg"] = m.mul(b2).add(p.grad, alpha=1 - b2)


KINDS = {"sgd": 0, "adam": 1, "adamw": 2, "rmsprop": 3, "adagrad": 4, "lion": 5}
CASES = [
    ("sgd", dict(lr=0.1)),
    ("sgd", dict(lr=0.05, weight_decay=0.01)),
    ("sgd", dict(lr=0.05, momentum=0.9)),
    ("sgd", dict(lr=0.05, momentum=0.9, dampening=0.3)),
    ("sgd", dict(lr=0.05, momentum=0.9, nesterov=True)),
    ("sgd", dict(lr=0.03, momentum=0.8, nesterov=True, weight_decay=5e-4)),
    ("adam", dict()),
    ("adam", dict(lr=3e-3, weight_decay=0.02)),
    ("adam", dict(lr=1e-3, betas=(0.4, 0.95), eps=1e-6)),
    ("adamw", dict()),
    ("adamw", dict(lr=2e-3, weight_decay=0.1, betas=(0.8, 0.99))),
    ("adamw", dict(lr=1e-3, betas=(0.3, 0.9), weight_decay=0.0)),
    ("rmsprop", dict()),
    ("rmsprop", dict(lr=3e-3, alpha=0.9, eps=1e-6, weight_decay=0.02)),
    ("rmsprop", dict(lr=1e-3, momentum=0.9)),
    ("rmsprop", dict(lr=1e-3, centered=True, eps=1e-4)),
    ("rmsprop", dict(lr=1e-3, momentum=0.8, centered=True, alpha=0.4, eps=1e-4)),
    ("adagrad", dict()),
    ("adagrad", dict(lr=0.02, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.01)),
    ("lion", dict()),
    ("lion", dict(lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1)),
    ("sgd", dict(lr=0.1, ema=0.9)),
    ("adamw", dict(ema=0.999)),
    ("sgd", dict(lr=0.05, momentum=0.9, ema=0.3)),
    ("sgd", dict(lr=0.05, momentum=0.9, dampening=1.0, weight_decay=0.01)),
    ("sgd", dict(lr=0.0, momentum=0.9, nesterov=True)),
    ("adam", dict(betas=(0.0, 0.0))),
    ("adamw", dict(betas=(0.0, 0.999), weight_decay=0.1)),
    ("adam", dict(betas=(0.9, 0.0), weight_decay=0.01)),
    ("rmsprop", dict(lr=1e-3, alpha=0.0, momentum=0.5)),
    ("adagrad", dict(lr_decay=1.0, initial_accumulator_value=1e-3)),
    ("lion", dict(betas=(0.0, 0.0), weight_decay=0.0)),
]
MAKE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "lion": Lion}
# Of the optimizers, in the order in which the programs have them.
STATES = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
          "adamw": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg", "momentum_buffer", "grad_avg"),
          "adagrad": ("sum",), "lion": ("exp_avg",)}


def record(kind, group, n, steps):
    beta1, beta2 = group.get("betas", (0.9, group.get("alpha", 0.999)))
    return [KINDS[kind], group["lr"], group.get("momentum", 0), group.get("dampening", 0),
            float(group.get("nesterov", False)), group["weight_decay"], beta1, beta2,
            group.get("eps", 1e-8), n, steps, int(torch.__version__.split(".")[0]),
            float(group.get("centered", False)), group.get("lr_decay", 0),
            group.get("initial_accumulator_value", 0), group.get("ema", 0)]


def average(before, p, decay):
    """As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay) does after a step."""
    if before is None:
        return p.detach().clone()
    try:
        torch.optim.swa_utils.get_ema_multi_avg_fn(decay)([before], [p.detach()], 1)
        return before
    except AttributeError:  # before PyTorch 2.1
        return before.lerp_(p.detach(), 1 - decay)


def gradient(generator, n, step):
    """Sizes over ten decades, some zero: what a network gives, and worse."""
    g = torch.randn(n, generator=generator)
    g *= 10.0 ** torch.randint(-8, 2, (n,), generator=generator)
    g[step % n] = 0
    return g


def run(kind, options, n, steps, seed):
    """Yields the record, the initial weights, then (gradient, weight, and three states)."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(n, generator=generator) * 0.1)
    decay, ema = options.get("ema", 0), None
    optimizer = MAKE[kind]([p], **{k: v for k, v in options.items() if k != "ema"})
    optimizer.param_groups[0]["ema"] = decay
    yield record(kind, optimizer.param_groups[0], n, steps)
    yield p.detach().clone()
    zero = torch.zeros(n)
    for step in range(steps):
        p.grad = gradient(generator, n, step)
        g = p.grad.clone()
        optimizer.step()
        states = [optimizer.state[p].get(name) for name in STATES[kind]]
        states = [x for x in states if x is not None]
        if decay:
            ema = average(ema, p, decay)
            states.append(ema)
        states += [zero] * (3 - len(states))
        yield [x.detach().clone() for x in (g, p, *states)]


def write_binary(path):
    with open(path, "wb") as out:
        for seed, (kind, options) in enumerate(CASES):
            steps = run(kind, options, 259, 100, seed)
            out.write(struct.pack("<16d", *next(steps)))
            out.write(next(steps).numpy().tobytes())
            for tensors in steps:
                for x in tensors:
                    out.write(x.numpy().tobytes())


def c_list(values, suffix=""):
    return "{" + ", ".join(float(v).hex() + suffix for v in values) + "}"


def without_zeros(tensors):
    """C's initialisers need no zeros at the end."""
    tensors = list(tensors)
    while not any(tensors[-1]):
        tensors.pop()
    return tensors


def write_header(path):
    n, steps = 6, 2
    with open(path, "w") as out:
        out.write("/* Made by optimizer_vectors.py header, with torch %s. */\n"
                  % torch.__version__)
        out.write("// clang-format off\n")
        out.write("static const struct {\n    double record[16];\n    float start[%d];\n"
                  "    float steps[%d][5][%d]; // gradient, weight, states\n"
                  "} vectors[] = {\n" % (n, steps, n))
        for seed, (kind, options) in enumerate(CASES):
            rows = run(kind, options, n, steps, 100 + seed)
            out.write("    {%s,\n     %s,\n     {" % (c_list(next(rows)),
                                                   c_list(next(rows), "f")))
            out.write(",\n      ".join(
                "{" + ", ".join(c_list(x, "f") for x in without_zeros(tensors)) + "}"
                for tensors in rows))
            out.write("}},\n")
        out.write("};\n// clang-format on\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"binary": write_binary, "header": write_header}[sys.argv[1]](sys.argv[2])
