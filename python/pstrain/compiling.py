"""torch.compile whose backward pass gives its gradients part by part."""
from __future__ import annotations

import functools
import importlib
import typing

import torch

from .errors import InputError

Backend = typing.Callable[..., typing.Any]


def in_parts(mb: float = 25.0, backend: "str | Backend" = "inductor") -> Backend:
    """A back end of torch.compile for a model of a pstrain.Optimizer.

        model = torch.compile(model, backend=pstrain.in_parts())

    What torch.compile makes of a model has one backward pass, and PyTorch tells of its gradients when all of it is over:
    then they cannot travel meanwhile. This back end cuts the model as PyTorch does within DistributedDataParallel: from
    the last layer on, 1 MiB of parameters, then mb MiB in each part, each compiled by itself. The numbers are those of
    the same compiler, whose kernels do not reach across a cut.

    mb: smaller parts leave earlier, and cost more calls. backend: what compiles a part; with "inductor" torch.compile's
    mode and options go to it. For DistributedDataParallel it is not needed: PyTorch cuts torch.compile(DDP(model)) itself.
    InputError: mb is not above 0, torch.compile does not know the backend, or this PyTorch is too old.
    """
    if isinstance(mb, bool) or not isinstance(mb, (int, float)) or not 0 < mb < float("inf"):
        raise InputError(f"mb={mb!r} is not a number above 0")
    compile_part, cutter = _compiler(backend), _cutter()
    bytes_of_part = max(1, round(mb * 2**20))

    def compile_in_parts(graph: typing.Any, inputs: typing.Any, **how: typing.Any) -> typing.Any:
        return cutter(bytes_of_part, functools.partial(compile_part, **how), min(_FIRST_BYTES, bytes_of_part)) \
            .compile_fn(graph, inputs)

    return compile_in_parts


_FIRST_BYTES = 1 << 20  # as DistributedDataParallel's


def _compiler(backend: "str | Backend") -> Backend:
    """compile(graph, inputs, mode=..., options=...): those that torch.compile was given."""
    if callable(backend):
        return backend
    if backend == "inductor":
        return _by_inductor
    try:
        return typing.cast(Backend, importlib.import_module("torch._dynamo.backends.registry").lookup_backend(backend))
    except Exception as error:  # PyTorch's, of a name that it does not know
        raise InputError(f"backend={backend!r}: torch.compile does not know it: {error}") from error


def _by_inductor(graph: typing.Any, inputs: typing.Any, mode: "str | None" = None,
                 options: "dict[str, typing.Any] | None" = None, **_: typing.Any) -> typing.Any:
    inductor: typing.Any = importlib.import_module("torch._inductor")
    return inductor.compile(graph, inputs, options={**(inductor.list_mode_options(mode) if mode else {}), **(options or {})})


def _cutter() -> typing.Any:
    """PyTorch's DDPOptimizer, to which a parameter is as large as it is: the storage of ours is the arena of all."""
    base: typing.Any = getattr(importlib.import_module("torch._dynamo.backends.distributed"), "DDPOptimizer", None)
    if not hasattr(base, "add_param"):
        raise InputError(f"in_parts(): PyTorch {torch.__version__} is too old for it: leave out backend=; gradients then "
                         "leave when the whole backward pass is over")

    class Cutter(base):  # type: ignore[misc]
        def add_param(self, bucket: typing.Any, param: typing.Any, name: str) -> None:
            super().add_param(bucket, param, name)
            bucket.size += param.numel() * param.element_size() - param.untyped_storage().nbytes()

    return Cutter
