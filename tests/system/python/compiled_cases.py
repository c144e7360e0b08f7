"""Cases of worker.py: what torch.compile makes of a model."""
import contextlib
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
from cases import RANK, SIZE, case, digest, refused, say

WIDTH = 600  # a layer has more than 1 MiB, the least that DDP lets a bucket have
MB = 1


class Layers(nn.Module):
    """PyTorch compiles no forward() of its own modules within DistributedDataParallel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.all = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        for layer in self.all:
            x = torch.tanh(layer(x))
        return x


def listening(events):
    """A compiler that leaves graphs as they are, and tells when the backward pass of one begins."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def backward(graph, _):
        def call(*args):
            events.append("backward")
            return graph(*args)
        return make_boxed_func(call)

    return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=backward)


def parts_of(events):
    """How many gradients, or buckets, left after each backward pass of a graph."""
    parts = []
    for event in events:
        if event == "backward":
            parts.append(0)
        else:
            parts[-1] += 1
    return parts


@contextlib.contextmanager
def pushes_in(events):
    from pstrain._session import Session

    with contextlib.ExitStack() as stack:
        for name in ("push", "push_copy"):
            def tell(*args, call=getattr(Session, name)):
                events.append("left")
                return call(*args)
            stack.enter_context(mock.patch.object(Session, name, tell))
        yield


def hook(events):
    def tell(state, bucket):
        events.append("left")
        return pstrain.comm_hook(state, bucket)
    return tell


def by_gloo(backend, events):
    dist.init_process_group("gloo")
    model = DDP(Layers(), bucket_cap_mb=MB)
    return train(model, torch.compile(model, backend=backend), sgd(model), events)


def by_us(way, backend, events):
    if way == "parts":
        pstrain.init()
        model = Layers()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.5, momentum=0.9)
        return train(model, torch.compile(model, backend=pstrain.in_parts(MB, backend)), optimizer, events)
    if way == "group":
        # In the store that is there: a rank that ends its group first would find the other's, which is about to end.
        store = dist.PrefixStore("ours", dist.distributed_c10d._get_default_store())
        dist.destroy_process_group()
        dist.init_process_group("pstrain", store=store, rank=RANK, world_size=SIZE)
    else:
        pstrain.init()
    model = DDP(Layers(), bucket_cap_mb=MB)
    if way == "hook":
        model.register_comm_hook(None, hook(events))
    return train(model, torch.compile(model, backend=backend), sgd(model), events)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def train(model, call, optimizer, events):
    """Losses and weights; the events are those of the last step."""
    losses = []
    for step in range(4):
        images = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + RANK))
        optimizer.zero_grad()
        loss = (call(images) - 0.1).pow(2).mean()
        events.clear()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, digest(getattr(model, "module", model))


@case
def compiled_by():
    """worker.py compiled_by WAY BACKEND: some steps by DDP over Gloo, and by us. Says what left when."""
    way, name = sys.argv[2:]
    events = []
    backend = listening(events) if name == "listening" else name
    theirs = by_gloo(backend, [])
    torch._dynamo.reset()
    with pushes_in(events):
        ours = by_us(way, backend, events)
    say("parts", *(parts_of(events) if "backward" in events else "?"))
    if way == "parts":
        assert torch.allclose(torch.tensor(ours[0]), torch.tensor(theirs[0]), rtol=0, atol=1e-6), (ours, theirs)
    else:
        assert ours == theirs, (ours, theirs)
    say("fine")


@case
def parts_refused():
    wrong = pstrain.InputError
    for mb in (0, -1, "25", True, float("nan"), float("inf")):
        refused(wrong, ["mb=", "above 0"], lambda mb=mb: pstrain.in_parts(mb))
    refused(wrong, ["backend='no'", "does not know"], lambda: pstrain.in_parts(backend="no"))
    say("fine")


class Rows(nn.Module):
    """Two lookups, one of them with weights that are trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.item = nn.Embedding(10, 4, sparse=True, padding_idx=3)
        self.bag = nn.EmbeddingBag(10, 4, sparse=True, mode="sum")
        self.fc = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, items, bags):
        return self.fc(torch.tanh(self.item(items) + self.bag(bags, per_sample_weights=self.scale.expand(bags.shape)))).pow(2).mean()


@case
def rows_compiled():
    """A compiled model with tables on the servers against PyTorch's own, which sees all ranks' samples. Says how many graphs
    and graph breaks the first step made, and graphs all of them, whose batches have other sizes."""
    counters = __import__("torch._dynamo.utils")._dynamo.utils.counters
    pstrain.init()
    theirs, ours = Rows(), pstrain.sparse(Rows(), optimizer="sgd", lr=0.5)
    optimizer = pstrain.Optimizer(ours.named_parameters(), "sgd", lr=0.1)
    rules = [torch.optim.SGD([theirs.item.weight, theirs.bag.weight], lr=0.5),
             torch.optim.SGD([*theirs.fc.parameters(), theirs.scale], lr=0.1)]
    compiled, said = torch.compile(ours, backend="aot_eager"), []
    for step in range(12):
        def samples(rank, n=3 + step % 5):
            numbers = torch.Generator().manual_seed(10 * step + rank)
            return torch.randint(10, (n,), generator=numbers), torch.randint(10, (n, 2), generator=numbers)

        optimizer.zero_grad()
        loss = compiled(*samples(RANK))
        loss.backward()
        optimizer.step()
        said = said or [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
        losses = [theirs(*samples(rank)) for rank in range(SIZE)]
        theirs.zero_grad(set_to_none=True)
        (sum(losses) / SIZE).backward()
        for rule in rules:
            rule.step()
        assert torch.allclose(loss, losses[RANK], atol=1e-6), (step, loss, losses)
        with torch.no_grad():
            assert torch.allclose(compiled(*samples(0)), theirs(*samples(0)), atol=1e-6)
    with torch.no_grad():
        for (name, mine), wanted in zip([("item", ours.item.weight), ("bag", ours.bag.weight), *ours.named_parameters()],
                                        [theirs.item.weight, theirs.bag.weight, theirs.scale, *theirs.fc.parameters()]):
            assert torch.allclose(mine, wanted, atol=1e-5), name
    say("graphs", *said, counters["stats"]["unique_graphs"])
    pstrain.shutdown()
