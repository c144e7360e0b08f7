"""Where ranks are on several hosts and commits in their memory: what each host keeps for the one before it.

A host that is lost takes its memory along. So the k-th rank of a host keeps a spare of the part of the k-th one of the
host before it, in turn where that one has more: what no rank of its own host has written already.
"""
from __future__ import annotations

import typing

import torch

from ._commits import Blob, Head

if typing.TYPE_CHECKING:
    from .job import Job

# Of each rank: which files it sees, and digest and bytes of its blobs by their names.
Said = typing.Sequence[typing.Tuple[str, "dict[str, tuple[str, int]]"]]


class Spare(typing.NamedTuple):
    """Of a rank's part."""

    rank: int
    keeper: int
    owners: "dict[str, int]"  # of each blob: the rank in whose file it is at the keeper; the rank itself: it is sent

    def sent(self) -> "list[str]":
        return [name for name, owner in self.owners.items() if owner == self.rank]

    def head(self, head: Head, said: Said) -> Head:
        """The spare's, from the keeper's own."""
        blobs = [(name, n_bytes, digest, self.owners[name]) for name, (digest, n_bytes) in said[self.rank][1].items()]
        return Head(head.number, head.token, head.after, self.rank, head.size, head.place, head.keeps_back, blobs)


def plan(said: Said) -> "list[Spare]":
    """The same on all ranks. One host: none."""
    hosts: "dict[str, list[int]]" = {}
    for rank, (identity, _) in enumerate(said):
        hosts.setdefault(identity, []).append(rank)
    order = list(hosts.values())
    return [Spare(rank, there[place % len(there)],
                  {name: _owner(said, there, name, digest, rank) for name, (digest, _) in said[rank][1].items()})
            for here, there in zip(order, order[1:] + order[:1]) if here is not there
            for place, rank in enumerate(here)]


def _owner(said: Said, there: "list[int]", name: str, digest: str, rank: int) -> int:
    return next((other for other in there if said[other][1].get(name, ("", 0))[0] == digest), rank)


def exchange(job: "Job", spares: "list[Spare]", said: Said,
             blobs: "dict[str, Blob]") -> "list[tuple[Spare, dict[str, Blob]]]":
    """Sends what others keep, and returns what this rank keeps. Collective."""
    from .process_group import of_everybody

    if not spares:
        return []
    group, works = of_everybody(job), []
    kept: "list[tuple[Spare, dict[str, Blob]]]" = []
    for spare in spares:
        got = {name: bytearray(said[spare.rank][1][name][1]) for name in spare.sent()} if spare.keeper == job.rank else {}
        for name in spare.sent():
            if spare.rank == job.rank:
                works.append(group.send([torch.frombuffer(blobs[name], dtype=torch.uint8)], spare.keeper))
            elif spare.keeper == job.rank:
                works.append(group.recv([torch.frombuffer(got[name], dtype=torch.uint8)], spare.rank))
        if spare.keeper == job.rank:
            kept.append((spare, {name: memoryview(blob) for name, blob in got.items()}))
    for work in works:
        work.wait()
    return kept
