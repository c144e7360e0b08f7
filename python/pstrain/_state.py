"""An Optimizer's state_dict: PyTorch's form, and that of the servers."""
from __future__ import annotations

import ctypes
import typing
import weakref

import torch

from . import _arguments, _library
from ._session import Session
from ._slots import Slot, place_of
from .errors import InputError

if typing.TYPE_CHECKING:
    from .optimizer import Optimizer

Groups = typing.List[typing.Dict[str, typing.Any]]  # an optimizer's param_groups
Slots = typing.Dict[int, Slot]  # by id of the parameter, in the table's order


def no_reset(rank: int) -> str:
    return (f"rank {rank}: optimizer.state was replaced or cleared, and the servers, which have the moments, do not begin "
            "them anew: give PyTorch's class (torch.optim.AdamW), whose state is here, or make a new job")


class OnServers(typing.DefaultDict[typing.Any, typing.Any]):
    """An Optimizer's state, where the servers have it: empty. It is no place to clear it once there are moments."""

    def __init__(self, optimizer: "Optimizer", rank: int) -> None:
        super().__init__(dict)
        self._optimizer, self._rank = weakref.ref(optimizer), rank

    def clear(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None and optimizer.has_moments:
            raise InputError(no_reset(self._rank))


class Saved(typing.NamedTuple):
    state: _library.State  # the step and the rule
    made: int  # steps that were not skipped
    arrays: "list[torch.Tensor]"  # rank 0's
    feedback: "torch.Tensor | None"  # what this rank's codec has kept back


def save(session: Session, n_params: int, skipped: int) -> Saved:
    n = session.arena_count()
    state = _library.State(struct_size=ctypes.sizeof(_library.State))
    arrays: "list[torch.Tensor]" = []
    feedback = _zeros(n) if session.has_feedback() else None
    if session.rank == 0:
        state.missed = (ctypes.c_uint64 * n_params)()
        arrays = [_zeros(n) for _ in range(session.state_arrays())]
        for i, array in enumerate(arrays):
            state.arrays[i] = array.data_ptr()
    if feedback is not None:
        state.feedback = feedback.data_ptr()
    session.save(state)
    return Saved(state, state.step - skipped, arrays, feedback)


def in_pytorchs_form(name: str, groups: Groups, slots: Slots, steps: "list[int]",
                     arrays: "list[torch.Tensor]") -> "dict[int, dict[str, typing.Any]]":
    """The key "state" of the optimizer called name. slots: of all optimizers. steps: that were made of each parameter;
    one that was never stepped has no state."""
    offsets, _ = _offsets(slots)
    state: "dict[int, dict[str, typing.Any]]" = {}
    for place, (group, param) in enumerate(_in_order(groups)):
        slot, names = slots.get(id(param)), _arguments.state_names(name, group)
        if slot is None or steps[slot.index] == 0 or not names:
            continue
        own: "dict[str, typing.Any]" = {} if name == "sgd" else {"step": _zeros(()) + steps[slot.index]}
        for key, array in zip(names, arrays):
            own[key] = place_of(param, array, offsets[slot.index]).clone()
        state[place] = own
    return state


def exact_weights(groups: Groups, slots: Slots) -> "dict[int, torch.Tensor]":
    """Of parameters of 16 bits, whose weights the servers have in float32."""
    found = [(place, slots.get(id(param))) for place, (_, param) in enumerate(_in_order(groups))]
    return {place: slot.host.clone() for place, slot in found if slot is not None and slot.param.dtype != torch.float32}


class Loaded:
    """A state_dict that an Optimizer has been given."""

    def __init__(self, state_dict: "dict[str, typing.Any]", rank: int) -> None:
        self.rank = rank
        # Of its own: the program may go on with the tensors that it has given.
        self._state = {place: {key: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
                               for key, value in own.items()} for place, own in state_dict["state"].items()}
        for group in state_dict.get("param_groups", ()):  # apex's and timm's LAMB count the steps there
            for place in group["params"] if "step" in group else ():
                if place in self._state:
                    self._state[place].setdefault("step", group["step"])
        self.ours: "dict[str, typing.Any]" = state_dict.get("pstrain", {})
        if rank == 0 and self.ours.get("rank", 0) != 0:
            raise InputError(f"rank 0: this state_dict is of rank {self.ours['rank']}, which has no moments: load rank 0's on all "
                             "ranks, and save on rank 0 alone (a trainer that knows of one process writes on each)")
        steps = [int(s["step"]) for s in self._state.values() if "step" in s]
        self.step = int(self.ours.get("step", max(steps, default=1 if self._state else 0)))
        self.made = int(self.ours.get("made", self.step))  # without those that were skipped

    def given(self) -> "dict[str, typing.Any]":
        """What a state_dict has of it: it is saved again before the first step."""
        return {"state": self._state, "pstrain": {"step": self.step, **self.ours}}

    def fill(self, optimizer: "Optimizer", slots: Slots, made: int, missed: typing.Any,
             arrays: "list[torch.Tensor]") -> None:
        """Writes the optimizer's parameters: the steps of the job that were none of their own, and their state."""
        offsets, _ = _offsets(slots)
        for place, (group, param) in enumerate(_in_order(optimizer.param_groups)):
            slot, own = slots.get(id(param)), self._state.get(place)
            if slot is None or own is None:
                continue
            names = _arguments.state_names(optimizer.name, group)
            # SGD and Lion keep no step: the first one is that without a buffer.
            own_step = int(own["step"]) if "step" in own else made if any(own.get(key) is not None for key in names) else 0
            missed[slot.index] = max(0, made - own_step)
            for key, array in zip(names, arrays):
                if own.get(key) is not None:
                    place_of(param, array, offsets[slot.index]).copy_(self._fitting(own[key], key, slot))

    def take_exact(self, optimizer: "Optimizer", slots: Slots) -> None:
        """Weights in float32, of those elements whose rounded ones the model has now."""
        exact = self.ours.get("weights", {})
        for place, (_, param) in enumerate(_in_order(optimizer.param_groups)):
            slot = slots.get(id(param))
            if slot is not None and place in exact:
                here, given = slot.sent.detach().cpu(), self._fitting(exact[place], "weights", slot).cpu()
                slot.host = torch.where(given.to(here.dtype) == here, given, here.to(given.dtype))

    def without(self, optimizer: "Optimizer", slots: Slots) -> "Loaded | None":
        """The part for parameters that the job does not have: they are frozen, and it may get them later."""
        later = {place for place, (_, param) in enumerate(_in_order(optimizer.param_groups)) if id(param) not in slots}
        state, weights = ({place: own for place, own in given.items() if place in later}
                          for given in (self._state, self.ours.get("weights", {})))
        return Loaded({"state": state, "pstrain": {"weights": weights}}, self.rank) if state or weights else None

    def add_to(self, out: "dict[str, typing.Any]") -> None:
        """Adds it to the state_dict of the other parameters: it is saved again."""
        out["state"] = {**self._state, **out["state"]}
        if self.ours["weights"]:
            out["pstrain"]["weights"] = {**self.ours["weights"], **out["pstrain"].get("weights", {})}

    def _fitting(self, values: torch.Tensor, key: str, slot: Slot) -> torch.Tensor:
        if tuple(values.shape) != tuple(slot.param.shape):
            raise InputError(f"rank {self.rank}: the state's {key} of parameter '{slot.name}' is "
                             f"{tuple(values.shape)}, the parameter {tuple(slot.param.shape)}")
        return values.detach()


def order(optimizers: "list[Optimizer]", slots: Slots) -> "list[tuple[int, int]]":
    """Of each parameter in the arenas: its optimizer's number, and its place in a state_dict of that one."""
    places = {id(param): (number, place) for number, optimizer in enumerate(optimizers)
              for place, (_, param) in enumerate(_in_order(optimizer.param_groups))}
    return [places[each] for each in slots]


def _kept_back(last: Loaded, optimizers: "list[Optimizer]", slots: Slots) -> "torch.Tensor | None":
    """By the codec, in today's order of parameters: those that were unfrozen came last in the job that has saved it."""
    given, before = last.ours.get("feedback"), last.ours.get("order")
    if given is None or before is None:  # an older state_dict: in the order that the job has
        return given
    if any(number >= len(optimizers) for number, _ in before):
        raise InputError(f"rank {last.rank}: the codec has kept back gradients of more Optimizers than this job has "
                         f"({len(optimizers)}): load the state_dict into the same ones")
    out, places, at = _zeros(_offsets(slots)[1]), dict(zip(slots, _offsets(slots)[0])), 0
    for number, place in before:
        param = _in_order(optimizers[number].param_groups)[place][1]
        if id(param) in places:
            out[places[id(param)]:][:param.numel()] = given[at:at + param.numel()]
        at += -(-param.numel() // 16) * 16
    return out


class Resume(typing.NamedTuple):
    state: _library.State
    keep: "list[torch.Tensor]"  # the memory that it names


def resume(rank: int, optimizers: "list[Optimizer]", slots: Slots, has_codec: bool,
           saved: "Saved | None") -> "Resume | None":
    """Where the job goes on: as the Optimizers were told, and as it was saved when it had fewer parameters. None: it
    begins."""
    given = [o.loaded for o in optimizers if o.loaded is not None]
    if not given and saved is None:
        return None
    out = Resume(_library.State(struct_size=ctypes.sizeof(_library.State)), [])
    if saved is not None:
        out.state.step, rule, feedback = saved.state.step, saved.state.rule[:saved.state.rule_bytes], saved.feedback
        made = saved.made
    else:
        last = max(given, key=lambda loaded: loaded.step)  # all were saved at one point
        out.state.step, rule, feedback = last.step, list(last.ours.get("rule", ())), _kept_back(last, optimizers, slots)
        made = last.made
    out.state.rule_bytes = len(rule)
    out.state.rule[:len(rule)] = rule
    if rank == 0:
        _give_rank_0s(out, optimizers, slots, made, saved)
        if has_codec:
            out.keep.append(_weights(slots))
            out.state.weights = out.keep[-1].data_ptr()
    if feedback is not None:
        out.keep.append(_longer(feedback, slots))
        out.state.feedback = out.keep[-1].data_ptr()
    return out


def _longer(array: torch.Tensor, slots: Slots) -> torch.Tensor:
    """An arena's array of a table that had the first of these parameters."""
    out = _zeros(_offsets(slots)[1])
    out[:array.numel()] = array
    return out


def _give_rank_0s(out: Resume, optimizers: "list[Optimizer]", slots: Slots, made: int, saved: "Saved | None") -> None:
    n_arrays = max(len(_arguments.state_names(o.name, group)) for o in optimizers for group in o.param_groups)
    missed = (ctypes.c_uint64 * len(slots))(*[made] * len(slots))
    arrays: "list[torch.Tensor]" = []
    if saved is not None:
        arrays = [_longer(array, slots) for array in saved.arrays]
        n_before = sum(hasattr(slot, "weights") for slot in slots.values())
        missed[:n_before] = saved.state.missed[:n_before]
    arrays += [_zeros(_offsets(slots)[1]) for _ in range(n_arrays - len(arrays))]
    for optimizer in optimizers:
        if optimizer.pending is not None:
            optimizer.pending.fill(optimizer, slots, made, missed, arrays)
    out.state.missed = missed
    for i, array in enumerate(arrays):
        out.state.arrays[i] = array.data_ptr()
    out.keep.extend(arrays)


def _weights(slots: Slots) -> torch.Tensor:
    offsets, n = _offsets(slots)
    weights = _zeros(n)
    for slot, at in zip(slots.values(), offsets):
        place_of(slot.param, weights, at).copy_(slot.exact())
    return weights


def _zeros(shape: "int | tuple[()]") -> torch.Tensor:
    """Memory for the library, whatever type and device the program has made its default."""
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def _offsets(slots: Slots) -> "tuple[list[int], int]":
    """Where each parameter begins in an arena, as pstrain.h says, and the arena's length."""
    offsets, at = [], 0
    for slot in slots.values():
        offsets.append(at)
        at += -(-slot.sent.numel() // 16) * 16
    return offsets, at


def _in_order(groups: Groups) -> "list[tuple[dict[str, typing.Any], torch.Tensor]]":
    """(group, parameter): a state_dict's numbers of parameters are places in this list."""
    return [(group, p) for group in groups for p in group["params"]]
