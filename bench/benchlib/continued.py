"""Steps of one side from checkpoints of the other one: of a job that was begun here and goes on in
PyTorch, and the other way round (bench/parity).

Either side leaves a checkpoint after each of some steps. From every one of them the other side
makes one step, and leaves its own: two checkpoints, from the same state.
"""
import array
import json
import os
from concurrent.futures import ThreadPoolExecutor

from psrunlib import verify

from . import runs
from .job_config import BenchError

OPTIMIZERS = {
    "sgd": ["optimizer.name=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9"],
    "adam": ["optimizer.name=adam", "optimizer.lr=0.001"],
    "adamw": ["optimizer.name=adamw", "optimizer.lr=0.001"],
    "rmsprop": ["optimizer.name=rmsprop", "optimizer.lr=0.001", "optimizer.momentum=0.9",
                "optimizer.centered=true", "optimizer.alpha=0.9"],
    "adagrad": ["optimizer.name=adagrad", "optimizer.initial_accumulator_value=0.001"],
}
# The state to which a step adds the gradient (adagrad: its square), and its decay.
MOMENTS = {"sgd": ("momentum_buffer", lambda job: job["optimizer.momentum"]),
           "adam": ("exp_avg", lambda job: job["optimizer.betas"][0]),
           "adamw": ("exp_avg", lambda job: job["optimizer.betas"][0]),
           "rmsprop": ("grad_avg", lambda job: job["optimizer.alpha"]),
           "adagrad": ("sum", lambda job: 1.0)}
SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")
# SGD whose momentum_buffer is the gradient itself: of the one before nothing is left beside it.
GRADIENT_ALONE = ["optimizer.name=sgd", "optimizer.lr=0.05", "optimizer.momentum=1e-30", "optimizer.weight_decay=0",
                  "optimizer.clip_norm=0", "train.accumulate=1", "loss_scale.use=off"]
LAST_STEP_ALONE = "checkpoint.every=1000000000"  # one is kept after the last step
AT_ONCE = 4  # of our runs of one step each


def settings(overrides, optimizer):
    """optimizer: of OPTIMIZERS, or GRADIENT_ALONE. train.steps is left to the caller: no schedule may depend on
    it."""
    return [*overrides, *optimizer, "model.dropout=false", "train.epochs=100000",
            "train.eval_every=0", "train.log_every=1", "schedule.name=constant",
            "schedule.warmup=0", LAST_STEP_ALONE]


class Side:
    """One side's runs, by their last step, and its losses by step."""

    def __init__(self, out):
        self.out, self.losses = out, {}

    def run(self, step):
        return os.path.join(self.out, f"run-{step}")

    def checkpoint(self, step):
        return os.path.join(self.run(step), "checkpoints", f"step-{step}")


class Ours(Side):
    def __init__(self, runner, mode, name, overrides):
        super().__init__(os.path.join(runner.out, name))
        self.runner, self.mode, self.name, self.overrides = runner, mode, name, overrides

    def train(self, step, resume=None):
        """Trains to that step, from the beginning or from the run `resume`."""
        name = os.path.join(self.name, f"run-{step}")
        out = self.runner.psrun(self.mode, name, [*self.overrides, f"train.steps={step}"], resume=resume)
        self.losses.update(runs.read_losses(out))


class PyTorch(Side):
    def __init__(self, runner, python, name, job, init):
        super().__init__(os.path.join(runner.out, name))
        self.runner, self.python, self.name, self.job, self.init = runner, python, name, job, init

    def train(self, *args):
        """args: of continue_job.py. Fills losses, and with --ties moves, by step (ties.py)."""
        self.runner.ddp(self.python, self.name, self.job, ["--init", self.init, *map(str, args)], "continue_job.py")
        with open(os.path.join(self.out, "steps.json"), encoding="utf-8") as f:
            self.losses, self.moves = ({int(step): v for step, v in found.items()} for found in json.load(f))


# -------------------------------------------------------------------- differences

def _read(folder):
    """({name: values} of the model, the same of the optimizer)."""
    def values(name):
        raw = verify.read_weights(os.path.join(folder, name))
        return {k: array.array(verify.TYPES[kind], v) for k, (kind, v, _) in raw.items()}
    return values("model.safetensors"), values("optimizer.safetensors")


def _largest(ones, others, factor=1.0):
    """The largest difference between an element and `factor` times its counterpart."""
    worst = 0.0
    for name, one in ones.items():
        if len(one) != len(others[name]):
            return float("inf")
        error = max((abs(a - factor * b) for a, b in zip(one, others[name])), default=0.0)
        worst = error if error != error else max(worst, error)
    return worst


def _ending(states, key):
    return {name: v for name, v in states.items() if name.endswith("." + key)}


def _gradient_error(start, ours, theirs, job):
    """The error of the gradient that the step added to the first moment, relative to its largest
    element."""
    key, decay = MOMENTS[job["optimizer.name"]]
    a, b, before = (_ending(s, key) for s in (ours, theirs, start))
    return _largest(a, b) / _largest(b, before, decay(job)) if b else float("inf")


def _second_moment_error(states, other_states):
    """Of whichever the optimizer has."""
    return max(_of_largest(_ending(states, key), _ending(other_states, key)) for key in SECOND_MOMENTS)


def _of_largest(ours, theirs):
    size = max((abs(v) for values in theirs.values() for v in values), default=0.0)
    return _largest(ours, theirs) / size if size else 0.0


def _steps_by_moments(states, name, job):
    """The amount that the step has subtracted from each element, without the decay."""
    if job["optimizer.name"] == "rmsprop":
        return [job["optimizer.lr"] * b for b in states[name + ".momentum_buffer"]]
    (beta1, beta2), t = job["optimizer.betas"], states[name + ".step"][0]
    size = job["optimizer.lr"] / (1 - beta1**t)
    root, eps = (1 - beta2**t) ** 0.5, job["optimizer.eps"]
    moments = zip(states[name + ".exp_avg"], states[name + ".exp_avg_sq"])
    return [size * m / (v**0.5 / root + eps) for m, v in moments]


def _beyond_moments(weights, others, states, other_states, job):
    """Adam and RMSprop divide by the root of the second moment: where that is tiny, so is the gradient,
    and its last bits make a visible step. Largest difference of a weight that the difference
    of the moments, which have their own bound, does not explain."""
    worst = 0.0
    for name, ours in weights.items():
        steps, other_steps = (_steps_by_moments(s, name, job) for s in (states, other_states))
        error = max(abs((a + u) - (b + v)) for a, u, b, v in zip(ours, steps, others[name], other_steps))
        worst = error if error != error else max(worst, error)
    return worst


def step_errors(start, ours, theirs, job):
    """Compares a step, by the folders of the checkpoint before it and of both sides' after it."""
    divides = job["optimizer.name"] in ("adam", "adamw", "rmsprop")
    before, (model, states), (other_model, other_states) = map(_read, (start, ours, theirs))
    if model.keys() != other_model.keys() or states.keys() != other_states.keys():
        raise BenchError(f"{ours} and {theirs} have different tensors")
    weights = {n: v for n, v in model.items() if n + ".step" in states}
    buffers = {n: v for n, v in model.items() if n not in weights}
    steps, in_all = _ending(states, "step"), _largest(weights, other_model)
    return {"gradient": _gradient_error(before[1], states, other_states, job),
            "weight": _beyond_moments(weights, other_model, states, other_states, job) if divides else in_all,
            "weight_in_all": in_all, "second_moment": _second_moment_error(states, other_states),
            "buffer": max((_of_largest({n: v}, {n: other_model[n]}) for n, v in buffers.items()), default=0.0),
            "step_count": _largest(steps, other_states)}


def errors_by_step(first, last, start, ours, theirs, job):
    """Of each of the steps first + 1 to last. start: the side from whose checkpoints both began."""
    found = []
    for step in range(first + 1, last + 1):
        errors = step_errors(start.checkpoint(step - 1), ours.checkpoint(step), theirs.checkpoint(step), job)
        errors["loss"] = abs(ours.losses[step] - theirs.losses[step]) / abs(theirs.losses[step])
        found.append(errors)
    return found


def worst(found):
    return {"steps": len(found), **{k: max(e[k] for e in found) for k in found[0]}}


# ------------------------------------------------------------------ both directions

def in_pytorch(runner, python, name, job, init, mode, overrides, first, last):
    """A job that began here: PyTorch repeats every step from our checkpoint before it."""
    ours = Ours(runner, mode, f"{name}-ours", [*overrides, f"train.init={init}"])
    ours.train(first)
    for step in range(first + 1, last + 1):
        ours.train(step, resume=ours.run(step - 1))
    theirs = PyTorch(runner, python, f"{name}-pytorch", job, init)
    theirs.train("--from", *(ours.checkpoint(s) for s in range(first, last)))
    return ours, ours, theirs


def from_pytorch(runner, python, name, job, init, mode, overrides, first, last):
    """A job that began in PyTorch: we repeat every step from its checkpoint before it."""
    theirs = PyTorch(runner, python, f"{name}-pytorch", job, init)
    theirs.train("--after", first, "--steps", last - first)
    return theirs, repeated(theirs, runner, mode, f"{name}-ours", overrides, first, last), theirs


def repeated(theirs, runner, mode, name, overrides, first, last):
    """Our side of such a job."""
    ours = Ours(runner, mode, name, overrides)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda step: ours.train(step, resume=theirs.run(step - 1)), range(first + 1, last + 1)))
    return ours


DIRECTIONS = {"here, then PyTorch": in_pytorch, "PyTorch, then here": from_pytorch}
