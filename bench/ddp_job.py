#!/usr/bin/env python3
"""One process of the same job in PyTorch: by DistributedDataParallel over Gloo, or by the Python
package's Optimizer (--package).

bench/parity, bench/compare, bench/network and bench/pytorch start it once per rank, with torchrun's
variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). It reads the JSON that
ps-config-json prints, starts from a safetensors file that pstrain wrote, takes its samples
by torch's own DistributedSampler, and writes what ps-worker writes: summary.json and
metrics.jsonl. Samples are in memory, normalised once: only the training is timed.
"""
import argparse
import functools
import json
import math
import os
import resource
import sys
import time

sys.dont_write_bytecode = True

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from benchlib import safetensors, torch_data, torch_hooks  # noqa: E402
from benchlib.job_config import BenchError, JobConfig  # noqa: E402
from benchlib.stats import percentile  # noqa: E402
from benchlib.torch_model import Model, loss_of, optimizer_of, package_optimizer, scaler_of  # noqa: E402


def shuffled(batch):
    return batch[torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))]


# Orders of the samples within a batch.
ORDERS = {"given": lambda batch: batch, "reversed": lambda batch: batch.flip(0), "shuffled": shuffled}


def parser(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", required=True, help="JSON of ps-config-json")
    p.add_argument("--init", help="start from this safetensors file")
    p.add_argument("--out", required=True)
    return p


def arguments():
    p = parser(__doc__)
    p.add_argument("--order", choices=sorted(ORDERS), default="given",
                   help="order of the samples within a batch: the same mean, other roundings")
    p.add_argument("--hook", default="none",
                   help="PyTorch's communication hook: none, fp16, powersgd1, powersgd2, ..., or postlocalK, its "
                        "post-local SGD: K steps between two averages")
    p.add_argument("--package", metavar="CODEC",
                   help="no DDP: pstrain.Optimizer with this codec; its job is PS_INIT_METHOD's")
    p.add_argument("--marks", action="store_true",
                   help="rank 0 prints a line and waits for one before and after the timed steps")
    p.add_argument("--evaluate", action="store_true", help="after every epoch")
    return p.parse_args()


class Schedule:
    """The learning rate at a step, in the closed forms of pstrain."""

    def __init__(self, config, total):
        self.c = {k.split(".")[1]: v for k, v in config.keys.items() if k.startswith("schedule.")}
        self.total = self.c["total"] or total

    def __call__(self, step, lr):
        """lr: of the parameter group."""
        c, warmup = self.c, self.c["warmup"]
        if step < warmup:
            start = c["warmup_start"]
            return lr * (start + (1 - start) * step / warmup)
        at, span = step - warmup, max(1, self.total - warmup)
        if c["name"] == "step":
            return lr * c["gamma"] ** (at // c["step_size"])
        if c["name"] == "cosine":
            return self._cosine(lr, c["min_lr"], min(at, span) / span)
        if c["name"] == "linear":
            return lr + (c["min_lr"] - lr) * min(at, span) / span
        if c["name"] == "polynomial":
            return c["min_lr"] + (lr - c["min_lr"]) * (1 - min(at, span) / span) ** c["power"]
        if c["name"] in ("cosine_restarts", "onecycle"):
            return self.by_pytorch(lr)[min(at, span - 1)]
        return lr

    @staticmethod
    def _cosine(begin, end, done):
        return end + (begin - end) * (1 + math.cos(math.pi * done)) / 2

    @functools.lru_cache(maxsize=None)
    def by_pytorch(self, lr):
        """The rates of all steps after the warm-up."""
        c, steps = self.c, self.total - self.c["warmup"]
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        if c["name"] == "onecycle":
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, lr, steps, pct_start=c["pct_start"], anneal_strategy=c["anneal"],
                cycle_momentum=False, div_factor=c["div_factor"],
                final_div_factor=c["final_div_factor"], three_phase=c["three_phase"])
        else:
            scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
                optimizer, c["t_0"], c["t_mult"], c["min_lr"])
        rates = []
        for step in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if step + 1 < steps:
                scheduler.step()
        return rates


def moved(interface):
    """Bytes that a network interface has sent and received, all headers included; None of the loopback
    device, which all processes share."""
    with open("/proc/self/net/dev", encoding="ascii") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    counters = {name.strip(): [int(v) for v in line.split()] for name, line in lines.items()}.get(interface)
    return counters and interface != "lo" and (counters[8], counters[0])


class Job:
    def __init__(self, args, config):
        self.args, self.config = args, config
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if len(set(config["data.batch"])) > 1:
            raise BenchError("DDP needs equal batches: data.batch has to be one number")
        self.batch = config.batch(self.rank)
        self.x, self.y = torch_data.load(config, "train")
        torch.manual_seed(config["train.seed"])
        self.model = Model(config)
        if args.init:
            state = {k: torch.from_numpy(v.copy()) for k, v in safetensors.load(args.init).items()}
            self.model.load_state_dict(state, strict=True)
        # As for DDP users, dropout has another random stream on every rank.
        torch.manual_seed(config["train.seed"] * 1000 + self.rank)
        self.loss = loss_of(config)
        self.scaler = scaler_of(config)
        self.sampler = DistributedSampler(
            range(len(self.x)), self.world, self.rank, shuffle=config["data.shuffle"],
            seed=config["data.seed"], drop_last=config["data.drop_last"])
        self.accumulate = config["train.accumulate"]
        self.batches = len(self.sampler) / self.batch  # as DataLoader counts them
        self.batches = (math.floor if config["data.drop_last_batch"] else math.ceil)(self.batches)
        per_epoch = math.ceil(self.batches / self.accumulate)
        limit = config["train.steps"] or 1 << 60
        self.total = min(limit, per_epoch * config["train.epochs"])
        self.schedule = Schedule(config, self.total)
        self.ddp, self.optimizer = self.exchange()
        self.ties = None
        self.step_ms, self.samples, self.skipped = [], 0, 0
        self.interface, self.moved = os.environ.get("GLOO_SOCKET_IFNAME"), None
        self.since_record = [0.0, 0]  # this rank's loss sum and samples
        self.epoch_sums = [0.0, 0]    # all ranks'

    def exchange(self):
        """(the model to call, the optimizer)"""
        if self.args.package:
            if self.config["train.accumulate"] > 1:
                raise BenchError("--package is written for train.accumulate=1")
            return self.model, package_optimizer(self.config, self.model, self.args.package, self.total)
        ddp = DistributedDataParallel(self.model, **torch_hooks.buckets(self.args.hook, self.config))
        optimizer = optimizer_of(self.config, self.model)
        return ddp, torch_hooks.register(ddp, self.args.hook, self.config, optimizer)

    def mark(self):
        """All ranks wait for each other; with --marks also for the reader of the output."""
        if not self.args.marks:
            return
        if self.args.package:
            self.optimizer.synchronize()
        dist.barrier()
        if self.rank == 0:
            print("mark", flush=True)
            sys.stdin.readline()
        dist.barrier()

    def groups(self, epoch):
        """Yields for each optimizer step the indices of its micro-batches."""
        self.sampler.set_epoch(epoch)
        indices = torch.tensor(list(self.sampler))
        batches = torch.split(indices, self.batch)[:self.batches]
        batches = [ORDERS[self.args.order](b) for b in batches]
        for i in range(0, len(batches), self.accumulate):
            yield batches[i:i + self.accumulate]

    def backward(self, group):
        """Returns the mean loss over the group's samples. Its gradient is in .grad."""
        n, loss_sum = sum(len(b) for b in group), 0.0
        for i, indices in enumerate(group):
            last = i == len(group) - 1
            self.ddp.require_backward_grad_sync = last
            loss = self.loss(self.ddp(self.x[indices]), self.y[indices])
            loss_of_group = loss * (len(indices) / n) if len(group) > 1 else loss
            self.scaler.scale(loss_of_group).backward()
            loss_sum += loss.item() * len(indices)
        return loss_sum / n, n

    def step(self, group, number):
        begun = time.perf_counter()
        for g in self.optimizer.param_groups:
            g["lr"] = self.schedule(number, g.setdefault("first_lr", g["lr"]))
        self.optimizer.zero_grad()
        loss, n = self.backward(group)
        self.scaler.unscale_(self.optimizer)
        if self.ties:
            indices, = group  # no accumulation there
            self.ties.step(self.x[indices], self.y[indices])
        if self.config["optimizer.clip_norm"] > 0 and not self.args.package:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config["optimizer.clip_norm"])
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < scale
        self.samples += n
        self.since_record[0] += loss * n
        self.since_record[1] += n
        self.step_ms.append(1e3 * (time.perf_counter() - begun))

    def over_ranks(self, values):
        t = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(t)
        return t.tolist()

    def record(self, metrics, number, epoch):
        """Writes, after `number` steps, the mean loss over all ranks since the last record."""
        loss_sum, n = self.over_ranks(self.since_record)
        self.since_record = [0.0, 0]
        self.epoch_sums = [self.epoch_sums[0] + loss_sum, self.epoch_sums[1] + n]
        metrics({"step": number, "epoch": epoch, "loss_mean": loss_sum / n})

    def train(self, metrics):
        """Runs steps and evaluations; returns the seconds of the steps after the warm-up."""
        number, epoch, every = 0, 0, max(1, self.config["train.log_every"])
        self.moved = moved(self.interface)
        warmup, timed, timed_samples = self.config["train.warmup_steps"], 0.0, 0
        self.ddp.train()
        if warmup == 0:
            self.mark()
        while number < self.total:
            mark, before, self.epoch_sums = time.perf_counter(), self.samples, [0.0, 0]
            for group in self.groups(epoch):
                self.step(group, number)
                number += 1
                if number == warmup:
                    self.mark()
                    mark, before = time.perf_counter(), self.samples
                    self.moved = moved(self.interface)
                if number % every == 0:
                    self.record(metrics, number, epoch)
                if number == self.total:
                    break
            if number > warmup:
                timed += time.perf_counter() - mark
                timed_samples += self.samples - before
            if self.over_ranks([self.since_record[1]])[0]:
                self.record(metrics, number, epoch)
            if self.evaluates:
                loss, accuracy = self.evaluate()
                metrics({"step": number, "epoch": epoch, "test_loss": loss, "test_accuracy": accuracy})
                self.ddp.train()
            epoch += 1
        self.mark()
        return timed, timed_samples

    def evaluate(self):
        """(mean loss, accuracy) over disjoint slices of the test set."""
        x, y = torch_data.load(self.config, "test")
        begin, end = (len(x) * r // self.world for r in (self.rank, self.rank + 1))
        self.ddp.eval()
        torch_hooks.average(self.model, self.args.hook)
        sums = torch.zeros(3, dtype=torch.float64)
        with torch.no_grad():
            for i in range(begin, end, self.config["data.eval_batch"]):
                part = slice(i, min(end, i + self.config["data.eval_batch"]))
                out = self.model(x[part])
                n = part.stop - part.start
                sums += torch.tensor([self.loss(out, y[part]).item() * n, (out.argmax(1) == y[part]).sum().item(), n])
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def summary(job, seconds, timed, timed_samples, traffic, test):
    config, late = job.config, job.step_ms[job.config["train.warmup_steps"]:]
    # The bytes of a ring, if nothing counts them.
    sent, received = traffic or [2 * (job.world - 1) * config.gradient_bytes() // job.world] * 2
    return {
        "mode": f"package {job.args.package}" if job.args.package else "ddp", "model": config["job.name"], "dataset": config["data.kind"],
        "device": "cpu", "precision": "bf16" if job.model.narrow else "float32", "servers": 0, "shards": 0,
        "workers": job.world, "params": config.n_params, "epochs": config["train.epochs"], "steps": len(job.step_ms),
        "skipped_steps": job.skipped, "loss_scale": job.scaler.get_scale(), "samples": job.samples * job.world, "seconds": seconds,
        "samples_per_second": timed_samples * job.world / timed if timed else None,
        "step_ms_p50": percentile(late, 0.5), "step_ms_p99": percentile(late, 0.99), "exchange_wait_ms_p50": None,
        "bytes_sent_per_step": sent, "bytes_received_per_step": received, "bytes_computed": not traffic,
        "train_loss": job.epoch_sums[0] / job.epoch_sums[1] if job.epoch_sums[1] else None,
        "test_loss": test[0], "test_accuracy": test[1], "seed": config["train.seed"],
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "hook": job.args.hook, "torch": torch.__version__, "threads": torch.get_num_threads(),
    }


def save(job):
    if job.args.package:
        job.optimizer.synchronize()
    state = {k: v.detach().numpy() for k, v in job.model.state_dict().items()}
    safetensors.save(os.path.join(job.args.out, "model.safetensors"), state)


def main(job):
    args, config, lead = job.args, job.config, job.rank == 0
    os.makedirs(args.out, exist_ok=True)
    log = open(os.path.join(args.out, "metrics.jsonl"), "w") if lead else None
    begun = time.perf_counter()
    job.evaluates = args.evaluate
    timed, n = job.train(lambda line: lead and log.write(
        json.dumps({**line, "seconds": time.perf_counter() - begun}) + "\n"))
    seconds = time.perf_counter() - begun
    timed_steps = len(job.step_ms) - config["train.warmup_steps"]
    traffic = job.moved and timed_steps > 0 and [(now - then) / timed_steps
                                                 for now, then in zip(moved(job.interface), job.moved)]
    test = job.evaluate()
    if lead:
        log.close()
        save(job)
        with open(os.path.join(args.out, "summary.json"), "w") as f:
            json.dump(summary(job, seconds, timed, n, traffic, test), f, indent=2)
    if args.package:
        dist.barrier()
        import pstrain
        pstrain.shutdown()


def run(args, kind, main):
    """Joins the process group that the environment names, and calls a rank's main with its Job of that kind. Ends the
    process."""
    try:
        config = JobConfig.read(args.config)
        torch.set_num_threads(max(1, config["train.threads"]))
        os.environ.setdefault("USE_LIBUV", "0")  # Debian's PyTorch has none, and asks for it
        dist.init_process_group("gloo")
        main(kind(args, config))
    except BenchError as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")
    dist.barrier()
    # Everything is written. The orderly end of a process group has been seen to hang on a
    # loaded machine (torch 1.13), and nothing is left for it to do.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    run(arguments(), Job, main)
