"""A rank of the jobs of test_embeddings.py: python3 embedding_worker.py CASE FOLDER. Prints what the test reads."""
import argparse
import contextlib
import copy
import functools
import gc
import gzip
import io
import logging
import os
import pickle
import struct
import sys
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import pstrain
from pstrain import _rows, embedding

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python/examples"))
import clicks  # noqa: E402
import dlrm  # noqa: E402
import dlrm_ddp  # noqa: E402
from rows_worker import refused, say  # noqa: E402

CASES = {}


def case(run):
    CASES[run.__name__] = run
    return run


def make(model):
    dlrm_ddp.ROWS = 50
    return dlrm_ddp.Whole(clicks.Generated(0), argparse.Namespace(model=model, dim=4), sparse=True)


def mean_loss(whole, batch):
    counts, ids, labels, _ = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(whole(counts, ids), labels)


@case
def like_pytorch(folder):
    """The example's models, taken over, and the same ones by PyTorch's sparse optimizers, on all samples of a batch. Ranks
    have other numbers of samples; in the last batch of five rank 1 has none."""
    pstrain.init()
    rank = pstrain.rank()
    alone, ours = make("dlrm"), make("dlrm")
    of_rows = dict(lr=0.05, initial_accumulator_value=0.01)  # from 0, the first step would be the sign of a rounding
    pstrain.sparse(ours, optimizer="adagrad", **of_rows)
    optimizer = pstrain.Optimizer([{"params": list(ours.named_parameters()), "maximize": True}], "sgd", lr=0.1)
    theirs = [torch.optim.Adagrad(alone.tables.parameters(), **of_rows), torch.optim.SGD(alone.model.parameters(), lr=0.1)]
    source, far = clicks.Generated(5 * 67, rows=30), 0.0
    for step in range(5):
        whole = source.parse(list(range(67 * step, 67 * (step + 1))))
        cut = 67 if step == 4 else 30
        own = [each[:cut] if rank == 0 else each[cut:] for each in whole]
        optimizer.share = len(own[0]) / 67
        optimizer.zero_grad()
        loss = mean_loss(ours, own) if len(own[0]) else ours(own[0], own[1]).sum()
        (-loss).backward()
        optimizer.step()
        wanted = mean_loss(alone, whole)
        for each in theirs:
            each.zero_grad()
        wanted.backward()
        for each in theirs:
            each.step()
        far = max(far, abs(float(pstrain.all_reduce(loss.detach() * optimizer.share) - wanted)))
    torch.set_default_dtype(torch.bfloat16)  # of no consequence
    with torch.no_grad():
        say("far", far, max(float((a.weight - b.weight).abs().max()) for a, b in zip(ours.tables, alone.tables)))
        saved = ours.state_dict()
        for place, b in enumerate(alone.tables) if rank == 0 else ():
            ids = saved[f"tables.{place}.ids"]
            for word, wanted in ("weight", b.weight), ("state", theirs[0].state[b.weight]["sum"]):
                assert torch.allclose(saved[f"tables.{place}.{word}"], wanted[ids], rtol=1e-4, atol=1e-5), (place, word)
    pstrain.shutdown()


def discarding(step, model, zero, alone, rank):
    """A step's backward passes up to step(); what comes before the last zero() does not count. alone: within it no
    gradient leaves."""
    def loss(many):
        out = model["rows"](torch.arange(many) + 2 * rank + step)
        return (model["dense"](out).sum() + model["other"](torch.tensor([step])).sum()) * 0.7

    first, second = loss(3), loss(4)
    with alone():
        if step == 1:  # another batch's
            second.backward()
        if step == 2:  # the same one's
            first.backward(retain_graph=True)
        if step == 4 and rank == 1:  # and none follows
            first.backward()
    zero(set_to_none=True)
    if step == 3:  # not those of rows
        first.backward()
        model["other"].zero_grad(set_to_none=True)
    elif step != 4 or rank == 0:
        first.backward()


@case
def zeroes(folder):
    """zero_grad() of an Optimizer of the servers, of one of PyTorch's, and of tables alone, against PyTorch's own."""
    pstrain.init()
    torch.manual_seed(0)
    how = sys.argv[3]
    theirs = torch.nn.ModuleDict({"rows": torch.nn.Embedding(20, 3, sparse=True), "other": torch.nn.Embedding(9, 2, sparse=True),
                                  "dense": torch.nn.Linear(3, 1)})
    ours = pstrain.sparse(copy.deepcopy(theirs), optimizer="sparse_adam", lr=0.1)
    rules = [torch.optim.SparseAdam([*theirs["rows"].parameters(), *theirs["other"].parameters()], lr=0.1)]
    if how == "tables":
        zero, step, alone = ours["rows"].zero_grad, ours["rows"].step, contextlib.nullcontext
    else:
        rules.append(torch.optim.SGD(theirs["dense"].parameters(), lr=0.1))
        optimizer = pstrain.Optimizer(ours["dense"].named_parameters(), {"servers": "sgd", "own": torch.optim.SGD}[how], lr=0.1)
        zero, step, alone = optimizer.zero_grad, optimizer.step, optimizer.no_sync
    for number in range(6):
        discarding(number, ours, zero, alone, pstrain.rank())
        step()
        zeroed = theirs["rows"] if how == "tables" else theirs
        sums = {}
        for rank in range(2):
            theirs.zero_grad(set_to_none=True)
            discarding(number, theirs, zeroed.zero_grad, contextlib.nullcontext, rank)
            for p in theirs.parameters():
                if p.grad is not None:
                    sums[p] = sums[p] + p.grad / 2 if p in sums else p.grad / 2
        for p in theirs.parameters():
            p.grad = sums.get(p)
        for rule in rules:
            rule.step()
    with torch.no_grad():
        far = [float((ours[name].weight - theirs[name].weight).abs().max()) for name in theirs]
    say("zeroes", all(each < 1e-5 for each in far), far)
    pstrain.shutdown()


def check_ignored(each):
    """What would be left out of a trace, or of a lookup."""
    ids = torch.tensor([1, 2])
    with torch.no_grad():
        refused(lambda: torch.jit.trace(each, ids), "constants")
    refused(lambda: pstrain.EmbeddingBag.forward(each, ids, torch.tensor([0])), "leave out its offsets")


def check_default_mode(bag):
    torch.manual_seed(0)
    plain = torch.nn.EmbeddingBag(9, 4)
    bag.load_state_dict(plain.state_dict())
    ids = torch.tensor([[1, 2, 3], [8, 0, 8]])
    assert torch.allclose(bag(ids), plain(ids), atol=1e-6) and bag.mode == plain.mode


def check_writes(bag):
    """A weight that is read is a copy; and none can be assigned."""
    before = dict(bag.state_dict())
    with torch.no_grad():
        def set_item():
            bag.weight[1] = 7

        def set_data():
            bag.weight.data = torch.ones(9, 4)

        for write in (set_item, set_data, lambda: bag.weight.fill_(5), lambda: bag.weight.data[2:].T.zero_(),
                      lambda: torch.nn.init.normal_(bag.weight), lambda: [row.zero_() for row in bag.weight],
                      lambda: torch.add(torch.ones(9, 4), 1, out=bag.weight),
                      lambda: torch.nn.functional.relu(bag.weight, inplace=True)):
            refused(write, "copy", "clone()", "load_state_dict")
        for array in (bag.weight.numpy(), bag.weight[2:].T.numpy(), np.asarray(bag.weight)):
            assert not array.flags.writeable
        assert bag.weight.numpy().astype("float64").flags.writeable and np.array(bag.weight).flags.writeable
        mine, saved = bag.weight.clone(), io.BytesIO()
        mine += 1
        torch.save(bag.weight, saved)
        for own in (bag.weight * 1, copy.deepcopy(bag.weight), pickle.loads(pickle.dumps(bag.weight)),
                    torch.load(io.BytesIO(saved.getvalue())), torch.nn.Embedding.from_pretrained(bag.weight).weight * 1):
            assert type(own) is torch.Tensor and torch.equal(own + 1, mine)
        kept = copy.deepcopy(torch.nn.Embedding.from_pretrained(bag.weight))
        assert type(kept.weight) is torch.nn.Parameter and not kept.weight.requires_grad
    with torch.inference_mode():
        refused(lambda: bag.weight[0].fill_(5), "copy")
    for value in (torch.nn.Parameter(torch.zeros(9, 4)), torch.zeros(9, 4)):
        refused(lambda: setattr(bag, "weight", value), "load_state_dict")
    assert not list(bag.named_parameters())
    assert all(torch.equal(before[word], each) for word, each in bag.state_dict().items())


def warnings_of(call):
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    embedding.log.addHandler(handler)
    call()
    embedding.log.removeHandler(handler)
    return said.getvalue().splitlines()


def check_forgotten(model):
    """Rows that expire lose the weights that were given: rank 0 is told."""
    lines = warnings_of(lambda: pstrain.sparse(model, optimizer="sgd", lr=1.0, expire=2, init="constant", scale=0.25))
    if pstrain.rank() == 0:
        assert len(lines) == 1 and "table '0', '1': a row that is forgotten (expire)" in lines[0] and "scale=0.25" in lines[0], lines
    else:
        assert not lines, lines
    assert len(warnings_of(lambda: model[0].load_state_dict({"weight": torch.ones(9, 4)}))) == 1 - pstrain.rank()


def check_weights_of_frozen(bag, plain):
    """Where rows stand still, per_sample_weights have PyTorch's gradient all the same."""
    bag.requires_grad_(False)
    with torch.no_grad():
        plain.weight.copy_(bag.weight)
    for ids, offsets in ((torch.tensor([4, 1, 8, 4]), torch.tensor([0, 0, 3])), (torch.tensor([[1, 2], [4, 4]]), None),
                         (torch.zeros(2, 0, dtype=torch.int64), None), (torch.zeros(0, dtype=torch.int64), torch.zeros(0).long())):
        got = []
        for module in (bag, plain):
            weights = torch.linspace(-1, 1, ids.numel()).view(ids.shape).requires_grad_()
            if module is plain and not ids.numel():
                out = torch.zeros(len(ids), 4)
            else:
                out = module(ids, offsets, per_sample_weights=weights)
            (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum().backward() if out.requires_grad else None
            got += [out, weights.grad if weights.grad is not None else torch.zeros(ids.shape)]
        assert all(torch.allclose(a, b, atol=1e-6) and a.shape == b.shape for a, b in zip(got[:2], got[2:])), got
    weights = torch.ones(4, requires_grad=True)
    for offsets, words in (([0, 3, 2], "do not fall"), ([1, 3], "begin at 0"), ([0, 5], "at most 4"), ([], "no bags")):
        refused(lambda: bag(torch.tensor([4, 1, 8, 4]), torch.tensor(offsets).long(), weights), "'summed'", words)
    bag.requires_grad_(True)


@case
def surprises(folder):
    """What one would expect of PyTorch's own modules."""
    pstrain.init()
    bag = pstrain.EmbeddingBag("bag", 4, num_embeddings=9)
    rows = pstrain.EmbeddingBag("rows", 1, num_embeddings=9, optimizer="sgd", lr=1.0)
    summed = pstrain.EmbeddingBag("summed", 4, mode="sum", num_embeddings=9)
    padded = pstrain.EmbeddingBag("padded", 4, num_embeddings=9, padding_idx=2)
    padded.load_state_dict(dict(weight=torch.ones(9, 4)))
    twice = dict(weight=torch.ones(3, 4), ids=torch.tensor([1, 5, 1]))
    try:
        bag.load_state_dict(twice)
    except RuntimeError as error:
        assert "two rows of id 1" in str(error), error
    else:
        raise AssertionError("two rows of an id")
    assert not warnings_of(lambda: bag.load_state_dict(dict(weight=torch.ones(9, 4))))
    dying = torch.nn.Sequential(*[torch.nn.Embedding.from_pretrained(torch.full((9, 4), 3.0), sparse=True, freeze=False)
                                  for _ in range(2)])
    check_forgotten(dying)
    listed = torch.nn.ModuleDict({"listed": torch.nn.Embedding(9, 4, sparse=True)})
    others = list(listed.values())
    pstrain.sparse(listed, seed=1)
    refused(lambda: others[0](torch.tensor([1])), "'listed'", "the module before")
    bias = torch.nn.Linear(1, 1)
    optimizer = pstrain.Optimizer([{"params": [each]} for each in bias.named_parameters()], "sgd", lr=1e-3)
    optimizer.start()
    check_default_mode(bag)
    check_ignored(dying[0])
    check_writes(bag)
    check_weights_of_frozen(summed, torch.nn.EmbeddingBag(9, 4, mode="sum"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    with torch.no_grad():
        before, first = rows.weight[1:3] * 1, dying[0].weight * 1
        assert bool((padded.weight == 1).all()) and bool((padded(torch.tensor([[2, 2]])) == 0).all())
        minus = summed(torch.tensor([[1, 2]]), per_sample_weights=torch._neg_view(torch.ones(1, 2)))
        assert torch.equal(minus, -summed(torch.tensor([[1, 2]])))
    for _ in range(3):
        turned = torch.complex(torch.zeros(1, 1), rows(torch.tensor([[2]]))).conj() * (1 + 2j)  # a gradient with a sign bit
        (torch.view_as_real(turned).sum() + rows(torch.tensor([[1]])).sum() + dying[0](torch.tensor([4])).sum()
         + bias(torch.ones(1)).sum()).backward()
        optimizer.step()
        schedule.step()
        rows.set_lr(1.0 * schedule.get_last_lr()[0] / 1e-3)
    optimizer.param_groups[1]["maximize"] = True
    refused(optimizer.step, "maximize differs")
    optimizer.param_groups[1]["maximize"] = False
    optimizer.step()  # gradients of rows count once
    optimizer.zero_grad()
    with torch.no_grad():
        moved, last = before - rows.weight[1:3], dying[0].weight * 1
    assert torch.allclose(moved, torch.tensor(1.11), atol=1e-5), moved
    assert bool((first == 1).all())  # what was loaded last
    assert torch.equal(last[3], torch.full((4,), 0.25)) and float(last[4, 0]) == float(first[4, 0]) - 3, last
    with mock.patch.object(_rows, "MANY", 3):
        lines = warnings_of(lambda: [rows(torch.tensor([[1]])) for _ in range(4)])
    assert len(lines) == 1 and "3 lookups with gradients" in lines[0] and "torch.no_grad()" in lines[0], lines
    say("surprises", "ok")
    pstrain.shutdown()


def by_type(module, deviation=0.02):
    if isinstance(module, torch.nn.Embedding):
        torch.nn.init.normal_(module.weight, std=deviation)


def by_weight(module):
    if hasattr(module, "weight") and module.weight.dim() > 1:
        torch.nn.init.xavier_uniform_(module.weight.data)


def of_others(module):
    if isinstance(module, torch.nn.Linear):
        torch.nn.init.xavier_uniform_(module.weight)


def check_apply(model):
    """First weights that come too late: rank 0 is told once."""
    tells = [lambda call=call: model.apply(call) for call in
             (by_type, functools.partial(by_type, deviation=1), by_weight, lambda each: by_type(each), of_others)]
    for tell, n in zip(tells, (1, 1, 1, 0, 0)):  # what another function does is not looked at
        model[0]._rows._told_of_apply = False
        lines = warnings_of(tell) + warnings_of(tell)
        assert len(lines) == (n if pstrain.rank() == 0 else 0), lines
        assert all("'0'" in line and "nn.Embedding before pstrain.sparse" in line for line in lines), lines


@case
def around(folder):
    """What is done to a model around tables, against PyTorch's own."""
    pstrain.init()
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 1))
    ours = pstrain.sparse(copy.deepcopy(theirs), optimizer="sgd", lr=0.5)
    check_apply(ours)
    ours[1].load_state_dict(theirs[1].state_dict())
    head = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    head[1].load_state_dict(head[0].state_dict())
    optimizer = pstrain.Optimizer([*ours.named_parameters("tower"), *head[0].named_parameters("head")], "sgd", lr=0.1)
    rules = [torch.optim.SGD(theirs[0].parameters(), lr=0.5), torch.optim.SGD([*theirs[1].parameters(), *head[1].parameters()], lr=0.1)]
    ids = torch.tensor([1, 2, 2, 8])

    def step():
        optimizer.zero_grad()
        for rule in rules:
            rule.zero_grad(set_to_none=True)
        for tower, top in (ours, head[0]), (theirs, head[1]):
            out = tower(ids)
            out = top(out.float()).tanh()
            out.pow(2).sum().backward() if out.requires_grad else None
        optimizer.step()
        for rule in rules:
            rule.step()

    for of in True, False, True:
        for tower in ours, theirs:
            assert tower.requires_grad_(of) is tower
        assert not warnings_of(step)
        with torch.no_grad():
            assert torch.allclose(ours[0].weight, theirs[0].weight, atol=1e-6), of
    for each in head[0].parameters():
        each.requires_grad = False
    assert not warnings_of(step)
    for each in ours.parameters():
        each.requires_grad = False
    lines = [*warnings_of(step), *warnings_of(step)]
    assert len(lines) == 1 - pstrain.rank(), lines
    assert all("table '0'." in line and "requires_grad_(False)" in line for line in lines), lines
    say("around", "ok")
    pstrain.shutdown()


@case
def types(folder):
    """Rows of a model of another type, as nn.EmbeddingBag has them."""
    pstrain.init()
    torch.manual_seed(0)
    theirs = torch.nn.ModuleList([torch.nn.EmbeddingBag(9, 4, sparse=True, mode="sum"), torch.nn.Embedding(9, 4, sparse=True)])
    ours = pstrain.sparse(copy.deepcopy(theirs), optimizer="sgd", lr=0.5)
    ours.append(pstrain.Embeddings({"more": dict(dim=2)}))
    rule = torch.optim.SGD(theirs.parameters(), lr=0.5)
    ids = torch.tensor([[1, 2], [2, 8]])
    for change, dtype, far in (("double", torch.float64, 1e-6), ("bfloat16", torch.bfloat16, 0.05), ("half", torch.float16, 0.01),
                               ("float", torch.float32, 1e-6)):
        getattr(ours, change)()
        for place in 0, 1:
            outs = [ours[place](ids), theirs[place](ids)]
            assert outs[0].dtype is dtype and torch.allclose(outs[0].float(), outs[1], atol=far), (change, outs)
            for out in outs:
                (out * 0.25).sum().backward()
        assert ours[2]({"more": ids})["more"].dtype is dtype
        rule.step()
        rule.zero_grad(set_to_none=True)
        ours[0].step()
        assert ours.to("cpu") is ours
    ours.half()
    with torch.no_grad():
        assert ours[0].weight.dtype is torch.float16
        assert ours.state_dict()["0.weight"].dtype is torch.float32
        for mine, wanted in zip(ours, theirs):
            assert torch.allclose(mine.weight.float(), wanted.weight, atol=5e-3)
    ours[0].requires_grad_(False)
    weights = torch.ones(2, 2, requires_grad=True)
    out = ours[0](ids, per_sample_weights=weights)
    out.sum().backward()
    assert out.dtype is torch.float16 and weights.grad.dtype is torch.float32
    say("types", "ok")
    pstrain.shutdown()


@case
def loads_alone(folder):
    """Rank 0's rows count: what only another rank loads would be lost."""
    pstrain.init()
    rows = pstrain.EmbeddingBag("rows", 1, num_embeddings=9)
    if pstrain.rank() == 1:
        rows.load_state_dict(dict(weight=torch.ones(9, 1)))
    rows(torch.tensor([[1]]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.item = torch.nn.Embedding(9, 4, sparse=True, padding_idx=-1)
        self.again = self.item
        self.bag = torch.nn.EmbeddingBag(9, 4, sparse=True, mode="sum", include_last_offset=True)
        self.frozen = torch.nn.Embedding.from_pretrained(torch.ones(3, 4), sparse=True)
        self.fc = torch.nn.Linear(4, 1)


def check_refused():
    """What would not be the same on servers."""
    tied = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    refused(lambda: pstrain.sparse(tied), "'0'", "shares its weight (0.weight, 1.weight)")
    hooked = torch.nn.Embedding(5, 4, sparse=True)
    hooked.register_forward_hook(lambda *_: None)
    scaled = torch.nn.Embedding(5, 4, sparse=True)
    scaled.weight.register_hook(lambda grad: grad / 2)
    saved = torch.nn.Embedding(5, 4, sparse=True)
    saved._register_state_dict_hook(lambda *_: None)
    own = type("Positions", (torch.nn.Embedding,), {"forward": lambda self, ids: ids})
    full = torch.nn.Embedding(5, 4, sparse=True, padding_idx=1)
    torch.nn.init.ones_(full.weight)
    for module, words in ((hooked, "hooks"), (scaled, "a weight with hooks"), (saved, "hooks"),
                          (own(5, 4, sparse=True), "Positions"), (full, "padding_idx, 1, is not zero"),
                          (torch.nn.Embedding(5, 4, sparse=True).double(), "float64")):
        refused(lambda: pstrain.sparse(module), words)
    for options, words in ((dict(num_embeddings=0), "num_embeddings=0"), (dict(padding_idx=1.5), "padding_idx=1.5"),
                           (dict(num_embeddings=3, padding_idx=3), "padding_idx=3 is not one of its 3 rows")):
        refused(lambda: pstrain.EmbeddingBag("no", 4, **options), "'no'", words)


def check_weights_elsewhere():
    """per_sample_weights that are not on the CPU have their gradient where they are."""
    class Call:
        def gradients(self, grads, wants_weights):
            return [torch.ones(2) if wanted else None for wanted in wants_weights]

    weights = torch.ones(2, device="meta", requires_grad=True)
    outs = embedding._Lookup.apply(torch.zeros(0, requires_grad=True), Call(), [torch.zeros(1, 3)], weights)
    outs[0].sum().backward()
    assert weights.grad.device == weights.device


def check_calls(model, optimizer, rows):
    ids = torch.tensor([[1, 2, 3], [3, 0, 8]])
    for given, words in (([[1.5]], "float32"), ([1, 2], "a list for each bag"), (None, "a list for each bag"),
                         ([[1 << 70]], "below 2^63"), (ids[None], "two dimensions")):
        refused(lambda: rows({"user": given}), "'user'", words)
    refused(lambda: rows({"user": ids}, per_sample_weights={"usr": ids}), "no table 'usr'")
    refused(lambda: rows({"user": ids}, per_sample_weights={"user": [1.0]}), "not list")
    for copied in (lambda: copy.deepcopy(model), lambda: pickle.dumps(rows)):
        refused(copied, "state_dict()")
    # A graph that is dropped is freed at once; weights of bags in two dimensions have a gradient.
    gc.disable()
    calls, init = [], embedding._Call.__init__

    def watched(self, *args):
        calls.append(weakref.ref(self))
        init(self, *args)

    embedding._Call.__init__ = watched
    weights = torch.ones(2, 3, requires_grad=True)
    (rows({"user": ids}, per_sample_weights={"user": weights})["user"] * 2).sum().backward()
    assert weights.grad.shape == (2, 3) and weights.grad.any()
    assert len(calls) == 1 and calls[0]() is None
    embedding._Call.__init__ = init
    gc.enable()
    check_weights_elsewhere()
    model.item.requires_grad_(False)
    before = model.state_dict()
    assert not model.item(ids).requires_grad
    model.item.requires_grad_()
    assert model.item is model.again and model.item.padding_idx == 8 and model.item.embedding_dim == 4
    assert "frozen.weight" in before and not hasattr(model.item, "weight") and not hasattr(model.item, "bias")
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.item.weight, before["item.weight"])
        assert model.bag(ids.view(-1), torch.tensor([0, 2, 6])).shape == (2, 4)
    for step in range(2):  # one module at two places; a forward pass without backward; nothing at all on rank 1
        model.bag(ids)
        if pstrain.rank() == 0:
            model.fc(model.item(ids).sum(1) + model.again(ids).sum(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.state_dict()
    moved = (after["item.weight"] != before["item.weight"]).any(1)
    assert moved.tolist() == [True, True, True, True, False, False, False, False, False], moved
    assert torch.equal(after["bag.weight"], before["bag.weight"])
    with torch.no_grad():
        row = rows({"user": [[40]]})["user"]
    with optimizer.join(divide_by_initial_world_size=False):  # rank 0 has two batches, rank 1 one
        for step in range(2 - pstrain.rank()):
            rows({"user": [[40]]})["user"].sum().backward()
            optimizer.step()
    with torch.no_grad():
        assert torch.allclose(rows({"user": [[40]]})["user"], row - 2 * 0.1)
    return after


def check_loads(model, saved):
    rows = {word: saved[f"item.{word}"] for word in ("weight", "ids", "state", "steps")}
    for changed, words in ((dict(weight=torch.ones(4, 4), ids=None, state=None), "there are 4 rows, and it has 9"),
                           (dict(ids=rows["ids"] - 1), "from -1 to 7"), (dict(ids=rows["ids"] + 1), "from 1 to 9"),
                           (dict(state=torch.ones(9, 12)), "12 numbers of state do not fit: adagrad has 4"),
                           (dict(state=torch.ones(2, 4)), "state of shape (2, 4)"), (dict(more=rows["ids"]), "more")):
        try:
            model.item.load_state_dict({k: v for k, v in {**rows, **changed}.items() if v is not None})
        except RuntimeError as error:
            assert words in str(error), (words, str(error))
        else:
            raise AssertionError(words)
    model.item.load_state_dict(rows)


def check_file(rows, folder):
    """What is exported, against the servers' own answers."""
    path = os.path.join(folder, f"rows{pstrain.rank()}")
    rows.export(path)
    served, again = pstrain.rows(path), pstrain.rows(path)
    rows.export(path)  # another file: what is mapped stays
    far = (1 << 62) + 5
    cases = [({"user": torch.tensor([[1, 3, far], [0, 8, 2]])}, None), ({"user": [[], [far, 1], []]}, None),
             ({"user": torch.tensor([1, 1, 2, 77]), "word": torch.tensor([[[7]], [[far]]])}, torch.tensor([0, 0, 3])),
             ({"mean": torch.tensor([5, 6, 6, 1, 6]), "word": torch.zeros(0, dtype=torch.int64)}, {"mean": torch.tensor([0, 2, 3])}),
             ({"mean": torch.zeros(0, dtype=torch.int64)}, torch.zeros(0, dtype=torch.int64))]
    with torch.no_grad():
        for ids, offsets in cases:
            ours, theirs = served(ids, offsets), rows(ids, offsets)
            for name in theirs:
                assert ours[name].shape == theirs[name].shape, name
                assert torch.allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-7), (name, ours[name], theirs[name])
        weights = {"user": torch.tensor([[0.5, -2.0]])}
        ids = {"user": torch.tensor([[3, far]])}
        assert torch.allclose(again(ids, None, weights)["user"], rows(ids, None, weights)["user"], rtol=1e-6)
    assert served.tables["user"][0].tolist() == [0, 1, 2, 3, 8, 40], served.tables
    one = torch.tensor([1])
    for ids, offsets, words in (({"user": -one}, one * 0, "ids from -1"), ({"user": one}, one, "begin at 0"),
                                ({"user": one}, torch.tensor([0, 2]), "at most 1"), ({"other": one}, one, "no table 'other'")):
        refused_by_file(lambda: served(ids, offsets), path, words)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole.replace(b"pstrain.tables", b"pstrain.others"))
    refused_by_file(lambda: pstrain.rows(path), path, "without tables of rows")
    for bad in (b"", b"abc", whole[:40], whole[:-4],
                whole.replace(b'\\"num_embeddings\\": null', b'\\"num_embeddings\\": -5.5'),
                whole.replace(b'\\"padding_idx\\": null', b'\\"padding_idx\\":  1.5'),
                whole.replace(b'\\"number\\": ', b'\\"number\\":-')):
        assert bad != whole
        Path(path).write_bytes(bad)
        refused_by_file(lambda: pstrain.rows(path), path)
    for was, is_now, words in (((2, 3), (3, 2), "id 2 at place 3"), ((1, 2), (2, 2), "id 2 at place 2"), ((0, 1), (-1, 1), "id -1 at place 0")):
        Path(path).write_bytes(whole.replace(struct.pack("<2q", *was), struct.pack("<2q", *is_now)))
        refused_by_file(lambda: pstrain.rows(path), f"user.ids: {words} does not rise from 0")
    os.mkfifo(path + "fifo")
    for source in (path + "no", folder, path + "fifo"):
        refused_by_file(lambda: pstrain.rows(source), source)


def check_memory(rows):
    """Results share memory that is used again; not while anything has a part of it."""
    ids = {"user": torch.arange(4000).view(-1, 1) % 9, "word": torch.zeros(0, 1, dtype=torch.int64), "mean": torch.ones(999, 1).long()}
    with torch.no_grad():
        first, small = rows(ids), rows({name: its[:9] for name, its in ids.items()})
        part, was = first["mean"][3:5], first["mean"][3:5].clone()
        assert torch.equal(first["user"][:9], small["user"]) and first["word"].shape == (0, 1, 2)
        assert first["user"].storage().size() == 4000 * 5 and first["user"].data_ptr() % 64 == first["mean"].data_ptr() % 64 == 0
        place = first["user"].data_ptr()
        del first
        others = [rows({"user": ids["user"] + n, "mean": ids["mean"] + n}) for n in (1, 2, 3)]
        assert torch.equal(part, was) and place not in [each["user"].data_ptr() for each in others]
        del part
        assert rows(ids)["user"].data_ptr() == place


def refused_by_file(call, *parts):
    try:
        call()
    except pstrain.InputError as error:
        assert all(part in str(error) for part in parts), (parts, str(error))
        return
    raise AssertionError(parts)


@case
def edges(folder):
    pstrain.init()
    torch.manual_seed(0)
    check_refused()
    model = pstrain.sparse(Model(), optimizer="adagrad", lr=0.1)
    rows = pstrain.Embeddings({"user": dict(dim=5), "mean": dict(dim=3, mode="mean", padding_idx=6, init="normal", seed=3),
                               "word": dict(dim=2, mode=None)}, optimizer="sgd", lr=0.1)
    optimizer = pstrain.Optimizer([p for p in model.parameters() if p.requires_grad], "sgd", lr=0.1)
    saved = check_calls(model, optimizer, rows)
    check_loads(model, saved)
    check_file(rows, folder)
    check_memory(rows)
    say("edges", "ok")
    pstrain.shutdown()


def bad_line(path, line, *words):
    Path(path).write_bytes(line)
    try:
        list(clicks.batches(clicks.find(path, 0, 0), 4, 0, 1))
    except ValueError as error:
        assert all(word in str(error) for word in (str(path), *words)), (words, str(error))
        return
    raise AssertionError(line)


@case
def data(folder):
    """The example's data."""
    folder = Path(folder)
    lines = [b"\t".join([b"%d" % (i % 2), b"", b"-1", *[b"%d" % (i + k) for k in range(11)], b"ffffffff", b"",
                         *[b"%x" % (i * k) for k in range(24)]]) + b"\n" for i in range(47)]
    path = folder / "click.tsv.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    source = clicks.find(path, 0, 0)
    (counts, ids, labels, truth), n = next(iter(clicks.batches(source, 5, 0, 1)))
    assert truth is None and n == 5 and labels.tolist() == [0, 1, 0, 1, 0]
    assert torch.equal(counts[3], torch.log1p(torch.tensor([0.0, 0, *range(3, 14)])))
    assert ids[3].tolist() == [0xffffffff, 1 << 32, *[3 * k for k in range(24)]]
    # Parts of three workers are the batches of one; nine tenths, and the rest.
    for tests, many in ((False, 43), (True, 4)):
        whole = [batch for batch, _ in clicks.batches(source, 20, 0, 1, tests)]
        parts = [list(clicks.batches(source, 20, rank, 3, tests)) for rank in range(3)]
        assert sum(len(batch[2]) for batch in whole) == many
        for step, batch in enumerate(whole):
            for k in range(3):
                assert torch.equal(batch[k], torch.cat([parts[rank][step][0][k] for rank in range(3)]))
    bad = folder / "bad.tsv"
    bad_line(bad, lines[0] + lines[1].replace(b"ffffffff", b"xyz"), "line 2, column 15", "'xyz' is not an id")
    bad_line(bad, lines[0].replace(b"ffffffff", b"f" * 16), "line 1, column 15", "63 bits")
    bad_line(bad, lines[0].replace(b"-1", b"1.5"), "line 1, column 3", "'1.5' is not a count")
    bad_line(bad, b"2" + lines[0][1:], "line 1, column 1", "'2' is not a label, 0 or 1")
    bad_line(bad, lines[0].replace(b"ffffffff", b"0x1f"), "line 1, column 15", "'0x1f' is not an id")
    bad_line(bad, lines[0].replace(b"-1", b"1_0"), "line 1, column 3", "'1_0' is not a count")
    bad_line(bad, lines[0] + b"\n1\n", "line 3", "1 columns, not 40")
    bad_line(bad, b"", "bad.tsv has no samples")
    bad.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n" + lines[1] + b"\n")  # as ps-worker reads it
    [((_, ids, labels, _), _)] = clicks.batches(clicks.find(bad, 0, 0), 5, 0, 1)
    assert labels.tolist() == [0, 1] and ids[1, 25] == 23
    try:
        list(clicks.batches(clicks.find(bad, 0, 0), 5, 0, 1, tests=True))
        raise AssertionError("taken")
    except ValueError as error:
        assert "has less than 10 samples" in str(error), error
    bad_line(bad, path.read_bytes()[:-20], "cannot be read to its end")
    # MovieLens, two forms.
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n7,40,4.0,1260759179\n")
    (folder / "old").mkdir()
    (folder / "old/ratings.dat").write_text("1::31::2.5::1260759144\n7::40::4.0::1260759179\n")
    read = [clicks.find(place, 0, 0).parse([1, 0]) for place in (folder, folder / "old")]
    for counts, ids, labels, _ in read:
        assert ids.tolist() == [[7, 40], [1, 31]] and labels.tolist() == [1, 0] and counts.shape == (2, 1)
    # AUC by its definition.
    logits, labels = torch.randint(-9, 9, (300,)) / 4, torch.randint(0, 2, (300,)).float()
    scores = clicks.Scores()
    scores.add(logits, labels)
    pairs = logits[labels == 1][:, None] - logits[labels == 0]
    auc, loss = scores.result()
    assert abs(auc - float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)) < 1e-12
    assert abs(loss - float(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels))) < 1e-6
    print("data ok")


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]](sys.argv[2])
