"""Cases of worker.py: the calls of a process group, beside Gloo's."""
import gc
import os
import sys
import tempfile
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import pstrain
from cases import RANK, SIZE, case, refused, say

NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


def numbers(shape, dtype=torch.float32, rank=RANK):
    g = torch.Generator().manual_seed(rank)
    return (torch.rand(shape, generator=g) * 100).to(dtype)


def others():
    return [r for r in range(SIZE) if r != RANK]


def by_rank(n, make):
    return [make(n) for _ in range(SIZE)]


def calls(group, n, dtype):
    """What each call gives; of a group of all."""
    x = numbers(n, dtype)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        y = x.clone()
        dist.all_reduce(y, op, group=group)
        yield y
    y = x.clone()
    dist.reduce(y, SIZE - 1, group=group)
    yield y if RANK == SIZE - 1 else None  # Gloo leaves parts of sums elsewhere
    y = x.clone()
    dist.broadcast(y, SIZE - 1, group=group)
    yield y
    parts = by_rank(n, lambda n: torch.empty(n, dtype=dtype))
    yield torch.stack(dist.all_gather(parts, x, group=group, async_op=True).get_future().wait())
    yield torch.stack(parts)
    parts = by_rank(n, lambda n: torch.empty(n, dtype=dtype)) if RANK == 0 else None
    work = dist.gather(x, parts, 0, group=group, async_op=True)
    kept = work.get_future().wait()
    yield torch.stack(kept) if RANK == 0 else None
    y = torch.empty(n, dtype=dtype)
    dist.scatter(y, [x + r for r in range(SIZE)] if RANK == 0 else None, 0, group=group)
    yield y
    sizes = [(RANK + 1) * (r + 2) for r in range(SIZE)], [(r + 1) * (RANK + 2) for r in range(SIZE)]
    y = torch.empty(sum(sizes[1]), n, dtype=dtype)
    dist.all_to_all_single(y, numbers((sum(sizes[0]), n), dtype), sizes[1], sizes[0], group=group)
    yield y
    y = torch.empty(SIZE * 2, n, dtype=dtype)
    dist.all_to_all_single(y, numbers((SIZE * 2, n), dtype), group=group)
    yield y


@case
def every_call():
    """The same numbers as Gloo's: for two ranks the same bits."""
    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        for n in (1, 5, 40001):
            for i, (ours, theirs) in enumerate(zip(calls(None, n, dtype), calls(gloo, n, dtype))):
                exact = SIZE == 2 or not dtype.is_floating_point
                same = ours is theirs is None or (torch.equal if exact else torch.allclose)(ours, theirs)
                assert same, (i, dtype, n, ours, theirs)
    for dtype in (torch.float16, torch.bfloat16):  # in float32, rounded once
        x = numbers(40001, dtype)
        dist.all_reduce(x)
        assert torch.equal(x, sum(numbers(40001, dtype, r).float() for r in range(SIZE)).to(dtype))
    x = torch.complex(*numbers((2, SIZE, 3), torch.float64))  # as Gloo since PyTorch 2.15
    wanted = sum(torch.complex(*numbers((2, SIZE, 3), torch.float64, r)) for r in range(SIZE))
    y, z = torch.empty(3, dtype=x.dtype), torch.empty(1, 3, dtype=x.dtype)
    dist.reduce_scatter(y, list(x))
    getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)(z, x)
    dist.reduce(x, SIZE - 1)
    assert torch.equal(y, wanted[RANK]) and torch.equal(z[0], y) and (RANK < SIZE - 1 or torch.equal(x, wanted))
    bits = torch.tensor([True, RANK == 1])
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    assert bits.tolist() == [SIZE % 2 == 1, True], bits
    bits = torch.tensor([RANK + 1])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.item() == (3 if SIZE < 4 else 7), bits
    ordered_otherwise(gloo)
    onto_themselves()
    scattered()
    point_to_point()
    subgroups()
    coalesced()
    say("fine")
    pstrain.shutdown()


def ordered_otherwise(gloo):
    """Dense tensors whose memory has another order than their shape: Gloo's numbers, and also where ranks have different
    orders, which Gloo mixes up."""
    orders = (lambda x: x.contiguous(memory_format=torch.channels_last),
              lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
              lambda x: x.repeat_interleave(2, 3)[..., ::2], torch.clone)
    last, shape = SIZE - 1, (2, 40, 9, 5)
    mine, after, before = numbers(shape, torch.int32), (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for order in orders[:2]:
        for call in (dist.reduce, dist.broadcast, lambda x, _, group: dist.all_reduce(x, group=group)):
            ours, theirs = order(mine), order(mine)
            call(ours, last, group=None), call(theirs, last, group=gloo)
            assert call is dist.reduce and RANK < last or torch.equal(ours, theirs), (call, ours, theirs)
    for turn in range(len(orders)):
        own, other = orders[(RANK + turn) % 4], orders[(RANK + turn + 1) % 4]
        x, y, z = own(mine), other(mine), own(torch.cat([mine] * SIZE))
        dist.all_reduce(x)
        assert torch.equal(x, sum(numbers(shape, torch.int32, r) for r in range(SIZE)))
        dist.scatter(x, [other(mine + r) for r in range(SIZE)] if RANK == 0 else None, 0)
        assert torch.equal(x, numbers(shape, torch.int32, 0) + RANK)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, y, after), dist.P2POp(dist.irecv, x, before)]):
            work.wait()
        assert torch.equal(x, numbers(shape, torch.int32, before))
        getattr(dist, "all_gather_into_tensor", dist._all_gather_base)(z, y)
        assert torch.equal(z, torch.cat([numbers(shape, torch.int32, r) for r in range(SIZE)]))
        dist.all_to_all_single(z, z.clone())
        getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)(x, z)
        assert torch.equal(x, sum(numbers(shape, torch.int32, r) for r in range(SIZE)))


def onto_themselves():
    """What comes goes to where something is sent from."""
    def begun(call, *args):  # by rank 0 before the others, to which its part has come by then
        if RANK:
            dist.recv(torch.empty(1), 0)
        work = call(*args, async_op=True)
        for r in others() if RANK == 0 else ():
            dist.send(torch.ones(1), r)
        work.wait()

    n = 70000
    x = [numbers(n, rank=10 * RANK + r) for r in range(SIZE)]
    begun(dist.all_to_all, x, list(x))
    for r in range(SIZE):
        assert torch.equal(x[r], numbers(n, rank=10 * r + RANK))
    begun(dist.all_gather, x, x[0])
    for r in range(SIZE):
        assert torch.equal(x[r], numbers(n, rank=r))
    x = [numbers(n, torch.int64, 10 * RANK + r) for r in range(SIZE)]
    begun(dist.reduce_scatter, x[0], list(x))
    assert torch.equal(x[0], sum(numbers(n, torch.int64, 10 * r + RANK) for r in range(SIZE)))
    x = [numbers(n, rank=r) for r in range(SIZE)]
    dist.scatter(x[1], x if RANK == 0 else None, 0)
    assert torch.equal(x[1], numbers(n, rank=RANK))


def scattered():
    """reduce_scatter, which Gloo has not in all versions; and lists whose tensors are not contiguous."""
    whole = [torch.stack([numbers(5001, rank=10 * r + k) for k in range(SIZE)]) for r in range(SIZE)]
    wanted = whole[0].clone()
    for other in whole[1:]:
        wanted += other  # in rank order
    out = torch.empty(5001)
    dist.reduce_scatter(out, list(whole[RANK].t().contiguous().t()))
    assert torch.equal(out, wanted[RANK])
    single = getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)
    single(out, whole[RANK].reshape(-1))
    assert torch.equal(out, wanted[RANK])
    columns = torch.empty(5001, SIZE)
    dist.all_to_all(list(columns.t()), list(whole[RANK]))
    assert torch.equal(columns.t(), torch.stack([whole[r][RANK] for r in range(SIZE)]))
    into = getattr(dist, "all_gather_into_tensor", dist._all_gather_base)
    gathered = torch.empty(SIZE * 5001)
    gathered.view(SIZE, -1)[RANK] = whole[0][RANK]
    into(gathered, gathered.view(SIZE, -1)[RANK])  # in place, as FSDP does it
    assert torch.equal(gathered.view(SIZE, -1), whole[0])
    gathered = torch.empty(SIZE, 5001) if RANK == SIZE - 1 else torch.empty(0)
    if NEW:
        dist.gather_single(whole[0][RANK], gathered, SIZE - 1)
    else:
        dist.group.WORLD.gather_single(gathered, whole[0][RANK], SIZE - 1).wait()
    assert RANK < SIZE - 1 or torch.equal(gathered, whole[0])


def point_to_point():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    large, got = numbers(300000), torch.empty(300000)  # more than the links hold
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, large, after), dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    assert torch.equal(got, numbers(300000, rank=before))
    works = [dist.isend(torch.full((3,), 10. * tag + RANK), after, tag=tag) for tag in (1, 2, 3)]
    works.append(dist.isend(torch.empty(0), after, tag=4))
    dist.barrier()
    x = torch.empty(3)
    for tag in (3, 1):
        dist.recv(x, before, tag=tag)
        assert x.tolist() == [10. * tag + before] * 3, x
    assert dist.recv(x, tag=2) == before and x[0] == 20 + before, x
    assert dist.recv(torch.empty(0), tag=4) == before
    for work in works:
        work.wait()


def subgroups():
    pairs = [dist.new_group([r, r + 1]) for r in range(0, SIZE - 1, 2)]
    if RANK < 2 * len(pairs):
        x, pair = torch.ones(70000) * RANK, pairs[RANK // 2]
        dist.all_reduce(x, group=pair)
        assert x[-1] == 2 * (RANK // 2 * 2) + 1 and dist.get_rank(pair) == RANK % 2, x
        dist.broadcast(x, RANK // 2 * 2 + 1, group=pair)  # a rank of the world
    both = [torch.ones(70000), torch.full((70000,), 10.)]
    two = dist.new_group(), dist.new_group()
    order = (0, 1) if RANK == 0 else (1, 0)
    for work in [dist.all_reduce(both[i], group=two[i], async_op=True) for i in order]:
        work.wait()
    assert (both[0] == SIZE).all() and (both[1] == 10 * SIZE).all(), (both[0][0], both[1][0])


def coalesced():
    """Several calls, one Work: not before its end, and also where a call between is wrong."""
    group = dist.new_group()
    for size in (3, 5000):
        for world in (group, dist.group.WORLD):
            x, y = torch.full((size,), RANK + 1.), torch.full((size,), RANK * 10.)
            parts = by_rank(size, torch.empty)
            world.start_coalescing()
            world.allreduce([x])
            world.broadcast([y], SIZE - 1)
            world.allgather([[part.t() for part in parts]], [torch.full((size,), RANK - 1.)])
            world.end_coalescing().wait()
            assert (x == SIZE * (SIZE + 1) / 2).all() and (y == 10. * SIZE - 10).all(), (x, y)
            assert [part[-1].item() for part in parts] == [r - 1. for r in range(SIZE)]
    group.start_coalescing()
    refused(pstrain.InputError, ["one place of memory"], lambda: group.broadcast([torch.ones(1).expand(2)], 0))
    x = torch.full((5000,), RANK + 1.)  # whoever handles that goes on
    group.broadcast([x], SIZE - 1).wait()
    assert (x == SIZE).all(), x


def left_amid():
    """The first part of a call fails, and the second one comes later: not into memory that has another use by then."""
    world, store, n = dist.group.WORLD, dist.distributed_c10d._get_default_store(), 1000
    if RANK == 0:
        world.broadcast([torch.ones(3)], 0).wait()
        store.wait([f"left {r}" for r in others()])
        world.broadcast([torch.ones(n)], 0).wait()
    else:
        refused(pstrain.PeerError, ["worker 0"], lambda: world.broadcast([torch.ones(4), torch.empty(n)], 0).wait())
        gc.collect()
        mine = [torch.full((n,), 7.) for _ in range(20)]
        store.set(f"left {RANK}", "")
    dist.barrier()
    assert RANK == 0 or all((x == 7).all() for x in mine)


@case
def odd_calls():
    """Arguments that are wrong, and Works that nobody waits for."""
    dist.init_process_group("pstrain")
    world, one = dist.group.WORLD, torch.ones(3)
    for words, call in (
            (["9 is not the rank"], lambda: world.send([one], 9, 0)),
            ([f"{RANK} is not the rank"], lambda: world.recv([one], RANK, 0)),
            (["9 is not a rank", "broadcast"], lambda: world.broadcast([one], 9)),
            (["all_to_all", "3 rows"], lambda: dist.all_to_all_single(one, one, [1] * SIZE, [1] * SIZE)),
            (["all_to_all", "sizes"], lambda: dist.all_to_all_single(one, one, [3], [3])),
            (["all_to_all", "3 rows", "[4, -1]"], lambda: dist.all_to_all_single(
                one, one, [4, -1] + [0] * (SIZE - 2), [4, -1] + [0] * (SIZE - 2))),
            (["all_to_all", "no dimension"], lambda: dist.all_to_all_single(torch.tensor(1.), torch.tensor(1.))),
            (["all_to_all", "own part"], lambda: dist.all_to_all_single(
                torch.ones(SIZE + 1), torch.ones(SIZE + 1), [1 + (r == RANK) for r in range(SIZE)],
                [1 + (r == others()[0]) for r in range(SIZE)])),
            (["all_to_all", "torch.float64 and torch.float32"],
             lambda: world.alltoall_base(torch.ones(SIZE), torch.ones(SIZE).double(), [], [])),
            (["reduce_scatter", "float64"], lambda: world._reduce_scatter_base(one, torch.ones(3 * SIZE).double())),
            (["all_gather", "do not fit"], lambda: world._allgather_base(torch.ones(4), one)),
            (["one place of memory"], lambda: dist.recv(torch.ones(3, 1).expand(3, 2), others()[0])),
            (["of all_reduce", "is complex"], lambda: world.allreduce([torch.ones(2, dtype=torch.complex64)], dist.ReduceOp.MAX))):
        refused(pstrain.InputError, words, call)
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    for call in (lambda: alone.send([one], 0, 0), lambda: alone.recv([one], 0, 0), lambda: alone.recv_anysource([one], 0)):
        refused(pstrain.InputError, ["not the rank of another member"], call)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1), process_group=alone)
    ddp.register_comm_hook(None, pstrain.comm_hook)
    refused(Exception, ["comm_hook", f"of 1 of the job's {SIZE} workers"], lambda: ddp(torch.ones(1, 2)).sum().backward())
    for n in (3, 300000):  # as many bytes of another type
        own = torch.ones(n, dtype=torch.int32 if RANK == SIZE - 1 else torch.float32)
        work = dist.broadcast(own, 0, async_op=True)
        if RANK == SIZE - 1:
            refused(pstrain.PeerError, ["broadcast", "another type"], work.wait)
        dist.barrier()
        work = world.allgather([[torch.empty_like(own) for _ in range(SIZE)]], [own])
        refused(pstrain.PeerError, ["all_gather", "another type"], work.wait)
    own = torch.tensor([2], dtype=torch.bfloat16)  # a rank's own results go on
    dist.broadcast(own, 0)
    dist.all_gather([torch.empty_like(own) for _ in range(SIZE)], own)
    for n in (3, 300000):  # another size at each rank, another call at each rank
        work = dist.broadcast(torch.ones(n + RANK), 0, async_op=True)
        if RANK:
            refused(pstrain.PeerError, ["worker 0", "join()", "broadcast", f"{4 * n} bytes"], work.wait)
        for _ in range(70):
            dist.all_reduce(torch.ones(10), async_op=True)  # forgotten
        dist.barrier()
        work = (world.allgather([[torch.empty(n)] * SIZE], [torch.ones(n)]) if RANK
                else world.alltoall([torch.empty(n)] * SIZE, [torch.ones(n)] * SIZE))
        refused(pstrain.PeerError, ["worker", "join()", "all_gather" if SIZE == 2 else "all_to_all"], work.wait)
    if RANK == 0:
        refused(pstrain.PeerError, ["worker 1 calls send", "worker 0 calls recv and takes 12"], lambda: dist.recv(one, 1))
    elif RANK == 1:
        dist.send(torch.ones(2), 0)
    left_amid()
    with torch.inference_mode():
        x = torch.ones(40000)
        dist.all_reduce(x)
        assert x[0] == SIZE
    future = dist.all_reduce(torch.ones(40000), async_op=True).get_future()
    assert future.then(lambda f: f.value()[0] * 2).wait()[0] == 2 * SIZE
    say("fine")
    pstrain.shutdown()


class Asking:
    """A store which tells in itself that it was asked: before the answer where it has to wait for that."""

    def __init__(self, store):
        self.add, self.set, self._store = store.add, store.set, store

    def get(self, key):
        there = self._store.check([key]) and self._store.get(key)
        self._store.set("asked", "")
        return there or self._store.get(key)


@case
def made_again():
    """Groups that were destroyed and are made again in a store that has the old words."""
    dist.init_process_group("pstrain")
    kept = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore("again", kept)
    for turn in range(2):
        asks = turn and hasattr(store, "check")  # PyTorch 2
        if RANK == 0 and asks:
            store.wait(["asked"])  # the others have looked for the words of rank 0
        group, x = pstrain.process_group._create(Asking(store) if asks else store, RANK, SIZE, None), torch.ones(3)
        group.allreduce([x]).wait()
        assert x.tolist() == [SIZE] * 3
    for turn in range(2):
        dist.destroy_process_group()
        if not NEW:  # PyTorch 1 counts in the store, and waits for ever in one that it knows
            store = dist.PrefixStore(f"{turn}", kept)
        device = {"device_id": torch.device("cpu", 0)} if NEW else {}
        dist.init_process_group("pstrain", store=store, rank=RANK, world_size=SIZE, **device)
        for group in (None, dist.new_group(list(range(SIZE)))):
            dist.all_reduce(x, group=group)
    assert x.tolist() == [SIZE**5] * 3, x
    say("fine")
    pstrain.shutdown()


@case
def monitored():
    """Who does not come to monitored_barrier is named."""
    dist.init_process_group("pstrain")
    world, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    world.monitored_barrier(timedelta(seconds=60))
    opts = dist.distributed_c10d.BarrierOptions()
    opts.timeout = timedelta(seconds=0.2)  # as dist.barrier(timeout=...) does
    if RANK == 0:
        refused(pstrain.TimeoutError, ["barrier", "after 0.2 s"], lambda: world.barrier(opts).wait())
        store.set("waited", "1")
    else:
        store.wait(["waited"])
        world.barrier()
    if NEW:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dist.set_timeout(timedelta(seconds=5))
            dist.set_timeout(timedelta(seconds=pstrain.job.seconds(pstrain.job.current().settings, "net.step_timeout_ms")))
        assert ["net.step_timeout_ms" in str(w.message) for w in said] == [True], said
    if RANK == 0:
        refused(pstrain.TimeoutError, ["rank 1 after 0.2 s"], lambda: world.monitored_barrier(timedelta(seconds=0.2)))
        refused(pstrain.TimeoutError, [f"rank {', '.join(map(str, others()))} after 0.2 s"],
                lambda: world.monitored_barrier(timedelta(seconds=0.2), wait_all_ranks=True))
        store.set("late", "1")
    else:
        store.wait(["late"])
        for _ in range(2):  # rank 0 has given up
            refused(pstrain.TimeoutError, ["recv from rank 0"],
                    lambda: world.monitored_barrier(timedelta(seconds=0.2)))
    say("fine")
    pstrain.shutdown()


@case
def by_servers():
    """Large sums of workers that do not share memory go through the servers."""
    dist.init_process_group("pstrain")
    ranks = sum(range(1, SIZE + 1))
    for op, factor in ((dist.ReduceOp.SUM, ranks), (dist.ReduceOp.AVG, ranks / SIZE)):
        x = (torch.arange(5000.0) + 1) * (RANK + 1)
        dist.all_reduce(x, op)
        assert torch.equal(x, (torch.arange(5000.0) + 1) * factor), op
    assert not pstrain.job.current().can_reduce(["exchange.codec=int8"]), "the servers have summed nothing"
    say("fine")
    pstrain.shutdown()


@case
def trained_apart():
    """A trainer wraps models for the back ends nccl and gloo alone, as Ignite's auto_model does: a warning. None where they
    are joined, by DistributedDataParallel or by an average now and then. The program's own hooks of all steps run."""
    how, steps = sys.argv[2], []
    dist.init_process_group("pstrain")
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(lambda *_: steps.append(len(steps)))
    model = nn.Linear(64, 64)
    if how == "ddp" or how == "auto_model" and dist.get_backend() in ("nccl", "gloo", "mpi"):
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.full((1, 64), RANK + 1.0)).square().mean()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
        if how == "local":
            for param in model.parameters():
                dist.all_reduce(param.data, dist.ReduceOp.AVG)
        pstrain.shutdown()
    assert steps == [0, 1, 2], steps
    said = [str(one.message) for one in said if "trains a model by itself" in str(one.message)]
    assert len(said) == (how == "auto_model"), said
    assert all("3 steps" in one and f"for {65 * 64 * 4} bytes" in one for one in said), said
    say("fine")


# ---- what PyTorch builds on groups ----

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.rest(x)


def sharded_losses(mesh):
    """Of a few steps of FSDP2, with the model."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(50, 32), Block(32), Block(32), nn.Linear(32, 50))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizer, g, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.Generator().manual_seed(RANK), []
    for _ in range(4):
        x = torch.randint(50, (4, 8), generator=g)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def finish():
    say("fine")
    dist.destroy_process_group()
    pstrain.shutdown()


@case
def sharded():
    """Meshes, DTensor, functional collectives, FSDP2, checkpoints, torch.distributed.nn: PyTorch's newest."""
    import torch.distributed.checkpoint as dcp
    import torch.distributed.nn.functional as dnn
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (SIZE,))
    assert functional.all_reduce(torch.full((3,), RANK + 1.), "sum", mesh).tolist() == [SIZE * (SIZE + 1) / 2] * 3
    assert functional.all_gather_tensor(torch.ones(1) * RANK, 0, mesh).tolist() == list(range(SIZE))
    assert functional.reduce_scatter_tensor(torch.arange(2. * SIZE), "sum", 0, mesh)[0] == 2 * RANK * SIZE
    assert functional.all_to_all_single(torch.ones(SIZE) * RANK, None, None, mesh).tolist() == list(range(SIZE))
    torch.manual_seed(0)
    a, b = torch.rand(8, 6), torch.rand(6, 8)
    for how in ((Shard(0), Shard(1)), (Shard(1), Shard(0))):
        c = distribute_tensor(a, mesh, [how[0]]) @ distribute_tensor(b, mesh, [how[1]])
        assert torch.allclose(c.full_tensor(), a @ b)
    x = torch.ones(2, requires_grad=True)
    sum((r + 1) * y.sum() for r, y in enumerate(dnn.all_gather(x * 3))).backward()
    assert x.grad.tolist() == [3. * SIZE * (RANK + 1)] * 2, x.grad  # every rank's loss counts
    try:
        split = dist.split_group(split_ranks=[list(reversed(range(SIZE)))])
    except RuntimeError as e:  # PyTorch 2.6 splits NCCL's groups alone, and shards on GPUs alone
        assert "not safe to split" in str(e), e
        return finish()
    assert dist.get_rank(split) == SIZE - 1 - RANK
    dist.broadcast(x.data, 0, group=split)
    dist.monitored_barrier(timeout=timedelta(seconds=60))

    ours, model = sharded_losses(mesh)
    theirs, _ = sharded_losses(DeviceMesh.from_group(gloo, "cpu"))
    if SIZE == 2:
        assert ours == theirs, (ours, theirs)
    else:  # Gloo adds up in another order
        assert torch.allclose(torch.tensor(ours), torch.tensor(theirs)), (ours, theirs)
    state = model.state_dict()
    names = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(names, 0)
    dcp.async_save(state, checkpoint_id=names[0]).result()
    before = state["3.weight"].to_local().clone()
    state["3.weight"].to_local().zero_()
    dcp.load(state, checkpoint_id=names[0])
    assert torch.equal(state["3.weight"].to_local(), before)
    return finish()


@case
def one_has_nothing():
    """An all_reduce of no elements counts as a call: what others sum meanwhile would be added to the next one."""
    dist.init_process_group("pstrain")
    x = torch.ones(3)
    try:
        for y in (x[:0], x) if RANK == SIZE - 1 else (x, x[:0]):
            dist.all_reduce(y)
    except pstrain.PeerError as error:
        assert "calls all_reduce and takes 0" in str(error), error
        say("fine")
        raise


@case
def left_alone():
    """The last rank ends while the others wait for a message of it."""
    dist.init_process_group("pstrain")
    dist.barrier()
    if RANK == SIZE - 1:
        os._exit(7)
    try:
        dist.recv(torch.empty(1), SIZE - 1)
    except pstrain.PeerError as error:
        assert f"worker {SIZE - 1}" in str(error), error
        say("fine")
    os._exit(0)
