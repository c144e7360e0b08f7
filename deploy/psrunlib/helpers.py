"""Programs that psrun runs for an answer."""
import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys

from .local import die_with_parent
from .screen import tell
from .watched import name_of

TRIES = 3


def run(argv, to=None, **more):
    """subprocess.run; to: a file for what the program prints. A signal that ends the program, the kernel's for want of
    memory or a Ctrl-C that psrun handles itself, is not its answer: it is run again. It does not outlive psrun. What it
    prints may hold any bytes, such as a file's name."""
    if more.get("text"):
        more = {"encoding": "utf-8", "errors": "replace", **more}
    for _ in range(TRIES):
        with open(to, "wb") if to else contextlib.nullcontext(subprocess.PIPE) as out:
            done = subprocess.run(argv, check=False, preexec_fn=die_with_parent, **{"stdout": out, **more})
        if done.returncode >= 0:
            break
    return done


def run_in_place(argv, signals):
    """Runs a program with psrun's terminal and standard streams, and passes these signals on to it, to its end. Returns
    its exit code; of a program that a signal has ended, which is said, that of a shell."""
    waits = {signal.SIGCHLD, *signals}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waits)

    def begin():
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    process = subprocess.Popen(argv, preexec_fn=begin, restore_signals=False)
    while process.poll() is None:
        got = signal.sigwaitinfo(waits)
        if got.si_signo != signal.SIGCHLD and got.si_code <= 0:  # those of the terminal reach both
            process.send_signal(got.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if process.returncode >= 0:
        return process.returncode
    by_kernel = "; if nobody killed it, memory was short (dmesg)" if process.returncode == -signal.SIGKILL else ""
    tell(f"psrun: {os.path.basename(argv[0])} was ended by {name_of(-process.returncode)}: {shlex.join(argv)}", sys.stderr)
    tell(f"psrun:   give the same command again{by_kernel}", sys.stderr)
    return 128 - process.returncode


def says(process, within_s):
    """Whether a process says something on its standard output, or ends, within that time. Not by select.select: of a job
    of many parts, descriptors may be too large."""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
