"""A rank of the jobs of test_horovod.py: python3 horovod_worker.py CASE. Prints what the test reads."""
import os
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
import pstrain.horovod as hvd
from cases import CASES, RANK, SIZE, Given, batch, case, gradients, net, optimizer_of, refused, say, sum_in_order
from pstrain.horovod import _negotiation

TOTAL = SIZE * (SIZE + 1) // 2  # of rank + 1 over all ranks
WRONG = pstrain.InputError


def same(got, wanted):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    assert got.shape == wanted.shape and torch.equal(got, wanted), (got, wanted)


# ---- calls: each against its closed form ----

def reductions():
    ones = torch.ones(3)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8,
                  torch.int8, torch.int16):
        for n in (0, 3, 5000):  # none, by the coordinator, by the servers
            mine = torch.full((n,), RANK + 1, dtype=dtype)
            same(hvd.allreduce(mine, op=hvd.Sum), torch.full((n,), TOTAL))
            same(mine, torch.full((n,), RANK + 1))
    same(hvd.allreduce(ones * (RANK + 1), name="mean"), ones * TOTAL / SIZE)
    same(hvd.allreduce(torch.tensor(RANK), op=hvd.Average), int((SIZE - 1) / 2))  # towards 0
    same(hvd.allreduce(ones * RANK, average=False), ones * (TOTAL - SIZE))
    for op, wanted in ((hvd.Min, 1), (hvd.Max, SIZE), (hvd.Product, [1, 1, 2, 6][SIZE])):
        same(hvd.allreduce(ones * (RANK + 1), op=op), ones * wanted)
    same(hvd.allreduce(ones * (RANK + 1), op=hvd.Sum, prescale_factor=2, postscale_factor=0.5), ones * TOTAL)
    same(hvd.allreduce(torch.tensor([3 * (RANK + 1)]), op=hvd.Sum, prescale_factor=0.5),
         [sum(3 * (r + 1) // 2 for r in range(SIZE))])
    same(hvd.allreduce(torch.full((2, 3), RANK + 1.0).t(), op=hvd.Sum), torch.full((3, 2), TOTAL))
    turned = torch.full((2, 3), RANK + 1.0).t()  # in place, not contiguous
    assert hvd.allreduce_(turned, op=hvd.Sum) is turned
    same(turned, torch.full((3, 2), TOTAL))
    with torch.inference_mode():
        same(hvd.allreduce_(torch.ones(2), op=hvd.Sum), [SIZE, SIZE])
    first = hvd.grouped_allreduce([ones * RANK, torch.ones(2, 2)], op=hvd.Sum, name="group")
    same(first[0], ones * (TOTAL - SIZE)), same(first[1], torch.full((2, 2), SIZE))
    assert hvd.grouped_allreduce([]) == []
    mine = [ones * RANK, torch.ones(5000)]
    same(hvd.synchronize(hvd.grouped_allreduce_async_(mine, op=hvd.Sum))[1], torch.full((5000,), SIZE))
    same(mine[0], ones * (TOTAL - SIZE))
    # 2049 has no float16: it is 2048 there, whatever way the sum travels.
    for n in (3, 5000):
        same(hvd.allreduce(torch.full((n,), 2049.0), compression=hvd.Compression.fp16), torch.full((n,), 2048.0))
        same(hvd.allreduce(torch.full((n,), 2049.0)), torch.full((n,), 2049.0))
    rows = torch.arange(2 * SIZE + 1.0)
    cut = hvd.reducescatter(rows, op=hvd.Sum)
    same(cut, (rows * SIZE).tensor_split(SIZE)[RANK])
    assert [t.numel() for t in hvd.grouped_reducescatter([rows, rows[:SIZE]])] == [cut.numel(), 1]
    same(hvd.push_pull(ones * (RANK + 1), name="bps"), ones * TOTAL / SIZE)
    same(hvd.synchronize(hvd.push_pull_async(ones, average=False, name="bps")), ones * SIZE)
    same(hvd.push_pull_inplace(torch.ones(2), False, "bps"), [SIZE, SIZE])
    hvd.declare("bps")


def gathers():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        mine = torch.full((RANK, 2), RANK, dtype=dtype)  # rank 0 has none
        wanted = torch.cat([torch.full((r, 2), r, dtype=dtype) for r in range(SIZE)])
        same(hvd.allgather(mine, name="uneven"), wanted)
    both = hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([RANK]), torch.ones(1, 2)]))
    same(both[0], list(range(SIZE))), same(both[1], torch.ones(SIZE, 2))
    for root in range(SIZE):
        mine = torch.full((4,), RANK)
        same(hvd.broadcast(mine, torch.tensor(root)), [root] * 4)
        same(mine, [RANK] * 4)
        assert hvd.broadcast_(mine, root, name="there") is mine
        same(mine, [root] * 4)
    same(hvd.synchronize(hvd.broadcast_async(torch.tensor(RANK), 1)), 1)
    sent = torch.arange(3 * SIZE).view(-1, 1) + 100 * RANK
    same(hvd.alltoall(sent), torch.cat([torch.arange(3 * SIZE).view(-1, 1)[3 * RANK:3 * RANK + 3] + 100 * r
                                        for r in range(SIZE)]))
    splits = [1] * (SIZE - 1) + [2]
    got, counts = hvd.alltoall(torch.full((SIZE + 1,), RANK), splits=torch.tensor(splits))
    same(counts, [splits[RANK]] * SIZE)
    same(got, [r for r in range(SIZE) for _ in range(splits[RANK])])
    assert hvd.allgather_object({"rank": RANK, "words": "x" * RANK}) == [{"rank": r, "words": "x" * r}
                                                                         for r in range(SIZE)]
    assert hvd.broadcast_object([RANK, "y" * 5000], 1) == [1, "y" * 5000]
    hvd.barrier()


def derivatives():
    """Of the sum of the results times rank + 1."""
    def gradient(call, n=3):
        mine = torch.ones(n, requires_grad=True)
        result = call(mine)
        (result * (RANK + 1)).sum().backward()
        return mine.grad

    same(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum)), torch.full((3,), TOTAL))
    same(gradient(lambda t: hvd.allreduce(t, name="back")), torch.full((3,), TOTAL / SIZE))
    same(gradient(lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum)[1]), torch.full((3,), TOTAL))
    same(gradient(hvd.allgather, RANK + 1), torch.full((RANK + 1,), TOTAL / SIZE))
    same(gradient(lambda t: hvd.broadcast(t, 1)), torch.full((3,), TOTAL / SIZE if RANK == 1 else 0))
    same(gradient(hvd.alltoall, SIZE), torch.arange(SIZE) + 1)
    same(gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum), SIZE), (torch.arange(SIZE) + 1) * SIZE)


def orders():
    """Ranks that make the same calls in different orders."""
    names = [f"t{i}" for i in range(40)]
    mine = names[RANK:] + names[:RANK] if RANK != 1 else names[::-1]
    handles = {name: hvd.allreduce_async(torch.full((i % 3 * 1000 + 1,), int(name[1:])), name=name, op=hvd.Sum)
               for i, name in sorted(enumerate(names), key=lambda pair: mine.index(pair[1]))}
    for name in mine:
        got = hvd.synchronize(handles[name])
        same(got, torch.full_like(got, int(name[1:]) * SIZE))
        assert hvd.poll(handles[name])
    first, second = ("a", "b") if RANK == 0 else ("b", "a")
    for kept in [hvd.allgather_async(torch.tensor([RANK]), name=name) for name in (first, second)]:
        same(hvd.synchronize(kept), list(range(SIZE)))
    # One waits for what the other calls later.
    later = hvd.broadcast_async(torch.tensor(RANK), 0, name="late") if RANK == 0 else None
    same(hvd.allreduce(torch.ones(1), name="soon", op=hvd.Sum), [SIZE])
    later = later or hvd.broadcast_async(torch.tensor(RANK), 0, name="late")
    same(hvd.synchronize(later), 0)
    threads, got = [], []
    for i in range(4):
        def run(i=i):
            got.append(hvd.allreduce(torch.tensor(i), op=hvd.Sum, name=f"thread {i}").item() == i * SIZE)
        threads.append(threading.Thread(target=run))
    for thread in threads[::-1 if RANK else 1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [True] * 4, got


@case
def calls():
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (RANK, SIZE, RANK, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert hvd.is_initialized() and not hvd.mpi_built() and not hvd.nccl_built() and not hvd.mpi_threads_supported()
    assert hvd.global_process_set.included() and hvd.global_process_set.size() == SIZE
    for part in (reductions, gathers, derivatives, orders):
        part()
    hvd.shutdown()
    assert not hvd.is_initialized()
    refused(WRONG, ["hvd.init()"], hvd.rank)
    hvd.shutdown()
    say("fine")


# ---- what is refused, and what differs between ranks ----

@case
def refusals():
    refused(WRONG, ["hvd.init()"], hvd.size)
    refused(WRONG, ["comm"], lambda: hvd.init(comm=[0]))
    hvd.init()
    ones = torch.ones(4)
    for name in ("elastic", "ProcessSet", "add_process_set", "sparse_allreduce_async", "start_timeline"):
        try:
            getattr(hvd, name)
        except WRONG as error:
            assert name in str(error)
        else:
            raise AssertionError(name)
    try:
        hvd.elastic
    except WRONG as error:
        assert "pstrain.State" in str(error)
    for words, call in (
            (["Adasum", "Average"], lambda: hvd.allreduce(ones, op=hvd.Adasum)),
            (["op='mean'"], lambda: hvd.allreduce(ones, op="mean")),
            (["op and average"], lambda: hvd.allreduce(ones, average=True, op=hvd.Sum)),
            (["process_set"], lambda: hvd.allreduce(ones, process_set=object())),
            (["sparse"], lambda: hvd.allreduce(torch.eye(2).to_sparse())),
            (["complex"], lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64))),
            (["meta"], lambda: hvd.allreduce(torch.ones(2, device="meta"))),
            (["float", "torch.Tensor"], lambda: hvd.allreduce(3.0)),
            (["root_rank=9"], lambda: hvd.broadcast(ones, 9)),
            (["root_rank=-1"], lambda: hvd.broadcast_(ones, -1)),
            (["without dimensions"], lambda: hvd.allgather(torch.tensor(1.0))),
            (["splits"], lambda: hvd.alltoall(torch.ones(SIZE + 1))),
            (["splits=[4, 4]"], lambda: hvd.alltoall(ones, [4, 4])),
            (["params", "NoneType"], lambda: hvd.broadcast_parameters(None, 0)),
            # The rest is found by comparing ranks, and each of them is told.
            (["'allreduce.shape'", "(2,)", "(3,)"], lambda: hvd.allreduce(torch.ones(2 + RANK), name="shape")),
            (["'allreduce.dtype'", "int32", "float32"],
             lambda: hvd.allreduce(torch.ones(2, dtype=[torch.int32, torch.float32][RANK]), name="dtype")),
            (["op=sum", "op=max"], lambda: hvd.allreduce(ones, op=[hvd.Sum, hvd.Max][RANK], name="op")),
            (["root=0", "root=1"], lambda: hvd.broadcast(ones, RANK, name="root")),
            (["'allgather.rows'"], lambda: hvd.allgather(torch.ones(2, 2 + RANK), name="rows")),
            (["'alltoall.rows'"], lambda: hvd.alltoall(torch.ones(2, 2 + RANK), name="rows"))):
        refused(WRONG, words, call)
        same(hvd.allreduce(ones, op=hvd.Sum), ones * SIZE)  # the job goes on
    handle = hvd.allreduce_async(ones, name="twice")
    if RANK == 0:
        refused(WRONG, ["'allreduce.twice'", "again"], lambda: hvd.allreduce(ones, name="twice"))
    hvd.barrier()
    hvd.synchronize(handle)
    _negotiation.STALL_SECONDS = 0.2
    refused(pstrain.TimeoutError, ["'allreduce.of 0' was called by rank 0", "'allreduce.of 1' was called by rank 1"],
            lambda: hvd.allreduce(ones, name=f"of {RANK}"))
    same(hvd.allreduce(ones, op=hvd.Sum), ones * SIZE)
    refuse_optimizers()
    hvd.shutdown()
    say("fine")


def refuse_optimizers():
    layer = nn.Linear(2, 2)

    def optimizer(*args, **kwargs):
        return lambda: hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), *args, **kwargs)

    named = list(layer.named_parameters())
    for words, call in (
            (["Adasum"], optimizer(op=hvd.Adasum)), (["op='max'"], optimizer(op=hvd.Max)),
            (["process_set"], optimizer(process_set=object())),
            (["gradient_predivide_factor"], optimizer(op=hvd.Sum, gradient_predivide_factor=2.0)),
            (["backward_passes_per_step=0"], optimizer(backward_passes_per_step=0)),
            (["(name, parameter)"], optimizer(layer.parameters())),
            (["unique"], optimizer([("same", p) for _, p in named])),
            (["lacks parameter 1"], optimizer(named[:1])),
            (["groups"], optimizer(groups=-1)), (["groups"], optimizer(groups=[[named[0][1], named[0][1]]])),
            (["LBFGS"], lambda: hvd.DistributedOptimizer(torch.optim.LBFGS(layer.parameters()))),
            (["wrapped"], lambda: hvd.DistributedOptimizer(optimizer()())),
            (["Linear"], lambda: hvd.DistributedOptimizer(layer))):
        refused(WRONG, words, call)
    mine = optimizer(named)()
    layer(torch.ones(1, 2)).sum().backward()
    refused(WRONG, ["zero_grad()"], mine.zero_grad)
    refused(WRONG, ["backward_passes_per_step=1"], lambda: layer(torch.ones(1, 2)).sum().backward())
    mine.step()
    table = nn.Embedding(4, 2, sparse=True)
    kept = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters())
    refused(WRONG, ["'weight'", "sparse_as_dense"], lambda: table(torch.tensor([1])).sum().backward())
    del kept
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    kept = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=True)
    table(torch.tensor([RANK])).sum().backward()
    kept.step()
    same(table.weight.detach(), [[0.5, 0.5], [0.5, 0.5], [1, 1], [1, 1]])
    layer = nn.Linear(2, 1, bias=False)
    hvd.broadcast_parameters(layer.state_dict(), 0)
    kept = hvd.DistributedOptimizer(torch.optim.Adam(layer.parameters()), layer.named_parameters())
    layer(torch.full((1, 2), 1.0 + RANK)).sum().backward()
    layer.zero_grad(set_to_none=True)
    kept.step()
    same(layer.weight.grad, [[1.5, 1.5]])
    layer.weight.grad = torch.autograd.grad(layer.weight.sum() * (1 + RANK), layer.weight)[0]  # one number in memory
    kept.step()
    same(layer.weight.grad, [[1.5, 1.5]])


# ---- training ----

def losses(model, optimizer, steps=4, before=lambda: None, after=lambda: None):
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        before()
        optimizer.step()
        after()
        yield loss.item()


def near(got, wanted):
    got, wanted = torch.tensor(list(got)), torch.tensor(list(wanted))
    assert got.shape == wanted.shape and (got - wanted).abs().max() < 1e-6, (got, wanted)


@case
def training():
    """Losses of PyTorch's own DDP over Gloo. sys.argv[2]: the optimizer."""
    dist.init_process_group("gloo")
    hvd.init()
    name = sys.argv[2]
    theirs = DDP(net())
    wanted = list(losses(theirs, optimizer_of(name, theirs.parameters())))
    ours = net()
    if RANK != 0:
        nn.init.ones_(ours.wide.weight)
    hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
    plain = optimizer_of(name, ours.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda _: 1.0)  # it has wrapped the step
    mine = hvd.DistributedOptimizer(plain, named_parameters=ours.named_parameters(), groups=2)
    hvd.broadcast_optimizer_state(mine, root_rank=0)
    assert isinstance(mine, type(optimizer_of(name, ours.parameters())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Batch norm's buffers are those of rank 0 in DDP.
        near(losses(ours, mine, after=schedule.step), wanted)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        assert (p - q).abs().max() < 1e-6
    theirs = DDP(net())
    wanted = list(losses(theirs, optimizer_of("sgd", theirs.parameters()),
                         before=lambda: nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)))
    ours = net()
    mine = hvd.DistributedOptimizer(optimizer_of("sgd", ours.parameters()), ours.named_parameters(),
                                    gradient_predivide_factor=2.0)

    def clip():
        mine.synchronize()
        nn.utils.clip_grad_norm_(ours.parameters(), 0.1)

    near(losses(ours, mine, before=clip), wanted)
    pair = hvd.DistributedDataParallel(net())
    wanted = losses(DDP(net()), torch.optim.SGD(net().parameters(), lr=0.0))
    near(losses(pair, torch.optim.SGD(pair.parameters(), lr=0.0)), wanted)
    hvd.shutdown()
    dist.destroy_process_group()
    say("fine")


def mean_gradients(*steps):
    """Of Given, over all ranks, summed over the steps."""
    parts = zip(*(gradients(step, r) for step in steps for r in range(SIZE)))
    return [sum_in_order(part) / SIZE for part in parts]


def close(model, wanted):
    for param, gradient in zip(model.weights, wanted):
        assert torch.allclose(param.grad, gradient, atol=1e-6), (param.grad, gradient)


@case
def steps():
    """What a DistributedOptimizer has made of gradients that are known."""
    hvd.init()
    model = Given()
    mine = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                    backward_passes_per_step=2)
    for step in (0, 1):
        model(gradients(step, RANK)).backward()
    mine.synchronize()
    close(model, mean_gradients(0, 1))
    before = model.weights[0].detach().clone()
    with mine.skip_synchronize():
        mine.step()
    assert torch.allclose(before - 0.1 * model.weights[0].grad, model.weights[0])
    mine.set_backward_passes_per_step(1)
    mine.zero_grad()
    model(gradients(2, RANK)).backward()
    mine.step()
    close(model, mean_gradients(2))
    mine.zero_grad()
    loss = mine.step(lambda: model(gradients(3, RANK)).backward() or 7)
    assert loss == 7
    close(model, mean_gradients(3))
    # Each rank uses another parameter, and one is used by none.
    mine.zero_grad()
    (model.weights[RANK % 2] * gradients(4, RANK)[RANK % 2]).sum().backward()
    mine.step()
    for i in range(2):
        wanted = sum(gradients(4, r)[i] for r in range(SIZE) if r % 2 == i) / SIZE
        assert torch.allclose(model.weights[i].grad, wanted, atol=1e-6)
    same(model.weights[2].grad, torch.zeros(3, 3, 5))
    changed_parameters()
    made_again()
    of_bytes_ps()
    compressed()
    optimizer_states()
    batch_norm()
    joined()
    say("fine")  # the job is left at the end of the process


def changed_parameters():
    model = Given()
    model.weights[0].requires_grad_(False)
    mine = hvd.DistributedOptimizer(torch.optim.SGD([model.weights[0], model.weights[1]], lr=0.1))
    mine.add_param_group({"params": [model.weights[2]]})
    for thawed in (False, True):
        model.weights[0].requires_grad_(thawed)
        mine.zero_grad(set_to_none=True)
        model(gradients(5, RANK)).backward()
        mine.step()
        for i in range(0 if thawed else 1, 3):
            assert torch.allclose(model.weights[i].grad, mean_gradients(5)[i], atol=1e-6), i
        assert torch.equal(model.weights[3].grad, gradients(5, RANK)[3] * (2 if thawed else 1))


def made_again():
    """A second optimizer of the same model: it averages from now on, and the first one says so."""
    model = Given()
    first, second = (hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named)
                     for named in (None, model.named_parameters()))
    model(gradients(8, RANK)).backward()
    refused(WRONG, ["'parameter.0.0'", "made later"], first.step)
    second.step()
    close(model, mean_gradients(8))
    second.zero_grad()
    del first, second
    model(gradients(9, RANK)).backward()
    assert torch.equal(model.weights[0].grad, gradients(9, RANK)[0])


def of_bytes_ps():
    model = Given()
    pair = hvd.DistributedDataParallel(model)
    with pair.no_sync():
        pair(gradients(6, RANK)).backward()
    assert torch.equal(model.weights[0].grad, gradients(6, RANK)[0])
    pair(gradients(7, RANK)).backward()
    close(model, mean_gradients(6, 7))
    model.zero_grad()
    (model.weights[1] * (RANK + 1)).sum().backward()  # the others are not used
    assert torch.allclose(model.weights[1].grad, torch.full((16,), TOTAL / SIZE))


def compressed():
    for compression in (hvd.Compression.fp16, type("Mine", (hvd.Compression.fp16,), {})):
        layer = nn.Linear(40, 40)
        hvd.broadcast_parameters(layer.named_parameters(), 0)
        mine = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters(),
                                        compression=compression)
        layer(torch.full((1, 40), 2049.0)).sum().backward()
        mine.step()
        same(layer.weight.grad, torch.full((40, 40), 2048.0))
        same(layer.bias.grad, torch.ones(40))


def optimizer_states():
    for steps_made in (0, 2):
        for make in (lambda p: torch.optim.Adam(p, lr=0.1 * (RANK + 1)),
                     lambda p: torch.optim.SGD(p, lr=0.1 * (RANK + 1), momentum=0.9)):
            layer = nn.Linear(2, 2)
            plain = make(layer.parameters())
            for _ in range(steps_made if RANK == 1 else 0):
                layer(torch.ones(1, 2)).sum().backward()
                plain.step()
            mine = hvd.DistributedOptimizer(plain, layer.named_parameters())
            hvd.broadcast_optimizer_state(mine, root_rank=1)
            assert mine.param_groups[0]["lr"] == 0.2
            assert len(mine.state_dict()["state"]) == (2 if steps_made else 0)
            assert len(set(hvd.allgather_object(str(mine.state_dict())))) == 1


def batch_norm():
    torch.manual_seed(5)
    whole = torch.rand(2 * SIZE + 1, 3, 4)
    mine = whole.tensor_split(SIZE)[RANK].clone().requires_grad_()
    whole.requires_grad_()
    theirs, ours = nn.BatchNorm1d(3), hvd.SyncBatchNorm(3)
    weights = torch.rand(whole.shape)
    (theirs(whole) * weights).sum().backward()
    (ours(mine) * weights.tensor_split(SIZE)[RANK]).sum().backward()
    assert torch.allclose(mine.grad, whole.grad.tensor_split(SIZE)[RANK], atol=1e-5)
    assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), theirs.weight.grad, atol=1e-5)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value, atol=1e-6), name
    theirs.eval(), ours.eval()
    assert torch.allclose(ours(whole), theirs(whole), atol=1e-6)
    # Halves: sums of them would be rounded.
    halves = (torch.rand(301 * SIZE, 3) + 10).bfloat16()
    theirs, ours = nn.BatchNorm1d(3, momentum=1.0), hvd.SyncBatchNorm(3, momentum=1.0)
    wanted, got = theirs(halves.float()), ours(halves.tensor_split(SIZE)[RANK])
    assert got.dtype == torch.bfloat16 and torch.allclose(got.float(), wanted.tensor_split(SIZE)[RANK], atol=2e-2)
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-4)
    assert torch.allclose(ours.running_var, theirs.running_var, rtol=1e-4)
    refused(ValueError, ["more than 1"], lambda: ours(torch.ones(int(RANK == 0), 3)))


def joined():
    """Rank 1 has fewer batches."""
    model = Given()
    mine = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(3 if RANK == 1 else 5):
        mine.zero_grad()
        model(gradients(step, RANK)).backward()
        mine.step()
    if RANK != 1:
        close(model, [g / SIZE for g in sum_of_others(4)])
        hvd.allreduce(torch.ones(2))  # without a name, which rank 1 does not count
        refused(WRONG, ["allgather", "rank 1", "join()"], lambda: hvd.allgather(torch.ones(1), name="odd"))
    last = hvd.join()
    assert last != 1 and hvd.allgather_object(last) == [last] * SIZE
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), [SIZE, SIZE])  # all are back


def sum_of_others(step):
    return [sum_in_order(part) for part in zip(*(gradients(step, r) for r in range(SIZE) if r != 1))]


@case
def beside_a_group():
    """Large sums of both, which the ranks begin in different orders."""
    dist.init_process_group("pstrain")
    hvd.init()
    dist.all_reduce(torch.ones(5000))  # opens the sums
    x, y, works = torch.full((5000,), 1.0), torch.full((5000,), 10.0), []
    if RANK == 0:
        works.append(dist.all_reduce(x, async_op=True))
    hvd.allreduce_(y, op=hvd.Sum)
    if RANK:
        works.append(dist.all_reduce(x, async_op=True))
    works[0].wait()
    same(x, torch.full((5000,), SIZE)), same(y, torch.full((5000,), 10 * SIZE))
    hvd.shutdown()
    say("fine")


# ---- ranks that fail, and other ways to start ----

def no_room(*_):
    raise MemoryError(f"rank {RANK}: no room")


@case
def dies():
    """One of the ranks ends in some way, while others wait for it. sys.argv[2]: how."""
    hvd.init()
    hvd.allreduce(torch.ones(1))
    if RANK == 1:
        if sys.argv[2] == "raises":
            raise KeyError("no such picture")
        if sys.argv[2] == "leaves":
            hvd.shutdown()
        if sys.argv[2] == "breaks":  # after the ranks have agreed
            _negotiation._collectives.reduce = no_room
            hvd.allreduce(torch.ones(1), name="alone")
        os._exit(3)
    try:
        hvd.allreduce(torch.ones(1), name="alone")
    except pstrain.Error as error:
        say("was told", str(error).replace("\n", " "))
        assert "rank 0" in str(error)
        raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()
