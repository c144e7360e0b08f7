"""Cases of worker.py: the steps of pstrain.Optimizer against PyTorch's."""
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
from cases import (CLASSES, OPTIMIZERS, RANK, SHAPES, SIZE, Given, Wrapped, batch, case, digest, gradients, nearest_roots, net,
                   reference, refused, say, steps_of_ours, sum_in_order, ulps)


@case
def same_step():
    """One of OPTIMIZERS and a schedule against PyTorch, in units in the last place. It is compared with PyTorch's
    square roots, and with roots rounded to nearest."""
    name, options = OPTIMIZERS[sys.argv[2]]

    def halve(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)

    def compare(theirs):
        most = max(ulps(a, b, options["lr"]) for a, b in zip(model.weights, theirs.weights))
        for a, b in zip(model.weights, theirs.weights):
            b.data.copy_(a)  # every step is compared on its own
        return most

    model = Given()
    with pstrain.init():
        with torch.no_grad():
            for w in model.parameters():
                w.add_(RANK)  # rank 0's weights count
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        scheduler = halve(optimizer)
        plain, nearest = (reference(name, options, Given(), halve) for _ in range(2))
        most = [0.0, 0.0]
        for step, (theirs, _) in enumerate(plain):
            with nearest_roots():
                other, _ = next(nearest)
            steps_of_ours(model, optimizer, 1, step)
            scheduler.step()
            optimizer.synchronize()
            most = [max(most[0], compare(theirs)), max(most[1], compare(other))]
    say("ulps", *most, digest(model))


@case
def ps_worker():
    """The job of test_same_bits_as_ps_worker: one linear layer, one sample a rank and step. Each
    number of a gradient is one product, so PyTorch's and ps-worker's are equal."""
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


class Ignores(torch.autograd.Function):
    """Gives its weight no gradient."""

    @staticmethod
    def forward(ctx, x, weight):
        return x * weight.shape[0]

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


@case
def groups():
    """Two groups with their own rates, frozen and unused parameters, tied weights, one whose gradient is none."""
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
            return Ignores.apply(self.frozen(self.second(torch.relu(self.first(x)))), self.unused.weight)

    def grouped(model):
        biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
        rest = [p for n, p in model.named_parameters() if not n.endswith("bias")]
        return [{"params": rest, "lr": 0.1}, {"params": biases, "lr": 0.02, "weight_decay": 0.1}]

    ours, theirs = Tied(), Tied()
    with pstrain.init():
        optimizer = pstrain.Optimizer(grouped(ours), "sgd", lr=1.0, momentum=0.5)
        other = torch.optim.SGD(grouped(theirs), lr=1.0, momentum=0.5)
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
                    p.grad = sum_in_order([part[n] for part in parts]) if n in parts[0] else None
            other.step()
        optimizer.synchronize()
        assert digest(ours) == digest(theirs), "other weights than torch.optim.SGD's"
    say("fine")


class Branches(nn.Module):
    """Parts that are used in some steps alone, by some ranks alone, and frozen in the middle."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.always, self.seldom, self.one_rank = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
        self.frozen, self.large = nn.Linear(4, 3), nn.Linear(4, 3000)

    def loss(self, step, rank):
        x = torch.rand(2, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        for p in self.frozen.parameters():
            p.requires_grad_(step < 3)
        used = [self.always, self.frozen]
        if step in (1, 2, 6):
            used += [self.seldom, self.large]
        if step % 2 and rank == SIZE - 1:
            used.append(self.one_rank)
        if step == 4:  # as a program that skips a batch: nobody has a gradient
            return torch.zeros((), requires_grad=True)
        return sum(module(x).square().sum() for module in used)


@case
def absent():
    """A parameter that no rank has a gradient for is not stepped, and its moments stand still, as in PyTorch; where
    some rank has one, the others count as zeros. OPTIMIZER CODEC FOLDER, and a part of the 8 steps or all."""
    name, codec, folder, part = sys.argv[2:6]
    steps = {"whole": range(8), "save": range(5), "load": range(5, 8)}[part]
    options = {"adamw": {"weight_decay": 0.1}, "sgd": {"momentum": 0.9, "dampening": 0.5}, "adagrad": {"lr_decay": 0.1},
               "lamb": {}}[name]
    model, theirs = Branches(), Branches()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, lr=0.1, codec=codec, **options,
                                      settings=["exchange.codec_min=0"])
        other = CLASSES[name](theirs.parameters(), lr=0.1, **options)
        if part == "load":
            kept = torch.load(f"{folder}/{name}.pt")
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
        for step in range(steps.stop):
            if step in steps:
                optimizer.zero_grad(set_to_none=True)
                model.loss(step, RANK).backward()
                optimizer.step()
            grads = {}
            for r in range(SIZE):
                theirs.zero_grad(set_to_none=True)
                theirs.loss(step, r).backward()
                for p in theirs.parameters():
                    if p.grad is not None:
                        grads.setdefault(p, []).append(p.grad / SIZE)
            for p in theirs.parameters():
                p.grad = sum_in_order(grads[p]) if p in grads else None
            other.step()
        state = optimizer.state_dict()
        if part == "save" and RANK == 0:
            torch.save({"model": model.state_dict(), "optimizer": state}, f"{folder}/{name}.pt")
        # few bits change the weights; the steps that count are the same
        close = {"none": {"rtol": 1e-5, "atol": 1e-6}, "fp16": {"atol": 0.01}}.get(codec, {"atol": 0.5})
        for (n, a), b in zip(model.named_parameters(), theirs.parameters()):
            assert torch.allclose(a, b, **close), (n, (a - b).abs().max())
        if RANK == 0 and name in ("adamw", "adagrad"):
            mine = {i: int(s["step"]) for i, s in state["state"].items()}
            assert mine == {i: int(s["step"]) for i, s in other.state_dict()["state"].items() if s["step"]}, mine
    say("fine", digest(model))


@case
def zeroed():
    """What zero_grad() leaves is PyTorch's default of this version: zeros, with which an unused parameter is stepped, or none."""
    ours, theirs = (nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    with pstrain.init():
        pstrain.broadcast(theirs)
        optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", lr=0.1, momentum=0.9)
        other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            for model, its in ((ours, optimizer), (theirs, other)):
                its.zero_grad()
                model[step % 2](torch.ones(2, 4)).square().sum().backward()
                its.step()
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(ours.parameters(), theirs.parameters()))
    say("fine")


@case
def closures():
    """step(closure) makes the passes and gives the loss, which is DDP's: where the servers step, where the ranks do, and of
    the second of two Optimizers."""
    rule, options = ("nadam" if sys.argv[2] == "own" else "sgd"), {"lr": 0.05}
    pstrain.init()
    dist.init_process_group("gloo")
    ours, theirs = net(), DDP(net())
    optimizers = [pstrain.Optimizer(ours.named_parameters(), rule, **options)]
    if sys.argv[2] == "two":
        other = nn.Linear(2, 1)
        optimizers.insert(0, pstrain.Optimizer(other.named_parameters(), "adamw"))
    references = [(torch.optim.NAdam if rule == "nadam" else torch.optim.SGD)(theirs.parameters(), **options)]

    def losses(model, each):
        found = []
        for step in range(5):
            images, labels = batch(step)
            if len(each) > 1:
                other(torch.ones(1, 2)).sum().backward()
                each[0].step()
                each[0].zero_grad()

            def closure():
                each[-1].zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                return loss

            found.append(each[-1].step(closure).item())
        return found

    say("losses", f"{losses(ours, optimizers)}; {losses(theirs, references)}")
    pstrain.shutdown()


@case
def accumulate():
    """Two backward passes make one step's gradient."""
    with pstrain.init():
        a, b = Given(), Given()
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            with (optimizer, Wrapped(optimizer))[step % 2].no_sync():
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
def unequal():
    """Ranks whose batches are not equal count by their samples; also where the servers make no mean."""
    shares = [3 / 4, 1 / 4]
    with pstrain.init():
        a, b = Given(), Given()
        optimizer = pstrain.Optimizer(a.named_parameters(), "sgd", lr=0.1, codec=sys.argv[2])
        optimizer = Wrapped(optimizer)
        optimizer.share = shares[RANK]
        steps_of_ours(a, optimizer, 3)
        optimizer.state_dict()  # the exact weights, also with a codec
        for step in range(3):
            for i, w in enumerate(b.weights):
                w.data.add_(sum_in_order([gradients(step, r)[i] * shares[r] for r in range(SIZE)]), alpha=-0.1)
        for x, y in zip(a.weights, b.weights):
            assert torch.allclose(x, y, rtol=1e-6, atol=1e-6 if sys.argv[2] == "none" else 1e-2), (x, y)
    say("fine")


@case
def watched():
    """PyTorch's hooks and profiler see the step. Gradients may have graphs of their own."""
    with pstrain.init():
        model, seen = Given(), []
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)

        def step():
            optimizer.zero_grad()
            model(gradients(0, RANK)).backward(create_graph=True)
            optimizer.step()

        step()
        if hasattr(optimizer, "register_step_post_hook"):  # PyTorch 2
            hooks = [optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
                     optimizer.register_step_post_hook(lambda *_: seen.append("after"))]
            step()
            for hook in hooks:
                hook.remove()
            step()
            assert seen == ["before", "after"], seen
        with torch.profiler.profile() as profile:
            step()
        names = {e.key for e in profile.key_averages()}
        assert "Optimizer.step#Optimizer.step" in names, names
        optimizer.synchronize()
        check_step_of_checkpoint(model, optimizer)
    say("fine")


def check_step_of_checkpoint(model, optimizer):
    """It would make one, with gradients of 0."""
    try:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    except ImportError:  # PyTorch 1
        return
    optimizer.zero_grad(set_to_none=True)
    refused(pstrain.InputError, ["get_optimizer_state_dict", "torch.save"], lambda: get_optimizer_state_dict(model, optimizer))


@case
def hooks_of_state():
    """Hooks of state_dict() and load_state_dict() see what the servers have, and change it."""
    with pstrain.init():
        model, seen = Given(), []
        optimizer = pstrain.Optimizer(model.named_parameters(), sys.argv[2], lr=0.1)
        if not hasattr(optimizer, "register_load_state_dict_pre_hook"):  # PyTorch 1
            say("fine")
            return
        moment = torch.full(SHAPES[0], 4.0)
        given = torch.optim.Adam(model.parameters(), lr=0.5).state_dict()
        own_group = optimizer.param_groups[0]
        given["param_groups"][0].update({key: own_group[key] for key in own_group if key not in ("lr", "params")})
        own = {0: {"step": torch.tensor(3.0), "exp_avg": moment, "exp_avg_sq": moment.clone()}}
        if sys.argv[2] == "nadam":
            own[0]["mu_product"] = torch.tensor(0.5)
        optimizer.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": own})
        optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.param_groups[0]["lr"]))
        optimizer.register_state_dict_pre_hook(lambda _: seen.append("before"))
        optimizer.register_state_dict_post_hook(
            lambda _, state: {"halves": {n: each["exp_avg"].half() for n, each in state["state"].items()}})
        optimizer.load_state_dict(given)
        halves = optimizer.state_dict()["halves"]
        assert seen == [0.5, "before"] and halves.keys() == {0} and torch.equal(halves[0], moment.half()), (seen, halves)
        optimizer.zero_grad()
        model(gradients(0, RANK)).backward()
        optimizer.step()
        halves = optimizer.state_dict()["halves"]
        if RANK == 0 or sys.argv[2] == "nadam":
            mean = sum(gradients(0, r)[0] for r in range(SIZE)) / SIZE
            assert len(halves) == len(SHAPES) and torch.allclose(halves[0].float(), 3.6 + 0.1 * mean, atol=1e-2), halves
    say("fine")


@case
def push_at_step():
    """If gradients are sent in step(), the rank's own clipping has an effect."""
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
def attention():
    """A module that uses another module's weights without calling it (out_proj), and evaluation."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-2, overlap_forward=True)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for step in range(6):
            x = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(step + 100 * RANK))
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            with torch.no_grad():  # a layer's quick way of evaluation reads weights of modules that it does not call
                evaluated = model.eval()(x)
                optimizer.synchronize()
                assert torch.equal(evaluated, model(x))
                model.train()(x)
            scheduler.step(float(step))
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        optimizer.step()
        model[0].weight.data.mul_(2)  # would be lost
        refused(pstrain.InputError, ["'0.weight'", "was changed while"], optimizer.synchronize)
        model[0].weight.data.mul_(0.5)
        optimizer.synchronize()
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        first = mine.clone()
        pstrain.broadcast(first, 0)
        assert torch.equal(mine, first), "the ranks have other weights"
    say("fine", digest(model))
