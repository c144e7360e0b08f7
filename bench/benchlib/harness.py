"""What every command shares: its options, its rounds, its report, and the way in which it ends."""
import argparse
import datetime
import json
import os
import sys

from .job_config import ROOT, BenchError

NAME = os.path.basename(sys.argv[0])  # of the command


class Cannot(BenchError):
    """This machine cannot measure it; the exit code is that of test programs that skip."""


def words(text):
    return [w for w in text.split(",") if w]


def numbers(text):
    return [int(w) for w in words(text)]


def parser(doc, rounds=None, torch=True, workers=None, servers=None, mbit=False):
    """Of the options that commands have in common. rounds, workers, servers: the defaults."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds:
        p.add_argument("--rounds", type=int, default=rounds,
                       help=f"how often everything is measured, in turn (default: {rounds})")
    for name, value in (("workers", workers), ("servers", servers)):
        if value is not None:
            p.add_argument(f"-{name[0]}", f"--{name}", type=int, default=value, help=f"(default: {value})")
    if mbit:
        p.add_argument("--mbit", type=int, metavar="M",
                       help="a host for each part, emulated, on links of that many Mbit/s (needs root; default: this host alone)")
    if torch:
        p.add_argument("--torch", metavar="P", default=os.environ.get("PS_TORCH_PYTHON", "python3"),
                       help="a Python that can import torch (default: PS_TORCH_PYTHON, or python3); none: without")
    p.add_argument("--build-dir", metavar="DIR")
    p.add_argument("--out", metavar="DIR", default=os.path.join("runs", NAME),
                   help=f"folder for the results (default: runs/{NAME})")
    return p


def add_job(p, config=None):
    """CONFIG key=value ...; config: the default."""
    p.add_argument("config", metavar="CONFIG", **({"nargs": "?", "default": config} if config else {}))
    p.add_argument("keys", metavar="key=value", nargs="*", help="further keys of the configuration")


def add_words(p, nargs):
    """CONFIG and key=value in any order."""
    p.add_argument("words", metavar="CONFIG|key=value", nargs=nargs)


def parse(p, argv):
    args = p.parse_intermixed_args(argv)
    if hasattr(args, "words"):
        args.configs = [w for w in args.words if "=" not in w]
        args.keys = [w for w in args.words if "=" in w]
    if "=" in getattr(args, "config", ""):  # no CONFIG was given
        args.keys.insert(0, args.config)
        args.config = p.get_default("config")
    return args


def run(main):
    """Calls main with the words of the command line, and ends the command."""
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(77 if isinstance(error, Cannot) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def report(args, **figures):
    """Writes OUT/NAME.json: where, when and how it was measured, the options, and the figures. Returns its path."""
    options = {key: value for key, value in vars(args).items() if key not in ("out", "build_dir", "torch", "words")}
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, f"{NAME}.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**origin(), **options, **figures}, f, indent=1)
        f.write("\n")
    return path


def origin():
    tool = os.path.relpath(os.path.realpath(sys.argv[0]), ROOT)
    return {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": " ".join([tool, *sys.argv[1:]]), "machine": _machine()}


def _value_of(path, key, separator):
    with open(path, encoding="utf-8") as f:
        return next((line.split(separator, 1)[1].strip().strip('"') for line in f if line.startswith(key)), "unknown")


def _machine():
    return {"cpu": _value_of("/proc/cpuinfo", "model name", ":"), "cores": len(os.sched_getaffinity(0)),
            "kernel": os.uname().release, "system": _value_of("/etc/os-release", "PRETTY_NAME=", "="),
            "python": sys.version.split()[0]}


def cell(spread, form="{:.2f}", scale=1.0):
    """The median of a stats.spread; "-" for None."""
    return form.format(spread["median"] * scale) if spread else "-"


def span(spread, form="{:.2f}"):
    """The median, and the least and the largest value."""
    if not spread:
        return "-"
    return f"{form.format(spread['median'])} ({form.format(spread['min'])}-{form.format(spread['max'])})"


def mean(found, sign=""):
    """Of a stats.error_of."""
    if not found:
        return "-"
    return f"{found['mean']:{sign}.4f}" + (f" +- {found['error']:.4f}" if found["error"] is not None else "")


def table(head, rows, left=1):
    """Lines of text; the first `left` columns stand on the left."""
    rows = [head, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
            for row in rows]


def show(*tables):
    """Prints tables that have rows below their heads, with an empty line before each."""
    for lines in tables:
        if len(lines) > 1:
            print("\n" + "\n".join(lines))
