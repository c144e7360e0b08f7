"""bench/network and bench/exchange: tiny runs work, and no namespace is ever left behind."""
import json
import os
import signal
import subprocess
import tempfile
import unittest

from jobs import BIN, ROOT, wait_until
from benchlib import netns

REASON = netns.why_not()
TINY = ["-w", "2", "-s", "2", "--mbit", "1000", "--sizes", "262144", "--rounds", "1",
        "--no-peers", "--build-dir", str(BIN.parent)]


def start(out, *words):
    return subprocess.Popen([ROOT / "bench/network", *TINY, "--out", out, *words],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)


def namespaces_of(pid):
    return [name for name, owner in netns.ours() if owner == pid]


def wait_for_namespaces(process, n):
    """Waits for the namespaces of a benchmark that has begun to measure."""
    wait_until(lambda: len(namespaces_of(process.pid)) >= n or process.poll() is not None)
    if process.poll() is not None:
        raise AssertionError(process.stdout.read())


@unittest.skipIf(REASON, f"{REASON}")
class Network(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pstrain-test-")
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "out")

    def test_a_tiny_run_beside_the_line_rate(self):
        process = start(self.out, "--seconds", "0.2", "--codecs", "none,int8")
        text, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, text)
        with open(os.path.join(self.out, "network.json"), encoding="utf-8") as f:
            found = {r["what"]: r for r in json.load(f)["figures"]}
        self.assertEqual(set(found), {"line rate", "ps", "ps int8", "line rate, all-reduce",
                                      "all-reduce"})
        # 262,144 bytes at 1 Gbit/s, no headers; a link that was idle lets the first BURST of them
        # through at once. Two workers send as many in all-reduce.
        for name in ("ps", "all-reduce"):
            self.assertGreater(found[name]["ms_p50"]["median"], (262144 - netns.BURST) * 8e-6, name)
            self.assertAlmostEqual(found[name]["bound_ms"], 262144 * 8e-6 * 1514 / 1448, places=6)
        self.assertGreater(found["ps int8"]["compression_ratio"]["median"], 3)
        self.assertEqual(namespaces_of(process.pid), [])

    def test_training_is_judged_by_its_limit(self):
        process = start(self.out, "--sizes", "", "--codecs", "none,int8", "--train",
                        str(ROOT / "configs/digits-basicnet.yaml"), "data.train=0-639",
                        "train.epochs=4", "train.threads=1", "train.eval_every=0")
        text, _ = process.communicate(timeout=200)
        self.assertEqual(process.returncode, 0, text)
        with open(os.path.join(self.out, "network.json"), encoding="utf-8") as f:
            found = {r["mode"]: r for r in json.load(f)["training"]}
        self.assertEqual(list(found), ["alone", "ps", "ps int8", "all-reduce"])
        for name in ("ps", "ps int8", "all-reduce"):
            r = {k: v["median"] for k, v in found[name].items() if isinstance(v, dict)}
            limit = max(r["line_ms"], r["beside_tcp_ms"])
            self.assertAlmostEqual(r["step_to_limit"], r["step_ms_p50"] / limit, places=6)
            self.assertIsNotNone(found[name]["test_accuracy"])
        self.assertEqual(found["ps"]["train_loss"], found["all-reduce"]["train_loss"])

    def test_an_ended_run_takes_its_hosts_along(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = start(self.out, "--seconds", "60")
            wait_for_namespaces(process, 5)
            process.send_signal(number)
            text, _ = process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0, text)
            self.assertEqual(namespaces_of(process.pid), [])

    def test_what_a_killed_run_left_is_swept(self):
        process = start(self.out, "--seconds", "60")
        wait_for_namespaces(process, 5)
        process.kill()
        process.communicate(timeout=60)
        self.assertGreaterEqual(len(namespaces_of(process.pid)), 5)
        done = subprocess.run([ROOT / "bench/network", "--sweep"], stdout=subprocess.PIPE, text=True,
                              check=True)
        self.assertIn(f"pstrain-{process.pid}-", done.stdout)
        self.assertEqual(namespaces_of(process.pid), [])


class Refusal(unittest.TestCase):
    @unittest.skipIf(os.geteuid() != 0, "only root can become somebody else")
    def test_without_root_the_reason_is_given(self):
        with tempfile.TemporaryDirectory(prefix="pstrain-test-") as folder:
            # A copy: other users may not be allowed to read the checkout.
            subprocess.run(["cp", "-r", ROOT / "bench", ROOT / "deploy", folder], check=True)
            subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
            done = subprocess.run(["/usr/bin/env", "python3", f"{folder}/bench/network"], user=65534,
                                  cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={"PATH": os.defpath + ":/usr/sbin:/sbin"})
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("root", done.stderr)


class Exchange(unittest.TestCase):
    def test_a_tiny_run_checks_its_sums(self):
        with tempfile.TemporaryDirectory(prefix="pstrain-test-") as folder:
            done = subprocess.run(
                [ROOT / "bench/exchange", "--sizes", "64K", "--codecs", "none,onebit", "--steps",
                 "5", "--rounds", "1", "--no-peers", "--build-dir", str(BIN.parent), "--out", folder],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(folder, "exchange.json"), encoding="utf-8") as f:
                rows = json.load(f)["figures"]
        self.assertEqual({(r["what"], r["codec"]) for r in rows},
                         {("tcp", "none"), ("shm", "none"), ("tcp", "onebit")})


if __name__ == "__main__":
    unittest.main()
