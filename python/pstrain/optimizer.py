"""An optimizer whose step is made by the servers."""
from __future__ import annotations

import contextlib
import ctypes
import typing
import warnings
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from . import _arguments, _checks, _library, _staging, job as jobs
from ._session import Session
from .errors import InputError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# True while torch.compile reads the program.
_is_compiling: "typing.Callable[[], bool]" = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False)
_increment_version = getattr(getattr(torch.autograd, "graph", None), "increment_version", None)


class _Slot:
    """One trained parameter: its place in the arenas, and what this step has done with it."""

    __slots__ = ("index", "name", "param", "weights", "grads", "address", "version", "fresh",
                 "pushed", "pushed_version", "seen", "early", "__weakref__")

    def __init__(self, name: str, param: "torch.nn.Parameter") -> None:
        self.index = -1
        self.name = name
        self.param = param
        self.weights: torch.Tensor  # views of the arenas, of the parameter's shape
        self.grads: torch.Tensor
        self.address = 0  # of the parameter's own memory
        self.version = 0  # the parameter's, when only this optimizer has written it
        self.fresh = True  # its weights are those of this step
        self.pushed: "torch.Tensor | None" = None  # the gradient that was sent
        self.pushed_version = 0
        self.seen = False  # a module that owns it has been called since the start
        self.early = False  # it is used without its module: wait for it first of all


class Optimizer(torch.optim.Optimizer):
    """SGD, Adam or AdamW on the servers, with PyTorch's formulas.

    params: `model.named_parameters()`, parameters, or groups of them as for torch.optim. They are
    float32 (or bfloat16 or float16, with float32 weights on the servers), dense, contiguous or
    channels_last, all on the CPU or all on one GPU; each rank has the same. Those that do not require a gradient are left alone.
    name: "sgd", "adam" or "adamw".
    codec: none, fp16, bf16, int8, onebit or topk: how gradients travel (exchange.codec).
    clip_norm: the norm to which the mean gradient is clipped, over all parameters.
    loss_scale: None; True: dynamic, as torch.amp.GradScaler's; or the first scale. Multiply the
    loss with `scale(loss)`; a step that overflows is skipped on all ranks.
    push: "backward": a gradient leaves as soon as it is there; "step": in step(), so that it may
    be changed before (torch.nn.utils.clip_grad_norm_ of the rank's own gradient).
    settings: further keys of docs/configuration.md.
    gradient_as_arena_view: from its first push on, `.grad` of a float32 parameter on the CPU is the
    memory from which it is sent. Gradients then exist once, and what is computed in this memory is
    not copied. zero_grad(set_to_none=False) waits for the step; with a codec `.grad` is divided by
    the number of ranks.
    options: lr, momentum, dampening, nesterov, betas, eps, weight_decay, with PyTorch's defaults.

    The job is opened by the first forward pass with gradients: rank 0's weights become
    everybody's, and a model that differs between ranks raises PeerError on all of them, with the
    parameter's name. After step() weights arrive while the program goes on; the forward pass of
    each module waits for its own. Before weights are read in another way: synchronize().

    Each rank's gradient counts 1 / size. A parameter without a gradient counts as zero. For
    gradient accumulation: `with optimizer.no_sync():` around all backward passes but the last.
    """

    # GradScaler then calls step, which refuses it with a sentence.
    _step_supports_amp_scaling = True

    def __init__(self, params: typing.Any, name: str = "adamw", *, codec: "str | None" = None,
                 clip_norm: float = 0.0, loss_scale: "bool | float | None" = None,
                 push: str = "backward", gradient_as_arena_view: bool = False,
                 settings: jobs.Settings = None,
                 **options: typing.Any) -> None:
        self._job = job = jobs.current()
        self._name = name
        defaults = _arguments.defaults(name, options, job.rank)
        if push not in ("backward", "step"):
            raise InputError(f"rank {job.rank}: push={push!r} is not 'backward' or 'step'")
        groups, self._names = _arguments.groups(params, job.rank)
        super().__init__(groups, defaults)
        if clip_norm < 0:
            raise InputError(f"rank {job.rank}: clip_norm={clip_norm} is below 0")
        self._settings = _arguments.settings(name, codec, clip_norm, loss_scale) + jobs.as_words(settings)
        self._scales = loss_scale not in (None, False)
        self._push_early = push == "backward"
        self._views = gradient_as_arena_view
        self._slots: "dict[int, _Slot]" = {}  # by id of the parameter, in the table's order
        self._frozen: "list[tuple[str, torch.nn.Parameter]]" = []
        self._list_parameters()
        self._device = self._find_device()
        self._staging: "_staging.Staging | None" = None
        job.claim("a pstrain.Optimizer")
        self._opened = False
        self._begun = False  # a step has begun
        self._sync = True  # False within no_sync
        self._numbers: "list[tuple[float, ...]]" = []  # of the groups, as the servers have them
        self._resume: "dict[str, typing.Any] | None" = None
        self._steps = 0  # made so far
        self._mean = False  # the servers multiply by 1 / size
        self.share = 1.0 / job.size  #: by which gradients are multiplied; n_r / sum of all n
        # its own parameters, and whether it or a module within it has any
        self._by_module: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[list[_Slot], bool]]" = \
            weakref.WeakKeyDictionary()
        self._hooks: "list[typing.Any]" = []
        self._keep: "list[typing.Any]" = []  # what hooks need to stay alive
        self._add_hooks()
        job.at_end.append(self._detach)
        job.in_step = lambda: self._begun

    # ---- making the table ----

    def _list_parameters(self) -> None:
        rank, names = self._job.rank, self._names
        for group in self.param_groups:
            for param in group["params"]:
                name = names[id(param)]
                if not param.requires_grad:
                    self._frozen.append((name, param))
                    continue
                self._check_parameter(name, param)
                if param.numel() == 0:
                    raise InputError(f"rank {rank}: parameter '{name}' has no elements")
                self._slots[id(param)] = _Slot(name, param)
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
        group_of = {id(p): g for g, group in enumerate(self.param_groups) for p in group["params"]}
        for tensor, slot in zip(tensors, self._slots.values()):
            # Since it was checked the program may have changed it: model.to(memory_format=...).
            self._check_parameter(slot.name, slot.param)
            shape = tuple(slot.param.shape)
            if _checks.channels_last(slot.param):  # as in memory: the ranks have to agree
                shape = (shape[0], *shape[2:], shape[1])
            dims = (ctypes.c_int64 * len(shape))(*shape)
            tensor.name, tensor.shape, tensor.n_dims = slot.name.encode(), dims, len(shape)
            tensor.group = group_of[id(slot.param)]
        return tensors

    def _groups_now(self) -> "list[tuple[float, ...]]":
        return [_arguments.numbers(group) for group in self.param_groups]

    @staticmethod
    def _as_c(numbers: "list[tuple[float, ...]]") -> typing.Any:
        groups = (_library.Group * len(numbers))()
        for group, values in zip(groups, numbers):
            (group.lr, group.momentum, group.dampening, group.beta1, group.beta2, group.eps,
             group.weight_decay) = values[:7]
            group.nesterov = int(values[7])
        return groups

    def start(self) -> None:
        """Opens the job; the first forward pass does this otherwise. Collective: every rank calls
        it. Rank 0's weights become everybody's. PeerError, on every rank, when the models
        differ."""
        if self._opened:
            return
        session, tensors = self._job.session, self._tensors()
        self._numbers = self._groups_now()
        groups, words = self._as_c(self._numbers), _library.texts(self._settings)
        table = _library.Table(
            struct_size=ctypes.sizeof(_library.Table), tensors=tensors, n_tensors=len(tensors),
            tensor_size=ctypes.sizeof(_library.Tensor), groups=groups, n_groups=len(groups),
            group_size=ctypes.sizeof(_library.Group), settings=words, n_settings=len(self._settings))
        self._mean = session.servers > 0 and not self._has_codec()
        table.mean = int(self._mean)
        resume, arrays = self._resume_state()
        if resume is not None:
            table.resume = ctypes.pointer(resume)
        session.open(table)
        self._place()
        session.start()
        self._opened = True
        for slot in self._slots.values():
            self._take(slot)
        del arrays

    def _place(self) -> None:
        """Moves the parameters into the arena."""
        session = self._job.session
        n = session.arena_count()
        params, grads = (_arena(session, at, n) for at in (session.params(), session.grads()))
        for slot in self._slots.values():
            at = session.tensor_offset(slot.index)
            slot.weights = _place_of(slot.param, params, at)
            slot.grads = _place_of(slot.param, grads, at).data  # with a version of its own
            slot.weights.copy_(slot.param.detach())
            if slot.param.dtype == torch.float32 and self._device is None:
                slot.param.data = slot.weights
            slot.address = slot.param.data_ptr()
        if self._device is not None:
            self._views = False
            self._staging = _staging.Staging(self._device, session.push, [params, grads])

    def _take(self, slot: _Slot) -> None:
        """Its weights have arrived."""
        slot.fresh = True
        if self._views:
            self._check_sent(slot)
        if self._staging is not None:
            self._staging.take(slot)
        elif slot.param.dtype != torch.float32:
            with torch.no_grad():
                slot.param.copy_(slot.weights)
        slot.version = slot.param._version

    # ---- hooks ----

    def _add_hooks(self) -> None:
        this = weakref.ref(self)

        def before_forward(module: torch.nn.Module, _: typing.Any) -> None:
            if _is_compiling():
                return  # the compiled module itself is called, and waits for all within it
            optimizer = this()
            if optimizer is not None:
                optimizer._before_forward(module)

        # A compiled module calls it once more, for itself: that is intended.
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks")
        self._hooks.append(register_module_forward_pre_hook(before_forward))
        for slot in self._slots.values():
            self._add_grad_hook(slot, this)

    def _add_grad_hook(self, slot: _Slot, this: "weakref.ref[Optimizer]") -> None:
        own = weakref.ref(slot)

        def ready(*_: typing.Any) -> None:
            optimizer, mine = this(), own()
            if optimizer is not None and mine is not None:
                optimizer._on_gradient(mine)

        add = getattr(slot.param, "register_post_accumulate_grad_hook", None)
        if add is not None:
            self._hooks.append(add(ready))
            return
        # PyTorch 1: the node that accumulates the gradient, which lives while it is kept.
        node = slot.param.expand_as(slot.param).grad_fn.next_functions[0][0]
        self._keep.append(node)
        self._hooks.append(node.register_hook(ready))

    def _detach(self) -> None:
        """At the end of the job: weights move into memory of their own."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._keep.clear()
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

    def _before_forward(self, module: torch.nn.Module) -> None:
        known = self._by_module.get(module)
        if known is None:
            known = self._by_module[module] = self._find_slots(module)
        slots, any_within = known
        if not any_within:
            return
        if torch.is_grad_enabled():
            self._begin()
        elif self._opened and not self._begun:
            self.synchronize()  # evaluation: the next step's numbers may still change
        for slot in slots:
            slot.seen = True
            if not slot.fresh:
                self._wait(slot)

    def _find_slots(self, module: torch.nn.Module) -> "tuple[list[_Slot], bool]":
        # What torch.compile gives does not call the hooks of the modules within it.
        compiled = hasattr(module, "_orig_mod")
        params = module.parameters() if compiled else module._parameters.values()
        own = [self._slots[id(p)] for p in params if p is not None and id(p) in self._slots]
        any_within = any(id(p) in self._slots for p in module.parameters())
        if any_within and hasattr(module, "register_state_dict_pre_hook"):  # PyTorch 2
            self._hooks.append(module.register_state_dict_pre_hook(_BeforeReading(self)))
        return own, any_within

    def _begin(self) -> None:
        """The next step, where none has begun."""
        if self._begun:
            return
        self.start()
        self._check_weights()
        now = self._groups_now()
        if now != self._numbers:
            self._job.session.set_groups(self._as_c(now), len(now))
            self._numbers = now
        self._job.session.begin()
        self._begun = True
        for slot in self._slots.values():
            if slot.early and not slot.fresh:
                self._wait(slot)

    def _wait(self, slot: _Slot) -> None:
        self._job.session.wait(slot.index)
        self._take(slot)

    def _on_gradient(self, slot: _Slot) -> None:
        """Its gradient of this backward pass is complete."""
        if not self._sync or not self._push_early:
            self._look(slot)
            return
        if slot.pushed is not None:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' got a gradient twice in one step: "
                "put `with optimizer.no_sync():` around all backward passes but the last")
        self._look(slot)
        self._fill(slot)
        if self._staging is None:
            self._job.session.push(slot.index)

    def _look(self, slot: _Slot) -> None:
        """Learns which parameters are used without a call of their module."""
        if not self._begun:
            if not self._opened:
                raise InputError(
                    f"rank {self._job.rank}: parameter '{slot.name}' is used, but no module that "
                    "owns it was called: call optimizer.start() before the first forward pass "
                    "(a module's compile() hides its calls: use torch.compile(model))")
            if slot.seen:
                raise InputError(
                    f"rank {self._job.rank}: parameter '{slot.name}' got a gradient without a forward "
                    "pass since the last step(): its graph is of older weights")
            self._refuse_stale(slot)
            self._begin()
        if slot.seen or slot.early:
            return
        self._refuse_stale(slot)
        slot.early = True

    def _refuse_stale(self, slot: _Slot) -> None:
        if not slot.fresh:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' was used without a call of its "
                "module, while its weights were on the way: call optimizer.synchronize() after "
                "each step")

    def _fill(self, slot: _Slot) -> None:
        """Its gradient goes into the arena; a GPU's is pushed by the staging."""
        grad = slot.param.grad
        if not slot.fresh:
            self._wait(slot)  # its gradient arena is still being sent
        if grad is not None:
            fault = "" if grad.layout == torch.strided else _checks.why_not(grad, DTYPES)
            if fault:
                raise InputError(f"rank {self._job.rank}: the gradient of parameter '{slot.name}' "
                                 f"{fault}")
            slot.pushed_version = grad._version
            grad = grad.detach()
        if self._staging is not None:
            self._staging.send(slot, grad, self._factor())
        else:
            _write(slot.grads, grad, self._factor())
        if self._views and grad is not None and slot.param.dtype == torch.float32:
            slot.param.grad = slot.grads
            slot.pushed_version = slot.grads._version
        slot.pushed = slot.grads if grad is None else slot.param.grad

    def _factor(self) -> float:
        """By which this rank multiplies its gradients before it pushes them."""
        if not self._mean:
            return self.share
        return 1.0 if self.share == 1.0 / self._job.size else self.share * self._job.size

    def _push_rest(self) -> None:
        """What the backward pass has not pushed; neighbours together."""
        rest = [slot for slot in self._slots.values() if slot.pushed is None]
        for slot in rest:
            self._fill(slot)
        if self._staging is not None:
            self._staging.finish()
            return
        first = 0
        for at in range(1, len(rest) + 1):
            if at == len(rest) or rest[at].index != rest[at - 1].index + 1:
                self._job.session.push(rest[first].index, at - first)
                first = at

    # ---- the step ----

    @torch.no_grad()
    def step(self, closure: "typing.Callable[[], typing.Any] | None" = None, *,
             grad_scaler: typing.Any = None) -> typing.Any:
        """Hands the step to the servers and returns at once; see synchronize(). Returns what
        closure returns. InputError names a parameter whose gradient was changed after it was
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
        self._begun = False
        self._steps += 1
        changed = []
        for slot in self._slots.values():
            slot.pushed, slot.fresh = None, False
            changed.append(slot.param)
        if _increment_version is not None:
            for param in changed:  # a backward pass through the old weights raises then
                _increment_version(param)
        for slot in self._slots.values():
            slot.version = slot.param._version
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
                f"rank {rank}: a parameter group's numbers were changed between the forward pass and "
                "step(): change them (scheduler.step()) after step()")
        for slot in self._slots.values():
            grad = slot.param.grad
            if slot.pushed is not None and grad is slot.pushed \
                    and grad._version != slot.pushed_version:
                raise InputError(
                    f"rank {rank}: the gradient of parameter '{slot.name}' was changed after it had "
                    "left for the servers (clip_grad_norm_, GradScaler.unscale_): use clip_norm= or "
                    "loss_scale= of pstrain.Optimizer, or push='step'")
        for name, param in self._frozen:
            if param.requires_grad and param.grad is not None:
                raise InputError(f"rank {rank}: parameter '{name}' was frozen when the Optimizer was "
                                 "made, and has a gradient now: unfreeze it before")

    def _check_sent(self, slot: _Slot) -> None:
        if slot.param.grad is slot.grads and slot.grads._version != slot.pushed_version:
            raise InputError(
                f"rank {self._job.rank}: the gradient of parameter '{slot.name}' was changed while it "
                "was on the way to the servers (gradient_as_arena_view): call optimizer.synchronize() "
                "before, or optimizer.zero_grad()")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim's."""
        if self._views and not set_to_none:
            self.synchronize()  # until then gradients are being sent
        super().zero_grad(set_to_none)

    def _check_weights(self) -> None:
        for slot in self._slots.values():
            if slot.param.data_ptr() != slot.address:
                what = "was replaced (.to(), .half(), load_state_dict(assign=True))"
            elif slot.param._version != slot.version:
                what = "was changed by the program (load_state_dict, an in-place operation)"
            else:
                continue
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' {what}, which the servers do not "
                "see: do this before the first step, or make a new job")

    def synchronize(self) -> None:
        """Blocks until the weights are those after all steps. Must be called before weights are
        read otherwise than by a module's forward pass or, with PyTorch 2, its state_dict():
        averaging, printing."""
        if not self._opened or all(slot.fresh for slot in self._slots.values()):
            return
        if self._begun:
            self._job.session.wait(0, len(self._slots))
        else:
            self._job.session.drain()
        for slot in self._slots.values():
            if not slot.fresh:
                self._take(slot)

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
        state, arrays, feedback = self._save()
        out["pstrain"] = {"step": state.step, "rule": list(state.rule[:state.rule_bytes])}
        if feedback is not None:
            out["pstrain"]["feedback"] = feedback
        if self._job.rank == 0:
            out["state"] = self._in_pytorchs_form(state.step - self.skipped_steps, arrays)
        return out

    def _refuse_begun(self, what: str) -> None:
        if self._begun and any(slot.pushed is not None for slot in self._slots.values()):
            raise InputError(f"rank {self._job.rank}: {what} between backward() and step()")
        if self._begun:
            raise InputError(f"rank {self._job.rank}: {what} between a forward pass with gradients "
                             "and step(): call it after step()")

    def _save(self) -> "tuple[typing.Any, dict[str, torch.Tensor], torch.Tensor | None]":
        session = self._job.session
        n, names = session.arena_count(), session.state_names()
        state = _library.State(struct_size=ctypes.sizeof(_library.State))
        arrays: "dict[str, torch.Tensor]" = {}
        feedback = torch.zeros(n) if session.has_feedback() else None
        if self._job.rank == 0:
            arrays = {name: torch.zeros(n) for name in names}
            for i, array in enumerate(arrays.values()):
                state.arrays[i] = array.data_ptr()
        if feedback is not None:
            state.feedback = feedback.data_ptr()
        session.save(state)
        return state, arrays, feedback

    def _in_pytorchs_form(self, step: int, arrays: "dict[str, torch.Tensor]"
                          ) -> "dict[int, dict[str, typing.Any]]":
        if step == 0 or not arrays:
            return {}
        order = [p for group in self.param_groups for p in group["params"]]
        state: "dict[int, dict[str, typing.Any]]" = {}
        for place, param in enumerate(order):
            slot = self._slots.get(id(param))
            if slot is None:
                continue
            at = self._job.session.tensor_offset(slot.index)
            own: "dict[str, typing.Any]" = {} if self._name == "sgd" else {
                "step": torch.tensor(float(step))}
            for name, array in arrays.items():
                own[name] = _place_of(param, array, at).clone()
            state[place] = own
        return state

    def load_state_dict(self, state_dict: "dict[str, typing.Any]") -> None:
        """Takes state_dict()'s, or torch.optim's of the same optimizer. Must be called on every
        rank before the first step; rank 0's state counts. Load the model's weights, too."""
        if self._opened:
            raise InputError(f"rank {self._job.rank}: load_state_dict comes before the first step: "
                             "make a new job to go on from another state")
        for group in state_dict["param_groups"]:
            for key in ("amsgrad", "maximize"):
                if group.get(key):
                    raise InputError(f"rank {self._job.rank}: the state was made with {key}=True, which "
                                     "the servers do not have")
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._resume = {"state": state_dict["state"], "pstrain": state_dict.get("pstrain", {})}

    def _resume_state(self) -> "tuple[typing.Any, list[torch.Tensor]]":
        """(pstrain_state or None, the memory that it names)"""
        if self._resume is None:
            return None, []
        loaded, ours = self._resume["state"], self._resume["pstrain"]
        steps = [int(s["step"]) for s in loaded.values() if "step" in s]
        self._steps = int(ours.get("step", max(steps, default=1 if loaded else 0)))
        state = _library.State(struct_size=ctypes.sizeof(_library.State), step=self._steps)
        rule = bytes(ours.get("rule", ()))
        state.rule_bytes = len(rule)
        state.rule[:len(rule)] = rule
        offsets, n = self._offsets()
        keep = []
        if self._job.rank == 0:
            for i, name in enumerate(_arguments.state_names(self._name, self.param_groups)):
                keep.append(self._arena_of(name, loaded, offsets, n))
                state.arrays[i] = keep[-1].data_ptr()
            if self._has_codec():
                weights = torch.zeros(n)
                for slot, at in zip(self._slots.values(), offsets):
                    _place_of(slot.param, weights, at).copy_(slot.param.detach())
                keep.append(weights)
                state.weights = weights.data_ptr()
        if "feedback" in ours:
            keep.append(ours["feedback"])
            state.feedback = ours["feedback"].data_ptr()
        self._resume = None
        return state, keep

    def _offsets(self) -> "tuple[list[int], int]":
        """Where each parameter begins in an arena, as pstrain.h says, and the arena's length."""
        offsets, at = [], 0
        for slot in self._slots.values():
            offsets.append(at)
            at += -(-slot.param.numel() // 16) * 16
        return offsets, at

    def _arena_of(self, name: str, loaded: "dict[int, typing.Any]", offsets: "list[int]",
                  n: int) -> torch.Tensor:
        array = torch.zeros(n)
        order = [p for group in self.param_groups for p in group["params"]]
        for place, param in enumerate(order):
            slot, own = self._slots.get(id(param)), loaded.get(place, {})
            if slot is None or own.get(name) is None:
                continue
            if tuple(own[name].shape) != tuple(param.shape):
                raise InputError(
                    f"rank {self._job.rank}: the state's {name} of parameter '{slot.name}' is "
                    f"{tuple(own[name].shape)}, the parameter {tuple(param.shape)}")
            _place_of(param, array, offsets[slot.index]).copy_(own[name].detach())
        return array

    def _has_codec(self) -> bool:
        words = self._job.settings + self._settings
        codecs = [w.split("=", 1)[1] for w in words if w.startswith("exchange.codec=")]
        return bool(codecs) and codecs[-1] != "none"

    def add_param_group(self, param_group: "dict[str, typing.Any]") -> None:
        if getattr(self, "_slots", None):
            raise InputError(f"rank {self._job.rank}: parameter groups cannot be added later: give "
                             "them all when the Optimizer is made")
        super().add_param_group(param_group)


class _BeforeReading:
    """A module's hook: its state_dict() waits for its weights."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)

    def __call__(self, *_: typing.Any) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.synchronize()

    def __reduce__(self) -> typing.Any:
        # A copy of the model, or one from a file, has weights of its own. It gets a hook that does
        # nothing and needs no pstrain: the class slice, which takes as many arguments.
        return type, (slice(None),)


def _write(out: torch.Tensor, grad: "torch.Tensor | None", factor: float) -> None:
    """A gradient, times factor, goes to its place in the arena."""
    if grad is None:
        out.zero_()
    elif grad.data_ptr() == out.data_ptr():
        if factor != 1.0:
            out.mul_(factor)
    elif grad.dtype == torch.float32 and factor != 1.0:
        torch.mul(grad, factor, out=out)
    else:
        out.copy_(grad)
        if factor != 1.0:
            out.mul_(factor)


def _place_of(param: torch.Tensor, array: torch.Tensor, at: int) -> torch.Tensor:
    """Its numbers within an array of the arena's form: of its shape, and its order in memory."""
    return array.as_strided(param.shape, param.stride(), array.storage_offset() + at)


def _arena(session: Session, address: int, n: int) -> torch.Tensor:
    """The library's memory (n float32) as a tensor. The memory lives as long as a tensor in it:
    state_dict() of a model has such tensors."""
    memory = (ctypes.c_float * n).from_address(address)
    memory.session = session.memory()
    return torch.frombuffer(memory, dtype=torch.float32)
