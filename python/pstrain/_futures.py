"""Futures of PyTorch that another thread completes."""
from __future__ import annotations

import typing

import torch

from .errors import Error


class Promise:
    """A future and how it is kept. `future` is what PyTorch gets: an exception set on a future
    that it holds would end the process, one that `then` passes on becomes a RuntimeError."""

    def __init__(self, value: typing.Any) -> None:
        self._inner: "torch.futures.Future[typing.Any]" = torch.futures.Future()
        self._value = value
        self.future = self._inner.then(lambda f: f.value())

    def keep(self, error: "BaseException | None" = None) -> None:
        """Completes the future with the value, or with the error."""
        if error is None:
            self._inner.set_result(self._value)
        else:
            self._inner.set_exception(error if isinstance(error, Exception) else Error(str(error)))
        self._value = None
