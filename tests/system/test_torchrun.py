"""torchrun starts workers, as the README says. Its own store already uses MASTER_PORT.

PS_TORCH_PYTHON names another interpreter, with another PyTorch.
"""
import os
import shutil
import signal
import subprocess
import sys
import unittest

from jobs import BIN, DIGITS, LONG, JobTest, Part, free_port, kill
from benchlib import netns

NAMED = os.environ.get("PS_TORCH_PYTHON")
MODULE = [NAMED or sys.executable, "-m", "torch.distributed.run"]


def find_torchrun():
    """The command of a torchrun that works, or None. PyTorch 1.13's does not on Python 3.11, and Debian 13's was built
    without the libuv that it asks for, whatever USE_LIBUV says."""
    found = None if NAMED else shutil.which("torchrun")
    for words in ([[found]] if found else []) + [MODULE]:
        try:
            subprocess.run([*words, "--standalone", "--no_python", "--nproc_per_node=1", "true"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=True, timeout=300)
            return words
        except subprocess.SubprocessError:
            continue
    return None


TORCHRUN = find_torchrun()


@unittest.skipIf(TORCHRUN is None, "no torchrun here that starts programs: it comes with PyPI's PyTorch 2")
class Torchrun(JobTest):
    def torchrun(self, *words, exchange="allreduce", settings=("train.steps=20",), env=None,
                 prefix=()):
        """Runs torchrun with two workers on each node, and with our own arguments."""
        command = [str(BIN / "ps-worker"), "--config", DIGITS, "--out", self.path("out")]
        for setting in (f"exchange.name={exchange}", *settings):
            command += ["--set", setting]
        run = subprocess.Popen(
            [*prefix, *TORCHRUN, "--no_python", "--nproc_per_node=2", *words, *command],
            env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(kill, run)
        return run

    def check(self, *runs, workers=2, mode="allreduce"):
        texts = [run.communicate(timeout=300)[0] for run in runs]
        for run, text in zip(runs, texts):
            self.assertEqual(run.returncode, 0, "\n".join(texts))
        self.assertEqual(self.summary()["workers"], workers)
        self.assertEqual(self.summary()["mode"], mode)
        return texts[0]

    def test_one_node(self):
        port = free_port()
        text = self.check(self.torchrun("--master_addr=127.0.0.1", f"--master_port={port}"))
        self.assertRegex(text, f"torchrun its store holds MASTER_PORT; .*127.0.0.1:{port + 1} ")

    def test_standalone(self):
        self.check(self.torchrun("--standalone"))

    def test_another_port(self):
        store, ours = free_port(), free_port()
        text = self.check(self.torchrun(f"--master_port={store}", env={"PS_PORT": str(ours)}))
        self.assertNotIn("its store holds", text)

    def test_servers_outside_of_it(self):
        # The servers know nothing of torchrun's store, so all parts get PS_PORT.
        store, env = free_port(), {"PS_PORT": str(free_port()), "PS_SERVERS": "1"}
        server = Part("server", 0, ["--config", DIGITS, "--set", "exchange.name=ps", "--set",
                                    "train.steps=20"],
                      dict(env, MASTER_ADDR="127.0.0.1", WORLD_SIZE="2", PS_SERVER_RANK="0"))
        self.addCleanup(server.end)
        run = self.torchrun("--master_addr=127.0.0.1", f"--master_port={store}", exchange="ps", env=env)
        self.check(run, mode="ps")
        self.assertEqual(self.wait_all({"server 0": server}), {"server 0": 0})

    def test_sigterm_keeps_the_weights(self):
        run = self.torchrun(f"--master_port={free_port()}", settings=LONG)
        self.wait_for_steps("out")
        run.send_signal(signal.SIGTERM)
        text, _ = run.communicate(timeout=300)
        self.assertNotEqual(run.returncode, 0)
        self.assertTrue(self.summary()["interrupted"], text)
        self.assertTrue(os.path.exists(self.path("out", "model.safetensors")), text)

    @unittest.skipIf(netns.why_not(), f"{netns.why_not()}")
    def test_two_nodes(self):
        with netns.Hosts(1000, {"node": 2}) as hosts:
            host, port = hosts.address("node", 0)
            runs = [self.torchrun("--nnodes=2", f"--node_rank={rank}", f"--master_addr={host}",
                                  f"--master_port={port}", prefix=hosts.prefix("node", rank),
                                  settings=["train.steps=20", "net.insecure=true"])
                    for rank in range(2)]
            text = self.check(*runs, workers=4)
        self.assertIn(f"{host}:{port + 1} ", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
