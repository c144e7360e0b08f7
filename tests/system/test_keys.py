"""Jobs with keys (--curve): they have the same bits as without, and no process gets in without the right key."""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, LONG, PATIENCE_S, JobTest, Part, children, free_port, run_well

JOB = ["train.epochs=2"]
SOON = "net.join_timeout_ms=4000"


class WithKeys(JobTest):
    def test_the_same_bits_as_without(self):
        for name, settings in {"shared": [], "tcp": ["exchange.shm=off"]}.items():
            plain, keyed = f"{name}-plain", f"{name}-keyed"
            self.psrun("-s", 2, "-w", 2, DIGITS, *JOB, *settings, out=plain)
            self.psrun("--curve", self.path("keys"), "-s", 2, "-w", 2, DIGITS, *JOB, *settings,
                       out=keyed)
            self.assertEqual(self.weights(plain), self.weights(keyed), name)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "becoming another user needs root and setpriv")
    def test_a_secret_that_root_mounts_for_a_group(self):
        """As Kubernetes does it (fsGroup): the file is root's, and its group may read it."""
        keys, user = Path(self.keys()), 10001
        os.chmod(self.folder, 0o755)
        # that user may read them
        program, config = shutil.copy(BIN / "ps-server", self.folder), shutil.copy(DIGITS, self.folder)
        os.chown(keys, 0, user)
        keys.chmod(0o3777)
        os.chown(keys / "server.key", 0, user)
        for mode, says in ((0o440, "no answer|Connection refused|not there"), (0o444, "other users may read")):
            (keys / "server.key").chmod(mode)
            said = run_well(
                ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", program, "--config", config,
                 "--set", "net.join_timeout_ms=300"], code=1, cwd="/", env={
                    "PS_CURVE_DIR": str(keys), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                    "PS_SERVER_RANK": "1", "WORLD_SIZE": "1", "PS_SERVERS": "2", "HOME": "/",
                    "PATH": os.environ["PATH"]})
            self.assertRegex(said, says)

    def test_no_command_line_shows_a_key(self):
        secret = re.compile("[0-9a-f]{64}")
        run = self.start_psrun("--curve", self.path("keys"), "-s", 1, "-w", 1, DIGITS, *LONG, stdout=subprocess.DEVNULL)
        self.wait_for_steps("out")
        parts = dict(children(run.pid))
        self.assertEqual(set(parts), {"ps-server", "ps-worker"})
        for pid in parts.values():
            for what in ("cmdline", "environ"):
                self.assertNotRegex(Path(f"/proc/{pid}/{what}").read_bytes().decode(), secret)
        run.terminate()
        run.wait(PATIENCE_S)

    def test_without_keys_nothing_leaves_the_host(self):
        Path(self.path("hosts")).write_text("10.1.2.3 servers=1 workers=1\n", encoding="utf-8")
        said = self.psrun("-H", self.path("hosts"), "-s", 1, "-w", 1, DIGITS, code=1)
        self.assertIn("--curve DIR", said)
        self.assertIn("--insecure", said)
        for role in ("server", "worker"):
            said = run_well([BIN / f"ps-{role}", "--config", DIGITS, "--rank", "0", "--init-method",
                             "tcp://192.0.2.1:1", "--world-size", "1", "--servers", int(role == "server"),
                             "--set", SOON, "--set", f"exchange.name={'ps' if role == 'server' else 'gloo'}",
                             "--out", self.path("never")], code=1)
            self.assertIn("--insecure (net.insecure=true)", said)


class Intruders(JobTest):
    """Our programs with wrong keys, or none, against a job that waits for a worker, and against a
    job that runs."""

    def intrude(self, port, role, curve, secret_of=None):
        """Starts a part with those keys; secret_of: the role whose key it passes off as its own."""
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
               "PS_SERVERS": "2", "PS_SERVER_RANK" if role == "server" else "RANK": "1"}
        if curve and secret_of:
            text = Path(curve, f"{secret_of}.key").read_text(encoding="ascii").split()
            # The public key has to fit the secret one, or the program itself refuses it.
            text[2] = role
            text[4 if role == "server" else 5] = text[4 if secret_of == "server" else 5]
            env["PS_CURVE_KEY"] = " ".join(text)
        elif curve:
            env["PS_CURVE_DIR"] = curve
        part = Part(role, 1, ["--config", DIGITS, "--set", SOON, *(
            ["--out", self.path(f"intruder-{time.monotonic_ns()}")] if role == "worker" else []),
            *(word for s in self.settings for word in ("--set", s))], env)
        self.addCleanup(part.end)
        return part

    def start_keyed(self, skip):
        self.settings = ["train.epochs=20", "exchange.shm=off", "net.dead_after_ms=200000"]
        parts = self.start_job(2, 2, *self.settings, f"net.curve={self.keys()}", skip=skip)
        return parts, int(parts["server 0"].env["MASTER_PORT"])

    def assert_kept_out(self, parts):
        for what, (part, words) in parts.items():
            self.assertEqual(part.popen.wait(60), 1, f"{what}: {part.text()}")
            self.assertRegex(part.text(), words, what)

    def test_get_no_place_and_change_nothing(self):
        self.settings = ["train.epochs=20", "exchange.shm=off"]
        calm = self.start_job(2, 2, *self.settings)
        self.assertEqual(set(self.wait_all(calm, 120).values()), {0})
        expected = Path(self.path("worker-0", "model.safetensors")).read_bytes()
        parts, port = self.start_keyed(skip=("worker 1", "server 1"))
        parts["server 0"].wait_for("joined role=worker rank=0", 20)
        ours, others = self.keys(), self.keys("others")
        silent = "takes connections but does not answer"
        self.assert_kept_out({
            "no key": (self.intrude(port, "worker", None), silent),
            "another job's key": (self.intrude(port, "worker", others), silent),
            "a worker's key, as a server": (self.intrude(port, "server", ours, "worker"), silent)})
        rest = self.start_rest(parts, port)
        parts["worker 0"].wait_for(r"step [\d,]+/", 60)
        # The job cannot end before the intruders have failed.
        parts["worker 0"].popen.send_signal(signal.SIGSTOP)
        running = {"no key": (self.intrude(port, "worker", None), silent),
                   "another job's key": (self.intrude(port, "worker", others), silent),
                   "a right key, too late": (self.intrude(port, "worker", ours), "has all its members")}
        self.assert_kept_out(running)
        parts["worker 0"].popen.send_signal(signal.SIGCONT)
        self.assertEqual(set(self.wait_all({**parts, **rest}, 200).values()), {0}, parts["server 0"].text())
        self.assertEqual(Path(self.path("worker-0", "model.safetensors")).read_bytes(), expected)

    def start_rest(self, parts, port):
        """Starts the two members for which a job has been waiting."""
        rest = {}
        for role, variable in (("server", "PS_SERVER_RANK"), ("worker", "RANK")):
            env = {k: v for k, v in parts["server 0"].env.items() if k != "PS_SERVER_RANK"}
            args = ["--config", DIGITS, "--set", f"net.curve={self.keys()}",
                    *(word for s in self.settings for word in ("--set", s))]
            if role == "worker":
                args += ["--out", self.path("worker-1")]
            part = Part(role, 1, args, dict(env, **{variable: "1"}))
            self.addCleanup(part.end)
            rest[part.name] = part
        return rest

    def test_a_job_without_keys_gets_no_word_of_one_with_keys(self):
        self.settings = []
        parts = self.start_job(2, 2, skip=("worker 1", "server 1"))  # it outlives the intruder
        parts["server 0"].wait_for("joined role=worker rank=0", 20)
        port = int(parts["server 0"].env["MASTER_PORT"])
        self.assert_kept_out({"keys against none": (
            self.intrude(port, "worker", self.keys()), "takes connections but does not answer")})

    def test_a_worker_that_serves_is_not_believed(self):
        """The coordinator has a worker's key, so workers of the job do not talk to it."""
        self.settings = ["net.join_timeout_ms=8000"]
        port = free_port()
        ours = self.keys()
        impostor = self.intrude(port, "server", ours, "worker")
        impostor.popen.kill()
        impostor.popen.wait()
        env = dict(impostor.env, PS_SERVER_RANK="0")
        impostor = Part("server", 0, ["--config", DIGITS], env)
        self.addCleanup(impostor.end)
        self.assert_kept_out({"its worker": (self.intrude(port, "worker", ours),
                                             "takes connections but does not answer")})
        self.assertNotIn("joined role=worker", impostor.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
