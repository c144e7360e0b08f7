"""The parameters of all Optimizers of a job: one table, which the session opens."""
from __future__ import annotations

import ctypes
import typing
import weakref

import torch

from . import _arguments, _checks, _cuda, _library, _state
from ._defaults import NAMES
from . import job as jobs
from ._buffers import Buffers
from ._hooks import Hooks
from .process_group import of_everybody
from ._slots import Slot, arena, check_apart, check_late, check_parameter, check_sent, check_weights, place_of, runs, take_weights
from .errors import InputError, PeerError, TimeoutError

if typing.TYPE_CHECKING:
    from ._join import Join
    from .job import Job
    from .optimizer import Optimizer


class _Module:
    """What is known of a module."""

    __slots__ = ("slots", "inner", "within", "met")

    def __init__(self, slots: "list[Slot]", inner: "list[Slot]", within: "list[Optimizer]") -> None:
        # Its own parameters; those of the modules within it, too, and their optimizers.
        self.slots, self.inner, self.within = slots, inner, within
        self.met = False  # a forward pass of it has told the Buffers


class Table:
    """Optimizers put their parameters into it. The next forward pass, or start(), opens it, and opens it again where it
    has got more since then."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.optimizers: "list[Optimizer]" = []
        self.slots: "dict[int, Slot]" = {}  # by id of the parameter, in the order of the library's table
        self.device: "_cuda.Gpu | None" = None  # of parameters on a GPU
        self.opened = False
        self._n_open = 0  # parameters in the library's table: the first ones
        self._looked = False  # for parameters that have come to require a gradient since the last step
        self.begun = False  # a step has begun: with its first gradient, or in step()
        self.steps = 0  # made so far
        self.mean = False  # the servers multiply by 1 / size
        self.overlaps = False
        self.join: "Join | None" = None  # within Optimizer.join()
        self.sums = False  # the servers step nothing: instead of weights come sums of gradients
        self.doubles = torch.empty(0, dtype=torch.float64, device="cpu")  # the same of float64 parameters, which the workers sum
        self.buffers: "Buffers | None" = None
        self._words: "list[str]" = []  # the job's settings that all Optimizers give alike
        self._total_steps = 0
        self._n_groups: "list[int]" = []  # of each Optimizer, in the library's table
        self._numbers: "list[_arguments.Numbers]" = []  # of the groups, as the servers have them
        self._early: "dict[Slot, None]" = {}  # in order: they are used without their module: waited for first of all
        self._by_module: "weakref.WeakKeyDictionary[torch.nn.Module, _Module]" = weakref.WeakKeyDictionary()
        self._known: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()  # that have hooks
        self.hooks = Hooks(self)
        job.at_end.append(self._detach)
        job.in_step = lambda: self.begun

    @property
    def alone(self) -> bool:
        """There is one optimizer: its gradients may leave during the backward pass."""
        return len(self.optimizers) == 1

    # ---- making it ----

    def add(self, optimizer: "Optimizer", words: "list[str]", total_steps: int, overlaps: bool, buffers: bool) -> int:
        """Returns the optimizer's number. InputError where it does not fit the others."""
        rank, number = self.job.rank, len(self.optimizers)
        self.refuse_begun("pstrain.Optimizer")
        given = (words, total_steps, overlaps, buffers)
        mine = (self._words, self._total_steps, self.overlaps, self.buffers is not None and self.buffers.shares)
        if number > 0 and given != mine:
            raise InputError(
                f"rank {rank}: codec, clip_norm, loss_scale, total_steps, overlap_forward, broadcast_buffers and "
                f"settings are the whole job's: give all its Optimizers the same ({given} here, {mine} before)")
        if number > 0 and optimizer.is_local != self.sums:
            raise InputError(f"rank {rank}: one Optimizer is stepped by the servers, another one by PyTorch on each "
                             "rank, as every one with a float64 parameter: give all of a job the class of PyTorch's "
                             "(torch.optim.SGD), or, without float64, names that the servers have "
                             f"({', '.join(NAMES)})")
        slots, self._words, self.sums = optimizer.slots(), words, optimizer.is_local
        self._check(slots)
        if number == 0:
            self.device = optimizer.device()
        self.optimizers.append(optimizer)
        self._total_steps, self.overlaps = total_steps, overlaps
        if self.buffers is None:
            self.buffers = Buffers(self.job, self.slots, buffers)
        self.take_in(number, slots)
        return number

    def take_in(self, number: int, slots: "list[Slot]") -> None:
        """More parameters of the optimizer of that number."""
        if self.join is not None:
            raise InputError(f"rank {self.job.rank}: parameter '{slots[0].name}' comes into the job within optimizer.join(): "
                             "ranks that have no batch left would not know it")
        self._check(slots)
        names = {slot.name for slot in self.slots.values()}
        for slot in slots:
            if slot.name in names and number > 0:
                slot.name = f"{slot.name} of optimizer {number + 1}"
            name, n = slot.name, 1
            while slot.name in names:  # of two models
                n += 1
                slot.name = f"{name} ({n})"
            names.add(slot.name)
            slot.owner, slot.index = number, len(self.slots)
            self.slots[id(slot.param)] = slot
        self._by_module.clear()
        self.hooks.add(slots)

    def thaw(self) -> None:
        """Takes in parameters that have come to require a gradient."""
        for number, optimizer in enumerate(self.optimizers):
            thawed = optimizer.thawed()
            if thawed:
                self.take_in(number, thawed)

    def holds(self, slot: Slot) -> bool:
        """Whether the servers have it."""
        return 0 <= slot.index < self._n_open

    def _held(self) -> "list[Slot]":
        return list(self.slots.values())[:self._n_open]

    def _check(self, slots: "list[Slot]") -> None:
        """That the parameters are in no other Optimizer, all on one device, and may travel."""
        rank = self.job.rank
        if all(id(slot.param) not in self.slots for slot in slots):
            self._check_apart(slots)
        for slot in slots:
            first = next(iter(self.slots.values()), slots[0])
            if id(slot.param) in self.slots:
                raise InputError(f"rank {rank}: parameter '{slot.name}' is in another pstrain.Optimizer of this job: "
                                 "a parameter has one; groups with settings of their own go into one Optimizer")
            if slot.param.device != first.param.device:
                raise InputError(f"rank {rank}: parameter '{slot.name}' is on {slot.param.device}, "
                                 f"'{first.name}' on {first.param.device}: all have to be on one device")
            if slot.is_double and self._has_codec():
                raise InputError(f"rank {rank}: parameter '{slot.name}' is float64, which has no codec: leave out codec= "
                                 "(exchange.codec), or convert the model (.float())")

    def _check_apart(self, more: "list[Slot]") -> None:
        if not self.sums:  # else PyTorch steps both
            check_apart([*self.slots.values(), *more], self.job.rank)

    def _tensors(self) -> typing.Any:
        tensors, before = (_library.Tensor * len(self.slots))(), self._groups_before()
        for tensor, slot in zip(tensors, self.slots.values()):
            # Since it was checked the program may have changed it: model.to(memory_format=...).
            check_parameter(slot, self.job.rank)
            shape, name = tuple(slot.param.shape), slot.name
            if _checks.channels_last(slot.param):  # as in memory: the ranks have to agree
                shape = (shape[0], *shape[2:], shape[1])
            if slot.is_double:
                shape, name = (1,), f"{name} of float64 {shape}"
            dims = (ctypes.c_int64 * len(shape))(*shape)
            tensor.name, tensor.shape, tensor.n_dims = name.encode(), dims, len(shape)
            tensor.group = before[slot.owner] + slot.group
        return tensors

    def _groups_before(self) -> "list[int]":
        """Of each optimizer: how many groups those before it have."""
        before = [0]
        for optimizer in self.optimizers:
            before.append(before[-1] + len(optimizer.param_groups))
        return before

    def _groups_now(self) -> "list[_arguments.Numbers]":
        """Of the groups that the servers have: later ones whose parameters are all frozen come with these."""
        return [each for optimizer, n in zip(self.optimizers, self._n_groups) for each in optimizer.numbers()[:n]]

    def start(self) -> None:
        """Opens the job, or takes in what is new. Collective then."""
        if not self.opened:
            self._open(None)
        elif self._n_open < len(self.slots):
            self._open_longer()

    def _open_longer(self) -> None:
        """The servers give the table up, for one with more parameters."""
        new = list(self.slots.values())[self._n_open]
        if self.job.rows() is not None:
            raise InputError(f"rank {self.job.rank}: parameter '{new.name}' cannot be added to a job with pstrain.Embeddings, or be "
                             "unfrozen in it for the first time: give all parameters when the Optimizer is made, and freeze them "
                             "after the first forward pass")
        self.check_weights()
        try:
            saved = self.save(self.optimizers[0].skipped_steps)
            if self.device is not None:
                self.device.end()
            self.job.session.close_table()
            self._open(saved)
        except (PeerError, TimeoutError) as error:
            raise type(error)(f"{error}; this rank adds parameter '{new.name}': every rank "
                              "has to, between the same two steps") from None

    def save(self, skipped: int) -> _state.Saved:
        """The optimizers' state. Collective."""
        self.sync()
        return _state.save(self.job.session, self._n_open, skipped)

    def _open(self, saved: "_state.Saved | None") -> None:
        session, tensors = self.job.session, self._tensors()
        self._check_apart([])
        self._n_groups = [len(optimizer.param_groups) for optimizer in self.optimizers]
        self._numbers = self._groups_now()
        words = [f"optimizer.name={self.optimizers[0].name}", *self._words]
        groups, c_words = _arguments.as_c(self._numbers), _library.texts(words)
        table = _library.Table(
            struct_size=ctypes.sizeof(_library.Table), tensors=tensors, n_tensors=len(tensors),
            tensor_size=ctypes.sizeof(_library.Tensor), groups=groups, n_groups=len(groups),
            group_size=ctypes.sizeof(_library.Group), settings=c_words, n_settings=len(words),
            total_steps=self._total_steps)
        self.mean = session.servers > 0 and not self._has_codec()
        table.mean = int(self.mean)
        rows = self.job.rows()
        if rows is not None:
            self._check_rows()
            rows.put_into(table)
        for optimizer in self.optimizers:
            if optimizer.pending is not None:
                optimizer.pending.take_exact(optimizer, self.slots)
        resume = _state.resume(self.job.rank, self.optimizers, self.slots, self._has_codec(), saved)
        if resume is not None:
            self.steps = resume.state.step
            table.resume = ctypes.pointer(resume.state)
        session.open(table)
        self._place()
        session.start()
        if rows is not None:
            rows.opened_now()
        if self.doubles.numel():
            of_everybody(self.job).broadcast([self.doubles], 0).wait()
        self._arrive(0, len(self.slots))
        for slot in self.slots.values():
            if self.sums and not self.holds(slot):
                slot.param.data.copy_(slot.weights)
        self._take(list(self.slots.values()))
        self.opened, self._n_open = True, len(self.slots)
        for optimizer in self.optimizers:
            optimizer.rest = optimizer.pending and optimizer.pending.without(optimizer, self.slots)
            optimizer.loaded = None

    def _check_rows(self) -> None:
        """What does not go with embedding tables."""
        if not self.alone:
            raise InputError(f"rank {self.job.rank}: pstrain.Embeddings go with one Optimizer: with several it is not clear "
                             "whose step ends a step of the rows")

    def _place(self) -> None:
        """Gives the parameters their places in the arenas. On a GPU they move there. On the CPU they keep their own memory,
        into which weights are copied when they are waited for: servers may make the step as soon as all gradients have
        left, while the backward pass and the program still read the weights before it."""
        session = self.job.session
        for slot in self.slots.values():
            at, n = 4 * session.tensor_offset(slot.index), slot.sent.numel()
            slot.host = place_of(slot.sent, arena(session, session.params() + at, n), 0).copy_(slot.exact())
            slot.weights = slot.host
            slot.grads = self._grads_of(slot)
        if self.device is not None:
            self.device.open(session, self.slots.values())
        for slot in self.slots.values():
            slot.place = slot.grads.data_ptr()
        self._place_doubles([slot for slot in self.slots.values() if slot.is_double])
        for slot in self.slots.values():
            if self.device is not None and not self.sums:
                slot.param.data = slot.weights
                slot.captured = False  # a graph reads the place before
            slot.address = slot.param.data_ptr()

    def _grads_of(self, slot: Slot) -> torch.Tensor:
        session = self.job.session
        at = session.grads() + 4 * session.tensor_offset(slot.index)
        return place_of(slot.sent, arena(session, at, slot.sent.numel()), 0)

    def find_grads(self, slot: Slot) -> None:
        """Of a slot whose view was moved to other memory: another one."""
        if self.device is not None:
            raise InputError(f"rank {self.job.rank}: the gradient of parameter '{slot.name}', which lies where it is sent from "
                             "(gradient_as_arena_view), was moved (.grad.data = ...): write into it")
        slot.grads = self._grads_of(slot)

    def _place_doubles(self, slots: "list[Slot]") -> None:
        """Gives them one array."""
        n, at = sum(slot.param.numel() for slot in slots), 0
        self.doubles = torch.empty(n, dtype=torch.float64, device=slots[0].param.device if slots else "cpu")
        for slot in slots:
            slot.weights = place_of(slot.param, self.doubles, at).copy_(slot.param.detach())
            at += slot.param.numel()

    def sum_doubles(self) -> "typing.Callable[[], object]":
        """Begins the sum of all ranks' gradients of float64 parameters, in their place. Returns what waits for it."""
        return of_everybody(self.job).allreduce([self.doubles]).wait if self.doubles.numel() else lambda: None

    def _has_codec(self) -> bool:
        return jobs.value_of(self.job.settings + self._words, "exchange.codec") not in (None, "none")

    def _detach(self) -> None:
        """At the end of the job: weights move into memory of their own."""
        self.hooks.remove()
        if not self.opened:
            return
        if self.device is not None:
            self.device.end()
        for slot in self._held():
            if slot.param.data_ptr() == slot.weights.data_ptr():
                if not slot.captured:  # else a graph reads the place, whose memory goes with the parameter
                    slot.param.data = slot.weights.clone()
            elif not slot.fresh:
                self._take([slot])
        for slot in self._held():
            del slot.weights, slot.grads, slot.host
        self.opened, self._n_open = False, 0

    # ---- what hooks call ----

    def on_gradient(self, slot: Slot) -> None:
        self.optimizers[slot.owner].on_gradient(slot)

    def before_forward(self, module: torch.nn.Module) -> None:
        """Its weights are used from now on."""
        known = self._by_module.get(module) or self._find_slots(module)
        if not known.within:
            return
        trains, captures = torch.is_grad_enabled(), self.device is not None and self.device.is_capturing()
        if trains and not self._looked and not self.begun:
            self._looked = True
            self.thaw()
            known = self._by_module.get(module) or self._find_slots(module)
        if trains and not captures:
            self.start()
        slots = known.slots
        if self.device is not None:
            slots = self.device.before_forward(module, slots, self.slots, self.job.rank, captures)
        if trains:
            if not known.met:
                known.met = True
                self._meet(module)
            for optimizer in known.within:
                optimizer.forward = True
        for slot in slots:
            slot.seen = True
        if self.device is None and not self.overlaps:
            return  # a thread that reads: weights are those of the step before until step() has all of them
        # Without gradients some modules have a quicker way, which calls none of those within them (TransformerEncoderLayer).
        waits = slots if trains or not self.overlaps else known.inner
        for slot in (*self._early, *waits):
            if not slot.fresh:
                self.wait(slot)

    def _meet(self, module: torch.nn.Module) -> None:
        assert self.buffers is not None
        self.buffers.meet(module)
        if self.join is not None and self.buffers.has_new:
            self.join.meet()  # some rank may have no batch
        self.buffers.agree()

    def _find_slots(self, module: torch.nn.Module) -> _Module:
        # What torch.compile gives does not call the hooks of the modules within it.
        compiled = hasattr(module, "_orig_mod")
        params = module.parameters() if compiled else module._parameters.values()
        own = [self.slots[id(p)] for p in params if p is not None and id(p) in self.slots]
        inner = [self.slots[id(p)] for p in module.parameters() if id(p) in self.slots]
        owners = {slot.owner for slot in inner}
        if owners and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise InputError(
                f"rank {self.job.rank}: the model of this pstrain.Optimizer is in DistributedDataParallel, "
                "which sums the gradients, too: train the model without it, or keep it, with "
                "pstrain.comm_hook and an optimizer of PyTorch's")
        if owners and self.overlaps and isinstance(module, torch.jit.ScriptModule):
            raise InputError(f"rank {self.job.rank}: overlap_forward does not go with a model of torch.jit.script, whose state_dict() "
                             "cannot wait for the weights")
        if owners and module not in self._known:
            self._known.add(module)
            if self.overlaps:
                self.hooks.add_to_reading(module)
        known = _Module(own, inner, [self.optimizers[owner] for owner in sorted(owners)])
        # torch.func.functional_call gives a module other tensors for a while: it is asked again.
        if owners or all(isinstance(p, torch.nn.Parameter) for p in module.parameters()):
            self._by_module[module] = known
        return known

    def note_early(self, slot: Slot) -> None:
        """It is used without a call of its module."""
        self._early[slot] = None

    # ---- steps ----

    def refuse_begun(self, what: str) -> None:
        if self.begun:
            raise InputError(f"rank {self.job.rank}: {what} between backward() and step(): call it after step()")

    def begin(self, number: int, agreed: bool = False) -> None:
        """The next step, of that optimizer, where none has begun. agreed: within join(), the ranks have done so."""
        if self.begun:
            return
        self.thaw()
        self.start()
        if self.join is not None and not agreed:
            self.join.agree(number)
        self.check_weights()
        for optimizer in self.optimizers:
            optimizer.check_members()
        now = self._groups_now()
        if now != self._numbers:
            self.job.session.set_groups(_arguments.as_c(now), len(now))
            self._numbers = now
        if self.alone:
            self.job.session.begin()
        else:
            self.job.session.begin_of(number)
        self.begun = True

    def has_new_numbers(self) -> bool:
        return self._groups_now() != self._numbers

    def check_weights(self) -> None:
        """InputError names a parameter that the program has written itself."""
        if not self.sums:  # else the weights are the program's
            for slot in self._held():
                check_weights(slot, self.job.rank)

    def finish(self, number: int, stepped: "list[Slot]") -> None:
        """The gradients of that optimizer's step are all pushed; stepped: whose weights it changes."""
        self.job.session.finish()
        self.begun = self._looked = False
        self.steps += 1
        if self.buffers is not None:  # while the weights are on the way
            root = self.join.root if self.join is not None else 0
            self.buffers.share(number, root)
        for slot in stepped:
            slot.pushed, slot.fresh, slot.version = None, False, slot.param._version

    def wait(self, slot: Slot) -> None:
        """Blocks until its weights are here."""
        if self.device is None:
            self.job.session.wait(slot.index)
        self._arrive(slot.index, 1)
        self._take([slot])

    def _arrive(self, first: int, n: int) -> None:
        """On a GPU: what is asked for from now on uses these weights."""
        if self.device is not None:
            self.device.wait(first, n)

    def _take(self, slots: "list[Slot]") -> None:
        """Their weights have arrived."""
        if self.overlaps:
            for slot in slots:
                check_late(slot, self.job.rank)
        for slot in slots:
            late, slot.fresh = not slot.fresh, True
            if late and self.optimizers[slot.owner].views:
                check_sent(slot, self.job.rank)
        if self.sums:
            return
        if self.device is None:
            take_weights(slots)
        for slot in slots:
            slot.version = slot.param._version

    def sync(self) -> None:
        """The exact weights become everybody's. Collective."""
        self.check_weights()
        self.job.session.sync()
        self._arrive(0, self._n_open)
        self._take(self._held())

    def synchronize(self) -> None:
        """Blocks until the weights are those after all steps."""
        late = [slot for slot in self.slots.values() if not slot.fresh]
        if not self.opened or not late:
            return
        if self.device is not None:
            for first, n in runs(late):
                self._arrive(first, n)
        elif self.begun:
            self.job.session.wait(0, self._n_open)
        else:
            self.job.session.drain()
        self._take(late)
