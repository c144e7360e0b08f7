"""Steps and pooling of sparse rows in PyTorch, for test_row_torch.

    rows_vectors.py FILE

First steps of torch.optim's sparse optimizers (rowwise_adagrad is written out as FBGEMM's
EXACT_ROWWISE_ADAGRAD): for each case 12 doubles (optimizer, lr, eps, beta1, beta2, lr_decay,
initial accumulator, dim, ranks, look-ups, rows, steps), then the rows and their state, and for each
step and rank its share, indices (int64) and gradients of its look-ups (float32), then rows and state.
A rank's gradient is summed by index_add_, and multiplied by its share; ranks are added in order.

Then nn.EmbeddingBag: for each case 7 doubles (dim, rows, look-ups, bags, what, padding or -1, whether
this PyTorch rounds weighted rows before it adds them), the rows, indices, offsets, weights of look-ups,
output, gradient of the output, of the rows by index_add_, and of the weights.
what: 0 sum, 1 mean, 2 sum with per_sample_weights, 3 nn.Embedding.
"""
import struct
import sys

try:
    import torch
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

ROWS, LOOKUPS, STEPS = 50, 64, 6
KINDS = ("sgd", "adagrad", "sparse_adam", "rowwise_adagrad")
STATES = {"sgd": (), "adagrad": ("sum",), "sparse_adam": ("exp_avg", "exp_avg_sq"), "rowwise_adagrad": ("sum",)}
CASES = (
    ("sgd", 8, 1, dict(lr=0.1)),
    ("sgd", 17, 3, dict(lr=0.3)),
    ("adagrad", 16, 2, dict(lr=0.05)),
    ("adagrad", 5, 3, dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.5, eps=1e-6)),
    ("sparse_adam", 16, 2, dict(lr=1e-3)),
    ("sparse_adam", 7, 1, dict(lr=0.1, betas=(0.7, 0.9), eps=1e-4)),
    ("rowwise_adagrad", 16, 2, dict(lr=0.05)),
    ("rowwise_adagrad", 3, 1, dict(lr=0.5, initial_accumulator_value=0.1, eps=1e-5)),
)


class RowwiseAdagrad(torch.optim.Optimizer):
    def __init__(self, params, lr, eps=1e-10, initial_accumulator_value=0.0):
        super().__init__(params, dict(lr=lr, eps=eps, initial_accumulator_value=initial_accumulator_value))
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] = torch.full((len(p), 1), initial_accumulator_value)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for p in group["params"]:
            rows, g = p.grad._indices()[0], p.grad._values()
            s = self.state[p]["sum"]
            s[rows] += g.double().pow(2).mean(1, keepdim=True).float()
            p[rows] -= group["lr"] / (s[rows].sqrt() + group["eps"]) * g


MAKE = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "sparse_adam": torch.optim.SparseAdam,
        "rowwise_adagrad": RowwiseAdagrad}


def write_steps(write, doubles, seed, kind, dim, ranks, options):
    draw = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(ROWS, dim, generator=draw))
    optimizer = MAKE[kind]([p], **options)
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    accumulator = options.get("initial_accumulator_value", 0.0)
    doubles(KINDS.index(kind), options["lr"], optimizer.param_groups[0].get("eps", 0.0), beta1, beta2,
            options.get("lr_decay", 0.0), accumulator, dim, ranks, LOOKUPS, ROWS, STEPS)

    def write_state():
        state = optimizer.state[p]
        width = 1 if kind == "rowwise_adagrad" else dim
        write(torch.cat([p.detach()] + [state.get(name, torch.zeros(ROWS, width)) for name in STATES[kind]], 1))

    write_state()
    for _ in range(STEPS):
        total, touched = torch.zeros(ROWS, dim), torch.zeros(ROWS, dtype=torch.bool)
        for rank in range(ranks):
            index = torch.randint(0, ROWS - 10, (LOOKUPS,), generator=draw)
            g = torch.randn(LOOKUPS, dim, generator=draw) * 10.0 ** torch.randint(-3, 1, (LOOKUPS, 1), generator=draw)
            share = torch.tensor([(rank + 1.0) / 4])
            write(share), write(index), write(g)
            total += torch.zeros(ROWS, dim).index_add_(0, index, g) * share
            touched[index] = True
        rows = touched.nonzero()[:, 0]
        p.grad = torch.sparse_coo_tensor(rows[None], total[rows], (ROWS, dim)).coalesce()
        optimizer.step()
        write_state()


def write_bags(write, doubles, seed, what, padding):
    draw = torch.Generator().manual_seed(seed)
    dim, rows, lookups, bags = (8, 16, 3, 33)[seed % 4], 40, 90, 90 if what == 3 else 30
    index = torch.randint(0, rows, (lookups,), generator=draw)
    offsets = torch.randint(0, lookups, (bags,), generator=draw).sort()[0]
    offsets[0] = 0
    if what == 3:
        offsets = torch.arange(bags)
    weights = torch.randn(lookups, generator=draw, requires_grad=True)
    options = dict(padding_idx=padding) if padding >= 0 else {}
    if what == 3:
        layer = torch.nn.Embedding(rows, dim, **options)
    else:
        layer = torch.nn.EmbeddingBag(rows, dim, mode="mean" if what == 1 else "sum", **options)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(rows, dim, generator=draw))
        if what == 3 and padding >= 0:
            layer.weight[padding] = 0
    out = layer(index) if what == 3 else layer(index, offsets, per_sample_weights=weights if what == 2 else None)
    grad = torch.randn(bags, dim, generator=draw)
    (out * grad).sum().backward()

    # the same gradient, in the order of the look-ups
    bag = torch.bucketize(torch.arange(lookups), offsets, right=True) - 1
    counts = torch.zeros(bags).index_add_(0, bag, (index != padding).float()).clamp(min=1)
    factor = weights.detach() if what == 2 else (1 / counts)[bag] if what == 1 else torch.ones(lookups)
    kept = index != padding
    by_lookup = torch.zeros(rows, dim).index_add_(0, index[kept], (grad[bag] * factor[:, None])[kept])
    assert torch.allclose(by_lookup, layer.weight.grad, atol=1e-5), (what, padding)
    weights_grad = weights.grad if what == 2 else torch.zeros(lookups)
    weighted = (layer.weight[index] * weights[:, None]).detach()
    rounds = what == 2 and torch.equal(out, torch.zeros(bags, dim).index_add_(0, bag[kept], weighted[kept]))
    doubles(dim, rows, lookups, bags, what, padding, rounds)
    for x in (layer.weight, index, offsets, weights, out, grad, by_lookup, weights_grad):
        write(x)


def main(path):
    torch.set_num_threads(1)
    if hasattr(torch.sparse, "check_sparse_tensor_invariants"):
        torch.sparse.check_sparse_tensor_invariants.disable()  # else PyTorch 2 warns
    with open(path, "wb") as out:
        write = lambda x: out.write(x.detach().contiguous().numpy().tobytes())
        doubles = lambda *x: out.write(struct.pack(f"<{len(x)}d", *x))
        for seed, case in enumerate(CASES):
            write_steps(write, doubles, seed, *case)
        for seed, (what, padding) in enumerate([(w, p) for w in range(4) for p in (-1, 7)]):
            write_bags(write, doubles, seed, what, padding)


if __name__ == "__main__":
    main(sys.argv[1])
