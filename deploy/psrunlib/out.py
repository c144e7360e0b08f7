"""The folder of a job's results and logs. One job at a time uses it; a folder that psrun made
and that stayed empty is removed."""
import errno
import fcntl
import glob
import os

from .errors import JobError

# The files that worker 0 writes, and replaces with --overwrite, as in worker/results/run_dir.h.
RESULTS = ("metrics.jsonl", "summary.json", "model.safetensors", "best.safetensors", "ema.safetensors", "trace.json",
           "membership.jsonl", "evaluation.json", "evaluation.svg", "config.json", "classes.txt", "curves.svg",
           "checkpoints")
# The other files of a run. psrun or the parts write them.
LOGS = ("logs/server-*.log", "logs/worker-*.log", "logs/mps/*.log")
TRACE = "trace"  # the folder
TRACES = (f"{TRACE}/*.trace", "events.out.tfevents.*", "find-lr.svg")
JOB = "job.json"  # removed if the job wrote no results


class Out:
    """For use with `with`: makes the folder, and at the end removes what stayed empty."""

    def __init__(self, path, fresh, overwrite, resumes=False, in_place=False):
        """fresh: choose another name if the folder exists. resumes: a run goes on; in_place: that in the folder."""
        self.path, self.fresh, self.overwrite, self.resumes, self.in_place = path, fresh, overwrite, resumes, in_place
        self.made, self.lock = False, None
        self.drops_logs = False  # all that they hold has been said

    @property
    def logs(self):
        return os.path.join(self.path, "logs")

    def __enter__(self):
        if not self.overwrite and not self.in_place:
            self._refuse_a_run()
        try:
            self._make()
            self._lock()
            # Logs of a start that failed; and what belongs to the run, unless that goes on.
            self._remove(LOGS + TRACES if self.overwrite and not self.in_place else LOGS)
        except OSError as error:
            hint = ": name another folder with --out" if self.fresh else ""
            raise JobError(f"cannot make {self.logs}: {error.strerror}{hint}") from error
        return self

    def __exit__(self, *_):
        if not self._holds():
            self._remove((JOB, *LOGS) if self.drops_logs else (JOB,))
            for log in glob.glob(os.path.join(glob.escape(self.logs), "*.log")):
                if os.path.isfile(log) and os.path.getsize(log) == 0:
                    os.remove(log)
        remove_empty(os.path.join(self.logs, "mps"))
        remove_empty(self.logs)
        if self.made:
            remove_empty(self.path)
        os.close(self.lock)

    def _holds(self):
        """The names of the results that the folder holds."""
        return [r for r in RESULTS if os.path.lexists(os.path.join(self.path, r))]

    def _refuse_a_run(self):
        found = [] if self.fresh else self._holds()
        if found:
            raise JobError(f"{self.path} holds a run already ({found[0]}): give another folder with "
                           "--out, or replace it with --overwrite")

    def _make(self):
        name, number = self.path, 1
        while True:
            while self.fresh and os.path.lexists(self.path):
                number += 1
                self.path = f"{name}-{number}"
            self.made = not os.path.isdir(self.path)
            try:
                os.makedirs(self.logs, exist_ok=not self.fresh)
                return
            except FileExistsError:
                if not self.fresh:
                    raise
                # another job was faster

    def _lock(self):
        """Locks the folder. On a file system without locks only worker 0 protects the results."""
        self.lock = os.open(self.logs, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                os.close(self.lock)
                raise JobError(f"another job is writing into {self.path}") from error

    def _remove(self, patterns):
        for pattern in patterns:
            for path in glob.glob(os.path.join(glob.escape(self.path), pattern)):
                if not os.path.isdir(path):
                    os.remove(path)


class Before:
    """The files of a folder before the job. Those that are others afterwards are the job's; times do not say so: clocks
    jump, and a file server has one of its own."""

    def __init__(self, *folders):
        self._seen = {path: _identity(path) for folder in folders for path in _paths(folder)}

    def is_new(self, path):
        return _identity(path) not in (None, self._seen.get(path))


def _paths(folder):
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _identity(path):
    try:
        at = os.stat(path)
    except OSError:
        return None
    return at.st_ino, at.st_mtime_ns, at.st_size


def is_in_use(folder):
    """Whether a job writes into that folder; also where its file system has no locks."""
    try:
        lock = os.open(os.path.join(folder, "logs"), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def remove_empty(folder):
    try:
        os.rmdir(folder)
    except OSError:
        pass  # it is not empty, or not there
