"""psrun --verify: a few steps in both modes, and a comparison of the weights.

With one or two workers the weights have to be equal bit for bit: a sum of two floats does
not depend on the order. With more workers NCCL adds in an order of its own. Then the distance
of the weights, relative to their norm, has to stay within BOUND times the number of steps.
"""
import argparse
import array
import json
import os
import struct

from . import jobfile, report
from .errors import JobError
from .screen import tell

STEPS = 20
EPOCHS = 1000  # more than the steps need
BOUND = 1e-4
TYPES = {"F32": "f", "I64": "q"}
MODES = ("ps", "allreduce")
WEIGHTS = "model.safetensors"


def read_weights(path):
    """{name: (type, bytes, shape)} of a safetensors file that psrun's workers wrote."""
    try:
        with open(path, "rb") as f:
            raw = f.read()
    except OSError as error:
        raise JobError(f"cannot read the weights {path}: {error.strerror}") from error
    n, = struct.unpack_from("<Q", raw)
    entries = json.loads(raw[8:8 + n])
    entries.pop("__metadata__", None)
    return {name: (e["dtype"], raw[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]], e["shape"])
            for name, e in entries.items()}


def compare(one, other):
    """(names of tensors that differ, relative distance of the float ones)."""
    if one.keys() != other.keys():
        raise JobError("the two modes wrote different tensors")
    differ, distance, norm = [], 0.0, 0.0
    for name, (kind, raw, _) in one.items():
        values = array.array(TYPES[kind], raw)
        if kind == "F32":
            norm += sum(v * v for v in values)
        if raw != other[name][1]:
            differ.append(name)
            others = array.array(TYPES[kind], other[name][1])
            distance += sum((a - b) ** 2 for a, b in zip(values, others))
    return differ, (distance / norm) ** 0.5 if norm else 0.0


def settings(args, mode):
    """The settings that make the runs of a mode short, without saving, and without an evaluation before the end:
    schedule.name=plateau and train.patience allow no eval_every of 0."""
    given = {o.split("=", 1)[0] for o in args.overrides}
    extra = {"train.steps": STEPS, "train.epochs": EPOCHS, "train.eval_every": EPOCHS + 1, **jobfile.NOTHING_KEPT}
    fixed = [jobfile.OWN_CHECKPOINTS, "train.stop_after=0"]
    if mode != "ps":
        fixed.append("exchange.levels=1")  # all-reduce has no other
    return [f"{key}={value}" for key, value in extra.items() if key not in given] + fixed


def verdict(workers, steps, differ, distance):
    """(exit code, a sentence)."""
    if not differ:
        return 0, f"weights after {steps} steps are equal bit for bit with {workers} workers"
    where = f"{len(differ)} tensors differ, first {differ[0]}; relative distance {distance:.3g}"
    if workers <= 2:
        return 1, f"weights after {steps} steps are NOT equal with {workers} workers: {where}"
    bound = BOUND * steps
    within = distance <= bound  # False if the distance is NaN
    sense = "within" if within else "NOT within"
    return int(not within), (f"weights after {steps} steps are {sense} the bound "
                             f"{bound:.3g} with {workers} workers: {where}")


def verify(args, plan_job, run):
    """args: psrun's arguments. plan_job, run: the functions of cli.py. Returns the exit code."""
    out, jobs = args.out, []
    for mode in MODES:
        changed = argparse.Namespace(**vars(args))
        changed.mode = mode
        changed.servers = args.servers if mode == "ps" else None
        changed.overrides = [*args.overrides, *settings(args, mode)]
        job = plan_job(changed)
        if job.workers == 1 and args.workers is None:
            changed.workers = "2"
            job = plan_job(changed)
        out = out or job.out
        job.out, job.out_is_ours = os.path.join(out, mode), False
        jobs.append(job)
    for job in jobs:
        tell(f"psrun: {job.mode}, {job.workers} workers")
        job.results += (WEIGHTS,)
        code = run(job, args.verbose)
        if code != 0:
            return code
    files = [read_weights(os.path.join(job.out, WEIGHTS)) for job in jobs]
    code, text = verdict(jobs[0].workers, report.read_summary(jobs[0].out)["steps"], *compare(*files))
    tell(f"psrun: {text}")
    return code
