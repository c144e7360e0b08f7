"""This process in its job: joining, leaving, and where it stands."""
from __future__ import annotations

import collections
import itertools
import os
import typing

from .. import errors, job as jobs
from . import _places
from ._negotiation import Negotiation


class _State:
    """Of this process in the job."""

    def __init__(self, job: jobs.Job) -> None:
        self.job = job
        self.place = _places.find(job)
        self.negotiation = Negotiation(job)
        self.counts: "collections.defaultdict[str, itertools.count[int]]" = collections.defaultdict(itertools.count)


_state: "_State | None" = None


def init(comm: typing.Any = None, process_sets: typing.Any = None, *, settings: jobs.Settings = None) -> None:
    """Joins the job that psrun, torchrun or mpirun has started, or that pstrain.init() has joined; alone, with size 1,
    without any. A second call does nothing. settings: as of pstrain.init(). comm and process_sets are refused."""
    global _state
    if _state is not None:
        return
    for name, given in (("comm", comm), ("process_sets", process_sets)):
        if given:
            raise errors.InputError(f"{name} of hvd.init(): a job is of all its workers: leave it out")
    for name, instead in (("BYTEPS_ENABLE_ASYNC", ""), ("HOROVOD_ELASTIC", ", or use pstrain.State")):
        if os.environ.get(name, "0") not in ("0", ""):
            raise errors.InputError(f"{name} is set: pstrain.horovod trains synchronously: unset it{instead}")
    job = jobs.current() if jobs.is_initialized() else _join(settings)
    state = _State(job)
    job.sums = True
    job.before_leaving.append(state.negotiation.end)
    job.at_end += [lambda: state.negotiation.fail(errors.InputError("this job has been shut down")), _forget]
    _state = state


def _join(settings: jobs.Settings) -> jobs.Job:
    rank, size, *_ = _places.launched()
    if rank is None and not any(name in os.environ for name in ("PS_INIT_METHOD", "PS_SETTINGS", "PS_SERVERS")):
        return jobs.init("tcp://127.0.0.1:1", rank=0, world_size=1, servers=0, settings=settings)
    return jobs.init(rank=rank, world_size=size, settings=settings)


def _forget() -> None:
    global _state
    _state = None


def shutdown() -> None:
    """Leaves the job. Waits until every rank has called it."""
    if _state is not None:
        _state.job.leave()


def is_initialized() -> bool:
    return _state is not None


def here() -> _State:
    if _state is None:
        raise errors.InputError("Horovod has not been initialized: call hvd.init() first")
    return _state


def wrong(text: str) -> errors.InputError:
    return errors.InputError(f"rank {rank()}: {text}")


def rank() -> int:
    """0 to size() - 1."""
    return here().place.rank


def size() -> int:
    return here().place.size


def local_rank() -> int:
    """Among the ranks of this host."""
    return here().place.local_rank


def local_size() -> int:
    return here().place.local_size


def cross_rank() -> int:
    """Among the ranks of all hosts with this local rank."""
    return here().place.cross_rank


def cross_size() -> int:
    return here().place.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    return here().place.is_homogeneous


def _no() -> bool:
    """What Horovod can be built with is not here."""
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _no
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _no


class _Everybody:
    """The only process set."""

    process_set_id = 0

    @property
    def ranks(self) -> "list[int]":
        return list(range(size()))

    def size(self) -> int:
        return size()

    def rank(self) -> int:
        return rank()

    def included(self) -> bool:
        return True


global_process_set = _Everybody()


def check_set(process_set: typing.Any) -> None:
    """InputError for one that is not of all ranks."""
    if process_set is not None and process_set is not global_process_set:
        raise wrong("process_set: calls are of all ranks: leave it out")
