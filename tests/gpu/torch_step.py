"""PyTorch's side of tests/gpu/run: the job's model trained on a GPU.

  python3 torch_step.py JOB.json SECONDS [compile] [tf32] [bf16 | fp16] [cpu]

It runs alone or, with torchrun's variables, as one rank of DDP over Gloo on the same GPU. bf16 and
fp16 are torch.autocast's, the latter with GradScaler. Each step takes another batch from pinned
host memory, as pstrain does; only the end waits for the GPU. Prints one JSON object with
samples_per_second of all ranks. cpu: to rehearse where there is no GPU.
"""
import json
import os
import sys
import time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import torch  # noqa: E402

from benchlib import torch_model  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402

WARMUP = 15
DEVICE = "cpu" if "cpu" in sys.argv[3:] else "cuda"


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def pinned(t):
    return t.pin_memory() if DEVICE == "cuda" else t


def batches(config, n, classes, count=8):
    made = []
    for _ in range(count):
        x = torch.rand(n, *config["model.input"]) * 2 - 1
        made.append((pinned(x), pinned(torch.randint(0, classes, (n,)))))
    return made


def fused(optimizer, config):
    groups = [{k: g[k] for k in ("params", "weight_decay", "momentum") if k in g}
              for g in optimizer.param_groups]
    return type(optimizer)(groups, lr=config["optimizer.lr"], fused=True)


def narrow(words):
    """Returns the autocast of the precision that the words name, and its scaler."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    wanted = [types[w] for w in words if w in types]
    cast = torch.autocast(DEVICE, dtype=wanted[0] if wanted else torch.bfloat16,
                          enabled=bool(wanted))
    return cast, torch.amp.GradScaler(DEVICE, enabled="fp16" in words)


def agree(seconds_a_step, world):
    """Returns the slowest rank's number, so that all ranks make the same number of steps."""
    t = torch.tensor([seconds_a_step])
    if world > 1:
        torch.distributed.all_reduce(t, op=torch.distributed.ReduceOp.MAX)
    return t.item()


def main():
    config, seconds = JobConfig.read(sys.argv[1]), float(sys.argv[2])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    tf32 = "tf32" in sys.argv[3:]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = torch_model.Model(config).to(DEVICE).train()
    n = config.batch(0)
    with torch.no_grad():
        classes = model(torch.zeros(2, *config["model.input"], device=DEVICE)).shape[1]
    optimizer = torch_model.optimizer_of(config, model)
    loss_of = torch_model.loss_of(config)
    if world > 1:
        os.environ.setdefault("USE_LIBUV", "0")  # Debian's PyTorch has none, and asks for it
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[0] if DEVICE == "cuda" else None)
    if "compile" in sys.argv[3:]:
        model = torch.compile(model, mode="max-autotune")
        optimizer = fused(optimizer, config)
    data = batches(config, n, classes)
    cast, scaler = narrow(sys.argv[3:])

    def run(steps):
        synchronize()
        start = time.perf_counter()
        for i in range(steps):
            x, labels = (t.to(DEVICE, non_blocking=True) for t in data[i % len(data)])
            optimizer.zero_grad()
            with cast:
                loss = loss_of(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        synchronize()
        return (time.perf_counter() - start) / steps, loss.item()

    run(WARMUP)
    steps = max(20, min(20000, int(seconds / agree(run(WARMUP)[0], world))))
    step, loss = run(steps)
    name = torch.cuda.get_device_name(0) if DEVICE == "cuda" else "cpu"
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"torch": torch.__version__, "device": name, "batch": n,
                          "steps": steps, "step_ms": step * 1e3, "loss": loss,
                          "samples_per_second": n * world / step}))
    if world > 1:
        torch.distributed.destroy_process_group()


main()
