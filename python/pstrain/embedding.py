"""Embedding tables that live on the servers: modules for PyTorch."""
from __future__ import annotations

import ctypes
import json
import os
import struct
import typing

import torch

from . import _library as c
from . import job as jobs
from ._rows import MODES, Load, Page, Rows, Spec, check_number, make_spec
from .errors import InputError

Ids = typing.Union[torch.Tensor, typing.Sequence[typing.Sequence[int]]]


class _Table(typing.NamedTuple):
    """A table of a module's."""

    number: int  # in the job
    spec: Spec
    mode: "str | None"
    padding: "int | None"
    rows: "int | None"  # ids are below it; None: any


class _Inputs(typing.NamedTuple):
    """Of one lookup, as the library takes them."""

    table: _Table
    ids: torch.Tensor
    offsets: "torch.Tensor | None"
    bags: int
    weights: "torch.Tensor | None"
    out: "torch.Tensor | None"  # None: to ask ahead


def _lookups(inputs: "typing.Sequence[_Inputs]") -> typing.Any:
    lookups = (c.RowsLookup * len(inputs))()
    for lookup, given in zip(lookups, inputs):
        lookup.struct_size = ctypes.sizeof(c.RowsLookup)
        lookup.table, lookup.mode = given.table.number, MODES[given.table.mode]
        lookup.ids, lookup.n_ids, lookup.n_rows = given.ids.data_ptr(), given.ids.numel(), given.table.rows or 0
        lookup.n_bags = given.bags
        if given.offsets is not None:
            lookup.offsets = given.offsets.data_ptr()
        if given.weights is not None:
            lookup.weights = given.weights.data_ptr()
        if given.table.padding is not None:
            lookup.has_padding, lookup.padding = 1, given.table.padding
        lookup.out = _address(given.out)
    return lookups


class _Call:
    """One message to the servers: some lookups, and their gradients."""

    def __init__(self, rows: Rows, inputs: "typing.Sequence[_Inputs]", trains: bool) -> None:
        self._rows = rows
        self._ids = [given.ids for given in inputs]
        self._ticket = rows.lookup(_lookups(inputs), trains)
        self._pid = os.getpid()

    def gradients(self, grads: "typing.Sequence[torch.Tensor | None]",
                  wants_weights: "typing.Sequence[bool]") -> "list[torch.Tensor | None]":
        """Returns those of the weights."""
        n = len(grads)
        floats = [grad if grad is None or grad.dtype is torch.float32 and grad.is_contiguous()
                  else grad.to(torch.float32).contiguous() for grad in grads]
        weights = [torch.empty_like(ids, dtype=torch.float32) if wanted and grad is not None else None
                   for ids, grad, wanted in zip(self._ids, grads, wants_weights)]
        pointers = ctypes.c_void_p * n
        self._rows.job.session.call("pstrain_rows_gradients", self._ticket, n, pointers(*map(_address, floats)),
                                    pointers(*map(_address, weights)))
        return weights

    def __del__(self) -> None:
        if hasattr(self, "_ticket") and self._pid == os.getpid():
            self._rows.forgotten.append(self._ticket)


def _address(tensor: "torch.Tensor | None") -> "int | None":
    return None if tensor is None else tensor.data_ptr()


class _Lookup(torch.autograd.Function):
    """Rows as a function of nothing that requires a gradient: backward gives theirs to the library."""

    @staticmethod
    def forward(ctx: typing.Any, anchor: torch.Tensor, call: _Call, outs: "list[torch.Tensor]",
                *weights: "torch.Tensor | None") -> typing.Any:
        ctx.call = call  # which does not know the results: they would never be freed, as their graph has it
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: typing.Any, *grads: "torch.Tensor | None") -> typing.Any:
        return (None, None, None, *ctx.call.gradients(grads, ctx.needs_input_grad[3:]))


class _Module(torch.nn.Module):
    """What modules with tables have in common."""

    def __init__(self) -> None:
        super().__init__()
        self._job = jobs.current()
        self._rows: Rows = self._job.rows(Rows)
        self._tables: "dict[str, _Table]" = {}

    def _add(self, name: str, dim: int, mode: "str | None", padding: "int | None", rows: "int | None",
             options: "dict[str, typing.Any]") -> _Table:
        rank = self._job.rank
        if mode not in MODES:
            why = ": PyTorch has no sparse gradient of max" if mode == "max" else ""
            raise InputError(f"rank {rank}: table '{name}': mode={mode!r} is not sum or mean{why}")
        spec = make_spec(name, dim, options, rank)
        return _Table(self._rows.add(spec), spec, mode, padding, rows)

    # ---- looking up ----

    def _fault(self, table: _Table, what: str) -> InputError:
        return InputError(f"rank {self._job.rank}: table '{table.spec.name}': {what}")

    def _as_int64(self, table: _Table, what: str, given: typing.Any) -> torch.Tensor:
        if not isinstance(given, torch.Tensor) or given.dtype not in (torch.int64, torch.int32):
            kind = str(given.dtype).replace("torch.", "") if isinstance(given, torch.Tensor) else type(given).__name__
            raise self._fault(table, f"{what} are {kind}: they have to be a tensor of int64 or int32")
        if given.is_cpu and given.dtype is torch.int64 and given.is_contiguous():
            return given
        return given.to("cpu", torch.int64).contiguous()

    def _offsets(self, table: _Table, given: typing.Any, n: int, includes_last: bool) -> torch.Tensor:
        offsets = self._as_int64(table, "offsets", given)
        if offsets.dim() != 1:
            raise self._fault(table, f"offsets have {offsets.dim()} dimensions: they have to have one")
        if not includes_last:
            return offsets
        if offsets.numel() == 0 or int(offsets[-1]) != n:
            raise self._fault(table, f"with include_last_offset the last offset is the number of ids, {n}")
        return offsets[:-1].contiguous()

    def _inputs(self, table: _Table, ids: Ids, offsets: typing.Any, weights: "torch.Tensor | None",
                includes_last: bool) -> _Inputs:
        """The library looks at the numbers."""
        if not isinstance(ids, torch.Tensor):
            if offsets is not None:
                raise self._fault(table, "ids are lists, which say where bags begin: leave out the offsets")
            ids, offsets = _of_lists(ids)
        shape: "typing.Sequence[int]" = ids.shape
        if table.mode is None:
            offsets = None
        elif len(shape) == 2:
            if offsets is not None:
                raise self._fault(table, "ids have two dimensions, so each row is a bag: leave out the offsets")
            shape = shape[:1]
        elif len(shape) != 1 or offsets is None:
            raise self._fault(table, "bags are ids of two dimensions, or of one with offsets")
        else:
            offsets = self._offsets(table, offsets, ids.numel(), includes_last)
            shape = offsets.shape
        if weights is not None:
            weights = self._weights(table, weights, ids)
        out = self._rows.results.take((*shape, table.spec.dim))
        return _Inputs(table, self._as_int64(table, "ids", ids), offsets, 0 if table.mode is None else shape[0], weights, out)

    def _weights(self, table: _Table, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if table.mode != "sum":
            raise self._fault(table, "per_sample_weights are for mode='sum', as in PyTorch")
        if weights.shape != ids.shape or weights.dtype != torch.float32:
            raise self._fault(table, f"per_sample_weights have to be float32 and of the ids' shape, {tuple(ids.shape)}, "
                              f"not {str(weights.dtype).replace('torch.', '')} of {tuple(weights.shape)}")
        return weights.detach().to("cpu").contiguous()

    def _look_up(self, given: "list[tuple[_Table, Ids, typing.Any, torch.Tensor | None, bool]]") -> "list[torch.Tensor]":
        inputs = [self._inputs(*one) for one in given]
        trains = torch.is_grad_enabled()
        call = _Call(self._rows, inputs, trains)
        outs: "typing.Sequence[torch.Tensor]" = [one.out for one in inputs if one.out is not None]
        if trains:
            outs = _Lookup.apply(torch.zeros(0, requires_grad=True), call, outs, *[one[3] for one in given])
        return [out.to(one[1].device) if isinstance(one[1], torch.Tensor) and not one[1].is_cpu else out
                for out, one in zip(outs, given)]

    def _prefetch(self, given: "list[tuple[_Table, Ids]]") -> None:
        asked = []
        for table, ids in given:
            flat = ids if isinstance(ids, torch.Tensor) else _of_lists(ids)[0]
            asked.append(_Inputs(table, self._as_int64(table, "ids", flat), None, 0, None, None))
        if asked:
            self._rows.prefetch(_lookups(asked))

    # ---- steps ----

    def step(self) -> None:
        """Ends a step of all tables of the job, where there is no pstrain.Optimizer to do so: after backward(), on
        every rank."""
        self._rows.step()

    def set_lr(self, lr: float) -> None:
        """The rate of this module's tables from the next step on; rank 0's counts."""
        for table in self._tables.values():
            check_number(f"rank {self._job.rank}: table '{table.spec.name}'", "lr", lr)
            self._rows.rates[table.number] = float(lr)

    # ---- saving and loading ----

    def _rows_of(self, table: _Table) -> Page:
        return self._rows.save(table.number)

    def _save_to_state_dict(self, destination: typing.Any, prefix: str, keep_vars: bool) -> None:
        for key, table in self._tables.items():
            page, dim, start = self._rows_of(table), table.spec.dim, prefix + key
            destination[start + "weight"] = page.values[:, :dim].contiguous()
            destination[start + "ids"] = page.ids
            destination[start + "state"] = page.values[:, dim:].contiguous()
            destination[start + "steps"] = torch.tensor(page.steps)

    def _load_from_state_dict(self, state_dict: typing.Any, prefix: str, local_metadata: typing.Any, strict: bool,
                              missing_keys: "list[str]", unexpected_keys: "list[str]", error_msgs: "list[str]") -> None:
        for key, table in self._tables.items():
            start = prefix + key
            if start + "weight" not in state_dict:
                missing_keys.append(start + "weight")
                continue
            got = {word: state_dict.get(start + word) for word in ("weight", "ids", "state", "steps")}
            try:
                self._rows.load(self._as_load(table, **got))
            except InputError as error:
                error_msgs.append(str(error))

    def _as_load(self, table: _Table, weight: torch.Tensor, ids: "torch.Tensor | None" = None,
                 state: "torch.Tensor | None" = None, steps: "torch.Tensor | None" = None) -> Load:
        """ids: None: the weights of an nn.Embedding(Bag), whose ids count from 0."""
        dim = table.spec.dim
        weight = weight.detach().to("cpu", torch.float32)
        if weight.dim() != 2 or weight.shape[1] != dim:
            raise self._fault(table, f"rows of shape {tuple(weight.shape)} do not fit: its dim is {dim}")
        if ids is None:
            ids = torch.arange(len(weight))
        if ids.shape != (len(weight),):
            raise self._fault(table, f"there are {len(weight)} rows, and ids of shape {tuple(ids.shape)}")
        values = weight
        if state is not None and state.numel():
            values = torch.cat([weight, state.detach().to("cpu", torch.float32)], 1)
        return Load(table.number, self._as_int64(table, "ids", ids), values, int(steps) if steps is not None else 0)

    def export(self, path: "str | os.PathLike[str]") -> None:
        """Writes the rows that the servers have to a safetensors file: for each table NAME.ids, int64 in rising order,
        and NAME.weight, float32 (ids, dim). The same bytes for any number of servers. One rank is enough."""
        tensors: "dict[str, torch.Tensor]" = {}
        for table in self._tables.values():
            page = self._rows_of(table)
            tensors[f"{table.spec.name}.ids"] = page.ids
            tensors[f"{table.spec.name}.weight"] = page.values[:, :table.spec.dim].contiguous()
        _write_safetensors(path, tensors)

    def extra_repr(self) -> str:
        return ", ".join(f"{t.spec.name}: dim={t.spec.dim}, mode={t.mode}, {t.spec.optimizer}" for t in self._tables.values())


def _of_lists(lists: "typing.Sequence[typing.Sequence[int]]") -> "tuple[torch.Tensor, torch.Tensor]":
    """Ids and offsets."""
    lengths = torch.tensor([0] + [len(each) for each in lists], dtype=torch.int64)
    ids = torch.tensor([int(i) for each in lists for i in each], dtype=torch.int64)
    return ids, lengths.cumsum(0)[:-1].contiguous()


def _write_safetensors(path: "str | os.PathLike[str]", tensors: "dict[str, torch.Tensor]") -> None:
    words = {torch.int64: "I64", torch.float32: "F32"}
    head: "dict[str, typing.Any]" = {}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        head[name] = {"dtype": words[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))


class Embeddings(_Module):
    """Embedding tables on the servers, looked up together: one message to each server for all of them.

    tables: {name: dict(dim=16, mode="sum")}: mode "sum", "mean", or None for the rows themselves; padding_idx: an id
    that counts in no bag; and the options below for this table alone.
    options: optimizer "sgd", "adagrad", "sparse_adam" (PyTorch's formulas for sparse gradients) or "rowwise_adagrad"
    (FBGEMM's), with lr and, as PyTorch's, eps, betas, initial_accumulator_value; init "uniform" within scale (default
    dim ** -0.5) or "normal" with that standard deviation, seed. The same on every rank.

    A table grows: any id from 0 to 2^63 - 1 has a row, whose first values depend on seed, table and id alone.
    optimizer.step() of a pstrain.Optimizer steps the rows, too; without one, step() does. Every rank makes every step.
    Gradients count 1 / size; clip_norm does not count them. state_dict() has the rows, with their state.
    """

    def __init__(self, tables: "typing.Mapping[str, typing.Mapping[str, typing.Any]]", **options: typing.Any) -> None:
        super().__init__()
        if not tables:
            raise InputError(f"rank {self._job.rank}: pstrain.Embeddings needs a table")
        for name, given in tables.items():
            own = {**options, **given}
            if "dim" not in own:
                raise InputError(f"rank {self._job.rank}: table '{name}' has no dim")
            dim, mode, padding = own.pop("dim"), own.pop("mode", "sum"), own.pop("padding_idx", None)
            self._tables[f"{name}."] = self._add(name, dim, mode, padding, None, own)

    def forward(self, ids: typing.Any, offsets: typing.Any = None,
                per_sample_weights: "typing.Mapping[str, torch.Tensor] | None" = None) -> "dict[str, torch.Tensor]":
        """ids: by table, tensors (bags, length), or (n) with offsets (bags), or lists of lists; or a KeyedJaggedTensor
        of torchrec's. Tables that are left out are not looked up. offsets: by table, or one tensor for all. Returns by
        table (bags, dim) float32, on the device of the ids."""
        if hasattr(ids, "keys") and hasattr(ids, "to_dict") and not isinstance(ids, typing.Mapping):
            ids, offsets, per_sample_weights = _of_jagged(ids)
        given = []
        for name, its in self._by_table(ids):
            of_all = isinstance(offsets, torch.Tensor) or offsets is None
            given.append((self._tables[f"{name}."], its, offsets if of_all else offsets.get(name),
                          (per_sample_weights or {}).get(name), False))
        return dict(zip(ids, self._look_up(given))) if given else {}

    def prefetch(self, ids: typing.Any) -> None:
        """Asks for the rows of the next step's forward(ids), which then waits less and sees the same rows. After this step's
        forward passes; optional, on any ranks. ids: as forward's."""
        if hasattr(ids, "keys") and hasattr(ids, "to_dict") and not isinstance(ids, typing.Mapping):
            ids = _of_jagged(ids)[0]
        self._prefetch([(self._tables[f"{name}."], its) for name, its in self._by_table(ids)])

    def _by_table(self, ids: typing.Any) -> "typing.ItemsView[str, Ids]":
        if not isinstance(ids, typing.Mapping):
            raise InputError(f"rank {self._job.rank}: ids have to be a dict by table, not {type(ids).__name__}")
        for name in ids:
            if f"{name}." not in self._tables:
                known = ", ".join(t.spec.name for t in self._tables.values())
                raise InputError(f"rank {self._job.rank}: there is no table '{name}'; there are {known}")
        return ids.items()


def _of_jagged(ids: typing.Any) -> "tuple[typing.Any, typing.Any, typing.Any]":
    by_name = ids.to_dict()
    weights = {name: each.weights() for name, each in by_name.items() if each.weights_or_none() is not None}
    return ({name: each.values() for name, each in by_name.items()},
            {name: each.offsets()[:-1] for name, each in by_name.items()}, weights)


class EmbeddingBag(_Module):
    """One table on the servers, in the place of nn.EmbeddingBag: pstrain.EmbeddingBag("user", 16).

    name: the table's. num_embeddings: None: any id has a row; else ids are below it. The other arguments are
    nn.EmbeddingBag's, or options of pstrain.Embeddings. load_state_dict takes an nn.EmbeddingBag's.
    """

    def __init__(self, name: str, embedding_dim: int, *, mode: "str | None" = "sum", num_embeddings: "int | None" = None,
                 padding_idx: "int | None" = None, include_last_offset: bool = False, **options: typing.Any) -> None:
        super().__init__()
        self.include_last_offset = include_last_offset
        self._tables[""] = self._add(name, embedding_dim, mode, padding_idx, num_embeddings, options)

    def forward(self, input: Ids, offsets: typing.Any = None,
                per_sample_weights: "torch.Tensor | None" = None) -> torch.Tensor:
        """As nn.EmbeddingBag's; input may be lists of ids, too."""
        return self._look_up([(self._tables[""], input, offsets, per_sample_weights, self.include_last_offset)])[0]

    def prefetch(self, input: Ids) -> None:
        """As Embeddings.prefetch, which asks for several tables at once: at most four calls in a step."""
        self._prefetch([(self._tables[""], input)])

    def take(self, weight: torch.Tensor) -> None:
        """First rows: those of an nn.Embedding(Bag), whose ids count from 0. Rank 0's count."""
        self._rows.load(self._as_load(self._tables[""], weight))


class Embedding(EmbeddingBag):
    """One table, in the place of nn.Embedding."""

    def __init__(self, name: str, embedding_dim: int, **options: typing.Any) -> None:
        super().__init__(name, embedding_dim, mode=None, **options)

    def forward(self, input: Ids, offsets: typing.Any = None,
                per_sample_weights: "torch.Tensor | None" = None) -> torch.Tensor:
        if offsets is not None or per_sample_weights is not None:
            raise self._fault(self._tables[""], "it gives each id's row: offsets and weights are for bags")
        return super().forward(input)


def sparse(model: torch.nn.Module, **options: typing.Any) -> torch.nn.Module:
    """Every nn.Embedding and nn.EmbeddingBag with sparse=True within the model becomes a table on the servers, with its
    weights as first rows (rank 0's) and the module's name. Returns the model; itself such a module, what replaces it.

    options: as pstrain.Embeddings'. Call it on every rank, before the Optimizer is made.
    """
    rank = jobs.current().rank
    tables: "dict[int, EmbeddingBag]" = {}
    if is_sparse(model):
        return _taken_over(model, "weight", options, tables, rank)
    found = [(name, module) for name, module in model.named_modules() if is_sparse(module)]
    if not found:
        raise InputError(f"rank {rank}: pstrain.sparse: the model has no nn.Embedding or nn.EmbeddingBag with sparse=True")
    for name, module in found:
        above, _, word = name.rpartition(".")
        setattr(model.get_submodule(above), word, _taken_over(module, name, options, tables, rank))
    return model


def is_sparse(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and bool(module.sparse)


def _taken_over(module: typing.Any, name: str, options: "dict[str, typing.Any]", tables: "dict[int, EmbeddingBag]",
                rank: int) -> EmbeddingBag:
    for word in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, word):
            raise InputError(f"rank {rank}: '{name}' has {word}, which rows on servers do not have: leave it out")
    if id(module.weight) in tables:
        raise InputError(f"rank {rank}: '{name}' shares its weight with another module: call one module twice instead")
    words = {"num_embeddings": module.num_embeddings, "padding_idx": module.padding_idx, **options}
    if isinstance(module, torch.nn.EmbeddingBag):
        made: EmbeddingBag = EmbeddingBag(name, module.embedding_dim, mode=module.mode,
                                          include_last_offset=module.include_last_offset, **words)
    else:
        made = Embedding(name, module.embedding_dim, **words)
    made.take(module.weight)
    made.train(module.training)
    tables[id(module.weight)] = made
    return made
