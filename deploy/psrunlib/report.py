"""The table at the end of a job, from summary.json."""
import json
import os
import shlex
import subprocess

from . import helpers, places
from .errors import JobError
from .regular_file import new_text, open_text


def read_summary(out):
    path = os.path.join(out, "summary.json")
    try:
        with open_text(path) as f:
            summary = json.load(f)
    except (OSError, ValueError) as error:
        raise JobError(f"cannot read the summary {path}: {error}") from error
    if not isinstance(summary, dict):
        raise JobError(f"{path}: not the summary of a job")
    return summary


def add_to_summary(out, facts, before):
    """Adds the facts to a summary that the job has written (before: out.Before). A reader of the file sees the old one
    or the new one."""
    path = os.path.join(out, "summary.json")
    try:
        if not before.is_new(path):
            return
        with open_text(path) as f:
            summary = json.load(f)
        summary.update(facts)
        with new_text(path) as f:
            json.dump(summary, f, indent=2)
            f.write("\n")
    except FileNotFoundError:
        pass  # the job has left none
    except (OSError, ValueError) as error:
        raise JobError(f"cannot add to {path}: {error}") from error


def amount(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1000 or unit == "MiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024


def traffic(s):
    """The lines of it."""
    by_shm = bool(s["shm_bytes_sent_per_step"])
    for where, out, back in (("over sockets" * by_shm, "bytes_sent_per_step", "bytes_received_per_step"),
                             ("by shared memory", "shm_bytes_sent_per_step", "shm_bytes_received_per_step"))[:1 + by_shm]:
        yield f"{amount(s[out])} out, {amount(s[back])} in per worker and step {where}".rstrip()


def restarts(deaths, recovery):
    who = ", ".join(f"{d['part']} {d['cause']}" for d in deaths)
    return (f"{len(deaths)}, {recovery['seconds_lost']:,.1f} s and {recovery['steps_lost']:,} steps lost: "
            f"{who}")


def others(recovery):
    """What else has happened; "" if nothing has."""
    found = [f"{recovery[key]:,} {one if recovery[key] == 1 else many}"
             for key, one, many in (("joins", "worker joined", "workers joined"),
                                    ("leaves", "worker left", "workers left"),
                                    ("mended_connections", "lost connection mended", "lost connections mended"),
                                    ("repeated_messages", "message sent again", "messages sent again"))
             if recovery.get(key)]
    return ", ".join(found)


def by_worker(numbers):
    return ", ".join(f"{n:,.0f}" for n in numbers[:16]) + (", ..." if len(numbers) > 16 else "")


def policy(p):
    """Which gradients counted, where workers go on at their own pace."""
    pushes = "changes" if p["policy"] == "local" else "gradients"
    text = f"{p['policy']}, {p['counted']:,} {pushes} counted in {p['versions']:,} updates"
    if p["dropped"]:
        text += f", {p['dropped']:,} dropped"
    if len(p["staleness"]) > 1:
        mean = sum(i * n for i, n in enumerate(p["staleness"])) / p["counted"]
        text += f"; staleness {mean:.1f} (at most {len(p['staleness']) - 1})"
    shares = by_worker([100 * n / max(1, p["counted"]) for n in p["counted_by_worker"]])
    return f"{text}; workers' shares {shares} %"


def figure(value):
    """As people read it: 0.0412, 123.40, 61,130, 2.9e10 (common/base/readable.c)."""
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits}e{int(power)}"
    return f"{value:,.{4 if size < 10 else 2 if size < 1000 else 0}f}"


BEFORE_LOSS = [("accuracy", "test_accuracy"), ("R2", "test_r2"), ("MAE", "test_mae"), ("RMSE", "test_rmse")]
AFTER_LOSS = [("top-5", "test_top5_accuracy"), ("F1", "test_f1"), ("AUC", "test_auc")]


def test_figures(s):
    """null: there is none; of a loss: it is not finite, for which JSON has no number."""
    quality = s.get("test_quality")  # the key of the one to judge by
    first = [f for f in BEFORE_LOSS + AFTER_LOSS if f[1] == quality]
    yield from known(s, first + [f for f in BEFORE_LOSS if f[1] != quality])
    yield "loss not finite" if s["test_loss"] is None else f"loss {figure(s['test_loss'])}"
    yield from known(s, [f for f in AFTER_LOSS if f[1] != quality])


def known(s, names):
    return [f"{name} {figure(s[key])}" for name, key in names if s.get(key) is not None]


def count_tests(out):
    """Of metrics.jsonl; 0: it cannot be read."""
    try:
        with open_text(os.path.join(out, "metrics.jsonl")) as f:
            return sum('"test_loss":' in line for line in f)
    except (OSError, ValueError):
        return 0


def weights(s, best, tests):
    """best: the path of the best ones, where they are not those of the last epoch. tests: how many there were."""
    kept = f"of the last epoch, {s['epochs']:,}"
    if s["best_epoch"] == s["epochs"]:
        return kept if tests == 1 else f"{kept}, which tested best"
    how = f": psrun --predict NEW {shlex.quote(os.path.dirname(best))} --init {shlex.quote(best)}" if best else ""
    return f"{kept}; epoch {s['best_epoch']:,} tested better{how}"


def rows(s, best, tests):
    who = f"{s['workers']} worker{'s' if s['workers'] > 1 else ''}"
    if s["servers"]:
        who += f", {s['servers']} server{'s' if s['servers'] > 1 else ''}"
        if s["shards"] != s["servers"]:
            who += f" ({s['shards']} shards)"
    yield "mode", f"{s['mode']}, {who}"
    yield "model", f"{s['model']}, {s['params']:,} parameters"
    if s["steps"]:
        early = f"; stopped early, after epoch {s['epochs']:,}" if s.get("stopped_early") else ""
        yield "trained", f"{s['steps']:,} steps, {s['samples']:,} samples, {s['seconds']:,.1f} s{early}"
        yield "throughput", f"{s['samples_per_second']:,.0f} samples/s"
        if s.get("policy"):
            yield "policy", policy(s["policy"])
        if s.get("batches"):  # data.batch auto
            yield "batches", f"{by_worker(s['batches'])} samples of the workers in a step"
        if s.get("round_steps"):  # sync.steps_by_speed
            yield "rounds", f"{by_worker(s['round_steps'])} steps of the workers in a round"
        if s["step_ms_p50"]:  # 0 if all steps were warm-up
            yield "step", (f"{s['step_ms_p50']:,.2f} ms (p99 {s['step_ms_p99']:,.2f}), "
                           f"{s['exchange_wait_ms_p50']:,.2f} ms of it waiting for the exchange")
        yield from zip(("traffic", ""), traffic(s))
        if s["train_loss"] is not None:
            yield "train loss", ", ".join([figure(s["train_loss"]), *known(s, (("accuracy", "train_accuracy"),))])
    if s["test_accuracy"] is not None or s["test_loss"] is not None:
        yield "test", ", ".join(test_figures(s))
    if s.get("best_epoch"):
        yield "weights", weights(s, best, tests)
    if s.get("restarts"):
        yield "restarts", restarts(s["restarts"], s["recovery"])
    if others(s.get("recovery", {})):
        yield "events", others(s["recovery"])
    memory = f"{amount(s['peak_rss_bytes'])} the largest worker"
    if s.get("server_peak_rss_bytes"):
        memory += f", {amount(s['server_peak_rss_bytes'])} the largest server"
    if s.get("device_memory_bytes"):
        memory += f", {amount(s['device_memory_bytes'])} in use on the GPU"
    yield "memory", memory


def draw_curves(out):
    """Returns the path of the picture of losses and accuracies; None: there is nothing to draw."""
    show_runs = os.path.join(os.path.dirname(places.HERE), "show-runs")
    path = os.path.join(out, "curves.svg")
    try:
        done = helpers.run([show_runs, "--plot", path, out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None  # the wheel has none, and a disk may allow no programs
    return path if done.returncode == 0 else None


def show(out, screen):
    """Draws the curves, and shows the table."""
    summary = read_summary(out)
    screen.say()
    best = os.path.join(out, "best.safetensors")
    for name, value in rows(summary, best if os.path.exists(best) else None, count_tests(out)):
        screen.say(f"  {name:<11} {value}", indent=14)
    curves = draw_curves(out)
    screen.say(f"  {'results':<11} {out}" + (f", curves in {curves}" if curves else ""), indent=14)
