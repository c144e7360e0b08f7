"""Models, the state of optimizers, and objects: one rank's for all, or those of all ranks."""
from __future__ import annotations

import io
import pickle
import typing

import torch

from ._calls import allgather_async, broadcast_, broadcast_async_, together
from ._membership import rank, wrong


def broadcast_parameters(params: typing.Any, root_rank: int, prefix: str = "") -> None:
    """The root's become everybody's. params: model.state_dict(), model.named_parameters(), model.parameters()."""
    if isinstance(params, typing.Mapping):
        params = sorted(params.items())
    elif isinstance(params, (torch.Tensor, torch.nn.Module, str)) or not isinstance(params, typing.Iterable):
        raise wrong(f"params is a {type(params).__name__}: give model.state_dict(), or parameters")
    named = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    together([broadcast_async_(tensor, root_rank, name and prefix + name) for name, tensor in named]).wait()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "",
                              model: typing.Any = None) -> None:
    """The root's state and the numbers of its groups (lr, ...) become everybody's. An optimizer that has made no step
    stays so. prefix and model are not needed."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise wrong("cannot broadcast torch.optim.LBFGS state: use broadcast_object, and load_state_dict")
    state = broadcast_object(_on_cpu(optimizer.state_dict()) if rank() == root_rank else None, root_rank,
                             f"{prefix}optimizer")
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def _on_cpu(what: typing.Any) -> typing.Any:
    """Dicts, lists and tuples with their tensors on the CPU: other ranks may have no such GPU."""
    if isinstance(what, torch.Tensor):
        return what.cpu()
    if isinstance(what, dict):
        return {key: _on_cpu(value) for key, value in what.items()}
    return type(what)(map(_on_cpu, what)) if type(what) in (list, tuple) else what


def _pickled(what: typing.Any) -> torch.Tensor:
    data = io.BytesIO()
    pickle.dump(what, data, pickle.HIGHEST_PROTOCOL)
    return torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)


def broadcast_object(obj: typing.Any, root_rank: int = 0, name: "str | None" = None,
                     process_set: typing.Any = None) -> typing.Any:
    """Returns the root's. It has to be one that pickle knows."""
    name, is_root = name or "object", rank() == root_rank
    data = _pickled(obj) if is_root else torch.empty(0, dtype=torch.uint8, device="cpu")
    n = broadcast_(torch.tensor([data.numel()], device="cpu"), root_rank, f"{name}.size", process_set)
    data = data if is_root else torch.empty(int(n), dtype=torch.uint8, device="cpu")
    broadcast_(data, root_rank, f"{name}.data", process_set)
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(obj: typing.Any, name: "str | None" = None) -> "list[typing.Any]":
    """Returns those of all ranks, in rank order."""
    handle = allgather_async(_pickled(obj), name or "object")
    handle.wait()
    return [pickle.loads(part.numpy().tobytes()) for part in handle.calls[0].parts]
