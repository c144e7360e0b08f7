"""deploy/compose-demo on a real Docker engine: installed and started here when it is missing.

In every run its images are stand-ins: deploy/Dockerfile's last stages, with this build's programs, on a base of this
machine's own tools. In the nightly run deploy/Dockerfile makes them; its base is pulled, or, where nothing can be
pulled, made with debootstrap. Skips, and says why, where that cannot be done.
"""
import http.client
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs import BIN, NIGHTLY, nightly

ROOT = Path(__file__).resolve().parents[2]
BASE = "debian:bookworm-slim"
PACKAGES = ["docker.io", "docker-compose", "debootstrap"]
TOOLS = ("sh awk basename cat chmod cp date dirname env getent grep head hostname id ip ls mkdir mktemp mv rm sed "
         "setpriv sha256sum sleep sort tail tc touch tr uname").split()  # of deploy/node and deploy/show-runs
DEMO_S = 600
SERVER_EXTRA_BYTES = 25e6  # how much larger than its base the server's image may be


def run(*argv, **more):
    more.setdefault("timeout", 300)
    return subprocess.run(argv, text=True, capture_output=True, **more)


def skip(why):
    raise unittest.SkipTest(why)


def ensure_programs():
    missing = [p for p in ("dockerd", "docker-compose", "debootstrap")
               if not shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        skip(f"{', '.join(missing)} missing, and they cannot be installed without root and apt")
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    done = run("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES, env=env, timeout=900)
    if done.returncode != 0:
        skip(f"the engine cannot be installed: {(done.stderr.strip().splitlines() or ['apt-get failed'])[-1]}")


def start_engine():
    """Returns the started process, or None where an engine runs already."""
    if run("docker", "info").returncode == 0:
        return None
    if os.geteuid() != 0:
        skip("no Docker engine answers, and starting one needs root")
    log = open("/tmp/pstrain-dockerd.log", "w")
    dockerd = shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    engine = subprocess.Popen([dockerd], stdout=log, stderr=log, start_new_session=True)
    for _ in range(60):
        if run("docker", "info").returncode == 0:
            return engine
        if engine.poll() is not None:
            break
        time.sleep(0.5)
    engine.kill()
    log.close()
    lines = Path(log.name).read_text(errors="replace").strip().splitlines() or ["no reason given"]
    skip(f"dockerd does not start: {lines[-1]}")


def ensure_base():
    if run("docker", "image", "inspect", BASE).returncode == 0:
        return
    if run("docker", "pull", BASE).returncode == 0:
        return
    root = f"/tmp/pstrain-base-{os.getpid()}"
    try:
        made = run("debootstrap", "--variant=minbase", "bookworm", root, timeout=900)
        if made.returncode != 0:
            skip(f"no base image: {(made.stdout.strip().splitlines() or ['debootstrap failed'])[-1]}")
        tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        done = subprocess.run(["docker", "import", "-", BASE], stdin=tar.stdout, capture_output=True)
        tar.wait()
        if done.returncode != 0:
            skip(f"the base image cannot be imported: {done.stderr.decode().strip()}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def stand_in_base(root):
    """Copies this machine's tools, and the libraries of all programs, into a folder."""
    for folder in ("bin", "etc", "tmp", "data", "runs", "usr/bin", "lib64"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n", encoding="ascii")
    found = {tool: shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin") for tool in TOOLS}
    files = [path for path in found.values() if path] + [str(BIN / name) for name in ("ps-server", "ps-worker")]
    needed = set(re.findall(r"(/\S+) \(0x", run("ldd", *files).stdout))
    for library in needed:
        target = root / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
    for tool, path in found.items():
        if path:
            shutil.copy2(path, root / "bin" / tool)


def stand_in_stages():
    """deploy/Dockerfile from its stage base on, with programs that were built already."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    text = text[text.index("FROM ${BASE} AS base"):text.index("# The CUDA worker")]
    text = re.sub(r"^RUN (.*\\\n)*.*\n", "", text, flags=re.M)
    return "FROM scratch AS tools\nCOPY root /\n" + text.replace("${BASE}", "tools").replace("--from=build /build/bin", "bin")


def make_stand_ins():
    with tempfile.TemporaryDirectory(prefix="pstrain-images-") as folder:
        context = Path(folder)
        stand_in_base(context / "root")
        shutil.copytree(ROOT / "configs", context / "configs")
        (context / "deploy").mkdir()
        (context / "bin").mkdir()
        for name in ("node", "show-runs"):
            shutil.copy2(ROOT / "deploy" / name, context / "deploy" / name)
        for name in ("ps-server", "ps-worker"):
            shutil.copy2(BIN / name, context / "bin" / name)
        (context / "Dockerfile").write_text(stand_in_stages(), encoding="utf-8")
        for stage in ("server", "worker"):
            done = run("docker", "build", "-q", "--target", stage, "-t", f"pstrain-{stage}:test", folder,
                       env=dict(os.environ, DOCKER_BUILDKIT="0"))
            assert done.returncode == 0, done.stdout + done.stderr


class ComposeDemo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ensure_programs()
        engine = start_engine()
        if engine:
            cls.addClassCleanup(engine.wait)
            cls.addClassCleanup(engine.terminate)
        if NIGHTLY:
            ensure_base()
        else:
            make_stand_ins()
        cls.settings = {"PS_TAG": "test", **({} if NIGHTLY else {"PS_BUILD": "no"})}
        with ThreadPoolExecutor(1 if NIGHTLY else 2) as pool:  # they wait more than they compute; two would build at once
            cls.whole, cls.failed = pool.submit(cls.demo), pool.submit(cls.demo, "optimizer.lr=-1")

    @classmethod
    def demo(cls, *args, **settings):
        """Runs one to its end, and looks whether it left something."""
        with subprocess.Popen([str(ROOT / "deploy/compose-demo"), *args], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=dict(os.environ, **cls.settings, **settings)) as process:
            try:
                out, err = process.communicate(timeout=DEMO_S)
            finally:
                process.kill()
        of_it = f"label=com.docker.compose.project=pstrain-demo-{process.pid}"
        for things in (["ps", "-a"], ["volume", "ls"], ["network", "ls"]):
            left = run("docker", *things, "-q", "--filter", of_it).stdout
            assert left == "", (things, left)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def test_both_modes_reach_the_accuracy(self):
        done = self.whole.result()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()
                if re.match(r"(ps|allreduce) +\d", line)}
        # The table ends with the accuracy, the speed and the folder.
        self.assertGreaterEqual(float(rows["ps"][-3].rstrip("%")), 95)
        self.assertGreaterEqual(float(rows["allreduce"][-3].rstrip("%")), 95)
        self.assertEqual(rows["ps"][1:3], ["2", "2"])
        self.assertEqual(rows["allreduce"][1:3], ["0", "2"])
        if NIGHTLY:
            sizes = run("docker", "inspect", "-f", "{{.Size}}", BASE, "pstrain-server:test").stdout.split()
            self.assertLessEqual(int(sizes[1]) - int(sizes[0]), SERVER_EXTRA_BYTES)

    @nightly
    def test_other_numbers_and_a_shaped_link(self):
        done = self.demo("train.epochs=1", PS_SERVERS="3", PS_WORKERS="3", PS_LINK_MBIT="100")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\nps +3 +3 ")

    def start_demo(self, *args, **settings):
        demo = subprocess.Popen([str(ROOT / "deploy/compose-demo"), *args], cwd=ROOT, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env=dict(os.environ, PS_KEEP="1", **self.settings, **settings))
        project = f"pstrain-demo-{demo.pid}"
        self.addCleanup(self.remove, project)
        return demo, project

    @staticmethod
    def remove(project):
        run("docker-compose", "-f", "deploy/compose.yaml", "-p", project, "--profile", "ps", "--profile",
            "allreduce", "--profile", "results", "down", "-v", "-t", "5", cwd=ROOT)

    @staticmethod
    def pid_of(project, service, number):
        """The process id of a container; 0 if it does not run."""
        ids = run("docker", "ps", "-q", *(f"--filter=label=com.docker.compose.{key}={value}" for key, value in (
            ("project", project), ("service", service), ("container-number", number)))).stdout.split()
        return int(run("docker", "inspect", "-f", "{{.State.Pid}}", ids[0]).stdout or 0) if ids else 0

    @staticmethod
    def weights(project):
        done = run("docker", "run", "--rm", "-v", f"{project}_runs:/runs", "--entrypoint", "sha256sum",
                   "pstrain-worker:test", "/runs/ps/model.safetensors", "/runs/allreduce/model.safetensors")
        return done.stdout

    @nightly
    def test_nodes_that_are_killed_change_nothing(self):
        job = ["train.epochs=150", "schedule.name=constant", "train.eval_every=0"]
        whole, undisturbed = self.start_demo(*job)
        text, _ = whole.communicate(timeout=DEMO_S)
        self.assertEqual(whole.returncode, 0, text)
        demo, project = self.start_demo(*job)
        victims = [("server", 1), ("worker", 1), ("worker", 2), ("ring", 1)]
        end = time.monotonic() + DEMO_S
        while victims and demo.poll() is None and time.monotonic() < end:
            pid = self.pid_of(project, *victims[0])
            if pid:
                time.sleep(1.5)  # a signal to the container's process: `docker kill` would mean it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
                victims.pop(0)
            time.sleep(0.1)
        text, _ = demo.communicate(timeout=DEMO_S)
        self.assertEqual(demo.returncode, 0, text)
        self.assertEqual(victims, [])
        restarts = run("docker", "inspect", "-f", "{{.RestartCount}}", *run(
            "docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={project}").stdout.split())
        self.assertGreaterEqual(sum(map(int, restarts.stdout.split())), 3)
        self.assertEqual(len(self.weights(project).split()), 4)
        self.assertEqual(self.weights(project), self.weights(undisturbed))

    def wait_for_server(self, project, demo):
        """(process id of server 0, the figures of its page) once the job makes steps."""
        end = time.monotonic() + DEMO_S
        while time.monotonic() < end and demo.poll() is None:
            where = run("docker", "port", f"{project}-server-1", "9100").stdout or run(
                "docker", "port", f"{project}_server_1", "9100").stdout
            try:
                with urllib.request.urlopen(f"http://{where.strip()}/status.json", timeout=5) as answer:
                    status = json.load(answer)
                if (status["job"]["step"] or 0) > 0:
                    return self.pid_of(project, "server", 1), status
            except (OSError, ValueError, http.client.HTTPException):
                time.sleep(0.2)
        self.fail("no page" if demo.poll() is None else demo.communicate()[0])

    def test_a_server_is_confined_and_has_a_page(self):
        demo, project = self.start_demo("train.epochs=100000", "metrics.port=9100", "metrics.bind=0.0.0.0")
        try:
            pid, status = self.wait_for_server(project, demo)
            self.assertEqual([f"{m['role']} {m['rank']}" for m in status["members"]],
                             ["server 0", "server 1", "worker 0", "worker 1"])
            own = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                       if ":\t" in line)
            self.assertEqual(own["Name"], "ps-server")
            self.assertEqual(set(own["Uid"].split() + own["Gid"].split()), {"65534"})
            for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                self.assertEqual(int(own[name], 16), 0, name)
            self.assertEqual(own["NoNewPrivs"], "1")
            root = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
            options = [line.split()[5] for line in root if line.split()[4] == "/"]
            self.assertEqual([o.split(",")[0] for o in options], ["ro"])
            self.assertNotIn(b"pstrain-key", Path(f"/proc/{pid}/cmdline").read_bytes())
        finally:
            demo.send_signal(signal.SIGTERM)
            demo.communicate(timeout=60)

    def test_a_failed_node_is_shown(self):
        done = self.failed.result()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the last lines of", done.stderr)
        self.assertIn("optimizer.lr", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
