"""Rows of embedding tables for serving: from a file that export() has written, or from the servers of a job that runs."""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import threading
import typing
import weakref

import torch
from torch.nn import functional

from . import _library as c, job as jobs
from ._commits import open_file
from ._futures import not_compiled
from ._lookups import Inputs, Lookups, Table
from ._rows import Spec, check_whole, checked_padding, make_spec
from ._session import answers
from .errors import Error, InputError

_WORDS = {"I64": torch.int64, "F32": torch.float32}
_KEY = "pstrain.tables"  # of the metadata: by table what first rows and lookups depend on
_FIRST = ("init", "scale", "seed")
_PIECE = 1 << 20  # ids


def metadata_of(tables: "typing.Sequence[Table]") -> str:
    """What lookups in an exported file depend on, beside the rows."""
    return json.dumps({t.spec.name: {"number": t.number, "mode": t.mode, "padding_idx": t.padding, "num_embeddings": t.rows,
                                     "dim": t.spec.dim, **{word: getattr(t.spec, word) for word in _FIRST}} for t in tables})


def _check_order(name: str, ids: torch.Tensor) -> None:
    """Lookups search among the ids. In pieces: they may be more than the memory."""
    for begin in range(0, len(ids), _PIECE):
        piece = ids[begin:begin + _PIECE + 1]  # with the next one's first
        falls = (piece[1:] <= piece[:-1]).nonzero()
        if int(piece[0]) < 0 or len(falls):
            at = begin if int(piece[0]) < 0 else begin + int(falls[0]) + 1
            raise ValueError(f"{name}.ids: id {int(ids[at])} at place {at} does not rise from 0")


class _Served(Lookups):
    """Looked up as pstrain.Embeddings, without gradients."""

    @torch.no_grad()
    @not_compiled
    def forward(self, ids: typing.Any, offsets: typing.Any = None,
                per_sample_weights: "typing.Mapping[str, torch.Tensor] | None" = None) -> "dict[str, torch.Tensor]":
        """As pstrain.Embeddings'."""
        given = self._given(ids, offsets, per_sample_weights)
        asked = [_Asked(self, self._inputs(*one)) for one in given]
        rows = self._rows_of([(one.table, one.ids) for one in asked])
        return {one[0].spec.name: self._as_wanted(each.pooled(self, found), one) for one, each, found in zip(given, asked, rows)}

    def _rows_of(self, wanted: "list[tuple[Table, torch.Tensor]]") -> "list[torch.Tensor]":
        """(ids, dim) of each. ids: rising."""
        raise NotImplementedError

    def _check_ids(self, table: Table, ids: torch.Tensor) -> None:
        if len(ids) and (int(ids[0]) < 0 or table.rows is not None and int(ids[-1]) >= table.rows):
            raise self._fault(table, f"ids from {int(ids[0])} to {int(ids[-1])}: they are from 0 to "
                              f"{table.rows - 1 if table.rows else '2^63 - 1'}, and the padding")


class _Asked:
    """A lookup in one table, checked: its distinct ids, and what becomes of their rows."""

    def __init__(self, owner: _Served, inputs: Inputs) -> None:
        self.table, self._given = inputs.table, inputs
        n, table = inputs.ids.numel(), inputs.table
        unique, places = torch.unique(inputs.ids.view(-1), return_inverse=True)
        self._counts = unique != table.padding if table.padding is not None else torch.ones_like(unique, dtype=torch.bool)
        # The last row is for what does not count.
        self._places = torch.where(self._counts[places], places, len(unique)) if n else places
        self.ids = unique[self._counts].contiguous()
        owner._check_ids(table, self.ids)
        if table.mode is not None:
            self._offsets = owner._begins(inputs)

    def pooled(self, owner: _Served, found: torch.Tensor) -> torch.Tensor:
        given, n = self._given, len(self._counts)
        rows = torch.zeros(n + 1, self.table.spec.dim, dtype=torch.float32, device="cpu")
        rows[:-1][self._counts] = found
        if self.table.mode is None:
            out = rows[self._places]
        elif given.bags == 0:
            out = rows[:0]
        else:
            weights = None if given.weights is None else given.weights.view(-1)
            out = functional.embedding_bag(self._places, rows, self._offsets, mode=self.table.mode, padding_idx=n,
                                           per_sample_weights=weights)
        return out.view(given.shape)


class Rows(_Served):
    """Exported tables, mapped: processes that read one file share its memory. Looked up as pstrain.Embeddings, without
    gradients: rows(ids, offsets) gives a dict of (bags, dim) tensors. An id that is not in the file has the first row
    that training would give it. `tables`: by name (ids (n), weight (n, dim)), as they are in the file; do not write."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        super().__init__(f"{os.fspath(path)}: ")
        self.tables: "dict[str, tuple[torch.Tensor, torch.Tensor]]" = {}
        try:
            with open_file(path) as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # pages of its own only if written
        except (OSError, ValueError) as error:
            raise InputError(f"{self._where}it cannot be mapped: {error}") from None
        try:
            self._read(memory)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
            raise InputError(f"{self._where}it is not a whole file of Embeddings.export(): {error}") from None

    def extra_repr(self) -> str:
        """A file does not know the optimizer."""
        return ", ".join(f"{t.spec.name}: dim={t.spec.dim}, mode={t.mode}, {len(self.tables[t.spec.name][0]):,} rows"
                         for t in self._tables.values())

    def _read(self, memory: mmap.mmap) -> None:
        size = struct.unpack_from("<Q", memory)[0]
        head = json.loads(memory[8:8 + size])
        if _KEY not in head.get("__metadata__", {}):
            raise ValueError("a safetensors file without tables of rows (a model's weights have none; a run's rows are in "
                             "model.rows.safetensors)")
        for name, about in json.loads(head["__metadata__"][_KEY]).items():
            ids, weight = (self._tensor(memory, 8 + size, head[f"{name}.{word}"]) for word in ("ids", "weight"))
            first = {word: about[word] for word in _FIRST}
            if isinstance(first["seed"], str):  # ps-worker writes one above 2^63 - 1 so
                first["seed"] = int(first["seed"])
            spec = make_spec(name, about["dim"], {"optimizer": "sgd", **first}, 0)
            if ids.dtype != torch.int64 or weight.dtype != torch.float32 or weight.shape != (*ids.shape, spec.dim):
                raise ValueError(f"{name}: ids {tuple(ids.shape)}, weight {tuple(weight.shape)}")
            _check_order(name, ids)
            self._check_mode(name, about["mode"])
            padding = checked_padding(name, about["padding_idx"], about["num_embeddings"])
            check_whole(name, "number", about["number"], 0)
            self._tables[f"{name}."] = Table(about["number"], spec, about["mode"], padding, about["num_embeddings"])
            self.tables[name] = (ids, weight)

    def _tensor(self, memory: mmap.mmap, start: int, about: "dict[str, typing.Any]") -> torch.Tensor:
        dtype, shape, (begin, end) = _WORDS[about["dtype"]], about["shape"], about["data_offsets"]
        n = int(torch.Size(shape).numel())
        if begin < 0 or end - begin != n * torch.empty(0, dtype=dtype).element_size():
            raise ValueError(f"{shape} in {end - begin} bytes")
        if n == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(memory, dtype=dtype, count=n, offset=start + begin).view(shape)

    def _rows_of(self, wanted: "list[tuple[Table, torch.Tensor]]") -> "list[torch.Tensor]":
        return [self._rows_of_table(*one) for one in wanted]

    def _rows_of_table(self, table: Table, ids: torch.Tensor) -> torch.Tensor:
        known, weight = self.tables[table.spec.name]
        at = torch.searchsorted(known, ids).clamp(max=max(0, len(known) - 1))
        there = known[at] == ids if len(known) else torch.zeros_like(ids, dtype=torch.bool)
        out = torch.empty(len(ids), table.spec.dim, dtype=torch.float32, device="cpu")
        out[there] = weight[at[there]]
        missing = ids[~there].contiguous()
        first = torch.empty(len(missing), table.spec.dim, dtype=torch.float32, device="cpu")
        as_c, library = table.spec.as_c(), c.load()
        if library.pstrain_rows_first(ctypes.byref(as_c), ctypes.sizeof(as_c), table.number, missing.data_ptr(), len(missing),
                                      first.data_ptr()):
            raise Error(library.pstrain_error().decode())
        out[~there] = first
        return out


class ServedRows(_Served):
    """Tables of a job that runs, read from its servers by a process that is no member. Looked up as pstrain.Embeddings,
    without gradients, and changes nothing: an id that training has not reached has its first row. `steps`: how many steps
    the rows of the last lookup have made, at least and at most. Threads may share it, one lookup at a time."""

    def __init__(self, address: str, tables: "typing.Mapping[str, typing.Mapping[str, typing.Any]] | None", job: "str | None",
                 keys: "str | None", timeout: float) -> None:
        super().__init__(f"{address}: ")
        self.steps = (0, 0)
        self._library, self._reader, self._pid = c.load(), c.c_void_p(), os.getpid()
        self._lock = threading.Lock()
        if not jobs.is_initialized():
            jobs.listen()  # it says what it waits for
        self._raised: "BaseException | None" = None  # by a signal's handler during a wait
        asked = answers(weakref.ref(self))
        next(asked)
        self._ask_interrupted = c.INTERRUPTED_FN(asked.send)  # lives as long as the reader
        options = c.RowsReaderOptions(
            struct_size=ctypes.sizeof(c.RowsReaderOptions), address=address.encode(), job=job.encode() if job else None,
            keys=keys.encode() if keys else None, timeout_ms=max(1, round(timeout * 1000)),
            interrupted=ctypes.cast(self._ask_interrupted, c.c_void_p))
        self._check(self._library.pstrain_rows_reader_open(c.byref(options), c.byref(self._reader)), "")
        names = [self._add(number) for number in range(self._library.pstrain_rows_reader_tables(self._reader))]
        for name, given in (tables or {}).items():
            if name not in names:
                raise InputError(f"{self._where}there is no table '{name}'; there are {', '.join(names)}")
            self._tables[f"{name}."] = self._as_given(self._tables[f"{name}."], given)

    def _add(self, number: int) -> str:
        about = c.RowsTable()
        self._check(self._library.pstrain_rows_reader_table(self._reader, number, c.byref(about), ctypes.sizeof(about)))
        words: "dict[str, typing.Any]" = {word: getattr(about, word) for word in Spec._fields}
        words = {word: value.decode() if isinstance(value, bytes) else value for word, value in words.items()}
        spec = Spec(**words)
        self._tables[f"{spec.name}."] = Table(number, spec, None, None, None)
        return spec.name

    def _as_given(self, table: Table, given: typing.Any) -> Table:
        """What servers do not know: how rows become bags."""
        where = f"{self._where}table '{table.spec.name}'"
        if not isinstance(given, typing.Mapping) or set(given) - {"dim", "mode", "padding_idx", "num_embeddings"}:
            raise InputError(f"{where}: {given!r} has to be a dict of mode, padding_idx, num_embeddings, dim")
        if given.get("dim", table.spec.dim) != table.spec.dim:
            raise InputError(f"{where}: its dim is {table.spec.dim}, not {given['dim']}")
        self._check_mode(table.spec.name, given.get("mode"))
        padding, rows = checked_padding(where, given.get("padding_idx"), given.get("num_embeddings")), given.get("num_embeddings")
        return table._replace(mode=given.get("mode"), padding=padding, rows=rows)

    def _check(self, status: int, where: "str | None" = None) -> None:
        """where: what the library's sentence has not."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if status != c.OK:
            text = self._library.pstrain_error().decode(errors="replace")
            raise c.EXCEPTIONS.get(status, Error)((self._where if where is None else where) + text)

    def interrupted(self, raised: "BaseException | None" = None) -> int:
        """Whether the call that waits is to end; raised: why."""
        self._raised = raised or self._raised
        return int(self._raised is not None)

    def _rows_of(self, wanted: "list[tuple[Table, torch.Tensor]]") -> "list[torch.Tensor]":
        outs = [torch.empty(len(ids), table.spec.dim, dtype=torch.float32, device="cpu") for table, ids in wanted]
        reads = (c.RowsRead * len(wanted))(*[c.RowsRead(table=table.number, ids=ids.data_ptr(), n=len(ids), out=out.data_ptr())
                                             for (table, ids), out in zip(wanted, outs)])
        steps = (c.c_uint64 * 2)()
        with self._lock:
            self._check(self._library.pstrain_rows_reader_read(self._reader, reads, len(wanted), ctypes.sizeof(c.RowsRead), steps))
            if any(len(ids) for _, ids in wanted):
                self.steps = (steps[0], steps[1])
        return outs

    def close(self) -> None:
        """Lookups are refused afterwards. The job does not notice."""
        if self._reader and self._pid == os.getpid():
            self._library.pstrain_rows_reader_close(c.byref(self._reader))

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self.close()


def rows(source: "str | os.PathLike[str]", tables: "typing.Mapping[str, typing.Mapping[str, typing.Any]] | None" = None, *,
         job: "str | None" = None, keys: "str | None" = None, timeout: float = 30.0) -> "Rows | ServedRows":
    """Rows for serving, without pstrain.init(): those of a file that export() has written, or, "tcp://HOST:PORT", those
    that the servers of the job at this address have now.

    Of a job: tables: what servers do not know, {"user": dict(mode="sum", padding_idx=0)}; of tables that are not among them
    each id gives its row. job: its job.name; None: any. keys: of a job with keys, the folder that has worker.key, or that
    file's text; None: PS_CURVE_DIR, PS_CURVE_KEY. timeout: seconds, of each lookup.
    """
    if not str(source).startswith(("tcp://", "file://")):
        if tables is not None or job is not None or keys is not None:
            raise InputError(f"{source}: tables, job and keys are for rows of a job that runs, tcp://HOST:PORT")
        return Rows(source)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e6:
        raise InputError(f"{source}: timeout={timeout!r} is not a number of seconds above 0")
    return ServedRows(str(source), tables, job, keys or os.environ.get("PS_CURVE_KEY") or os.environ.get("PS_CURVE_DIR"), timeout)
