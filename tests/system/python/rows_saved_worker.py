"""A rank of the jobs of test_rows_saved.py: python3 rows_saved_worker.py EXPORT [KEY=VALUE...]. Tables that grow, admit,
expire and evict, beside a dense layer; a commit after each second step."""
import contextlib
import errno
import os
import signal
import sys
from unittest import mock

import torch

import pstrain
from pstrain import job as jobs

given = dict(word.split("=", 1) for word in sys.argv[2:])
STEPS = int(given.get("steps", 9))
TABLES = {"user": dict(dim=6, admit=2, expire=3), "item": dict(dim=3, max_bytes=1024 * 240, evict=True), "word": dict(dim=4)}


def batch_of(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    few = torch.randint(0, 40 + step, (60,), generator=g)
    return {"user": few.view(-1, 2), "item": torch.randint(0, 9000, (4000,), generator=g).view(-1, 100), "word": few.view(-1, 2)}


def dies(rank, step):
    """who=RANK@STEP: in the first attempt, by SIGKILL; raise: by an exception."""
    if given.get("who") == f"{rank}@{step}" and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        if "raise" in given:
            raise RuntimeError("on purpose")
        os.kill(os.getpid(), signal.SIGKILL)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def fails_to_commit(state):
    """faulty=N: commit N has no room for the last of its rows' files; with of=rank, for rank 1's part. It leaves no file, and
    the one before stays."""
    rows, folder = jobs.current().rows(), given["folder"]
    keep, before = rows.keep, sorted(os.listdir(folder))
    of_rank = mock.patch.object(state._disk, "write", no_room) if pstrain.rank() == 1 else contextlib.nullcontext()
    of_rows = mock.patch.object(rows, "keep", lambda *words: (keep(*words)[0], "No space left on device"))
    try:
        with of_rank if given.get("of") == "rank" else of_rows:
            state.commit()
    except pstrain.Error as error:
        print("refused:", error, flush=True)
    pstrain.barrier()
    assert [name for name in sorted(os.listdir(folder)) if name not in before] == [], os.listdir(folder)
    pstrain.barrier()


def main():
    torch.set_num_threads(1)
    jobs.listen()
    pstrain.init()
    rank = pstrain.rank()
    torch.manual_seed(0)
    rows = pstrain.Embeddings(TABLES, optimizer=given.get("rule", "sparse_adam"), lr=0.1)
    model = torch.nn.ModuleDict({"rows": rows, "dense": torch.nn.Sequential(torch.nn.Linear(13, 4), torch.nn.Linear(4, 1))})
    optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=0.1)
    words = {"folder": given["folder"]} if "folder" in given else {}
    state = pstrain.State(model, optimizer, step=0, disk_every=int(given.get("disk_every", 1)),
                          rows_full_every=int(given.get("full_every", 1)), **words)
    state.sync()
    while state.step < STEPS:
        dies(rank, state.step)
        out = rows(batch_of(rank, state.step))
        n = min(len(each) for each in out.values())
        model["dense"](torch.cat([each[:n] for each in out.values()], 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        rows.set_lr(0.1 * 0.9 ** state.step)  # which the next step goes by
        if state.step == 2 * int(given.get("faulty", 0)):
            fails_to_commit(state)
        if state.step % 2 == 0:
            state.commit()
    if rank == 0:
        rows.export(sys.argv[1])
        with open(sys.argv[1], "ab") as file:
            file.write(model["dense"][0].weight.detach().numpy().tobytes())
    pstrain.shutdown()


main()
