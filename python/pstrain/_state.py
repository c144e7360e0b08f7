"""An Optimizer's state_dict: PyTorch's form, and that of the servers."""
from __future__ import annotations

import ctypes
import typing

import torch

from . import _arguments, _library
from ._session import Session
from ._slots import Slot, place_of
from .errors import InputError

Groups = typing.List[typing.Dict[str, typing.Any]]  # an optimizer's param_groups
Slots = typing.Dict[int, Slot]  # by id of the parameter, in the table's order


def save(session: Session, n_params: int) -> "tuple[_library.State, dict[str, torch.Tensor], torch.Tensor | None]":
    """(the step and the rule, rank 0's arrays by name, what this rank's codec has kept back)"""
    n, names = session.arena_count(), session.state_names()
    state = _library.State(struct_size=ctypes.sizeof(_library.State))
    arrays: "dict[str, torch.Tensor]" = {}
    feedback = torch.zeros(n) if session.has_feedback() else None
    if session.rank == 0:
        state.missed = (ctypes.c_uint64 * n_params)()
        arrays = {name: torch.zeros(n) for name in names}
        for i, array in enumerate(arrays.values()):
            state.arrays[i] = array.data_ptr()
    if feedback is not None:
        state.feedback = feedback.data_ptr()
    session.save(state)
    return state, arrays, feedback


def in_pytorchs_form(name: str, groups: Groups, slots: Slots, steps: "list[int]",
                     arrays: "dict[str, torch.Tensor]") -> "dict[int, dict[str, typing.Any]]":
    """The key "state" of the optimizer called name. steps: that were made of each parameter; one that was never
    stepped has no state."""
    offsets, _ = _offsets(slots)
    state: "dict[int, dict[str, typing.Any]]" = {}
    for place, param in enumerate(_in_order(groups)):
        slot = slots.get(id(param))
        if slot is None or steps[slot.index] == 0 or not arrays:
            continue
        own: "dict[str, typing.Any]" = {} if name == "sgd" else {"step": torch.tensor(float(steps[slot.index]))}
        for key, array in arrays.items():
            own[key] = place_of(param, array, offsets[slot.index]).clone()
        state[place] = own
    return state


class Resume:
    """A state_dict that was loaded, in the form of pstrain_state. `keep` is the memory that it
    names."""

    def __init__(self, state_dict: "dict[str, typing.Any]", rank: int) -> None:
        self._rank = rank
        self._loaded: "dict[int, typing.Any]" = state_dict["state"]
        self._ours: "dict[str, typing.Any]" = state_dict.get("pstrain", {})
        self.keep: "list[torch.Tensor]" = []

    def make(self, name: str, groups: Groups, slots: Slots, has_codec: bool) -> _library.State:
        loaded, ours = self._loaded, self._ours
        steps = [int(s["step"]) for s in loaded.values() if "step" in s]
        state = _library.State(struct_size=ctypes.sizeof(_library.State),
                               step=int(ours.get("step", max(steps, default=1 if loaded else 0))))
        rule = bytes(ours.get("rule", ()))
        state.rule_bytes = len(rule)
        state.rule[:len(rule)] = rule
        if self._rank == 0:
            self._missed = self._missed_of(int(ours.get("made", state.step)), groups, slots)
            state.missed = self._missed
            for i, key in enumerate(_arguments.state_names(name, groups)):
                state.arrays[i] = self._kept(self._arena_of(key, groups, slots))
            if has_codec:
                state.weights = self._kept(_weights(slots))
        if "feedback" in ours:
            state.feedback = self._kept(ours["feedback"])
        return state

    def _missed_of(self, made: int, groups: Groups, slots: Slots) -> "ctypes.Array[ctypes.c_uint64]":
        """By parameter: the steps of the job that were none of its own."""
        missed = (ctypes.c_uint64 * len(slots))()
        for place, param in enumerate(_in_order(groups)):
            slot, own = slots.get(id(param)), self._loaded.get(place, {})
            if slot is None or not self._loaded:
                continue
            # SGD keeps no step: its first one is that without a buffer.
            own_step = int(own["step"]) if "step" in own else made if own.get("momentum_buffer") is not None else 0
            missed[slot.index] = max(0, made - own_step)
        return missed

    def _kept(self, array: torch.Tensor) -> int:
        self.keep.append(array)
        return array.data_ptr()

    def _arena_of(self, key: str, groups: Groups, slots: Slots) -> torch.Tensor:
        offsets, n = _offsets(slots)
        array = torch.zeros(n)
        for place, param in enumerate(_in_order(groups)):
            slot, own = slots.get(id(param)), self._loaded.get(place, {})
            if slot is None or own.get(key) is None:
                continue
            if tuple(own[key].shape) != tuple(param.shape):
                raise InputError(
                    f"rank {self._rank}: the state's {key} of parameter '{slot.name}' is "
                    f"{tuple(own[key].shape)}, the parameter {tuple(param.shape)}")
            place_of(param, array, offsets[slot.index]).copy_(own[key].detach())
        return array


def _weights(slots: Slots) -> torch.Tensor:
    offsets, n = _offsets(slots)
    weights = torch.zeros(n)
    for slot, at in zip(slots.values(), offsets):
        place_of(slot.param, weights, at).copy_(slot.param.detach())
    return weights


def _offsets(slots: Slots) -> "tuple[list[int], int]":
    """Where each parameter begins in an arena, as pstrain.h says, and the arena's length."""
    offsets, at = [], 0
    for slot in slots.values():
        offsets.append(at)
        at += -(-slot.param.numel() // 16) * 16
    return offsets, at


def _in_order(groups: Groups) -> "list[torch.Tensor]":
    """A state_dict's numbers of parameters are places in this list."""
    return [p for group in groups for p in group["params"]]
