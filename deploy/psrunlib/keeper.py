"""Folders that are removed when the process that has asked for them ends, also by SIGKILL: a shell makes them, and removes them
when its input ends. It says their names, with colons between them, and again when it is asked whether it is still there."""
import contextlib
import shlex
import subprocess
import time

from . import helpers
from .errors import JobError

MADE_WITHIN_S = 30
REMOVED_WITHIN_S = 10
SCRIPT = r"""
trap '' INT TERM HUP PIPE
set --
for place in {places}; do
    made=$(mktemp -d "$place/{name}-XXXXXXXX" 2>/dev/null) || continue
    case $made in *:*) rmdir "$made" ;; *) set -- "$@" "$made" ;; esac
done
while (IFS=:; echo "$*") && read -r word && [ "$word" = "?" ]; do :; done
for try in 1 2 3 4 5; do
    rm -rf -- "$@" 2>/dev/null && break
    sleep 1
done
"""


def script(name, places):
    """For sh. name: how the folders' names begin; places: where they are to be, words of sh."""
    return SCRIPT.format(name=name, places=" ".join(places))


def start(argv):
    """argv: a script's, here or over ssh."""
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            start_new_session=True)


def end(keepers):
    for keeper in keepers:
        try:
            keeper.stdin.close()
        except OSError:
            pass  # a word for one that has ended
    deadline = time.monotonic() + REMOVED_WITHIN_S
    for keeper in keepers:
        try:
            keeper.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # its host does not answer, or its disk
        keeper.stdout.close()


@contextlib.contextmanager
def folder(name, place):
    """One of this host's, for use with `with`."""
    keeper = start(["sh", "-c", script(name, [shlex.quote(place)])])
    try:
        made = helpers.says(keeper, MADE_WITHIN_S) and keeper.stdout.readline().rstrip("\n")
        if not made:
            raise JobError(f"no folder can be made in {place}: free some room there, or name another place by TMPDIR")
        yield made
    finally:
        end([keeper])
