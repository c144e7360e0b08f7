"""A worker of bench/group: python3 group_job.py '{"sizes": ..., "steps": ..., "rounds": ...}'. Both groups in turn, in the
same processes. Rank 0 prints "group_job" and a line of JSON: by size and backend, each round's median in ms."""
import json
import statistics
import sys
import time

import pstrain  # noqa: F401  the backend
import torch
import torch.distributed as dist


def milliseconds(group, tensor, steps):
    """The median of an all_reduce."""
    times = []
    for _ in range(steps):
        begun = time.perf_counter_ns()
        dist.all_reduce(tensor, group=group)
        times.append((time.perf_counter_ns() - begun) * 1e-6)
    return statistics.median(times)


def main(job):
    torch.set_num_threads(1)
    dist.init_process_group("pstrain")
    groups = {"gloo": dist.new_group(backend="gloo"), "pstrain": dist.group.WORLD}
    found = {}
    for size in job["sizes"]:
        tensor = torch.zeros(size // 4)
        found[size] = {name: [] for name in groups}
        for round_ in range(job["rounds"] + 1):  # the first one warms up
            for name, group in groups.items():
                took = milliseconds(group, tensor, job["steps"])
                if round_:
                    found[size][name].append(took)
    if dist.get_rank() == 0:
        print("group_job", json.dumps(found), flush=True)
    dist.destroy_process_group()


main(json.loads(sys.argv[1]))
