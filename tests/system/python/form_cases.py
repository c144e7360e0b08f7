"""Cases of worker.py: parameters and gradients in other places and orders, and other callers."""
import sys

import torch
from torch import nn

import pstrain
from cases import RANK, SIZE, batch, case, digest, net, refused, say, sum_in_order


@case
def views():
    """The weights after some steps, with gradients of their own ("own") or in the arena ("view",
    "kept": zero_grad keeps them; "moved": into other memory); "late": a gradient is changed while it is sent."""
    how = sys.argv[2]
    with pstrain.init():
        model = net()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1, momentum=0.9,
                                      gradient_as_arena_view=how != "own", overlap_forward=how == "late")
        for step in range(5):
            images, labels = batch(step)
            if how == "moved" and step == 2:
                model.share_memory()
            elif how == "moved" and step > 2:
                for p in model.parameters():
                    p.grad.data = p.grad.data.clone()
            optimizer.zero_grad(set_to_none=how != "kept" and (how, step) != ("moved", 3))
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
            with optimizer.no_sync():
                nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.state_dict()  # between two backward passes of a step
            say("views", digest(model, False))


class Images(nn.Module):
    """Its gradients are exact: the inputs are small integers, and sums stay below 2 ** 24."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.arange(48).view(4, 3, 2, 2) - 20)

    def forward(self, x):
        return self.conv(x).sum()


@case
def channels_last():
    """Weights with another order in memory get the same steps, and their state has the same form."""
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
def bare():
    """A parameter of no module: there is no forward pass that hooks see."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    with pstrain.init():
        optimizer = pstrain.Optimizer([weight], "sgd", lr=0.5)
        optimizer.start()
        for _ in range(3):
            optimizer.zero_grad()
            (weight * weight / 2).sum().backward()  # its gradient is the weight
            optimizer.step()
        assert weight.tolist() == [0.125, 0.25], weight
    say("fine")


@case
def scripted():
    """A model of torch.jit.script trains, of whose parts PyTorch tells nothing. With overlap_forward it is refused."""
    def net():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    plain, ours, overlaps = net(), torch.jit.script(net()), "overlap" in sys.argv
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    with pstrain.init():
        optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", lr=0.1, overlap_forward=overlaps)
        optimizer.start()
        for step in range(4):
            xs = [torch.full((2, 3), (step + r) / 4) for r in range(SIZE)]
            if overlaps:
                refused(pstrain.InputError, ["overlap_forward", "torch.jit.script"], lambda: ours(xs[RANK]))
                continue
            for model, of, batches in ((ours, optimizer, xs[RANK:RANK + 1]), (plain, other, xs)):
                of.zero_grad()
                sum(model(x).pow(2).sum() / len(batches) for x in batches).backward()
                of.step()
        assert overlaps or all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.parameters(), plain.parameters()))
    say("fine")


@case
def compiled():
    """torch.compile(model) gives the weights of the same model without it. A module that compile() hides from hooks
    trains, too, once the job has begun; with overlap_forward it is refused."""
    overlaps = sys.argv[2] == "overlap"

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
                                      "sgd", lr=0.1, overlap_forward=overlaps)
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
        hidden.compile(backend="eager")  # hooks do not see its calls, so with overlap_forward its weights come late
        train(call, xs[RANK])
        optimizer.step()
        if not overlaps or torch.__version__.startswith("2.2"):  # this version calls the hooks
            optimizer.zero_grad()
            before = hidden.weight.detach().clone()
            train(hidden, torch.ones(2, 3))
            optimizer.step()
            optimizer.synchronize()
            assert torch.equal(hidden.weight, before.add(hidden.weight.grad, alpha=-0.1)), hidden.weight
        else:
            refused(pstrain.InputError, ["'hidden.", "synchronize()"], lambda: train(hidden, torch.ones(2, 3)))
        if not torch.__version__.startswith("2.2"):
            optimizer.synchronize()
            larger = torch.compile(lambda x: ours(x).pow(2).sum(), backend="eager")
            refused(pstrain.InputError, ["larger function", "torch.compile(model)"], lambda: larger(xs[RANK]).backward())
        pstrain.barrier()
        pstrain.abort("done")
    say("fine")
