"""Shared by the system tests: starts jobs and parts of jobs, and reads their results.

PS_BIN names the folder of the programs (ctest sets it).
"""
import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import unittest
import warnings
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "deploy")]

from benchlib.processes import children, descendants, environment, find_part  # noqa: E402,F401
from psrunlib import cli  # noqa: E402
from psrunlib.ports import free_port  # noqa: E402

# psrun runs with the Python of the tests, which has the modules that deploy/packages installs. What a version
# manager puts into PATH is a script that starts forty processes.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
BIN = Path(os.environ.get("PS_BIN", ROOT / "build/release/bin"))
PSRUN = ROOT / "deploy/psrun"
DIGITS = str(ROOT / "tests/system/digits.yaml")
BASICNET = str(ROOT / "configs/digits-basicnet.yaml")  # where a test is about what is learnt, or about sizes
# How long tests wait. It is more than a busy machine needs, and less than the defaults of
# net.join_timeout_ms and net.step_timeout_ms: a job that only these would end fails its test.
PATIENCE_S = 50
PF_EXITING, PF_SIGNALED = 0x4, 0x400  # of /proc/PID/stat's flags: include/linux/sched.h
# The digits' model without relu and max_pool, for weights that are compared with those of another program. A relu
# whose input is within a rounding of 0 has either slope: two correct programs are then far apart.
SMOOTH = ("model.layers=[{conv2d: {name: conv1, out: 32, kernel: 3}}, tanh, {conv2d: {name: conv2, out: 64, kernel: 3}}, "
          "tanh, {avg_pool2d: 2}, flatten, {linear: {name: fc1, out: 128}}, tanh, {linear: {name: fc2, out: 10}}, "
          "log_softmax]")
NIGHTLY = bool(os.environ.get("PS_NIGHTLY"))
LONG = ["train.epochs=100000", "schedule.name=constant", "train.log_every=10"]


def wait_until(holds, what="it does not come", seconds=PATIENCE_S):
    """Waits until holds() is true, and returns what it gave. what: the error's words, or what returns them."""
    end = time.monotonic() + seconds
    began = time.monotonic()
    while not (found := holds()):
        now = time.monotonic()
        if now > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(max(0.01, 4 * (now - began)))  # a long log is not read all the time
        began = time.monotonic()
    return found


def read_until(lines, words):
    """Reads lines until one has these words. Returns whether one had: who writes them may have ended before."""
    return any(words in line for line in iter(lines.readline, ""))


def run_well(argv, code=0, timeout=300, **more):
    """Runs a program to its end and checks its exit code. Returns its output."""
    done = subprocess.run(list(map(str, argv)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, **more)
    if done.returncode != code:
        raise AssertionError(f"{argv}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def on_terminal(argv, columns, code=0, **more):
    """Runs a program on a terminal of that width, and checks that its lines fit. Returns its output without colours."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(list(map(str, argv)), stdin=its, stdout=its, stderr=its, **more) as program:
        os.close(its)
        said = b""
        with contextlib.suppress(OSError):  # EIO: all its ends are closed
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    text = re.sub(r"\x1b\[\d*[mK]", "", said.decode()).replace("\r\n", "\n")
    long = [line for line in text.splitlines() if len(line) > columns]
    if program.returncode != code or long:
        raise AssertionError(f"{argv}: exit code {program.returncode}\n{text}\ntoo long: {long}")
    return text


def listening_ports(pid):
    """The TCP ports on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        inodes.add(link[len("socket:["):-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            rows = [line.split() for line in f.readlines()[1:]]
        ports |= {int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}
    return ports


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) * 1024


@functools.lru_cache
def torch_python():
    """The Python whose PyTorch is the yardstick: PS_TORCH_PYTHON, Debian's, or the tests' own. None: there is none."""
    named = os.environ.get("PS_TORCH_PYTHON")
    return next((python for python in ([named] if named else ["/usr/bin/python3", sys.executable]) if subprocess.run(
        [python, "-c", "import torch, numpy"], stderr=subprocess.DEVNULL, timeout=5 * PATIENCE_S).returncode == 0), None)


def python_with(*modules):
    """A Python that has them: that of PS_EXTRAS_PYTHON, else the yardstick's. Without one the test is skipped."""
    python = os.environ.get("PS_EXTRAS_PYTHON") or torch_python() or sys.executable
    missing = [name for name in modules if subprocess.run([python, "-c", "import importlib.util as u, sys; "
                                                           f"sys.exit(u.find_spec({name!r}) is None)"]).returncode != 0]
    if missing:
        raise unittest.SkipTest(f"{python} has no {', '.join(missing)} (pip); PS_EXTRAS_PYTHON names another")
    return python


def sizes(mode, servers, workers=None):
    """psrun's options; other modes than ps have no servers."""
    return ["-m", mode, *(["-s", servers] if mode == "ps" else []), *([] if workers is None else ["-w", workers])]


def first(n, cases):
    """The first n of several cases of one kind; all of them in the nightly run."""
    return cases if NIGHTLY else cases[:n]


def nightly(test):
    """For a case or a class that looks at accuracy, at speed or at many seeds, or whose contract a cheaper test of
    every run holds: it runs in tests/run --nightly (PS_NIGHTLY), or where the command line names it."""
    asked = NIGHTLY or any(test.__name__ in word.split(".") for word in sys.argv[1:])
    return test if asked else None


def alive(mark):
    """(process id, command line) of the processes whose command line contains the mark. Zombies
    are left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append((int(entry.name), line))
    return found


def is_killed(pid):
    """Whether a SIGKILL waits for the process, or ends it now, as that of a part whose psrun was killed does."""
    try:
        pending = re.findall(r"^S[ih][gd]Pnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.M)
        flags = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[6])
    except (OSError, ValueError):
        return True
    return bool(flags & (PF_EXITING | PF_SIGNALED)) or any(int(word, 16) >> (signal.SIGKILL - 1) & 1 for word in pending)


def wrapped_bin(folder, name, before):
    """Makes a folder of links to the programs. There the program `name` first runs the sh commands `before`."""
    os.mkdir(folder)
    for program in os.listdir(BIN):
        if program != name:
            os.symlink(BIN.resolve() / program, os.path.join(folder, program))
    wrapper = Path(folder, name)
    wrapper.write_text(f'#!/bin/sh\n{before}\nexec {BIN.resolve()}/{name} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)


def stands_still(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rpartition(")")[2].split()[0] == "T"


def read_safetensors(path):
    """Returns {name: (dtype, shape, values)} and the metadata."""
    raw = Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = array({"F32": "f", "I64": "q"}[entry["dtype"]])
        values.frombytes(raw[8 + n + begin : 8 + n + end])
        tensors[name] = (entry["dtype"], entry["shape"], values)
    return tensors, metadata


def npy(descr, shape, body):
    """Returns the bytes of a .npy file: npy("<f4", "(2, 3)", bytes(24))."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


class Process:
    """A process whose words are kept."""

    def __init__(self, name, argv, env):
        self.name, self.env = name, env
        self.log = tempfile.TemporaryFile(mode="w+")
        self.popen = subprocess.Popen(list(map(str, argv)), env=dict(os.environ, **env), stdin=subprocess.DEVNULL,
                                      stdout=self.log, stderr=subprocess.STDOUT)

    def end(self):
        kill(self.popen)
        self.log.close()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_for(self, pattern, seconds=PATIENCE_S):
        never = lambda: f"{self.name} never said {pattern!r}:\n{self.text()}"
        wait_until(lambda: self.popen.poll() is not None or re.search(pattern, self.text()), never, seconds)
        if not re.search(pattern, self.text()):  # its last words may have come between that look and its end
            raise AssertionError(never())


class Part(Process):
    """One process of a job, started by hand."""

    def __init__(self, role, rank, args, env, prefix=()):
        super().__init__(f"{role} {rank}", [*prefix, BIN / f"ps-{role}", *args], env)
        self.args = list(args)


def kill(process):
    """Kills a process if it runs, waits for its end, and closes what it wrote into."""
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def cpu_s(pid):
    """The seconds for which the process has run on a CPU, see clock_getcpuclockid(3). Zombies keep theirs."""
    return time.clock_gettime((~pid << 3) | 2)


# Threads that also run while the others of their process wait.
HOUSEKEEPING = ("clock", "signals", "member", "coordinator", "monitor", "gate", "ZMQbg")


def at_work(pid):
    """Whether a thread that computes, reads or exchanges runs, or waits for a CPU."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, _, rest = stat.read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        if rest.split()[0] == "R" and not name.startswith(HOUSEKEEPING):
            return True
    return False


class Psrun(subprocess.Popen):
    """psrun in a process forked from this one, which has imported it: the start of a Python takes a third of what a
    small job does. test_interrupts, test_ssh and test_snippets start it as people do."""

    def __init__(self, argv, env=None, before=lambda: None, stdout=subprocess.PIPE, **more):
        argv = list(map(str, argv))
        super().__init__(argv, preexec_fn=lambda: (before(), self._become(argv[1:], env)), stdout=stdout,
                         **{"stderr": subprocess.STDOUT, "text": True, **more})

    @classmethod
    def run(cls, argv, timeout=300, **more):
        """As subprocess.run, with all that it writes in stdout."""
        with cls(argv, **more) as psrun:
            try:
                said, _ = psrun.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                psrun.kill()
                raise
        return subprocess.CompletedProcess(argv, psrun.returncode, said)

    @staticmethod
    def _become(argv, env):
        os.closerange(3, 1024)  # that of Popen, too, which waits until it is closed
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python begins
        warnings.simplefilter("ignore")  # unittest shows them
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as deploy/psrun does
        sys.stdout = open(1, "w", encoding=os.environ.get("PYTHONIOENCODING", "utf-8"), closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        code = 1
        try:
            code = cli.main(argv)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


needs_memory_groups = unittest.skipUnless(os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK),
                                          "no memory cgroups (version 1) of our own")


class TurnTaking:
    """Until the end of a `with`, lets one of a job's workers run a tenth as long as each of the others.

    CPU time counts: on a busy machine, too, it is the slowest. Where the others wait for it, it has a turn after
    each pause, and after MOST_S in any case: so short a stop is told as slowness.
    """

    MOST_S = 0.4

    def __init__(self, psrun, slow, pause_s=0.018):
        self.pause_s = pause_s
        self.pid = find_part(psrun, "worker", slow)
        parts = [(name, pid) for name, pid in descendants(psrun) if pid != self.pid]
        self.others = [pid for _, pid in parts]
        self.workers = [self.pid] + [pid for name, pid in parts if name == "ps-worker"]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            began = {pid: cpu_s(pid) for pid in self.workers}
            while not self.over.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self._pause(began)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.002)
        except OSError:  # a worker has ended
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def _pause(self, began):
        start = last_seen = time.monotonic()  # that another part was at work
        while not self.over.is_set() and time.monotonic() < min(last_seen + self.pause_s, start + self.MOST_S):
            time.sleep(self.pause_s / 3)
            ran, *others = (cpu_s(pid) - at for pid, at in began.items())
            if min(others) < 10 * ran and any(map(at_work, self.others)):
                last_seen = time.monotonic()

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def as_prefix(env):
    """Variables, as the prefix of a command line."""
    return ["env", *(f"{name}={value}" for name, value in env.items())]


class Preloaded:
    """What processes need to run with a library of tests/support before their own: variables (env), or a prefix of
    their command lines."""

    def __init__(self, library, **variables):
        self.env = {"LD_PRELOAD": f"{BIN}/lib{library}.so", "ASAN_OPTIONS": "verify_asan_link_order=0", **variables}
        self.prefix = as_prefix(self.env)


class SlowDevice(Preloaded):
    """A device on which every call of oneDNN takes that much longer, without processor time. folder: for slower()."""

    def __init__(self, us, folder=""):
        super().__init__("slow_device", PS_SLOW_DEVICE_US=str(us), PS_SLOW_DEVICE_SLOWER=folder)
        self.folder = folder

    @contextlib.contextmanager
    def slower(self, psrun, worker):
        """Until its end one of a job's workers is ten times as slow."""
        os.makedirs(self.folder, exist_ok=True)
        path = Path(self.folder, str(find_part(psrun, "worker", worker)))
        path.touch()
        try:
            yield
        finally:
            path.unlink()


class SlowDisk(Preloaded):
    """A disk on which reads and writes of named files wait until the test lets them go on."""

    def __init__(self, folder):
        super().__init__("slow_disk", PS_SLOW_DISK=folder)
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def hold(self, name):
        with open(os.path.join(self.folder, name), "w", encoding="ascii"):
            pass

    def let_go(self, name):
        os.unlink(os.path.join(self.folder, name))

    def hold_job(self, *steps):
        """At these steps, of those of train.save_every, a job waits: it is not over before it is disturbed."""
        for step in steps:
            self.hold(self.unfinished(step))

    def let_job_go(self, step):
        self.let_go(self.unfinished(step))

    @staticmethod
    def unfinished(step):
        """The file that a job writes at that step, until it is whole."""
        return f"step-{step}.safetensors.tmp"


class Faults:
    """Moments at which processes of a job are killed, stopped or held, see common/base/fault_point.h: of the form
    [ROLE@]NAME:N:kill|stop|hold. env is what the job needs in its environment, prefix the same before its command
    lines."""

    def __init__(self, folder, *armed):
        self.folder = folder
        self.env = {"PS_TEST_FAULT": ",".join(armed), "PS_TEST_FAULT_AT": folder}
        self.prefix = as_prefix(self.env)
        os.makedirs(folder)

    def have_been(self):
        return sorted(name for name in os.listdir(self.folder) if not name.endswith(".go"))

    def wait_for(self, name, process):
        """Waits until somebody is there; process is the job's."""
        wait_until(lambda: process.poll() is not None or name in self.have_been(), f"nobody came to {name}")
        if name not in self.have_been():
            raise AssertionError(f"the job ended before {name}")

    def let_go(self, name):
        Path(self.folder, f"{name}.go").touch()


def clicks_model(bottom, rows, *top):
    """A configuration's model for Criteo's files: the counts through the layers `bottom`, products of pairs of that and
    of each table's row, then the layers `top`. rows: settings of the tables."""
    return f"""model:
  input: [13]
  loss: bce_with_logits
  layers:
    - interaction:
        name: pairs
        branches:
          - [{bottom}]
          - [embedding_bag: {{name: rows, {rows}}}]
""" + "".join(f"    - {layer}\n" for layer in top)


class JobTest(unittest.TestCase):
    """A test with a folder of its own; no process that names the folder outlives it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="pstrain-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(self._nothing_left)

    def _nothing_left(self):
        left = [(pid, line) for pid, line in alive(self.folder) if not is_killed(pid)]
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "processes were left running")

    def memory_group(self, mib):
        """A cgroup with so much memory. Who writes 0 into what is returned, enters it."""
        group = Path(tempfile.mkdtemp(prefix="pstrain-test-", dir="/sys/fs/cgroup/memory"))
        self.addCleanup(group.rmdir)
        (group / "memory.limit_in_bytes").write_text(str(mib << 20), encoding="ascii")
        return group / "cgroup.procs"

    def psrun_argv(self, *args, out="out"):
        return [str(PSRUN), "--build-dir", str(BIN.parent), "--out",
                os.path.join(self.folder, out), *map(str, args)]

    def patient_psrun(self, *args, out="out"):
        """The command line of a psrun that gives parts more than PATIENCE_S to end by themselves."""
        program = ("import sys; from psrunlib import cli, supervise;"
                   f"supervise.GRACE_S = supervise.KILL_S = {4 * PATIENCE_S}; sys.exit(cli.main(sys.argv[1:]))")
        return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'deploy')!r}); {program}",
                *self.psrun_argv(*args, out=out)[1:]]

    def train_by_hand(self, python, script, keys, *given):
        """tests/system/SCRIPT trains the digits in PyTorch: given job, first weights and *given, it writes
        by-hand.safetensors."""
        run = lambda *argv: subprocess.run(list(map(str, argv)), check=True, stdout=subprocess.PIPE, text=True).stdout
        job, init, result = (os.path.join(self.folder, name)
                             for name in ("job.json", "init.safetensors", "by-hand.safetensors"))
        with open(job, "w", encoding="utf-8") as f:
            f.write(run(BIN / "ps-config-json", DIGITS, *keys))
        run(BIN / "ps-bench-step", "--weights", init, DIGITS, *keys)
        run(python, ROOT / "tests/system" / script, job, init, *given, result)

    def psrun(self, *args, out="out", code=0, timeout=300):
        """Runs psrun to its end and checks its exit code. Returns its output."""
        done = Psrun.run(self.psrun_argv(*args, out=out), timeout)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def start_psrun(self, *args, out="out", **more):
        """Starts psrun, which the end of the test ends."""
        psrun = Psrun(self.psrun_argv(*args, out=out), **more)
        self.addCleanup(kill, psrun)
        return psrun

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def text_of(self, *names):
        return Path(self.path(*names)).read_text(encoding="utf-8")

    def file(self, name, text):
        """Writes a file. Returns its path."""
        Path(self.path(name)).write_text(text, encoding="utf-8")
        return self.path(name)

    def summary(self, out="out"):
        return json.loads(self.text_of(out, "summary.json"))

    def records(self, out="out", name="metrics.jsonl"):
        """Those that are whole: a job may be writing the next one."""
        return [json.loads(line) for line in self.text_of(out, name).split("\n")[:-1]]

    def weights(self, out="out"):
        return Path(self.path(out, "model.safetensors")).read_bytes()

    def wide_model(self, width=16384):
        """An MLP of 64 x width x 64 x 10. With 16384 it has 2.1 million weights, 8.5 MB."""
        return self.file("wide.yaml", f"model:\n  input: [64]\n  layers:\n    - linear: {width}\n    - relu\n"
                         "    - linear: 64\n    - relu\n    - linear: 10\n"
                         "data: {kind: synthetic, batch: 8}\noptimizer: {name: adamw}\n")

    def wait_for_steps(self, out, records=1):
        """Waits until metrics.jsonl has that many lines."""
        path = Path(self.path(out, "metrics.jsonl"))
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= records, "too few steps were made")

    def keys(self, name="keys"):
        """Returns a folder with the keys of a job. The same name gives the same folder."""
        folder = self.path(name)
        subprocess.run([BIN / "ps-server", "--make-keys", folder], check=True)
        return folder

    def start_job(self, servers, workers, *settings, config=DIGITS, skip=(), host="127.0.0.1",
                  prefix=()):
        """Starts parts by hand, except those in skip. Returns {name: Part}. host is the coordinator's, and prefix
        comes before each command line. A setting or the prefix may be a function of role and rank."""
        env = {"MASTER_ADDR": host, "MASTER_PORT": str(free_port()),
               "WORLD_SIZE": str(workers), "PS_SERVERS": str(servers)}
        args = ["--config", config]
        parts = {}

        def of(role, rank):
            given = [s(role, rank) if callable(s) else s for s in settings]
            return [word for setting in given for word in ("--set", setting)]

        for rank in range(servers):
            self._start(parts, "server", rank, args + of("server", rank),
                        dict(env, PS_SERVER_RANK=str(rank)), skip, prefix)
        for rank in range(workers):
            out = ["--out", self.path(f"worker-{rank}"), "--overwrite"]  # the test may have had an earlier job
            self._start(parts, "worker", rank, args + of("worker", rank) + out,
                        dict(env, RANK=str(rank)), skip, prefix)
        return parts

    def _start(self, parts, role, rank, args, env, skip, prefix):
        if f"{role} {rank}" in skip:
            return
        part = Part(role, rank, args, env, prefix(role, rank) if callable(prefix) else prefix)
        parts[part.name] = part
        self.addCleanup(part.end)

    def wait_all(self, parts, seconds=PATIENCE_S):
        """Waits for the end of every part. Returns {name: exit code}."""
        end = time.monotonic() + seconds
        codes = {}
        for name, part in parts.items():
            try:
                codes[name] = part.popen.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                logs = "\n".join(f"--- {n}\n{p.text()}" for n, p in parts.items())
                self.fail(f"{name} had not ended after {seconds} s\n{logs}")
        return codes
