#!/usr/bin/env python3
"""One worker of the Python package that computes nothing: bench/exchange's step through
pstrain.Optimizer. bench/pytorch starts it.

  package_exchange.py NUMBERS TENSORS STEPS WARMUP PLACE

The NUMBERS (float32) of the gradient are cut into that many TENSORS. They are there already when
a step begins. PLACE "arena": where they are sent from, as in bench/exchange. "own": in memory of
their own, where a backward pass leaves them; step() copies them. Rank 0 prints "mark" and waits
for a line before and after the timed steps; the last line is {"step_ns": [...]}.
"""
import json
import sys
import time

sys.dont_write_bytecode = True

import torch  # noqa: E402
import pstrain  # noqa: E402


class Tensors(torch.nn.Module):
    def __init__(self, numbers, n):
        super().__init__()
        each = -(-numbers // n)
        sizes = [min(each, numbers - i * each) for i in range(n)]
        self.parts = torch.nn.ParameterList([torch.zeros(s) for s in sizes])


def timed(call, n):
    out = []
    for _ in range(n):
        begun = time.perf_counter_ns()
        call()
        out.append(time.perf_counter_ns() - begun)
    return out


def mark():
    pstrain.barrier()
    if pstrain.rank() == 0:
        print("mark", flush=True)
        sys.stdin.readline()
    pstrain.barrier()


def main(numbers, n_tensors, steps, warmup, place):
    torch.set_num_threads(1)
    pstrain.init()
    model = Tensors(numbers, n_tensors)
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=1.0,
                                  gradient_as_arena_view=place == "arena")
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, float(i % 7 + pstrain.rank()))

    def step():
        optimizer.step()
        optimizer.synchronize()

    optimizer.start()
    timed(step, warmup)
    mark()
    took = timed(step, steps)
    mark()
    size, total = pstrain.size(), steps + warmup
    for i, p in enumerate(model.parameters()):
        wanted = -total * sum((i % 7 + r) / size for r in range(size))
        assert torch.allclose(p, torch.full_like(p, wanted)), (i, p, wanted)
    print(json.dumps({"step_ns": took}), flush=True)
    pstrain.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), sys.argv[5])
