"""psrun --restarts with a program of the user's: when a part fails, all workers are started again, as
torchrun does. The program goes on from its commits (commits.py), or from what it has saved itself. Servers
stay where none has failed, or where they have each other's rows of embedding tables: they join the next attempt."""
import signal
import time

from . import commits, ports
from .restarts import delay_after, is_passing
from .supervise import INTERRUPTED

SHORT_S = 30.0  # an attempt that fails sooner, after another one, makes psrun wait


def environment(job, number):
    """torchrun's variables: which attempt it is."""
    return {"TORCHELASTIC_RESTART_COUNT": str(number), "TORCHELASTIC_MAX_RESTARTS": str(job.restarts)}


def run(job, screen, supervise):
    """supervise(environment, heard, keeps, adopted) makes an attempt, and returns its supervisor and psrun's exit code.
    Returns those of the last one."""
    if not job.restarts:
        return supervise(environment(job, 0), lambda event: None, False, [])
    servers = []  # that stay
    with commits.Folders(job) as folders:
        try:
            return _attempts(job, screen, supervise, folders, commits.Told(screen), servers)
        finally:
            _end(servers)


def _end(servers):
    for watched in servers:
        watched.process.signal(signal.SIGKILL)
    servers.clear()


def _attempts(job, screen, supervise, folders, told, servers):
    short = 0  # attempts in a row
    for number in range(job.restarts + 1):
        began, before = time.monotonic(), told.number
        supervisor, code = supervise(environment(job, number), told.hear, number < job.restarts, servers)
        servers[:] = supervisor.left_running
        failed = [w for w in supervisor.watched if w.code not in (0, None, *INTERRUPTED)]
        if code != 1 or supervisor.signal or not all(is_passing(w, again=number > 0) for w in failed):
            break
        told.died(supervisor.cause, supervisor.now - supervisor.cause.ended_at)
        if told.fails_again():
            told.say_in_vain()
            break
        if number == job.restarts:
            screen.say(f"psrun: all parts had been started again already (--restarts {number})")
            break
        came_further = (told.number or 0) > (before or 0)
        short = 0 if came_further or time.monotonic() - began >= SHORT_S else short + 1
        delay_s = delay_after(short - 1)
        anew = ["workers", *(w.part.name for w in failed if w.part.role == "server")] if servers else ["parts"]
        screen.say(f"psrun: all {' and '.join(anew)} are started again (restart {number + 1} of {job.restarts}"
                   + (f", in {delay_s} s)" if delay_s else ")"))
        time.sleep(delay_s)
        folders.look(screen)
        gone = [watched for watched in servers if watched.process.poll() is not None]
        if gone and not supervisor.buddies:
            _end(servers)  # they have waited for too long, or one has died, whose rows nobody else has
        servers[:] = [watched for watched in servers if watched not in gone]
        if not job.hosts:  # the old ports may be taken for a while
            old, job.store_port = [job.store_port], ports.free_port()
            if not servers and not job.port_is_given:
                old.append(job.master_port)
                job.master_port = ports.free_port()
            ports.give_back(*old)
    return supervisor, code
