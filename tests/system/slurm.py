"""A Slurm of two nodes on this machine: munged, slurmctld and two slurmd in a folder of their
own, at ports of their own on 127.0.0.1. Needs root and Debian's packages slurm-wlm and munge
(installed by `missing` where they can be)."""
import os
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from jobs import free_port, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
NODES = ("n1", "n2")

CONFIG = """
ClusterName=pstrain-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
KillWait=20
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def program(name):
    return shutil.which(name, path=PATH)


def missing():
    """Returns why such a Slurm is impossible here, or None."""
    if os.geteuid() != 0:
        return "not root: Slurm's daemons cannot be started"
    if not all(map(program, PROGRAMS)) and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm",
                        "munge"], env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    lacks = [name for name in PROGRAMS if not program(name)]
    return f"{', '.join(lacks)} could not be installed (slurm-wlm, munge)" if lacks else None


class Slurm:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.daemons = []
        self.env = dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"), PATH=PATH)

    def start(self):
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for name in ("state", *(f"spool-{n}" for n in NODES)):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(host=host, folder=self.folder, ports=[free_port() for _ in range(3)]))
        self._daemon("munged", "-F", "-f", f"--key-file={key}",
                     f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                     f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munge.seed")
        self._await(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-c")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self._await(lambda: self.run("sinfo", "-h", "-o", "%D %t").strip() == "2 idle", "nodes")

    def _daemon(self, name, *args):
        log = open(self.folder / f"{name}-{len(self.daemons)}.out", "w", encoding="utf-8")
        with log:
            self.daemons.append(subprocess.Popen(
                [program(name), *args], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True))

    def _await(self, holds, what, seconds=60):
        wait_until(holds, lambda: f"{what}: not there after {seconds} s\n{self.logs()}", seconds)

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}"
                         for p in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")))

    def run(self, *argv, check=False):
        done = subprocess.run(argv, env=self.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{argv}: {done.stdout}\n{self.logs()}")
        return done.stdout

    def submit(self, output, *argv, **env):
        """Runs sbatch. Returns the job's number."""
        names = ",".join(["ALL", *(f"{k}={v}" for k, v in env.items())])
        said = self.run("sbatch", "--parsable", f"--export={names}", f"--output={output}", *argv,
                        check=True)
        return said.strip().splitlines()[-1].partition(";")[0]

    def job(self, number):
        """{field: value} of scontrol show job."""
        said = self.run("scontrol", "-o", "show", "job", number)
        return dict(field.partition("=")[::2] for field in said.split())

    def await_restart(self, number, seconds=60):
        """Waits until it runs again. Sets its start time: Slurm delays a requeued job by minutes."""
        def runs_again():
            job = self.job(number)
            if job.get("JobState") == "PENDING":
                self.run("scontrol", "update", f"jobid={number}", "starttime=now")
            return job.get("Restarts", "0") != "0" and job.get("JobState") not in ("PENDING", "COMPLETING")
        self._await(runs_again, f"job {number}", seconds)

    def wait(self, number, seconds):
        """Waits until the job has ended. Returns its fields."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self._await(lambda: self.job(number).get("JobState") in over, f"job {number}", seconds)
        return self.job(number)

    def stop(self):
        self.run("scancel", "--full", "--user=root")
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
