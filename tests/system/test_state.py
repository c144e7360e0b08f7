"""Programs that go on after deaths: pstrain.State, pstrain.DistributedSampler, psrun --restarts.

PS_TORCH_PYTHON names another interpreter, with another PyTorch.
"""
import os
import re
import signal
import subprocess
import unittest

import test_python
from jobs import ROOT, Psrun, find_part, first, free_port, nightly, wait_until
from test_python import FAST, LIBRARY, PYTHON, WHY_NOT, WORKER, PythonTest, environment

GOES_ON = re.compile(r"psrun: the job (goes on from commit \d+|begins again) ?\(?(?:.*batch (\d+)\))?.*, [\d.]+ s "
                     r"after (.*); [\d.]+ s of work lost\n")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class StateTest(PythonTest):
    def recovers(self, way, *plans, folder="-", code=0, restarts=3, workers=2):
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", 1, "-w", workers, "--restarts", restarts, *FAST)
        return self.finish([*argv, "--", PYTHON, WORKER, "recovers", way, folder, *plans], code)

    def finish(self, argv, code=0):
        done = Psrun.run(argv, env=environment(), stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def whole(self, text, workers=2):
        return self.said(text, "whole", workers)

    def folders(self, text):
        """Those that psrun has made for commits, and that are still there."""
        made = {place for said in re.findall(r"rank \d+: places (.+)", text) for place in said.split(":")}
        self.assertGreaterEqual(len(made), 2, text)
        return [place for place in made if os.path.exists(place)]

    def alone(self, way, without={}):
        """What a job without a death says at its end."""
        if way not in without:
            without[way] = self.whole(self.recovers(way))
        return without[way]


class SameBits(StateTest):
    """A job with deaths ends with the bits of one without."""

    def check(self, way, *deaths):
        """deaths: (plan, the batch of the commit that the job goes on from, who died)"""
        text = self.recovers(way, *(plan for plan, _, _ in deaths))
        self.assertEqual(self.whole(text), self.alone(way), text)
        self.assertEqual([(batch, who) for _, batch, who in GOES_ON.findall(text)],
                         [(batch, who) for _, batch, who in deaths], text)
        self.assertEqual(self.folders(text), [])

    def test_deaths(self):
        # Of a hook's worker; of one in the middle of a commit, then of a server; with steps by PyTorch's code; then each way,
        # codecs, and several Optimizers.
        for way, *deaths in first(4, (
                ("hook", ("0=dies:0:9", "8", "worker 0 was ended by SIGKILL")),
                ("optimizer", ("0=writes:1:12", "8", "worker 1 was ended by SIGKILL"),
                 ("1=server:0:18", "16", "server 0 was ended by SIGKILL")),
                ("doubles", ("0=dies:1:10", "8", "worker 1 was ended by SIGKILL")),
                ("two_mixed", ("0=writes:1:12", "8", "worker 1 was ended by SIGKILL"),
                 ("1=dies:0:18", "16", "worker 0 was ended by SIGKILL")),
                ("two_doubles", ("0=server:0:10", "8", "server 0 was ended by SIGKILL")),
                ("two", ("0=dies:0:13", "12", "worker 0 was ended by SIGKILL")),
                ("mixed", ("0=dies:1:10", "8", "worker 1 was ended by SIGKILL")),
                ("group", ("0=raises:1:22", "20", "worker 1 ended with exit code 1")),
                ("topk", ("0=writes:1:16", "12", "worker 1 was ended by SIGKILL")),
                ("lamb", ("0=writes:0:4", "", "worker 0 was ended by SIGKILL")),
                ("scaled", ("0=dies:1:11", "8", "worker 1 was ended by SIGKILL"),
                 ("1=raises:0:14", "12", "worker 0 ended with exit code 1")))):
            with self.subTest(way=way):
                self.check(way, *deaths)


class Ends(StateTest):
    def test_it_fails_at_the_same_commit(self):
        text = self.recovers("hook", *(f"{n}=raises:0:6" for n in range(9)), restarts=9, code=1, workers=1)
        # Where a worker takes long to end, its server may be named first: that is no error of the program's.
        self.assertIn(len(GOES_ON.findall(text)), (2, 3), text)
        self.assertIn("psrun: the program has failed 3 times after the same commit: it is not started again\n", text)

    def test_stops_in_order_and_is_resumed(self):
        folder = self.path("commits")
        stopped = self.recovers("optimizer", "0=stops:0:6", folder=folder)
        self.assertEqual(self.said(stopped, "stopped"), ["6", "6"])
        text = self.recovers("optimizer", folder=folder)
        self.assertEqual(self.said(text, "from"), ["6", "6"])
        self.assertEqual(self.whole(text), self.alone("optimizer"))

    def test_psrun_is_killed(self):
        run = self.start("recovers", "hook", "-", "0=stops:0:99", settings=["--restarts", "1", *FAST])
        text = ""
        while "places" not in text:
            text += run.stdout.readline()
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not self.folders(text))


class OtherSizes(StateTest):
    @nightly
    def test_more_workers(self):
        """They go on where the others were; not with a codec that has kept something back on each."""
        for way, code in (("optimizer", 0), ("topk", 1)):
            with self.subTest(way=way):
                folder = self.path(way)
                self.recovers(way, "0=stops:0:6", folder=folder)
                text = self.recovers(way, folder=folder, workers=3, restarts=0, code=code)
                if code:
                    self.assertIn("is of 2 ranks, and the codec of each keeps a part of its gradients: go on with 2",
                                  text)
                else:
                    self.assertEqual(self.said(text, "from", 3), ["6", "6", "6"])
                    self.assertEqual(len(set(self.whole(text, 3))), 1)


class Examples(StateTest):
    @nightly
    def test_mnist_restarts(self):
        program = (PYTHON, str(ROOT / "python/examples/mnist_restarts.py"), "--epochs", "12")
        alone, _ = self.start(program=program).communicate(timeout=600)
        run = self.start(settings=["--restarts", "1", *FAST], program=program)
        while "epoch 2:" not in run.stdout.readline():
            pass
        os.kill(find_part(run.pid, "server", 1), signal.SIGKILL)
        text, _ = run.communicate(timeout=600)
        self.assertIn("psrun: the job goes on from commit", text)
        accuracy = re.compile(r"epoch 12: test accuracy [\d.]+")
        self.assertEqual(accuracy.findall(text), accuracy.findall(alone))


class Hosts(StateTest):
    """Two hosts by an ssh that stays here: each has folders of its own, and parts of its own in them."""

    def start_hosts(self, way, plan, restarts=1, reached="rm $down"):
        # A host that is down (its name is in the file "down") is reached at the second try.
        ssh = (f'#!/bin/bash\nhost=${{@: -3:1}} down={self.path("down")}\n'
               f'if grep -qsx "$host" $down; then {reached}; exit 255; fi\n'
               'PS_TEST_HOST=$host PS_TEST_DOWN=$down exec sh -c "${@: -1}"\n')
        for name, text in (("ssh", ssh),
                           ("hosts", "one servers=1 workers=1 addr=127.0.0.1\ntwo workers=1 addr=127.0.0.1\n"),
                           ("train", f"#!/bin/sh\nPYTHONPATH={environment()['PYTHONPATH']} PSTRAIN_LIBRARY={LIBRARY} "
                                     f"exec {PYTHON} {WORKER} \"$@\"\n")):
            with open(self.path(name), "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o755)) as f:
                f.write(text)
        argv = self.psrun_argv("--overwrite", "--verbose", "--insecure", "-H", self.path("hosts"), "--port",
                               free_port(), "-s", 1, "-w", 2, "--restarts", restarts, *FAST)
        run = Psrun([*argv, "--", self.path("train"), "recovers", way, "-", plan],
                    env=dict(environment(), PS_SSH=self.path("ssh")), stdin=subprocess.DEVNULL)
        self.addCleanup(test_python.kill, run)
        return run

    def goes_on(self, way, plan, batch):
        text, _ = self.start_hosts(way, plan).communicate(timeout=400)
        self.assertEqual(self.whole(text), self.alone(way), text)
        self.assertEqual([at for _, at, _ in GOES_ON.findall(text)], [batch], text)
        self.assertEqual(self.folders(text), [])
        return text

    def test_ctrl_c_while_a_host_is_awaited(self):
        run = self.start_hosts("optimizer", "0=host:1:11", restarts=9, reached="true")
        while "psrun: ssh could not reach two; it is tried again in 4 s" not in (line := run.stdout.readline()):
            self.assertTrue(line)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.communicate(timeout=60)[0], "psrun: interrupted; no part of a job is running\n")
        self.assertEqual(run.returncode, 130)

    def test_a_host_is_lost_with_its_memory(self):
        """The next one has what it had: the optimizer's state (worker 0's), what a codec keeps back, random numbers."""
        for way, rank in first(1, (("topk", 0), ("optimizer", 0), ("topk", 1), ("group", 0))):
            with self.subTest(way=way, rank=rank):
                text = self.goes_on(way, f"0=host:{rank}:11", "8")
                self.assertIn(f"psrun: ssh could not reach {('one', 'two')[rank]}; it is tried again in 1 s (1 of 1)\n", text)


class Torchrun(StateTest):
    torchrun, pstrain_server = test_python.Torchrun.torchrun, test_python.Torchrun.pstrain_server

    @nightly
    def test_max_restarts(self):
        store = f"127.0.0.1:{free_port()}"
        server = self.pstrain_server("--store", store, "--world-size", "2", "--max-restarts", "2")
        run = self.torchrun("--master_addr=127.0.0.1", f"--master_port={store[10:]}", "--max_restarts=2", WORKER,
                            "recovers", "optimizer", self.path("commits"), "0=dies:1:11", "1=raises:0:18")
        text, _ = run.communicate(timeout=400)
        self.assertEqual(run.returncode, 0, text)
        said, _ = server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0, said)
        self.assertEqual(re.findall(r"rank 0: from (\d+)", text), ["0", "8", "16"])
        self.assertEqual(self.whole(text), self.alone("optimizer"))


class Uses(StateTest):
    def test_misuse(self):
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", 1, "-w", 2, "--restarts", 1, *FAST)
        text = self.finish([*argv, "--", PYTHON, WORKER, "states", self.path("commits")])
        self.assertNotIn("a child:", text)

    def test_without_a_job(self):
        for case in ("samplers", "spares"):
            self.runs_alone(case)

    def runs_alone(self, case):
        done = subprocess.run([PYTHON, WORKER, case], env=dict(environment(), RANK="0", WORLD_SIZE="1"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
