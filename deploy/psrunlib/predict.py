"""psrun --predict over several workers: each predicts a share of the samples (ps-worker --share),
here or on the hosts of a hostfile, and ps-worker --join-shares puts the shares together."""
import glob
import os
import subprocess

from . import job as jobs
from . import places, remote
from .errors import JobError
from .out import Before, Out, remove_empty
from .screen import Screen
from .supervise import Supervisor

SHARES = "*-of-*"
FOLDER = "predict"  # in the folder of the results, as in worker/evaluate/predictions.h


def predict(job, args, launch):
    """job: its workers predict. launch: part -> process. Returns the exit code."""
    taken = os.path.join(job.out, "predictions.npy")
    if os.path.lexists(taken) and not job.overwrite:
        raise JobError(f"{taken} is there already: give --overwrite, or another --out")
    parts = job.predicting(args.predict)
    if job.hosts:
        remote.check_hosts(job.hosts, {h.name: {p.argv[0] for p in parts if p.host is h} for h in job.hosts},
                           job.config, jobs.versions(job.build_dir, ["ps-worker"]))
    folder = os.path.join(job.out, FOLDER)
    made = not os.path.isdir(job.out)
    with Out(folder, fresh=False, overwrite=True) as out:
        remove_shares(folder)
        before = Before(folder)
        try:
            code = supervise(job, parts, args.verbose, launch, out)
            if code == 0:
                code = join(job, folder, before)
            out.drops_logs |= code == 0
        finally:
            remove_shares(folder)
        for host in job.hosts:
            remote.remove(host, folder, SHARES)
    if code == 0:
        remove_empty(folder)
    elif made:
        remove_empty(job.out)
    return code


def supervise(job, parts, verbose, launch, out):
    supervisor = Supervisor(Screen(verbose=verbose), launch, out.logs, job.facts["net.dead_after_ms"] / 1000)
    supervisor.ending = "ending in order; nothing is kept"
    supervisor.when_killed = "give the same command again"
    supervisor.drops_logs = out.made
    code = supervisor.run(parts)
    out.drops_logs = supervisor.drops_logs and not supervisor.needs_logs
    return code


def join(job, folder, before):
    if job.hosts:
        remote.fetch_all(job.hosts, folder, before)
    argv = [places.program(job.build_dir, "ps-worker"), "--config", job.config, "--join-shares", str(job.workers), "--out", job.out]
    argv += jobs.set_words(job.overrides) + ["--overwrite"] * job.overwrite
    return subprocess.run(argv, check=False).returncode


def remove_shares(folder):
    for path in glob.glob(os.path.join(glob.escape(folder), SHARES)):
        os.remove(path)
