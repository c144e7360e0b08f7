"""The embedding tables of a job: what its modules have in common."""
from __future__ import annotations

import ctypes
import gc
import json
import logging
import math
import os
import secrets
import typing
import weakref

import torch

from . import _library as c
from .errors import InputError

if typing.TYPE_CHECKING:
    from .job import Job

log = logging.getLogger("pstrain")
MANY = 1000  # lookups with gradients in one step: evaluations, mostly, whose memory is not free before it
RULES = ("sgd", "adagrad", "sparse_adam", "rowwise_adagrad")
MODES = {None: 0, "sum": 1, "mean": 2}
# As PyTorch's; rowwise_adagrad's are FBGEMM's.
DEFAULTS: "dict[str, dict[str, typing.Any]]" = {
    "sgd": {"lr": 1e-3},
    "adagrad": {"lr": 1e-2, "lr_decay": 0.0, "eps": 1e-10, "initial_accumulator_value": 0.0},
    "sparse_adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8},
    "rowwise_adagrad": {"lr": 1e-2, "eps": 1e-8, "initial_accumulator_value": 0.0},
}
# Of all: first rows; and what bounds a table.
OTHERS: "dict[str, typing.Any]" = {"init": "uniform", "scale": None, "seed": 0, "max_bytes": 0, "evict": False, "admit": 0,
                                   "expire": 0, "codec": "none"}


class Spec(typing.NamedTuple):
    """A table as the servers make it: fields of pstrain_rows_table."""

    name: str
    dim: int
    optimizer: str
    lr: float
    eps: float
    beta1: float
    beta2: float
    lr_decay: float
    initial_accumulator: float
    init: str
    scale: float
    seed: int
    max_bytes: int
    evicts: int
    admit: int
    expire: int
    codec: str

    def as_c(self) -> c.RowsTable:
        table = c.RowsTable()
        for word, value in self._asdict().items():
            setattr(table, word, value.encode() if isinstance(value, str) else value)
        return table


def make_spec(name: typing.Any, dim: typing.Any, options: "dict[str, typing.Any]", rank: int) -> Spec:
    """Of a module's options. The library looks at the numbers."""
    where = f"rank {rank}: table {name!r}"
    rule = options.get("optimizer", "adagrad")
    if not isinstance(name, str) or not 0 < len(name.encode()) < 64:
        raise InputError(f"{where}: a table's name is a text of 1 to 63 bytes")
    if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= 65536:
        raise InputError(f"{where}: dim={dim!r} is not a number from 1 to 65536")
    if rule not in DEFAULTS:
        raise InputError(f"{where}: there is no optimizer {rule!r} for rows: use one of {', '.join(RULES)}")
    known = {"optimizer": rule, **DEFAULTS[rule], **OTHERS}
    for key, value in options.items():
        if key in ("weight_decay", "momentum", "maximize") and not value:
            continue
        if key not in known:
            why = ("as with PyTorch's sparse gradients: it would move rows that have none"
                   if key in ("weight_decay", "momentum") else f"there are {', '.join(known)}")
            raise InputError(f"{where}: rows by {rule} have no option {key!r}, {why}")
        known[key] = value
    for key in ("seed", "max_bytes", "admit", "expire"):
        most = 1 << (64 if key in ("seed", "max_bytes") else 32)
        if isinstance(known[key], bool) or not isinstance(known[key], int) or not 0 <= known[key] < most:
            raise InputError(f"{where}: {key}={known[key]!r} is not a number from 0 to {most - 1}")
    betas = known.get("betas", (0.0, 0.0))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise InputError(f"{where}: betas={betas!r} are not two numbers")
    scale = 1 / dim ** 0.5 if known["scale"] is None else known["scale"]
    numbers = {"lr": known["lr"], "eps": known.get("eps", 0.0), "beta1": betas[0], "beta2": betas[1],
               "lr_decay": known.get("lr_decay", 0.0), "initial_accumulator": known.get("initial_accumulator_value", 0.0),
               "scale": scale}
    for word, number in numbers.items():
        check_number(where, word, number)
    if known["init"] not in ("uniform", "normal", "constant"):
        raise InputError(f"{where}: init={known['init']!r} is not uniform, normal or constant")
    if known["codec"] not in ("none", "fp16", "int8"):
        raise InputError(f"{where}: codec={known['codec']!r} is not none, fp16 or int8")
    return Spec(name=name, dim=dim, optimizer=rule, init=known["init"], seed=known["seed"], max_bytes=known["max_bytes"],
                evicts=int(bool(known["evict"])), admit=known["admit"], expire=known["expire"], codec=known["codec"],
                **numbers)


def check_number(where: str, word: str, number: typing.Any) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < float("inf"):
        raise InputError(f"{where}: {word}={number!r} is not a number from 0")


def check_whole(where: str, word: str, number: typing.Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number < 1 << 63:
        raise InputError(f"{where}: {word}={number!r} is not a whole number from {least}")


def checked_padding(where: str, padding: typing.Any, rows: typing.Any) -> "int | None":
    """padding_idx, as PyTorch counts it: below 0 from num_embeddings (rows) on, where these are given."""
    if rows is not None:
        check_whole(where, "num_embeddings", rows, 1)
    if padding is None:
        return None
    check_whole(where, "padding_idx", padding, -(1 << 63))
    if rows is not None and not -rows <= padding < rows:
        raise InputError(f"{where}: padding_idx={padding} is not one of its {rows} rows")
    return int(padding if rows is None else padding % rows)


class Ages(typing.NamedTuple):
    """What a table goes by that forgets or admits rows."""

    clock: int  # one more in each step of the rows
    rows: torch.Tensor  # (n) int64: steps since each row's last gradient
    candidates: torch.Tensor  # (m, 3) int64: ids that are no rows yet, their ages, and how many steps had a gradient for them


class Page(typing.NamedTuple):
    """All rows of a table, sorted by id."""

    ids: torch.Tensor
    weight: torch.Tensor  # (n, dim)
    state: torch.Tensor  # (n, width - dim), the optimizer's
    steps: int
    ages: Ages


class Load(typing.NamedTuple):
    """Rows for a table, in the place of those that it has."""

    table: int
    ids: torch.Tensor
    values: torch.Tensor
    steps: int
    ages: "Ages | None" = None


class Results:
    """Memory for the results of a call's lookups, which is used again once no tensor has it: the system gives new memory at
    a page fault for every 4 KiB, which would take longer than the lookup."""

    LEAST, MOST_FREE = 1 << 14, 64  # elements: less memory is malloc's own; pieces
    ALIGNED = 16  # elements, of a cache line

    def __init__(self) -> None:
        self._free: "list[torch.Tensor]" = []
        self._lent: "dict[int, tuple[typing.Any, torch.Tensor]]" = {}  # by the id of what is told of its end

    def take(self, shapes: "typing.Sequence[tuple[int, ...]]") -> "list[torch.Tensor]":
        """Tensors of these shapes in one piece of memory, each with a storage of its own."""
        sizes = [math.prod(shape) for shape in shapes]
        n = sum(sizes) + self.ALIGNED * len(sizes)
        if n < self.LEAST:
            return [torch.empty(shape, dtype=torch.float32, device="cpu") for shape in shapes]
        memory = self._free_one(n)
        if memory is None:
            memory = torch.empty(n, dtype=torch.float32, device="cpu")
        lease = (ctypes.c_float * n).from_address(memory.data_ptr())
        end = weakref.ref(lease, self._back)
        self._lent[id(end)] = end, memory
        outs, begin = [], 0
        for shape, size in zip(shapes, sizes):
            out = torch.frombuffer(lease, dtype=torch.float32, count=size, offset=4 * begin) \
                if size else torch.empty(0, dtype=torch.float32, device="cpu")
            outs.append(out.resize_(shape))
            begin += -(-size // self.ALIGNED) * self.ALIGNED
        return outs

    def _free_one(self, n: int) -> "torch.Tensor | None":
        for i in range(len(self._free) - 1, -1, -1):
            if n <= self._free[i].numel() <= 2 * n:
                return self._free.pop(i)
        return None

    def _back(self, end: typing.Any) -> None:
        self._free.append(self._lent.pop(id(end))[1])
        if len(self._free) > self.MOST_FREE:
            del self._free[0]


class Rows:
    """Tables join it before the job is opened: by the first forward pass, or by an Optimizer's."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.specs: "list[Spec]" = []
        self.rates: "list[float]" = []
        self._own: "list[dict[str, typing.Any]]" = []
        self.opened = False
        self.results = Results()
        self.forgotten: "list[int]" = []  # tickets whose graphs are gone
        self.with_gradients: "set[int]" = set()  # tables, of this step, whose gradients are not pushed
        self._told_of_frozen = False
        self._told_of_apply = False
        self._n_lookups = 0  # of this step, with gradients
        self._looked = False  # for a GradScaler
        self._loads: "list[Load]" = []  # until the job is opened
        self._point: "tuple[str, str] | None" = None  # folder and manifest, to go back to when the job is opened
        self.apart = False  # state_dict and load_state_dict of modules leave the rows out: a State has points of them

    def add(self, spec: Spec, own: "dict[str, typing.Any]") -> int:
        """own: what only the ranks go by, equal on all: mode, padding_idx, num_embeddings."""
        rank = self.job.rank
        if self.job.session.servers == 0:
            raise InputError(f"rank {rank}: table '{spec.name}' lives on servers, and this job has none: "
                             "psrun -s 1 (all-reduce has no rows)")
        if self.job.is_opened():
            raise InputError(f"rank {rank}: the first forward pass has opened the job: make table '{spec.name}' before it")
        if any(spec.name == other.name for other in self.specs):
            raise InputError(f"rank {rank}: two tables have the name '{spec.name}'")
        self.specs.append(spec)
        self.rates.append(float(spec.lr))
        self._own.append(own)
        return len(self.specs) - 1

    # ---- opening ----

    def start(self) -> None:
        """Opens the job: with the Optimizer's parameters, or alone. Collective."""
        if not self.opened and not self.job.start_table():
            self.job.claim("pstrain.Embeddings, whose first forward pass came before an Optimizer was made")
            table, words = c.Table(struct_size=ctypes.sizeof(c.Table)), c.texts(["optimizer.name=sgd"])
            table.settings, table.n_settings = words, 1
            self.put_into(table)
            self.job.session.open(table)
            self.job.session.start()
            self.opened_now()

    def put_into(self, table: c.Table) -> None:
        table.rows, table.n_rows, table.rows_size = self._as_c(), len(self.specs), ctypes.sizeof(c.RowsTable)

    def _as_c(self) -> typing.Any:
        return (c.RowsTable * len(self.specs))(*[spec.as_c() for spec in self.specs])

    def opened_now(self) -> None:
        """The session has started: rank 0's rows go to the servers before anybody looks one up."""
        self.opened = True
        self._check_own()
        (loads, self._loads), (point, self._point) = (self._loads, []), (self._point, None)
        if point is not None:
            self.go_back(*point)
            return
        self._check_loads(loads)
        self._load(loads)

    def _check_own(self) -> None:
        """The servers compare the specs."""
        if self.job.size == 1:
            return
        texts = [json.dumps(own, sort_keys=True).encode() for own in self._own]
        size = 160  # of three numbers and a mode
        everybody = self.job.session.gather_bytes(b"".join(text.ljust(size) for text in texts))
        for at, spec in enumerate(self.specs):
            for rank, all_texts in enumerate(everybody):
                first, other = (json.loads(each[at * size:(at + 1) * size]) for each in (everybody[0], all_texts))
                for word in (word for word in first if first[word] != other[word]):
                    raise InputError(f"rank 0 and rank {rank} differ in table '{spec.name}': {word}: {first[word]!r} and "
                                     f"{other[word]!r}")

    def _check_loads(self, loads: "list[Load]") -> None:
        """InputError where rank 0, whose rows count, has none for a table: this rank's would be lost."""
        n, loaded = len(self.specs), {load.table for load in loads}
        ranks = (ctypes.c_uint8 * n)(*[table in loaded for table in range(n)])
        if self.job.size > 1:
            self.job.session.broadcast(ctypes.addressof(ranks), n, 0)
        for load in loads:
            if not ranks[load.table]:
                raise InputError(f"rank {self.job.rank}: table '{self.specs[load.table].name}' was given rows on this rank, and "
                                 "none on rank 0, whose rows count: load them on every rank")
            self._check_load(load)

    # ---- steps ----

    def lookup(self, lookups: typing.Any, trains: bool) -> int:
        """A ticket for the gradients."""
        self.start()
        self._forget()
        self._n_lookups += trains
        if trains and self._n_lookups == MANY:
            log.warning("pstrain: rank %d: %d lookups with gradients since the last step of the rows, until which memory is kept for "
                        "each of them: evaluate within torch.no_grad()", self.job.rank, MANY)
        ticket = c.c_uint64()
        self.job.session.wait_here("pstrain_rows_pull", lookups, len(lookups), int(trains), c.byref(ticket))
        return ticket.value

    def prefetch(self, lookups: typing.Any) -> None:
        self.start()
        self._forget()
        self.job.session.wait_here("pstrain_rows_prefetch", lookups, len(lookups))

    def _forget(self) -> None:
        while self.forgotten:
            self.job.session.call("pstrain_rows_forget", self.forgotten.pop())

    def drop_gradients(self, tables: "typing.Iterable[int]" = (-1,)) -> None:
        """Of this step; -1: all tables'."""
        if self.with_gradients and self.job.session.is_open():
            for table in tables:
                self.job.session.call("pstrain_rows_drop_gradients", table)
                self.with_gradients = set() if table < 0 else self.with_gradients - {table}

    def tell_of_frozen(self) -> None:
        """All parameters of the Optimizer are frozen by now: those who froze the model may have meant its tables, too."""
        if self.job.rank or self._told_of_frozen or not self.with_gradients:
            return
        self._told_of_frozen = True
        names = [f"'{self.specs[table].name}'" for table in sorted(self.with_gradients)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        log.warning("pstrain: no parameter of the Optimizer requires a gradient any more, and rows are trained: table %s%s. "
                    "p.requires_grad = False for the parameters of a model does not reach its tables: requires_grad_(False) of the "
                    "model, or of a table's module, does", ", ".join(names[:3]), more)

    def tell_of_apply(self, table: int, was: str, name: str) -> None:
        """A function was applied to a model after pstrain.sparse, in which table was an nn.<was>."""
        if self.job.rank or self._told_of_apply:
            return
        self._told_of_apply = True
        log.warning("pstrain: model.apply(%s) leaves tables on the servers as they are ('%s'), which were nn.%s before "
                    "pstrain.sparse: give first weights before it, or by load_state_dict()", name, self.specs[table].name, was)

    def push(self, share: "float | None" = None) -> None:
        """share: by which gradients are multiplied; None: 1 / size."""
        self._forget()
        if self.with_gradients and not self._looked:
            _refuse_scaler(self.job.rank)
            self._looked = True
        self.with_gradients, self._n_lookups = set(), 0
        rates = (ctypes.c_double * len(self.rates))(*self.rates)
        self.job.session.call("pstrain_rows_push", 1.0 / self.job.size if share is None else share, rates)

    def step(self) -> None:
        """Without an Optimizer."""
        if self.job.start_table():
            raise InputError(f"rank {self.job.rank}: optimizer.step() of the pstrain.Optimizer steps the rows, too")
        self.start()
        self.push()

    @property
    def steps(self) -> int:
        return int(self.job.session.library.pstrain_rows_steps(self.job.session.pointer()))

    # ---- loading and saving ----

    def load(self, load: Load) -> None:
        """Rank 0's rows become the table's. Collective once the job is opened."""
        if not self.opened:
            self._loads = [other for other in self._loads if other.table != load.table] + [load]
            return
        self._check_load(load)
        if self.job.size > 1:
            self.job.session.barrier()  # nobody reads the old ones any more
        self._load([load])

    def _width(self, table: int) -> int:
        """Of a row with its optimizer's state."""
        return int(self.job.session.library.pstrain_rows_width(self.job.session.pointer(), table))

    def _check_load(self, load: Load) -> None:
        spec, width = self.specs[load.table], self._width(load.table)
        if load.values.shape[1] not in (spec.dim, width):
            raise InputError(f"rank {self.job.rank}: table '{spec.name}': rows with {load.values.shape[1] - spec.dim} numbers of "
                             f"state do not fit: {spec.optimizer} has {width - spec.dim}")

    def _load(self, loads: "list[Load]") -> None:
        self.job.session.call("pstrain_rows_forget_ahead")  # it is of the rows before
        for load in loads if self.job.rank == 0 else []:
            ids, values, ages = load.ids.contiguous(), load.values.contiguous(), load.ages
            with_state = int(values.shape[1] != self.specs[load.table].dim)
            if ages is not None and values.shape[1] == self._width(load.table):
                self._restore(load.table, ids, values, load.steps, ages)
                continue
            self._restore(load.table, ids[:0], values[:0], load.steps, None)
            self.job.session.block("pstrain_rows_load", load.table, ids.data_ptr(), ids.numel(), values.data_ptr(), with_state,
                                   load.steps)
        if self.job.size > 1:
            self.job.session.barrier()

    def _restore(self, table: int, ids: torch.Tensor, values: torch.Tensor, steps: int, ages: "Ages | None") -> None:
        """All that the table has; ages None: of nothing."""
        clock, n = (0, 0) if ages is None else (ages.clock, len(ids))
        told = torch.zeros((0, 2), dtype=torch.int64, device="cpu")
        if ages is not None:
            others = ages.candidates
            told = torch.stack([clock - torch.cat([ages.rows, others[:, 1]]), torch.cat([ids.new_zeros(n), others[:, 2]])], 1)
            ids = torch.cat([ids, others[:, 0]])
        told = told.to(torch.int32)
        page = c.RowsPage(struct_size=ctypes.sizeof(c.RowsPage), n=n, ids=ids.data_ptr(), values=values.data_ptr(), steps=steps,
                          n_candidates=len(ids) - n, ages=told.data_ptr(), clock=clock)
        self.job.session.block("pstrain_rows_restore", table, c.byref(page), 1)

    # ---- points, to which the servers go back by themselves ----

    def keep(self, writes: int, folder: str, name: str) -> "tuple[str, str]":
        """On rank 0, between two steps, while the others wait. writes: pstrain_rows_writes. The manifest, and why servers
        could not write their files."""
        point = c.RowsPoint(struct_size=ctypes.sizeof(c.RowsPoint), point=secrets.randbelow((1 << 63) - 1) + 1, writes=writes,
                            folder=folder.encode(), name=name.encode())
        self.job.session.block("pstrain_rows_keep", c.byref(point))
        return (point.manifest or b"").decode(), (point.fault or b"").decode(errors="replace")

    def go_back(self, folder: str, manifest: str) -> None:
        """To a point: at once, or when the job is opened. Collective."""
        if not self.opened:
            self._point = folder, manifest
            self.job.before_leaving.append(self.start)  # rank 0 may look at the rows of a job that makes no further step
            return
        self.job.session.block("pstrain_rows_return", folder.encode(), manifest.encode())

    def are_kept(self, manifest: str) -> bool:
        """Whether the servers have a manifest's point in memory."""
        kept = c.c_int()
        self.job.session.block("pstrain_rows_kept", json.loads(manifest)["point"], c.byref(kept))
        return bool(kept.value)

    # ---- all rows of a table through this rank ----

    def export(self, path: "str | os.PathLike[str]", tables: "typing.Sequence[int]", about: str) -> None:
        """Memory does not depend on the tables."""
        self.start()
        self.job.session.block("pstrain_rows_export", os.fsencode(path), (c.c_int * len(tables))(*tables), len(tables),
                               about.encode())

    def save(self, table: int) -> Page:
        """What the servers have: twice that memory, for a while."""
        self.start()
        session, width, dim = self.job.session, self._width(table), self.specs[table].dim
        page = c.RowsPage(struct_size=ctypes.sizeof(c.RowsPage))
        ids: "list[torch.Tensor]" = [torch.zeros(0, dtype=torch.int64, device="cpu")]
        ages, others = [ids[0]], [torch.zeros((0, 3), dtype=torch.int64, device="cpu")]
        values: "list[torch.Tensor]" = []
        while True:
            session.block("pstrain_rows_save", table, c.byref(page))
            n, m = int(page.n), int(page.n_candidates)
            if n + m:
                here = _copied(page.ids, n + m, torch.int64, 8)
                told = _copied(page.ages, 2 * (n + m), torch.int32, 4).view(-1, 2).long()
                age = int(page.clock) - told[:, 0]
                ids.append(here[:n])
                ages.append(age[:n])
                others.append(torch.stack([here[n:], age[n:], told[n:, 1]], 1))
            if n:
                values.append(_copied(page.values, n * width, torch.float32, 4).view(-1, width))
            if page.next == 0:
                break
        all_ids, order = torch.cat(ids).sort()
        candidates = torch.cat(others)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device="cpu")
        weight, state = (torch.empty(len(order), n, dtype=torch.float32, device="cpu") for n in (dim, width - dim))
        at = 0
        while values:
            rows = values.pop(0)
            some = places[at:at + len(rows)]
            at += len(rows)
            weight[some], state[some] = rows[:, :dim], rows[:, dim:]
        return Page(all_ids, weight, state, int(page.steps),
                    Ages(int(page.clock), torch.cat(ages)[order], candidates[candidates[:, 0].argsort()]))


def _refuse_scaler(rank: int) -> None:
    """InputError where a GradScaler has multiplied a loss: nobody divides the gradients of rows by its scale."""
    kinds = (torch.cuda.amp.GradScaler, getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler))
    for each in gc.get_objects():
        if issubclass(type(each), kinds) and getattr(each, "_scale", None) is not None and each.get_scale() != 1:
            raise InputError(f"rank {rank}: a GradScaler multiplies the loss by {each.get_scale():g}, which would multiply the steps of "
                             "rows: leave it out (enabled=False), as bfloat16 does not need it")


def _copied(address: typing.Any, n: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    memory = bytearray(ctypes.string_at(address, n * size))
    return torch.frombuffer(memory, dtype=dtype)
