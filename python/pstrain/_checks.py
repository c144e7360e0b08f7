"""What a tensor has to be to travel."""
from __future__ import annotations

import typing

from .errors import InputError

if typing.TYPE_CHECKING:
    import torch


def check(tensor: "torch.Tensor", what: str, rank: int, dtypes: "tuple[torch.dtype, ...]") -> None:
    """Raises InputError unless the tensor is dense, contiguous, on the CPU and of one of the
    dtypes. what: its name in the message, as "parameter 'fc.weight'"."""
    fault = why_not(tensor, dtypes)
    if fault:
        raise InputError(f"rank {rank}: {what} {fault}")


def why_not(tensor: "torch.Tensor", dtypes: "tuple[torch.dtype, ...]") -> str:
    import torch

    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}): use .to_dense(), or sparse=False where it is made"
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): give its real view, torch.view_as_real"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}: this version works with tensors on the CPU"
    if tensor.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        return f"is {str(tensor.dtype).removeprefix('torch.')}: it has to be one of {names}"
    if not tensor.is_contiguous():
        return f"of shape {tuple(tensor.shape)} is not contiguous: use .contiguous()"
    return ""
