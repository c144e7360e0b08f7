"""Batch norm over the batches of all ranks."""
from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._collectives import HALVES
from ._calls import Sum, allreduce
from ._membership import wrong


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d to 3d on the ranks' batches one after another; they may differ in size. Input: (N, C) or
    (N, C, ...)."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: the input is {tuple(input.shape)}: give (N, C) or (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        given, input = input, input.float() if input.dtype in HALVES else input  # as PyTorch's: sums of halves would be rounded
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(input.dim())]
        own = torch.cat([input.sum(dims), input.new_full((1,), input.numel() / input.shape[1])])
        total = allreduce(own, op=Sum)
        count = total[-1].detach()
        if count <= 1:
            raise wrong(f"SyncBatchNorm: all ranks together have {int(count)} values per channel: more than 1 is needed")
        mean = total[:-1] / count
        centred = input - mean.view(shape)
        variance = allreduce((centred * centred).sum(dims), op=Sum) / count
        self._track(mean.detach(), variance.detach() * count / (count - 1))
        out = centred * torch.rsqrt(variance + self.eps).view(shape)
        return (out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out).to(given.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if not self.training or self.running_mean is None:
            return
        assert self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)
