"""An optimizer whose step is made by the servers."""
from __future__ import annotations

import contextlib
import ctypes
import typing
import weakref

import torch

from . import _arguments, _checks, _library, _staging, _state, job as jobs
from ._buffers import Buffers
from ._hooks import Hooks, as_pytorchs_step
from ._slots import (Slot, arena, check_fresh, check_pushed, check_sent, check_weights,
                     has_form_of, place_of, refuse_weights, write)
from .errors import InputError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_increment_version = getattr(getattr(torch.autograd, "graph", None), "increment_version", None)


def _mark_changed(params: "list[torch.Tensor]") -> None:
    """A backward pass through their weights from before raises from now on (PyTorch 2)."""
    if _increment_version is None:
        return
    try:
        _increment_version(params)
    except (TypeError, RuntimeError):  # older versions take one at a time
        for param in params:
            _increment_version(param)


class Optimizer(torch.optim.Optimizer):
    """SGD, Adam, AdamW, RMSprop, Adagrad or Lion on the servers, with PyTorch's formulas.

    params: `model.named_parameters()`, parameters, or groups of them as for torch.optim. They are
    float32 (or bfloat16 or float16, with float32 weights on the servers), dense, contiguous or
    channels_last, all on the CPU or all on one GPU; each rank has the same. Those that do not
    require a gradient are left alone.
    name: "sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb" or "lion".
    codec: none, fp16, bf16, int8, int4, onebit or topk: how gradients travel (exchange.codec).
    clip_norm: the norm to which the mean gradient is clipped, over all parameters.
    loss_scale: None; True: dynamic, as torch.amp.GradScaler's; or the first scale. Multiply the
    loss with `scale(loss)`; a step that overflows is skipped on all ranks.
    push: "backward": a gradient leaves as soon as it is there; "step": in step(), so that it may
    be changed before (torch.nn.utils.clip_grad_norm_ of the rank's own gradient).
    total_steps: how many steps the whole job makes; 0: not known. With it the codecs int4, onebit and topk
    send in their last steps what they have kept back.
    settings: further keys of docs/configuration.md.
    gradient_as_arena_view: from its first push on, `.grad` of a float32 parameter on the CPU is the
    memory from which it is sent. Gradients then exist once, and what is computed in this memory is
    not copied. zero_grad(set_to_none=False) waits for the step; with a codec `.grad` is divided by
    the number of ranks.
    overlap_forward: step() returns while the new weights are on the way, and each module's forward
    pass waits for its own. Weights may then not be read in another way (copy.deepcopy, an average
    of the weights, printing) before synchronize(): they would be those before the step.
    broadcast_buffers: after each step rank 0's buffers (batch norm's means) become everybody's, as in
    DistributedDataParallel.
    options: lr, momentum, dampening, nesterov, betas, alpha, centered, eps, lr_decay,
    initial_accumulator_value, weight_decay, maximize: those that PyTorch's optimizer of that name
    has, with its defaults (lion: its paper's). foreach, fused and capturable change no number.

    The job is opened by the first forward pass with gradients: rank 0's weights become
    everybody's, and a model that differs between ranks raises PeerError on all of them, with the
    parameter's name. When step() returns, the weights are those after the step.

    Each rank's gradient counts 1 / size. A parameter that no rank has a gradient for is not stepped,
    as in PyTorch; where some rank has one, the others count as zero. For
    gradient accumulation: `with optimizer.no_sync():` around all backward passes but the last.
    """

    # GradScaler then calls step, which refuses it with a sentence.
    _step_supports_amp_scaling = True

    def __init__(self, params: typing.Any, name: str = "adamw", *, codec: "str | None" = None,
                 clip_norm: float = 0.0, loss_scale: "bool | float | None" = None,
                 push: str = "backward", gradient_as_arena_view: bool = False,
                 total_steps: int = 0, overlap_forward: bool = False,
                 broadcast_buffers: bool = True, settings: jobs.Settings = None,
                 **options: typing.Any) -> None:
        self._job = job = jobs.current()
        self._name = name
        _arguments.check_values(push, clip_norm, total_steps, job.rank)
        defaults = _arguments.defaults(name, options, job.rank)
        groups, self._names = _arguments.groups(params, job.rank)
        super().__init__(groups, defaults)
        _arguments.check_groups(name, self.param_groups, job.rank)
        self._total_steps = total_steps
        self._settings = (_arguments.settings(name, codec, clip_norm, loss_scale)
                          + _arguments.shared(name, self.param_groups, job.rank) + jobs.as_words(settings))
        self._scales = loss_scale not in (None, False)
        self._push_early = push == "backward"
        self._views = gradient_as_arena_view
        self._overlaps = overlap_forward
        self._buffers = Buffers(job) if broadcast_buffers else None
        self._slots: "dict[int, Slot]" = {}  # by id of the parameter, in the table's order
        self._frozen: "list[tuple[str, torch.nn.Parameter]]" = []
        self._list_parameters()
        self._device = self._find_device()
        self._staging: "_staging.Staging | None" = None
        job.claim("a pstrain.Optimizer")
        self._opened = False
        self._begun = False  # a step has begun: with its first gradient, or in step()
        self._forward = False  # there was a forward pass since the last step
        self._early: "dict[Slot, None]" = {}  # in order: they are used without their module: waited for first of all
        self._sync = True  # False within no_sync
        self._numbers: "list[tuple[float, ...]]" = []  # of the groups, as the servers have them
        self._resume: "_state.Resume | None" = None
        self._steps = 0  # made so far
        self._mean = False  # the servers multiply by 1 / size
        self.share = 1.0 / job.size  #: by which gradients are multiplied; n_r / sum of all n
        # its own parameters, and whether it or a module within it has any
        self._by_module: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[list[Slot], bool]]" = \
            weakref.WeakKeyDictionary()
        self._hooks = Hooks(self, self._slots.values())
        job.at_end.append(self._detach)
        job.in_step = lambda: self._begun

    # ---- making the table ----

    def _list_parameters(self) -> None:
        rank, names = self._job.rank, self._names
        for place, group in enumerate(self.param_groups):
            for param in group["params"]:
                name = names[id(param)]
                if not param.requires_grad:
                    self._frozen.append((name, param))
                    continue
                self._check_parameter(name, param)
                if param.numel() == 0:
                    raise InputError(f"rank {rank}: parameter '{name}' has no elements")
                self._slots[id(param)] = Slot(name, param, place)
        if not self._slots:
            raise InputError(f"rank {rank}: none of the parameters requires a gradient")
        for index, slot in enumerate(self._slots.values()):
            slot.index = index

    def _check_parameter(self, name: str, param: torch.Tensor) -> None:
        _checks.check(param, f"parameter '{name}'", self._job.rank, DTYPES, any_format=True, gpu=True)

    def _find_device(self) -> typing.Any:
        """The GPU where the parameters are; None: they are on the CPU."""
        slots = list(self._slots.values())
        for slot in slots:
            if slot.param.device != slots[0].param.device:
                raise InputError(f"rank {self._job.rank}: parameter '{slot.name}' is on {slot.param.device}, "
                                 f"'{slots[0].name}' on {slots[0].param.device}: a model has to be on one")
        device = slots[0].param.device
        return None if device.type == "cpu" else _staging.Cuda(device)

    def _tensors(self) -> "typing.Any":
        n = len(self._slots)
        tensors = (_library.Tensor * n)()
        for tensor, slot in zip(tensors, self._slots.values()):
            # Since it was checked the program may have changed it: model.to(memory_format=...).
            self._check_parameter(slot.name, slot.param)
            shape = tuple(slot.param.shape)
            if _checks.channels_last(slot.param):  # as in memory: the ranks have to agree
                shape = (shape[0], *shape[2:], shape[1])
            dims = (ctypes.c_int64 * len(shape))(*shape)
            tensor.name, tensor.shape, tensor.n_dims = slot.name.encode(), dims, len(shape)
            tensor.group = slot.group
        return tensors

    def _groups_now(self) -> "list[tuple[float, ...]]":
        _arguments.check_groups(self._name, self.param_groups, self._job.rank)
        return [_arguments.numbers(group) for group in self.param_groups]

    def start(self) -> None:
        """Opens the job; the first forward pass does this otherwise. Collective: every rank calls
        it. Rank 0's weights become everybody's. PeerError, on every rank, when the models
        differ."""
        if self._opened:
            return
        session, tensors = self._job.session, self._tensors()
        self._numbers = self._groups_now()
        groups, words = _arguments.as_c(self._numbers), _library.texts(self._settings)
        table = _library.Table(
            struct_size=ctypes.sizeof(_library.Table), tensors=tensors, n_tensors=len(tensors),
            tensor_size=ctypes.sizeof(_library.Tensor), groups=groups, n_groups=len(groups),
            group_size=ctypes.sizeof(_library.Group), settings=words, n_settings=len(self._settings),
            total_steps=self._total_steps)
        self._mean = session.servers > 0 and not self._has_codec()
        table.mean = int(self._mean)
        resume = self._resume
        if resume is not None:
            state = resume.make(self._name, self.param_groups, self._slots, self._has_codec())
            self._steps = state.step
            table.resume = ctypes.pointer(state)
        session.open(table)
        self._place()
        session.start()
        self._opened = True
        for slot in self._slots.values():
            self._take(slot)
        session.mark(0, len(self._slots))
        self._resume = None  # its memory was needed until now

    def _place(self) -> None:
        """Moves the parameters into the arena."""
        session = self._job.session
        n = session.arena_count()
        params, grads = (arena(session, at, n) for at in (session.params(), session.grads()))
        for slot in self._slots.values():
            at = session.tensor_offset(slot.index)
            slot.weights = place_of(slot.param, params, at)
            slot.grads = place_of(slot.param, grads, at).data  # with a version of its own
            slot.weights.copy_(slot.param.detach())
            if slot.param.dtype == torch.float32 and self._device is None:
                slot.param.data = slot.weights
            slot.address = slot.param.data_ptr()
        if self._device is not None:
            self._views = False
            self._staging = _staging.Staging(self._device, session.push, [params, grads])

    def _take(self, slot: Slot) -> None:
        """Its weights have arrived."""
        slot.fresh = True
        if self._views:
            check_sent(slot, self._job.rank)
        if self._staging is not None:
            self._staging.take(slot)
        elif slot.param.dtype != torch.float32:
            with torch.no_grad():
                slot.param.copy_(slot.weights)
        slot.version = slot.param._version

    # ---- what hooks call ----

    def _detach(self) -> None:
        """At the end of the job: weights move into memory of their own."""
        self._hooks.remove()
        if not self._opened:
            return
        for slot in self._slots.values():
            if slot.param.data_ptr() == slot.weights.data_ptr():
                slot.param.data = slot.weights.clone()
            elif not slot.fresh:
                self._take(slot)
        if self._staging is not None:
            self._staging.end()
        for slot in self._slots.values():
            del slot.weights, slot.grads
        self._opened = False

    def before_forward(self, module: torch.nn.Module) -> None:
        """Its weights are used from now on; called by a hook."""
        known = self._by_module.get(module)
        if known is None:
            known = self._by_module[module] = self._find_slots(module)
        slots, any_within = known
        if not any_within:
            return
        if torch.is_grad_enabled():
            self.start()
            self._forward = True
        for slot in slots:
            slot.seen = True
        for slot in (*self._early, *slots):
            if not slot.fresh:
                self._wait(slot)

    def _find_slots(self, module: torch.nn.Module) -> "tuple[list[Slot], bool]":
        # What torch.compile gives does not call the hooks of the modules within it.
        compiled = hasattr(module, "_orig_mod")
        params = module.parameters() if compiled else module._parameters.values()
        own = [self._slots[id(p)] for p in params if p is not None and id(p) in self._slots]
        any_within = any(id(p) in self._slots for p in module.parameters())
        if any_within and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise InputError(
                f"rank {self._job.rank}: the model of this pstrain.Optimizer is in DistributedDataParallel, "
                "which sums the gradients, too: train the model without it, or keep it, with "
                "pstrain.comm_hook and an optimizer of PyTorch's")
        if any_within and self._overlaps:
            self._hooks.add_to_reading(module)
        if any_within and self._buffers is not None:
            self._buffers.add(module)
        return own, any_within

    def _begin(self) -> None:
        """The next step, where none has begun."""
        if self._begun:
            return
        self.start()
        self._check_weights()
        now = self._groups_now()
        if now != self._numbers:
            self._job.session.set_groups(_arguments.as_c(now), len(now))
            self._numbers = now
        self._job.session.begin()
        self._begun = True

    def _check_weights(self) -> None:
        """InputError names a parameter that the program has written itself."""
        session, slots = self._job.session, list(self._slots.values())
        for slot in slots:
            check_weights(slot, self._job.rank)
        here = [(0, len(slots))] if all(s.fresh for s in slots) else [(s.index, 1) for s in slots if s.fresh]
        for first, n in here:
            index = session.changed(first, n)
            if index >= 0:
                refuse_weights(slots[index], self._job.rank)

    def _wait(self, slot: Slot) -> None:
        self._job.session.wait(slot.index)
        self._take(slot)
        self._job.session.mark(slot.index)

    def on_gradient(self, slot: Slot) -> None:
        """Its gradient of this backward pass is complete; called by a hook."""
        self._look(slot)
        if not self._sync or not self._push_early:
            return
        if slot.pushed is not None:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' got a gradient twice in one step: "
                "put `with optimizer.no_sync():` around all backward passes but the last")
        if not self._fill(slot):
            self._job.session.push(slot.index)

    def _look(self, slot: Slot) -> None:
        """The step begins with the first gradient. Learns which parameters are used without a call of their module."""
        if not self._opened:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' is used, but no module that "
                "owns it was called: call optimizer.start() before the first forward pass "
                "(a module's compile() hides its calls: use torch.compile(model))")
        if slot.seen and not self._forward:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' got a gradient without a forward "
                "pass since the last step(): its graph is of older weights")
        check_fresh(slot, self._job.rank)
        if not slot.seen:
            self._early[slot] = None
        if self._sync and self._push_early:
            self._begin()

    def _fill(self, slot: Slot) -> bool:
        """Its gradient, which is there, goes into the arena. Returns whether it has been pushed, or will be by the
        staging."""
        grad = slot.param.grad
        assert grad is not None
        if not slot.fresh:
            self._wait(slot)  # its gradient arena is still being sent
        factor = self._factor(slot)
        if self._views and grad is slot.grads and factor == 1.0:  # it is where it is sent from
            slot.pushed, slot.pushed_version = grad, grad._version
            return False
        fault = "" if grad.layout == torch.strided else _checks.why_not(grad, DTYPES)
        if fault:
            raise InputError(f"rank {self._job.rank}: the gradient of parameter '{slot.name}' "
                             f"{fault}")
        slot.pushed_version = grad._version
        grad = grad.detach()
        pushed = True
        if self._staging is not None:
            self._staging.send(slot, grad, factor)
        elif has_form_of(grad, slot.grads):
            self._job.session.push_copy(slot.index, grad.data_ptr(), factor)
        else:
            write(slot.grads, grad, factor)
            pushed = False
        if self._views and slot.param.dtype == torch.float32:
            slot.param.grad = slot.grads
            slot.pushed_version = slot.grads._version
        slot.pushed = slot.param.grad
        return pushed

    def _factor(self, slot: Slot) -> float:
        """By which this rank multiplies a gradient before it pushes it."""
        sign = -1.0 if self.param_groups[slot.group].get("maximize") else 1.0
        if not self._mean:
            return sign * self.share
        return sign if self.share == 1.0 / self._job.size else sign * self.share * self._job.size

    def _push_rest(self) -> None:
        """What the backward pass has not pushed; neighbours together."""
        left = [s for s in self._slots.values() if s.pushed is None]
        lacking = [s for s in left if s.param.grad is None]
        filled = [s for s in left if s.param.grad is not None and not self._fill(s)]
        if self._staging is not None:
            self._staging.finish()
            filled = []
        for slot in lacking:
            if not slot.fresh:
                self._wait(slot)
            if self._staging is not None:
                self._staging.arrived(slot.index)  # the push lets the servers write its weights
        for slots, push in ((filled, self._job.session.push), (lacking, self._job.session.push_none)):
            first = 0
            for at in range(1, len(slots) + 1):
                if at == len(slots) or slots[at].index != slots[at - 1].index + 1:
                    push(slots[first].index, at - first)
                    first = at

    # ---- the step ----

    @as_pytorchs_step
    def step(self, closure: "typing.Callable[[], typing.Any] | None" = None, *,
             grad_scaler: typing.Any = None) -> typing.Any:
        """Hands the step to the servers and returns when the new weights are here, or, with
        overlap_forward, at once. Returns what closure returns. InputError names a parameter whose gradient was changed after it was
        pushed, or whose weights were changed by somebody else."""
        self._job.session.check_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_scaler(grad_scaler)
        self._begin()
        self._check()
        self._push_rest()
        self._job.session.finish()
        self._begun = self._forward = False
        self._steps += 1
        if self._buffers is not None:
            self._buffers.share()  # while the weights are on the way
        _mark_changed([slot.param for slot in self._slots.values()])
        for slot in self._slots.values():
            slot.pushed, slot.fresh, slot.version = None, False, slot.param._version
        if not self._overlaps:
            self.synchronize()
        return loss

    def _refuse_scaler(self, grad_scaler: typing.Any) -> None:
        given = (grad_scaler, getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        if any(g is not None for g in given):
            raise InputError(
                f"rank {self._job.rank}: GradScaler would skip steps on one rank alone: use "
                "pstrain.Optimizer(..., loss_scale=True) and optimizer.scale(loss).backward()")

    def _check(self) -> None:
        """What the program must not have done between the first push and step()."""
        rank = self._job.rank
        if self._groups_now() != self._numbers:
            raise InputError(
                f"rank {rank}: a parameter group's numbers were changed between backward() and "
                "step(): change them (scheduler.step()) after step()")
        for slot in self._slots.values():
            check_pushed(slot, rank)
        for name, param in self._frozen:
            if param.requires_grad and param.grad is not None:
                raise InputError(f"rank {rank}: parameter '{name}' was frozen when the Optimizer was "
                                 "made, and has a gradient now: unfreeze it before")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim's."""
        if self._views and not set_to_none:
            self.synchronize()  # until then gradients are being sent
        super().zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Blocks until the weights are those after all steps. With overlap_forward it must be called
        before weights are read otherwise than by a module's forward pass or, with PyTorch 2, its
        state_dict(): averaging, copying, printing."""
        if not self._opened or all(slot.fresh for slot in self._slots.values()):
            return
        if self._begun:
            self._job.session.wait(0, len(self._slots))
        else:
            self._job.session.drain()
        for slot in self._slots.values():
            if not slot.fresh:
                self._take(slot)
        self._job.session.mark(0, len(self._slots))

    @contextlib.contextmanager
    def no_sync(self) -> "typing.Iterator[None]":
        """Within it gradients add up on this rank, and none is pushed."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    # ---- loss scaling ----

    @property
    def loss_scale(self) -> float:
        """The scale for the loss of the next backward pass; 1 without loss_scale=. Blocks until
        the steps before it are made."""
        if not self._scales:
            return 1.0
        self.start()
        return self._job.session.loss_scale()[0]

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """loss times loss_scale, to call backward on."""
        return loss * self.loss_scale if self._scales else loss

    @property
    def skipped_steps(self) -> int:
        """How many steps overflowed and were left out. Blocks as loss_scale does."""
        return self._job.session.loss_scale()[1] if self._scales and self._opened else 0

    # ---- saving and loading ----

    @property
    def steps(self) -> int:
        """How many steps the job has made, skipped ones included."""
        return self._steps

    @property
    def opened(self) -> bool:
        """Whether the servers have begun."""
        return self._opened

    def state_dict(self) -> "dict[str, typing.Any]":
        """As torch.optim's, which can load it, and with the key "pstrain" for what the servers
        know besides. Collective: every rank calls it after the same step; rank 0's has the
        optimizer's state. Also writes the exact weights into the model where a codec is used."""
        out = super().state_dict()
        out["pstrain"] = {"step": self._steps}
        if not self._opened:
            return out
        self._refuse_begun("state_dict()")
        session = self._job.session
        session.sync()
        for slot in self._slots.values():
            self._take(slot)
        session.mark(0, len(self._slots))
        state, arrays, feedback = _state.save(session, len(self._slots))
        made = state.step - self.skipped_steps
        out["pstrain"] = {"step": state.step, "made": made, "rule": list(state.rule[:state.rule_bytes])}
        if feedback is not None:
            out["pstrain"]["feedback"] = feedback
        if self._job.rank == 0:
            out["state"] = _state.in_pytorchs_form(self._name, self.param_groups, self._slots,
                                                   [made - state.missed[s.index] for s in self._slots.values()],
                                                   arrays)
        return out

    def _refuse_begun(self, what: str) -> None:
        if self._begun:
            raise InputError(f"rank {self._job.rank}: {what} between backward() and step(): call it after step()")

    def load_state_dict(self, state_dict: "dict[str, typing.Any]") -> None:
        """Takes state_dict()'s, or torch.optim's of the same optimizer. Must be called on every
        rank before the first step; rank 0's state counts. Load the model's weights, too."""
        if self._opened:
            raise InputError(f"rank {self._job.rank}: load_state_dict comes before the first step: "
                             "make a new job to go on from another state")
        _arguments.check_groups(self._name, state_dict["param_groups"], self._job.rank)
        resume = _state.Resume(state_dict, self._job.rank)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._resume = resume

    def _has_codec(self) -> bool:
        words = self._job.settings + self._settings
        codecs = [w.split("=", 1)[1] for w in words if w.startswith("exchange.codec=")]
        return bool(codecs) and codecs[-1] != "none"

    def add_param_group(self, param_group: "dict[str, typing.Any]") -> None:
        if getattr(self, "_slots", None):
            raise InputError(f"rank {self._job.rank}: parameter groups cannot be added later: give "
                             "them all when the Optimizer is made")
        super().add_param_group(param_group)
