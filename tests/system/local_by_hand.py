"""Local steps in PyTorch, by hand: all workers in one process, one after another.

local_by_hand.py CONFIG INIT [ROUNDS] OUT: CONFIG is what ps-config-json prints; it begins with the
weights in INIT and writes the last weights to OUT. ROUNDS, JSON: rounds that wait for all workers,
[[steps of each worker, ...] for each epoch]. test_local.py compares them with a job's.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import torch  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from benchlib import safetensors, torch_data  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402
from benchlib.torch_model import Model, loss_of, optimizer_of  # noqa: E402


class Worker:
    def __init__(self, config, state):
        self.model = Model(config)
        self.model.load_state_dict(state)
        self.optimizer = optimizer_of(config, self.model)
        self.clip = config["optimizer.clip_norm"]

    def step(self, loss, x, y):
        self.optimizer.zero_grad()
        loss(self.model(x), y).backward()
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()


def batches_of(config, n_samples, workers):
    """Yields, for each step of all epochs, the indices of every worker's batch."""
    for epoch in range(config["train.epochs"]):
        ranks = []
        for rank in range(workers):
            sampler = DistributedSampler(range(n_samples), workers, rank, shuffle=True, seed=config["data.seed"])
            sampler.set_epoch(epoch)
            ranks.append(torch.split(torch.tensor(list(sampler)), config.batch(rank)))
        yield from zip(*ranks)


ALIGN, BLOCK = 16, 4096  # elements: where tensors begin, and where a fragment may begin within one


def fragments_of(sizes, n):
    """Returns [(tensor, first element, end)] of each fragment: equal parts, the first at the model's end."""
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // ALIGN) * ALIGN

    def nearest(element):
        """The nearest beginning of a block of its tensor, or of the next tensor."""
        at = max(i for i, o in enumerate(offsets) if o <= element)
        place = (element - offsets[at] + BLOCK // 2) // BLOCK * BLOCK
        return offsets[at] + place if place < sizes[at] else (*offsets, total)[at + 1]

    borders = [nearest(total // n * i) for i in range(n)] + [total]
    return [[(t, max(begin - o, 0), min(end - o, size)) for t, (o, size) in enumerate(zip(offsets, sizes))
             if begin < o + size and end > o] for begin, end in reversed(list(zip(borders, borders[1:])))]


class Fragment:
    """A part of the model, with an outer optimizer of its own."""

    def __init__(self, config, parts, workers):
        self.config, self.parts, self.workers, self.due = config, parts, workers, None
        self.anchor = [p.detach().clone().requires_grad_() for p in self.of(workers[0])]
        self.outer = torch.optim.SGD(self.anchor, lr=config["sync.outer_lr"], momentum=config["sync.outer_momentum"],
                                     nesterov=config["sync.outer_nesterov"])

    def of(self, worker):
        tensors = list(worker.model.parameters())
        return [tensors[t].data.view(-1)[begin:end] for t, begin, end in self.parts]

    def synchronise(self, due, steps=None):
        """The outer optimizer's gradient is the workers' mean change with its sign reversed. A change counts by
        the worker's steps."""
        self.take()
        steps = steps or [1] * len(self.workers)
        for p, *locals_ in zip(self.anchor, *(self.of(w) for w in self.workers)):
            p.grad = sum(n * (p.detach() - q) for n, q in zip(steps, locals_)) / sum(steps)
        self.outer.step()
        self.due = due

    def take(self):
        """Streaming DiLoCo, algorithm 2: the result of some steps ago is mixed with the present weights."""
        if self.due is not None:
            self.put(self.config["sync.mixing"])
        self.due = None

    def put(self, kept):
        for worker in self.workers:
            for p, q in zip(self.anchor, self.of(worker)):
                q.copy_(kept * q + (1 - kept) * p.detach())


def sent_after(config, number, total):
    """Which fragments are synchronised after step `number` (from 1), and whether steps are made meanwhile."""
    n, k, after = config["sync.fragments"], config["sync.local_steps"], config["sync.local_after"]
    past = number - after
    if number == total or past <= 0:
        return list(range(n)), False
    whole_rounds, position = divmod(past - 1, k)
    if after + (whole_rounds + 1) * k >= total:
        return [], False
    return [f for f in range(n) if (f + 1) * k // n == position + 1], config["sync.overlap"] > 0


def train_rounds(config, rounds, fragment, x, y):
    """An epoch has as many rounds as the fastest worker's steps make."""
    steps = list(batches_of(config, len(x), len(fragment.workers)))
    per_epoch = len(steps) // config["train.epochs"]
    for epoch, k in enumerate(rounds):
        for r in range(per_epoch // max(k)):
            for rank, worker in enumerate(fragment.workers):
                first = epoch * per_epoch + r * k[rank]
                for batches in steps[first:first + k[rank]]:
                    worker.step(loss_of(config), x[batches[rank]], y[batches[rank]])
            fragment.synchronise(None, k)
            fragment.put(0)


def train_together(config, fragments, workers, x, y):
    steps = list(batches_of(config, len(x), len(workers)))
    for number, batches in enumerate(steps, 1):
        for fragment in fragments:
            if fragment.due is not None and number > fragment.due:
                fragment.take()
        for worker, indices in zip(workers, batches):
            worker.step(loss_of(config), x[indices], y[indices])
        sent, overlaps = sent_after(config, number, len(steps))
        for f in sent:
            fragments[f].synchronise(number + config["sync.overlap"] if overlaps else None)
            if not overlaps:
                fragments[f].put(0)


def main(config_path, init, *rounds, out):
    torch.set_num_threads(1)
    config = JobConfig.read(config_path)
    x, y = torch_data.load(config, "train")
    state = {k: torch.from_numpy(v.copy()) for k, v in safetensors.load(init).items()}
    workers = [Worker(config, state) for _ in range(config["job.workers"])]
    sizes = [p.numel() for p in workers[0].model.parameters()]
    fragments = [Fragment(config, parts, workers) for parts in fragments_of(sizes, config["sync.fragments"])]
    if rounds:
        train_rounds(config, json.loads(rounds[0]), fragments[0], x, y)
    else:
        train_together(config, fragments, workers, x, y)
    safetensors.save(out, {name: p.detach().numpy() for name, p in workers[0].model.named_parameters()})


if __name__ == "__main__":
    main(*sys.argv[1:-1], out=sys.argv[-1])
