"""A session of the library: its calls as methods that raise, and waits that Ctrl-C ends."""
from __future__ import annotations

import ctypes
import os
import queue
import threading
import typing
import weakref

from . import _library as c
from . import errors


_SHORT = 1024  # bytes of a text that is gathered at once
_OWN = "pstrain-"  # how the names of threads begin that make calls and complete futures


def own_thread(name: str, run: "typing.Callable[[], None]") -> threading.Thread:
    """Starts a thread that no code of the program may run in: others wait for it."""
    thread = threading.Thread(target=run, name=_OWN + name, daemon=True)
    thread.start()
    return thread


def is_own_thread() -> bool:
    return threading.current_thread().name.startswith(_OWN)


class _Caller:
    """A thread that makes the calls that may block, one after another. The thread that asks
    waits for it in Python, where signals are handled; in C it would not notice a Ctrl-C."""

    def __init__(self) -> None:
        self._asked: "queue.SimpleQueue[typing.Any]" = queue.SimpleQueue()
        self._thread = own_thread("calls", self._run)

    def _run(self) -> None:
        while True:
            call, done = self._asked.get()
            if call is None:
                return
            try:
                error = call()
            except BaseException as raised:  # handed to the thread that asked
                error = raised
            done(error)
            call = done = error = None  # keeps nothing alive while it waits

    def submit(self, call: "typing.Callable[[], None]",
               done: "typing.Callable[[BaseException | None], None]") -> None:
        """Makes the call later; done gets its exception, or None, in this thread."""
        self._asked.put((call, done))

    def ask(self, call: "typing.Callable[[], None]", give_up: "typing.Callable[[], None]") -> None:
        """Makes the call, and waits. give_up makes it return early; used after a Ctrl-C."""
        if threading.current_thread() is self._thread:
            call()
            return
        outcome: "list[BaseException | None]" = []
        over = threading.Event()

        def done(error: "BaseException | None") -> None:
            outcome.append(error)
            over.set()

        self.submit(call, done)
        try:
            over.wait()
        except BaseException:
            give_up()
            over.wait()
            raise
        if outcome[0] is not None:
            raise outcome[0]

    def end(self) -> None:
        """Waits until what was asked for before is done."""
        self._asked.put((None, None))
        if threading.current_thread() is not self._thread:
            self._thread.join()


def answers(waits: "weakref.ref[typing.Any]") -> "typing.Generator[int, typing.Any, None]":
    """Answers the library's questions whether the call that waits is to end, as its interrupted() says. A generator, because
    Python runs the handlers of signals when it goes on, inside the try: in a function they could
    run before the function's first line, and what they raise would be lost."""
    answer = 0
    while True:
        try:
            yield answer
            mine = waits()
            answer = mine.interrupted() if mine is not None else 0
        except GeneratorExit:
            return
        except BaseException as raised:  # the program's own thread gets it
            mine = waits()
            answer = mine.interrupted(raised) if mine is not None else 0
        mine = None  # keeps nothing alive while it waits


class _Memory:
    """Destroys the library's session when nothing needs it any more."""

    def __init__(self, session: "Session") -> None:
        self._library, self._session, self._pid = session.library, session._s, session.pid
        self._callback = session._ask_interrupted  # lives as long as the session
        self.on_gpu: typing.Any = None  # the arenas there, as long as the library copies from and to them

    # When the interpreter ends, modules' names are None before the last objects go: defaults are there still.
    def destroy(self, getpid: typing.Any = os.getpid, byref: typing.Any = c.byref) -> None:
        if self._pid == getpid():
            self._library.pstrain_destroy(byref(self._session))  # of NULL: nothing

    __del__ = destroy


class _Arenas:
    """The memory of a table's tensors. It lives as long as one of them, also when the job has another table."""

    def __init__(self, memory: _Memory) -> None:
        self._memory: "_Memory | None" = memory
        self._library = c.load()
        self._old = c.c_void_p()
        self._pid = os.getpid()

    def retire(self, old: c.c_void_p) -> None:
        """They are no longer the session's, but old."""
        self._old, self._memory = old, None

    def __del__(self, getpid: typing.Any = os.getpid, byref: typing.Any = c.byref) -> None:
        if self._pid == getpid():
            self._library.pstrain_arenas_free(byref(self._old))  # of NULL: nothing


class Session:
    """One worker's part in a job. Methods are those of pstrain.h, which says what may be
    called when and from which thread; they raise the exceptions of errors.py."""

    def __init__(self, init_method: "str | None", rank: "int | None", world_size: "int | None",
                 servers: "int | None", settings: "list[str]") -> None:
        self.library = c.load()
        self.pid = os.getpid()
        self.rank = -1
        self.failure = ""  # why it has failed: only abort may follow
        self.moved = 0  # bytes that reductions and transfers have taken or given, about; not those of broadcasts
        self._s = c.c_void_p()
        self._caller: "_Caller | None" = None
        self._interrupted = 0
        # Asked about every 100 ms by the thread that waits in the library.
        self._raised: "BaseException | None" = None  # by a signal's handler during a wait
        asked = answers(weakref.ref(self))
        next(asked)
        self._ask_interrupted = c.INTERRUPTED_FN(asked.send)
        words = c.texts(settings)
        options = c.Options(
            struct_size=ctypes.sizeof(c.Options),
            init_method=init_method.encode() if init_method else None,
            rank_plus_1=0 if rank is None else rank + 1, world_size=world_size or 0,
            servers_plus_1=0 if servers is None else servers + 1, settings=words,
            n_settings=len(settings),
            interrupted=ctypes.cast(self._ask_interrupted, c.c_void_p))
        self.check(self.library.pstrain_create(c.byref(options), c.byref(self._s)))
        self._memory: "_Memory | None" = _Memory(self)
        self._arenas: "_Arenas | None" = _Arenas(self._memory)
        self._caller = _Caller()

    # ---- how calls are made ----

    def check(self, status: int) -> None:
        if status != c.OK:
            raise self.error(status)

    def error(self, status: int) -> errors.Error:
        """Must be called by the thread whose call failed."""
        text = self.library.pstrain_error().decode(errors="replace")
        if status != c.ARG and not self.failure:
            self.failure = text
        kind = c.EXCEPTIONS.get(status, errors.Error)
        return kind(f"rank {self.rank}: {text}" if self.rank >= 0 else text)

    def check_open(self) -> "_Caller":
        if not self._s or self._caller is None:
            raise errors.InputError(f"rank {self.rank}: this job has been shut down")
        if self.pid != os.getpid():  # where the threads are that make its calls
            raise errors.InputError(f"rank {self.rank}: a process that was forked cannot use its parent's job")
        return self._caller

    def is_open(self, getpid: typing.Any = os.getpid) -> bool:
        """False once it has been destroyed, and in a process that was forked."""
        return bool(self._s) and self.pid == getpid()

    def pointer(self) -> "c.c_void_p":
        """For calls that the methods do not have."""
        self.check_open()
        return self._s

    def call(self, name: str, *arguments: typing.Any) -> None:
        """A call that does not block, or only shortly."""
        self.check_open()
        status = getattr(self.library, name)(self._s, *arguments)
        if status != c.OK:
            raise self.error(status)

    def block(self, name: str, *arguments: typing.Any) -> None:
        """A call that waits for others. After Ctrl-C the job is ended for everybody."""
        self.check_open().ask(lambda: self.call(name, *arguments), self.give_up)

    def wait_here(self, name: str, *arguments: typing.Any) -> None:
        """As block, in the thread that asks: for calls of each step, where a change of threads
        would cost more than the call. Ctrl-C is noticed when the library asks about it."""
        self.check_open()
        status = getattr(self.library, name)(self._s, *arguments)
        raised, self._raised = self._raised, None
        if raised is not None:
            self.give_up()
            raise raised
        if status != c.OK:
            raise self.error(status)

    def interrupted(self, raised: "BaseException | None" = None) -> int:
        """Whether the call that waits is to end; raised: why."""
        self._raised = raised or self._raised
        return int(self._interrupted or self._raised is not None)

    def give_up(self) -> None:
        """Ends the job for everybody after a Ctrl-C: calls that wait return soon."""
        self._interrupted = 1
        self.abort("it was interrupted")

    def later(self, call: "typing.Callable[[], None]",
              done: "typing.Callable[[BaseException | None], None]") -> None:
        """Makes a call of this session in the thread of the blocking ones, in order."""
        self.check_open().submit(call, done)

    # ---- life ----

    def join(self) -> None:
        self.block("pstrain_join")
        self.rank = self.library.pstrain_rank(self._s)

    @property
    def world_size(self) -> int:
        return int(self.library.pstrain_world_size(self._s))

    @property
    def servers(self) -> int:
        return int(self.library.pstrain_servers(self._s))

    def close(self) -> None:
        self.block("pstrain_close")

    def abort(self, reason: str) -> None:
        if self._s:
            self.library.pstrain_abort(self._s, reason.encode(errors="backslashreplace"))

    def destroy(self, at_once: bool = False) -> None:
        """After close or abort. The library's memory goes when nobody holds memory() or arenas(); at_once:
        now, because the process ends."""
        if at_once and self._memory:
            self._memory.destroy()
        if self._caller:
            self._caller.end()
            self._caller = None
        self._s, self._memory, self._arenas = c.c_void_p(), None, None

    def memory(self) -> "_Memory":
        """Keeps the library's session while it is there."""
        assert self._memory is not None
        return self._memory

    def arenas(self) -> "_Arenas":
        """Keeps the arenas at their place while it is there."""
        assert self._arenas is not None
        return self._arenas

    def should_stop(self) -> bool:
        return bool(self.library.pstrain_should_stop(self._s))

    def stats(self) -> c.Stats:
        out = c.Stats(struct_size=ctypes.sizeof(c.Stats))
        self.call("pstrain_stats_get", c.byref(out))
        return out

    # ---- tensors ----

    def open(self, table: c.Table) -> None:
        self.block("pstrain_open", c.byref(table))

    def start(self) -> None:
        self.block("pstrain_start")

    def close_table(self) -> None:
        """Another open follows."""
        assert self._memory is not None
        old = c.c_void_p()
        self.block("pstrain_close_table", c.byref(old))
        self.arenas().retire(old)
        self._arenas = _Arenas(self._memory)

    def params(self) -> int:
        return int(self.library.pstrain_params(self._s))

    def grads(self) -> int:
        return int(self.library.pstrain_grads(self._s))

    def arena_count(self) -> int:
        return int(self.library.pstrain_arena_count(self._s))

    def tensor_offset(self, index: int) -> int:
        return int(self.library.pstrain_tensor_offset(self._s, index))

    def set_groups(self, groups: "typing.Any", n: int) -> None:
        self.call("pstrain_set_groups", groups, n, ctypes.sizeof(c.Group))

    def begin(self) -> None:
        self.wait_here("pstrain_begin", None)

    def begin_of(self, optimizer: int) -> None:
        self.wait_here("pstrain_begin_of", optimizer, None)

    def push(self, first: int, n: int = 1) -> None:
        self.call("pstrain_push", first, n)

    def push_copy(self, index: int, address: int, factor: float) -> None:
        self.call("pstrain_push_copy", index, address, factor)

    def push_none(self, first: int, n: int = 1) -> None:
        self.call("pstrain_push_none", first, n)

    def wait(self, first: int, n: int = 1) -> None:
        self.wait_here("pstrain_wait", first, n)

    def finish(self) -> None:
        self.call("pstrain_finish")

    def drain(self) -> None:
        self.wait_here("pstrain_drain")

    def sync(self) -> None:
        self.block("pstrain_sync")

    def loss_scale(self) -> "tuple[float, int]":
        """(the scale, the steps that were skipped so far)"""
        scale, skipped = c.c_float(), c.c_uint64()
        self.block("pstrain_loss_scale", c.byref(scale), c.byref(skipped))
        return scale.value, skipped.value

    def state_arrays(self) -> int:
        return int(self.library.pstrain_state_arrays(self._s))

    def has_feedback(self) -> bool:
        return bool(self.library.pstrain_state_has_feedback(self._s))

    def save(self, state: c.State) -> None:
        self.block("pstrain_save", c.byref(state))

    # ---- sums and collectives ----

    def open_reducer(self, n_bytes: int, settings: "list[str]") -> None:
        words = c.texts(settings)
        options = c.Reducer(struct_size=ctypes.sizeof(c.Reducer), bytes=n_bytes, settings=words,
                            n_settings=len(settings))
        self.block("pstrain_open_reducer", c.byref(options))
        self.start()

    def reduce_begin(self, address: int, n: int) -> int:
        ticket = c.c_uint64()
        self.call("pstrain_reduce_begin", address, n, c.byref(ticket))
        return ticket.value

    def reduce_end(self, ticket: int) -> None:
        self.call("pstrain_reduce_end", ticket)

    def barrier(self) -> None:
        self.block("pstrain_barrier")

    def broadcast(self, address: int, n_bytes: int, root: int) -> None:
        self.block("pstrain_broadcast", address, n_bytes, root)

    def all_gather(self, address: int, n_bytes: int, out: int) -> None:
        self.block("pstrain_all_gather", address, n_bytes, out)

    def gather_bytes(self, mine: bytes) -> "list[bytes]":
        """Every rank's, in rank order; all have the same length."""
        out = ctypes.create_string_buffer(len(mine) * self.world_size)
        self.all_gather(ctypes.cast(ctypes.c_char_p(mine), c.c_void_p).value or 0, len(mine), ctypes.addressof(out))
        return [out.raw[at:at + len(mine)] for at in range(0, len(out), len(mine))]

    def gather_texts(self, text: str) -> "list[str]":
        """Every rank's text, in rank order."""
        raw = text.encode()
        short = self.gather_bytes(len(raw).to_bytes(8, "little") + raw[:_SHORT].ljust(_SHORT, b"\0"))
        lengths = [int.from_bytes(piece[:8], "little") for piece in short]
        if max(lengths) <= _SHORT:
            return [piece[8:8 + n].decode() for piece, n in zip(short, lengths)]
        whole = self.gather_bytes(raw.ljust(max(lengths), b"\0"))
        return [piece[:n].decode() for piece, n in zip(whole, lengths)]

    def all_reduce(self, address: int, n: int, dtype: int, op: int) -> None:
        self.moved += 8 * n
        self.block("pstrain_all_reduce", address, n, dtype, op)
