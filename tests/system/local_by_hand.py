"""Local steps in PyTorch, by hand: all workers in one process, one after another.

local_by_hand.py CONFIG INIT OUT: CONFIG is what ps-config-json prints; begins with the weights
in INIT and writes the last weights to OUT. test_local.py compares them with a job's.
"""
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
    """For each step of all epochs the indices of every worker's batch."""
    for epoch in range(config["train.epochs"]):
        ranks = []
        for rank in range(workers):
            sampler = DistributedSampler(range(n_samples), workers, rank, shuffle=True, seed=config["data.seed"])
            sampler.set_epoch(epoch)
            ranks.append(torch.split(torch.tensor(list(sampler)), config.batch(rank)))
        yield from zip(*ranks)


def synchronise(config, outer, anchor, workers):
    """The outer optimizer's gradient is the mean of how far the workers have come, reversed."""
    outer.zero_grad()
    with torch.no_grad():
        for p, *locals_ in zip(anchor, *(w.model.parameters() for w in workers)):
            p.grad = sum(p - q for q in locals_) / len(workers)
    outer.step()
    with torch.no_grad():
        for p, *locals_ in zip(anchor, *(w.model.parameters() for w in workers)):
            for q in locals_:
                q.copy_(p)


def main(config_path, init, out):
    torch.set_num_threads(1)
    config = JobConfig.read(config_path)
    x, y = torch_data.load(config, "train")
    state = {k: torch.from_numpy(v.copy()) for k, v in safetensors.load(init).items()}
    workers = [Worker(config, state) for _ in range(config["job.workers"])]
    anchor = [p.detach().clone().requires_grad_() for p in workers[0].model.parameters()]
    outer = torch.optim.SGD(anchor, lr=config["sync.outer_lr"], momentum=config["sync.outer_momentum"],
                            nesterov=config["sync.outer_nesterov"])
    steps = list(batches_of(config, len(x), len(workers)))
    for number, batches in enumerate(steps, 1):
        for worker, indices in zip(workers, batches):
            worker.step(loss_of(config), x[indices], y[indices])
        past = number - config["sync.local_after"]
        if past <= 0 or past % config["sync.local_steps"] == 0 or number == len(steps):
            synchronise(config, outer, anchor, workers)
    names = [name for name, _ in workers[0].model.named_parameters()]
    safetensors.save(out, {name: p.detach().numpy() for name, p in zip(names, anchor)})


if __name__ == "__main__":
    main(*sys.argv[1:])
