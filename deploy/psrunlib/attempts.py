"""psrun --restarts with a program of the user's: when a part fails, all parts are started again, as
torchrun does. The program goes on from what it has saved itself."""
import time

from . import ports
from .restarts import MOST_DELAY_S, is_passing
from .supervise import INTERRUPTED

SHORT_S = 30.0  # an attempt that fails sooner, after another one, makes psrun wait


def environment(job, number):
    """torchrun's variables: which attempt it is."""
    return {"TORCHELASTIC_RESTART_COUNT": str(number), "TORCHELASTIC_MAX_RESTARTS": str(job.restarts)}


def run(job, screen, supervise):
    """supervise(environment) makes an attempt, and returns its supervisor and psrun's exit code.
    Returns those of the last one."""
    short = 0  # attempts in a row
    for number in range(job.restarts + 1):
        began = time.monotonic()
        supervisor, code = supervise(environment(job, number))
        failed = [w for w in supervisor.watched if w.code not in (0, *INTERRUPTED)]
        if code != 1 or supervisor.signal or not all(map(is_passing, failed)):
            break
        if number == job.restarts:
            if number:
                screen.say(f"psrun: all parts had been started again already (--restarts {number})")
            break
        short = short + 1 if time.monotonic() - began < SHORT_S else 0
        delay_s = min(MOST_DELAY_S, 2 ** (short - 2)) if short > 1 else 0
        screen.say(f"psrun: all parts are started again (restart {number + 1} of {job.restarts}"
                   + (f", in {delay_s} s)" if delay_s else ")"))
        time.sleep(delay_s)
        if not job.hosts:  # the old ports may be taken for a while
            job.master_port, job.store_port = ports.free_port(), ports.free_port()
    return supervisor, code
