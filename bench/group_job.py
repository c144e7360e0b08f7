"""A worker of bench/group: python3 group_job.py '{"calls": ..., "sizes": ..., "steps": ..., "rounds": ...}'. Both ways in
turn, in the same processes. Rank 0 prints "group_job" and a line of JSON: rows of a call and its bytes, with each round's
median in ms, and the processor time in ms of all parts of the job, servers included, by the way; of a training step also
by how much the losses differ."""
import json
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path += [HERE, os.path.join(HERE, "../python/examples")]

import digits  # noqa: E402
import pstrain  # noqa: E402
import resnet18  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from benchlib.processes import cpu_seconds, descendants  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

GATHER = getattr(dist, "all_gather_into_tensor", dist._all_gather_base)
REDUCE_SCATTER = getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)


def around(group, x, y):
    """Each rank sends to the next one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % size, group=group),
                                        dist.P2POp(dist.irecv, y, (rank - 1) % size, group=group)]):
        work.wait()


def parts(x):
    return list(x.view(dist.get_world_size(), -1))


# Each of tensors of the same size; what has parts has one for each rank within it.
CALLS = {
    "all_reduce": lambda group, x, y: dist.all_reduce(x, group=group),
    "reduce": lambda group, x, y: dist.reduce(x, 0, group=group),
    "broadcast": lambda group, x, y: dist.broadcast(x, 0, group=group),
    "all_gather": lambda group, x, y: GATHER(y, parts(x)[0], group=group),
    "gather": lambda group, x, y: dist.gather(parts(x)[0], parts(y) if dist.get_rank() == 0 else None, 0, group=group),
    "scatter": lambda group, x, y: dist.scatter(parts(y)[0], parts(x) if dist.get_rank() == 0 else None, 0, group=group),
    "reduce_scatter": lambda group, x, y: REDUCE_SCATTER(parts(y)[0], x, group=group),
    "all_to_all": lambda group, x, y: dist.all_to_all_single(y, x, group=group),
    "send": around}


def timed(step, steps):
    """(the median in ms, the processor time of all parts in ms a step). In some calls a rank is done before the others: it
    waits for them."""
    times, begun_s = [], cpu_s()
    for _ in range(steps):
        dist.barrier()
        begun = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - begun) * 1e-6)
    dist.barrier()
    return statistics.median(times), (cpu_s() - begun_s) * 1e3 / steps


def cpu_s():
    """Of all parts of the job, which psrun has started; where something else has started this one, of this one."""
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as f:
        if b"/psrun\0" not in f.read():
            return time.process_time()
    return sum(cpu_seconds(pid) for _, pid in descendants(os.getppid()))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.rest(x)


def gpt():
    return nn.Sequential(nn.Embedding(1000, 128), *(Block(128) for _ in range(4)), nn.Linear(128, 1000))


def numbers(*shape):
    """Without an end, others on each rank: words, or pictures."""
    random = torch.Generator().manual_seed(dist.get_rank())
    while True:
        yield torch.randint(1000, shape, generator=random) if len(shape) < 4 else torch.rand(shape, generator=random)


def by(way, model):
    """The model to call, and its optimizer. way: "gloo": DistributedDataParallel; "pstrain": pstrain.Optimizer."""
    if way == "pstrain":
        return model, pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-3)
    return DistributedDataParallel(model, process_group=GROUPS[way]), torch.optim.AdamW(model.parameters(), lr=1e-3)


def by_shards(way, model):
    """As by, with FSDP2 over either process group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    for part in (*model, model):
        fully_shard(part, mesh=DeviceMesh.from_group(GROUPS[way], "cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


class Training:
    """Steps of one model. Wanted are the words that it got, or the first class."""

    def __init__(self, model, optimizer, x):
        self.model, self.optimizer, self.x, self.losses = model, optimizer, x, []

    def step(self):
        torch.manual_seed(len(self.losses))  # of dropout
        x = next(self.x)
        out = self.model(x)
        wanted = torch.zeros(len(x), dtype=torch.long) if out.dim() == 2 else x.flatten()
        loss = nn.functional.cross_entropy(out.flatten(0, -2), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def dense(widths, norm):
    return [layer for a, b in zip(widths, widths[1:])
            for layer in (nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.LeakyReLU(0.2))]


class Gan:
    """Two networks, two optimizers, a step of each."""

    def __init__(self, way):
        self.makes, self.of_makes = by(way, nn.Sequential(*dense((100, 128, 256, 512, 1024), True), nn.Linear(1024, 784)))
        self.judges, self.of_judges = by(way, nn.Sequential(*dense((784, 512, 256), False), nn.Linear(256, 1)))
        self.x, self.losses = numbers(64, 1, 28, 28), []

    def step(self):
        x, noise = next(self.x).flatten(1), torch.randn(64, 100, generator=torch.Generator().manual_seed(len(self.losses)))
        wanted = torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
        loss_of = nn.functional.binary_cross_entropy_with_logits
        fake = self.makes(noise)
        self.of_judges.zero_grad()
        loss = loss_of(self.judges(torch.cat([x, fake.detach()])), wanted)
        loss.backward()
        self.of_judges.step()
        self.judges.requires_grad_(False)
        self.of_makes.zero_grad()
        loss_of(self.judges(fake), wanted[:64]).backward()
        self.of_makes.step()
        self.judges.requires_grad_(True)
        self.losses.append(loss.item())


STEPS = {"fully_shard": lambda way: Training(*by_shards(way, gpt()), numbers(4, 64)),
         "basicnet": lambda way: Training(*by(way, digits.BasicNet(28)), numbers(64, 1, 28, 28)),
         "resnet18": lambda way: Training(*by(way, resnet18.ResNet18()), numbers(8, 1, 32, 32)),
         "gpt": lambda way: Training(*by(way, gpt()), numbers(4, 64)), "gan": Gan}


def measured(ways, job):
    """{"ms", "cpu_ms"}: of each round, by the way; ways: {name: a step}."""
    found = {"ms": {name: [] for name in ways}, "cpu_ms": {name: [] for name in ways}}
    for round_ in range(job["rounds"] + 1):  # the first one warms up
        for name, step in ways.items():
            for key, took in zip(found, timed(step, job["steps"])):
                found[key][name] += [took] if round_ else []
    return found


def of_training(call, job):
    ways = {}
    for name in GROUPS:
        torch.manual_seed(3)
        ways[name] = STEPS[call](name)
    found = measured({name: way.step for name, way in ways.items()}, job)
    differ = max(abs(a - b) for a, b in zip(*(way.losses[:4] for way in ways.values())))  # later ones drift apart
    return {"call": call, "bytes": 0, **found, "losses_differ": differ}


GROUPS = {}


def main(job):
    torch.set_num_threads(1)
    dist.init_process_group("pstrain")
    GROUPS.update(gloo=dist.new_group(backend="gloo"), pstrain=dist.group.WORLD)
    rows = []
    for call in job["calls"]:
        if call in STEPS:
            rows.append(of_training(call, job))
            continue
        for size in job["sizes"]:
            n = size // 4 // dist.get_world_size() * dist.get_world_size()
            x, y = torch.zeros(n), torch.zeros(n)
            ways = {name: (lambda group=group: CALLS[call](group, x, y)) for name, group in GROUPS.items()}
            try:
                rows.append({"call": call, "bytes": size, **measured(ways, job)})
            except RuntimeError as error:
                if "support" not in str(error):
                    raise
                print(f"{call}: {error}", flush=True)  # Gloo's of PyTorch 1 has not all of them
    if dist.get_rank() == 0:
        print("group_job", json.dumps(rows), flush=True)
    dist.destroy_process_group()


main(json.loads(sys.argv[1]))
