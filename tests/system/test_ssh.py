"""psrun -H over real sshd on three hosts: network namespaces of this test's own.

Namespace 0 has the bridge and runs psrun; hosts 1 to 3 run sshd with keys made here. Needs
root, iproute2 and openssh-server; skips, and says so, where they are missing.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from jobs import nightly, stands_still, wait_until
from psrunlib import cgroup

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("PS_BIN", ROOT / "build/release/bin"))
HOSTS = 3
PORT = 2222
END_S = 40  # so soon after a host's death all has ended on every host; other limits are longer


def missing():
    if os.geteuid() != 0:
        return "not root: namespaces cannot be made"
    for program in ("ip", "sshd", "ssh", "ssh-keygen"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return f"{program} is not installed"
    if not (BIN / "ps-worker").exists():
        return f"no ps-worker in {BIN}"
    return no_namespaces(f"pst{os.getpid()}x")


def no_namespaces(name):
    """Returns why none can be made, or None. It enters one, too: for that `ip` mounts /sys anew,
    which a bare root does not have."""
    for command in (["netns", "add", name], ["-n", name, "link", "set", "lo", "up"]):
        probe = subprocess.run(["ip", *command], capture_output=True, text=True)
        if probe.returncode != 0:
            break
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    if probe.returncode != 0:
        return f"namespaces cannot be made: {probe.stderr.strip()}"
    return None


class Cluster:
    """Hosts behind a bridge, each with its sshd."""

    def __init__(self, folder, hosts=HOSTS):
        self.folder = self.home = Path(folder)
        self.hosts = hosts
        self.prefix = f"pst{os.getpid()}-"
        self.daemons, self.logs = [], []

    def name(self, i):
        return f"{self.prefix}{i}"

    @staticmethod
    def address(i):
        return f"10.87.31.{i + 1}"

    def on(self, i, *argv):
        """The command that runs another one on host i."""
        return ["ip", "netns", "exec", self.name(i), *argv]

    def ip(self, *args, ns=None):
        subprocess.run(["ip", *(["-n", ns] if ns else []), *args], check=True)

    def start(self):
        self._keys()
        for i in range(self.hosts + 1):
            self.ip("netns", "add", self.name(i))
            self.ip("link", "set", "lo", "up", ns=self.name(i))
        base = self.name(0)
        self.ip("link", "add", "br0", "type", "bridge", ns=base)
        self.ip("addr", "add", f"{self.address(0)}/24", "dev", "br0", ns=base)
        self.ip("link", "set", "br0", "up", ns=base)
        for i in range(1, self.hosts + 1):
            self.ip("link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns",
                    self.name(i), ns=base)
            self.ip("link", "set", f"v{i}", "master", "br0", "up", ns=base)
            self.ip("addr", "add", f"{self.address(i)}/24", "dev", "eth0", ns=self.name(i))
            self.ip("link", "set", "eth0", "up", ns=self.name(i))
            self._sshd(i)
        for i in range(1, self.hosts + 1):
            self._wait_for_sshd(i)

    def _keys(self):
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            str(self.folder / key)], check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        host_key = (self.folder / "host.pub").read_text().split()[:2]
        (self.folder / "known").write_text("".join(
            f"[{self.address(i)}]:{PORT} {' '.join(host_key)}\n" for i in range(1, self.hosts + 1)))
        (self.folder / "config").write_text(
            f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known\nStrictHostKeyChecking yes\n"
            "KexAlgorithms curve25519-sha256\n")  # the default takes ten times the processor time

    def _sshd(self, i):
        os.makedirs("/run/sshd", exist_ok=True)
        config = self.folder / f"sshd{i}"
        config.write_text(
            f"ListenAddress {self.address(i)}:{PORT}\nHostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            f"MaxStartups 100\nUseDNS no\n"
            # not what the user's shell reads at each start: a version manager takes more than a job
            f"SetEnv HOME={self.home} PATH=/usr/bin:/bin:/usr/sbin:/sbin\n")
        self.daemons.append(subprocess.Popen(
            self.on(i, shutil.which("sshd", path="/usr/sbin:/usr/bin"), "-D", "-e", "-f", str(config)),
            stderr=self._log(i)))

    def _log(self, i):
        log = open(self.folder / f"sshd{i}.log", "w")
        self.logs.append(log)
        return log

    def _wait_for_sshd(self, i):
        for _ in range(50):
            done = self.run(["ssh", "-F", str(self.folder / "config"), "-p", str(PORT),
                             self.address(i), "true"])
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError(f"sshd {i}: {done.stderr} {(self.folder / f'sshd{i}.log').read_text()}")

    def run(self, argv, **more):
        return subprocess.run(self.on(0, *argv), text=True, capture_output=True, timeout=100, **more)

    def programs(self, i):
        """Returns the process ids of our programs on host i."""
        return self.pids(i, "ps-")

    def pids(self, i, name=""):
        """Returns the processes on host i whose name begins so."""
        pids = subprocess.run(["ip", "netns", "pids", self.name(i)], capture_output=True, text=True).stdout.split()
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                    found.append(int(pid))
        return found

    def kill(self, i, name=""):
        for pid in self.pids(i, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def plug(self, i, up):
        self.ip("link", "set", f"v{i}", "up" if up else "down", ns=self.name(0))

    def lose_power(self, i):
        """Nothing of host i says goodbye."""
        self.plug(i, False)
        daemon = self.daemons[i - 1]
        self.kill(i)
        daemon.wait()
        self.plug(i, True)

    def boot(self, i):
        self._sshd(i)
        self.daemons[i - 1] = self.daemons.pop()
        self._wait_for_sshd(i)

    def stop(self):
        for daemon in self.daemons:
            daemon.terminate()
        for i in range(self.hosts + 1):
            self.kill(i)
            subprocess.run(["ip", "netns", "del", self.name(i)], capture_output=True)
        for daemon in self.daemons:
            daemon.wait()
        for log in self.logs:
            log.close()


class WithoutSsh(unittest.TestCase):
    def test_is_said(self):
        with tempfile.TemporaryDirectory(prefix="pstrain-ssh-") as folder:
            hosts = Path(folder, "hosts")
            hosts.write_text("localhost servers=1 workers=1\n")
            for doctor in ([], ["--doctor"]):
                run = subprocess.run(
                    ["python3", "deploy/psrun", "-H", str(hosts), "-s", "1", "-w", "1", "--out",
                     f"{folder}/out", *doctor, "configs/digits-basicnet.yaml"],
                    env=dict(os.environ, PS_SSH="no-such-ssh", PS_BUILD_DIR=str(BIN.parent)),
                    cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    timeout=60)
                self.assertEqual((run.returncode, run.stdout.splitlines()),
                                 (1, ["psrun: there is no no-such-ssh on this machine: install an ssh client "
                                      "(openssh-client), or name one with PS_SSH"]))


class OverSsh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = missing()
        if reason:
            raise unittest.SkipTest(reason)
        cls.folder = tempfile.mkdtemp(prefix="pstrain-ssh-")
        cls.cluster = Cluster(cls.folder)
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    def setUp(self):
        self.env = dict(os.environ, PS_SSH=f"ssh -F {self.folder}/config", PS_BUILD_DIR=str(BIN.parent))
        self.hostfile = Path(self.folder) / "hosts"
        at = self.cluster.address
        self.hostfile.write_text(f"{at(1)}:{PORT} servers=1 workers=1\n"
                                 f"{at(2)}:{PORT} servers=1 workers=0\n"
                                 f"{at(3)}:{PORT} servers=0 workers=1 dir={ROOT}\n")

    def psrun(self, *args, hosts=True):
        where = ["-H", str(self.hostfile)] if hosts else []
        return ["python3", "deploy/psrun", "--curve", f"{self.folder}/keys", "-s", "2", "-w", "2", *where,
                "configs/digits-basicnet.yaml", *args]

    @staticmethod
    def wait_for_steps(out, n=2):
        metrics = out / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= n, "too few steps were made")

    @nightly
    def test_predictions_over_hosts(self):
        """Each host has a disk of its own."""
        folders = [Path(self.folder, f"predicts{i}") for i in range(4)]
        for folder in folders:
            folder.mkdir()
        self.hostfile.write_text("".join(f"{self.cluster.address(i)}:{PORT} dir={folders[i]}\n" for i in (1, 2, 3)))
        config, model = ROOT / "configs/digits-basicnet.yaml", Path(self.folder, "predicting")
        psrun, env = ["python3", ROOT / "deploy/psrun"], dict(self.env, PS_BUILD_DIR=str(BIN.parent))
        for argv, cwd in ((["-m", "single", config, "train.epochs=1", "--out", model], ROOT),
                          (["--predict", "test", "--init", model / "model.safetensors", config, "--out", "here"],
                           folders[0]),
                          (["--predict", "test", "--init", model / "model.safetensors", config, "--out", "there",
                            "-H", self.hostfile, "-w", "3"], folders[0])):
            run = self.cluster.run([*psrun, *argv], env=env, cwd=cwd)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        for name in ("predictions.npy", "confusion.json"):
            here, there = (folders[0] / out / name for out in ("here", "there"))
            self.assertEqual(here.stat().st_size, there.stat().st_size)
        self.assertEqual((folders[0] / "here/confusion.json").read_bytes(),
                         (folders[0] / "there/confusion.json").read_bytes())
        for i in (1, 2, 3):
            self.assertEqual([p for p in folders[i].rglob("*") if p.is_file()], [])

    @nightly
    def test_what_psrun_reads_is_on_another_host(self):
        """Each host has a disk of its own."""
        folders = [Path(self.folder, f"reads{i}") for i in range(3)]
        for folder in folders:
            folder.mkdir()
        self.hostfile.write_text("".join(f"{self.cluster.address(i)}:{PORT} dir={folders[i]} servers={2 - i} workers=1\n" for i in (1, 2)))
        for option, says in (("--find-lr", "suggested: "), ("--verify", "are equal bit for bit with 2 workers")):
            run = self.cluster.run(["python3", ROOT / "deploy/psrun", option, "-s", "1", "-w", "2", "-H", self.hostfile, "--insecure",
                                    ROOT / "configs/digits-basicnet.yaml", "train.steps=21", "data.train=0-319", "--out", option[2:]],
                                   env=dict(self.env, PS_BUILD_DIR=str(BIN.parent)), cwd=folders[0])
            self.assertEqual((run.returncode, says in run.stdout + run.stderr), (0, True), run.stdout + run.stderr)
        self.assertTrue((folders[0] / "find-lr/find-lr.svg").exists())

    def long_job(self, out):
        """Starts psrun with a job that ends only when it is told to, or fails."""
        return self.start(self.psrun("--out", str(out), "train.epochs=100000", "train.eval_every=0"),
                          preexec_fn=os.setpgrp)

    def start(self, command, cwd=ROOT, **more):
        """Starts a command on host 0."""
        run = subprocess.Popen(self.cluster.on(0, *command), env=self.env, cwd=cwd, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, **more)
        self.addCleanup(run.kill)
        return run

    def wait_until_all_have_ended(self):
        left = lambda: [pid for i in range(1, HOSTS + 1) for pid in self.cluster.programs(i)]
        wait_until(lambda: not left(), left, END_S)

    def wait_for_programs(self, i):
        """Waits until our programs run on host i. Returns their process ids."""
        return wait_until(lambda: self.cluster.programs(i), f"nothing runs on host {i}")

    def test_death_of_a_host_ends_all(self):
        out = Path(self.folder) / "killed"
        run = self.long_job(out)
        self.wait_for_steps(out)
        self.assertTrue(self.cluster.programs(3), "the worker of host 3 never ran")
        for pid in self.cluster.programs(3):
            os.kill(pid, signal.SIGKILL)
        text, _ = run.communicate(timeout=END_S)
        self.assertEqual(run.returncode, 1, text)
        self.assertIn("psrun: the job failed: worker 1 ", text)
        self.wait_until_all_have_ended()

    def disturb(self, name, disturb, epochs=30, timeout=120):
        """A job of which disturb(psrun, out) disturbs worker 1's host ends with the bits of one that nobody
        disturbs. Returns psrun's words and the parts that were started again."""
        settings = [f"train.epochs={epochs}", "checkpoint.every=20", "train.eval_every=0"]
        whole, out = self.whole_weights(epochs), Path(self.folder) / name
        run = self.start(self.psrun("--restarts", "8", "--out", str(out), *settings))
        self.wait_for_steps(out)
        disturb(run, out)
        text, _ = run.communicate(timeout=timeout)
        self.assertEqual(run.returncode, 0, text)
        self.assertEqual((out / "model.safetensors").read_bytes(), whole)
        self.wait_until_all_have_ended()
        return text, {r["part"] for r in json.loads((out / "summary.json").read_text())["restarts"]}

    @staticmethod
    def kill_ssh(psrun, part):
        """part: a variable of its environment. Returns whether it runs, and is killed."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line, stat = path.read_bytes().decode(), path.with_name("stat").read_text()
            except OSError:
                continue  # it has ended
            if line.startswith("ssh") and f" {part} " in line and int(stat.rsplit(")", 1)[1].split()[1]) == psrun.pid:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
        return False

    def test_a_death_and_a_lost_connection(self):
        def disturb(psrun, out):
            self.cluster.kill(3, "ps-")
            self.wait_for_steps(out, 2 + (out / "metrics.jsonl").read_text().count("\n"))
            wait_until(lambda: self.kill_ssh(psrun, "RANK=1"), "worker 1 is not started again")

        text, restarted = self.disturb("restarted", disturb)
        text = text.replace(cgroup.LACKS_MEMORY, "")  # ip netns hides cgroups: a test beside that lacks memory counts, too
        for i in (1, 2):
            self.assertIn(f"psrun: worker 1 was ended by SIGKILL; it is started again (restart {i} of 8", text)
        self.assertEqual(restarted, {"worker 1"})

    @nightly
    def test_a_lost_connection_of_each_part(self):
        for part in ("RANK=0", "PS_SERVER_RANK=0", "PS_SERVER_RANK=1"):
            self.disturb(f"cut-{part}", lambda psrun, out, part=part: self.kill_ssh(psrun, part))
        for i in (1, 2, 3):
            listening = self.cluster.daemons[i - 1].pid

            def disturb(psrun, out, i=i, listening=listening):
                for pid in set(self.cluster.pids(i, "sshd")) - {listening}:
                    os.kill(pid, signal.SIGKILL)

            self.disturb(f"cut-{i}", disturb)

    @nightly
    def test_a_pulled_cable(self):
        for seconds in (5, 20, 60):
            for i in (1, 2, 3):
                def disturb(psrun, out, i=i, seconds=seconds):
                    self.addCleanup(self.cluster.plug, i, True)
                    self.cluster.plug(i, False)
                    time.sleep(seconds)
                    self.cluster.plug(i, True)

                self.disturb(f"pulled-{seconds}-{i}", disturb, epochs=100, timeout=120 + seconds)

    @nightly
    def test_a_host_that_reboots(self):
        for i in (3, 1):
            def disturb(psrun, out, i=i):
                self.cluster.lose_power(i)
                time.sleep(15)
                self.cluster.boot(i)

            self.disturb(f"rebooted-{i}", disturb, epochs=100)

    def lose_host_3(self, out, hostfile, *more):
        """Runs a job that loses host 3 after some steps. Returns psrun's output."""
        self.hostfile.write_text(hostfile)
        command = self.psrun("--restarts", "9", "--out", str(out), "train.epochs=30", "checkpoint.every=20",
                             "train.eval_every=0", "net.dead_after_ms=2000", *more)
        run = self.start(command)
        self.wait_for_steps(out)
        self.addCleanup(self.cluster.plug, 3, True)
        self.cluster.plug(3, False)
        text, _ = run.communicate(timeout=120)
        self.cluster.plug(3, True)
        self.assertEqual(run.returncode, 0, text)
        return text

    def whole_weights(self, epochs=30):
        """Of the job on this machine alone."""
        out = Path(self.folder) / f"alone-{epochs}"
        if not out.exists():
            run = self.cluster.run(self.psrun("--out", str(out), f"train.epochs={epochs}", "checkpoint.every=20",
                                              "train.eval_every=0", hosts=False), env=self.env, cwd=ROOT)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return (out / "model.safetensors").read_bytes()

    def test_a_spare_host_takes_the_place_of_a_lost_one(self):
        at, out = self.cluster.address, Path(self.folder) / "spared"
        text = self.lose_host_3(out, f"{at(1)}:{PORT} servers=1 workers=1\n{at(2)}:{PORT} spare\n"
                                     f"{at(3)}:{PORT} servers=1 workers=1\n")
        self.assertIn(f"psrun: host {at(3)}:{PORT} does not answer; the spare host {at(2)}:{PORT} takes its place\n", text)
        self.assertEqual((out / "model.safetensors").read_bytes(), self.whole_weights())
        deaths = json.loads((out / "summary.json").read_text())["restarts"]
        self.assertEqual({d["part"] for d in deaths}, {"server 1", "worker 1"})

    @nightly
    def test_a_spare_host_for_worker_0(self):
        """Worker 0 goes on from another worker's memory, in an empty folder."""
        at, folders = self.cluster.address, [Path(self.folder, f"disk{i}") for i in range(4)]
        for folder in folders:
            folder.mkdir()
        self.hostfile.write_text("".join(
            f"{at(i)}:{PORT} dir={folders[i]} {what}\n"
            for i, what in ((3, "servers=0 workers=1"), (1, "servers=2 workers=1"), (2, "spare"))))
        command = ["python3", ROOT / "deploy/psrun", "--insecure", "--restarts", "9", "-s", "2", "-w", "2", "-H",
                   self.hostfile, "--out", "out", ROOT / "configs/digits-basicnet.yaml", "train.epochs=30",
                   "checkpoint.every=20", "train.eval_every=0", "net.dead_after_ms=2000"]
        run = self.start(command, folders[0])
        self.wait_for_steps(folders[3] / "out")
        self.addCleanup(self.cluster.plug, 3, True)
        self.cluster.plug(3, False)
        text, _ = run.communicate(timeout=120)
        self.assertEqual(run.returncode, 0, text)
        self.assertIn(f"psrun: the results go to {at(2)}:{PORT} from here on", text)
        self.assertIn('from="memory of worker 1"', text)
        self.assertEqual((folders[2] / "out/model.safetensors").read_bytes(), self.whole_weights())

    def test_ctrl_c_before_the_workers_listen(self):
        """sh starts a program in the background with SIGINT ignored. Here it begins two seconds later."""
        slow = Path(self.folder) / "slow/bin"
        slow.mkdir(parents=True)
        for program in BIN.iterdir():
            (slow / program.name).symlink_to(program)
        (slow / "ps-worker").unlink()
        (slow / "ps-worker").write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep 2\nexec {BIN}/ps-worker "$@"\n')
        (slow / "ps-worker").chmod(0o755)
        self.env["PS_BUILD_DIR"] = str(slow.parent)
        run = self.long_job(Path(self.folder) / "early")
        self.wait_for_programs(3)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 130, text)
        self.wait_until_all_have_ended()

    def test_keys_are_hidden_and_ctrl_z_stops_all_hosts_until_fg(self):
        out = Path(self.folder) / "suspended"
        run = self.long_job(out)
        self.wait_for_steps(out)
        self.check_no_command_line_shows_a_key()
        # psrun stops last; one that is continued before would stop afterwards.
        programs = [run.pid, *(pid for i in range(1, HOSTS + 1) for pid in self.cluster.programs(i))]
        for number, still in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
            run.send_signal(number)
            wait_until(lambda now=still: {stands_still(pid) for pid in programs} == {now})
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 130, text)
        self.wait_until_all_have_ended()

    def test_a_worker_that_is_told_there_ends_the_job_in_order(self):
        out = Path(self.folder) / "told"
        run = self.long_job(out)
        self.wait_for_steps(out)
        for pid in self.cluster.programs(3):
            os.kill(pid, signal.SIGINT)
        text, _ = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 130, text)
        self.assertIn("worker 1 was told to end (SIGINT); weights and results so far are in", text)
        self.assertTrue(json.loads((out / "summary.json").read_text())["interrupted"])

    def test_a_summary_of_an_earlier_job_is_not_shown(self):
        here, there = Path(self.folder) / "without", Path(self.folder) / "node"
        here.mkdir()
        there.mkdir()
        self.hostfile.write_text(f"{self.cluster.address(1)}:{PORT} servers=1 workers=1 dir={there}\n")
        for steps in (5, 7):
            run = self.cluster.run(
                ["python3", ROOT / "deploy/psrun", "--insecure", "-s", "1", "-w", "1", "-H", self.hostfile,
                 "--out", "out", "--overwrite", ROOT / "configs/digits-basicnet.yaml", f"train.steps={steps}"],
                env=self.env, cwd=here)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertIn(f" {steps} steps,", run.stdout)

    def check_no_command_line_shows_a_key(self):
        secrets = [f.read_text().split()[3].encode() for f in Path(self.folder, "keys").glob("*.key")]
        self.assertEqual(len(secrets), 2)
        self.assertTrue(self.cluster.programs(3))
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue  # it has ended
            for secret in secrets:
                self.assertNotIn(secret, line)
        for part in self.cluster.programs(3):
            held = [secret in Path(f"/proc/{part}/environ").read_bytes() for secret in secrets]
            self.assertEqual(held.count(True), 1, "its role's key, and no other")

    def faulty(self, hostfile, *args):
        self.hostfile.write_text(hostfile)
        run = self.cluster.run(self.psrun(*args), env=self.env, cwd=ROOT)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def test_faults_are_named(self):
        at = self.cluster.address
        good = f"{at(1)}:{PORT} servers=2 workers=1\n"
        self.assertIn("cannot be reached", self.faulty(good + f"{at(9)}:{PORT}\n"))
        self.assertIn("no program /nowhere/ps-worker",
                      self.faulty(good + f"{at(2)}:{PORT} bin=/nowhere\n"))
        self.assertIn("no folder /nowhere", self.faulty(good + f"{at(2)}:{PORT} dir=/nowhere\n"))
        self.assertIn("places 2 servers and 1 workers", self.faulty(good))
        self.assertIn("is not one of", self.faulty(good + f"{at(2)}:{PORT} slot=2\n"))
        self.assertIn("a spare host runs the parts of the one that it replaces",
                      self.faulty(good + f"{at(2)}:{PORT} spare slots=2\n"))
        self.assertIn("cannot be reached", self.faulty(good.replace("=1", "=2") + f"{at(9)}:{PORT} spare\n",
                                                       "--restarts", "1", "checkpoint.every=1"))

    @nightly
    def test_doctor_finds_nothing_then_something(self):
        run = self.cluster.run(self.psrun("--doctor"), env=self.env, cwd=ROOT)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("nothing to mend", run.stdout)
        for i in range(1, HOSTS + 1):
            self.assertIn(self.cluster.address(i), run.stdout)
        at = self.cluster.address
        text = self.faulty(f"{at(1)}:{PORT} servers=2 workers=1\n{at(9)}:{PORT}\n", "--doctor")
        self.assertIn("not reached by ssh", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
