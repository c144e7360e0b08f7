"""An optimizer whose step is made by the servers."""
from __future__ import annotations

import contextlib
import gc
import sys
import typing

import torch

from . import _arguments, _checks, _cuda, _state, job as jobs
from ._hooks import as_pytorchs_step, hooks_of, told_already, without_hooks
from ._join import Join
from ._slots import (DTYPES, Slot, check_fresh, check_parameter, check_pushed, gradient_sum, has_form_of, lacks, let_norms_be_read,
                     moved, runs, write)
from ._table import Table
from .errors import InputError

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


def refuse_sparse_modules(groups: "list[dict[str, typing.Any]]", names: "dict[int, str]", rank: int) -> None:
    """InputError names the weight of a module with sparse=True: its gradients are no dense tensors."""
    weights = {id(param) for group in groups for param in group["params"] if param.dim() == 2}
    for module in gc.get_objects() if weights else []:
        if issubclass(type(module), (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse \
                and id(module.weight) in weights and module.weight.requires_grad:
            raise InputError(f"rank {rank}: parameter '{names[id(module.weight)]}' is of an nn.{type(module).__name__} with "
                             "sparse=True: pstrain.sparse(model), before the Optimizer is made, moves it to the servers; "
                             "or make it with sparse=False")


class _Choices:
    """What the program may choose anew for each step. Lightning Fabric's wrapper, a subclass of this optimizer's class, reads all
    attributes here and keeps those that are set."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.sync = True  # False within no_sync


class Optimizer(torch.optim.Optimizer):
    """SGD, Adam, AdamW, RMSprop, Adagrad, LAMB or Lion on the servers, with PyTorch's formulas; or any optimizer of
    PyTorch's, which each rank steps with the mean gradient that the servers make.

    params: `model.named_parameters()`, parameters, or groups of them as for torch.optim. They are
    float32 (or bfloat16 or float16, with float32 weights on the servers; or float64), dense, contiguous or
    channels_last, all on the CPU or all on one GPU; each rank has the same. Those that do not
    require a gradient are left alone until they do (requires_grad_(True) between two steps, on all ranks).
    name: "sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb" or "lion": the servers step. Or a class such as
    torch.optim.NAdam, or what makes an optimizer of groups of parameters and the options: each rank steps
    by PyTorch's own code, with equal bits on all; the state is in each rank's memory, state_dict() is that
    optimizer's (not collective), and weights may be written between steps. "adadelta", "adamax", "nadam",
    "radam", "rprop" and "asgd", adam with amsgrad=True, and what PyTorch has of the others as soon as one
    parameter is float64, are these. Gradients in float64 are summed by the workers. Not with loss_scale and
    overlap_forward; clip_norm is clip_grad_norm_ of the mean.
    codec: none, fp16, bf16, int8, int4, onebit or topk: how gradients travel (exchange.codec).
    clip_norm: the norm to which the mean gradient is clipped, over all parameters.
    loss_scale: None; True: dynamic, as torch.amp.GradScaler's; or the first scale. Multiply the
    loss with `scale(loss)`; a step that overflows is skipped on all ranks.
    push: "backward": a gradient leaves as soon as it is there (InputError where it is changed or replaced before step();
    torch.nn.utils.clip_grad_norm_ with max_norm inf changes none, and returns the norm of the rank's own gradient);
    "step": in step(), so that it may be changed before (torch.nn.utils.clip_grad_norm_ of the rank's own gradient).
    total_steps: how many steps the whole job makes; 0: not known. With it the codecs int4, onebit and topk
    send in their last steps what they have kept back.
    settings: further keys of docs/configuration.md.
    gradient_as_arena_view: from its first push on, `.grad` of a float32 parameter (on a GPU: of any) is the
    memory from which it is sent. Gradients then exist once, and what is computed in this memory is
    not copied. zero_grad(set_to_none=False) waits for the step; with a codec `.grad` is divided by
    the number of ranks.
    overlap_forward: step() returns while the new weights are on the way, and each module's forward
    pass waits for its own. Weights may then not be read in another way (copy.deepcopy, an average
    of the weights, printing) before synchronize(): they would be those before the step.
    broadcast_buffers: rank 0's buffers (batch norm's means) become everybody's in the first forward pass and after each
    step of the Optimizer that trains their model, as in DistributedDataParallel. Its frozen parameters do so in the first
    forward pass in any case.
    options: lr, momentum, dampening, nesterov, betas, alpha, centered, eps, lr_decay,
    initial_accumulator_value, weight_decay, maximize: those that PyTorch's optimizer of that name
    has, with its defaults (lion: its paper's). foreach, fused and capturable change no number.

    The job is opened by the first forward pass with gradients: rank 0's weights become
    everybody's, and a model that differs between ranks raises PeerError on all of them, with the
    parameter's name. When step() returns, the weights are those after the step, and not before.

    A job may have several (GANs), with different rules, made in the same order on every rank. Their
    gradients leave in step(), which changes its own parameters alone; every rank steps them in the
    same order (PeerError). codec, clip_norm, loss_scale, total_steps, overlap_forward,
    broadcast_buffers and settings are the same for all of a job.

    Each rank's gradient counts 1 / size. A parameter that no rank has a gradient for is not stepped,
    as in PyTorch; where some rank has one, the others count as zero. For
    gradient accumulation: `with optimizer.no_sync():` around all backward passes but the last.
    """

    # GradScaler then calls step, which refuses it with a sentence.
    _step_supports_amp_scaling = True

    def __init__(self, params: typing.Any, name: "str | typing.Callable[..., typing.Any]" = "adamw", *, codec: "str | None" = None,
                 clip_norm: float = 0.0, loss_scale: "bool | float | None" = None,
                 push: str = "backward", gradient_as_arena_view: bool = False,
                 total_steps: int = 0, overlap_forward: bool = False,
                 broadcast_buffers: bool = True, settings: jobs.Settings = None,
                 **options: typing.Any) -> None:
        self._job = job = jobs.current()
        _arguments.check_values(push, clip_norm, total_steps, job.rank)
        jobs.check_effect(jobs.as_words(settings), f"rank {job.rank}: ")
        self._names: "dict[int, str]" = {}
        groups = _arguments.groups(params, job.rank, self._names)
        rule = _arguments.local_rule(name, options, (param for group in groups for param in group["params"]))
        self._local: "torch.optim.Optimizer | None" = None  # that this rank steps with the sums of the servers
        self._clip_norm = 0.0  # of the local one
        self._number = 0  # among the job's optimizers
        if rule is not None:
            self._check_local(loss_scale, overlap_forward)
            self.name = "sum"
            self._local = _arguments.make_local(rule, groups, options, job.rank)
            self._clip_norm, clip_norm = clip_norm, 0.0
            super().__init__(groups, self._local.defaults)
            self._share_with_local()
            self._lend_modes(self._local)
        else:
            self.name = str(name)
            super().__init__(groups, _arguments.defaults(self.name, options, job.rank))
            self._empty_state()
            self.numbers()  # looks at them
        self._scales = loss_scale not in (None, False)
        self._push_early = push == "backward"
        self._members: "list[list[int]]" = []  # of each group, by ids of the parameters
        self._slots: "dict[int, Slot]" = {}  # by id of the parameter, in the table's order
        self._frozen: "list[Slot]" = []  # parameters that did not require a gradient up to now
        if not self._take_in(0):
            raise InputError(f"rank {job.rank}: none of the parameters requires a gradient")
        self.loaded: "_state.Loaded | None" = None  # a state_dict, until the job is opened
        self.rest: "_state.Loaded | None" = None  # of it, what frozen parameters will need
        self.forward = False  # there was a forward pass of its modules since its last step
        self.views = gradient_as_arena_view
        self._choices = _Choices(1.0 / job.size)
        words = _arguments.settings(codec, clip_norm, loss_scale) + jobs.as_words(settings)
        self._table = job.table(Table)
        self._number = self._table.add(self, words, total_steps, overlap_forward, broadcast_buffers)

    @property
    def share(self) -> float:
        """By which this rank's gradients are multiplied: 1 / size; n_r / sum of all n."""
        return self._choices.share

    @share.setter
    def share(self, share: float) -> None:
        self._choices.share = share

    # ---- a rule of the program's own ----

    @property
    def is_local(self) -> bool:
        return self._local is not None

    def _check_local(self, loss_scale: typing.Any, overlap_forward: bool) -> None:
        given = [word for word, it_is in (("loss_scale", loss_scale not in (None, False)),
                                          ("overlap_forward", overlap_forward)) if it_is]
        if given:
            raise InputError(f"rank {self._job.rank}: {given[0]} is for steps that the servers make; this optimizer's "
                             "are PyTorch's, on each rank, as with float64 parameters")

    def _share_with_local(self) -> None:
        """Groups and state are the local optimizer's: schedulers change them here."""
        assert self._local is not None
        self.param_groups, self.state = self._shared = self._local.param_groups, self._local.state

    def _lend_modes(self, local: torch.optim.Optimizer) -> None:
        """Schedule-free optimizers have train() and eval(), between which they exchange the weights. Trainers call them where an
        optimizer has them."""
        def lend(mode: str) -> "typing.Callable[..., typing.Any]":
            def change(*args: typing.Any, **options: typing.Any) -> typing.Any:
                self._table.refuse_begun(f"{mode}()")
                self._take_state()
                return getattr(local, mode)(*args, **options)
            return change

        for mode in ("train", "eval"):
            if callable(getattr(local, mode, None)):
                setattr(self, mode, lend(mode))

    if not typing.TYPE_CHECKING:
        def __getattr__(self, name: str) -> typing.Any:
            local = vars(self).get("_local")
            if callable(getattr(type(local), name, None)):
                raise AttributeError(f"rank {self._job.rank}: {type(local).__name__}.{name}() cannot be called here: before step() "
                                     "gradients are this rank's own. Take the process group, or pstrain.comm_hook, and "
                                     f"{type(local).__name__} itself")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _take_state(self) -> None:
        """What the program has put in place of state and param_groups counts: optimizer.state = defaultdict(dict)."""
        if self._local is None:
            if self.state is not self._empty:
                if self.has_moments or self.state:
                    raise InputError(_state.no_reset(self._job.rank))
                self._empty_state()  # a trainer has cleared it before it begins (fastai)
            return
        groups, state = self._shared
        if self.param_groups is not groups:
            self._local.param_groups = self.param_groups
        if self.state is not state:
            self._local.state = self.state
        self._share_with_local()

    def _empty_state(self) -> None:
        self.state = self._empty = _state.OnServers(self, self._job.rank)

    def _step_local(self, local: torch.optim.Optimizer) -> None:
        """Each rank makes the same step, when the gradients of all are there."""
        wait = self._table.sum_doubles()
        self.synchronize()
        wait()
        for slot in self._slots.values():
            param, mean = slot.param, slot.weights
            if lacks(slot.host):
                param.grad = None
            elif param.grad is None or 0 in param.grad.stride():  # several places of an expanded one are one number
                param.grad = mean.to(param.device, param.dtype, copy=True)
            else:
                param.grad.copy_(mean)
        if self._clip_norm:
            torch.nn.utils.clip_grad_norm_([slot.param for slot in self._slots.values()], self._clip_norm)
        with told_already():
            local.step()

    # ---- making the table ----

    def _take_in(self, first: int) -> "list[Slot]":
        """The parameters of the groups from that one on: those that require a gradient are returned."""
        refuse_sparse_modules(self.param_groups[first:], self._names, self._job.rank)
        slots = [Slot(self._names[id(param)], param, first + place, self.is_local)
                 for place, group in enumerate(self.param_groups[first:]) for param in group["params"]]
        self._members[first:] = self._members_now()[first:]
        return self._sort(slots)

    def _members_now(self) -> "list[list[int]]":
        return [list(map(id, group["params"])) for group in self.param_groups]

    def check_members(self) -> None:
        """InputError where the program has changed the lists in param_groups, which would have no effect here. PyTorch's own
        optimizers may leave parameters out, or step them in another group."""
        self._take_state()
        now = self._members_now()
        if now == self._members:
            return
        before = {each: place for place, own in enumerate(self._members) for each in own}
        after = {each: place for place, own in enumerate(now) for each in own}
        odd = next((each for each in (*after, *before) if after.get(each) != before.get(each)
                    and (each not in before or not self.is_local)), None)
        if odd is not None:
            name = self._names.get(odd, "of no group")
            raise InputError(f"rank {self._job.rank}: parameter '{name}' was put into or taken out of a group's list "
                             "(param_groups): use add_param_group() for further ones, and requires_grad_(False) where one is to "
                             "stand still")
        self._members = now

    def _sort(self, slots: "list[Slot]") -> "list[Slot]":
        """Those that require a gradient, checked; the others are frozen."""
        taken = [slot for slot in slots if slot.param.requires_grad]
        seen: "set[int]" = set()
        for slot in taken:
            check_parameter(slot, self._job.rank)
            if id(slot.param) in seen:
                raise InputError(f"rank {self._job.rank}: parameter '{slot.name}' is in its group twice: give it once (of tied "
                                 "weights model.parameters() has one)")
            seen.add(id(slot.param))
            if slot.param.numel() == 0:
                raise InputError(f"rank {self._job.rank}: parameter '{slot.name}' has no elements")
        self._frozen += [slot for slot in slots if not slot.param.requires_grad]
        self._slots.update((id(slot.param), slot) for slot in taken)
        if self._push_early:
            let_norms_be_read(taken)
        return taken

    def thawed(self) -> "list[Slot]":
        """Parameters that require a gradient by now, and did not before."""
        if not any(slot.param.requires_grad for slot in self._frozen):
            return []
        slots, self._frozen = self._frozen, []
        return self._sort(slots)

    def slots(self) -> "list[Slot]":
        return list(self._slots.values())

    def device(self) -> "_cuda.Gpu | None":
        """The GPU where the parameters are; None: they are on the CPU."""
        return _cuda.find(self.slots()[0].param)

    def numbers(self) -> "list[_arguments.Numbers]":
        """Of its groups, as they are now."""
        if self.is_local:
            return [_arguments.no_numbers(self._number)] * len(self.param_groups)
        _arguments.check_groups(self.name, self.param_groups, self._job.rank)
        return [_arguments.numbers(self.name, self._number, group) for group in self.param_groups]

    def start(self) -> None:
        """Opens the job; the first forward pass does this otherwise. Collective: every rank calls
        it. Rank 0's weights become everybody's. PeerError, on every rank, when the models
        differ."""
        self._table.start()

    # ---- gradients ----

    def _pushes_early(self) -> bool:
        """With several Optimizers a backward pass also gives gradients to those of others, which zero_grad discards."""
        return self._choices.sync and self._push_early and self._table.alone

    def on_gradient(self, slot: Slot) -> None:
        """Its gradient of this backward pass is complete; called by a hook."""
        self._look(slot)
        if not self._pushes_early():
            return
        if slot.pushed is not None:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' got a gradient twice in one step: "
                "put `with optimizer.no_sync():` around all backward passes but the last, or take push='step' (a "
                "module that is checkpointed twice)")
        if not self._fill(slot):
            self._job.session.push(slot.index)
        # The library may write the arena (all-reduce, exchange.levels).
        grad = slot.pushed
        slot.pushed_sum = gradient_sum(slot, grad) if grad is not None and grad is not slot.grads else None

    def _look(self, slot: Slot) -> None:
        """The step begins with the first gradient. Learns which parameters are used without a call of their module."""
        if self._table.device is not None:
            self._table.device.on_gradient(slot, self._job.rank)
        if not self._table.opened:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' is used, but no module that "
                "owns it was called: call optimizer.start() before the first forward pass "
                "(a module's compile() hides its calls: use torch.compile(model))")
        if slot.seen and not self.forward:
            raise InputError(
                f"rank {self._job.rank}: parameter '{slot.name}' got a gradient without a forward "
                "pass since the last step(): its graph is of older weights; or torch.compile has the call of the model in a "
                "larger function, which hides it: compile the model itself, torch.compile(model)")
        check_fresh(slot, self._job.rank)
        if not slot.seen:
            self._table.note_early(slot)
        if self._pushes_early():
            self._table.begin(self._number)

    def _fill(self, slot: Slot) -> bool:
        """Its gradient, which is there, goes into the arena. Returns whether it has been pushed."""
        grad = slot.param.grad
        assert grad is not None
        if not slot.fresh:
            self._table.wait(slot)  # its gradient arena is still being sent
        factor, device = self._factor(slot), self._table.device
        if self.views and moved(slot):
            self._table.find_grads(slot)
        if self.views and grad is slot.grads and factor == 1.0:  # it is where it is sent from
            slot.pushed, slot.pushed_version = grad, grad._version
            if device is not None:
                device.push(slot, grad, factor)
            return device is not None
        is_fine = grad.layout == torch.strided and (grad.dtype in DTYPES or slot.is_double)
        fault = "" if is_fine else _checks.why_not(grad, DTYPES, gpu=True)
        if fault:
            raise InputError(f"rank {self._job.rank}: the gradient of parameter '{slot.name}' "
                             f"{fault}")
        slot.pushed_version = grad._version
        grad = grad.detach()
        if slot.is_double:
            torch.mul(grad, factor, out=slot.weights)
            grad, factor = slot.sent, 1.0
        pushed = True
        if device is not None:
            device.push(slot, grad, factor)
        elif has_form_of(grad, slot.grads):
            self._job.session.push_copy(slot.index, grad.data_ptr(), factor)
        else:
            write(slot.grads, grad, factor)
            pushed = False
        if self.views and slot.param.dtype == slot.grads.dtype:
            slot.param.grad = slot.grads
            slot.pushed_version = slot.grads._version
        slot.pushed = slot.param.grad
        return pushed

    def _factor(self, slot: Slot) -> float:
        """By which this rank multiplies a gradient before it pushes it."""
        sign = self._sign({} if self.is_local else self.param_groups[slot.group])
        if not self._table.mean or slot.is_double:
            return sign * self.share
        return sign if self.share == 1.0 / self._job.size else sign * self.share * self._job.size

    def _sign(self, group: "dict[str, typing.Any]") -> float:
        """And by how much gradients count more, because some ranks have none."""
        sign = -1.0 if group.get("maximize") else 1.0
        return sign if self._table.join is None else sign * self._table.join.factor

    def _sign_of_rows(self) -> float:
        """They are in no group: all groups have to say the same."""
        ways = {bool(group.get("maximize")) for group in self.param_groups}
        if len(ways) > 1:
            raise InputError(f"rank {self._job.rank}: maximize differs between the parameter groups: rows of embedding tables, "
                             "which are in none, would not know which to follow")
        return self._sign(self.param_groups[0])

    def _push_rest(self) -> None:
        """What the backward pass has not pushed."""
        device, session = self._table.device, self._job.session
        left = [s for s in self._slots.values() if s.pushed is None]
        lacking = [s for s in left if s.param.grad is None]
        filled = [s for s in left if s.param.grad is not None and not self._fill(s)]
        for slot in lacking:
            if not slot.fresh:
                self._table.wait(slot)
            if slot.is_double:
                slot.weights.zero_()
        for slots, push in ((filled, session.push), (lacking, device.push_none if device else session.push_none)):
            for first, n in runs(slots):
                push(first, n)

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
        if self._table.begun:
            self._table.check_weights()
        else:
            self._refuse_step_of_checkpoint()
        self._table.begin(self._number)
        self._check()
        self._make_step()
        return loss

    def _make_step(self) -> None:
        """Of the step that has begun."""
        rows = self._job.rows()
        if rows is not None:
            if not any(slot.param.requires_grad for slot in self._slots.values()):
                rows.tell_of_frozen()
            rows.push(self._sign_of_rows() * self.share)  # first: the servers apply them while the rest is pushed
        self._push_rest()
        if not self.is_local:
            _mark_changed([slot.param for slot in self._slots.values()])
        self._table.finish(self._number, self.slots())
        self.forward = False
        if self._local is not None:
            self._step_local(self._local)
        elif not self._table.overlaps:
            self.synchronize()

    def join(self, divide_by_initial_world_size: bool = True, throw_on_early_termination: bool = False) -> Join:
        """For ranks with different numbers of batches: `with optimizer.join():` around the training loop. A rank that
        leaves the block goes along with the others' steps, without gradients, until all have left it; as
        DistributedDataParallel's join. One is for all Optimizers of the job; other collectives must not be called
        within it.

        divide_by_initial_world_size: a gradient counts 1 / size; False: 1 / (ranks that still have batches).
        throw_on_early_termination: InputError on all ranks instead, as soon as one has no batch left.
        """
        return Join(self._table, divide_by_initial_world_size, throw_on_early_termination)

    def shadow(self) -> None:
        """A step of the others, in which this rank has no batch left."""
        self._table.begin(self._number, agreed=True)
        for slot in self._slots.values():
            slot.param.grad = None
        self._drop_gradients_of_rows()
        self._make_step()

    def _refuse_scaler(self, grad_scaler: typing.Any) -> None:
        given = (grad_scaler, getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        if any(g is not None for g in given):
            raise InputError(
                f"rank {self._job.rank}: GradScaler would skip steps on one rank alone: use "
                "pstrain.Optimizer(..., loss_scale=True) and optimizer.scale(loss).backward()")

    def _refuse_step_of_checkpoint(self) -> None:
        """torch.distributed.checkpoint makes a step with gradients of 0 where it finds no state here."""
        frame: typing.Any = sys._getframe(2)
        for _ in range(0 if self.is_local else 4):  # wrappers of step() lie between
            if frame is not None and frame.f_code.co_name == "_init_optim_state":
                raise InputError(f"rank {self._job.rank}: get_optimizer_state_dict and set_optimizer_state_dict of torch.distributed."
                                 "checkpoint make a step of their own, by which moments on the servers would fall: save "
                                 "optimizer.state_dict() (torch.save), or take a pstrain.State")
            frame = frame and frame.f_back

    def _check(self) -> None:
        """What the program must not have done between the first push and step()."""
        rank = self._job.rank
        if self._table.has_new_numbers():
            raise InputError(
                f"rank {rank}: a parameter group's numbers were changed between backward() and "
                "step(): change them (scheduler.step()) after step()")
        for slot in self._slots.values():
            check_pushed(slot, rank)
        if self._table.device is not None:
            self._table.device.check_step(self._slots.values(), self.forward, rank)
        for slot in self._frozen:
            if slot.param.requires_grad and slot.param.grad is not None:
                raise InputError(f"rank {rank}: parameter '{slot.name}' was unfrozen between the forward pass and step(): "
                                 "unfreeze it after step()")

    def zero_grad(self, set_to_none: bool = _arguments.TORCH >= (2,)) -> None:
        """As torch.optim's: PyTorch 1 sets them to zeros by default, with which unused parameters are stepped. Gradients of
        rows on the servers are dropped, too; a module's zero_grad() leaves these."""
        if self.views and not set_to_none:
            self.synchronize()  # until then gradients are being sent
        super().zero_grad(set_to_none)
        self._drop_gradients_of_rows()

    def _drop_gradients_of_rows(self) -> None:
        rows = self._job.rows()
        if rows is not None:
            rows.drop_gradients()

    def synchronize(self) -> None:
        """Blocks until the weights are those after all steps. With overlap_forward it must be called
        before weights are read otherwise than by a module's forward pass or, with PyTorch 2, its
        state_dict(): averaging, copying, printing."""
        self._table.synchronize()

    @contextlib.contextmanager
    def no_sync(self) -> "typing.Iterator[None]":
        """Within it gradients add up on this rank, and none is pushed."""
        before, self._choices.sync = self._choices.sync, False
        try:
            yield
        finally:
            self._choices.sync = before

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
        return self._job.session.loss_scale()[1] if self._scales and self._table.opened else 0

    # ---- saving and loading ----

    @property
    def steps(self) -> int:
        """How many steps the job has made, skipped ones included."""
        return int(self._table.steps)

    @property
    def pending(self) -> "_state.Loaded | None":
        """What was loaded, and the servers do not have yet."""
        return self.loaded or self.rest

    @property
    def has_moments(self) -> bool:
        """Whether the servers have state, or will have what was loaded."""
        return bool(self.pending or self.steps)

    @property
    def opened(self) -> bool:
        """Whether the servers have begun."""
        return bool(self._table.opened)

    def state_dict(self) -> "dict[str, typing.Any]":
        """As torch.optim's, which can load it, and with the key "pstrain" for what the servers
        know besides. Collective: every rank calls it after the same step; rank 0's has the
        optimizer's state. Also writes the exact weights into the model where a codec is used."""
        for hook in hooks_of(self, "state_dict_pre"):
            hook(self)
        self._take_state()
        out = self._state_dict() if self._local is None else self._local.state_dict()
        for hook in hooks_of(self, "state_dict_post"):
            changed = hook(self, out)
            out = out if changed is None else changed
        return out

    def _state_dict(self) -> "dict[str, typing.Any]":
        """Of steps that the servers make."""
        with without_hooks(self):
            out = super().state_dict()
        table = self._table
        out["pstrain"] = {"step": table.steps}
        if not table.opened:
            return out if self.loaded is None else {**out, **self.loaded.given()}
        table.refuse_begun("state_dict()")
        table.start()
        saved = table.save(self.skipped_steps)
        state = saved.state
        out["pstrain"] = {"step": state.step, "made": saved.made, "rule": list(state.rule[:state.rule_bytes]),
                          "rank": self._job.rank}
        exact = _state.exact_weights(self.param_groups, table.slots) if self._job.rank == 0 else {}
        if exact:
            out["pstrain"]["weights"] = exact
        if saved.feedback is not None:
            out["pstrain"]["feedback"] = saved.feedback
            out["pstrain"]["order"] = _state.order(table.optimizers, table.slots)
        if self._job.rank == 0:
            steps = [saved.made - state.missed[i] for i in range(len(table.slots))]
            out["state"] = _state.in_pytorchs_form(self.name, self.param_groups, table.slots, steps, saved.arrays)
            if self.rest is not None:
                self.rest.add_to(out)
        return out

    def load_state_dict(self, state_dict: "dict[str, typing.Any]") -> None:
        """Takes state_dict()'s, or torch.optim's (apex's, timm's) of the same optimizer. Must be called on every
        rank before the first step; rank 0's state counts. Load the model's weights, too."""
        state_dict = dict(state_dict)
        for hook in hooks_of(self, "load_state_dict_pre"):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        if self._local is None:
            self._load_state_dict(state_dict)
        else:
            self._local.load_state_dict(state_dict)
            self._share_with_local()
        for hook in hooks_of(self, "load_state_dict_post"):
            hook(self)

    def _load_state_dict(self, state_dict: "dict[str, typing.Any]") -> None:
        """Of steps that the servers make."""
        if any(self._table.holds(slot) for slot in self.slots()):
            raise InputError(f"rank {self._job.rank}: load_state_dict comes before the first step: "
                             "make a new job to go on from another state")
        _arguments.check_groups(self.name, state_dict["param_groups"], self._job.rank)
        with without_hooks(self):
            groups = [{key: value for key, value in group.items() if key != "step"} for group in state_dict["param_groups"]]
            super().load_state_dict({"state": {}, "param_groups": groups})
        self._empty_state()
        self.loaded, self.rest = _state.Loaded(state_dict, self._job.rank), None

    def __getstate__(self) -> typing.NoReturn:
        raise InputError(f"rank {self._job.rank}: an Optimizer belongs to its job, and is not copied or pickled: save "
                         "optimizer.state_dict(), and load it into a new Optimizer")

    def add_param_group(self, param_group: "dict[str, typing.Any]") -> None:
        """As torch.optim's, also between two steps. Every rank adds the same ones after the same step (PeerError names
        those that do not); the next forward pass, or step(), takes them in, and rank 0's weights become everybody's.
        Costs about as much as state_dict() and loading it again."""
        if not hasattr(self, "_table"):  # it is being made
            super().add_param_group(param_group)
            return
        self._table.refuse_begun("add_param_group()")
        first = len(self.param_groups)
        super().add_param_group(_arguments.groups([param_group], self._job.rank, self._names)[0])
        try:
            self.numbers()
            self._table.take_in(self._number, self._take_in(first))
        except BaseException:
            for param in self.param_groups.pop()["params"]:
                self._slots.pop(id(param), None)
            del self._members[len(self.param_groups):]
            raise
