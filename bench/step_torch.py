"""PyTorch's side of bench/step: the same model, batch size and optimizer.

Prints "ready", and for each line {"job": JOB.json, "steps": S, "warmup": W, "seconds": T, "words":
[fused, ...]} that it reads one JSON object like ps-bench-step's: S steps,
or fewer (3 at least) when T seconds are over. fused: the optimizer's fused form, where it
exists. channels_last: the memory format of weights and images. With train.precision=bf16
the model runs under torch.autocast.
"""
import json
import sys
import time

sys.dont_write_bytecode = True

import torch  # noqa: E402

from benchlib import torch_model  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402

LEAST_STEPS = 3


def optimizer_of(config, model, fused):
    """The optimizer, fused if this PyTorch has a fused one for the CPU."""
    if fused:
        try:
            return torch_model.optimizer_of(config, model, fused=True)
        except (TypeError, RuntimeError):
            pass
    return torch_model.optimizer_of(config, model)


def run(job, steps, warmup, seconds, words):
    config = JobConfig.read(job)
    torch.set_num_threads(max(1, config["train.threads"]))
    torch.manual_seed(config["train.seed"])
    model = torch_model.Model(config)
    model.train()
    loss_of = torch_model.loss_of(config)
    n = config.batch(0)
    x = torch.rand(n, *config["model.input"]) * 2 - 1
    if "channels_last" in words and x.dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = optimizer_of(config, model, "fused" in words)
    with torch.no_grad():
        classes = model(x).shape[1]
    labels = torch.randint(0, classes, (n,))
    step_ms, cpu_ms, end = [], [], None
    for i in range(warmup + steps):
        start, cpu = time.perf_counter(), time.process_time()
        if i == warmup:
            end = start + seconds
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        value = loss.item()
        cpu_ms.append((time.process_time() - cpu) * 1e3)
        step_ms.append((time.perf_counter() - start) * 1e3)
        if i + 1 >= warmup + LEAST_STEPS and time.perf_counter() > end:
            break
    return {"device": f"PyTorch {torch.__version__}", "batch": n, "loss": value,
            "step_ms": step_ms[warmup:], "cpu_ms": cpu_ms[warmup:]}


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


main()
