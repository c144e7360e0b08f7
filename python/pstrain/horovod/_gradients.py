"""The gradients of a model: each is averaged over the ranks as soon as it is there."""
from __future__ import annotations

import typing
import weakref

import torch

from .. import _hooks
from ..errors import InputError


# Who averages a parameter, by its id: the last one that was made. Of those that are alive.
_owners: "dict[int, weakref.ref[Gradients]]" = {}


class Handle(typing.Protocol):
    """A sum on the way."""

    def wait(self) -> typing.Any:
        """Returns the result."""


class Gradients:
    """Of named parameters. send(name, gradient): begins its sum, which may be made in place.

    passes: a gradient leaves after that many backward passes. sparse_as_dense: sparse gradients are summed as dense
    ones; otherwise they are refused. when_sent: called after each gradient that has left.
    """

    def __init__(self, named: "typing.Iterable[tuple[str, torch.Tensor]]", rank: int,
                 send: "typing.Callable[[str, torch.Tensor], Handle]", passes: int = 1, sparse_as_dense: bool = False,
                 when_sent: "typing.Callable[[], None]" = lambda: None) -> None:
        self._rank, self._send, self._sparse_as_dense, self._when_sent = rank, send, sparse_as_dense, when_sent
        self.passes = passes
        self.is_paused = False  # gradients stay where they are
        self._names = {param: name for name, param in named}
        self._left: "dict[torch.Tensor, int]" = {}  # passes until it leaves, by watched parameter
        self._sent: "dict[torch.Tensor, Handle]" = {}
        self._hooks: "list[typing.Any]" = []
        this = self._this = weakref.ref(self)

        def ready(param: torch.Tensor) -> None:  # keeps nothing alive
            mine = this()
            if mine is not None:
                mine._when_there(param)

        self._ready = ready
        self._watch_all()

    def _watch_all(self) -> None:
        """Those that require a gradient by now."""
        for param in self._names:
            if param.requires_grad and param not in self._left:
                self._left[param] = self.passes
                _owners[id(param)] = self._this
                self._hooks.append(_hooks.when_accumulated(param, self._ready))

    def add(self, named: "typing.Iterable[tuple[str, torch.Tensor]]") -> None:
        self._names.update((param, name) for name, param in named)
        self._watch_all()

    def is_on_the_way(self) -> bool:
        """Whether a gradient has left that nobody has waited for."""
        return bool(self._sent)

    def are_new(self) -> bool:
        """Whether there was a backward pass since synchronize()."""
        return any(left < self.passes for left in self._left.values())

    def restart(self) -> None:
        """The next backward pass is the first."""
        for param in self._left:
            self._left[param] = self.passes

    def _owns(self, param: torch.Tensor) -> bool:
        return _owners.get(id(param)) is self._this

    def _when_there(self, param: torch.Tensor) -> None:
        if self.is_paused or not self._owns(param):
            return
        if self._left[param] <= 0:
            raise InputError(f"rank {self._rank}: parameter '{self._names[param]}' got more gradients than "
                             f"backward_passes_per_step={self.passes} before step(): give the number of backward "
                             "passes, or call step()")
        self._left[param] -= 1
        if self._left[param] == 0:
            self._leave(param)

    def _leave(self, param: torch.Tensor) -> None:
        if param.grad is None:  # other ranks may have one
            param.grad = torch.zeros_like(param)
        grad, name = param.grad, self._names[param]
        if grad.is_sparse:
            if not self._sparse_as_dense:
                raise InputError(f"rank {self._rank}: the gradient of parameter '{name}' is sparse: give "
                                 "sparse_as_dense=True, or make it with sparse=False")
            grad = grad.to_dense()
        elif 0 in grad.stride():  # several places of an expanded one are one number
            grad = param.grad = grad.clone(memory_format=torch.contiguous_format)
        self._sent[param] = self._send(name, grad)
        self._when_sent()

    def synchronize(self) -> None:
        """Blocks until the gradients are those of all ranks. Those that have not left do so now."""
        self._watch_all()
        for param in self._left:
            if not self._owns(param):
                raise InputError(f"rank {self._rank}: parameter '{self._names[param]}' is averaged by another "
                                 "DistributedOptimizer, which was made later: use that one")
            if param not in self._sent:
                self._leave(param)
        sent, self._sent = self._sent, {}
        self.restart()
        for param, handle in sent.items():
            result, grad = handle.wait(), param.grad
            if grad is None:
                param.grad = result
            elif grad.is_sparse:
                param.grad = result.to_sparse()
            elif result is not grad:
                with torch.no_grad():
                    grad.copy_(result)

    def __del__(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for param in self._left:
            if self._owns(param):
                del _owners[id(param)]
