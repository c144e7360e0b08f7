"""psrun --find-lr: the learning rate range test (Smith 2017, arXiv 1506.01186).

A short job whose learning rate grows from LOWEST to HIGHEST by the same factor in each step. The
suggestion is the rate at which the smoothed loss has fallen half of its way. Where it falls fastest
(Lightning's tuner) was up to 300 times the best rate of a sweep, or a 300th where batches are noisy;
half of the way was within 2.5 times on five kinds of toy data. An average of the steps on both sides
has no lag: that of a moving average (fastai's finder) was a factor of 3. The job's own servers,
codecs and workers are used, so the rate fits its global batch.
"""
import argparse
import json
import math
import os
import statistics

from . import job as jobs
from . import jobfile
from .errors import JobError
from .regular_file import new_text, open_text
from .report import figure
from .screen import tell

LOWEST, HIGHEST, STEPS = 1e-6, 10.0, 140  # 20 steps for each factor of ten
SMOOTHING = 0.9  # of the average that says whether training diverges
WIDTH = 4  # steps: standard deviation of the weights on both sides
DIVERGED = 4.0  # times the lowest loss so far: the end of the curve
SKIPPED = 5  # first steps, whose mean is of few losses
FEWEST = 20  # steps on which a suggestion can rest
ROWS = 14  # of the table
LOSSES = "metrics.jsonl"


def cut(losses):
    """The losses up to where training diverges."""
    mean, lowest = 0.0, math.inf
    for n, loss in enumerate(losses, 1):
        if loss is None or not math.isfinite(loss):
            return losses[:n - 1]
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        average = mean / (1 - SMOOTHING ** n)
        lowest = min(lowest, average)
        if n > SKIPPED and average > lowest + (DIVERGED - 1) * abs(lowest):
            return losses[:n]
    return losses


def smooth(losses):
    """The average of each step up to where training diverges, weighted by a bell of WIDTH. Losses of steps
    that diverge count as one that is as far above the first ones as these are above the lowest."""
    kept = cut(losses)
    high = max(kept[:SKIPPED], default=0.0)
    most = 2 * high - min(kept, default=0.0)
    out = []
    for i in range(len(kept)):
        near = range(max(0, i - 3 * WIDTH), min(len(kept), i + 3 * WIDTH + 1))
        weights = [math.exp(-0.5 * ((k - i) / WIDTH) ** 2) for k in near]
        out.append(sum(w * min(kept[k], most) for w, k in zip(weights, near)) / sum(weights))
    return out


def halfway(smoothed):
    """The step at which the smoothed loss has fallen half of its way to its lowest; None if it falls nowhere."""
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    if lowest <= SKIPPED:
        return None
    begun = statistics.median(smoothed[:(lowest + 1) // 2])
    half = (begun + smoothed[lowest]) / 2
    return max((i for i in range(lowest) if smoothed[i] >= half), default=None)


def span(smoothed, best):
    """(first, last) step of the plot and the table: a factor of a hundred before the suggestion, and ten after
    the lowest loss."""
    last = len(smoothed) - 1
    if best is None:
        return 0, last
    decade = round((STEPS - 1) / math.log10(HIGHEST / LOWEST))
    return max(0, best - 2 * decade), min(last, smoothed.index(min(smoothed)) + decade)


def read_losses(path):
    """The mean loss of all workers in each step; None: it is not finite."""
    try:
        with open_text(path) as f:
            records = [json.loads(line) for line in f]
    except (OSError, ValueError) as error:
        raise JobError(f"cannot read the losses {path}: {error}") from error
    steps = [r for r in records if "loss_mean" in r]
    if any(r["step"] != i for i, r in enumerate(steps, 1)):  # each has its rate by its place
        raise JobError(f"{path} lacks the losses of some steps: the disk had no room for them")
    return [r["loss_mean"] for r in steps]


def settings(args):
    """(settings of the job, the rate of each step)."""
    given = dict(o.split("=", 1) for o in args.overrides if "=" in o)
    lowest, steps = number(given, "optimizer.lr", LOWEST, float), number(given, "train.steps", STEPS, int)
    if not 0 < lowest < HIGHEST:
        raise JobError(f"--find-lr begins with optimizer.lr={lowest:g}: give one between 0 and {HIGHEST:g}")
    if steps < FEWEST:
        raise JobError(f"--find-lr with train.steps={steps}: give at least {FEWEST} steps")
    factor = (HIGHEST / lowest) ** (1 / (steps - 1))
    extra = {"optimizer.lr": lowest, "train.steps": steps, "train.epochs": 100000, "train.log_every": 1,
             "train.eval_every": 0, "train.patience": 0, "train.stop_after": 0, **jobfile.NOTHING_KEPT,
             "schedule.name": "step", "schedule.step_size": 1, "schedule.gamma": repr(factor),
             "schedule.warmup": 0, "exchange.nan": "allow"}
    return [*(f"{key}={value}" for key, value in extra.items()), jobfile.OWN_CHECKPOINTS], [lowest * factor ** i for i in range(steps)]


def kinds(layers):
    """Of a model's layers, which may have branches: the words that they are written with."""
    if isinstance(layers, dict):
        return {*layers, *kinds(list(layers.values()))}
    return set().union(*map(kinds, layers)) if isinstance(layers, list) else set()


def number(given, key, default, kind):
    try:
        return kind(given.get(key, default))
    except ValueError:
        raise JobError(f"{key}={given[key]}: --find-lr needs a number") from None


def table(rates, losses, smoothed, best):
    """Lines: some steps from first to last, the suggestion's among them."""
    n = len(smoothed)
    first, last = span(smoothed, best)
    shown = sorted({round(first + i * (last - first) / (ROWS - 1)) for i in range(ROWS)} | ({best} if best else set()))
    yield f"{'step':>6}  {'learning rate':>13}  {'loss':>10}  {'smoothed':>10}"
    for i in shown:
        note = "  <- suggested" if i == best else ""
        yield f"{i:6}  {rates[i]:13.3g}  {figure(losses[i]):>10}  {figure(smoothed[i]):>10}{note}"
    if n < len(losses):
        yield f"{n:6}  {rates[n]:13.3g}  training has diverged"


def ticks(low, high):
    """Round numbers from low to high, about five."""
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    by = next(m * size for m in (1, 2, 5, 10) if m * size * 5 >= high - low)
    return [i * by for i in range(math.ceil(low / by), math.floor(high / by) + 1)]


def bounds(losses, smoothed, best):
    """(lowest, highest) loss of the plot: what comes while training diverges leaves it."""
    first, last = span(smoothed, best)
    low, until = min(losses[first:last + 1]), last + 1 if best is None else best + 1
    high = max(*smoothed[:SKIPPED], *losses[first:until])
    room = 0.05 * (high - low) or 0.1 * abs(low) or 1
    return low - room, high + room


def draw(rates, losses, smoothed, best):
    """An SVG: losses as dots, the smoothed loss as a line, the suggestion as an upright line."""
    width, left, top, floor = 860, 64, 16, 356
    low, high = bounds(losses, smoothed, best)
    begin, end = span(smoothed, best)
    shown = range(begin, end + 1)
    first, last = math.log10(rates[begin]), math.log10(rates[max(end, begin + 1)])

    def x(rate):
        return left + (math.log10(rate) - first) / (last - first) * (width - left - 20)

    def y(loss):
        return floor - (min(loss, 2 * high - low) - low) / (high - low) * (floor - top)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 410" role="img" '
             'aria-label="loss by learning rate">',
             "<style>text{font:13px sans-serif;fill:#454d5c}.r{stroke:#d5dae2}.b{fill:#fff}.l{stroke:#1756c4}"
             ".d{fill:#1756c4;opacity:.45}.s{stroke:#c2500b}.n{paint-order:stroke;stroke:#fff;stroke-width:5px}"
             "@media(prefers-color-scheme:dark){text{fill:#b4bccb}"
             ".r{stroke:#343c4a}.b{fill:#12151b}.l{stroke:#86b3ff}.d{fill:#86b3ff}.s{stroke:#f0a15f}.n{stroke:#12151b}}"
             "</style>",
             f'<rect class="b" width="{width}" height="410"/>',
             f'<clipPath id="plot"><rect x="{left}" y="{top}" width="{width - left - 20}" '
             f'height="{floor - top}"/></clipPath>']
    for loss in ticks(low, high):
        lines.append(f'<path class="r" d="M{left} {y(loss):.1f}H{width - 20}"/><text x="{left - 8}" '
                     f'y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3g}</text>')
    for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1):
        lines.append(f'<text x="{x(10.0 ** power):.1f}" y="374" text-anchor="middle">{10.0 ** power:g}</text>')
    title = "learning rate (dots: mean loss of all workers; line: smoothed)"
    lines.append(f'<text x="{(left + width) / 2}" y="396" text-anchor="middle">{title}</text>')
    lines.append('<g clip-path="url(#plot)">')
    lines += [f'<circle class="d" r="2.5" cx="{x(rates[i]):.1f}" cy="{y(losses[i]):.1f}"/>' for i in shown]
    points = " ".join(f"{x(rates[i]):.1f},{y(smoothed[i]):.1f}" for i in shown)
    lines.append(f'<polyline class="l" fill="none" stroke-width="2" points="{points}"/></g>')
    if best is not None:
        side, anchor = (8, "start") if x(rates[best]) < width / 2 else (-8, "end")
        at = x(rates[best])
        lines.append(f'<path class="s" stroke-width="2" stroke-dasharray="6 4" d="M{at:.1f} {top}V{floor}"/>'
                     f'<text class="n" x="{at + side:.1f}" y="{top + 14}" text-anchor="{anchor}">'
                     f'optimizer.lr={rates[best]:.2g}</text>')
    return "\n".join(lines + ["</svg>"]) + "\n"


def write(path, text):
    try:
        with new_text(path) as f:
            f.write(text)
    except OSError as error:
        raise JobError(f"cannot write {path}: {error.strerror}") from error


def find_lr(args, plan_job, run):
    """args: psrun's arguments. plan_job, run: the functions of cli.py. Returns the exit code."""
    changed = argparse.Namespace(**vars(args))
    extra, rates = settings(args)
    changed.overrides = [*args.overrides, *extra]
    job = plan_job(changed)
    if job.facts["sync.policy"] not in ("bsp", "local"):
        raise JobError(f"--find-lr: with sync.policy={job.facts['sync.policy']} losses have no common step; "
                       "add sync.policy=bsp")
    if job.facts["sync.policy"] == "local" and job.facts["sync.quorum"]:
        raise JobError("--find-lr: with sync.quorum losses have no common step; add sync.quorum=0")
    if any(group["lr"] is not None for group in job.facts["optimizer.groups"]):
        raise JobError("--find-lr: optimizer.groups gives some parameters an lr of their own, which does not begin at "
                       "the lowest rate: leave lr out of the groups, or add optimizer.groups=[]")
    if "embedding_bag" in kinds(jobs.layers(job.build_dir, job.config, job.overrides)):
        raise JobError("--find-lr: the tables of embedding_bag have an lr of their own, which would grow with optimizer.lr, "
                       "and soon be far too high: try some rates instead, each in a short job (train.steps)")
    job.results += (LOSSES,)
    code = run(job, args.verbose, summary=False)  # of a rate that grows, it would be a riddle
    if code != 0:
        return code
    losses = read_losses(os.path.join(job.out, LOSSES))
    smoothed = smooth(losses)
    if len(smoothed) < FEWEST:
        raise JobError(f"--find-lr: training diverged after {len(smoothed)} steps; begin with a lower "
                       f"optimizer.lr than {rates[0]:g}")
    best = halfway(smoothed)
    print("\n".join(table(rates, losses, smoothed, best)))
    plot = os.path.join(job.out, "find-lr.svg")
    write(plot, draw(rates, losses, smoothed, best))
    said = f"optimizer.lr={rates[best]:.2g}" if best is not None else "no rate: the loss falls nowhere"
    tell(f"psrun: suggested: {said}; the plot is {plot}")
    return 0
