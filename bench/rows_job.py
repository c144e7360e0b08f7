"""A worker of bench/rows: python3 rows_job.py '{"way": ..., "tables": ...}'. Prints "rows_job" and a line of JSON."""
import json
import os
import sys

import torch

from benchlib.processes import cpu_seconds, descendants

WARM, BATCHES, BLOCKS = 40, 16, 3


def draw_batches(job):
    """Ids by Zipf 1.05: a bag of one id for each sample."""
    g = torch.Generator().manual_seed(1)
    shares = torch.arange(1, job["ids"] + 1, dtype=torch.float64) ** -1.05
    sums = shares.cumsum(0) / shares.sum()
    return [{f"t{t}": torch.searchsorted(sums, torch.rand(job["batch"], 1, generator=g, dtype=torch.float64))
             .clamp_(max=job["ids"] - 1) for t in range(job["tables"])} for _ in range(BATCHES)]


def torch_step(job, grads):
    bags = {f"t{t}": torch.nn.EmbeddingBag(job["ids"], job["dim"], mode="sum", sparse=True) for t in range(job["tables"])}
    optimizer = torch.optim.Adagrad([bag.weight for bag in bags.values()], lr=0.01)

    def step(ids, _):
        torch.autograd.backward([bags[name](its) for name, its in ids.items()], grads)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def fbgemm_step(job, grads):
    """The ids of all tables in one tensor, as it takes them, are made before."""
    import logging
    logging.disable(logging.WARNING)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
    tables = [(job["ids"], job["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)] * job["tables"]
    bags = SplitTableBatchedEmbeddingBagsCodegen(tables, optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.01, eps=1e-10)
    offsets, grad, joined = torch.arange(job["tables"] * job["batch"] + 1), torch.cat(grads, 1), {}

    def step(ids, _):
        if id(ids) not in joined:
            joined[id(ids)] = torch.cat([its.view(-1) for its in ids.values()])
        bags(joined[id(ids)], offsets).backward(grad)
    return step


def server_step(job, grads):
    import pstrain
    pstrain.init()
    rows = pstrain.Embeddings({f"t{t}": dict(dim=job["dim"]) for t in range(job["tables"])}, optimizer="adagrad", lr=0.01)

    def step(ids, next_ids):
        outs = list(rows(ids).values())
        if job["way"] == "ahead":
            rows.prefetch(next_ids)
        torch.autograd.backward(outs, grads)
        rows.step()
    return step


def main(job):
    torch.set_num_threads(1)
    batches = draw_batches(job)
    grads = [torch.full((job["batch"], job["dim"]), 1e-3 * (t + 1)) for t in range(job["tables"])]
    step = {"torch": torch_step, "fbgemm": fbgemm_step}.get(job["way"], server_step)(job, grads)
    parts = [os.getpid(), *(pid for name, pid in descendants(os.getppid()) if job["servers"] and name == "ps-server")]

    def cpu_ms(n):
        before = sum(map(cpu_seconds, parts))
        for i in range(n):
            step(batches[i % BATCHES], batches[(i + 1) % BATCHES if i + 1 < n else 0])
        return (sum(map(cpu_seconds, parts)) - before) / n * 1e3
    cpu_ms(WARM)
    print("rows_job", json.dumps({"cpu_ms": min(cpu_ms(job["steps"]) for _ in range(BLOCKS))}), flush=True)


main(json.loads(sys.argv[1]))
