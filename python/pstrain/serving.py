"""Rows of embedding tables in a file: written by export(), read without a job."""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import typing

import torch
from torch.nn import functional

from . import _library as c
from ._lookups import Given, Lookups, Table, as_wanted
from ._rows import make_spec
from .errors import Error, InputError

_WORDS = {"I64": torch.int64, "F32": torch.float32}
_KEY = "pstrain.tables"  # of the metadata: by table what first rows and lookups depend on
_FIRST = ("init", "scale", "seed")


def write(path: "str | os.PathLike[str]", tables: "typing.Sequence[Table]", tensors: "dict[str, torch.Tensor]") -> None:
    """A safetensors file. What is there is replaced when the new one is whole: readers may have mapped it."""
    about = {t.spec.name: {"number": t.number, "mode": t.mode, "padding_idx": t.padding, "num_embeddings": t.rows,
                           "dim": t.spec.dim, **{word: getattr(t.spec, word) for word in _FIRST}} for t in tables}
    head: "dict[str, typing.Any]" = {"__metadata__": {_KEY: json.dumps(about)}}
    words = {dtype: word for word, dtype in _WORDS.items()}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        head[name] = {"dtype": words[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = f"{os.fspath(path)}.part"
    try:
        with open(part, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


class Rows(Lookups):
    """Exported tables, mapped: processes that read one file share its memory. Looked up as pstrain.Embeddings, without
    gradients: rows(ids, offsets) gives a dict of (bags, dim) tensors. An id that is not in the file has the first row
    that training would give it. `tables`: by name (ids (n), weight (n, dim)), as they are in the file; do not write."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        super().__init__(f"{os.fspath(path)}: ")
        self.tables: "dict[str, tuple[torch.Tensor, torch.Tensor]]" = {}
        try:
            with open(path, "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # pages of its own only if written
        except (OSError, ValueError) as error:
            raise InputError(f"{self._where}it cannot be mapped: {error}") from None
        try:
            self._read(memory)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
            raise InputError(f"{self._where}it is not a whole file of Embeddings.export(): {error}") from None

    def _read(self, memory: mmap.mmap) -> None:
        size = struct.unpack_from("<Q", memory)[0]
        head = json.loads(memory[8:8 + size])
        for name, about in json.loads(head["__metadata__"][_KEY]).items():
            ids, weight = (self._tensor(memory, 8 + size, head[f"{name}.{word}"]) for word in ("ids", "weight"))
            spec = make_spec(name, about["dim"], {"optimizer": "sgd", **{word: about[word] for word in _FIRST}}, 0)
            if ids.dtype != torch.int64 or weight.dtype != torch.float32 or weight.shape != (*ids.shape, spec.dim):
                raise ValueError(f"{name}: ids {tuple(ids.shape)}, weight {tuple(weight.shape)}")
            self._check_mode(name, about["mode"])
            self._tables[f"{name}."] = Table(about["number"], spec, about["mode"], about["padding_idx"], about["num_embeddings"])
            self.tables[name] = (ids, weight)

    def _tensor(self, memory: mmap.mmap, start: int, about: "dict[str, typing.Any]") -> torch.Tensor:
        dtype, shape, (begin, end) = _WORDS[about["dtype"]], about["shape"], about["data_offsets"]
        n = int(torch.Size(shape).numel())
        if begin < 0 or end - begin != n * torch.empty(0, dtype=dtype).element_size():
            raise ValueError(f"{shape} in {end - begin} bytes")
        if n == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=n, offset=start + begin).view(shape)

    @torch.no_grad()
    def forward(self, ids: typing.Any, offsets: typing.Any = None,
                per_sample_weights: "typing.Mapping[str, torch.Tensor] | None" = None) -> "dict[str, torch.Tensor]":
        """As pstrain.Embeddings'."""
        return {one[0].spec.name: self._look_up(one) for one in self._given(ids, offsets, per_sample_weights)}

    def _look_up(self, given: Given) -> torch.Tensor:
        inputs = self._inputs(*given)
        table, n = inputs.table, inputs.ids.numel()
        # The last row is for what does not count.
        unique, places = torch.unique(inputs.ids.view(-1), return_inverse=True)
        counts = unique != table.padding if table.padding is not None else torch.ones_like(unique, dtype=torch.bool)
        self._check_ids(table, unique[counts])
        rows = torch.zeros(len(unique) + 1, table.spec.dim)
        rows[:-1][counts] = self._rows_of(table, unique[counts])
        places = torch.where(counts[places], places, len(unique)) if n else places
        if table.mode is None:
            out = rows[places]
        elif inputs.bags == 0:
            if n:
                raise self._fault(table, "there are ids, and no bags")
            out = rows[:0]
        else:
            offsets = torch.arange(inputs.bags) * (n // inputs.bags) if inputs.offsets is None else inputs.offsets
            self._check_offsets(table, offsets, n)
            weights = None if inputs.weights is None else inputs.weights.view(-1)
            out = functional.embedding_bag(places, rows, offsets, mode=table.mode, padding_idx=len(unique),
                                           per_sample_weights=weights)
        return as_wanted(out.view(inputs.shape), given)

    def _check_ids(self, table: Table, ids: torch.Tensor) -> None:
        if len(ids) and (int(ids[0]) < 0 or table.rows is not None and int(ids[-1]) >= table.rows):
            raise self._fault(table, f"ids from {int(ids[0])} to {int(ids[-1])}: they are from 0 to "
                              f"{table.rows - 1 if table.rows else '2^63 - 1'}, and the padding")

    def _check_offsets(self, table: Table, offsets: torch.Tensor, n: int) -> None:
        ends = torch.cat([offsets, torch.tensor([n])])
        if int(offsets[0]) != 0 or bool((ends.diff() < 0).any()):
            raise self._fault(table, f"offsets begin at 0, do not fall, and are at most {n}, the number of ids")

    def _rows_of(self, table: Table, ids: torch.Tensor) -> torch.Tensor:
        """ids: each once."""
        known, weight = self.tables[table.spec.name]
        at = torch.searchsorted(known, ids).clamp(max=max(0, len(known) - 1))
        there = known[at] == ids if len(known) else torch.zeros_like(ids, dtype=torch.bool)
        out = torch.empty(len(ids), table.spec.dim)
        out[there] = weight[at[there]]
        missing = ids[~there].contiguous()
        first = torch.empty(len(missing), table.spec.dim)
        as_c, library = table.spec.as_c(), c.load()
        if library.pstrain_rows_first(ctypes.byref(as_c), ctypes.sizeof(as_c), table.number, missing.data_ptr(), len(missing),
                                      first.data_ptr()):
            raise Error(library.pstrain_error().decode())
        out[~there] = first
        return out


def rows(source: "str | os.PathLike[str]") -> Rows:
    """The rows of a file that export() has written, for serving: no job, no servers, no pstrain.init()."""
    if str(source).startswith("tcp://"):
        raise InputError(f"{source}: rows of a running job cannot be read over the network: servers answer the job's workers "
                         "alone. Let rank 0 export() from time to time, and map the file")
    return Rows(source)
