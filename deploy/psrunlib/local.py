"""Parts of a job as processes of this machine."""
import ctypes
import os
import shlex
import signal
import subprocess

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    """psrun may be killed with SIGKILL: the kernel then ends what it started."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class LocalProcess:
    """A part that runs here, in a session of its own: a Ctrl-C on the terminal reaches
    psrun alone, which passes it on in order."""

    def __init__(self, part, extra_env):
        self.part = part
        env = dict(os.environ, **part.env, **extra_env)
        self.popen = subprocess.Popen(
            part.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self.output = self.popen.stdout
        self.peak_rss_bytes = 0

    def poll(self):
        """The exit code once it has ended (negative: a signal), else None."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        pid, status, usage = os.wait4(self.popen.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.peak_rss_bytes = usage.ru_maxrss * 1024
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        return self.popen.returncode

    def signal(self, number):
        if self.popen.returncode is None:
            try:
                os.killpg(self.popen.pid, number)
            except ProcessLookupError:
                pass


def command_line(part):
    """For --dry-run: what a shell would take."""
    env = " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(part.env.items()))
    return f"env {env} {shlex.join(part.argv)}"
