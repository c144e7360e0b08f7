"""A rank of the jobs of test_rows.py: python3 rows_worker.py CASE [WORD...]. Prints what the test reads."""
import copy
import hashlib
import os
import random
import signal
import sys
from pathlib import Path

import torch

import pstrain
from pstrain import job as jobs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cuts  # noqa: E402

CASES = {}
N, BAGS, STEPS = 60, 16, 3  # ids; bags of a rank's batch; steps
TABLES = {"user": (16, "sum"), "item": (5, "mean"), "word": (8, "sum")}
OPTIONS = {"sgd": dict(lr=0.05), "adagrad": dict(lr=0.05, lr_decay=0.1), "sparse_adam": dict(lr=0.05),
           "rowwise_adagrad": dict(lr=0.05)}


def case(run):
    CASES[run.__name__] = run
    return run


def say(word, *what):
    print(f"rank {pstrain.rank()}: {word} {' '.join(str(w) for w in what)}", flush=True)


class Model(torch.nn.Module):
    """word: with weights; item: with padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        for name, (dim, mode) in TABLES.items():
            padding = 0 if name == "item" else None
            setattr(self, name, torch.nn.EmbeddingBag(N, dim, mode=mode, sparse=True, padding_idx=padding))

    def forward(self, batch):
        return [getattr(self, name)(batch[name], batch["offsets"], batch["weights"] if name == "word" else None)
                for name in TABLES]


def batch_of(rank, step):
    """Ids that repeat, empty bags at both ends and within."""
    g = torch.Generator().manual_seed(100 * step + rank)
    n = 90
    offsets = torch.randint(0, n + 1, (BAGS,), generator=g).sort().values
    offsets[0] = offsets[1] = 0
    batch = {name: torch.randint(0, N - 1, (n,), generator=g) for name in TABLES}  # the last id is never looked up
    batch["offsets"], batch["weights"] = offsets, torch.rand(n, generator=g)
    batch["wanted"] = [torch.randn(BAGS, dim, generator=g) for dim, _ in TABLES.values()]
    return batch


def loss_of(outs, batch):
    return sum(((out - wanted) ** 2).sum() for out, wanted in zip(outs, batch["wanted"]))


def in_lookup_order(param):
    """A gradient of PyTorch's, which keeps the lookups apart, summed in their order; and the rows that it has."""
    grad = param.grad
    ids, values = grad._indices()[0], grad._values()
    if grad.is_coalesced() or len(ids) == 0:
        return grad.to_dense(), ids.unique()
    return torch.zeros_like(param).index_add_(0, ids, values), ids.unique()


def make_theirs(rule, params):
    options = OPTIONS[rule]
    if rule == "rowwise_adagrad":
        return None
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "sparse_adam": torch.optim.SparseAdam}[rule]
    return kind(params, **options)


def rowwise(param, grad, ids, sums):
    """FBGEMM's EXACT_ROWWISE_ADAGRAD."""
    for i in ids.tolist():
        sums[i] += (grad[i] * grad[i]).mean()
        param.data[i] -= 0.05 / (sums[i].sqrt() + 1e-8) * grad[i]


def train_alone(model, rule, ranks):
    """PyTorch's own steps, with the sum over the ranks in rank order."""
    params = list(model.parameters())
    theirs, sums = make_theirs(rule, params), {p: torch.zeros(N) for p in params}
    for step in range(STEPS):
        totals = {p: (torch.zeros_like(p), torch.zeros(0, dtype=torch.int64)) for p in params}
        for rank in range(ranks):
            model.zero_grad(set_to_none=True)
            batch = batch_of(rank, step)
            loss_of(model(batch), batch).backward()
            for p in params:
                grad, ids = in_lookup_order(p)
                totals[p] = (totals[p][0] + grad * (1 / ranks), torch.cat([totals[p][1], ids]).unique())
        for p in params:
            grad, ids = totals[p]
            if theirs is None:
                rowwise(p, grad, ids, sums[p])
            p.grad = torch.sparse_coo_tensor(ids[None], grad[ids], p.shape).coalesce()
        if theirs is not None:
            theirs.step()
    return {name: getattr(model, name).weight.detach() for name in TABLES}


def rounds_products():
    """Whether this PyTorch's EmbeddingBag rounds a row times its weight before it adds it, as builds without FBGEMM do
    (Debian 13's); we and FBGEMM do not."""
    bag, weights = torch.nn.EmbeddingBag(2, 64, mode="sum", sparse=True), torch.tensor([0.3, 0.7])
    first, second = bag.weight.detach()
    out = bag(torch.tensor([0, 1]), torch.tensor([0]), weights)[0]
    return torch.equal(out, first * weights[0] + second * weights[1])


def ulps(a, b):
    """The largest distance, in units in the last place of a row's element or of a step's change of it, the larger one."""
    size = torch.maximum(a.abs(), b.abs()).clamp(min=0.05)
    return float(((a - b).abs() / (torch.nextafter(size, torch.tensor(9e9)) - size)).max())


@case
def steps(rule):
    """One module after another, with a loss per rank; PyTorch's steps beside."""
    pstrain.init()
    rank, size = pstrain.rank(), pstrain.size()
    alone = Model()
    model = pstrain.sparse(Model(), optimizer=rule, **OPTIONS[rule])
    if rank > 0:  # rank 0's first rows count
        for load in model.user._rows._loads:
            load.values.zero_()
    for step in range(STEPS):
        batch = batch_of(rank, step)
        loss_of(model(batch), batch).backward()
        model.user.step()
    got = model.state_dict()
    wanted = train_alone(alone, rule, size)
    equal = [name for name in TABLES if name != "word" or not rounds_products()]
    worst = max(ulps(got[f"{name}.weight"], wanted[name]) for name in equal)
    same = all(torch.equal(got[f"{name}.weight"], wanted[name]) for name in equal)
    say("ulps", worst, same)
    say("ids", all(torch.equal(got[f"{name}.ids"], torch.arange(N)) for name in TABLES))
    if rank == 0:
        model.user.export(sys.argv[3])
    pstrain.shutdown()


def cut_one(draw):
    """One of this process's connections."""
    fd, *_ = draw.choice(cuts.connections(os.getpid()))
    cuts.cut(os.getpid(), fd, hard=draw.random() < 0.5)


@case
def grown(rule):
    """Tables that begin empty, by three codecs; all in one message, which is cut in pieces; the dense part beside. With the word "cut",
    connections are lost all the time; with "ahead", rows are asked for before the step that needs them."""
    jobs.listen()
    pstrain.init()
    rank = pstrain.rank()
    draw = random.Random(rank)
    tables = {"a": dict(dim=17, codec="int8"), "b": dict(dim=4, mode="mean", optimizer="sgd"), "c": dict(dim=3, mode=None, codec="fp16")}
    rows = pstrain.Embeddings(tables, optimizer=rule, lr=0.1, seed=7)
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(17 + 4 + 3, 2), torch.nn.Linear(2, 1))
    optimizer = pstrain.Optimizer(dense.named_parameters(), "sgd", lr=0.1)
    def ids_of(step):
        g = torch.Generator().manual_seed(100 * step + rank)
        n = 16000 if step % 4 == 1 else 20  # of a: 512 KiB and more to each shard
        ids = {name: torch.randint(0, 1 << 40, (n,), generator=g) % (1 << (40 if name == "a" else 6)) for name in "abc"}
        return {"a": ids["a"].view(-1, 2), "b": ids["b"].view(-1, 2), "c": ids["c"][:n // 2]}

    for step in range(8):
        out = rows(ids_of(step))
        if "ahead" in sys.argv[4:] and (step + rank) % 3:
            rows.prefetch(ids_of(step + 1))
        if "cut" in sys.argv[4:]:
            cut_one(draw)
        dense(torch.cat(list(out.values()), 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "cut" in sys.argv[4:]:
            cut_one(draw)
    if rank == 0:
        rows.export(sys.argv[3])
        say("hash", hashlib.sha256(open(sys.argv[3], "rb").read()).hexdigest()[:16],
            hashlib.sha256(dense[0].weight.detach().numpy().tobytes()).hexdigest()[:16])
    pstrain.shutdown()


@case
def dies(rule):
    """A State has the rows, too: with the word "kill" rank 1 dies in the first attempt."""
    pstrain.init()
    rank = pstrain.rank()
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"rows": pstrain.Embeddings({"a": dict(dim=6, codec="int8")}, optimizer=rule, lr=0.1),
                                 "dense": torch.nn.Linear(6, 1)})
    optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=0.1)
    state = pstrain.State(model, optimizer, step=0)
    state.sync()
    while state.step < 7:
        if sys.argv[4:] == ["kill"] and rank == 1 and state.step == 5 and not int(os.environ["TORCHELASTIC_RESTART_COUNT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        g = torch.Generator().manual_seed(100 * state.step + rank)
        ids = torch.randint(0, 1 << 40, (40,), generator=g) % (state.step * 20 + 9)
        model["dense"](model["rows"]({"a": ids.view(20, 2)})["a"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        if state.step % 2 == 0:
            state.commit()
    if rank == 0:
        model["rows"].export(sys.argv[3])
    pstrain.shutdown()


def refused(call, *parts, kind=pstrain.InputError):
    try:
        call()
    except kind as error:
        missing = [part for part in (*parts, f"rank {pstrain.rank()}: ") if part not in str(error)]
        assert not missing, (missing, str(error))
        return
    raise AssertionError(f"not refused: {parts}")


def used_scaler():
    """As one on a GPU is after scale(loss)."""
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    scaler._enabled, scaler._scale = True, torch.tensor(4.0)
    return scaler


class Jagged:
    """A torchrec.KeyedJaggedTensor of user's bags [3, 4], [] and [5]: what is asked of it, and of its JaggedTensor."""

    def keys(self):
        return ["user"]

    def to_dict(self):
        return {"user": self}

    def values(self):
        return torch.tensor([3, 4, 5])

    def offsets(self):
        return torch.tensor([0, 2, 2, 3])

    def weights_or_none(self):
        return torch.tensor([1.0, 2.0, 3.0])

    weights = weights_or_none


@case
def misuse():
    """Each is refused with a sentence, and the job goes on."""
    pstrain.init()
    table = dict(dim=4)
    for options, words in ((dict(mode="max"), ("'user'", "sparse gradient of max")), (dict(dim=0), ("dim=0",)),
                           (dict(weight_decay=0.1), ("weight_decay", "rows that have none")), (dict(momentum=0.9), ("momentum",)),
                           (dict(optimizer="adamw"), ("adamw", "sparse_adam")), (dict(lr=-1.0), ("lr=-1.0",)),
                           (dict(betas=(0.9, 0.999)), ("no option 'betas'",)), (dict(init="xavier"), ("xavier",)),
                           (dict(codec="bf16"), ("codec='bf16'", "int8"))):
        refused(lambda: pstrain.Embeddings({"user": {**table, **options}}), *words)
    refused(lambda: pstrain.Embeddings({}), "needs a dict of tables")
    refused(lambda: pstrain.Embeddings({"user": 16}), "'user' is 16")
    refused(lambda: pstrain.sparse(torch.nn.Linear(2, 2)), "sparse=True")
    refused(lambda: pstrain.sparse(torch.nn.Embedding(5, 2, sparse=True, max_norm=1.0)), "max_norm")
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4, sparse=True, mode="sum"), torch.nn.Linear(4, 1))
    for params in (model.named_parameters(), model.parameters(), list(model.parameters())):
        refused(lambda: pstrain.Optimizer(params, "sgd"), "pstrain.sparse(model)", "sparse=True")
    pstrain.sparse(model, optimizer="sgd", lr=1.0)
    rows = pstrain.Embeddings({"user": table, "item": dict(dim=4, mode=None)})
    refused(lambda: pstrain.Embeddings({"user": table}), "two tables", "'user'")
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=1.0)
    one, bag = torch.tensor([1]), torch.tensor([0])
    for ids, offsets, words in (
            ({"user": one.float()}, bag, ("'user'", "float32", "int64")), ({"user": one}, None, ("offsets",)),
            ({"user": one}, bag.float(), ("offsets are float32",)), ({"user": -one}, bag, ("user", "id -1 at place 0", "negative")),
            ({"user": one}, torch.tensor([1]), ("user", "offset")), ({"user": one.repeat(4)}, torch.tensor([0, 3, 2]), ("user",)),
            ({"user": one}, torch.tensor([0, 9]), ("user",)), ({"other": one}, bag, ("'other'", "user")),
            ({"user": one.view(1, 1)}, bag, ("leave out the offsets",)), ([one], bag, ("dict by table",))):
        refused(lambda: rows(ids, offsets), *words)
    refused(lambda: model[0](torch.tensor([9]), bag), "id 9", "not below 9")
    refused(lambda: rows({"user": one}, bag, {"user": torch.ones(2)}), "per_sample_weights", "(1,)")
    refused(rows.step, "optimizer.step()")
    # What is no fault: bags and batches without ids, lists, int32.
    out = rows({"user": [[], [3, 4], []], "item": torch.zeros(0, dtype=torch.int32)})
    assert out["user"].shape == (3, 4) and out["item"].shape == (0, 4), out
    assert not out["user"][0].any() and out["user"][1].any()
    one_each = rows({"user": [[3], [4], [5]]})["user"]
    assert torch.allclose(rows(Jagged())["user"], torch.stack([one_each[0] + 2 * one_each[1], 0 * one_each[0], 3 * one_each[2]]))
    refused(lambda: rows(Jagged(), bag), "Jagged has offsets and weights of its own")
    loss = out["user"].sum() + model(torch.tensor([[1, 1, 2]])).sum()
    loss.backward()
    scaler = used_scaler()
    refused(optimizer.step, "GradScaler", "by 4")
    del scaler
    late = rows({"user": one}, bag)["user"].sum()
    optimizer.step()
    refused(late.backward, "table user", "call backward() before step()")
    optimizer.add_param_group({"params": [("more", torch.nn.Parameter(torch.zeros(1)))]})
    refused(optimizer.start, "'more' cannot be added", "or be unfrozen in it for the first time")
    say("misuse", "ok")
    pstrain.shutdown()


@case
def differ(what):
    """A table that differs between the ranks."""
    pstrain.init()
    other = {"dim": dict(dim=8), "optimizer": dict(dim=4, optimizer="sgd"), "seed": dict(dim=4, seed=1), "codec": dict(dim=4, codec="int8"),
             "mode": dict(dim=4, mode="mean"), "padding_idx": dict(dim=4, padding_idx=1)}[what]
    rows = pstrain.Embeddings({"user": other if pstrain.rank() else dict(dim=4)}, optimizer="adagrad")
    rows({"user": torch.tensor([[1]])})


@case
def resume(rule):
    """Two steps, a state_dict, two more; and in a second table two steps from the state: the same rows. Also rows of an
    nn.EmbeddingBag, and what a plain module takes back."""
    pstrain.init()
    rank = pstrain.rank()
    model = pstrain.sparse(Model(), optimizer=rule, **OPTIONS[rule])
    again = pstrain.EmbeddingBag("again", 16, mode="sum", num_embeddings=N, optimizer=rule, **OPTIONS[rule])

    def step(module, number):
        batch = batch_of(rank, number)
        ((module(batch["user"], batch["offsets"]) - batch["wanted"][0]) ** 2).sum().backward()

    saved = None
    for number in range(4):
        step(model.user, number)
        model.user.step()
        if number == 1:
            saved = {k: v.clone() for k, v in model.user.state_dict().items()}
    again.load_state_dict(saved)
    for number in range(2, 4):
        step(again, number)
        again.step()
    a, b = model.user.state_dict(), again.state_dict()
    say("same", all(torch.equal(a[k], b[k]) for k in a), sorted(a) == sorted(b))
    plain = torch.nn.EmbeddingBag(N, 16, mode="sum")
    plain.load_state_dict({"weight": a["weight"]})
    with torch.no_grad():
        ids = torch.arange(N).view(20, 3)
        say("plain", torch.equal(plain(ids), model.user(ids)))
        again.load_state_dict({"weight": plain.weight + 1})
        say("taken", torch.equal(again(ids.view(-1, 1)), plain.weight + 1))
    pstrain.shutdown()


@case
def no_ids():
    """A step in which no rank has ids of a table counts, as in PyTorch."""
    pstrain.init()
    torch.manual_seed(2)
    plain = torch.nn.Embedding(9, 4, sparse=True)
    ours = pstrain.sparse(copy.deepcopy(plain), optimizer="sparse_adam", lr=0.1)
    theirs = torch.optim.SparseAdam(plain.parameters(), lr=0.1)
    for ids in ([1, 2], [], [2, 3]):
        theirs.zero_grad()
        for module, rule in ((ours, ours), (plain, theirs)):
            module(torch.tensor(ids, dtype=torch.int64)).square().sum().backward()
            rule.step()
    with torch.no_grad():
        say("far", float((ours.weight - plain.weight).abs().max()))
    pstrain.shutdown()


def apart(step, call, *parts):
    """Rank 1 is a step ahead while all call it: they are told."""
    if pstrain.rank() == 1:
        step()
    refused(call, *parts, kind=pstrain.PeerError)
    if pstrain.rank() == 0:
        step()


@case
def back():
    """Rows alone, without an Optimizer: they go back with a State within the job; what is loaded is what the next lookup sees,
    also where it was asked for ahead."""
    pstrain.init()
    rows = pstrain.EmbeddingBag("user", 4, mode="sum", num_embeddings=9, optimizer="adagrad", lr=0.1)
    state, ids = pstrain.State(rows, step=0), torch.arange(9).view(3, 3)
    state.sync()

    def step():
        rows(ids).square().sum().backward()
        rows.step()

    scaler = used_scaler()
    refused(step, "GradScaler", "by 4")
    del scaler
    rows.zero_grad()
    step()
    apart(step, state.commit, "rank 0 at its commit 1, step 1 of the rows", "rank 1 at its commit 1, step 2 of the rows")
    state.commit()
    kept = {key: value.clone() for key, value in rows.state_dict().items()}
    step()
    apart(step, state.restore, "on rank 0 after 3 steps of the rows, on rank 1 after 4")
    state.restore()
    now = rows.state_dict()
    say("back", all(torch.equal(kept[key], now[key]) for key in kept), rows._rows.steps)
    torch.manual_seed(3)
    plain = torch.nn.EmbeddingBag(9, 4, mode="sum")
    rows(ids).sum().backward()
    rows.prefetch(ids)
    rows.step()
    rows.load_state_dict(plain.state_dict())
    loaded = [torch.allclose(rows(ids), plain(ids), atol=1e-6)]
    with torch.no_grad():
        plain.weight += 1
    if pstrain.rank() == 1:
        rows.prefetch(ids)
    rows.load_state_dict(plain.state_dict())  # in the middle of a step
    rows.step()
    say("loaded", *loaded, torch.allclose(rows(ids), plain(ids), atol=1e-6))
    pstrain.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]](*sys.argv[2:3])
