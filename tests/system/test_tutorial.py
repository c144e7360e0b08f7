"""docs/tutorial.md: its commands run as they stand, in an empty folder, and what they predict is right."""
import csv
import os
import re
import shutil
import unittest
from pathlib import Path

import test_ssh
from jobs import BIN, ROOT, JobTest, run_well
from test_python import PYTHON, WHY_NOT, environment

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
# Title -> the commands. What stands before the first title is the beginning of all parts.
BEGINNING, *PARTS = re.split(r"^## ", PAGE, flags=re.M)
BEGINNING, *PARTS = ("\n".join(re.findall(r"```sh\n(.*?)```", part, re.S)) for part in (BEGINNING, *PARTS))
TITLES = re.findall(r"^## (.*)", PAGE, re.M)
COMMANDS = dict(zip(TITLES, PARTS))


class TwoMachines(test_ssh.Cluster):
    """Hosts with names, and a home of its own each at the same path."""

    def __init__(self, folder, home):
        super().__init__(folder, hosts=2)
        self.home = Path(home)
        for i in range(3):
            (self.folder / f"home{i}").mkdir()
            names = "".join(f"{self.address(k) if k != i else '127.0.1.1'} node{k}\n" for k in (1, 2))  # as Debian does
            (self.folder / f"hosts{i}").write_text(names)

    def on(self, i, *argv):
        mounts = f"mount --bind {self.folder}/hosts{i} /etc/hosts && mount --bind {self.folder}/home{i} {self.home}"
        return super().on(i, "sh", "-c", f'{mounts} && exec "$@"', "sh", *argv)

    def start(self):
        super().start()
        config = self.folder / "config"
        config.write_text(config.read_text() + f"Port {test_ssh.PORT}\n" + "".join(
            f"Host node{i}\nHostName {self.address(i)}\n" for i in (1, 2)))


class Tutorial(JobTest):
    def setUp(self):
        super().setUp()
        self.home, bin_ = Path(self.path("home")), Path(self.path("bin"))
        self.home.mkdir()
        bin_.mkdir()
        (bin_ / "python").symlink_to(PYTHON)
        (bin_ / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/cluster/config "$@"\n')
        (bin_ / "ssh").chmod(0o755)
        self.env = dict(environment(), HOME=str(self.home), PATH=f"{bin_}:{os.environ['PATH']}",
                        PS_BUILD_DIR=str(BIN.parent.resolve()))

    def follow(self, *titles, on=lambda *argv: argv):
        commands = "\n".join([BEGINNING, *(COMMANDS[title] for title in titles)])
        run_well(on("bash", "-ex"), input=commands, cwd=ROOT, env=self.env)
        return self.home / "first-steps"

    @staticmethod
    def rows(path):
        with open(path, encoding="utf-8") as f:
            return list(csv.DictReader(f))

    def right(self, pairs, n):
        """Of n predictions nine tenths; by guessing half or a third of them would be."""
        self.assertEqual(len(pairs), n)
        self.assertGreater(sum(a == b for a, b in pairs), 0.9 * n, pairs)

    def points(self, table, predicted):
        """By the circle itself."""
        circle = [int(float(p["x"]) ** 2 + float(p["y"]) ** 2 < 0.6) for p in self.rows(table / "new.csv")]
        self.right([(int(p["class"]), c) for p, c in zip(self.rows(predicted), circle)], 100)

    def test_every_part_is_here(self):
        self.assertEqual(TITLES, ["A table", "A folder of pictures", "Signals", "A PyTorch script", "Two machines", "Next"])
        self.assertEqual([title for title in TITLES if not COMMANDS[title]], ["Next"])

    def test_files(self):
        home = self.follow("A table", "A folder of pictures", "Signals")
        self.points(home / "table", home / "table/predicted/predictions.csv")
        self.right([(os.path.basename(p["file"]).split("-")[0], p["class_name"])
                    for p in self.rows(home / "pictures/predicted/predictions.csv")], 30)
        self.right([(int(p["class"]), int(p["index"]) % 3)
                    for p in self.rows(home / "signals/predicted/predictions.csv")], 90)

    @unittest.skipIf(WHY_NOT, WHY_NOT)
    def test_script(self):
        home = self.follow("A PyTorch script")
        self.points(home / "table", home / "script/predictions.csv")

    def test_two_machines(self):
        reason = test_ssh.missing()
        if reason:
            self.skipTest(reason)
        os.mkdir(self.path("cluster"))
        cluster = TwoMachines(self.path("cluster"), self.home)
        self.addCleanup(cluster.stop)
        cluster.start()
        self.follow("A table", "Two machines", on=lambda *argv: cluster.on(1, *argv))
        table = cluster.folder / "home1/first-steps/table"
        self.points(table, table / "two-predicted/predictions.csv")
        self.assertEqual(*((table / out / "model.safetensors").read_bytes() for out in ("two", "trained")))
        self.assertTrue((cluster.folder / "home2/first-steps/table/train.csv").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
