"""The states of the random numbers that a program draws: PyTorch's, Python's, NumPy's."""
from __future__ import annotations

import random
import sys
import typing

import torch


def save() -> "dict[str, typing.Any]":
    numpy: typing.Any = sys.modules.get("numpy")
    cuda: typing.Any = torch.cuda  # not all of its functions have types
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda.get_rng_state_all() if cuda.is_initialized() else [],
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
    }


def restore(saved: "dict[str, typing.Any]") -> None:
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
    random.setstate(saved["python"])
    if saved["numpy"] is not None:
        import numpy

        numpy.random.set_state(saved["numpy"])
