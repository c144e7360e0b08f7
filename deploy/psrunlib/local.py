"""Parts of a job as processes of this machine."""
import ctypes
import os
import resource
import shlex
import signal
import subprocess

from . import events

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # looked up here: after a fork, beside other threads, that could hang


def die_with_parent():
    """Asks the kernel to kill this process when psrun dies, even by SIGKILL."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# Descriptors that psrun needs: its own, and of each part the output, events, the log and, over ssh, the input.
OWN_DESCRIPTORS, PART_DESCRIPTORS = 64, 4


def allow_descriptors(n_parts):
    """Raises psrun's own soft limit, often 1024, where the parts need more."""
    need = OWN_DESCRIPTORS + PART_DESCRIPTORS * n_parts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        LocalProcess.limits = (soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


class LocalProcess:
    """A part that runs on this machine, in a session of its own: a Ctrl-C on the terminal
    reaches psrun alone, which passes it on in order."""

    limits = None  # of descriptors, that psrun was given and has raised for itself

    def __init__(self, part, extra_env):
        self.part = part
        self.events, told = events.open_pipe()
        env = dict(os.environ, **part.env, **extra_env, **events.variable(told))
        try:
            self.popen = self._start(env, told)
        finally:
            os.close(told)
        self.output = self.popen.stdout
        self._stopped_by = None
        self.n_stops = 0  # seen by stopped_by

    def _start(self, env, told):
        return subprocess.Popen(
            self.part.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[told],
            start_new_session=True,
            preexec_fn=self._begin,
        )

    @classmethod
    def _begin(cls):
        die_with_parent()
        if cls.limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, cls.limits)

    def poll(self):
        """The exit code once it has ended (negative: a signal), else None."""
        return self.popen.poll()

    def stopped_by(self):
        """The signal that stopped it (SIGSTOP, or SIGTSTP of Ctrl-Z), until it is continued; else
        None. Stops by a debugger do not count. If it was continued and stopped again since the last
        call, n_stops tells."""
        try:
            change = os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            return None  # it has ended; poll returns its code
        if change:
            stopped = change.si_code == os.CLD_STOPPED
            self._stopped_by = signal.Signals(change.si_status) if stopped else None
            self.n_stops += stopped
        return self._stopped_by

    def signal(self, number):
        """Signals the whole process group; does nothing when it has ended: its number may be another's by then."""
        if self.popen.poll() is not None:
            return
        try:
            os.killpg(self.popen.pid, number)
        except PermissionError:
            pass  # a program of another user, such as sudo


def command_line(part):
    """For --dry-run: the command, quoted for a shell."""
    env = " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(part.env.items()))
    return f"env {env} {shlex.join(part.argv)}"
