"""job.json in the folder of a run: which job it is, for psrun --resume and --join."""
import contextlib
import json
import os

from .errors import JobError
from .regular_file import new_text, open_text

JOB_FILE = "job.json"
# For a job that only repeats or tries something: those in the folder of the configuration are not its own.
OWN_CHECKPOINTS = "checkpoint.path="
NOTHING_KEPT = {"train.save_every": 0, "checkpoint.every": 0, "checkpoint.best": "none", "checkpoint.minutes": 0}


@contextlib.contextmanager
def remembered(job):
    """Writes into the job's folder what was asked for. A job that ends without a step leaves there what was there before,
    with the same time: a setting that was refused does not stay."""
    path = os.path.join(job.out, JOB_FILE)
    before = None
    with contextlib.suppress(OSError, ValueError):  # there is none, or none of ours
        with open_text(path) as f:
            before = f.read(), os.fstat(f.fileno()).st_mtime_ns
    _remember(job, path)
    try:
        yield
    finally:
        if before and not job.has_stepped:
            _write(path, *before)


def _write(path, text, time_ns=None):
    with contextlib.suppress(OSError):  # the job does not need the file; worker 0 reports a folder that cannot be written
        with new_text(path) as f:
            f.write(text)
        if time_ns is not None:
            os.utime(path, ns=(time_ns, time_ns))


def _remember(job, path):
    """Of a job with a program of the user's: where its page is."""
    known = {"page": [job.facts["metrics.bind"], job.facts["metrics.port"]], "program": bool(job.program)}
    if not job.program:
        known.update(
            config=os.path.abspath(job.config), overrides=job.overrides, mode=job.mode, servers=job.servers,
            workers=job.workers, elastic=job.elastic, curve=os.path.abspath(job.curve) if job.curve else "",
            master=[job.master_addr, job.master_port])
    _write(path, json.dumps(known, indent=1))


def read(run):
    """What psrun has written there. OSError, ValueError: there is no such file."""
    with open_text(os.path.join(run, JOB_FILE)) as f:
        known = json.load(f)
    if not isinstance(known, dict):
        raise ValueError(f"{JOB_FILE} is of another program")
    return known


NEEDED = {"config": str, "overrides": list, "mode": str, "servers": int, "workers": int}  # of the job of a configuration
OF_A_PROGRAM = {"--join": "psrun adds no worker to it"}  # what options do not do with it


def recall(args, run, option="--resume"):
    """Takes from the job.json of a run what the command line does not give. Returns
    what it holds; {} where the command line gives all. option: what the user has asked for."""
    if args.config:
        return {}
    try:
        known = read(run)
        if known.get("program"):
            why = OF_A_PROGRAM.get(option, "which itself loads what it has saved")
            raise JobError(f"{option} {run}: its workers are a program of your own, {why}")
        lacks = [key for key, kind in NEEDED.items() if not isinstance(known.get(key), kind)]
        if lacks:
            raise ValueError(f"{JOB_FILE} lacks {', '.join(sorted(lacks))}")
    except (OSError, ValueError) as error:
        mend = "give the folder of a job that runs on this host" if option == "--join" else "name its configuration, too"
        raise JobError(f"{option} {run}: cannot find out which job it was: {mend}: {error}") from error
    args.config = known["config"]
    args.overrides = known["overrides"] + args.overrides
    args.mode = args.mode or known["mode"]
    args.curve = args.curve or known.get("curve", "")
    args.workers = args.workers or str(known["workers"])
    if args.servers is None and args.mode == "ps":
        args.servers = known["servers"]
    return known


def recall_replayed(args):
    """The job of --replay's log: that of its folder, where the command line does not give all."""
    log = os.path.abspath(args.replay)
    try:
        with open_text(log):
            pass
    except OSError as error:
        raise JobError(f"--replay {args.replay}: cannot read it: {error.strerror}") from error
    args.overrides = [OWN_CHECKPOINTS, *args.overrides]
    recall(args, os.path.dirname(log), "--replay")
    args.resume = None
    args.overrides = [*args.overrides, f"sync.replay={log}"]
