"""psrun --mps: workers that share a GPU run on it together, not in turns, by NVIDIA's Multi-Process Service. The job has
a daemon of its own, whose files nobody else finds. A guard ends it however psrun ends, by SIGKILL too."""
import contextlib
import os
import shutil
import subprocess
import tempfile

from . import helpers
from . import job as jobs
from .errors import JobError

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"
STARTS_WITHIN_S, KILLED_WITHIN_S, ENDS_WITHIN_S = 30, 10, 60
MOST_OF_TMPDIR = 60  # bytes

# Starts the daemon, and says with which exit code. Waits until psrun closes its standard input, or is gone, and ends
# the daemon. One that does not end soon after it was told to is killed, with its servers, which would keep the GPU; its
# number may be another program's by then.
GUARD = f"""
ends() {{ # process $1, within $2 tenths of a second; what is dead has no command line
    for n in $(seq "$2"); do
        [ -n "$(tr -d '\\0' < "/proc/$1/cmdline" 2>/dev/null)" ] || return 0
        sleep 0.1
    done
    return 1
}}
timeout -k 5 {STARTS_WITHIN_S} {CONTROL} -d > "${LOGS}/start.log" 2>&1
(echo $?) # a shell of its own: psrun may be gone, and a SIGPIPE ends the one that writes
exec > /dev/null
trap '' HUP INT TERM
read -r line
echo 'quit -t 10' | timeout -s KILL 30 {CONTROL}
pid=$(cat "${PIPES}/{CONTROL}.pid" 2>/dev/null)
case $(cat "/proc/$pid/comm" 2>/dev/null) in nvidia-cuda-mps*)
    all="$pid $(cat "/proc/$pid/task/$pid/children" 2>/dev/null)"
    ends "$pid" 20 || kill -9 $all
    for pid in $all; do ends "$pid" 100; done ;;
esac
rm -rf "${PIPES}"
"""


def check(facts, hosts):
    """Before anything is started."""
    if hosts:
        raise JobError(f"--mps is for the workers of this machine, not of those of -H: start {CONTROL} -d on each of them")
    if str(facts.get("train.device", "")) == "cpu":
        raise JobError("--mps lets workers share a GPU, and train.device is cpu: leave --mps out")
    if os.environ.get(PIPES):
        raise JobError(f"--mps: {PIPES} is set: the workers use the daemon there already: leave --mps out, or the variable")
    if "MIG-" in os.environ.get(VISIBLE, ""):
        raise JobError(f"--mps: {VISIBLE} names parts of GPUs (MIG), of which each worker has its own: leave --mps out")
    if not shutil.which(CONTROL):
        raise JobError(f"--mps: there is no {CONTROL} on this machine: it comes with NVIDIA's driver (Debian: "
                       "nvidia-cuda-mps, Ubuntu: nvidia-compute-utils); without --mps the workers of a GPU take turns")


class Daemon:
    """For use with `with`: it runs meanwhile. environment: what the parts of the job get."""

    def __init__(self, logs_dir):
        """logs_dir: the folder of its logs, which is made."""
        self.logs_dir = os.path.abspath(logs_dir)
        self.environment, self._guard = {}, None

    def __enter__(self):
        pipes = tempfile.mkdtemp(prefix="pstrain-mps-", dir=short_folder())
        self.environment = {PIPES: pipes, LOGS: self.logs_dir, **seen_by_clients()}
        try:
            os.makedirs(self.logs_dir, exist_ok=True)
            self._guard = subprocess.Popen(["sh", "-c", GUARD], env={**os.environ, PIPES: pipes, LOGS: self.logs_dir},
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                           start_new_session=True, text=True)
            told = helpers.says(self._guard, STARTS_WITHIN_S + KILLED_WITHIN_S)  # else it waits for a driver that hangs
            self._check_start(self._guard.stdout.readline().strip() if told else "124")
        except BaseException:
            self.__exit__()
            if not self._guard:
                shutil.rmtree(pipes)
            raise
        return self

    def _check_start(self, code):
        if code == "0":
            return
        text = ""
        with contextlib.suppress(FileNotFoundError), \
                open(os.path.join(self.logs_dir, "start.log"), encoding="utf-8", errors="replace") as said:
            text = " ".join(said.read().split())
        how = f"has not started within {STARTS_WITHIN_S} s" if code in ("124", "137") else f"ended with {code or 'its guard'}"
        raise JobError(f"--mps: {CONTROL} -d {how}: {text or 'it said nothing'}; its logs are in {self.logs_dir}")

    def __exit__(self, *_):
        if self._guard:
            self._guard.stdin.close()
            self._guard.stdout.close()
            try:
                self._guard.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                pass  # a driver that hangs; the guard goes on


def short_folder():
    """For sockets, whose names have at most 107 bytes."""
    return tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= MOST_OF_TMPDIR else "/tmp"


def seen_by_clients():
    """The daemon takes the GPUs that CUDA_VISIBLE_DEVICES names. To its clients these are 0, 1, ...; the names of GPUs
    stay (NVIDIA's documentation of MPS)."""
    entries = os.environ.get(VISIBLE, "").split(",")
    if not entries[0].strip().isdigit():
        return {}
    return {VISIBLE: ",".join(map(str, range(jobs.count_visible(",".join(entries)))))}
