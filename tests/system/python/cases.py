"""What the cases of worker.py share: models, batches, PyTorch's own steps, and words for the test."""
import contextlib
import hashlib
import math
import os
from unittest import mock

import torch
from torch import nn

import pstrain

CASES = {}
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])


def case(function):
    CASES[function.__name__] = function
    return function


def say(*words):
    # One write for the line: torchrun's ranks write to one pipe, unbuffered.
    print(" ".join(map(str, (f"rank {RANK}:", *words))) + "\n", end="", flush=True)


def digest(model, buffers=True):
    h = hashlib.sha256()
    for name, value in model.state_dict().items() if buffers else model.named_parameters():
        h.update(name.encode())
        h.update(value.detach().contiguous().numpy().tobytes())
    return h.hexdigest()[:16]


class Net(nn.Module):
    """It has a convolution, batch norm (with an integer buffer), and more than one DDP bucket."""

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
    """Returns the largest distance in units in the last place. Smaller numbers count as `least`."""
    size = torch.maximum(a.detach().abs(), b.detach().abs()).clamp(min=max(least, 1e-30))
    unit = torch.finfo(torch.float32).eps * 2 ** torch.floor(torch.log2(size))
    return float(((a - b).detach().abs() / unit).max())


class Lamb(torch.optim.Optimizer):
    """LAMB as in timm: arXiv 1904.00962 with bias correction. Norms are added up in float64."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), decay = group["betas"], group["weight_decay"]
            group["step"] = t = group.get("step", 0) + 1  # also for tensors without a gradient
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                m = s.setdefault("exp_avg", torch.zeros_like(p)).mul_(b1).add_(p.grad, alpha=1 - b1)
                v = s.setdefault("exp_avg_sq", torch.zeros_like(p)).mul_(b2)
                v.addcmul_(p.grad, p.grad, value=1 - b2)
                update = (m / (1 - b1**t)) / ((v.sqrt() / math.sqrt(1 - b2**t)).add_(group["eps"]))
                update.add_(p, alpha=decay)
                sizes = p.double().norm(), update.double().norm()
                if decay != 0 and min(sizes) > 0:
                    update.mul_((sizes[0] / sizes[1]).float())
                p.add_(update, alpha=-group["lr"])


OPTIMIZERS = {
    "sgd": ("sgd", {"lr": 0.1}), "momentum": ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "nesterov": ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": ("adam", {"lr": 1e-2}), "adamw": ("adamw", {"lr": 1e-2, "betas": (0.8, 0.99)}),
    "rmsprop": ("rmsprop", {"lr": 1e-2, "centered": True, "eps": 1e-2}),
    "adagrad": ("adagrad", {"lr": 1e-2, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "lamb": ("lamb", {"lr": 1e-2}),
}
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
           "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "lamb": Lamb}


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


@contextlib.contextmanager
def nearest_roots():
    """PyTorch's own code with square roots that are rounded to the nearest number. PyPI's PyTorch 2
    takes them from MKL, which is often a unit off."""
    def root(x):
        return torch.sqrt(x.double()).to(x.dtype)

    with mock.patch.object(torch.Tensor, "sqrt", root):
        with mock.patch.object(torch.Tensor, "sqrt_", lambda x: x.copy_(root(x))):
            yield


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


class Wrapped:
    """An optimizer as Lightning Fabric wraps it: of the optimizer's class; it reads attributes there, and keeps what is set."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("WrappedOptimizer", (Wrapped, type(optimizer)), {})

    def step(self):
        return self._optimizer.step()

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


def constant(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1000)


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        text = str(error)
        assert all(w in text for w in words), (words, text)
        assert f"rank {RANK}" in text or not pstrain.is_initialized(), text
        return
    raise AssertionError(f"not refused: {words}")
