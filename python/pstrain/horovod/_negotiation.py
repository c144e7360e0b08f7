"""Collectives that are matched by their names, in whatever order the ranks call them.

A call is noted, and the session's own thread tells the other ranks of it. Ranks do so in rounds: each round is an
all-gather of what is new on each rank, so after it all ranks know the same calls. A name that every rank has called is
executed by all of them, in the same order; sums that are neighbours there travel together. A name that two ranks have
called in different ways is an InputError of that call on every rank, and the job goes on. A rank takes part in a round
while it has calls that others have not made, or has joined (`join`); a rank that computes keeps the others waiting.

The word of a rank in a round is JSON:

    new     the calls since the last round: what all ranks compare (Call.head), or its number where it is known
    joined  whether the rank has called join
    stuck   whether its program waits, and nothing of it has moved for STALL_SECONDS
    late    the names it waits for, where nothing of it has moved for net.step_timeout_ms
"""
from __future__ import annotations

import itertools
import json
import struct
import threading
import time
import typing

import torch

from .. import _collectives, errors, job as jobs
from .._futures import Promise

STALL_SECONDS = 10.0  # when all ranks wait for each other. Each is sure at once; another thread of it may still call
FUSED_BYTES = 4 << 20  # of sums that travel together
SLOT = 1024  # bytes of a rank's word that need no second all-gather
MOST_KNOWN = 4096  # calls that have a number
NO_NAME = ".noname."  # within the names of calls that were given none
TOGETHER_SECONDS = 0.002  # calls within them are told in one round
FIRST_PAUSE, LAST_PAUSE = 0.001, 0.064  # seconds between rounds of a rank that only waits

Head = typing.Dict[str, typing.Any]
Heads = typing.Dict[int, Head]  # by rank


class Call:
    """One call of this rank.

    values: contiguous, on the CPU. Of a reduction or a broadcast they become the result.
    parts: of a gather, when it is done: the values of each rank.
    """

    def __init__(self, values: torch.Tensor, kind: str, name: str, **how: typing.Any) -> None:
        self.head: Head = {"kind": kind, "name": name, "dtype": str(values.dtype).replace("torch.", ""),
                           "shape": list(values.shape), **how}
        self.values = values
        self.parts: "list[torch.Tensor]" = []
        self.heads: Heads = {}
        self.promise: "Promise | None" = None  # none: of a rank that has joined

    @property
    def name(self) -> str:
        return str(self.head["name"])


def _words(head: Head) -> str:
    """A call for a message."""
    how = [f"{key}={value}" for key, value in head.items() if key not in ("kind", "name", "dtype", "shape")]
    return f"{head['kind']} of {tuple(head['shape'])} {head['dtype']}" + (f" ({', '.join(how)})" if how else "")


def _compared(head: Head) -> Head:
    """What has to be the same on all ranks."""
    if head["kind"] in ("allgather", "alltoall"):
        return {**head, "shape": head["shape"][1:], "splits": None}
    return head


# What all ranks have called, and this rank's part of it: none where it has joined.
Pair = typing.Tuple[Heads, typing.Optional[Call]]


class Negotiation:
    """That of a job. Any thread may submit calls and wait for them. Rounds are in the thread of the session's calls."""

    def __init__(self, job: jobs.Job) -> None:
        self._job = job
        self._deadline = jobs.seconds(job.settings, "net.step_timeout_ms")
        self._by_servers = job.lets_sum("pstrain.horovod")
        self._changed = threading.Condition()
        # Guarded by it: what all threads share.
        self._new: "list[Call]" = []
        self._calls: "dict[str, Call]" = {}  # this rank's that are not matched
        self._join: "Promise | None" = None
        self._is_busy = False  # a round is on, or will be
        self._waiting = 0  # threads of the program
        self._under_way = 0  # sums that have begun
        self._moved = time.monotonic()  # when this rank has last called, or seen a call end
        self._error: "BaseException | None" = None  # there are no more calls
        self.last_joined = -1
        # Of the session's thread. The same on every rank:
        self._table: "dict[str, Heads]" = {}  # what was called and not matched
        self._joined: "set[int]" = set()
        self._known: "dict[str, int]" = {}  # heads as JSON
        self._matched: "list[Call]" = []  # of this rank; they have not begun
        self._pause = FIRST_PAUSE

    # ---- the program's side ----

    def submit(self, call: Call) -> None:
        """Returns at once."""
        promise = Promise(None)
        with self._changed:
            if call.name in self._calls:
                raise errors.InputError(f"rank {self._job.rank}: {call.head['kind']} '{call.name}' is called again "
                                        "before it is done: wait for it (synchronize), or give the calls names")
            self._begin()
            call.promise = promise
            self._new.append(call)
            self._calls[call.name] = call

    def join(self) -> int:
        """Takes part in the sums of others, with zeros, until every rank has joined. Returns the last one."""
        promise = Promise(None)
        with self._changed:
            self._begin()
            self._join = promise
        self.wait(promise)
        return self.last_joined

    def wait(self, promise: Promise) -> None:
        """Until it is kept; raises its error."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            promise.wait(self._job.session.give_up)
        finally:
            with self._changed:
                self._waiting -= 1

    def end(self) -> None:
        """Waits until all calls are matched, or have failed. Takes no more."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            while self._is_busy:
                self._changed.wait()
        self.fail(errors.InputError(f"rank {self._job.rank}: this job has been shut down"))

    def fail(self, error: BaseException) -> None:
        """All calls, for ever."""
        with self._changed:
            self._error = self._error or error
            calls = [*self._calls.values(), *self._matched]
            self._calls, self._matched, self._new, self._is_busy = {}, [], [], False
            join, self._join = self._join, None
            self._changed.notify_all()
        self._keep(calls, error)
        if join is not None:
            join.keep(error)

    # ---- rounds ----

    def _begin(self) -> None:
        """There is something to say. Needs the lock."""
        if self._error is not None:
            raise self._error
        if not self._is_busy:
            self._job.session.later(self._turn, self._end_turn)
            self._is_busy = True
        self._moved = time.monotonic()
        self._changed.notify_all()

    def _turn(self) -> None:
        """A round: at once where the program waits for it; else when it may have made more calls, such as the gradients
        of a backward pass."""
        with self._changed:
            if self._new or self._join is not None:
                self._pause = FIRST_PAUSE
                self._changed.wait_for(lambda: self._waiting or self._join or self._error, TOGETHER_SECONDS)
            else:
                self._changed.wait(self._pause)
                self._pause = min(2 * self._pause, LAST_PAUSE)
        with torch.inference_mode():  # of this thread: the tensors may be of that mode
            self._round()

    def _end_turn(self, error: "BaseException | None") -> None:
        if error is None:
            with self._changed:
                self._is_busy = bool(self._error is None and (self._new or self._calls or self._join))
                if self._is_busy:
                    self._job.session.later(self._turn, self._end_turn)
                self._changed.notify_all()
            return
        if not self._job.session.failure:
            self._job.session.abort(f"{type(error).__name__}: {error}")
        self.fail(error)

    def _round(self) -> None:
        said = [json.loads(word) for word in self._exchange(json.dumps(self._word()).encode())]
        known = list(self._known)
        for rank, word in enumerate(said):
            for item in word["new"]:
                head = json.loads(known[item]) if isinstance(item, int) else item
                self._table.setdefault(head["name"], {})[rank] = head
        before, self._joined = self._joined, {rank for rank, word in enumerate(said) if word["joined"]}
        matched = [name for name, heads in self._table.items() if len(heads.keys() | self._joined) == self._job.size]
        self._execute([(heads, call) for heads, call in map(self._take, matched) if self._is_sound(heads, call)])
        late = {name for word in said for name in word["late"]}
        for name in sorted(late & self._table.keys()):
            self._give_up([name], f"was not called by all ranks within {self._deadline:g} s (net.step_timeout_ms)")
        if self._table and not matched and all(word["stuck"] for word in said):
            self._give_up(list(self._table), "cannot be done: all ranks wait, and no name was called by all of them")
        if len(self._joined) == self._job.size:
            self._end_join(max(self._joined - before, default=self._job.size - 1))

    def _word(self) -> "dict[str, typing.Any]":
        with self._changed:
            new, self._new = self._new, []
            still = self._waiting > 0 and self._under_way == 0
            seconds = time.monotonic() - self._moved if still else 0.0
            return {"new": [self._known.get(json.dumps(call.head), call.head) for call in new],
                    "joined": self._join is not None,
                    "stuck": seconds > STALL_SECONDS,
                    "late": list(self._calls) if seconds > self._deadline else []}

    def _exchange(self, word: bytes) -> "list[bytes]":
        """The words of all ranks."""
        if self._job.size == 1:
            return [word]
        slots = self._gather(struct.pack("<I", len(word)) + word, SLOT)
        lengths = [struct.unpack("<I", slot[:4])[0] for slot in slots]
        if max(lengths) > SLOT - 4:
            slots = [bytes(4) + slot for slot in self._gather(word, max(lengths))]
        return [slot[4:4 + n] for slot, n in zip(slots, lengths)]

    def _gather(self, word: bytes, n: int) -> "list[bytes]":
        mine = torch.frombuffer(bytearray(word[:n].ljust(n, b"\0")), dtype=torch.uint8)
        return [bytes(row.numpy()) for row in _collectives.gather(self._job, mine)]

    def _take(self, name: str) -> Pair:
        heads = self._table.pop(name)
        for head in heads.values():
            if len(self._known) < MOST_KNOWN and NO_NAME not in name:
                self._known.setdefault(json.dumps(head), len(self._known))
        with self._changed:
            call = self._calls.pop(name, None)
        if call is not None:
            call.heads = heads
        return heads, call

    def _is_sound(self, heads: Heads, call: "Call | None") -> bool:
        """Otherwise the call fails, on every rank."""
        (first, head), *others = sorted(heads.items())
        text = ""
        for rank, other in others:
            if _compared(other) != _compared(head):
                text = (f"'{head['name']}' differs between ranks: rank {first} calls {_words(head)}, rank {rank} "
                        f"{_words(other)}: they have to be alike")
        missing = [rank for rank in range(self._job.size) if rank not in heads]
        if missing and not text and (head["kind"] != "allreduce" or head["op"] not in ("sum", "average")):
            text = (f"{head['kind']} '{head['name']}': rank {missing[0]} has called join(): with ranks that have "
                    "joined there are allreduces by Sum and Average alone")
        if text and call is not None:
            self._keep([call], errors.InputError(f"rank {self._job.rank}: {text}"))
        return not text

    def _give_up(self, names: "list[str]", why: str) -> None:
        """These calls fail, on the ranks that have made them."""
        waits = "; ".join(f"'{name}' was called by rank {', '.join(map(str, sorted(self._table[name])))}"
                          for name in names[:8])
        for name in names:
            _, call = self._take(name)
            if call is not None:
                self._keep([call], errors.TimeoutError(
                    f"rank {self._job.rank}: {call.head['kind']} '{name}' {why}: {waits}: ranks have to make the "
                    "same calls, under the same names"))

    def _end_join(self, last: int) -> None:
        with self._changed:
            promise, self._join = self._join, None
            self.last_joined, self._joined = last, set()
            self._moved = time.monotonic()
        assert promise is not None
        promise.keep()

    def _keep(self, calls: "typing.Iterable[Call]", error: "BaseException | None" = None) -> None:
        with self._changed:
            self._moved = time.monotonic()
        for call in calls:
            if call.promise is not None and not call.promise.is_kept():
                call.promise.keep(error)

    # ---- execution, in the same order on all ranks ----

    def _execute(self, matched: "list[Pair]") -> None:
        def alike(pair: Pair) -> "tuple[typing.Any, ...]":
            head = next(iter(pair[0].values()))
            return tuple(head.get(key) for key in ("kind", "dtype", "op", "codec"))

        self._matched = [call for _, call in matched if call is not None]
        for (kind, *_), group in itertools.groupby(matched, alike):
            for batch in _batches(group) if kind == "allreduce" else ([pair] for pair in group):
                calls = [call or _zeros(next(iter(heads.values()))) for heads, call in batch]
                {"allreduce": self._sum, "broadcast": self._broadcast}.get(str(kind), self._gather_parts)(calls)
                self._matched = [call for call in self._matched if call not in calls]

    def _sum(self, calls: "list[Call]") -> None:
        head = calls[0].head
        for call in calls:
            _multiply(call.values, call.head["prescale"])
        flat = calls[0].values if len(calls) == 1 else torch.cat([call.values.view(-1) for call in calls])

        def done(error: "BaseException | None") -> None:
            try:
                if error is None:
                    self._unpack(calls, flat)
            except Exception as raised:  # of PyTorch: no memory
                error = raised
            with self._changed:
                self._under_way -= 1
            self._keep(calls, error)

        code = {"average": _collectives.AVERAGE, "sum": _collectives.SUM, "min": _collectives.MIN,
                "max": _collectives.MAX, "product": _collectives.PRODUCT}[head["op"]]
        with self._changed:
            self._under_way += 1
        _collectives.reduce(self._job, flat, code, done, head["codec"], self._by_servers)

    def _unpack(self, calls: "list[Call]", flat: torch.Tensor) -> None:
        with torch.inference_mode():
            at = 0
            for call in calls:
                n = call.values.numel()
                if len(calls) > 1:
                    call.values.view(-1).copy_(flat[at:at + n])
                at += n
                _multiply(call.values, call.head["postscale"])

    def _broadcast(self, calls: "list[Call]") -> None:
        for call in calls:
            values = call.values
            if values.numel() and self._job.size > 1:
                self._job.session.broadcast(values.data_ptr(), _collectives.n_bytes(values), call.head["root"])
        self._keep(calls)

    def _gather_parts(self, calls: "list[Call]") -> None:
        """Of allgather and alltoall. The ranks' first dimensions may differ. A barrier has nothing to gather."""
        for call in calls:
            shapes = [call.heads[rank]["shape"] for rank in range(self._job.size)]
            rows = max(shape[0] for shape in shapes)
            whole = torch.zeros((rows, *shapes[0][1:]), dtype=call.values.dtype, device="cpu")
            whole[:call.values.shape[0]] = call.values
            got = _collectives.gather(self._job, whole).view(self._job.size, *whole.shape)
            call.parts = [part[:shape[0]] for part, shape in zip(got, shapes)]
        self._keep(calls)


def _batches(pairs: "typing.Iterable[Pair]") -> "typing.Iterator[list[Pair]]":
    """Neighbours up to FUSED_BYTES; a larger one alone."""
    batch: "list[Pair]" = []
    n_bytes = 0
    for heads, call in pairs:
        head = next(iter(heads.values()))
        own = torch.Size(head["shape"]).numel() * torch.empty(0, dtype=getattr(torch, head["dtype"])).element_size()
        if batch and n_bytes + own > FUSED_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append((heads, call))
        n_bytes += own
    if batch:
        yield batch


def _zeros(head: Head) -> Call:
    """The part of a rank that has joined."""
    how = {key: value for key, value in head.items() if key not in ("dtype", "shape")}
    return Call(torch.zeros(head["shape"], dtype=getattr(torch, head["dtype"]), device="cpu"), **how)


def _multiply(values: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if values.dtype in _collectives.HALVES:
        values.copy_(values.float() * factor)
    elif values.is_floating_point():
        values.mul_(factor)
    else:
        values.copy_(values.double() * factor)  # towards 0
