"""A rank of the jobs of test_python.py: python3 worker.py CASE. Prints what the test reads."""
import copy
import hashlib
import json
import os
import pickle
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain

CASES = {}
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])


def case(function):
    CASES[function.__name__] = function
    return function


def say(*words):
    print(f"rank {RANK}:", *words, flush=True)


def digest(model, buffers=True):
    h = hashlib.sha256()
    for name, value in model.state_dict().items() if buffers else model.named_parameters():
        h.update(name.encode())
        h.update(value.detach().contiguous().numpy().tobytes())
    return h.hexdigest()[:16]


class Net(nn.Module):
    """Convolution, batch norm (with an integer buffer), and more than one DDP bucket."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.wide, self.out = nn.Linear(8 * 36, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.out(torch.relu(self.wide(x)))


def batch(step):
    g = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.rand(4, 1, 8, 8, generator=g), torch.randint(10, (4,), generator=g)


def net():
    torch.manual_seed(7)
    return Net()


def optimizer_of(name, params):
    if name == "sgd":
        return torch.optim.SGD(params, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(params, lr=1e-3)


def train(model, optimizer, steps):
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train_ddp(name, steps, group=None, hook=None, buffers=True):
    model = DDP(net(), process_group=group, bucket_cap_mb=0.05)
    if hook is not None:
        model.register_comm_hook(*hook)
    train(model, optimizer_of(name, model.parameters()), steps)
    return digest(model.module, buffers)


# ---- the same bits as Gloo's ----

@case
def ddp():
    """DDP over Gloo, with the hook, and over the back end."""
    pstrain.init()
    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    for name in ("sgd", "adamw"):
        say(name, train_ddp(name, 200, gloo), train_ddp(name, 200, gloo, (None, pstrain.comm_hook)),
            train_ddp(name, 200))
    pstrain.shutdown()


@case
def codec():
    """int8 makes other weights, the same ones on both ranks."""
    pstrain.init()
    dist.init_process_group("gloo")
    say("weights", train_ddp("sgd", 5, None, ("int8", pstrain.comm_hook), buffers=False),
        train_ddp("sgd", 5, buffers=False))
    pstrain.shutdown()


@case
def collectives():
    """Through the back end, compared with Gloo's."""
    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    dtypes = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8]
    if hasattr(dist.ReduceOp, "AVG"):
        x = torch.full((2000,), RANK + 1.0)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert (x == sum(range(1, SIZE + 1)) / SIZE).all()
    for dtype in dtypes:
        for n in (1, 3000):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
                a = (torch.arange(n) * 3 % 50 + 2 * RANK).to(dtype)
                if dtype == torch.int64:
                    a += 2 ** 55  # beyond what float64 holds
                b = a.clone()
                dist.all_reduce(a, op=op)
                dist.all_reduce(b, op=op, group=gloo)
                assert torch.equal(a, b), (dtype, n, op, a, b)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.full((5,), 1.5 + RANK, dtype=dtype)
        dist.all_reduce(x)
        assert (x == sum(1.5 + r for r in range(SIZE))).all(), x
    x = torch.full((7,), float(RANK))
    dist.broadcast(x, 1)
    assert (x == 1).all()
    got = [torch.empty(3, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(got, torch.full((3,), RANK))
    assert [int(t[0]) for t in got] == list(range(SIZE)), got
    x = torch.tensor([RANK + 1])
    dist.reduce(x, 1)
    assert x.item() == (SIZE * (SIZE + 1) // 2 if RANK == 1 else RANK + 1), x
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": r} for r in range(SIZE)], objects
    thing = [{"from": RANK}]
    dist.broadcast_object_list(thing, 0)
    assert thing == [{"from": 0}], thing
    dist.barrier()
    work = dist.all_reduce(torch.ones(5000), async_op=True)
    work.wait()
    for wrong in (torch.ones(3, 4).t(), torch.ones(2, dtype=torch.complex64),
                  torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")):
        try:
            dist.group.WORLD.allreduce([wrong])
            raise AssertionError(f"{wrong} was taken")
        except Exception as error:  # the exception passes through PyTorch
            assert f"rank {RANK}" in str(error) and "all_reduce" in str(error), error
    say("fine")
    pstrain.shutdown()


# ---- pstrain.Optimizer ----

SHAPES = ((16, 33), (16,), (3, 3, 5), ())


class Given(nn.Module):
    """Its gradients are the tensors that forward gets, and do not depend on its weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in SHAPES])

    def forward(self, gradients):
        return sum((w * g).sum() for w, g in zip(self.weights, gradients))


def gradients(step, rank):
    g = torch.Generator().manual_seed(17 * step + rank)
    return [torch.randn(s, generator=g) for s in SHAPES]


def ulps(a, b, least=0.0):
    """The largest distance in units in the last place, of numbers not below least."""
    size = torch.maximum(a.detach().abs(), b.detach().abs()).clamp(min=max(least, 1e-30))
    unit = torch.finfo(torch.float32).eps * 2 ** torch.floor(torch.log2(size))
    return float(((a - b).detach().abs() / unit).max())


OPTIMIZERS = {
    "sgd": ("sgd", {"lr": 0.1}), "momentum": ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "nesterov": ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": ("adam", {"lr": 1e-2}), "adamw": ("adamw", {"lr": 1e-2, "betas": (0.8, 0.99)}),
}
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def reference(name, options, model, schedule):
    """PyTorch's optimizer, given the mean gradients, at each of 30 steps."""
    optimizer = CLASSES[name](model.parameters(), **options)
    scheduler = schedule(optimizer)
    for step in range(30):
        for i, w in enumerate(model.weights):
            total = sum_in_order([gradients(step, r)[i] * (1 / SIZE) for r in range(SIZE)])
            w.grad = total
        optimizer.step()
        scheduler.step()
        yield model, optimizer


def sum_in_order(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def steps_of_ours(model, optimizer, n, first=0):
    for step in range(first, first + n):
        optimizer.zero_grad()
        model(gradients(step, RANK)).backward()
        optimizer.step()


@case
def same_step():
    """One of OPTIMIZERS against PyTorch's, with a schedule, in units in the last place."""
    name, options = OPTIMIZERS[sys.argv[2]]

    def halve(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)

    model, other = Given(), Given()
    with pstrain.init():
        with torch.no_grad():
            for w in model.parameters():
                w.add_(RANK)  # rank 0's weights count
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        scheduler = halve(optimizer)
        most = 0.0
        for step, (theirs, _) in enumerate(reference(name, options, other, halve)):
            steps_of_ours(model, optimizer, 1, step)
            scheduler.step()
            optimizer.synchronize()
            for a, b in zip(model.weights, theirs.weights):
                most = max(most, ulps(a, b, options["lr"]))
                b.data.copy_(a)  # each step on its own
    say("ulps", most, digest(model))


class Late:
    """Stands in for a GPU: a copy is made when it is waited for, or looked at often enough."""

    def __init__(self):
        self.n_copies, self.left, self.pinned = 0, 0, 0

    def pin(self, arena):
        self.pinned += 1

    def unpin(self, arena):
        self.pinned -= 1

    def copy(self, out, values, factor=1.0):
        self.n_copies += 1
        self.left += 1
        return LateCopy(self, out, values.clone(), factor)

    def follow(self, copied):
        copied.synchronize()


class LateCopy:
    def __init__(self, device, *what):
        self.device, self.what, self.looks = device, what, 0

    def query(self):
        self.looks += 1
        if self.looks > 2:
            self.synchronize()
        return self.what is None

    def synchronize(self):
        if self.what is None:
            return
        out, values, factor = self.what
        with torch.no_grad():
            out.copy_(values * factor)
        self.what = None
        self.device.left -= 1


class Staged(pstrain.Optimizer):
    def _find_device(self):
        return Late()


@case
def staged():
    """Weights outside of the arenas, as a GPU's: the steps of an optimizer without that."""
    model, other = Given(), Given()
    unused = nn.Linear(2, 2)
    with pstrain.init():
        optimizer = Staged([*model.named_parameters(), *unused.named_parameters()], "sgd", lr=0.1)
        for step, _ in zip(range(8), reference("sgd", {"lr": 0.1}, other, constant)):
            steps_of_ours(model, optimizer, 1, step)
        optimizer.synchronize()
        assert digest(model) == digest(other), "other weights"
        device = optimizer._device
        assert device.pinned == 2 and device.n_copies >= 8 * 2 * len(SHAPES), device.n_copies
    assert device.pinned == 0 and device.left == 0
    say("fine")


@case
def ps_worker():
    """The job of test_same_bits_as_ps_worker: one linear layer, one sample a rank and step. Each
    number of a gradient is one product: PyTorch's and ps-worker's are equal."""
    settings = json.loads(sys.argv[2])
    model = nn.Linear(1, settings["outputs"])
    with torch.no_grad():
        for p, values in zip(model.parameters(), settings["weights"]):
            p.copy_(torch.tensor(values).view(p.shape))
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), **settings["optimizer"])
        for x, label in settings["samples"][RANK::SIZE]:
            optimizer.zero_grad()
            wanted = nn.functional.one_hot(torch.tensor([label]), settings["outputs"]).float()
            nn.functional.mse_loss(model(torch.tensor([[x]])), wanted).backward()
            optimizer.step()
        optimizer.state_dict()  # the exact weights, also with a codec
    say("weights", *(p.detach().numpy().tobytes().hex() for p in model.parameters()))


@case
def groups():
    """Two groups with their own rates, frozen and unused parameters, tied weights."""
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(6, 2)
            for p in self.frozen.parameters():
                p.requires_grad_(False)

        def forward(self, x):
            return self.frozen(self.second(torch.relu(self.first(x))))

    def grouped(model):
        biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
        rest = [p for n, p in model.named_parameters() if not n.endswith("bias")]
        return [{"params": rest, "lr": 0.1}, {"params": biases, "lr": 0.02, "weight_decay": 0.1}]

    ours, theirs = Tied(), Tied()
    with pstrain.init():
        optimizer = pstrain.Optimizer(grouped(ours), "sgd", lr=1.0, momentum=0.5)
        other = torch.optim.SGD(grouped(theirs), lr=1.0, momentum=0.5)
        for p in theirs.unused.parameters():
            p.grad = torch.zeros_like(p)  # without a gradient means zero on the servers
        for step in range(10):
            xs = [torch.rand(3, 6, generator=torch.Generator().manual_seed(step * 10 + r)) for r in range(SIZE)]
            optimizer.zero_grad()
            ours(xs[RANK]).sum().backward()
            optimizer.step()
            parts = []
            for x in xs:
                for p in theirs.parameters():
                    p.grad = None
                theirs(x).sum().backward()
                parts.append({n: p.grad / SIZE for n, p in theirs.named_parameters() if p.grad is not None})
            for n, p in theirs.named_parameters():
                if p.requires_grad:
                    p.grad = sum_in_order([part[n] for part in parts]) if n in parts[0] else torch.zeros_like(p)
            other.step()
        optimizer.synchronize()
        assert digest(ours) == digest(theirs), "other weights than torch.optim.SGD's"
    say("fine")


@case
def accumulate():
    """Two backward passes are one step's gradient, also with push='step' and local clipping."""
    with pstrain.init():
        a, b = Given(), Given()
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                a(gradients(step, RANK)).backward()
            a(gradients(step + 50, RANK)).backward()
            optimizer.step()
        optimizer.synchronize()
        for step in range(3):
            for i, w in enumerate(b.weights):
                parts = [(gradients(step, r)[i] + gradients(step + 50, r)[i]) * (1 / SIZE) for r in range(SIZE)]
                w.data.add_(sum_in_order(parts), alpha=-0.1)
        assert max(ulps(x, y) for x, y in zip(a.weights, b.weights)) == 0
        optimizer.zero_grad()
        a(gradients(0, RANK)).backward()
        try:
            a(gradients(1, RANK)).backward()
            raise AssertionError("the second backward pass was taken")
        except pstrain.InputError as error:
            assert "no_sync" in str(error) and "'weights." in str(error), error
        pstrain.barrier()
        pstrain.abort("done")
    say("fine")


@case
def views():
    """The weights after some steps, with gradients of their own ("own") or in the arena ("view",
    "kept": zero_grad keeps them); "late": a gradient is changed while it is sent."""
    how = sys.argv[2]
    with pstrain.init():
        model = net()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1, momentum=0.9,
                                      gradient_as_arena_view=how != "own")
        for step in range(5):
            images, labels = batch(step)
            optimizer.zero_grad(set_to_none=how != "kept")
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if how == "late":
            slot = list(optimizer._slots.values())[2]
            slot.param.grad.zero_()
            refused(pstrain.InputError, [f"'{slot.name}'", "gradient_as_arena_view"], lambda: model(images))
            say("refused")
            pstrain.barrier()
            pstrain.abort("done")
        else:
            optimizer.synchronize()
            at = [(p.grad is s.grads, p.grad.abs().sum() > 0)
                  for p, s in zip(model.parameters(), optimizer._slots.values())]
            assert all(a == (how != "own", True) for a in at), at
            say("views", digest(model, False))


@case
def push_at_step():
    """The rank's own clipping counts where gradients leave in step()."""
    with pstrain.init():
        a, b = Given(), Given()
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1, push="step")
        a(gradients(0, RANK)).backward()
        nn.utils.clip_grad_norm_(a.parameters(), 0.5)
        optimizer.step()
        optimizer.synchronize()
        clipped = []
        for r in range(SIZE):
            b.zero_grad()
            b(gradients(0, r)).backward()
            nn.utils.clip_grad_norm_(b.parameters(), 0.5)
            clipped.append([w.grad.clone() * (1 / SIZE) for w in b.weights])
        for i, w in enumerate(b.weights):
            w.data.add_(sum_in_order([c[i] for c in clipped]), alpha=-0.1)
        assert max(ulps(x, y) for x, y in zip(a.weights, b.weights)) == 0
    say("fine")


@case
def on_the_servers():
    """clip_norm and loss_scale: the norm of the mean gradient, and steps that overflow."""
    with pstrain.init():
        a, b = Given(), Given()
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1, clip_norm=0.5, loss_scale=1024.0)
        optimizer.scale(a(gradients(0, RANK))).backward()
        optimizer.step()
        assert optimizer.loss_scale == 1024 and optimizer.skipped_steps == 0
        for i, w in enumerate(b.weights):
            w.grad = sum_in_order([gradients(0, r)[i] * (1 / SIZE) for r in range(SIZE)])
        nn.utils.clip_grad_norm_(b.parameters(), 0.5)
        for w in b.weights:
            w.data.add_(w.grad, alpha=-0.1)
        optimizer.synchronize()
        for x, y in zip(a.weights, b.weights):
            assert torch.allclose(x, y, rtol=1e-5, atol=1e-7), (x, y)
        before = digest(a)
        optimizer.zero_grad()
        bad = gradients(1, RANK)
        if RANK == 1:
            bad[0][0, 0] = float("inf")
        optimizer.scale(a(bad)).backward()
        optimizer.step()
        assert optimizer.skipped_steps == 1 and optimizer.loss_scale == 512, optimizer.loss_scale
        optimizer.synchronize()
        assert digest(a) == before
    say("fine")


@case
def bfloat16():
    """Parameters of bfloat16: the servers keep float32."""
    with pstrain.init():
        a, b = Given().to(torch.bfloat16), Given().to(torch.bfloat16)
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1)
        exact = [w.detach().float() for w in b.weights]
        for step in range(5):
            optimizer.zero_grad()
            a([g.bfloat16() for g in gradients(step, RANK)]).backward()
            optimizer.step()
            for i, w in enumerate(exact):
                parts = [gradients(step, r)[i].bfloat16().float() * (1 / SIZE) for r in range(SIZE)]
                w.add_(sum_in_order(parts), alpha=-0.1)
        optimizer.synchronize()
        for x, y in zip(a.weights, exact):
            assert torch.equal(x, y.bfloat16()), (x, y)
    say("fine")


@case
def save():
    """10 steps, a state_dict, and its form; torch.optim can load it."""
    name, options = OPTIMIZERS[sys.argv[2]]
    folder = sys.argv[3]
    model = Given()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        steps_of_ours(model, optimizer, 10)
        state = optimizer.state_dict()
        if RANK == 0:
            torch.save({"model": model.state_dict(), "optimizer": state}, f"{folder}/half.pt")
            other = Given()
            last = None
            for step, (_, theirs) in zip(range(10), reference(name, options, other, constant)):
                last = theirs
            wanted = last.state_dict()["state"]
            assert wanted.keys() == state["state"].keys(), (wanted.keys(), state["state"].keys())
            for i, own in wanted.items():
                assert {k for k, v in own.items() if v is not None} == set(state["state"][i]), own.keys()
                for key, value in own.items():
                    assert key == "step" or value is None or ulps(value, state["state"][i][key]) <= 2, key
            last.load_state_dict(state)
        steps_of_ours(model, optimizer, 10, 10)
        optimizer.synchronize()
    say("whole", digest(model))


def constant(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1000)


@case
def load():
    """The other 10 steps from the saved state."""
    name, options = OPTIMIZERS[sys.argv[2]]
    saved = torch.load(f"{sys.argv[3]}/half.pt")
    model = Given()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        steps_of_ours(model, optimizer, 10, 10)
        optimizer.synchronize()
    say("whole", digest(model))


@case
def resume_coded():
    """With topk, which keeps on every rank what it has not sent: sys.argv[3]: save or load."""
    half = f"{sys.argv[2]}/coded-{RANK}.pt"
    model = Given()
    with pstrain.init(settings={"exchange.codec_min": 0, "exchange.codec_warmup": 0}):
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-2, codec="topk")
        if sys.argv[3] == "save":
            steps_of_ours(model, optimizer, 6)
            state = optimizer.state_dict()
            torch.save({"model": model.state_dict(), "optimizer": state}, half)
        else:
            saved = torch.load(half)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        steps_of_ours(model, optimizer, 6, 6)
        optimizer.state_dict()  # the exact weights
    say("whole", digest(model))


@case
def attention():
    """A module that uses another's weights without calling it (out_proj), and evaluation."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for step in range(6):
            x = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(step + 100 * RANK))
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(x)
            scheduler.step(float(step))
        optimizer.synchronize()
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        first = mine.clone()
        pstrain.broadcast(first, 0)
        assert torch.equal(mine, first), "the ranks have other weights"
    say("fine", digest(model))


class Images(nn.Module):
    """Its weights have exact gradients: small integers in, sums below 2 ** 24."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.arange(48).view(4, 3, 2, 2) - 20)

    def forward(self, x):
        return self.conv(x).sum()


@case
def channels_last():
    """Weights whose memory has another order: the same steps, and the same form of the state."""
    plain, ours = Images(), Images().to(memory_format=torch.channels_last)
    other = torch.optim.SGD(plain.parameters(), lr=0.5, momentum=0.5)
    with pstrain.init():
        optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", lr=0.5, momentum=0.5)
        for step in range(4):
            x = torch.arange(96).float().view(2, 3, 4, 4) % 7 + step
            optimizer.zero_grad()
            ours((x + 2 * RANK).to(memory_format=torch.channels_last)).backward()
            optimizer.step()
            other.zero_grad()
            sum(plain(x + 2 * r) / SIZE for r in range(SIZE)).backward()
            other.step()
        optimizer.synchronize()
        assert ours.conv.weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(ours.conv.weight, plain.conv.weight)
        state = optimizer.state_dict()["state"]
        if RANK == 0:
            assert torch.equal(state[0]["momentum_buffer"], other.state_dict()["state"][0]["momentum_buffer"])
    say("fine")


@case
def other_order():
    """channels_last on one rank only."""
    pstrain.init()
    model = Images()
    if RANK == 1:
        model = model.to(memory_format=torch.channels_last)
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    try:
        optimizer.start()
    except pstrain.PeerError as error:
        say("PeerError", error)
        return
    raise AssertionError("it was taken")


@case
def compiled():
    """torch.compile(model): the weights of the same model without it."""
    def net():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 1)))

    def train(call, x):
        call(x).pow(2).sum().backward()

    plain, ours = net(), net()
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    call = torch.compile(ours, backend="eager")
    hidden = nn.Linear(3, 3)
    with pstrain.init():
        optimizer = pstrain.Optimizer([*ours.named_parameters(), *hidden.named_parameters(prefix="hidden")],
                                      "sgd", lr=0.1)
        for step in range(5):
            xs = [torch.full((2, 3), (step + r) / 4) for r in range(SIZE)]
            optimizer.zero_grad()
            train(call, xs[RANK])
            optimizer.step()
            parts = []
            for x in xs:
                other.zero_grad()
                train(plain, x)
                parts.append([p.grad.clone() * (1 / SIZE) for p in plain.parameters()])
            for i, p in enumerate(plain.parameters()):
                p.grad = sum_in_order([part[i] for part in parts])
            other.step()
        optimizer.synchronize()
        for a, b in zip(ours.parameters(), plain.parameters()):
            assert torch.equal(a, b), (a, b)
        hidden.compile(backend="eager")  # its own calls are seen by nobody: its weights are late
        train(call, xs[RANK])
        optimizer.step()
        refused(pstrain.InputError, ["'hidden.", "synchronize()"], lambda: train(hidden, torch.ones(2, 3)))
        pstrain.barrier()
        pstrain.abort("done")
    say("fine")


# ---- refusals ----

def refused(kind, words, call):
    try:
        call()
    except kind as error:
        text = str(error)
        assert all(w in text for w in words), (words, text)
        assert f"rank {RANK}" in text or not pstrain.is_initialized(), text
        return
    raise AssertionError(f"not refused: {words}")


@case
def refusals():
    wrong = pstrain.InputError
    layer = nn.Linear(4, 4)

    def optimizer(*args, **kwargs):
        return lambda: pstrain.Optimizer(*args, **kwargs)

    refused(wrong, ["pstrain.init()"], pstrain.rank)
    refused(wrong, ["pstrain.init()"], optimizer(layer.named_parameters()))
    refused(wrong, ["no.such"], lambda: pstrain.init(settings={"no.such": 1}))
    pstrain.init()
    refused(wrong, ["twice"], pstrain.init)
    turned = nn.Module()
    turned.weight = nn.Parameter(torch.rand(3, 4).t())
    odd = nn.Module()
    for kind, value in {"complex": torch.rand(2, dtype=torch.complex64), "float64": torch.rand(2).double(),
                        "meta": torch.rand(2, device="meta"), "sparse": torch.eye(2).to_sparse()}.items():
        odd.weight = nn.Parameter(value)
        refused(wrong, ["'weight'", kind], optimizer(odd.named_parameters()))
    refused(wrong, ["'weight'", "not contiguous"], optimizer(turned.named_parameters()))
    refused(wrong, ["rmsprop", "comm_hook"], optimizer(layer.named_parameters(), "rmsprop"))
    refused(wrong, ["amsgrad"], optimizer(layer.named_parameters(), amsgrad=True))
    refused(wrong, ["no parameters"], optimizer([]))
    refused(wrong, ["requires a gradient"], optimizer([p.detach() for p in layer.parameters()]))
    for tensor, word in ((torch.ones(3, 2).t(), "contiguous"), (torch.ones(2).half(), "float16"),
                         (torch.ones(2, dtype=torch.complex64), "complex")):
        refused(wrong, ["all_reduce", word], lambda t=tensor: pstrain.all_reduce(t))
    refused(wrong, ["root 7"], lambda: pstrain.broadcast(torch.ones(2), 7))
    assert pstrain.all_reduce(torch.tensor([RANK + 1])).item() == SIZE * (SIZE + 1) // 2
    mine = pstrain.Optimizer(nn.ModuleList([layer, nn.Embedding(4, 4, sparse=True)]).named_parameters(), "sgd")
    refused(wrong, ["Optimizer", "job of its own"], optimizer(layer.named_parameters()))
    refused(wrong, ["'0.weight'", "start()"], lambda: layer.weight.sum().backward())
    layer(torch.ones(1, 4)).sum().backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    refused(wrong, ["'0.weight'", "clip_norm="], mine.step)
    pstrain.barrier()
    pstrain.abort("done")
    refused(wrong, ["pstrain.init()"], pstrain.barrier)
    refused(wrong, ["shut down"], mine.step)
    say("fine")


@case
def misuse():
    """What an Optimizer refuses while it works; each of sys.argv[2] in a job of its own."""
    what = sys.argv[2]
    wrong = pstrain.InputError
    model = nn.Sequential(nn.Embedding(4, 4, sparse=what == "sparse"), nn.Linear(4, 4))
    pstrain.init()
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)

    def forward():
        return model(torch.tensor([1, 2])).sum()

    def whole():
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    if what == "unread":
        for _ in range(20):
            whole()
            saved = {name: value.clone() for name, value in model.state_dict().items()}
            assert all(slot.fresh for slot in optimizer._slots.values())
        optimizer.synchronize()
        assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        assert copied.state_dict().keys() == saved.keys()
    elif what == "sparse":
        refused(wrong, ["'0.weight'", "sparse"], lambda: forward().backward())
    elif what == "scaler":
        forward().backward()
        optimizer.grad_scale = torch.tensor(2.0)
        refused(wrong, ["GradScaler", "loss_scale"], optimizer.step)
    elif what == "replaced":
        whole()
        model[1].weight.data = torch.zeros(4, 4)
        refused(wrong, ["'1.weight'", "replaced"], forward)
    elif what == "changed":
        whole()
        optimizer.synchronize()
        model.load_state_dict(model.state_dict())
        refused(wrong, ["'0.weight'", "load_state_dict"], forward)
    elif what == "late":
        forward().backward()
        optimizer.param_groups[0]["lr"] = 1.0
        refused(wrong, ["scheduler.step()"], optimizer.step)
    elif what == "old":
        whole()
        loss = forward()
        loss.backward(retain_graph=True)
        optimizer.step()
        try:
            loss.backward()
            raise AssertionError("old weights were used")
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error) or "rank" in str(error), error
    elif what == "alias":
        whole()
        kept = model.state_dict()
        pstrain.shutdown()
        assert torch.equal(kept["1.weight"], model[1].weight)
        forward()
        refused(wrong, ["shut down"], optimizer.step)
        for call in (pstrain.rank, pstrain.barrier, pstrain.shutdown, optimizer_of_ours(model)):
            refused(wrong, ["pstrain.init()"], call)
        say("fine")
        return
    pstrain.barrier()
    pstrain.abort("done")
    say("fine")


def optimizer_of_ours(model):
    return lambda: pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)


@case
def other_model_in_ddp():
    """Rank 1 has another one, in DistributedDataParallel over the back end: no rank waits."""
    dist.init_process_group("pstrain")
    DDP(nn.Linear(4, 5 if RANK == 1 else 6))(torch.ones(1, 4)).sum().backward()


@case
def hook_of_other_dtype():
    """float64 gradients in the hook: an exception on every rank."""
    pstrain.init()
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 4).double())
    model.register_comm_hook(None, pstrain.comm_hook)
    try:
        model(torch.ones(1, 4).double()).sum().backward()
    except RuntimeError as error:  # the exception passes through PyTorch
        assert f"rank {RANK}" in str(error) and "bucket 0" in str(error) and "float64" in str(error), error
        say("fine")
    pstrain.shutdown()
    os._exit(0)  # the process group has a step that does not end


@case
def other_model():
    """Rank 1 has another one: each rank gets one exception with the parameter's name."""
    pstrain.init()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 if RANK == 1 else 6))
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    try:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    except pstrain.PeerError as error:
        say("PeerError", error)
        return
    raise AssertionError("it was taken")


@case
def once_more():
    """Fails in torchrun's first attempt."""
    with pstrain.init() as job:
        assert job.session.servers == 2
        pstrain.barrier()
        if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a mistake of the program")
        pstrain.barrier()
    say("fine")


@case
def endless_join():
    pstrain.init()


# ---- what goes wrong ----

def endless(how):
    """Trains until something happens."""
    if how == "optimizer":
        pstrain.init()
        model = net()
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-3)
    else:
        if how == "backend":
            dist.init_process_group("pstrain")
        else:
            pstrain.init()
            dist.init_process_group("gloo")
        model = DDP(net())
        if how == "hook":
            model.register_comm_hook(None, pstrain.comm_hook)
        optimizer = optimizer_of("sgd", model.parameters())
    step = 0
    while True:
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        yield step
        loss.backward()
        optimizer.step()
        step += 1
        if step == 5:
            say("training")


@case
def interrupted():
    """Ctrl-C reaches rank 0 while it waits for a step that rank 1 does not make."""
    pstrain.init()
    model = Given()
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    optimizer.start()
    try:
        if RANK == 1:
            time.sleep(600)
        model(gradients(0, RANK)).backward()
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        optimizer.step()
        optimizer.synchronize()
    except KeyboardInterrupt:
        say("interrupted while it waited")
        raise


@case
def dies():
    """Rank 1 ends in the way sys.argv[2] says; sys.argv[3]: how the job trains."""
    for step in endless(sys.argv[3]):
        if step == 10 and RANK == 1:
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif sys.argv[2] == "raise":
                raise ValueError("a mistake of the program")
            elif sys.argv[2] == "stop":
                sys.exit(3)
        if sys.argv[2] == "wait":
            time.sleep(0.01)


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()
