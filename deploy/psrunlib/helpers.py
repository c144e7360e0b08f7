"""Programs that psrun runs for an answer."""
import contextlib
import select
import subprocess

from .local import die_with_parent

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


def says(process, within_s):
    """Whether a process says something on its standard output, or ends, within that time. Not by select.select: of a job
    of many parts, descriptors may be too large."""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
