"""PyTorch's side of bench/step: the same model, batch size and optimizer, one process.

  python3 step_torch.py JOB.json STEPS WARMUP [fused]

Prints one JSON object like ps-bench-step's. fused: AdamW's fused form, where it exists.
"""
import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import torch  # noqa: E402

from benchlib import torch_model  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402


def main():
    config = JobConfig.read(sys.argv[1])
    steps, warmup = int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(max(1, config["train.threads"]))
    torch.manual_seed(config["train.seed"])
    model = torch_model.Model(config)
    model.train()
    loss_of = torch_model.loss_of(config)
    optimizer = torch_model.optimizer_of(config, model)
    if "fused" in sys.argv[4:]:
        groups = [{"params": g["params"], "weight_decay": g["weight_decay"]}
                  for g in optimizer.param_groups]
        optimizer = type(optimizer)(groups, lr=config["optimizer.lr"], fused=True)
    n = config.batch(0)
    x = torch.rand(n, *config["model.input"]) * 2 - 1
    with torch.no_grad():
        classes = model(x).shape[1]
    labels = torch.randint(0, classes, (n,))
    step_ms, cpu_ms = [], []
    for _ in range(warmup + steps):
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        value = loss.item()
        cpu_ms.append((time.process_time() - cpu) * 1e3)
        step_ms.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"device": f"PyTorch {torch.__version__}", "batch": n, "loss": value,
                      "step_ms": step_ms[warmup:], "cpu_ms": cpu_ms[warmup:]}))


main()
