"""Embedding tables outlive deaths and other numbers of servers: workers are tests/system/python/rows_saved_worker.py.
What is compared is the file that rank 0 exports at the end, with a weight of the dense part behind it."""
import subprocess
import unittest
from pathlib import Path

from jobs import ROOT, Faults, Psrun
from test_python import FAST, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/rows_saved_worker.py")


class RowsSavedTest(PythonTest):
    _wanted = b""  # the export of a job without deaths, on one server

    def wanted(self):
        RowsSavedTest._wanted = self._wanted or self.run_job("wanted", servers=1)[0]
        return self._wanted

    def run_job(self, name, *words, servers=2, restarts=0, code=0, env=None, keys=()):
        """The export, and the output."""
        argv = self.psrun_argv("--overwrite", "--verbose", "-s", servers, "-w", 2, "--restarts", restarts, *FAST, *keys)
        done = Psrun.run([*argv, "--", PYTHON, WORKER, self.path(name), *words], env={**environment(), **(env or {})},
                         stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout)
        return Path(self.path(name)).read_bytes() if code == 0 else b"", done.stdout

    def kept(self):
        return f"folder={self.path('commits')}"


class Deaths(RowsSavedTest):
    def test_bits_of_a_job_without_a_death(self):
        wanted = self.wanted()
        # A worker: the servers stay, and go back by themselves.
        rows, text = self.run_job("worker", "who=1@5", restarts=1)
        self.assertEqual(rows, wanted)
        self.assertEqual(text.count("rows step=4 from=memory"), 2, text)
        # A server, within the third commit, which is in memory alone: all go back to the second one, on the disk.
        faults = Faults(self.path("faults"), "server/1@rows.kept:3:kill")
        rows, text = self.run_job("server", self.kept(), "disk_every=2", restarts=1, env=faults.env)
        self.assertEqual(rows, wanted)
        self.assertEqual(text.count(f"rows step=4 from={self.path('commits')}"), 2, text)
        # The same within the second one, with none on the disk: the other server has the first one's rows, too.
        faults = Faults(self.path("faults-buddy"), "server/1@rows.kept:2:kill")
        rows, text = self.run_job("buddy", self.kept() + "-buddy", "disk_every=3", restarts=1, env=faults.env,
                                  keys=("rows.buddy=true",))
        self.assertEqual(rows, wanted)
        self.assertIn('rows step=2 from="memory of server 0"', text)


class Servers(RowsSavedTest):
    def test_other_numbers(self):
        wanted = self.wanted()
        for servers, steps in ((2, 4), (3, 7)):
            self.run_job("part", self.kept(), f"steps={steps}", "full_every=3", servers=servers)
        rows, text = self.run_job("all", self.kept(), servers=1)
        self.assertEqual(rows, wanted)
        # What is missing has a name, and a mend.
        gone = next(Path(self.path("commits")).glob("commit-4.rows-1-0"))
        gone.unlink()
        _, text = self.run_job("none", self.kept(), code=1)
        self.assertRegex(text, f"{gone}: No such file.*of a pstrain.State: all files of the commits from its number on")

    def test_a_commit_that_fails(self):
        for number, stays in ((1, "there is no commit before it"), (3, "commit 2 stays")):
            rows, text = self.run_job("faulty", f"{self.kept()}-{number}", f"faulty={number}", servers=2)
            self.assertEqual(rows, self.wanted())
            self.assertEqual(text.count(f"the rows of commit {number} could not be written: No space left on device"), 2, text)
            self.assertEqual(text.count(f"with room; {stays}\n"), 2, text)

    def test_rows_after_a_commit_that_fails(self):
        """What has changed is not added to files of the commit that failed."""
        _, text = self.run_job("part", self.kept(), "steps=6", "full_every=9", "faulty=1", "of=rank")
        self.assertEqual(text.count("commit 1 could not be written by rank 1"), 2, text)
        rows, _ = self.run_job("all", self.kept(), servers=1)
        self.assertEqual(rows, self.wanted())

    def test_no_step_is_left(self):
        """Rank 0 alone looks at the rows."""
        self.assertEqual(*(self.run_job("rows", self.kept(), "steps=6")[0] for _ in range(2)))


if __name__ == "__main__":
    unittest.main()
