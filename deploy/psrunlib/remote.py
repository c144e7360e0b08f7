"""Parts of a job as processes of other hosts, over ssh.

On the host, a small sh wrapper starts the program and reads its standard input, which is the
ssh connection to psrun. In a job with keys the first line is the part's key (keys.py). Each
other line is the name of a signal to pass on. The end of the input means that psrun or the
connection is gone: the wrapper ends the program with SIGHUP, and 3 s later with SIGKILL. So
nothing is left running, whatever dies. Not with SIGTERM: that tells the whole job to end in
order, and psrun may be there to start the part again.

What the program writes comes on ssh's standard output. Its events (events.py) come on ssh's standard
error, beside the words of ssh and sh. The wrapper's own event says that the program has ended, and whether the kernel has
killed it for memory: ssh stays as long as anything that the program has left running has one of both.

sh starts a program in the background with SIGINT ignored, and sshd may have been started with SIGHUP
ignored. env undoes that (coreutils from 8.31 on), and a SIGINT that comes earlier waits until the
program does not ignore it any more, 5 s at most.
"""
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time

from . import hosts as hostfile
from . import cgroup, helpers, keys
from .errors import JobError
from .events import VARIABLE
from .local import die_with_parent
from .supervise import INTERRUPTED
from .watched import SSH_FAILED

CONNECT_TIMEOUT_S = 10
ANSWERS_WITHIN_S = 30  # a host that is reached; its disk may hang
FETCHED_WITHIN_S = 600
SSH_ENDS_WITHIN_S = 5  # of the program's end
TOLD = 4  # a part's descriptor for events

WRAPPER = r"""
cd {dir} || exit 126
{killed_for_memory}killed=$(killed_for_memory)
listening= memory=
env --default-signal=INT true 2>/dev/null && listening=--default-signal=INT,HUP
{key}env $listening {events}={told}:$(stat -L -c %i /dev/fd/2) {env} {program} </dev/null {told}>&2 2>&1 &
pid=$!
exec 3<&0
ignores_int() {{ [ "$signal" = INT ] && grep -qs '^SigIgn:.*[2367abef]$' /proc/$pid/status; }}
( while read -r signal <&3; do
      tries=50
      while [ $tries -gt 0 ] && ignores_int; do sleep 0.1; tries=$((tries - 1)); done
      kill -s "$signal" $pid 2>/dev/null
  done
  kill -s HUP $pid 2>/dev/null; sleep 3; kill -s KILL $pid 2>/dev/null ) >/dev/null 2>&1 &
watcher=$!
wait $pid
code=$?
kill $watcher 2>/dev/null
wait $watcher 2>/dev/null
[ $code != 137 ] || [ "$killed" = "$(killed_for_memory)" ] || memory=', "lacks_memory": true'
echo '{{"event": "ended", "code": '"$code$memory"'}}' >&2
exit $code
"""

# Checks over one connection everything that has to be true on a host before the job starts.
CHECK = r"""
cd {dir} 2>/dev/null || {{ echo "no folder "{dir}; exit 3; }}
{checks}
echo ready
"""


def ssh_command():
    try:
        return shlex.split(os.environ.get("PS_SSH", "")) or ["ssh"]
    except ValueError as error:
        raise JobError(f"PS_SSH is no command line: {error}") from error


def check_ssh():
    program = ssh_command()[0]
    if not shutil.which(program):
        raise JobError(f"there is no {program} on this machine: install an ssh client (openssh-client), "
                       "or name one with PS_SSH")


def ssh_argv(host, command):
    argv = ssh_command()
    argv += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}",
             "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3"]
    if host.port:
        argv += ["-p", str(host.port)]
    return argv + [host.login, "--", command]


def in_sh(script):
    """The command by which sh runs a script on a host, whatever the login shell there is: csh takes no line feed between
    quotes, and fish, unlike others, takes some backslashes there."""
    encoded = "".join(f"\\0{ord(c):03o}" if c in "\n\\'!" else c for c in script)
    return f"""exec sh -c 'eval "$(printf %b "$1")"' sh '{encoded}'"""


def wrapped(part, host, extra_env):
    env = dict(passed_on(), **part.env, **extra_env)
    words = " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(env.items()))
    argv = (["apptainer", "exec", host.image] if host.image else []) + part.argv
    return WRAPPER.format(dir=shlex.quote(hostfile.folder(host)), env=words, events=VARIABLE, told=TOLD,
                          program=shlex.join(argv), killed_for_memory=cgroup.in_sh(), key=f"{keys.READ}\n" if part.key else "")


def passed_on():
    """The environment variables that psrun passes on to the hosts."""
    prefixes = ("NCCL_", "GLOO_", "OMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "USE_LIBUV")
    return {k: v for k, v in os.environ.items() if k.startswith(prefixes)}


class RemoteProcess:
    """A part on another host; the same interface as LocalProcess."""

    def __init__(self, part, host, extra_env):
        self.part = part
        self.host = host
        self.code = None
        self.ended = None  # (the program's exit code, when the wrapper has told it)
        self.popen = subprocess.Popen(
            ssh_argv(host, in_sh(wrapped(part, host, extra_env))),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=die_with_parent)
        self.output, self.events = self.popen.stdout, self.popen.stderr
        self._tell(part.key)

    def _tell(self, line):
        """Writes a line to the wrapper's standard input."""
        try:
            self.popen.stdin.write(line.encode() + b"\n" if line else b"")
            self.popen.stdin.flush()
        except (OSError, ValueError):
            pass  # the connection is gone, and with it the program

    def poll(self):
        if self.code is None:
            code = self.popen.poll()
            if code is None and self.ended and time.monotonic() - self.ended[1] > SSH_ENDS_WITHIN_S:
                self.popen.kill()
                self.popen.wait()
                code = self.ended[0]
            # The wrapper's shell reports a death by a signal as 128 + its number. Our programs
            # exit with such codes, too, when a Ctrl-C or SIGTERM has ended them in order.
            signalled = code is not None and 128 < code < 160 and code not in INTERRUPTED
            self.code = 128 - code if signalled else code
        return self.code

    def has_ended(self, code):
        self.ended = code, time.monotonic()

    def stopped_by(self):
        return None  # not known over ssh

    def signal(self, number):
        if self.popen.poll() is not None:
            return
        self._tell(signal.Signals(number).name[3:])
        if number == signal.SIGKILL:
            try:
                self.popen.stdin.close()
            except OSError:
                pass


def check_hosts(hosts, programs, config, version):
    """Checks connection, folder, programs, versions and configuration on all hosts at the same
    time. The error names the first fault of each host."""
    check_ssh()

    def start(host):
        return subprocess.Popen(
            ssh_argv(host, in_sh(_check(host, programs[host.name], config, version))),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")

    started = [(host, start(host)) for host in hosts]
    deadline = time.monotonic() + CONNECT_TIMEOUT_S + 20
    faults = [fault for host, ssh in started if (fault := _verdict(host, ssh, start, deadline))]
    if faults:
        raise JobError("\npsrun: ".join(faults))


def _check(host, programs, config, version):
    run = f"apptainer exec {shlex.quote(host.image)} " if host.image else ""
    checks = []
    for path in programs:
        quoted = shlex.quote(path)
        if not host.image:
            checks.append(f'[ -x {quoted} ] || {{ echo "no program "{quoted}": build it there, or name '
                          'its folder with bin= in the hostfile"; exit 3; }')
        checks.append(
            f'v=$({run}{quoted} --version 2>&1) || {{ echo {quoted}" does not run: $v"; exit 3; }}\n'
            f'[ "$v" = {shlex.quote(version[os.path.basename(path)])} ] || '
            f'{{ echo {quoted}" is $v, here it is "{shlex.quote(version[os.path.basename(path)])}; exit 3; }}')
    if config:
        quoted = shlex.quote(config)
        checks.append(f'[ -r {quoted} ] || {{ echo "no file "{quoted}" in $PWD"; exit 3; }}')
    return CHECK.format(dir=shlex.quote(hostfile.folder(host)), checks="\n".join(checks))


def _verdict(host, ssh, start, deadline, tries=helpers.TRIES):
    """start(host) begins the check once more: a signal may have ended ssh (helpers.py)."""
    try:
        out, err = ssh.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        ssh.kill()
        ssh.wait()
        return f"host {host.name} does not answer: the check over ssh did not end in time"
    if ssh.returncode < 0 and tries > 1:
        return _verdict(host, start(host), start, deadline, tries - 1)
    if ssh.returncode == 0 and out.strip().endswith("ready"):
        return None
    if ssh.returncode == SSH_FAILED:
        last = (err.strip().splitlines() or ["ssh gave no reason"])[-1]
        return f"host {host.name} cannot be reached by ssh: {last}"
    return f"host {host.name}: {out.strip() or err.strip() or f'exit code {ssh.returncode}'}"


def fetch(host, path, to, before):
    """Copies a file from a host to this machine, unless this machine already has one of this
    job (before: out.Before). Without a shared folder it has none, or an earlier job's.
    Returns whether it is here now."""
    if before.is_new(to):
        return True
    new = f"{to}.part"  # a file may be larger than the memory
    try:
        done = _ask(host, f"cd {shlex.quote(hostfile.folder(host))} && cat {shlex.quote(path)}", FETCHED_WITHIN_S, to=new)
        if done:
            os.replace(new, to)
        return bool(done)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(new)


def _ask(host, script, within_s=0, **more):
    """Runs a script on a host. None: the host is not reached, the script has failed, or there is no answer in time: psrun
    hears no Ctrl-C while it waits."""
    try:
        done = helpers.run(ssh_argv(host, in_sh(script)), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=within_s or ANSWERS_WITHIN_S, **more)
    except subprocess.TimeoutExpired:
        return None
    return done if done.returncode == 0 else None


def remove(host, folder, pattern):
    """Removes the files of a host's folder that match (a pattern of sh), and the folder if it is empty."""
    script = f"rm -f -- {shlex.quote(folder)}/{pattern}; rmdir -- {shlex.quote(folder)}"
    _ask(host, f"cd {shlex.quote(hostfile.folder(host))} && {script}")


def stat(host, folder, names):
    """[(identity, name)] of the files in a folder with these names (a * at the end is any); host None: here."""
    if not host:
        return _stat_here(folder, names)
    quoted = " ".join(shlex.quote(n.rstrip("*")) + "*" * n.endswith("*") for n in names)
    script = (f"cd {shlex.quote(hostfile.folder(host))} || exit\ncd {shlex.quote(os.path.join('.', folder))} 2>/dev/null && "
              f"stat -c '%i.%Y %n' -- {quoted} 2>/dev/null\nexit 0")
    done = _ask(host, script, text=True)
    if not done:
        raise JobError(f"cannot look for files on host {host.name}: it is not reached, or does not answer within "
                       f"{ANSWERS_WITHIN_S} s")
    return [line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]


def _stat_here(folder, names):
    try:
        there = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise JobError(f"cannot look for files in {folder}: {error.strerror}") from error
    found = []
    for name in there:
        if any(name == n or n.endswith("*") and name.startswith(n[:-1]) for n in names):
            with contextlib.suppress(FileNotFoundError):  # it has just been removed
                at = os.lstat(os.path.join(folder, name))
                found.append((f"{at.st_ino}.{int(at.st_mtime)}", name))
    return found


def fetch_all(hosts, folder, before):
    """Copies the files of a folder from each host, as fetch does. JobError: one could not be read."""
    for host in hosts:
        for _, name in stat(host, folder, ["*"]):
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, name)
            if not fetch(host, path, path, before):
                raise JobError(f"cannot read {path} on host {host.name}")


def command_line(part, host):
    """For --dry-run: the command, quoted for a shell."""
    return shlex.join(ssh_argv(host, in_sh(wrapped(part, host, {}))))
