"""PyTorch at its best, and the machine's limits, for tests/gpu/run.

  python3 peers.py SECONDS [limits | ahead | ddp] [cpu] [NAME=JOB.json ...] [gpt2]

Prints a line of JSON, [name, figure], as soon as each is there. All in one process: PyTorch's start
takes longer than a figure. Models are trained in bf16 (torch.autocast; in exact float32, where the name
says float32), channels_last, cudnn.benchmark, with a fused optimizer: eager, compiled, and compiled with CUDA graphs. gpt2: of 124M
parameters, 16 x 1024 tokens, by transformers. ahead: only compiles, for PyTorch's caches. ddp: one rank of
DistributedDataParallel over Gloo, as torchrun's variables say; three steps. cpu: to rehearse where there is no GPU.
"""
import glob
import json
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "bench"))

import torch  # noqa: E402

from benchlib import torch_model  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402

DEVICE = "cpu" if "cpu" in sys.argv else "cuda"
WARMUP = 12
WAYS = {"eager": None, "compile": "default", "compile with graphs": "reduce-overhead"}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(run, seconds):
    """Of one call, in the mean; the first calls are not counted."""
    for _ in range(WARMUP if DEVICE == "cuda" else 1):
        run()
    synchronize()
    start, n = time.perf_counter(), 0
    while n < 5 or time.perf_counter() - start < seconds:
        run()
        n += 1
        if n % 5 == 0:
            synchronize()
    synchronize()
    return (time.perf_counter() - start) / n


def us_beside(product, work, urgent, seconds):
    """How long the work takes in a stream of its own while products keep the GPU busy."""
    if DEVICE == "cpu":
        return seconds_of(work, seconds) * 1e6
    stream = torch.cuda.Stream(priority=-1 if urgent else 0)
    times = []
    for _ in range(7):
        for _ in range(8):
            product()
        with torch.cuda.stream(stream):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
        synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def numa_nodes():
    """The cores of each NUMA node, by its number."""
    nodes = {}
    for folder in glob.glob("/sys/devices/system/node/node[0-9]*"):
        with open(f"{folder}/cpulist", encoding="ascii") as f:
            ranges = [part.split("-") for part in f.read().strip().split(",") if part]
        cores = {core for part in ranges for core in range(int(part[0]), int(part[-1]) + 1)}
        if cores & os.sched_getaffinity(0):
            nodes[int(os.path.basename(folder)[4:])] = cores & os.sched_getaffinity(0)
    return nodes


def node_of_gpu():
    """-1: not known."""
    if DEVICE == "cpu":
        return -1
    said = subprocess.run(["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True,
                          check=True).stdout.split()[0].lower()
    try:
        with open(f"/sys/bus/pci/devices/{said[-12:]}/numa_node", encoding="ascii") as f:
            return int(f.read())
    except OSError:
        return -1


def by_node(seconds):
    """GB/s of copies with pinned memory of each NUMA node: a thread takes memory of the node where it runs."""
    n = 1 << (16 if DEVICE == "cpu" else 28)
    on, before = torch.zeros(n, dtype=torch.uint8, device=DEVICE), os.sched_getaffinity(0)
    kept = []  # else the next node would be given the same memory
    yield "NUMA node of the GPU", node_of_gpu()
    for node, cores in sorted(numa_nodes().items()):
        try:
            os.sched_setaffinity(0, cores)
            host = torch.zeros(n, dtype=torch.uint8)
            kept.append(host.pin_memory() if DEVICE == "cuda" else host)
            yield (f"H2D of node {node} GB/s",
                   n / seconds_of(lambda: on.copy_(kept[-1], non_blocking=True), seconds) / 1e9)
            yield (f"D2H of node {node} GB/s",
                   n / seconds_of(lambda: kept[-1].copy_(on, non_blocking=True), seconds) / 1e9)
        finally:
            os.sched_setaffinity(0, before)


def limits(seconds):
    """GB/s of copies, TFLOP/s of a product; microseconds of a kernel and of a copy of 4 MiB beside products, with and
    without the priority that the exchange's queues have."""
    n = 1 << (16 if DEVICE == "cpu" else 28)
    on, other = (torch.zeros(n, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    for name in ("pinned", "pageable"):
        host = torch.zeros(n, dtype=torch.uint8)
        if name == "pinned" and DEVICE == "cuda":
            host = host.pin_memory()
        yield f"H2D {name} GB/s", n / seconds_of(lambda: on.copy_(host, non_blocking=True), seconds) / 1e9
        yield f"D2H {name} GB/s", n / seconds_of(lambda: host.copy_(on, non_blocking=True), seconds) / 1e9
    yield "D2D GB/s", 2 * n / seconds_of(lambda: on.copy_(other), seconds) / 1e9
    k = 64 if DEVICE == "cpu" else 8192
    a, b = (torch.ones(k, k, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    yield "product bf16 TFLOP/s", 2 * k ** 3 / seconds_of(lambda: a @ b, seconds) / 1e12
    few, home = on[:1 << 22], torch.zeros(min(n, 1 << 22), dtype=torch.uint8)
    if DEVICE == "cuda":
        home = home.pin_memory()
    for name, work in (("kernel", lambda: few.add_(1)), ("D2H", lambda: home.copy_(few, non_blocking=True))):
        for urgent in (False, True):
            yield (f"{name} beside products, {'urgent' if urgent else 'normal'}, us",
                   us_beside(lambda: a @ b, work, urgent, seconds))
    yield from by_node(seconds)


class Pictures:
    """A model of pstrain's, as JobConfig describes it."""

    def __init__(self, path, narrow=True):
        self.narrow = narrow
        self.config = JobConfig.read(path)
        self.n = self.config.batch(0)

    def make(self):
        model = torch_model.Model(self.config).to(DEVICE).train()
        shape = self.config["model.input"]
        x = torch.rand(self.n, *shape, device=DEVICE)
        if len(shape) == 3:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        with torch.no_grad():
            labels = torch.randint(0, model(x[:2]).shape[1], (self.n,), device=DEVICE)
        loss_of = torch_model.loss_of(self.config)
        return model, lambda m: loss_of(m(x), labels)


class Gpt2:
    n, narrow = 16, True

    def make(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16} if DEVICE == "cpu" else {}
        model = GPT2LMHeadModel(GPT2Config(**small)).to(DEVICE).train()
        words = torch.randint(0, 50257, (self.n, model.config.n_positions), device=DEVICE)
        return model, lambda m: m(words, labels=words).loss


def fused_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if DEVICE == "cuda" else {}))


def step_of(peer, mode):
    torch.manual_seed(1)
    model, loss_of = peer.make()
    optimizer = fused_adamw(model)
    called = torch.compile(model, mode=mode) if mode else model

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=peer.narrow):
            loss = loss_of(called)
        loss.backward()
        optimizer.step()
    return step


def train(peer, mode, seconds):
    step = step_of(peer, mode)
    started = time.perf_counter()
    step_seconds = seconds_of(step, seconds)
    figure = {"samples_per_second": peer.n / step_seconds, "step_ms": step_seconds * 1e3,
              "seconds_in_all": round(time.perf_counter() - started, 1)}
    if DEVICE == "cuda":
        figure["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
        torch.cuda.reset_peak_memory_stats()
    return figure


def train_ddp(peer):
    """All ranks' samples a second. A step over a slow link takes seconds, so few are made."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model, loss_of = peer.make()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = fused_adamw(model)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=peer.narrow):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        synchronize()

    step()
    start, n = time.perf_counter(), 3
    for _ in range(n):
        step()
    seconds = (time.perf_counter() - start) / n
    ranks = dist.get_world_size()
    dist.destroy_process_group()
    return {"samples_per_second": ranks * peer.n / seconds, "step_ms": seconds * 1e3}


def say(name, figure):
    print(json.dumps([name, figure]), flush=True)


def main():
    seconds, words = float(sys.argv[1]), sys.argv[2:]
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    if "limits" in words:
        for name, figure in limits(seconds):
            say(name, round(figure, 2))
    peers = {name: Pictures(path, narrow="float32" not in name)
             for name, path in (word.split("=", 1) for word in words if "=" in word)}
    if "ddp" in words:
        for name, peer in peers.items():
            say(name, train_ddp(peer))
        return
    if "gpt2" in words:
        peers["GPT-2"] = Gpt2()
    eager, *compiled = WAYS
    compiled = [(name, way) for name in peers for way in compiled if DEVICE != "cpu"]
    if "ahead" in words:
        for name, way in compiled:
            step_of(peers[name], WAYS[way])()
        return
    # what is compiled comes last: it takes the most time
    for name, way in [*((name, eager) for name in peers), *compiled]:
        try:
            say(f"{name} {way}", train(peers[name], WAYS[way], seconds))
        except Exception as error:  # pylint: disable=broad-except
            say(f"{name} {way}", {"failed": f"{type(error).__name__}: {str(error)[-300:]}"})


if __name__ == "__main__":
    main()
