"""The back end "pstrain" of torch.distributed.

    import torch.distributed as dist
    import pstrain
    dist.init_process_group("pstrain")

The workers of the job have links to each other: shared memory on one host, TCP between hosts. All
calls of a process group go there, in groups of any ranks; tensors on a GPU go through host memory.
Sums have the same bits on all ranks: they are in rank order. Large sums of float32 of several hosts go through
the job's servers, where it has some: each worker then sends and receives them once. Servers match sums by their order,
which ranks need not keep between groups: only those of the first group of all workers, mostly the default one, go there.
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import threading
import time
import typing
import warnings
import zlib
from datetime import timedelta
from math import inf

import torch
import torch.distributed as dist

from . import _apart, _checks, _pinned, _transfers as t, job as jobs
from ._collectives import AVERAGE, MAX, MIN, PRODUCT, SMALL, SUM, reduce
from ._futures import Promise, Work, not_compiled
from ._pinned import through_host
from ._store import free_port, url_host
from .errors import InputError, TimeoutError

NAME = "pstrain"
AT_ONCE = 64 << 10  # bytes: of fewer, each member gets all values instead of a slice
LINE = 16  # elements: slices begin at cache lines
_BAND, _BOR, _BXOR = range(AVERAGE + 1, AVERAGE + 4)  # pstrain_op's numbers, further ones
_OPS = {getattr(dist.ReduceOp, name): code
        for name, code in (("SUM", SUM), ("MIN", MIN), ("MAX", MAX), ("PRODUCT", PRODUCT), ("AVG", AVERAGE),
                           ("BAND", _BAND), ("BOR", _BOR), ("BXOR", _BXOR)) if hasattr(dist.ReduceOp, name)}
_OF_BOOLS = {**jobs.OF_BOOLS, _BAND: MIN, _BOR: MAX}
_MONITOR = 1 << 62  # tags of monitored_barrier, beyond those of programs
# Not whether there is a GPU: that question starts CUDA, which no process that is forked later can use then.
_cuda: typing.Any = torch.backends.cuda  # its function has no types
_DEVICES = ["cpu", "cuda"] if _cuda.is_built() else ["cpu"]
Tensors = typing.Sequence[torch.Tensor]
After = typing.Callable[[], typing.Any]  # what is done once a call's transfers are


class _Devices(typing.List[torch.device]):
    """PyTorch's flight recorder takes any as a sign of a back end in C++, into which it hooks."""

    def __bool__(self) -> bool:
        return False


# Its type differs between the versions of PyTorch.
_Base: typing.Any = dist.ProcessGroup


class ProcessGroup(_Base):  # type: ignore[misc]
    """Some workers of the job. Its calls return at once with a Work, which waits. Tensors are dense, in any order of
    memory (those that are not contiguous are copied); root, source and destination are ranks of the group."""

    def __init__(self, job: jobs.Job, comm: t.Comm) -> None:
        super().__init__(comm.rank, comm.size)
        self._job, self._comm = job, comm
        self._splits = self._monitored = 0
        self._names = ["", "undefined"]
        self._together: "list[t.Work] | None" = None  # coalesced calls
        self.by_servers = False  # whether large sums go through the servers
        # Of a call with tensors on a GPU: they, and what brings the results there.
        self._back: "tuple[typing.Any, typing.Callable[[], None]] | None" = None
        job.sums = True

    # ---- what PyTorch asks ----

    def getBackendName(self) -> str:
        return NAME

    # C++ finds the names here: a group without back ends of its own has none there.
    def getGroupName(self) -> str:
        return self._names[0]

    def setGroupName(self, name: str) -> None:
        self._names[0] = name

    def getGroupDesc(self) -> str:
        return self._names[1]

    def setGroupDesc(self, text: str) -> None:
        self._names[1] = text

    def rank(self) -> int:
        return self._comm.rank

    def size(self) -> int:
        return self._comm.size

    def shutdown(self) -> None:
        """The job has its own end: pstrain.shutdown()."""

    abort = shutdown

    def eager_connect_single_device(self, device: typing.Any = None) -> None:
        """For init_process_group(device_id=...): the links are there already."""

    perform_nocolor_split = eager_connect_single_device  # of ranks that are not in a new group

    def set_timeout(self, timeout: typing.Any) -> None:
        """Refused with a warning, as PyTorch says: calls have the job's deadlines."""
        words = _deadlines(timeout)
        if words and words[-1] not in self._job.settings:
            warnings.warn(f"rank {self.rank()}: set_timeout({timeout}) of a process group changes nothing: {_where(words)}",
                          stacklevel=3)

    @property
    def _device_types(self) -> "list[torch.device]":
        return _Devices(map(torch.device, _DEVICES))

    def _get_backend(self, device: typing.Any) -> "ProcessGroup":
        return self

    supports_splitting = True
    supports_coalescing = False

    def split_group(self, ranks: "typing.Sequence[int]", timeout: typing.Any = None, opts: typing.Any = None,
                    group_name: "str | None" = None, group_desc: "str | None" = None,
                    *_: typing.Any, **__: typing.Any) -> "ProcessGroup | None":
        """A group of these ranks of this one, in their order; None where this one is not among them. All ranks of this
        group call it."""
        self._splits += 1
        if self.rank() not in ranks:
            return None
        text = f"{self._comm.number} {self._splits} {list(ranks)}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        group = ProcessGroup(self._job, t.Comm(self._comm.links, number, [self._comm.ranks[r] for r in ranks]))
        if group_name is not None:
            group._set_group_name(group_name)
        if group_desc is not None and hasattr(group, "_set_group_desc"):
            group._set_group_desc(group_desc)
        return group

    splitGroup = split_group  # as C++ calls it

    # ---- reductions ----

    @through_host("both")
    def allreduce(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        """tensors: a list; each becomes the reduction over all ranks."""
        op, given = self._op(opts, "all_reduce"), _listed(tensors)
        tensors = _as_real(given, op)
        if not tensors:
            raise InputError(f"rank {self.rank()}: all_reduce of no tensors")
        for tensor in tensors:
            self._check_reduced(tensor, op, "all_reduce")
        after: "list[After]" = []
        tensors = self._places(tensors, after)
        if all(self._is_for_servers(tensor, op) for tensor in tensors):
            return self._reduce_by_servers(tensors, op, given, after)
        keeps: "list[typing.Any]" = [tensors]
        begun = [self._all_reduce(tensor, op, keeps) for tensor in tensors]
        return self._work(begun, keeps, "all_reduce", given, after)

    def allreduce_coalesced(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        return self.allreduce(tensors, opts)

    @through_host("both")
    def reduce(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        """Of one tensor; the root's becomes the reduction, the others' stay."""
        op, root = self._op(opts, "reduce"), _root(opts)
        [tensor] = _as_real(_listed(tensors), op)
        self._check_reduced(tensor, op, "reduce")
        self._check_root(root, "reduce")
        after: "list[After]" = []
        parts, places = [t.NOTHING] * self.size(), self._places([tensor], after)
        parts[root] = (*_memory(places[0]), *(_memory(places[0]) if root == self.rank() else (0, 0)))
        return self._work([self._reduction(t.REDUCE, parts, tensor, op, root=root)], places, "reduce", tensors, after)

    @through_host("out")
    def reduce_scatter(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """inputs: for each output a list of size() tensors; the output becomes the reduction of the rank()-th of
        all ranks."""
        op, begun = self._op(opts, "reduce_scatter"), []
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        result = outputs = _listed(outputs)
        outputs, inputs = _as_real(outputs, op), [_as_real(given, op) for given in inputs]
        if len(outputs) != len(inputs):
            raise InputError(f"rank {self.rank()}: reduce_scatter of {len(inputs)} lists into {len(outputs)} tensors")
        for output, given in zip(outputs, inputs):
            self._check_reduced(output, op, "reduce_scatter")
            self._check_list(given, output.dtype, "reduce_scatter", written=False)
            if given[self.rank()].numel() != output.numel():
                raise InputError(f"rank {self.rank()}: reduce_scatter of {given[self.rank()].numel()} elements into "
                                 f"{output.numel()}")
        for output, given in zip(outputs, inputs):
            parts = [(*_memory(tensor), 0, 0) for tensor in self._given(given, keeps)]
            parts[self.rank()] = (*parts[self.rank()][:2], *_memory(self._place(output, after, keeps)))
            begun.append(self._reduction(t.REDUCE_SCATTER, self._apart(parts, keeps), output, op))
        return self._work(begun, keeps, "reduce_scatter", result, after)

    @through_host("out")
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: typing.Any = None) -> typing.Any:
        """tensor: size() times as large as the output; of it each rank gets its part, reduced."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    @through_host("out")
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> typing.Any:
        op, begun = self._op(opts, "reduce_scatter"), []
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        result, outputs, inputs = outputs, _as_real(outputs, op), _as_real(inputs, op)
        for output, tensor in zip(outputs, inputs):
            self._check_multiple(tensor, output, "reduce_scatter")
            self._check_reduced(output, op, "reduce_scatter")
        for output, tensor in zip(outputs, inputs):
            parts: "list[t.Part]" = [(*part, 0, 0) for part in self._equal_parts(*self._given([tensor], keeps))]
            parts[self.rank()] = (*parts[self.rank()][:2], *_memory(self._place(output, after, keeps)))
            begun.append(self._reduction(t.REDUCE_SCATTER, self._apart(parts, keeps), output, op))
        return self._work(begun, keeps, "reduce_scatter", result, after)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- bytes ----

    @through_host("both")
    def broadcast(self, tensors: typing.Any, opts: typing.Any = None) -> typing.Any:
        tensors, root, begun = _listed(tensors), _root(opts), []
        after: "list[After]" = []
        self._check_root(root, "broadcast")
        for tensor in tensors:
            self._check(tensor, "broadcast")
        places = self._places(tensors, after)
        for place in places:
            if self.rank() == root:
                parts = [(*_memory(place), 0, 0)] * self.size()
                parts[root] = t.NOTHING
            else:
                parts = [t.NOTHING] * self.size()
                parts[root] = (0, 0, *_memory(place))
            begun.append(self._comm.begin(t.BROADCAST, parts, root=root, dtype=_number_of(place.dtype)))
        return self._work(begun, places, "broadcast", tensors, after)

    @through_host("out")
    def allgather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """outputs: a list of size() tensors for each of the inputs. They may have other sizes on other ranks."""
        inputs, begun = _listed(inputs), []
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        if len(outputs) != len(inputs):
            raise InputError(f"rank {self.rank()}: all_gather of {len(inputs)} tensors into {len(outputs)} lists")
        for mine, theirs in zip(inputs, outputs):
            self._check(mine, "all_gather", written=False)
            self._check_list(theirs, mine.dtype, "all_gather")
            self._check_own(mine, theirs, "all_gather")
        for mine, theirs in zip(inputs, outputs):
            [given], places = self._given([mine], keeps), self._places(theirs, after)
            keeps.append(places)
            parts = self._apart([(*_memory(given), *_memory(place)) for place in places], keeps)
            begun.append(self._comm.begin(t.ALL_GATHER, parts, dtype=_number_of(mine.dtype)))
        return self._work(begun, keeps, "all_gather", outputs, after)

    @through_host("out")
    def allgather_coalesced(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """outputs: size() lists of tensors like the inputs."""
        return self.allgather([list(theirs) for theirs in zip(*outputs)], inputs, opts)

    @through_host("out")
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: typing.Any = None) -> typing.Any:
        """output: size() times as large as the input, in rank order."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    @through_host("out")
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> typing.Any:
        begun = []
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        for output, tensor in zip(outputs, inputs):
            self._check_multiple(output, tensor, "all_gather", writes_large=True)
        for output, tensor in zip(outputs, inputs):
            mine, place = _memory(*self._given([tensor], keeps)), self._place(output, after, keeps)
            parts = self._apart([(*mine, *part) for part in self._equal_parts(place)], keeps)
            begun.append(self._comm.begin(t.ALL_GATHER, parts, dtype=_number_of(tensor.dtype)))
        return self._work(begun, keeps, "all_gather", outputs, after)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @through_host("out")
    def gather(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """outputs: at the root a list of size() tensors, else empty."""
        [tensor], root = _listed(inputs), _root(opts)
        self._check(tensor, "gather", written=False)
        self._check_root(root, "gather")
        parts = [t.NOTHING] * self.size()
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        if self.rank() == root:
            self._check_list(outputs[0], tensor.dtype, "gather")
            self._check_own(tensor, outputs[0], "gather")
            places = self._places(outputs[0], after)
            keeps.append(places)
            parts = [(0, 0, *_memory(place)) for place in places]
        parts[root] = (*_memory(*self._given([tensor], keeps)), *parts[root][2:])
        begun = self._comm.begin(t.GATHER, self._apart(parts, keeps), root=root, dtype=_number_of(tensor.dtype))
        return self._work([begun], keeps, "gather", outputs, after)

    @through_host("out")
    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: typing.Any = None) -> typing.Any:
        """output: at the root size() times as large as the input; elsewhere it is not looked at."""
        root, parts = _root(opts), [t.NOTHING] * self.size()
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        self._check_root(root, "gather")
        self._check(tensor, "gather", written=False)
        if self.rank() == root:
            self._check_multiple(output, tensor, "gather", writes_large=True)
            parts = [(0, 0, *part) for part in self._equal_parts(self._place(output, after, keeps))]
        parts[root] = (*_memory(*self._given([tensor], keeps)), *parts[root][2:])
        begun = self._comm.begin(t.GATHER, self._apart(parts, keeps), root=root, dtype=_number_of(tensor.dtype))
        return self._work([begun], keeps, "gather", [output], after)

    gather_into_tensor = gather_single

    @through_host("out")
    def scatter(self, outputs: typing.Any, inputs: typing.Any, opts: typing.Any = None) -> typing.Any:
        """inputs: at the root a list of size() tensors, else empty."""
        [tensor], root = _listed(outputs), _root(opts)
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        self._check(tensor, "scatter")
        self._check_root(root, "scatter")
        parts = [t.NOTHING] * self.size()
        if self.rank() == root:
            self._check_list(inputs[0], tensor.dtype, "scatter", written=False)
            self._check_own(tensor, inputs[0], "scatter")
            parts = [(*_memory(given), 0, 0) for given in self._given(inputs[0], keeps)]
        parts[root] = (*parts[root][:2], *_memory(self._place(tensor, after, keeps)))
        begun = self._comm.begin(t.SCATTER, self._apart(parts, keeps), root=root, dtype=_number_of(tensor.dtype))
        return self._work([begun], keeps, "scatter", outputs, after)

    @through_host("out")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> typing.Any:
        """The r-th input goes to rank r; the r-th output comes from it."""
        self._check_list(inputs, inputs[0].dtype if len(inputs) else None, "all_to_all", written=False)
        self._check_list(outputs, inputs[0].dtype, "all_to_all")
        self._check_own(inputs[self.rank()], outputs, "all_to_all")
        after: "list[After]" = []
        places = self._places(outputs, after)
        keeps: "list[typing.Any]" = [places]
        parts = [(*_memory(given), *_memory(place)) for given, place in zip(self._given(inputs, keeps), places)]
        begun = self._comm.begin(t.ALL_TO_ALL, self._apart(parts, keeps), dtype=_number_of(inputs[0].dtype))
        return self._work([begun], keeps, "all_to_all", outputs, after)

    @through_host("out")
    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: "typing.Sequence[int]",
                          input_sizes: "typing.Sequence[int]", opts: typing.Any = None) -> typing.Any:
        """Sizes: how many rows go to and come from each rank; none: as many of each."""
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        self._check(output, "all_to_all")
        self._check(tensor, "all_to_all", written=False)
        places = self._rows(self._place(output, after, keeps), output_sizes, "output")
        (sent,) = self._given([tensor], keeps)
        given = self._rows(sent, input_sizes, "input")
        if output.dtype != tensor.dtype:
            raise InputError(f"rank {self.rank()}: all_to_all of {tensor.dtype} and {output.dtype}: they have to be alike")
        if places[self.rank()][1] != given[self.rank()][1]:
            raise InputError(f"rank {self.rank()}: all_to_all: its own part of the input has {given[self.rank()][1]} bytes, "
                             f"that of the output {places[self.rank()][1]}")
        parts = self._apart([(*sent, *place) for sent, place in zip(given, places)], keeps)
        begun = self._comm.begin(t.ALL_TO_ALL, parts, dtype=_number_of(tensor.dtype))
        return self._work([begun], keeps, "all_to_all", [output], after)

    alltoall_base = all_to_all_single

    @through_host("in")
    def send(self, tensors: typing.Any, dst: int, tag: int = 0) -> typing.Any:
        [tensor] = _listed(tensors)
        self._check(tensor, "send", written=False)
        keeps: "list[typing.Any]" = []
        begun = self._comm.begin(t.SEND, [(*_memory(*self._given([tensor], keeps)), 0, 0)], peer=dst, tag=tag)
        return self._work([begun], keeps, f"send to rank {dst}", tensors)

    @through_host("out")
    def recv(self, tensors: typing.Any, src: int, tag: int = 0) -> typing.Any:
        [tensor] = _listed(tensors)
        self._check(tensor, "recv")
        keeps: "list[typing.Any]" = []
        after: "list[After]" = []
        begun = self._comm.begin(t.RECV, [(0, 0, *_memory(self._place(tensor, after, keeps)))], peer=src, tag=tag)
        return self._work([begun], keeps, f"recv from rank {src}" if src >= 0 else "recv from any rank", tensors, after)

    def recv_anysource(self, tensors: typing.Any, tag: int = 0) -> typing.Any:
        return self.recv(tensors, -1, tag)

    recvAnysource = recv_anysource  # as C++ calls it

    @not_compiled
    def barrier(self, opts: typing.Any = None) -> typing.Any:
        work = self._work([self._comm.begin(t.BARRIER, [])], [torch.empty(0, device="cpu")], "barrier")
        work.limit = getattr(opts, "timeout", opts if isinstance(opts, timedelta) else None)
        return work

    @not_compiled
    def monitored_barrier(self, timeout: typing.Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose TimeoutError names the ranks that have not come: at rank 0 the first, or, with
        wait_all_ranks, all of them."""
        self._monitored += 1
        tag, word, began = _MONITOR + self._monitored, torch.zeros(1, dtype=torch.uint8, device="cpu"), time.monotonic()
        others = range(1, self.size())

        def left() -> typing.Any:  # once it is over: for words that have come
            return timeout and timedelta(seconds=max(timeout.total_seconds() - (time.monotonic() - began), 0.05))

        if self.rank():
            self.send([word], 0, tag).wait(left())
            self.recv([word], 0, tag).wait(left())
            return
        late = []
        for rank, work in [(rank, self.recv([word.clone()], rank, tag)) for rank in others]:
            try:
                work.wait(left())
            except TimeoutError:
                late.append(rank)
                if not wait_all_ranks:
                    break
        if late:
            raise TimeoutError(f"rank 0: monitored_barrier: no word of rank {', '.join(map(str, late))} after "
                               f"{min(timeout.total_seconds() if timeout else inf, time.monotonic() - began):.3g} s")
        for work in [self.send([word], rank, tag) for rank in others]:
            work.wait()

    def start_coalescing(self, device: typing.Any = None) -> None:
        """What is begun from now on is done, too, when the Work of end_coalescing is."""
        self._together = []

    def end_coalescing(self, device: typing.Any = None) -> typing.Any:
        works, self._together = self._together or [], None
        return t.Together(self._comm, works, f"rank {self.rank()}: coalesced calls")

    # ---- what tensors have to be ----

    def _op(self, opts: typing.Any, what: str) -> int:
        """opts: PyTorch's, or the operation itself."""
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
        for known, code in _OPS.items():
            if op == known:
                return code
        raise InputError(f"rank {self.rank()}: {what} by PREMUL_SUM or something else: this back end has SUM, AVG, "
                         "MIN, MAX, PRODUCT, BAND, BOR and BXOR")

    def _check(self, tensor: torch.Tensor, what: str, dtypes: "tuple[torch.dtype, ...] | None" = None,
               written: bool = True, name: str = "the tensor") -> None:
        _checks.check(tensor, f"{name} of {what}", self.rank(), dtypes or (tensor.dtype,), contiguous=False)
        if written and _checks.overlaps(tensor):
            raise InputError(f"rank {self.rank()}: {name} of {what} has several elements in one place of memory (expand): "
                             "use .clone()")

    def _check_reduced(self, tensor: torch.Tensor, op: int, what: str) -> None:
        self._check(tensor, what, tuple(jobs.dtypes()))
        if op >= _BAND and tensor.is_floating_point():
            raise InputError(f"rank {self.rank()}: {what}: the bits of {tensor.dtype} cannot be combined")

    def _check_root(self, root: int, what: str) -> None:
        if not 0 <= root < self.size():
            raise InputError(f"rank {self.rank()}: {what}: {root} is not a rank of the group, 0 to {self.size() - 1}")

    def _check_list(self, tensors: Tensors, dtype: "torch.dtype | None", what: str, written: bool = True) -> None:
        """One for each rank."""
        if len(tensors) != self.size():
            raise InputError(f"rank {self.rank()}: {what} of {self.size()} ranks has {len(tensors)} tensors in its list")
        for tensor in tensors:
            self._check(tensor, what, written=written, name="a tensor")
            if tensor.dtype != dtype:
                raise InputError(f"rank {self.rank()}: {what} of {dtype} and {tensor.dtype}: they have to be alike")

    def _given(self, tensors: Tensors, keeps: "list[typing.Any]") -> Tensors:
        """What is sent, in contiguous memory; kept."""
        given = [tensor.detach().contiguous() for tensor in tensors]
        keeps.append(given)
        return given

    def _places(self, tensors: Tensors, after: "list[After]") -> Tensors:
        """Contiguous memory with their values, for what comes; of others a copy, which goes there afterwards."""
        places = [tensor.detach().contiguous() for tensor in tensors]
        after += [functools.partial(tensor.detach().copy_, place)
                  for tensor, place in zip(tensors, places) if not tensor.is_contiguous()]
        return places

    def _place(self, tensor: torch.Tensor, after: "list[After]", keeps: "list[typing.Any]") -> torch.Tensor:
        """That of one, kept."""
        places = self._places([tensor], after)
        keeps.append(places)
        return places[0]

    def _apart(self, parts: "list[t.Part]", keeps: "list[typing.Any]") -> "list[t.Part]":
        """What lies where something else comes is sent from a copy: that may come first."""
        own = parts[self.rank()]
        come = [part[2:] for part in parts if part[3] and not (part is own and part[0] == part[2])]
        begin, end = min((at for at, _ in come), default=0), max((at + n for at, n in come), default=0)
        copies: "dict[tuple[int, int], int]" = {}
        for at, n, *_ in parts:
            if n and at < end and begin < at + n and any(at < to + m and to < at + n for to, m in come):
                if (at, n) not in copies:
                    keeps.append(ctypes.create_string_buffer(n))
                    copies[at, n] = ctypes.addressof(keeps[-1])
                    ctypes.memmove(copies[at, n], at, n)
        return [(copies.get(part[:2], part[0]), *part[1:]) for part in parts] if copies else parts

    def _check_own(self, mine: torch.Tensor, theirs: Tensors, what: str) -> None:
        """This rank's part is copied."""
        if theirs[self.rank()].numel() != mine.numel():
            raise InputError(f"rank {self.rank()}: {what} of {mine.numel()} elements: its own part in the list has "
                             f"{theirs[self.rank()].numel()}")

    def _check_multiple(self, large: torch.Tensor, small: torch.Tensor, what: str, writes_large: bool = False) -> None:
        self._check(large, what, written=writes_large)
        self._check(small, what, written=not writes_large)
        if large.numel() != small.numel() * self.size() or large.dtype != small.dtype:
            raise InputError(f"rank {self.rank()}: {what} on {self.size()} ranks: the tensors of {small.numel()} "
                             f"{small.dtype} and {large.numel()} {large.dtype} do not fit")

    def _equal_parts(self, tensor: torch.Tensor) -> "list[tuple[int, int]]":
        """Address and bytes of each rank's part."""
        address, n_bytes = _memory(tensor)
        each = n_bytes // self.size()
        return [(address + r * each, each) for r in range(self.size())]

    def _rows(self, tensor: torch.Tensor, sizes: "typing.Sequence[int]", what: str) -> "list[tuple[int, int]]":
        """Address and bytes of each rank's rows."""
        if tensor.dim() == 0:
            raise InputError(f"rank {self.rank()}: all_to_all: the {what} has no dimension to split: give tensor.view(1)")
        rows = tensor.shape[0]
        if sizes and len(sizes) != self.size():
            raise InputError(f"rank {self.rank()}: all_to_all on {self.size()} ranks with {len(sizes)} {what} sizes")
        if (sum(sizes) != rows or min(sizes) < 0) if sizes else rows % self.size():
            raise InputError(f"rank {self.rank()}: all_to_all: {rows} rows of the {what} cannot be split into "
                             f"{list(sizes) or f'{self.size()} equal parts'}")
        if not sizes:
            return self._equal_parts(tensor)
        address, n_bytes = _memory(tensor)
        row, ends = n_bytes // rows if rows else 0, list(itertools.accumulate(sizes))
        return [(address + (end - n) * row, n * row) for n, end in zip(sizes, ends)]

    # ---- how ----

    def give_back(self, tensors: typing.Any, bring: "typing.Callable[[], None] | None") -> None:
        """The next call's results are in host memory: bring copies them to the tensors, which are on a GPU. None: it has
        tensors in host memory."""
        self._back = (tensors, bring) if bring is not None else None

    def _work(self, begun: "list[typing.Any]", keeps: typing.Any, what: str, result: typing.Any = None,
              after: "typing.Sequence[After]" = ()) -> typing.Any:
        """keeps: the tensors that it needs; result: those of get_future, if they are others; after: done then."""
        devices = None
        if self._back is not None:
            (given, bring), self._back = self._back, None
            result = given if isinstance(result, torch.Tensor) else _listed(given)
            after, devices = [*after, bring], _pinned.devices_of(result)
        work = t.Work(self._comm, begun, keeps, _alone(keeps if result is None else result),
                      f"rank {self.rank()}: {what}", after, devices)
        if self._together is not None:
            self._together.append(work)
        return work

    def _reduction(self, call: int, parts: "typing.Sequence[t.Part]", tensor: torch.Tensor, op: int,
                   root: int = 0, gathers: bool = False) -> typing.Any:
        op = _OF_BOOLS.get(op, op) if tensor.dtype == torch.bool else op
        return self._comm.begin(call, parts, root=root, gathers=gathers, dtype=jobs.dtypes()[tensor.dtype], op=op)

    def _all_reduce(self, tensor: torch.Tensor, op: int, keeps: "list[typing.Any]") -> typing.Any:
        """In place."""
        address, n_bytes = _memory(tensor)
        size = self.size()
        if n_bytes * (size - 1) <= AT_ONCE:
            values = tensor.clone()  # what others have not taken yet must not be replaced by the result
            keeps.append(values)
            parts: "list[t.Part]" = [(*_memory(values), 0, 0)] * size
            parts[self.rank()] = (*_memory(values), address, n_bytes)
            return self._reduction(t.ALL_REDUCE, parts, tensor, op)
        each = -(-tensor.numel() // (size * LINE)) * LINE * tensor.element_size()
        cuts = [min(r * each, n_bytes) for r in range(size + 1)]
        slices = [(address + begin, end - begin) for begin, end in zip(cuts, cuts[1:])]
        return self._reduction(t.ALL_REDUCE, [(*place, *place) for place in slices], tensor, op, gathers=True)

    @through_host("both")
    def sum_later(self, tensor: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """The tensor, once it is the sum over all ranks."""
        keeps: "list[typing.Any]" = [tensor]
        begun = [self._all_reduce(tensor.detach(), SUM, keeps)]
        return typing.cast("torch.futures.Future[torch.Tensor]", self._work(begun, keeps, "a sum", tensor).get_future())

    # ---- by the servers ----

    def _is_for_servers(self, tensor: torch.Tensor, op: int) -> bool:
        job = self._job
        return (self.by_servers and self._together is None and tensor.dtype == torch.float32 and op in (SUM, AVERAGE)
                and tensor.numel() >= SMALL and job.can_reduce())

    def _reduce_by_servers(self, tensors: Tensors, op: int, given: Tensors, after: "list[After]") -> Work:
        """given: the same, as the program has them; after: makes these of them."""
        back, self._back = self._back, None
        result = given if back is None else _listed(back[0])
        after += [] if back is None else [back[1]]
        promise, lock = Promise(result, _pinned.devices_of(result) if back else None), threading.Lock()
        left, failed = len(tensors), False

        def done(error: "BaseException | None") -> None:
            nonlocal left, failed
            with lock:  # by two threads
                left -= 1
                keep = not failed and (error is not None or left == 0)
                failed = failed or error is not None
            if keep:
                try:
                    with torch.inference_mode():  # of this thread: the tensors may be of that mode
                        for call in after if error is None else ():
                            call()
                except Exception as raised:  # of CUDA, or no memory
                    error = raised
                promise.keep(error)

        for tensor in tensors:
            reduce(self._job, tensor, op, done)
        return Work(promise, self._job.session.give_up, f"rank {self.rank()}: all_reduce")


def _listed(tensors: typing.Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _as_real(tensors: Tensors, op: int) -> Tensors:
    """Complex numbers as pairs of real ones, in the same memory, where sums and means of these are theirs."""
    if op not in (SUM, AVERAGE):
        return tensors
    return [torch.view_as_real(each.detach()) if isinstance(each, torch.Tensor) and each.is_complex() and not each.is_conj()
            and each.layout == torch.strided else each for each in tensors]


def _alone(value: typing.Any) -> typing.Any:
    """Of one list of tensors that list, as Gloo's futures have it."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (list, tuple)) else value


def _root(opts: typing.Any) -> int:
    """opts: PyTorch's, or the rank itself."""
    return opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)


@functools.lru_cache(None)
def _number_of(dtype: torch.dtype) -> int:
    """For the members to compare, whose PyTorch may have other types besides."""
    return zlib.crc32(str(dtype).encode()) % 233 + 1


def _memory(tensor: torch.Tensor) -> "tuple[int, int]":
    """Address and bytes."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def of_everybody(job: jobs.Job) -> ProcessGroup:
    """A group of all workers. Its first call is collective."""
    if job.everybody is None:
        job.everybody = ProcessGroup(job, t.Comm(job.links(), 0, range(job.size)))  # the numbers of others are not 0
    return job.everybody


_created = 0  # groups that this process was the first rank of


def _create(store: typing.Any, rank: int, size: int, timeout: typing.Any) -> ProcessGroup:
    """All members of the group call it."""
    global _created
    words = _deadlines(timeout)
    is_first = not dist.is_initialized()  # the group of all
    job = (jobs.current() if jobs.is_initialized() or not is_first
           else jobs.init(_beside_store(store, rank), rank=rank, world_size=size, settings=words))
    if is_first and (job.rank, job.size) != (rank, size):
        raise InputError(f"rank {job.rank}: a process group of {size} ranks, of which this is {rank}, in a job of "
                         f"{job.size}: give init_process_group the job's own rank and world size")
    if words and words[-1] not in job.settings:
        raise InputError(f"rank {job.rank}: timeout={timeout} of a process group: {_where(words)}")
    links = job.links()
    _created += rank == 0
    # Each member says who it is; the first also which number the group has. The store may have the words of a group of
    # this name that was destroyed: all its members have made as many.
    turn = store.add(f"pstrain/{rank}", 1)
    store.set(f"pstrain/{turn}/{rank}", f"{job.rank} {job.rank << 32 | _created}")
    said = [store.get(f"pstrain/{turn}/{r}").decode().split() for r in range(size)]
    group = ProcessGroup(job, t.Comm(links, int(said[0][1]), [int(one) for one, _ in said]))
    if is_first:
        _apart.Watch(job)
    group.by_servers = (size == job.size and not links.one_host and job.session.servers > 0
                        and job.lets_sum("the default group" if is_first else f"group {said[0][1]}"))
    return group


def _beside_store(store: typing.Any, rank: int) -> "str | None":
    """Where the coordinator is, which rank 0 has in a job without servers: as the launcher says (None). Without one MASTER_PORT
    is that of PyTorch's own store, which tells a free port."""
    env = os.environ
    if (env.get("PS_SERVERS") != "0" or "MASTER_PORT" not in env or "PS_PORT" in env or "PS_INIT_METHOD" in env
            or env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"):
        return None
    key = f"pstrain/job/{store.add(f'pstrain/job/{rank}', 1)}/address"
    if rank == 0:
        address = env.get("MASTER_ADDR", "127.0.0.1")
        store.set(key, f"tcp://{url_host(address)}:{free_port('::' if ':' in address else '')}")
    return typing.cast(str, store.get(key).decode())


def _deadlines(timeout: typing.Any) -> "list[str]":
    """timeout= of init_process_group as settings. PyTorch's default says nothing: the job's are shorter."""
    if not timeout or timeout == dist.distributed_c10d.default_pg_timeout:
        return []
    ms = max(1, round(timeout.total_seconds() * 1000))
    return [f"net.{what}_timeout_ms={ms}" for what in ("join", "step")]


def _where(words: "list[str]") -> str:
    """These deadlines are given."""
    key, _, value = words[-1].partition("=")
    return (f"the job has its deadlines since pstrain.init(): give it there, "
            f'pstrain.init(settings={{"{key}": {value}}})')


def register_backend() -> None:
    """Makes "pstrain" known to torch.distributed. Importing pstrain and torch does this."""
    global _registered
    if _registered:
        return
    # init_process_group makes its store with libuv by default since PyTorch 2.4. A PyTorch that was
    # built without it (Debian 13's) refuses that; without it every PyTorch makes the same store.
    os.environ.setdefault("USE_LIBUV", "0")
    if hasattr(dist.Backend, "default_device_backend_map"):  # PyTorch 2
        dist.Backend.register_backend(NAME, _create, devices=_DEVICES)
    else:
        dist.Backend.register_backend(NAME, _create)
    _registered = True


_registered = False
