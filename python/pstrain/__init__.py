"""pstrain: train PyTorch models through sharded parameter servers.

    import pstrain
    pstrain.init()
    optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-3)

The step is made by the servers: gradients leave during the backward pass, and when step() returns,
the new weights are there. For DistributedDataParallel there are instead
`pstrain.comm_hook`, and the back end "pstrain" of `torch.distributed.init_process_group`.

PyTorch is imported when it is first needed.
"""
from __future__ import annotations

import importlib.machinery
import sys
import types
import typing

from .errors import Error, InputError, PeerError, TimeoutError
from .job import (Job, abort, all_reduce, barrier, broadcast, init, is_initialized, rank, should_stop,
                  shutdown, size)
from .launch import launch

if typing.TYPE_CHECKING:
    from .compiling import in_parts
    from .embedding import EmbeddingBag, Embeddings, sparse
    from .hook import comm_hook
    from .optimizer import Optimizer
    from .process_group import ProcessGroup, register_backend
    from .recovery import State
    from .sampler import DistributedSampler
    from .serving import rows

__version__ = "0.1.0"
__all__ = ["DistributedSampler", "EmbeddingBag", "Embeddings", "Error", "InputError", "Job", "Optimizer", "PeerError", "ProcessGroup", "State", "TimeoutError",
           "abort", "all_reduce", "barrier", "broadcast", "comm_hook", "in_parts", "init", "is_initialized",
           "launch", "rank", "register_backend", "rows", "should_stop", "shutdown", "size", "sparse"]

# Names whose modules import PyTorch.
_LATER = {"in_parts": "compiling", "EmbeddingBag": "embedding", "Embeddings": "embedding", "sparse": "embedding", "Optimizer": "optimizer", "comm_hook": "hook", "ProcessGroup": "process_group",
          "register_backend": "process_group", "State": "recovery", "rows": "serving", "DistributedSampler": "sampler"}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'pstrain' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(__all__))


def _register() -> None:
    """Makes the back end known, where PyTorch is there already."""
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_available():
        from . import process_group

        process_group.register_backend()


class _TorchFinder:
    """Makes the back end known as soon as PyTorch is imported: sorted imports have pstrain first. Importing PyTorch
    here would cost psrun and pstrain-server a second."""

    @classmethod
    def find_spec(cls, name: str, path: typing.Any = None, _: typing.Any = None) -> typing.Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            _register()

        setattr(spec.loader, "exec_module", exec_module)
        return spec


if "torch" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _TorchFinder)
