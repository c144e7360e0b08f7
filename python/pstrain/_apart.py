"""Notices models of a process group's ranks that nothing joins: the forgotten DistributedDataParallel, or a trainer that wraps
a model only for the names of back ends that it knows (Ignite's auto_model)."""
from __future__ import annotations

import importlib
import sys
import typing
import warnings

if typing.TYPE_CHECKING:
    import torch

    from .job import Job

ENOUGH = 1 / 16  # of the parameters' bytes: compressed gradients are such a part
PATIENCE = 100  # steps: of local steps between two averages there are mostly fewer


class Watch:
    """Compares what moves between two steps of PyTorch's optimizers with their parameters. Over as soon as
    it is enough once. PyTorch 1 does not tell of steps."""

    def __init__(self, job: "Job") -> None:
        self._job, self._steps, self._over = job, 0, False
        self._bytes = self._moved = self._most = 0
        add = getattr(importlib.import_module("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        self._hook: typing.Any = add(self._stepped) if add is not None and job.size > 1 else None
        job.before_leaving.append(self.tell)
        job.at_end.append(self._end)

    def _stepped(self, optimizer: "torch.optim.Optimizer", *_: typing.Any) -> None:
        if self._over:
            return
        self._steps += 1
        self._look()
        self._bytes = max(self._bytes, sum(
            param.numel() * param.element_size()
            for group in optimizer.param_groups for param in group["params"] if param.grad is not None))
        if self._most >= self._bytes * ENOUGH or self._others_join():
            self._over = True  # the hook stays: PyTorch is going through them all
        elif self._steps == PATIENCE:
            self.tell()

    def _look(self) -> None:
        moved = self._job.session.moved
        self._most, self._moved = max(self._most, moved - self._moved), moved

    def _others_join(self) -> bool:
        """An Optimizer, the hook, sums by the servers, Horovod's calls, or a group of another back end."""
        groups: typing.Any = getattr(importlib.import_module("torch.distributed").distributed_c10d._world, "pg_map", {})
        return (bool(self._job.opened_by) or "pstrain.horovod" in sys.modules
                or any(name != "pstrain" for name, _ in groups.values()))

    def tell(self) -> None:
        """Warns where it was never enough."""
        over, self._over = self._over, True
        self._look()
        if self._hook is not None and not over and self._steps and self._most < self._bytes * ENOUGH and not self._others_join():
            warnings.warn(
                f"rank {self._job.rank}: {self._steps} steps of PyTorch's optimizers, and the process group has moved "
                f"{self._most} bytes at most between two of them, for {self._bytes} bytes of parameters: each rank trains a "
                "model by itself. Some trainers wrap a model for the back ends nccl and gloo alone: give them "
                "DistributedDataParallel(model), or take the hook (pstrain.comm_hook)", stacklevel=2)

    def _end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
