"""Where PyTorch tells an Optimizer what the program does: forward passes, gradients, reading."""
from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import typing
import warnings
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ._arguments import TORCH
from ._slots import Slot

if typing.TYPE_CHECKING:
    from ._table import Table

# True while torch.compile reads the program.
_is_compiling: "typing.Callable[[], bool]" = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False)


# Hooks of the steps of all optimizers; PyTorch 1.13 has none.
_all_pre_hooks, _all_post_hooks = (
    getattr(importlib.import_module("torch.optim.optimizer"), f"_global_optimizer_{when}_hooks", {})
    for when in ("pre", "post"))
_profiler_enabled: "typing.Callable[[], bool]" = getattr(torch.autograd, "_profiler_enabled")

Step = typing.TypeVar("Step", bound="typing.Callable[..., typing.Any]")


def as_pytorchs_step(step: Step) -> Step:
    """Shows an optimizer's step to PyTorch's profiler and to the hooks of steps. PyTorch wraps the
    step of each class so; here its wrapper, 50 us of a step, is passed only when somebody looks."""
    wrap = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    if wrap is None:  # PyTorch 1.13 wraps it by itself
        return step
    shown = wrap(step)

    @functools.wraps(step)
    def chosen(self: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        looked_at = (self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
                     or _all_pre_hooks or _all_post_hooks or _profiler_enabled())
        return (shown if looked_at else step)(self, *args, **kwargs)

    setattr(chosen, "hooked", True)  # PyTorch leaves it as it is
    return typing.cast(Step, chosen)


def hooks_of(optimizer: torch.optim.Optimizer, name: str) -> "list[typing.Callable[..., typing.Any]]":
    """Of the program's: "state_dict_pre", "state_dict_post", "load_state_dict_pre" or "load_state_dict_post"."""
    return list(getattr(optimizer, f"_optimizer_{name}_hooks", {}).values())


@contextlib.contextmanager
def without_hooks(optimizer: torch.optim.Optimizer) -> "typing.Iterator[None]":
    """What torch.optim's state_dict() and load_state_dict() have is a part of ours: they call no hook."""
    names = [f"_optimizer_{what}_{when}_hooks" for what in ("state_dict", "load_state_dict") for when in ("pre", "post")]
    kept = {name: vars(optimizer)[name] for name in names if name in vars(optimizer)}
    vars(optimizer).update({name: {} for name in kept})
    try:
        yield
    finally:
        vars(optimizer).update(kept)


@contextlib.contextmanager
def told_already() -> "typing.Iterator[None]":
    """The hooks of all optimizers' steps are told of our step; that of PyTorch within it is no other one."""
    hooks = (_all_pre_hooks, _all_post_hooks)
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, before in zip(hooks, kept):
            each.update(before)


class _Kept(typing.NamedTuple):
    """A hook, and what it needs to stay alive."""

    hook: typing.Any
    node: typing.Any

    def remove(self) -> None:
        self.hook.remove()


def when_accumulated(param: torch.Tensor, ready: "typing.Callable[[torch.Tensor], None]") -> typing.Any:
    """Calls ready(param) when a backward pass has added to its gradient. What it returns has remove()."""
    def given(param: torch.Tensor) -> None:
        if param.grad is not None:  # a function's backward may give none; PyTorch calls this all the same
            ready(param)

    add = getattr(param, "register_post_accumulate_grad_hook", None)
    if add is not None:
        return add(given)
    # PyTorch 1: the node that accumulates the gradient, which lives while it is kept.
    this = weakref.ref(param)

    def call(*_: typing.Any) -> None:
        mine = this()
        if mine is not None:
            given(mine)

    with torch.enable_grad():
        function: typing.Any = param.expand_as(param).grad_fn
    node = function.next_functions[0][0]
    return _Kept(node.register_hook(call), node)


class Hooks:
    """All hooks of a job's optimizers, whose table they do not keep alive. Calls its before_forward(module)
    and on_gradient(slot)."""

    def __init__(self, table: "Table") -> None:
        self._table = weakref.ref(table)
        self._added: "list[typing.Any]" = []
        # A compiled module calls it once more, for itself: that is intended.
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks")
        hook = _before_forward(self._table)
        if (2, 0) <= TORCH < (2, 4):  # its compiler would compile the hooks of a compiled module
            compiler: typing.Any = __import__("torch._dynamo")._dynamo
            hook = compiler.disable(hook)
        self._added.append(register_module_forward_pre_hook(hook))

    def add(self, slots: "typing.Iterable[Slot]") -> None:
        for slot in slots:
            self._add_to_gradient(slot)

    def _add_to_gradient(self, slot: Slot) -> None:
        this, own = self._table, weakref.ref(slot)

        def ready(_: torch.Tensor) -> None:
            table, mine = this(), own()
            if table is not None and mine is not None:
                table.on_gradient(mine)

        self._added.append(when_accumulated(slot.param, ready))

    def add_to_reading(self, module: torch.nn.Module) -> None:
        """The module's state_dict() waits for its weights (PyTorch 2)."""
        add = getattr(module, "register_state_dict_pre_hook", None)
        if add is None:
            return
        if not module._state_dict_pre_hooks:
            module._state_dict_pre_hooks = _Unsaved()
        this = self._table

        def wait(*_: typing.Any) -> None:
            table = this()
            if table is not None:
                table.synchronize()

        self._added.append(add(wait))

    def remove(self) -> None:
        for hook in self._added:
            hook.remove()
        self._added.clear()


def _before_forward(this: "weakref.ref[Table]") -> "typing.Callable[[torch.nn.Module, typing.Any], None]":
    def before_forward(module: torch.nn.Module, _: typing.Any) -> None:
        if _is_compiling():
            return  # the compiled module itself is called, and waits for all within it
        table = this()
        if table is not None:
            table.before_forward(module)

    return before_forward


class _Unsaved(typing.OrderedDict[int, typing.Any]):
    """A module's hooks, of which copies of the module and files have none: they have weights of their own."""

    def __reduce__(self) -> typing.Any:
        return collections.OrderedDict, ()
