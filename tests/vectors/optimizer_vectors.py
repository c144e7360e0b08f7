"""Steps of PyTorch's optimizers, as a binary file for test_optimizer or as a C header.

    optimizer_vectors.py binary FILE     # 100 steps of every case, at test time
    optimizer_vectors.py header FILE     # a few steps: tests/vectors/optimizer_vectors.h

Binary, little-endian float64 and float32: for each case a record of 12 doubles (kind, lr,
momentum, dampening, nesterov, weight_decay, beta1, beta2, eps, n, steps, major version of
torch), then n initial weights, then for each step n gradients, weights, first and second
state.
"""
import struct
import sys

try:
    import torch
except ImportError:
    print("skipped: no module torch")
    sys.exit(77)

KINDS = {"sgd": 0, "adam": 1, "adamw": 2}
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
]
MAKE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def record(kind, group, n, steps):
    beta1, beta2 = group.get("betas", (0.9, 0.999))
    return [KINDS[kind], group["lr"], group.get("momentum", 0), group.get("dampening", 0),
            float(group.get("nesterov", False)), group["weight_decay"], beta1, beta2,
            group.get("eps", 1e-8), n, steps, int(torch.__version__.split(".")[0])]


def gradient(generator, n, step):
    """Sizes over ten decades, some zero: what a network gives, and worse."""
    g = torch.randn(n, generator=generator)
    g *= 10.0 ** torch.randint(-8, 2, (n,), generator=generator)
    g[step % n] = 0
    return g


def run(kind, options, n, steps, seed):
    """Yields the record, the initial weights, then (gradient, weight, state, state)."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(n, generator=generator) * 0.1)
    optimizer = MAKE[kind]([p], **options)
    yield record(kind, optimizer.param_groups[0], n, steps)
    yield p.detach().clone()
    zero = torch.zeros(n)
    for step in range(steps):
        p.grad = gradient(generator, n, step)
        g = p.grad.clone()
        optimizer.step()
        state = optimizer.state[p]
        first = state.get("momentum_buffer", state.get("exp_avg", zero))
        if first is None:
            first = zero
        second = state.get("exp_avg_sq", zero)
        yield [x.detach().clone() for x in (g, p, first, second)]


def write_binary(path):
    with open(path, "wb") as out:
        for seed, (kind, options) in enumerate(CASES):
            steps = run(kind, options, 259, 100, seed)
            out.write(struct.pack("<12d", *next(steps)))
            out.write(next(steps).numpy().tobytes())
            for tensors in steps:
                for x in tensors:
                    out.write(x.numpy().tobytes())


def c_list(values, suffix=""):
    return "{" + ", ".join(float(v).hex() + suffix for v in values) + "}"


def write_header(path):
    n, steps = 6, 3
    with open(path, "w") as out:
        out.write("/* Made by optimizer_vectors.py header, with torch %s. */\n"
                  % torch.__version__)
        out.write("// clang-format off\n")
        out.write("static const struct {\n    double record[12];\n    float start[%d];\n"
                  "    float steps[%d][4][%d]; // gradient, weight, states\n"
                  "} vectors[] = {\n" % (n, steps, n))
        for seed, (kind, options) in enumerate(CASES):
            rows = run(kind, options, n, steps, 100 + seed)
            out.write("    {%s,\n     %s,\n     {" % (c_list(next(rows)),
                                                   c_list(next(rows), "f")))
            out.write(",\n      ".join(
                "{" + ",\n       ".join(c_list(x, "f") for x in tensors) + "}"
                for tensors in rows))
            out.write("}},\n")
        out.write("};\n// clang-format on\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"binary": write_binary, "header": write_header}[sys.argv[1]](sys.argv[2])
