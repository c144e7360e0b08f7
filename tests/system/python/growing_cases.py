"""A rank of the jobs of test_growing.py: python3 growing_cases.py CASE. Prints what the test reads. The yardstick is
PyTorch's own optimizer with the mean gradient that Gloo sums."""
import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import pstrain
from cases import CASES, RANK, SIZE, batch, case, digest, nearest_roots, net, refused, say


def loss_of(model, step):
    images, labels = batch(step)
    return nn.functional.cross_entropy(model(images), labels)


def make_step(model, optimizer, step, theirs=False):
    optimizer.zero_grad(set_to_none=True)
    loss_of(model, step).backward()
    if theirs:
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad.mul_(1 / SIZE))
    optimizer.step()


RULES = {"adam": ("adam", torch.optim.Adam, {"lr": 0.01}),
         "momentum": ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
         "own": (torch.optim.NAdam, torch.optim.NAdam, {"lr": 0.01})}


# ---- what is added ----

def add_groups(model, optimizer, step):
    """The head alone at first; other rates for what comes later, of which a part is frozen when it comes."""
    model.conv.requires_grad_(step >= 2)
    if step == 1:
        optimizer.add_param_group({"params": list(model.conv.parameters()), "lr": 0.003})
    elif step == 4:
        optimizer.add_param_group({"params": model.wide.weight})
        optimizer.add_param_group({"params": [model.wide.bias], "weight_decay": 0.1})
        optimizer.param_groups[0]["lr"] *= 0.5


def unfreeze(model, _, step):
    model.conv.requires_grad_(step >= 2)
    model.wide.requires_grad_(step >= 4)


def rest_of(model):
    added = {*model.conv.parameters(), *model.wide.parameters()}
    return [p for p in model.parameters() if p not in added]


@case
def grown():
    """HOW RULE: the weights after seven steps, theirs and ours; and our steps by parameter."""
    how, rule = sys.argv[2:4]
    name, kind, options = RULES[rule]
    change = add_groups if how == "groups" else unfreeze
    models, optimizers = (net(), net()), []
    for model, make in zip(models, (kind, lambda params, **o: pstrain.Optimizer(params, name, **o))):
        change(model, None, 0)
        optimizers.append((make, rest_of(model) if how == "groups" else list(model.parameters())))
    if SIZE > 1:
        dist.init_process_group("gloo")
    with pstrain.init():
        optimizers = [make(params, **options) for make, params in optimizers]
        with nearest_roots() if rule == "adam" else contextlib.nullcontext():
            for step in range(7):
                for model, optimizer, theirs in zip(models, optimizers, (SIZE > 1, False)):
                    change(model, optimizer, step)
                    make_step(model, optimizer, step, theirs)
        steps = [int(s["step"]) for s in optimizers[1].state_dict()["state"].values() if "step" in s]
        say("weights", *(digest(model, False) for model in models), *sorted(steps))
    say("after", *(digest(model, False) for model in models))


@case
def approximate():
    """SETTING: how far the weights are from PyTorch's after growing with it."""
    word = sys.argv[2]
    given = {"clip": {"clip_norm": 0.5}, "scale": {"loss_scale": 256.0}}.get(word, {"codec": word})
    other, model = net(), net()
    dist.init_process_group("gloo")
    theirs = torch.optim.SGD(rest_of(other), lr=0.1, momentum=0.9)
    if word == "clip":
        plain, groups = theirs.step, theirs.param_groups
        theirs.step = lambda: (nn.utils.clip_grad_norm_([p for g in groups for p in g["params"]], 0.5), plain())
    with pstrain.init():
        ours = pstrain.Optimizer(rest_of(model), "sgd", lr=0.1, momentum=0.9, **given)
        for step in range(7):
            for m, o, theirs_ in ((other, theirs, True), (model, ours, False)):
                add_groups(m, o, step)
                o.zero_grad()
                loss = loss_of(m, step)
                (loss if theirs_ else ours.scale(loss)).backward()
                for p in m.parameters() if theirs_ else ():
                    if p.grad is not None:
                        dist.all_reduce(p.grad.mul_(1 / SIZE))
                o.step()
        ours.state_dict()  # the exact weights
        far = max(float((a - b).abs().max()) for a, b in zip(other.parameters(), model.parameters()))
        say("weights", digest(model), far)


@case
def another_optimizer():
    """A second one after the first one's third step, in turn from then on."""
    pairs = [(net(), net()) for _ in range(2)]
    dist.init_process_group("gloo")
    with pstrain.init(), nearest_roots():
        theirs = [torch.optim.Adam(pairs[0][0].parameters(), lr=0.01)]
        ours = [pstrain.Optimizer(pairs[0][1].named_parameters(), "adam", lr=0.01)]
        for step in range(8):
            if step == 3:
                theirs.append(torch.optim.SGD(pairs[1][0].parameters(), lr=0.1, momentum=0.9))
                ours.append(pstrain.Optimizer(pairs[1][1].named_parameters(), "sgd", lr=0.1, momentum=0.9))
            turn = step % len(ours)
            make_step(pairs[turn][0], theirs[turn], step, True)
            make_step(pairs[turn][1], ours[turn], step)
        for (other, model) in pairs:
            say(f"weights {digest(other, False) == digest(model, False)}")


@case
def saved():
    """A state after growing goes on in PyTorch's optimizer, which adds its groups before."""
    model, fresh = net(), net()
    with pstrain.init():
        optimizer = pstrain.Optimizer(rest_of(model), "adam", lr=0.01)
        for step in range(5):
            add_groups(model, optimizer, step)
            make_step(model, optimizer, step)
        state = optimizer.state_dict()
        fresh.load_state_dict(model.state_dict())
    if RANK == 0:
        other = torch.optim.Adam(rest_of(fresh), lr=0.01)
        for step in (1, 4):
            add_groups(fresh, other, step)
        other.load_state_dict(state)
        steps = sorted(int(s["step"]) for s in other.state.values())
        assert steps == [1] * 2 + [3] * 2 + [5] * 4, steps
        make_step(fresh, other, 5)
    say("fine")


@case
def frozen_at_load():
    """A state of all parameters is loaded while the convolution is frozen; its moments are there when it comes in."""
    other, model = net(), net()
    dist.init_process_group("gloo")
    theirs = torch.optim.Adam(other.parameters(), lr=0.01)
    with pstrain.init(), nearest_roots():
        for step in range(3):
            make_step(other, theirs, step, True)
        model.load_state_dict(other.state_dict())
        model.conv.requires_grad_(False)
        ours = pstrain.Optimizer(model.parameters(), "adam", lr=0.01)
        ours.load_state_dict(theirs.state_dict())
        for step in range(3, 8):
            for m, o, all_reduced in ((other, theirs, True), (model, ours, False)):
                m.conv.requires_grad_(step >= 5)
                make_step(m, o, step, all_reduced)
            if step in (4, 6):
                state, wanted = ours.state_dict()["state"], theirs.state_dict()["state"]
                for place in wanted if RANK == 0 else ():
                    for key, value in wanted[place].items():
                        torch.testing.assert_close(state[place][key], value, rtol=1e-5, atol=1e-9)
        say(f"weights {digest(other, False) == digest(model, False)}")


@case
def old_weights():
    """What the program holds of parameters goes on with them, as with PyTorch's optimizers; gradients of the table before stay
    as they were."""
    model = net()
    with pstrain.init():
        optimizer = pstrain.Optimizer(rest_of(model), "sgd", lr=0.1, gradient_as_arena_view=True)
        held = []
        for step in range(12):
            if step in (2, 4, 6):
                unfreeze(model, None, step)
            make_step(model, optimizer, step)
            now = [p.grad for p in rest_of(model)]
            held.append(([p.detach() for p in rest_of(model)], now, [grad.clone() for grad in now]))
            if step == 3:
                optimizer.add_param_group({"params": list(model.conv.parameters())})
            if step == 7:
                optimizer.add_param_group({"params": list(model.wide.parameters())})
        for weights, *_ in held:
            assert all(map(torch.equal, weights, rest_of(model)))
        # Of each table the last ones.
        assert all(torch.equal(a, b) for step in (3, 7, 11) for a, b in zip(*held[step][1:]))
        del held, now
    say("fine")


@case
def differs():
    """WHAT: the ranks add different things."""
    what = sys.argv[2]
    pstrain.init()
    model = net()
    optimizer = pstrain.Optimizer(rest_of(model), "sgd", lr=0.1)
    make_step(model, optimizer, 0)
    words = ["worker 1"]
    if what in ("alone", "unseen"):
        words += ["adds parameter"] + ["model.conv"] * RANK if what == "alone" else ["missing: 0"]
        if RANK == 1:
            optimizer.add_param_group({"params": [("model.conv", model.conv.weight)]})
    elif what == "shape":
        words += ["worker 0", "extra", "(3)", "(4)"]
        optimizer.add_param_group({"params": [("extra", nn.Parameter(torch.zeros(3 + RANK)))]})
    elif what == "options":
        words += ["worker 0", "parameter group 1"]
        optimizer.add_param_group({"params": model.conv.weight, "lr": 0.1 + RANK})
    elif what == "end":
        words += ["worker 0"] + ["conv"] * RANK
        if RANK == 0:
            refused(pstrain.PeerError, words, pstrain.shutdown)
            return say("refused")
        model.conv.weight.requires_grad_(True)
        optimizer.add_param_group({"params": [("conv", model.conv.weight)]})
    refused((pstrain.PeerError, pstrain.TimeoutError), words, lambda: make_step(model, optimizer, 1))
    say("refused")


@case
def refusals():
    model = net()
    with pstrain.init():
        optimizer = pstrain.Optimizer(rest_of(model), "adam", lr=0.01)
        conv = list(model.conv.parameters())
        loss_of(model, 0).backward()
        refused(pstrain.InputError, ["between backward() and step()"], lambda: optimizer.add_param_group({"params": conv}))
        refused(pstrain.InputError, ["between backward() and step()"], lambda: pstrain.Optimizer(conv, "adam"))
        optimizer.step()
        before = len(optimizer.param_groups)
        for group, kind, words in (({"params": conv + rest_of(model)[:1]}, ValueError, []),
                                   ({"params": [nn.Parameter(torch.zeros(2, dtype=torch.complex64))]}, pstrain.InputError,
                                    ["complex64"]),
                                   ({"params": [nn.Parameter(torch.zeros(0))]}, pstrain.InputError, ["no elements"]),
                                   ({"params": [nn.Parameter(torch.zeros(2))], "amsgrad": True}, pstrain.InputError,
                                    ["amsgrad"])):
            try:
                optimizer.add_param_group(group)
                raise AssertionError(group)
            except kind as error:
                assert all(word in str(error) for word in words), error
            assert len(optimizer.param_groups) == before
        refused(pstrain.InputError, ["in another pstrain.Optimizer"], lambda: pstrain.Optimizer(rest_of(model), "adam"))
        with optimizer.join():
            refused(pstrain.InputError, ["optimizer.join()"], lambda: optimizer.add_param_group({"params": conv}))
        optimizer.add_param_group({"params": conv})
        with torch.no_grad():
            rest_of(model)[0].add_(1)
        refused(pstrain.InputError, ["was changed by the program"], lambda: loss_of(model, 1).backward())
        with torch.no_grad():
            rest_of(model)[0].sub_(1)
        pstrain.abort("the test is over")
    say("fine")


if __name__ == "__main__":
    CASES[sys.argv[1]]()
