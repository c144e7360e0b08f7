"""A worker of bench/group: python3 group_job.py '{"calls": ..., "sizes": ..., "steps": ..., "rounds": ...}'. Both groups in
turn, in the same processes. Rank 0 prints "group_job" and a line of JSON: rows of a call and its bytes, with each round's
median in ms by backend; of fully_shard, which is a training step of a small GPT by FSDP2, also whether losses are the same."""
import json
import statistics
import sys
import time

import pstrain  # noqa: F401  the backend
import torch
import torch.distributed as dist
from torch import nn

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


def milliseconds(step, steps):
    """The median. In some calls a rank is done before the others: it waits for them."""
    times = []
    for _ in range(steps):
        dist.barrier()
        begun = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - begun) * 1e-6)
    return statistics.median(times)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.rest(x)


class Sharded:
    """A small GPT, and its steps by FSDP2."""

    def __init__(self, group, width=128, words=1000):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Embedding(words, width), *(Block(width) for _ in range(4)), nn.Linear(width, words))
        for part in (*self.model, self.model):
            fully_shard(part, mesh=DeviceMesh.from_group(group, "cpu"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.words, self.random, self.losses = words, torch.Generator().manual_seed(dist.get_rank()), []

    def step(self):
        x = torch.randint(self.words, (4, 64), generator=self.random)
        loss = nn.functional.cross_entropy(self.model(x).flatten(0, 1), x.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def measured(ways, job):
    """{name: each round's median}; ways: {name: a step}."""
    found = {name: [] for name in ways}
    for round_ in range(job["rounds"] + 1):  # the first one warms up
        for name, step in ways.items():
            took = milliseconds(step, job["steps"])
            if round_:
                found[name].append(took)
    return found


def main(job):
    torch.set_num_threads(1)
    dist.init_process_group("pstrain")
    groups = {"gloo": dist.new_group(backend="gloo"), "pstrain": dist.group.WORLD}
    rows = []
    for call in job["calls"]:
        if call == "fully_shard":
            models = {name: Sharded(group) for name, group in groups.items()}
            ways = measured({name: model.step for name, model in models.items()}, job)
            rows.append({"call": call, "bytes": sum(p.numel() * 4 for p in models["pstrain"].model.parameters()), "ms": ways,
                         "same_losses": models["gloo"].losses == models["pstrain"].losses})
            continue
        for size in job["sizes"]:
            n = size // 4 // dist.get_world_size() * dist.get_world_size()
            x, y = torch.zeros(n), torch.zeros(n)
            ways = {name: (lambda group=group: CALLS[call](group, x, y)) for name, group in groups.items()}
            try:
                rows.append({"call": call, "bytes": size, "ms": measured(ways, job)})
            except RuntimeError as error:
                if "support" not in str(error):
                    raise
                print(f"{call}: {error}", flush=True)  # Gloo's of PyTorch 1 has not all of them
    if dist.get_rank() == 0:
        print("group_job", json.dumps(rows), flush=True)
    dist.destroy_process_group()


main(json.loads(sys.argv[1]))
