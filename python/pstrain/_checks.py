"""What a tensor has to be to travel."""
from __future__ import annotations

import typing

from .errors import InputError

if typing.TYPE_CHECKING:
    import torch


def check(tensor: "torch.Tensor", what: str, rank: int, dtypes: "tuple[torch.dtype | None, ...]",
          any_format: bool = False, gpu: bool = False, contiguous: bool = True) -> None:
    """Raises InputError unless the tensor is dense, contiguous, on the CPU and of one of the
    dtypes. what: its name in the message, as "parameter 'fc.weight'". any_format: channels_last
    is taken, too. gpu: a GPU's as well. contiguous=False: it need not be."""
    fault = why_not(tensor, dtypes, any_format, gpu, contiguous)
    if fault:
        raise InputError(f"rank {rank}: {what} {fault}")


def channels_last(tensor: "torch.Tensor") -> bool:
    """Whether its memory has another order than its shape: (N, H, W, C), or (N, D, H, W, C)."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return (tensor.dim() in formats and not tensor.is_contiguous()
            and tensor.is_contiguous(memory_format=formats[tensor.dim()]))


def overlaps(tensor: "torch.Tensor") -> bool:
    """Whether several of its elements are one number in memory, as expand() makes them."""
    return tensor.numel() > 0 and any(step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape))


def why_not(tensor: "torch.Tensor", dtypes: "tuple[torch.dtype | None, ...]", any_format: bool = False,
            gpu: bool = False, contiguous: bool = True) -> str:
    import torch

    if not isinstance(tensor, torch.Tensor):
        return f"is a {type(tensor).__name__}: give a torch.Tensor"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}): use .to_dense(), or sparse=False where it is made"
    if tensor.is_conj():
        return "is a conjugated view (.conj(), .mH): use .resolve_conj()"
    if tensor.is_complex() and tensor.dtype not in dtypes:
        return f"is complex ({tensor.dtype}): give its real view, torch.view_as_real"
    if not (tensor.is_cpu or gpu and tensor.is_cuda):
        where = "the CPU or a GPU (cuda)" if gpu else "the CPU"
        return f"is on {tensor.device}: this works with tensors on {where}"
    if tensor.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        return f"is {str(tensor.dtype).removeprefix('torch.')}: it has to be one of {names}"
    if tensor.is_neg():
        return "is a view with the other sign (torch._neg_view, .conj().imag): use .resolve_neg()"
    if contiguous and not tensor.is_contiguous() and not (any_format and channels_last(tensor)):
        return f"of shape {tuple(tensor.shape)} is not contiguous: use .contiguous()"
    return ""
