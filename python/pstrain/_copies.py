"""Rows that were read from the servers, as a tensor that refuses to be written."""
from __future__ import annotations

import typing

import torch

from .errors import InputError

_as_plain = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction


class Copy(torch.Tensor):
    """What is written into it would change no row: InputError, also through a view. What is computed from it is a plain
    tensor."""

    _fault = ""

    @staticmethod
    def of(rows: torch.Tensor, fault: str) -> "Copy":
        """Shares memory with rows, which count their writes: no tensor of inference_mode."""
        copy = rows.as_subclass(Copy)
        copy._fault = fault
        return copy

    @classmethod
    def __torch_function__(cls, func: typing.Any, types: typing.Any, args: typing.Any = (),
                           kwargs: typing.Any = None) -> typing.Any:
        kwargs = kwargs or {}
        with _as_plain():
            copies = [each for each in _tensors([*args, *kwargs.values()]) if isinstance(each, Copy)]
            before = [each._version for each in copies]
            if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
                raise InputError(copies[0]._fault)
            out = func(*args, **kwargs)
            for copy, version in zip(copies, before):
                if copy._version != version:
                    raise InputError(copy._fault)
            if type(out).__module__ == "numpy":
                return _read_only(out, copies)
            return _marked(out, copies)

    def __reduce_ex__(self, protocol: typing.Any) -> typing.Any:
        own: typing.Any = self._as_own()
        return own.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: typing.Any) -> torch.Tensor:
        return self._as_own()

    def _as_own(self) -> torch.Tensor:
        """nn.Parameter has made one of it, if it has the mark."""
        own = self.detach().clone()
        return torch.nn.Parameter(own, self.requires_grad) if getattr(self, "_is_param", False) else own


def _tensors(values: "typing.Iterable[typing.Any]") -> "typing.Iterator[torch.Tensor]":
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _marked(out: typing.Any, copies: "list[Copy]") -> typing.Any:
    """Parts of a copy are such, too."""
    if type(out) in (tuple, list):
        return type(out)(_marked(each, copies) for each in out)
    if type(out) is not torch.Tensor or out.layout != torch.strided:
        return out
    for copy in copies:
        if _memory(out) == _memory(copy):
            return Copy.of(out, copy._fault)
    return out


def _read_only(array: typing.Any, copies: "list[Copy]") -> typing.Any:
    """NumPy refuses to write into what lies in a copy."""
    if any(array.__array_interface__["data"][0] == copy.data_ptr() for copy in copies):
        array.flags.writeable = False
    return array


def _memory(tensor: torch.Tensor) -> int:
    storage: typing.Any = getattr(tensor, "untyped_storage", tensor.storage)  # PyTorch 1.13 has the latter alone
    return int(storage().data_ptr())
