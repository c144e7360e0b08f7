"""Embedding tables that live on the servers: modules for PyTorch."""
from __future__ import annotations

import ctypes
import functools
import logging
import os
import typing

import torch

from . import _library as c
from . import job as jobs
from . import serving
from ._copies import Copy
from ._futures import not_compiled
from ._lookups import Given, Ids, Inputs, Lookups, Table
from ._rows import MODES, Ages, Load, Rows, check_number, checked_padding, make_spec
from .errors import InputError

log = logging.getLogger("pstrain")


def _as_c(inputs: "typing.Sequence[Inputs]", outs: "typing.Sequence[torch.Tensor | None]") -> typing.Any:
    """outs: None: to ask ahead."""
    lookups = (c.RowsLookup * len(inputs))()
    for lookup, given, out in zip(lookups, inputs, outs):
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
        lookup.out = _address(out)
    return lookups


class _Call:
    """One message to the servers: some lookups, and their gradients."""

    def __init__(self, rows: Rows, inputs: "typing.Sequence[Inputs]", outs: "typing.Sequence[torch.Tensor]",
                 trains: bool) -> None:
        self._rows = rows
        self._of = [(given.table, given.ids.shape) for given in inputs]
        self._ticket = rows.lookup(_as_c(inputs, outs), trains)
        self._step = rows.steps
        self._pid = os.getpid()

    def gradients(self, grads: "typing.Sequence[torch.Tensor | None]",
                  wants_weights: "typing.Sequence[bool]") -> "list[torch.Tensor | None]":
        """Returns those of the weights."""
        rows, n = self._rows, len(grads)
        if self._step != rows.steps:
            raise InputError(f"rank {rows.job.rank}: backward() of rows that were looked up before the last step() (table "
                             f"{', '.join(table.spec.name for table, _ in self._of)}), which has ended their step: call backward() before step()")
        rows.with_gradients.update(table.number for table, _ in self._of)
        floats = [grad if grad is None or grad.dtype is torch.float32 and grad.is_contiguous() and not grad.is_neg()
                  else grad.to(torch.float32).resolve_neg().contiguous() for grad in grads]
        weights = [torch.empty(shape, dtype=torch.float32, device="cpu") if wanted and grad is not None else None
                   for (_, shape), grad, wanted in zip(self._of, grads, wants_weights)]
        pointers = ctypes.c_void_p * n
        rows.job.session.call("pstrain_rows_gradients", self._ticket, n, pointers(*map(_address, floats)),
                                    pointers(*map(_address, weights)))
        return weights

    def __del__(self) -> None:
        if hasattr(self, "_ticket") and self._pid == os.getpid():
            self._rows.forgotten.append(self._ticket)


def _wants_weights(given: Given) -> bool:
    """Whether its per_sample_weights are to have a gradient."""
    return isinstance(given[3], torch.Tensor) and given[3].requires_grad


_nothing = ctypes.c_float()


def _address(tensor: "torch.Tensor | None") -> "int | None":
    """None: there is none. One without elements is there: a gradient of no ids counts as a step, as in PyTorch."""
    return None if tensor is None else tensor.data_ptr() or ctypes.addressof(_nothing)


class _Lookup(torch.autograd.Function):
    """Rows as a function of nothing that requires a gradient: backward gives theirs to the library."""

    @staticmethod
    def forward(ctx: typing.Any, anchor: torch.Tensor, call: _Call, outs: "list[torch.Tensor]",
                *weights: "torch.Tensor | None") -> typing.Any:
        ctx.call = call  # which does not know the results: they would never be freed, as their graph has it
        ctx.devices = [None if each is None else each.device for each in weights]
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: typing.Any, *grads: "torch.Tensor | None") -> typing.Any:
        of_weights = ctx.call.gradients(grads, ctx.needs_input_grad[3:])
        return (None, None, None, *(None if each is None else each.to(device) for each, device in zip(of_weights, ctx.devices)))


def _let_models_freeze_tables() -> None:
    """nn.Module.requires_grad_ asks parameters alone, of which tables have none: from now on it tells tables within the
    module, too."""
    plain = torch.nn.Module.requires_grad_
    if hasattr(plain, "tells_tables"):
        return

    @functools.wraps(plain)
    def requires_grad_(self: typing.Any, requires_grad: bool = True) -> typing.Any:
        for module in self.modules():
            if isinstance(module, _Module):
                module.requires_grad_(requires_grad)
        return plain(self, requires_grad)

    setattr(requires_grad_, "tells_tables", True)
    setattr(torch.nn.Module, "requires_grad_", requires_grad_)


class _Module(Lookups):
    """What modules with tables have in common."""

    def __init__(self) -> None:
        self._job = jobs.current()
        super().__init__(f"rank {self._job.rank}: ")
        _let_models_freeze_tables()
        self._rows: Rows = self._job.rows(Rows)
        self._trains = True

    def requires_grad_(self, requires_grad: bool = True) -> "_Module":
        """False: this rank's lookups give the tables no gradient; on every rank, the tables stand still (with expire
        their rows go, which have no gradient then). That of a module around this one does the same. There are no
        parameters here: p.requires_grad = False for all of a model's leaves tables as they are."""
        self._trains = bool(requires_grad)
        return self

    def _add(self, name: str, dim: int, mode: "str | None", padding: "int | None", rows: "int | None",
             options: "dict[str, typing.Any]") -> Table:
        self._check_mode(name, mode)
        spec = make_spec(name, dim, options, self._job.rank)
        padding = checked_padding(f"{self._where}table '{name}'", padding, rows)
        own = {"mode": mode, "padding_idx": padding, "num_embeddings": rows}
        return Table(self._rows.add(spec, own), spec, mode, padding, rows)

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        names = ", ".join(f"'{t.spec.name}'" for t in self._tables.values())
        raise InputError(f"{self._where}tables on the servers ({names}) cannot be copied or pickled with a model: save "
                         "its state_dict(), or export() the rows")

    # ---- looking up ----

    def _look_up(self, given: "list[Given]") -> "list[torch.Tensor]":
        if not self._trains and torch.is_grad_enabled() and any(map(_wants_weights, given)):
            return [self._weigh(one) if _wants_weights(one) else self._look_up([one])[0] for one in given]
        inputs = [self._inputs(*one) for one in given]
        outs: "typing.Sequence[torch.Tensor]" = self._rows.results.take([one.shape for one in inputs])
        trains = torch.is_grad_enabled() and self._trains
        call = _Call(self._rows, inputs, outs, trains)
        if trains:
            weights = [one[3] for one in given] if any(one[3] is not None for one in given) else []
            outs = _Lookup.apply(torch.zeros(0, device="cpu", requires_grad=True), call, outs, *weights)
        return [self._as_wanted(out, one) for out, one in zip(outs, given)]

    def _weigh(self, one: Given) -> torch.Tensor:
        """The rows stand still, and per_sample_weights have a gradient: PyTorch adds the rows up."""
        given, weights = self._inputs(*one), one[3]
        assert weights is not None
        begins = self._begins(given)
        rows = self._look_up([(given.table._replace(mode=None), given.ids.view(-1), None, None, False)])[0]
        rows = rows.to(weights.device, torch.float32)
        bag = torch.bucketize(torch.arange(len(rows), device="cpu"), begins, right=True) - 1  # of each id; those before it may be empty
        return self._as_wanted(rows.new_zeros(given.shape).index_add(0, bag.to(rows.device), rows * weights.reshape(-1, 1)), one)

    def _prefetch(self, given: "list[Given]") -> None:
        asked = []
        for table, ids, *_ in given:
            flat = ids if isinstance(ids, torch.Tensor) else self._of_lists(table, ids)[0]
            asked.append(Inputs(table, self._as_int64(table, "ids", flat), None, 0, None, ()))
        if asked:
            self._rows.prefetch(_as_c(asked, [None] * len(asked)))

    # ---- steps ----

    def step(self) -> None:
        """Ends a step of all tables of the job, where there is no pstrain.Optimizer to do so: after backward(), on
        every rank."""
        self._rows.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what backward passes since the last step have given this module's tables. zero_grad() of the
        pstrain.Optimizer does so for all tables. A module around this one cannot: its zero_grad() asks parameters alone."""
        self._rows.drop_gradients(table.number for table in self._tables.values())

    def set_lr(self, lr: float) -> None:
        """The rate of this module's tables from the next step on; rank 0's counts. After schedule.step():
        rows.set_lr(0.05 * schedule.get_last_lr()[0] / 0.001), where 0.05 and 0.001 are the first rates."""
        for table in self._tables.values():
            check_number(f"{self._where}table '{table.spec.name}'", "lr", lr)
            self._rows.rates[table.number] = float(lr)

    # ---- saving and loading ----

    def _save_to_state_dict(self, destination: typing.Any, prefix: str, keep_vars: bool) -> None:
        for key, table in self._tables.items() if not self._rows.apart else ():
            page, start = self._rows.save(table.number), prefix + key
            destination[start + "weight"] = page.weight
            destination[start + "ids"] = page.ids
            destination[start + "state"] = page.state
            destination[start + "steps"] = torch.tensor(page.steps, device="cpu")
            if _is_bounded(table.spec):
                destination[start + "clock"] = torch.tensor(page.ages.clock, device="cpu")
                destination[start + "ages"] = page.ages.rows
                destination[start + "candidates"] = page.ages.candidates

    def _load_from_state_dict(self, state_dict: typing.Any, prefix: str, local_metadata: typing.Any, strict: bool,
                              missing_keys: "list[str]", unexpected_keys: "list[str]", error_msgs: "list[str]") -> None:
        words = ("weight", "ids", "state", "steps", "clock", "ages", "candidates")
        known = {prefix + key + word for key in self._tables for word in words}
        unexpected_keys += [name for name in state_dict if strict and name.startswith(prefix) and name not in known]
        without_ids = []
        for key, table in self._tables.items() if not self._rows.apart else ():
            start = prefix + key
            if start + "weight" not in state_dict:
                missing_keys.append(start + "weight")
                continue
            got = {word: state_dict.get(start + word) for word in words}
            if got["ids"] is None:
                without_ids.append(table)
            try:
                self._rows.load(self._as_load(table, **got))
            except InputError as error:
                error_msgs.append(str(error))
        _warn_of_forgetting(self._where, without_ids)

    def _as_load(self, table: Table, weight: torch.Tensor, ids: "torch.Tensor | None" = None,
                 state: "torch.Tensor | None" = None, steps: "torch.Tensor | None" = None, clock: "torch.Tensor | None" = None,
                 ages: "torch.Tensor | None" = None, candidates: "torch.Tensor | None" = None) -> Load:
        """ids: None: the weights of an nn.Embedding(Bag), whose ids count from 0. clock, ages and candidates: of a table that
        has bounds."""
        dim = table.spec.dim
        for word, tensor in (("weight", weight), ("state", state)):
            if not (isinstance(tensor, torch.Tensor) or word == "state" and tensor is None):
                raise self._fault(table, f"its {word} is {type(tensor).__name__}: it has to be a tensor")
        weight = weight.detach().to("cpu", torch.float32)
        if weight.dim() != 2 or weight.shape[1] != dim:
            raise self._fault(table, f"rows of shape {tuple(weight.shape)} do not fit: its dim is {dim}")
        if ids is None:
            if table.rows not in (None, len(weight)):
                raise self._fault(table, f"there are {len(weight)} rows, and it has {table.rows}")
            ids = torch.arange(len(weight), device="cpu")
        ids = self._as_int64(table, "ids", ids)
        if ids.shape != (len(weight),):
            raise self._fault(table, f"there are {len(weight)} rows, and ids of shape {tuple(ids.shape)}")
        if len(ids) and (int(ids.min()) < 0 or table.rows is not None and int(ids.max()) >= table.rows):
            raise self._fault(table, f"its ids are from 0 to {table.rows - 1 if table.rows else '2^63 - 1'}, and these from "
                              f"{int(ids.min())} to {int(ids.max())}")
        if not bool((ids[1:] > ids[:-1]).all()):
            order = ids.sort().values
            twice = order[1:][order[1:] == order[:-1]]
            if len(twice):
                raise self._fault(table, f"there are two rows of id {int(twice[0])}: each id has one")
        values = weight
        if state is not None and (state.numel() or state.dim() == 2 and len(state) == len(weight)):
            if state.dim() != 2 or len(state) != len(weight):
                raise self._fault(table, f"there are {len(weight)} rows, and state of shape {tuple(state.shape)}")
            values = torch.cat([weight, state.detach().to("cpu", torch.float32)], 1)
        return Load(table.number, ids, values, int(steps) if steps is not None else 0,
                    self._as_ages(table, len(ids), clock, ages, candidates))

    def _as_ages(self, table: Table, n: int, clock: "torch.Tensor | None", ages: "torch.Tensor | None",
                 candidates: "torch.Tensor | None") -> "Ages | None":
        """None: rows begin with age 0, and no id is a candidate."""
        if clock is None and ages is None and candidates is None or not _is_bounded(table.spec):
            return None
        if clock is None or ages is None or candidates is None:
            raise self._fault(table, "its clock, ages and candidates go together: take all of a state_dict()")
        now = int(clock)
        ages, candidates = self._as_int64(table, "ages", ages), self._as_int64(table, "candidates", candidates)
        if ages.shape != (n,) or candidates.dim() != 2 or candidates.shape[1] != 3:
            raise self._fault(table, f"there are {n} rows, ages of shape {tuple(ages.shape)} and candidates of shape "
                              f"{tuple(candidates.shape)}: ({n},) and (any, 3) fit")
        every = torch.cat([ages, candidates[:, 1]])
        if not 0 <= now < 1 << 31 or len(every) and (int(every.min()) < 0 or int(every.max()) > now):
            raise self._fault(table, f"its ages are from 0 to its clock, {now}")
        if len(candidates) and (int(candidates[:, 0].min()) < 0 or int(candidates[:, 2].min()) < 1):
            raise self._fault(table, "its candidates are ids from 0 on, ages, and counts from 1 on")
        return Ages(now, ages, candidates)

    def export(self, path: "str | os.PathLike[str]") -> None:
        """Writes the rows that the servers have to a safetensors file, for pstrain.rows: for each table NAME.ids, int64
        in rising order, and NAME.weight, float32 (ids, dim). The same bytes for any number of servers. One rank is
        enough. A file that is there stays until the new one is whole. The rows go through files beside it that have no
        names and as many bytes, not through this rank's memory."""
        tables = list(self._tables.values())
        self._rows.export(path, [table.number for table in tables], serving.metadata_of(tables))


def _is_bounded(spec: typing.Any) -> bool:
    """Whether what the table does depends on more than its rows."""
    return bool(spec.admit or spec.expire or spec.evicts)


class Embeddings(_Module):
    """Embedding tables on the servers, looked up together: one message to each server for all of them.

    tables: {name: dict(dim=16, mode="sum")}: mode "sum" (the default), "mean", or None for the rows themselves;
    padding_idx: an id that counts in no bag; and the options below for this table alone.
    options: optimizer "sgd", "adagrad" (the default), "sparse_adam" (PyTorch's formulas for sparse gradients) or
    "rowwise_adagrad" (FBGEMM's), with lr (0.01; sgd and sparse_adam 0.001) and, as PyTorch's, eps, betas, lr_decay,
    initial_accumulator_value; init "uniform" within scale (default dim ** -0.5) or "normal" with that standard deviation,
    seed (0; torch.manual_seed does not count), or "constant": all are scale; codec "fp16" or "int8": of rows and gradients
    that travel. The same on every rank.
    admit=N: the N-th step with a gradient for an id is the first that moves its row; those before are dropped. expire=N: a
    row without a gradient in N steps begins anew, from N = 8 on up to N / 4 steps later. max_bytes: of a table, 4 for each
    number of a row and its state, and 27 for each id, admitted or not; at least a row for each of 1024 partitions. The job
    ends where it is reached; with evict=True the rows with the oldest gradients begin anew, in each partition by itself,
    so the first of them before the table is full.

    A table grows: any id from 0 to 2^63 - 1 has a row, whose first values depend on seed, table and id alone.
    optimizer.step() of a pstrain.Optimizer steps the rows, too; without one, step() does. Every rank makes every step. A
    schedule moves the Optimizer's groups, not the rows: set_lr() does.
    Gradients count optimizer.share, 1 / size; clip_norm does not count them. state_dict() has the rows, with their state.
    """

    def __init__(self, tables: "typing.Mapping[str, typing.Mapping[str, typing.Any]]", **options: typing.Any) -> None:
        super().__init__()
        if not isinstance(tables, typing.Mapping) or not tables:
            raise InputError(f"{self._where}pstrain.Embeddings needs a dict of tables: {{'user': dict(dim=16)}}")
        for name, given in tables.items():
            if not isinstance(given, typing.Mapping):
                raise InputError(f"{self._where}table '{name}' is {given!r}: it has to be a dict, such as dict(dim=16)")
            own = {**options, **given}
            if "dim" not in own:
                raise InputError(f"{self._where}table '{name}' has no dim")
            dim, mode, padding = own.pop("dim"), own.pop("mode", "sum"), own.pop("padding_idx", None)
            self._tables[f"{name}."] = self._add(name, dim, mode, padding, None, own)

    @not_compiled
    def forward(self, ids: typing.Any, offsets: typing.Any = None,
                per_sample_weights: "typing.Mapping[str, torch.Tensor] | None" = None) -> "dict[str, torch.Tensor]":
        """ids: by table, tensors (bags, length), or (n) with offsets (bags), or lists of lists; or a KeyedJaggedTensor
        of torchrec's. Tables that are left out are not looked up. offsets: by table, or one tensor for all. Returns by
        table (bags, dim) float32, on the device of the ids."""
        given = self._given(ids, offsets, per_sample_weights)
        return dict(zip(ids.keys(), self._look_up(given))) if given else {}

    @not_compiled
    def prefetch(self, ids: typing.Any) -> None:
        """Asks for the rows of the next step's forward(ids), which then waits less and sees the same rows. After this step's
        forward passes; optional, on any ranks. ids: as forward's."""
        self._prefetch(self._given(ids, None, None))


class EmbeddingBag(_Module):
    """One table on the servers, in the place of nn.EmbeddingBag: pstrain.EmbeddingBag("user", 16).

    name: the table's. num_embeddings: None: any id has a row; else ids are below it. mode: "mean", as nn.EmbeddingBag's,
    or "sum"; None: the rows themselves. The other arguments are nn.EmbeddingBag's, or options of pstrain.Embeddings, with
    their defaults. load_state_dict takes an nn.EmbeddingBag's.
    """

    def __init__(self, name: str, embedding_dim: int, *, mode: "str | None" = "mean", num_embeddings: "int | None" = None,
                 padding_idx: "int | None" = None, include_last_offset: bool = False, **options: typing.Any) -> None:
        super().__init__()
        self.include_last_offset = include_last_offset
        table = self._tables[""] = self._add(name, embedding_dim, mode, padding_idx, num_embeddings, options)
        # As nn.EmbeddingBag has them: models read them.
        self.embedding_dim, self.mode, self.num_embeddings, self.padding_idx = table.spec.dim, mode, table.rows, table.padding
        self._was = ""  # what pstrain.sparse has found here: "Embedding" or "EmbeddingBag"
        self._hides_weight = False  # it was asked for, and not given

    @property
    @not_compiled
    def weight(self) -> torch.Tensor:
        """All rows, (num_embeddings, embedding_dim), as models read them within torch.no_grad(): a copy without a gradient,
        that refuses to be written."""
        if self.num_embeddings is None or torch.is_grad_enabled():
            self._hides_weight = True
            raise AttributeError  # what __getattr__ says
        table = self._tables[""]
        every = table if table.mode is None else table._replace(mode=None, padding=None)  # a bag leaves that row out, and has it
        with torch.inference_mode(False), torch.no_grad():
            rows = _Module._look_up(self, [(every, torch.arange(self.num_embeddings, device="cpu"), None, None, False)])[0]
        return Copy.of(rows, self._not_here("what is read here is a copy: clone() it to write into it"))

    def _not_here(self, what: str) -> str:
        return str(self._fault(self._tables[""], f"it lives on the servers, and {what}; load_state_dict(dict(weight=...)), on "
                               "every rank, gives it other rows"))

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name == "weight":
            raise InputError(self._not_here("has no weight here to assign"))
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> typing.Any:
        if name == "weight":
            raise AttributeError(f"{self._where}table '{self._tables[''].spec.name}' lives on the servers: its weight can be read "
                                 "within torch.no_grad(), where it has num_embeddings; call the module instead")
        return super().__getattr__(name)

    def apply(self, fn: "typing.Callable[[torch.nn.Module], typing.Any]") -> "EmbeddingBag":
        """As nn.Module's. Rank 0 is warned, once, where fn looks for what pstrain.sparse has found here, as one that gives
        first weights does."""
        self._hides_weight = False
        super().apply(fn)
        if self._was and (self._hides_weight or self._was in _names_in(fn)):
            self._rows.tell_of_apply(self._tables[""].number, self._was, getattr(fn, "__name__", "fn"))
        return self

    @not_compiled
    def forward(self, input: Ids, offsets: typing.Any = None,
                per_sample_weights: "torch.Tensor | None" = None) -> torch.Tensor:
        """As nn.EmbeddingBag's; input may be lists of ids, too."""
        return self._look_up([(self._tables[""], input, offsets, per_sample_weights, self.include_last_offset)])[0]

    @not_compiled
    def prefetch(self, input: Ids) -> None:
        """As Embeddings.prefetch, which asks for several tables at once: at most four calls in a step."""
        self._prefetch([(self._tables[""], input, None, None, False)])

    def take(self, weight: torch.Tensor) -> None:
        """First rows: those of an nn.Embedding(Bag), whose ids count from 0. Rank 0's count. A row that expires or is
        evicted begins anew with what seed and init give it, not with these."""
        self._take(weight)
        _warn_of_forgetting(self._where, [self._tables[""]])

    def _take(self, weight: torch.Tensor) -> None:
        self._rows.load(self._as_load(self._tables[""], weight))


class Embedding(EmbeddingBag):
    """One table, in the place of nn.Embedding."""

    def __init__(self, name: str, embedding_dim: int, **options: typing.Any) -> None:
        super().__init__(name, embedding_dim, mode=None, **options)

    @not_compiled
    def forward(self, input: Ids, offsets: typing.Any = None,
                per_sample_weights: "torch.Tensor | None" = None) -> torch.Tensor:
        if offsets is not None or per_sample_weights is not None:
            raise self._fault(self._tables[""], "it gives each id's row: offsets and weights are for bags")
        return super().forward(input)


def _names_in(call: typing.Any) -> "tuple[str, ...]":
    """What a function of Python's refers to."""
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(getattr(call, "__code__", None), "co_names", ())


def _warn_of_forgetting(where: str, tables: "typing.Sequence[Table]") -> None:
    """They were given weights which a row has only until it is forgotten."""
    forget = [table.spec for table in tables if table.spec.expire or table.spec.evicts]
    if not forget or jobs.current().rank:
        return
    names = ", ".join(f"'{spec.name}'" for spec in forget[:3]) + (f" and {len(forget) - 3} more" if len(forget) > 3 else "")
    words = [word for word, given in (("expire", forget[0].expire), ("evict", forget[0].evicts)) if given]
    log.warning("pstrain: %stable %s: a row that is forgotten (%s) begins anew with what init=%s, scale=%g and seed=%d give "
                "it, not with the weights that were loaded", where, names, ", ".join(words), forget[0].init, forget[0].scale,
                forget[0].seed)


def sparse(model: torch.nn.Module, **options: typing.Any) -> torch.nn.Module:
    """Every nn.Embedding and nn.EmbeddingBag with sparse=True within the model becomes a table on the servers, with its
    weights as first rows (rank 0's) and the module's name. Returns the model; itself such a module, what replaces it.

    options: as pstrain.Embeddings', with their defaults. Call it on every rank, before the Optimizer is made.
    """
    where = f"rank {jobs.current().rank}: "
    owners: "dict[int, list[str]]" = {}
    for name, module in model.named_modules():
        for word, param in module._parameters.items():
            owners.setdefault(id(param), []).append(f"{name}.{word}".lstrip("."))
    found = {id(module): name for name, module in model.named_modules() if is_sparse(module)}
    if not found:
        raise InputError(f"{where}pstrain.sparse: the model has no nn.Embedding or nn.EmbeddingBag with sparse=True")
    for module in model.modules():
        if id(module) in found:
            _check_module(module, f"{where}'{found[id(module)]}'", owners)
    if is_sparse(model):
        whole = _taken_over(model, "weight", options)
        _warn_of_forgetting(where, [whole._tables[""]])
        return whole
    made: "dict[int, EmbeddingBag]" = {}
    for above in list(model.modules()):
        for word, child in above._modules.items():  # one module may stand at several places
            if child is not None and id(child) in found:
                if id(child) not in made:
                    made[id(child)] = _taken_over(child, found[id(child)], options)
                    # A plain list of modules has it still.
                    child.forward = functools.partial(_refuse_call, f"{where}'{found[id(child)]}'")
                above._modules[word] = made[id(child)]
    _warn_of_forgetting(where, [each._tables[""] for each in made.values()])
    return model


def _refuse_call(where: str, *_: typing.Any, **__: typing.Any) -> typing.NoReturn:
    raise InputError(f"{where} is on the servers since pstrain.sparse, and this is the module before, which nobody trains: call the "
                     "one that the model has now")


def is_sparse(module: torch.nn.Module) -> bool:
    """Whether it is trained with sparse gradients."""
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and bool(module.sparse) \
        and module.weight.requires_grad


def _check_module(module: typing.Any, where: str, owners: "dict[int, list[str]]") -> None:
    """InputError: a table on the servers would not do what it does. owners: the parameters' names."""
    weight, padding = module.weight, module.padding_idx
    for word in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, word):
            raise InputError(f"{where} has {word}, which rows on servers do not have: leave it out")
    if type(module).forward not in (torch.nn.Embedding.forward, torch.nn.EmbeddingBag.forward):
        raise InputError(f"{where} is a {type(module).__name__}, whose forward() is its own: let it call an nn.Embedding instead")
    if any(hooks for word, hooks in vars(module).items() if word.endswith("_hooks")):
        raise InputError(f"{where} has hooks: register them after pstrain.sparse")
    if any(getattr(weight, f"_{word}_hooks", None) for word in ("backward", "post_accumulate_grad")):
        raise InputError(f"{where} has a weight with hooks: rows on servers have none")
    if id(weight) not in owners:
        raise InputError(f"{where} has a weight that is computed: remove its parametrization")
    if len(owners[id(weight)]) > 1:
        raise InputError(f"{where} shares its weight ({', '.join(owners[id(weight)])}): call one module twice instead, or make "
                         "it with sparse=False")
    if weight.dtype != torch.float32:
        raise InputError(f"{where} is {str(weight.dtype).replace('torch.', '')}: rows are float32")
    if isinstance(module, torch.nn.Embedding) and padding is not None and weight.detach()[padding].any():
        raise InputError(f"{where}: the row of its padding_idx, {padding}, is not zero, as it is on servers")


def _taken_over(module: typing.Any, name: str, options: "dict[str, typing.Any]") -> EmbeddingBag:
    words = {"num_embeddings": module.num_embeddings, "padding_idx": module.padding_idx, **options}
    if isinstance(module, torch.nn.EmbeddingBag):
        made: EmbeddingBag = EmbeddingBag(name, module.embedding_dim, mode=module.mode,
                                          include_last_offset=module.include_last_offset, **words)
    else:
        made = Embedding(name, module.embedding_dim, **words)
    made._was = "EmbeddingBag" if isinstance(module, torch.nn.EmbeddingBag) else "Embedding"
    made._take(module.weight)
    made.train(module.training)
    return made
