"""Elastic jobs (job.workers: 2..8): parts that may end while the job goes on, psrun --join, and
psrun --replay-membership."""
import argparse
import json
import os
import signal
import subprocess

from . import jobfile
from .errors import JobError
from .local import die_with_parent
from .regular_file import open_text
from .restarts import is_passing
from .screen import tell
from .supervise import END_SIGNALS, RESUMABLE, listens_to


class Elastic:
    """Which parts the job can do without."""

    def __init__(self, fewest):
        self.fewest = fewest
        self.workers = 0  # of the job, as worker 0 says, less those that have died since

    def hear(self, event):
        if event["event"] == "workers":
            self.workers = event["n"]

    @staticmethod
    def may_go(part):
        """Worker 0 has the checkpoint."""
        return part.role == "worker" and part.rank != 0

    def leaves(self, watched):
        """Whether it was told to end, and the others go on."""
        return self.may_go(watched.part) and watched.told == signal.SIGTERM

    def goes_on_without(self, watched):
        """Whether the job goes on although the part has failed. Counts it."""
        if not self.may_go(watched.part) or not is_passing(watched) or self.workers <= self.fewest:
            return False
        self.workers -= 1
        return True


def join(args, plan_job):
    """Starts one more worker for the job that runs in the folder args.join; returns its exit code.
    Ctrl-C and SIGTERM make it leave."""
    if args.config:
        raise JobError(f"--join {args.join}: the run knows its configuration: do not name another one")
    known = jobfile.recall(args, args.join, "--join")
    args.resume = None
    if not known.get("elastic"):
        raise JobError(f"--join {args.join}: the job has a fixed number of workers: give job.workers a range, "
                       "such as 2..8")
    job = plan_job(args)
    job.master_addr, job.master_port = known["master"]
    part = job.newcomer()
    child, told = None, False

    def leave(number, frame):
        nonlocal told
        told = True
        if child:
            child.send_signal(signal.SIGTERM)

    for number in filter(listens_to, END_SIGNALS):
        signal.signal(number, leave)
    child = subprocess.Popen(part.argv, env=dict(os.environ, **part.env), stdin=subprocess.DEVNULL,
                             start_new_session=True, preexec_fn=die_with_parent)
    if told:  # before there was one to tell
        child.send_signal(signal.SIGTERM)
    code = child.wait()
    return 128 - code if code < 0 else code


def read_log(path):
    """[(first step, workers)], one for each change of the number."""
    try:
        with open_text(path) as f:
            lines = [json.loads(line) for line in f]
        stretches = [(int(line["step"]), int(line["workers"])) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"--replay-membership {path}: cannot read it: {error}") from error
    if not stretches or stretches[0][0] != 0:
        raise JobError(f"--replay-membership {path}: it does not begin at step 0: the run went on from "
                       "a checkpoint of another folder")
    return [s for i, s in enumerate(stretches) if i == 0 or s[1] != stretches[i - 1][1]]


def replay(args, plan_job, run):
    """Repeats a run: each stretch of steps as a job of its own that goes on from the one before, with
    as many workers as there were. Returns the exit code."""
    args.overrides = [jobfile.OWN_CHECKPOINTS, *args.overrides]
    if not args.config:
        jobfile.recall(args, os.path.dirname(os.path.abspath(args.replay_membership)), "--replay-membership")
        args.resume = None
    stretches = read_log(args.replay_membership)
    for i, (step, workers) in enumerate(stretches):
        last = i + 1 == len(stretches)
        one = argparse.Namespace(**vars(args))
        one.workers = str(workers)
        one.overrides = [*args.overrides, f"job.workers={workers}..{workers}"]
        if not last:
            one.overrides.append(f"train.stop_after={stretches[i + 1][0]}")
        if i > 0:
            one.resume, one.overwrite = args.out, False
        job = plan_job(one)
        args.out = job.out
        tell(f"psrun: {workers} workers from step {step}")
        code = run(job, args.verbose)
        args.out = job.out  # it may have chosen another name
        if code != (0 if last else RESUMABLE):
            return code or 1
    return 0
