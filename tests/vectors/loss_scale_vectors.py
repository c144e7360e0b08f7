"""Training under torch.amp.GradScaler with overflows: tests/vectors/loss_scale_vectors.h.

    loss_scale_vectors.py FILE

Two workers' scaled gradients are added, unscaled and stepped. They are those of
tests/contract/test_exchange_loss_scale.c, which is to arrive at the same scales and weights through
every exchange: noise(rank, step, element) + weight / 8, times the scale.
"""
import struct
import sys

try:
    import torch
except ImportError:
    print("skipped: no module torch")
    sys.exit(77)

STEPS = 14
PLACES = [0, 1, 2, 3, 4, 5, 16, 17]  # in the arena: linear 3 -> 2, weights and biases
FIRST = {0: 0, 1: 6}                 # the first element of each tensor
INF, NAN, HUGE = float("inf"), float("nan"), 3e38
# (step, rank, value): HUGE in both workers is finite in each, infinite in the sum.
OVERFLOWS = [(0, 0, INF), (1, 1, -INF), (5, 1, NAN), (9, 0, HUGE), (9, 1, HUGE)]
CASES = [  # the optimizer's settings, the scaler's, the norm to clip to
    ("sgd", dict(lr=0.1, momentum=0.9), dict(growth_interval=3), 0),
    ("adamw", dict(lr=0.05, weight_decay=0.1), dict(growth_interval=3), 0),
    ("adam", dict(lr=0.05), dict(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3,
                                 growth_interval=2), 0),
    ("sgd", dict(lr=0.1, momentum=0.9), dict(init_scale=2.0 ** 127, growth_interval=1), 0),
    ("sgd", dict(lr=0.1), dict(growth_interval=3), 0.7),
]
MAKE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
MASK = (1 << 64) - 1


def noise(rank, step, i):
    x = (i * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03
         + (rank + 1) * 0x8CB92BA72F3D8DD7) & MASK
    x ^= x >> 29
    x = (x * 0xBF58476D1CE4E5B9) & MASK
    x ^= x >> 32
    low, = struct.unpack("<i", struct.pack("<I", x & 0xFFFFFFFF))
    return low


def noises(rank, step):
    return torch.tensor([noise(rank, step, i) for i in PLACES]).to(torch.float32) * 2.0 ** -31


def gradient(rank, step, weights, scaler):
    g = scaler.scale(noises(rank, step) + 0.125 * weights)
    for at, who, value in OVERFLOWS:
        if (at, who) == (step, rank):
            g[FIRST[step % 2]] = value
    return g


def run(kind, options, scaling, clip):
    """Yields, for each step, its scale and the weights after it."""
    p = torch.nn.Parameter(noises(99, 0))
    optimizer = MAKE[kind]([p], **options)
    scaler = torch.amp.GradScaler("cpu", **scaling)
    for step in range(STEPS):
        with torch.no_grad():
            p.grad = gradient(0, step, p, scaler) + gradient(1, step, p, scaler)
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_([p], clip)
        scaler.step(optimizer)
        scaler.update()
        yield scale, p.detach().clone()
    yield scaler.get_scale(), p.detach().clone()


def settings(kind, options, scaling, clip):
    said = ["loss_scale.use=on", "optimizer.name=" + kind]
    said += ["optimizer.%s=%r" % item for item in options.items()]
    if clip:
        said.append("optimizer.clip_norm=%r" % clip)
    names = {"init_scale": "init", "growth_factor": "growth", "backoff_factor": "backoff",
             "growth_interval": "interval"}
    return said + ["loss_scale.%s=%r" % (names[key], v) for key, v in scaling.items()]


def c_list(values):
    return "{" + ", ".join(float(v).hex() + "f" for v in values) + "}"


def write_header(path):
    with open(path, "w") as out:
        out.write("/* Made by loss_scale_vectors.py, with torch %s. */\n// clang-format off\n"
                  % torch.__version__)
        out.write("enum { SCALED_STEPS = %d, SCALED_SETTINGS = 8 };\n" % STEPS)
        out.write("static const test_overflow scaled_overflows[] = {\n")
        for step, rank, value in OVERFLOWS:
            word = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(str(value))
            out.write("    {%d, %d, %s},\n" % (step, rank, word or "%rf" % value))
        out.write("};\nstatic const struct scaled_case {\n"
                  "    const char *settings[SCALED_SETTINGS];\n"
                  "    float scales[SCALED_STEPS + 1];     // before each step, and after all\n"
                  "    float weights[SCALED_STEPS][8]; // after each step\n"
                  "} scaled_cases[] = {\n")
        for case in CASES:
            rows = list(run(*case))
            out.write("    {{%s},\n" % ", ".join('"%s"' % s for s in settings(*case)))
            out.write("     %s,\n     {" % c_list(scale for scale, _ in rows))
            out.write(",\n      ".join(c_list(w) for _, w in rows[:-1]))
            out.write("}},\n")
        out.write("};\n// clang-format on\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_header(sys.argv[1])
