"""Rows of a job that runs, read by a process that is no member: workers and reader are
tests/system/python/rows_served_worker.py."""
import os
import subprocess
import unittest
from pathlib import Path

from jobs import ROOT, Faults, Psrun, free_port
from test_python import FAST, LIBRARY, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/rows_served_worker.py")


class Served(PythonTest):
    def train(self, name, *words, servers=2, flags=(), settings=(), env=None):
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", servers, "-w", 2, *flags, *FAST, *settings)
        run = Psrun([*argv, "--", PYTHON, WORKER, "train", self.path(name), *words], env={**environment(), **(env or {})},
                    stdin=subprocess.DEVNULL)
        self.addCleanup(run.kill)
        return run

    def trained(self, run, name):
        text, _ = run.communicate(timeout=200)
        self.assertEqual(run.returncode, 0, text)
        return Path(self.path(name)).read_bytes(), text

    def test_reads_what_members_see_and_changes_nothing(self):
        wanted, _ = self.trained(self.train("alone"), "alone")
        example, folder = self.path("read_rows"), Path(LIBRARY).parent
        subprocess.run(["cc", "-Wall", "-Werror", ROOT / "docs/examples/read_rows.c", f"-I{ROOT / 'library'}", LIBRARY,
                        f"-Wl,-rpath,{folder.resolve()}", "-o", example], check=True)
        few = ("server.shards=3", "exchange.shm=off", "server.readers=4")
        for servers, words, settings in ((2, (), ()), (1, ("places",), few)):
            with self.subTest(servers=servers):
                run = self.train("beside", f"beside={example}", *words, servers=servers, settings=settings)
                rows, _ = self.trained(run, "beside")
                self.assertEqual(rows, wanted)

    def test_goes_on_after_a_servers_death(self):
        port, fifos = free_port(), [self.path(word) for word in ("begun", "ended")]
        for fifo in fifos:
            os.mkfifo(fifo)
        faults = Faults(self.path("faults"), "server/1@rows.kept:3:kill")
        run = self.train("rows", f"folder={self.path('commits')}", f"begun={fifos[0]}", f"ended={fifos[1]}",
                         flags=("--restarts", 1, "--port", port), env=faults.env)
        reader = subprocess.run([PYTHON, WORKER, "read", f"tcp://127.0.0.1:{port}", "9", *fifos], env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)
        self.assertEqual(reader.returncode, 0, reader.stderr)
        _, text = self.trained(run, "rows")
        self.assertIn("rows step=4 from=", text)
        sums = subprocess.run([PYTHON, WORKER, "sums", self.path("rows")], env=environment(), stdout=subprocess.PIPE, text=True)
        self.assertEqual(reader.stdout, sums.stdout)

    def test_keys(self):
        for case, flags in (("keys", ("--curve", self.path("job-keys"))), ("insecure", ("--insecure",))):
            with self.subTest(case=case):
                self.trained(self.train(case, case, "steps=2", flags=flags), case)


if __name__ == "__main__":
    unittest.main()
