"""What is looked up in embedding tables, checked: the same for tables on the servers and for exported ones."""
from __future__ import annotations

import typing

import torch

from ._rows import MODES, Spec
from .errors import InputError

Ids = typing.Union[torch.Tensor, typing.Sequence[typing.Sequence[int]]]


class Table(typing.NamedTuple):
    """A table of a module's."""

    number: int  # in the job
    spec: Spec
    mode: "str | None"
    padding: "int | None"
    rows: "int | None"  # ids are below it; None: any


class Inputs(typing.NamedTuple):
    """Of one lookup."""

    table: Table
    ids: torch.Tensor
    offsets: "torch.Tensor | None"  # None: bags have equally many
    bags: int
    weights: "torch.Tensor | None"
    shape: "tuple[int, ...]"  # of what is looked up


Given = typing.Tuple[Table, Ids, typing.Any, "torch.Tensor | None", bool]


class Lookups(torch.nn.Module):
    """A module with tables."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where  # how messages begin
        self._tables: "dict[str, Table]" = {}  # by name and a dot; of one table: ""
        self._dtype = torch.float32  # of what is looked up

    def _fault(self, table: Table, what: str) -> InputError:
        return InputError(f"{self._where}table '{table.spec.name}': {what}")

    def _check_mode(self, name: typing.Any, mode: typing.Any) -> None:
        if mode not in MODES:
            why = ": PyTorch has no sparse gradient of max" if mode == "max" else ""
            raise InputError(f"{self._where}table '{name}': mode={mode!r} is not sum or mean{why}")

    def _as_int64(self, table: Table, what: str, given: typing.Any) -> torch.Tensor:
        if not isinstance(given, torch.Tensor) or given.dtype not in (torch.int64, torch.int32):
            kind = str(given.dtype).replace("torch.", "") if isinstance(given, torch.Tensor) else type(given).__name__
            raise self._fault(table, f"{what} are {kind}: they have to be a tensor of int64 or int32")
        if given.is_cpu and given.dtype is torch.int64 and given.is_contiguous():
            return given
        return given.to("cpu", torch.int64).contiguous()

    def _offsets(self, table: Table, given: typing.Any, n: int, includes_last: bool) -> torch.Tensor:
        offsets = self._as_int64(table, "offsets", given)
        if offsets.dim() != 1:
            raise self._fault(table, f"offsets have {offsets.dim()} dimensions: they have to have one")
        if not includes_last:
            return offsets
        if offsets.numel() == 0 or int(offsets[-1]) != n:
            raise self._fault(table, f"with include_last_offset the last offset is the number of ids, {n}")
        return offsets[:-1].contiguous()

    def _begins(self, given: Inputs) -> torch.Tensor:
        """Where each bag begins in the ids, checked."""
        n, bags = given.ids.numel(), given.bags
        if bags == 0 and n:
            raise self._fault(given.table, "there are ids, and no bags")
        begins = torch.arange(bags, device="cpu") * (n // max(bags, 1)) if given.offsets is None else given.offsets
        if bags and (int(begins[0]) != 0 or bool((torch.cat([begins, torch.tensor([n], device="cpu")]).diff() < 0).any())):
            raise self._fault(given.table, f"offsets begin at 0, do not fall, and are at most {n}, the number of ids")
        return begins

    def _of_lists(self, table: Table, lists: typing.Any) -> "tuple[torch.Tensor, torch.Tensor]":
        """Ids and offsets."""
        try:
            lengths = torch.tensor([0] + [len(each) for each in lists], dtype=torch.int64, device="cpu")
            flat = [each for some in lists for each in some]
            ids = torch.tensor(flat, dtype=None if flat else torch.int64, device="cpu")
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise self._fault(table, f"ids have to be a tensor, or a list for each bag, of ids below 2^63: {error}") from None
        return ids, lengths.cumsum(0)[:-1].contiguous()

    def _inputs(self, table: Table, ids: Ids, offsets: typing.Any, weights: "torch.Tensor | None",
                includes_last: bool) -> Inputs:
        """What the numbers are is looked at later."""
        jit: typing.Any = torch.jit
        if jit.is_tracing():
            raise self._fault(table, "torch.jit.trace (torch.onnx.export) would keep the rows of this call as constants, for any "
                              "ids: trace the part of the model that takes the rows")
        if table.mode is None and offsets is not None:
            raise self._fault(table, "it gives each id's row (mode=None): leave out its offsets")
        if not isinstance(ids, torch.Tensor):
            if offsets is not None:
                raise self._fault(table, "ids are lists, which say where bags begin: leave out the offsets")
            ids, offsets = self._of_lists(table, ids)
            includes_last = False
        shape: "typing.Sequence[int]" = ids.shape
        if table.mode is None:
            offsets = None  # of lists
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
        return Inputs(table, self._as_int64(table, "ids", ids), offsets, 0 if table.mode is None else shape[0], weights,
                      (*shape, table.spec.dim))

    def _weights(self, table: Table, weights: typing.Any, ids: torch.Tensor) -> torch.Tensor:
        if table.mode != "sum":
            raise self._fault(table, "per_sample_weights are for mode='sum', as in PyTorch")
        if not isinstance(weights, torch.Tensor) or weights.shape != ids.shape or weights.dtype != torch.float32:
            what = f"{str(weights.dtype).replace('torch.', '')} of {tuple(weights.shape)}" if isinstance(weights, torch.Tensor) \
                else type(weights).__name__
            raise self._fault(table, f"per_sample_weights have to be float32 and of the ids' shape, {tuple(ids.shape)}, "
                              f"not {what}")
        return weights.detach().to("cpu").resolve_neg().contiguous()

    def _given(self, ids: typing.Any, offsets: typing.Any, weights: typing.Any) -> "list[Given]":
        """What forward() of several tables got, by table."""
        are_its_own = isinstance(offsets, typing.Mapping)  # and not all tables' at once
        if hasattr(ids, "keys") and hasattr(ids, "to_dict") and not isinstance(ids, typing.Mapping):
            if offsets is not None or weights is not None:
                raise InputError(f"{self._where}{type(ids).__name__} has offsets and weights of its own: leave these out")
            ids, offsets, weights = _of_jagged(ids)
        if not isinstance(ids, typing.Mapping):
            raise InputError(f"{self._where}ids have to be a dict by table, not {type(ids).__name__}")
        if not (weights is None or isinstance(weights, typing.Mapping)) \
                or not (offsets is None or isinstance(offsets, (torch.Tensor, typing.Mapping))):
            raise InputError(f"{self._where}offsets have to be a tensor or a dict by table, per_sample_weights a dict by table")
        for by_name in (ids, offsets, weights):
            for name in by_name if isinstance(by_name, typing.Mapping) else ():
                if f"{name}." not in self._tables:
                    known = ", ".join(t.spec.name for t in self._tables.values())
                    raise InputError(f"{self._where}there is no table '{name}'; there are {known}")
        given = []
        for name, its in ids.items():
            table, its_offsets = self._tables[f"{name}."], offsets.get(name) if isinstance(offsets, typing.Mapping) else offsets
            if table.mode is None and not are_its_own:
                its_offsets = None
            given.append((table, its, its_offsets, weights.get(name) if weights else None, False))
        return given

    def _apply(self, fn: typing.Any, *how: typing.Any, **named: typing.Any) -> typing.Any:
        """half(), double() and to(dtype), of a model with it, too: what is looked up has this type, as nn.Embedding's has.
        Rows and their steps stay float32."""
        self._dtype = fn(torch.zeros(0, dtype=self._dtype, device="cpu")).dtype
        plain: typing.Any = super()._apply
        return plain(fn, *how, **named)

    def _as_wanted(self, out: torch.Tensor, given: Given) -> torch.Tensor:
        """What was looked up, where its ids are, in the module's type."""
        ids = given[1]
        return out.to(ids.device if isinstance(ids, torch.Tensor) else out.device, self._dtype)

    def extra_repr(self) -> str:
        return ", ".join(f"{t.spec.name}: dim={t.spec.dim}, mode={t.mode}, {t.spec.optimizer}" for t in self._tables.values())


def _of_jagged(ids: typing.Any) -> "tuple[typing.Any, typing.Any, typing.Any]":
    by_name = ids.to_dict()
    weights = {name: each.weights() for name, each in by_name.items() if each.weights_or_none() is not None}
    return ({name: each.values() for name, each in by_name.items()},
            {name: each.offsets()[:-1] for name, each in by_name.items()}, weights)
