"""The arguments of an Optimizer: what they may be, and their form for the servers."""
from __future__ import annotations

import ctypes
import inspect
import typing

import torch
from torch.nn.parameter import is_lazy

from . import _library
from ._defaults import DEFAULTS, NAMES
from .errors import InputError

# Those that the servers lack: PyTorch steps them on each rank.
LOCAL = {"adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "rprop": "Rprop",
         "asgd": "ASGD"}
# Those that the servers have, too.
ALSO_PYTORCHS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad"}
# Of PyTorch's optimizers, as they are there by default. These change no number, ...
SAME = ("foreach", "fused", "capturable")
# ... and these change all; the servers lack them. Adam's amsgrad is stepped by PyTorch.
LACKING = ("amsgrad", "differentiable", "decoupled_weight_decay")
TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2] if n.isdigit())


def local_rule(name: typing.Any, options: "dict[str, typing.Any]",
               params: "typing.Iterable[torch.Tensor]") -> "typing.Callable[..., typing.Any] | None":
    """What makes the optimizer that each rank steps itself; None: the servers make the steps."""
    if not isinstance(name, str):
        return typing.cast("typing.Callable[..., typing.Any]", name)
    by_ranks = (name in LOCAL or name in ("adam", "adamw") and options.get("amsgrad")
                or any(param.dtype == torch.float64 and param.requires_grad for param in params))
    return getattr(torch.optim, {**ALSO_PYTORCHS, **LOCAL}.get(name, ""), None) if by_ranks else None


def make_local(rule: "typing.Callable[..., typing.Any]", groups: "list[dict[str, typing.Any]]",
               options: "dict[str, typing.Any]", rank: int) -> torch.optim.Optimizer:
    """The program's own optimizer. InputError where it cannot step with gradients alone."""
    word = getattr(rule, "__name__", str(rule))
    if not callable(rule):
        raise InputError(f"rank {rank}: the optimizer has to be a name, or what makes one of PyTorch's "
                         f"(torch.optim.NAdam), not {rule!r}")
    made = rule(groups, **options)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"rank {rank}: {word} has made {type(made).__name__}, not a torch.optim.Optimizer")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(f"rank {rank}: {word} computes gradients several times in a step (closure): keep it, in "
                         "DistributedDataParallel with pstrain.comm_hook")
    return made


def defaults(name: str, options: "dict[str, typing.Any]", rank: int) -> "dict[str, typing.Any]":
    """A group's options where the group has none of its own."""
    if name not in DEFAULTS:
        raise InputError(f"rank {rank}: there is no optimizer {name!r}: use one of {', '.join((*NAMES, *LOCAL))}, or "
                         "give one's class (torch.optim.NAdam)")
    known = {**DEFAULTS[name], "maximize": False}
    for key in options:
        if key not in known and key not in SAME and key not in LACKING:
            raise InputError(f"rank {rank}: {name} has no option {key!r} here; it has "
                             f"{', '.join(known)}")
    for key in ("lr", "weight_decay", "lr_decay", "initial_accumulator_value"):
        if not options.get(key, 0) >= 0:
            raise InputError(f"rank {rank}: {name}'s {key}={options[key]!r} is not a number from 0")
    return {**known, **options}


def check_values(push: str, clip_norm: float, total_steps: int, rank: int) -> None:
    if push not in ("backward", "step"):
        raise InputError(f"rank {rank}: push={push!r} is not 'backward' or 'step'")
    for key, value in (("clip_norm", clip_norm), ("total_steps", total_steps)):
        if value < 0:
            raise InputError(f"rank {rank}: {key}={value} is below 0")


def check_groups(name: str, groups: "list[dict[str, typing.Any]]", rank: int) -> None:
    """InputError for an option of PyTorch's that would be ignored."""
    for place, group in enumerate(groups):
        for key in LACKING:
            if group.get(key) and (name, key) != ("adamw", "decoupled_weight_decay"):
                other = "name it adamw" if key == "decoupled_weight_decay" else "keep PyTorch's, with pstrain.comm_hook"
                raise InputError(f"rank {rank}: parameter group {place}: the servers' {name} has no {key}: {other}")


def settings(codec: "str | None", clip_norm: float, loss_scale: "bool | float | None") -> "list[str]":
    """As keys of docs/configuration.md."""
    words = [f"optimizer.pytorch={1 if TORCH < (2,) else 2}"]
    if codec is not None:
        words.append(f"exchange.codec={codec}")
    if clip_norm:
        words.append(f"optimizer.clip_norm={clip_norm!r}")
    words.append(f"loss_scale.use={'on' if loss_scale not in (None, False) else 'off'}")
    if loss_scale is not None and not isinstance(loss_scale, bool):
        words.append(f"loss_scale.init={float(loss_scale)!r}")
    return words


class Numbers(typing.NamedTuple):
    """As pstrain_group has them."""

    lr: float
    momentum: float
    dampening: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    nesterov: int
    optimizer: int
    name: bytes
    lr_decay: float
    initial_accumulator: float
    centered: int


def no_numbers(optimizer: int) -> Numbers:
    """Of a group that the servers only sum."""
    return Numbers(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, optimizer, b"sum", 0.0, 0.0, 0)


def numbers(name: str, optimizer: int, group: "dict[str, typing.Any]") -> Numbers:
    """Of a group of the optimizer of that name and number."""
    beta1, beta2 = group.get("betas", (0.0, group.get("alpha", 0.0)))
    return Numbers(float(group["lr"]), float(group.get("momentum", 0)), float(group.get("dampening", 0)),
                   float(beta1), float(beta2), float(group.get("eps", 0)), float(group["weight_decay"]),
                   int(bool(group.get("nesterov"))), optimizer, name.encode(), float(group.get("lr_decay", 0)),
                   float(group.get("initial_accumulator_value", 0)), int(bool(group.get("centered"))))


def as_c(groups: "list[Numbers]") -> "ctypes.Array[_library.Group]":
    """For the library."""
    return (_library.Group * len(groups))(*[_library.Group(*group) for group in groups])


def state_names(name: str, group: "dict[str, typing.Any]") -> "list[str]":
    """PyTorch's words for a group's arrays of state, in the library's order."""
    momentum = ["momentum_buffer"] if group.get("momentum") else []
    return {"sgd": momentum, "adagrad": ["sum"], "lion": ["exp_avg"],
            "rmsprop": ["square_avg", *momentum, *(["grad_avg"] if group.get("centered") else [])],
            }.get(name, ["exp_avg", "exp_avg_sq"])


def groups(params: typing.Any, rank: int, names: "dict[int, str]") -> "list[dict[str, typing.Any]]":
    """Groups of bare parameters. names: takes in theirs, by id."""
    if isinstance(params, torch.nn.Module):
        params = params.named_parameters()
    if isinstance(params, torch.Tensor):
        raise InputError(f"rank {rank}: params has to be model.named_parameters(), not one tensor")
    given = list(params)
    if not given:
        raise InputError(f"rank {rank}: there are no parameters (tables on the servers have none: call step() of their module)")
    groups = [dict(g) for g in given] if isinstance(given[0], dict) else [{"params": given}]
    for group in groups:
        own = group["params"]
        own = [own] if isinstance(own, torch.Tensor) else list(own)
        group["params"] = [_param(entry, names) for entry in own]
        lazy = next((names[id(param)] for param in group["params"] if is_lazy(param)), None)
        if lazy is not None:
            raise InputError(f"rank {rank}: parameter '{lazy}' is a lazy module's, which has it after its first forward pass: make one "
                             "before the Optimizer, within torch.no_grad()")
    return groups


def _param(entry: typing.Any, names: "dict[int, str]") -> torch.Tensor:
    name: str
    param: torch.Tensor
    name, param = entry if isinstance(entry, tuple) else (f"{len(names)}", entry)
    names.setdefault(id(param), name)
    return param
