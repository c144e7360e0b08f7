"""Cases of worker.py: what a program reads and writes of a model between its steps."""
import collections
import copy
import io
import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import pstrain
from cases import RANK, SIZE, Given, case, gradients, reference, refused, say, steps_of_ours


@case
def read_after_step():
    """Copies, averages and norms read the weights of the step, as with PyTorch's optimizer."""
    options = {"lr": 0.1, "momentum": 0.5}
    with pstrain.init():
        ours = Given()
        optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", **options)
        average, theirs_average = AveragedModel(ours), None
        plain = reference("sgd", options, Given(), lambda o: torch.optim.lr_scheduler.StepLR(o, 1000))
        for step in range(5):
            steps_of_ours(ours, optimizer, 1, step)
            average.update_parameters(ours)
            theirs, _ = next(plain)
            theirs_average = theirs_average or AveragedModel(theirs)
            theirs_average.update_parameters(theirs)
            for a, b, c in zip(copy.deepcopy(ours).parameters(), theirs.parameters(), ours.parameters()):
                assert torch.equal(a, b) and torch.equal(c, b), step
            with torch.no_grad():
                for a, b in zip(average.parameters(), theirs_average.parameters()):
                    assert torch.equal(a, b), step
    say("fine")


class Stepped(torch.autograd.Function):
    """Its backward pass goes on when the servers have stepped a parameter: step() comes later."""

    @staticmethod
    def forward(ctx, x, slot):
        ctx.slot, ctx.before = slot, slot.host.clone()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        end = time.monotonic() + 60
        while torch.equal(ctx.slot.host, ctx.before):
            assert time.monotonic() < end
        return gradient, None


class Detached(nn.Module):
    """W has its gradient before the backward pass has come to where it is used without one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.w, self.first = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x, wait=lambda x: x):
        return self.w(wait(nn.functional.linear(self.first(x), self.w.weight.detach()))).sum()


@case
def read_before_step():
    """Until step() has returned, weights are those of the step before: for the backward pass, too."""
    x = torch.rand(2, 128, generator=torch.Generator().manual_seed(1))
    ours, theirs = Detached(), Detached()
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)
    with pstrain.init():
        optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", lr=0.1)
        optimizer.start()
        slot = next(iter(optimizer._slots.values()))
        for step in range(3):
            if step == 2:  # where another process may read them
                ours.share_memory()
            optimizer.zero_grad()
            other.zero_grad()
            ours(x, lambda h: Stepped.apply(h, slot)).backward()
            assert torch.equal(ours.w.weight, theirs.w.weight), step
            theirs(x).backward()
            assert torch.equal(ours.first.weight.grad, theirs.first.weight.grad), step
            optimizer.step()
            other.step()
            for a, b in zip(ours.parameters(), theirs.parameters()):
                assert torch.equal(a, b), step
    say("fine")


@case
def read_meanwhile():
    """While step() waits for rank 1, a thread of rank 0 makes a forward pass: with the weights before the step."""
    model, read, made = Given(), Path(sys.argv[2]) / "read", []
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
        steps_of_ours(model, optimizer, 1)
        slot, wanted, end = next(iter(optimizer._slots.values())), model(gradients(5, RANK)), time.monotonic() + 60

        def forward():
            while slot.fresh:
                assert time.monotonic() < end
            try:
                with torch.no_grad():
                    made.append(model(gradients(5, RANK)))
            finally:
                read.touch()

        reader = threading.Thread(target=forward)
        if RANK == 0:
            reader.start()
        while RANK > 0 and not read.exists():
            assert time.monotonic() < end
        steps_of_ours(model, optimizer, 1, 1)
        if RANK == 0:
            reader.join()
            assert len(made) == 1 and torch.equal(made[0], wanted), made
    say("fine")


@case
def forward_alone():
    """A forward pass in training mode without a backward pass begins nothing."""
    with pstrain.init():
        model = Given()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1, overlap_forward="overlap" in sys.argv)
        if hasattr(torch, "func"):  # the first one is of other weights in their place
            torch.func.functional_call(model, {name: p.detach() for name, p in model.named_parameters()}, (gradients(0, RANK),))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(3):
            steps_of_ours(model, optimizer, 1, step)
            model(gradients(step, RANK))
            scheduler.step()
            optimizer.state_dict()
            model(gradients(step, RANK))
        other = Given()
        for step in range(3):
            for i, w in enumerate(other.weights):
                parts = [gradients(step, r)[i] * (1 / SIZE) for r in range(SIZE)]
                w.data.add_(sum(parts), alpha=-0.1 * 0.5 ** step)
        optimizer.synchronize()
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(model.weights, other.weights))
    say("fine")


@case
def options_of_pytorch():
    """maximize is kept, for one group alone, too. What changes no number is taken, what the servers lack refused. Names, as
    of several models, may be the same."""
    def grouped(model):
        return [{"params": [model.weights[0]], "maximize": True}, {"params": list(model.weights)[1:]}]

    with pstrain.init():
        ours, theirs = Given(), Given()
        groups = [{**group, "params": [("weight", w) for w in group["params"]]} for group in grouped(ours)]
        optimizer = pstrain.Optimizer(groups, "adamw", lr=0.1, fused=False, foreach=None, amsgrad=False)
        optimizer.state.clear()  # there is none yet: a trainer may begin so (fastai's OptimWrapper)
        optimizer.state = collections.defaultdict(dict)
        other = torch.optim.AdamW(grouped(theirs), lr=0.1)
        for step in range(4):
            steps_of_ours(ours, optimizer, 1, step)
            for i, w in enumerate(theirs.weights):
                w.grad = sum(gradients(step, r)[i] for r in range(SIZE)) / SIZE
            other.step()
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours.weights, theirs.weights))
        before, words = optimizer.state, ["optimizer.state", "torch.optim.AdamW"]
        refused(pstrain.InputError, words, optimizer.state.clear)
        optimizer.state = collections.defaultdict(dict)
        optimizer.zero_grad()
        refused(pstrain.InputError, words, lambda: ours(gradients(0, RANK)).backward())
        optimizer.state = before
        optimizer.param_groups[1]["amsgrad"] = True
        optimizer.zero_grad()
        refused(pstrain.InputError, ["group 1", "amsgrad"], lambda: ours(gradients(0, RANK)).backward())
        del optimizer.param_groups[1]["amsgrad"]
    say("fine")


class Normed(nn.Module):
    """Batch norm; a mask and a frozen layer, which never change; a buffer that changes from the third step on alone, one
    that is written by .data, and one that is so from the third step on. All differ between the ranks."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.frozen = nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 200), nn.Linear(1, 1)
        nn.init.constant_(self.frozen.requires_grad_(False).weight, 5.0 + RANK)
        self.own = nn.Parameter(torch.full((2,), float(RANK)))  # in no Optimizer of ours
        self.register_buffer("mask", torch.full((2, 2), complex(RANK, 1)).t().conj())
        self.late, self.codes, self.unseen = nn.Module(), nn.Module(), nn.Module()
        for module in self.late, self.unseen:
            module.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.codes.register_buffer("sums", torch.full((2,), 10.0 * RANK))
        self.calls = 0

    def forward(self, x):
        self.seen = self.mask.real[0, 0].item(), self.frozen.weight.item(), self.codes.sums[0].item()
        self.calls += 1
        if self.calls > 2:
            self.late.count += 10 + RANK
            self.unseen.count.data.add_(10 + RANK)
        self.codes.sums.data.add_(1 + RANK)
        return self.linear(self.norm(x))


@case
def buffers():
    """They and frozen parameters are rank 0's in the first forward pass, and buffers after each step, as under
    DistributedDataParallel. "own": with broadcast_buffers=False frozen parameters alone."""
    own = "own" in sys.argv
    torch.manual_seed(3)
    model = Normed()
    with pstrain.init():
        optimizer = pstrain.Optimizer((each for each in model.named_parameters() if each[0] != "own"), "sgd", lr=0.1,
                                      broadcast_buffers=not own)
        if RANK == 0:
            with torch.no_grad():
                model.norm(torch.ones(2, 3))  # an evaluation of one rank's
            model.norm.reset_running_stats()
        mean, said = torch.zeros(3), io.StringIO()
        logging.getLogger("pstrain").addHandler(logging.StreamHandler(said))
        for step in range(4):
            xs = [torch.rand(4, 3, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(SIZE)]
            optimizer.zero_grad()
            model(xs[RANK]).sum().backward()
            optimizer.step()
            mean = 0.5 * mean + 0.5 * xs[RANK if own else 0].mean(0)
            assert torch.allclose(model.norm.running_mean, mean, atol=1e-6), (step, model.norm.running_mean, mean)
            assert model.norm.num_batches_tracked == step + 1
            for count in model.late.count, model.unseen.count:
                assert count == (10 + RANK * own) * max(0, step - 1), (step, count)
            assert model.seen == (RANK * own, 5, 10 * RANK * own + step * (1 + RANK * own)), (step, model.seen)
        assert model.own[0] == RANK
        assert said.getvalue().count("no pstrain.Optimizer has: own. Each rank keeps") == (RANK == 0), said.getvalue()
        if not own:
            mine, first = model.norm.running_var.clone(), model.norm.running_var.clone()
            pstrain.broadcast(first, 0)
            assert torch.equal(mine, first)
    say("fine")


@case
def whole_models():
    """torch.save(model) leaves nothing of pstrain in the file, and a copy has no hooks."""
    with pstrain.init():
        model = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 10000))
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1, overlap_forward="overlap" in sys.argv)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        file = io.BytesIO()
        torch.save(model[0].state_dict(), file)
        assert file.tell() < 5000, file.tell()  # not the weights of the others, too
        file = io.BytesIO()
        torch.save(model, file)
        assert b"pstrain" not in file.getvalue() and b"slice" not in file.getvalue()
        for other in (torch.load(io.BytesIO(file.getvalue()), **({"weights_only": False} if "weights_only" in
                      torch.load.__code__.co_varnames else {})), copy.deepcopy(model)):
            assert torch.equal(other[0].weight, model[0].weight) and other.state_dict().keys() == model.state_dict().keys()
        check_forked(optimizer)
    say("fine")


def check_forked(optimizer):
    """A child that writes checkpoints has the weights; what the servers have it cannot ask for."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused(pstrain.InputError, ["a process that was forked"], optimizer.state_dict)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@case
def forgotten():
    """The servers are there, and PyTorch's optimizer trains."""
    pstrain.init()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if "shutdown" in sys.argv:
        pstrain.shutdown()
