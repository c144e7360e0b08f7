"""Programs that psrun runs for an answer."""
import subprocess

from .local import die_with_parent

TRIES = 3


def run(argv, **more):
    """subprocess.run. A signal that ends the program, the kernel's for want of memory or a Ctrl-C that
    psrun handles itself, is not its answer: it is run again. It does not outlive psrun. What it prints may
    hold any bytes, such as a file's name."""
    if more.get("text"):
        more = {"encoding": "utf-8", "errors": "replace", **more}
    for _ in range(TRIES):
        done = subprocess.run(argv, check=False, preexec_fn=die_with_parent, **more)
        if done.returncode >= 0:
            break
    return done
