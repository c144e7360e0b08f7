"""Cases of worker.py: DistributedDataParallel with the hook, and over the back end."""
import os
import queue
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
from cases import RANK, SIZE, case, digest, net, optimizer_of, refused, say, train


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
        say(name, train_ddp(name, 20, gloo), train_ddp(name, 20, gloo, (None, pstrain.comm_hook)),
            train_ddp(name, 20))
    images, labels = torch.randn(8, 30, dtype=torch.float64), torch.randint(0, 4, (8,))
    for dtype in (torch.float64, torch.bfloat16):
        weights = []
        broadcasts = gloo if dtype == torch.float64 else None  # Gloo's has no bfloat16 in PyTorch 1
        for group, hook in ((broadcasts, (gloo, in_doubles)), (broadcasts, (None, pstrain.comm_hook)), (None, None)):
            torch.manual_seed(3)
            model = DDP(nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 4)).to(dtype), process_group=group)
            if hook is not None:
                model.register_comm_hook(*hook)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for _ in range(4):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images.to(dtype)).double(), labels).backward()
                optimizer.step()
            weights.append(digest(model.module.double()))
        say(dtype, *weights)
    pstrain.shutdown()


def in_doubles(gloo, bucket):
    """The mean by Gloo, rounded once."""
    mean, future = bucket.buffer().double() / SIZE, torch.futures.Future()
    dist.all_reduce(mean, group=gloo)
    future.set_result(mean.to(bucket.buffer().dtype))
    return future


@case
def codec():
    """int8 changes the weights, but both ranks have the same ones."""
    pstrain.init()
    dist.init_process_group("gloo")
    say("weights", train_ddp("sgd", 5, None, ("int8", pstrain.comm_hook), buffers=False),
        train_ddp("sgd", 5, buffers=False))
    pstrain.shutdown()


@case
def collectives():
    """Collectives through the back end, compared with Gloo's."""
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
    for wrong in (torch.ones(3, 1).expand(3, 4), torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")):
        try:
            dist.group.WORLD.allreduce([wrong])
            raise AssertionError(f"{wrong} was taken")
        except Exception as error:  # the exception passes through PyTorch
            assert f"rank {RANK}" in str(error) and "all_reduce" in str(error), error
    say("fine")
    pstrain.shutdown()


@case
def odd_collectives():
    """Arguments that are seldom given, beside Gloo: what it has, or one clear error."""
    dist.init_process_group("pstrain")
    gloo, world = dist.new_group(backend="gloo"), dist.group.WORLD
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64):
        for shape in ((), (2, 3), (2000,)):
            mine = ((torch.arange(torch.Size(shape).numel()) * 3 + 2 * RANK) % 7 - 1).to(dtype).reshape(shape)
            theirs, ours = ([of(mine.clone(), group) for of in (average, product, from_last, gathered, scattered)]
                            for group in (gloo, world))
            assert str(theirs) == str(ours), (dtype, shape, theirs, ours)
            with torch.inference_mode():  # Lightning's evaluation
                assert str([of(mine.clone(), world) for of in (average, gathered, scattered)]) == str([ours[0], *ours[3:]])
    for x in (torch.empty(0, 3), torch.ones(2, dtype=torch.bool), torch.ones(2, requires_grad=True)):
        dist.broadcast(x, 0)
        dist.all_gather([x] * SIZE, x)
        dist.scatter(x, [x] * SIZE if RANK == 0 else None, 0)
        dist.all_reduce(x.data)
        assert x.dtype != torch.bool or x.view(torch.uint8).eq(1).all(), x  # not 2
    turned, out = torch.arange(6.0).view(2, 3), torch.zeros(3, 2)
    dist.scatter(out, [(turned + 10 * r).t() for r in range(SIZE)] if RANK == 0 else None, 0)
    assert torch.equal(out, (turned + 10 * RANK).t()), out  # Gloo's is in another order
    x = torch.tensor([RANK])
    world.allreduce([x], dist.ReduceOp.MAX).wait()
    assert x.item() == SIZE - 1, x
    work = dist.all_reduce(torch.full((2000,), RANK + 1.0), async_op=True)
    assert work.wait() and work.wait(timedelta(minutes=1)) and work.get_future().wait()[0][0] == SIZE * (SIZE + 1) / 2
    two = [torch.ones(2), torch.ones(2)]
    for words, call in (
            (["all_gather", "1 tensors"], lambda: dist.all_gather(two[:1], two[0])),
            (["all_gather", "float64"], lambda: world.allgather([[t.double() for t in two]], two[:1])),
            (["no tensors"], lambda: world.allreduce([])),
            (["bits", "float32"], lambda: dist.all_reduce(two[0], op=dist.ReduceOp.BAND))):
        refused(RuntimeError, words, call)
    store, late = dist.distributed_c10d._get_default_store(), timedelta(milliseconds=1)
    if RANK == 0:
        work = dist.barrier(async_op=True)
        refused(pstrain.TimeoutError, ["barrier", "0.001 s"], lambda: work.wait(late))
        store.set("late", "1")
    else:
        store.wait(["late"])
        work = dist.barrier(async_op=True)
    assert work.wait()
    say("fine")
    pstrain.shutdown()


def average(x, group):
    if hasattr(dist.ReduceOp, "AVG") and group is dist.group.WORLD:
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    else:  # Gloo has none, and its users divide: Lightning's self.log(sync_dist=True)
        dist.all_reduce(x, group=group)
        x.copy_(x / SIZE)
    return x


def product(x, group):
    dist.reduce(x, 0, op=dist.ReduceOp.PRODUCT, group=group)
    return x if RANK == 0 else None


def from_last(x, group):
    dist.broadcast(x, SIZE - 1, group=group)
    return x


def gathered(x, group):
    out = list(torch.empty((*x.shape, SIZE), dtype=x.dtype).unbind(-1))  # views that are not contiguous
    dist.all_gather(out, x, group=group)
    at_root = [torch.empty_like(x) for _ in range(SIZE)] if RANK == 1 else None
    dist.gather(x, at_root, 1, group=group)
    return out, at_root


def scattered(x, group):
    out = torch.empty_like(x)
    dist.scatter(out, [x + r for r in range(SIZE)] if RANK == 0 else None, 0, group=group)
    return out


class Branches(nn.Module):
    """Uses one of its layers, which depends on the step and the rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.layers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x, which):
        return self.layers[which](x).pow(2).sum()


@case
def unused():
    """DistributedDataParallel that finds unused parameters: it waits in C++ for a sum of flags. And within join(), where
    its C++ waits for the number of ranks that have batches left, and then asks the same work for its future."""
    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    weights = []
    for group in (gloo, None):
        model = DDP(Branches(), process_group=group, find_unused_parameters=True)
        optimizer = optimizer_of("sgd", model.parameters())
        for step in range(30):
            optimizer.zero_grad()
            model(torch.full((2, 4), 0.1 * step + RANK), (step + RANK) // 3 % 2).backward()
            optimizer.step()
        for by_all in (True, False):
            with model.join(divide_by_initial_world_size=by_all):
                for step in range(3 + 2 * RANK):
                    optimizer.zero_grad()
                    model(torch.full((2, 4), 0.1 * step + RANK), step % 2).backward()
                    optimizer.step()
        weights.append(digest(model.module))
    assert weights[0] == weights[1], "other weights than with Gloo"
    say("fine")
    pstrain.shutdown()


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(RANK)
        self.first, self.last = nn.Linear(3, 40, dtype=torch.complex64), nn.Linear(40, 1)
        self.register_buffer("phase", torch.full((40,), complex(1, RANK)))

    def forward(self, x):
        return self.last((self.first(x.to(torch.complex64)) * self.phase).abs())


@case
def complex_numbers():
    """Parameters, buffers and collectives of complex numbers, as with Gloo."""
    dist.init_process_group("pstrain")
    gloo, weights = dist.new_group(backend="gloo"), []
    try:
        dist.broadcast(torch.ones(2, dtype=torch.complex64), 0, group=gloo)
    except RuntimeError:  # older PyTorch's Gloo
        gloo = None
    for group in (gloo, None):
        model = DDP(Spectral(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.rand(4, 3, generator=torch.Generator().manual_seed(10 * step + RANK))).sum().backward()
            optimizer.step()
        weights.append(digest(model.module))
    assert weights[0] == weights[1], "other weights than with Gloo"
    mine = torch.complex(torch.arange(3.0), torch.full((3,), float(RANK)))
    for double in (False, True):
        x = mine.to(torch.complex128 if double else torch.complex64, copy=True)
        assert dist.group.WORLD.allreduce([x]).get_future().wait()[0].dtype == x.dtype
        assert x.tolist() == [2 * n + 1j for n in range(3)], x
        dist.broadcast(x.mul_(RANK), 1)
        assert x.tolist() == [2 * n + 1j for n in range(3)], x
        pstrain.broadcast(x.mul_(1 - RANK))
        assert x.tolist() == [2 * n + 1j for n in range(3)], x
        refused(pstrain.InputError, ["all_reduce", "resolve_conj"], lambda: dist.group.WORLD.allreduce([x.conj()]))
    say("fine")
    pstrain.shutdown()


# ---- refusals ----

@case
def other_size():
    """Collectives that differ between the ranks: an exception on each, when it is waited for."""
    dist.init_process_group("pstrain")
    for n in (3, 3000):  # the coordinator sums 3; the servers sum 3000 and end the job
        work = dist.all_reduce(torch.ones(n + RANK), async_op=True)
        for wait in (work.wait, lambda: work.get_future().wait()):
            try:
                wait()
            except Exception as error:
                assert f"rank {RANK}" in str(error) and "worker" in str(error), error
            else:
                raise AssertionError(f"{n + RANK} numbers were taken")
        assert work.is_completed() and not work.is_success()
    say("fine")
    os._exit(0)  # the job has failed



@case
def timeout():
    """timeout= of init_process_group is the deadline of its calls."""
    words = "127.0.0.1", int(os.environ["MASTER_PORT"]), SIZE, RANK == 1
    store = dist.TCPStore(*words) if torch.__version__[0] == "1" else dist.TCPStore(*words, use_libuv=False)
    dist.init_process_group("pstrain", store=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=3))
    refused(RuntimeError, ["timeout=0:00:07", "net.step_timeout_ms", "7000"],
            lambda: pstrain.process_group._create(None, RANK, SIZE, timedelta(seconds=7)))
    if RANK == 1:
        store.wait(["failed"])
    else:
        refused(pstrain.TimeoutError, ["worker 1", "barrier", "3000 ms"], dist.barrier)
        store.set("failed", "1")
    say("fine")
    os._exit(0)  # the job has failed


@case
def other_model_in_ddp():
    """Rank 1 has another model in DistributedDataParallel over the back end. No rank waits."""
    dist.init_process_group("pstrain")
    DDP(nn.Linear(4, 5 if RANK == 1 else 6))(torch.ones(1, 4)).sum().backward()


@case
def hook_of_other_dtype():
    """float64 gradients in the hook with a codec: an exception on every rank."""
    pstrain.init()
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 4).double())
    model.register_comm_hook("int8", pstrain.comm_hook)
    try:
        model(torch.ones(1, 4).double()).sum().backward()
    except RuntimeError as error:  # the exception passes through PyTorch
        assert f"rank {RANK}" in str(error) and "float64 have no codec" in str(error), error
        say("fine")
    pstrain.shutdown()
    os._exit(0)  # the process group has a step that does not end


@case
def powersgd():
    """Its callbacks wait for further collectives; there are several buckets. Gloo's ranks may mix these up, so it is
    compared with Gloo where each bucket is waited for."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")

    def one_by_one(state, bucket):
        future = powersgd.powerSGD_hook(state, bucket)
        future.wait()
        return future

    weights = []
    for group, hook in ((gloo, one_by_one), (None, powersgd.powerSGD_hook)):
        state = powersgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        weights.append(train_ddp("sgd", 12, group, (state, hook), buffers=False))
    assert weights[0] == weights[1], weights
    said = queue.SimpleQueue()  # a callback of torch.futures.collect_all may run in the thread that completes futures
    dist.group.WORLD._job.session.later(lambda: dist.all_reduce(torch.ones(2)), said.put)
    assert "in a callback" in str(said.get(timeout=60))
    say("fine")
    pstrain.shutdown()
