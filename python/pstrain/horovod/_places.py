"""Where this process stands among all ranks, as its launcher says or as the hosts' names do."""
from __future__ import annotations

import hashlib
import os
import socket
import typing

import torch

from .. import _collectives, job as jobs

# Rank, size, local rank, local size of: psrun and torchrun; horovodrun; Open MPI; MPICH and Intel MPI.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"))


class Place(typing.NamedTuple):
    """In Horovod's words."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


def launched() -> "tuple[int | None, int | None, int, int]":
    """(rank, size, local rank, local size) as a launcher says. Rank and size None: none does; the others -1."""
    for names in _LAUNCHERS:
        if all(os.environ.get(name, "").isdigit() for name in names[:2]):
            rank, size, local, n_local = (int(os.environ.get(name) or -1) for name in names)
            return (rank, size, local, n_local) if min(local, n_local) >= 0 else (rank, size, -1, -1)
    return None, None, -1, -1


def find(job: jobs.Job) -> Place:
    """Collective."""
    host = int.from_bytes(hashlib.sha256(socket.gethostname().encode()).digest()[:7], "little")
    said: "list[list[int]]" = _collectives.gather(job, torch.tensor([host, *launched()[2:]], device="cpu")).tolist()
    return _place(job.rank, [(host, local, size) for host, local, size in said])


def _place(rank: int, said: "list[tuple[int, int, int]]") -> Place:
    """said: (host, local rank, local size) of each rank; those below 0 are found by the hosts."""
    hosts = [host for host, _, _ in said]
    local_ranks = [local if local >= 0 else hosts[:r].count(host) for r, (host, local, _) in enumerate(said)]
    local_sizes = [size if size >= 0 else hosts.count(host) for host, _, size in said]
    across = [r for r, local in enumerate(local_ranks) if local == local_ranks[rank]]
    return Place(rank, len(said), local_ranks[rank], local_sizes[rank], across.index(rank), len(across),
                 len(set(local_sizes)) == 1)
