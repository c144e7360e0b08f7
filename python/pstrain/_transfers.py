"""Transfers between workers by the library's links: communicators, and what their calls return."""
from __future__ import annotations

import ctypes
import queue
import threading
import time
import typing

import torch
import torch.distributed as dist

from . import _library as c
from ._futures import Promise, check_thread, hold, is_asked_by_autograd, let_go, not_compiled
from ._session import Session, own_thread
from .errors import Error, PeerError, TimeoutError
from .job import MEND

# pstrain_call's numbers.
(SEND, RECV, BARRIER, BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, ALL_REDUCE, REDUCE,
 REDUCE_SCATTER) = range(11)
SLICE_MS = 100  # between two looks for a Ctrl-C
Part = typing.Tuple[int, int, int, int]  # address and bytes to send, address and bytes to receive
NOTHING: Part = (0, 0, 0, 0)


def _as_c(parts: typing.Any) -> "ctypes.Array[c.Part]":
    return (c.Part * len(parts))(*parts)  # of tuples, which its type does not tell


class Links:
    """The session's links, opened when they are made: every worker makes them at the same point of its program."""

    def __init__(self, session: Session) -> None:
        session.block("pstrain_connect")
        self.session = session
        self.one_host = bool(session.library.pstrain_is_one_host(session.pointer()))
        self.left: "list[typing.Any]" = []  # memory of transfers that nobody waits for
        self._begun: "queue.SimpleQueue[Work | None]" = queue.SimpleQueue()
        self._thread: "threading.Thread | None" = None
        self._lock = threading.Lock()

    def tell(self, work: "Work") -> None:
        """Keeps the work's promise when it is done, in a thread of its own."""
        with self._lock:
            if self._thread is None:
                self._thread = own_thread("futures", self._run)
        self._begun.put(work)

    def _run(self) -> None:
        waiting: "list[Work]" = []
        while True:
            if not waiting or not self._begun.empty():
                work = self._begun.get()
                if work is None:
                    break
                waiting.append(work)
            # Mostly the oldest is done first; the others are looked at now and then.
            waiting[0].is_done(20)
            waiting = [work for work in waiting if not work.keep_if_done()]
            work = None
        for work in waiting:
            work.wait_done()
            work.keep_if_done()

    def end(self) -> None:
        """After the end of the job: every promise is kept."""
        if self._thread is not None:
            self._begun.put(None)
            self._thread.join()


class Comm:
    """Some of the workers. ranks: theirs in the job; number: the same in all of them."""

    def __init__(self, links: Links, number: int, ranks: "typing.Sequence[int]") -> None:
        self.links, self.number, self.ranks = links, number, list(ranks)
        self.rank = self.ranks.index(links.session.rank)
        self.size = len(self.ranks)
        self._c = c.c_void_p()
        self._library = links.session.library
        links.session.call("pstrain_comm_create", number, (c.c_int * self.size)(*self.ranks), self.size,
                           c.byref(self._c))

    def begin(self, call: int, parts: "typing.Sequence[Part]", *, root: int = 0, peer: int = 0, tag: int = 0,
              gathers: bool = False, dtype: int = 0, op: int = 0) -> c.c_void_p:
        session = self.links.session
        session.check_open()
        check_thread()
        options = c.TransferOptions(ctypes.sizeof(c.TransferOptions), call, root, peer, tag,
                                    _as_c(parts), gathers, dtype, op)
        transfer = c.c_void_p()
        session.check(self._library.pstrain_transfer_begin(self._c, c.byref(options), c.byref(transfer)))
        if call not in (BROADCAST, SCATTER):
            session.moved += sum(n for _, n in {part[:2] for part in parts} | {part[2:] for part in parts})
        return transfer

    def __del__(self, byref: typing.Any = c.byref) -> None:
        if getattr(self, "_c", None):
            self._library.pstrain_comm_destroy(byref(self._c))


_Base: typing.Any = dist.Work


class Work(_Base):  # type: ignore[misc]
    """What a process group's call returns: transfers that go on."""

    def __init__(self, comm: Comm, transfers: "list[c.c_void_p]", keeps: typing.Any, value: typing.Any, name: str,
                 after: "typing.Sequence[typing.Callable[[], typing.Any]]" = (),
                 devices: "list[torch.device] | None" = None) -> None:
        """keeps: what they read and write; value: the result; after: makes it of what has come; devices: where the
        result is, other than the CPU."""
        super().__init__()
        self._comm, self._transfers, self._keeps, self._value, self._name = comm, transfers, keeps, value, name
        self._after, self._devices = after, devices
        self._memory = comm.links.session.memory()  # the library's session stays while they go on
        self._lock = threading.Lock()  # of what follows
        self._over = not transfers
        self._error: "BaseException | None" = None
        self._promise: "Promise | None" = None
        self._source = -1
        self.limit: typing.Any = None  # timeout of a wait() without one
        hold(self)

    # ---- the transfers ----

    def is_done(self, ms: int = 0) -> bool:
        """Waits for at most that many milliseconds. Any thread."""
        session, done = self._comm.links.session, c.c_int()
        for transfer in self._transfers:
            if self._over:
                return True
            if not session.is_open():
                self._end(Error(f"rank {session.rank}: the job has been left before {self._name} was done"))
                return True
            status = session.library.pstrain_transfer_wait(transfer, ms, c.byref(done))
            if status != c.OK and done.value:
                error = session.error(status)
                self._end(PeerError(f"{error}: {MEND}") if status == c.ARG else error)
                return True
            if not done.value:
                return False
        self._end(None)
        return True

    def _end(self, error: "BaseException | None") -> None:
        """All transfers are done, or one has failed: then the memory of the others stays."""
        with self._lock:
            if self._over:
                return
            if self._transfers and error is None:
                self._source = self._comm.links.session.library.pstrain_transfer_from(self._transfers[0])
            try:
                if self._after and error is None:
                    with torch.inference_mode():  # of this thread: the tensors may be of that mode
                        for call in self._after:
                            call()
            except Exception as raised:  # of PyTorch: no memory
                error = raised
            self._error, self._over = error, True

    def __del__(self, byref: typing.Any = c.byref, ok: int = c.OK) -> None:
        # Not before: another thread may be in a wait.
        links = self._comm.links
        if links.session.is_open():
            ended = [links.session.library.pstrain_transfer_end(byref(transfer)) == ok for transfer in self._transfers]
            if not all(ended):  # one has failed, and others still write
                links.left.append((self._comm, self._keeps))

    def wait_done(self) -> None:
        while not self.is_done(SLICE_MS):
            pass

    def keep_if_done(self) -> bool:
        if not self.is_done():
            return False
        if self._promise is not None:
            self._promise.keep(self._error)
        return True

    # ---- PyTorch's ----

    @not_compiled
    def wait(self, timeout: typing.Any = None) -> bool:
        """Blocks until the call is done; raises what went wrong. timeout (timedelta): TimeoutError after it, and the
        call goes on; none, or 0: the job's own deadline."""
        timeout = timeout or self.limit
        seconds = timeout.total_seconds() if timeout else 0.0
        end = time.monotonic() + seconds if seconds > 0 else float("inf")
        try:
            while not self.is_done(min(SLICE_MS, max(0, round((end - time.monotonic()) * 1000)))
                               if seconds > 0 else SLICE_MS):
                if time.monotonic() >= end:
                    raise TimeoutError(f"{self._name} is not done after {seconds:g} s (timeout= of wait)")
        except TimeoutError:
            raise
        except BaseException:  # a Ctrl-C
            self._comm.links.session.give_up()
            self.wait_done()
            raise
        if not is_asked_by_autograd():  # within join() DistributedDataParallel asks for its future next
            let_go(self)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    @not_compiled
    def get_future(self) -> typing.Any:
        with self._lock:
            first = self._promise is None
            if first:
                self._promise = Promise(self._value, self._devices)
        promise = self._promise
        assert promise is not None
        if first:
            if self.is_done():
                promise.keep(self._error)
            else:
                self._comm.links.tell(self)
        let_go(self)
        return promise.future if is_asked_by_autograd() else promise.inner

    def result(self) -> typing.Any:
        self.wait()
        return self._value

    def is_completed(self) -> bool:
        return self.is_done()

    def is_success(self) -> bool:
        return self.is_done() and self._error is None

    def exception(self) -> typing.Any:
        return self._error if self.is_done() else None

    def _source_rank(self) -> int:
        """The member that sent what recv() of any source got."""
        return self._source

    source_rank = _source_rank


class Together(Work):
    """Of several calls, which may be waited for one by one as well."""

    def __init__(self, comm: Comm, works: "list[Work]", name: str) -> None:
        devices = list(dict.fromkeys(device for work in works for device in work._devices or ()))
        super().__init__(comm, [], works, [work._value for work in works], name, devices=devices or None)
        self._works, self._over = works, False

    def is_done(self, ms: int = 0) -> bool:
        if not all(work.is_done(ms) for work in self._works):
            return False
        self._end(next((work._error for work in self._works if work._error is not None), None))
        return True
