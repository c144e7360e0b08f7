"""A job's keys: which folder they are in, and how they reach its parts.

Parts on this machine are told the folder. Parts on other hosts read their role's key, one
line, from standard input before they start: so it is in no command line, which every user of
a host can list, and in no file there.
"""
import ipaddress
import os
import subprocess

from . import helpers
from .errors import JobError
from .log_line import why

SETTING = "net.curve="

# For sh, before the program is started with a key. What follows on standard input stays there.
READ = 'IFS= read -r PS_CURVE_KEY; export PS_CURVE_KEY'


def take_folder(args, settings):
    """The folder that was asked for, or "". settings: the job's, from which it is taken."""
    named = [s[len(SETTING):] for s in settings if s.startswith(SETTING)]
    settings[:] = [s for s in settings if not s.startswith(SETTING)]
    return args.curve or (named or [""])[-1] or os.environ.get("PS_CURVE_DIR", "")


def make(folder, program):
    """Makes the keys if the folder has none; refuses those that others can read."""
    done = helpers.run([program, "--make-keys", folder], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise JobError(f"--curve: {why(done.stdout, 'no reason given')}")


def line(folder, role):
    """A role's key, as its file has it."""
    path = os.path.join(folder, f"{role}.key")
    try:
        with open(path, encoding="ascii") as f:
            return f.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read the key {path}: {error}") from error


def environment(folder):
    """For a part on this machine. An empty variable counts as none."""
    return {"PS_CURVE_DIR": os.path.abspath(folder), "PS_CURVE_KEY": ""}


def check_hosts(hosts, folder, insecure):
    """Refuses to send what is not encrypted to other hosts, unless it was asked for."""
    if folder or insecure:
        return
    for host in hosts:
        if not is_loopback(host.address):
            raise JobError(f"the job goes to other hosts ({host.address}), and has no keys: add "
                           "--curve DIR, which makes them, or --insecure where everybody on the "
                           "network is trusted")


def is_loopback(address):
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
