"""The wheel's tag is true, and the wheel works in empty virtual environments of fresh releases.

PS_WHEEL_RELEASES names the releases, PS_ROOTS a folder of their roots (roots.py), PS_WHEEL a wheel
that was built before. PS_WHEEL_TWICE=1 builds it in two folders and compares the bytes.
"""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

from jobs import ROOT
from roots import USER, Root

WANTED = os.environ.get("PS_WHEEL_RELEASES", "bookworm trixie jammy noble").split()
MOST_BYTES = 5242880
USE = ("cd ~ && python3 -m venv env && env/bin/pip install --no-index --no-deps /wheel/*.whl && "
       "env/bin/psrun --version && env/bin/psrun -s 1 -w 2 -- env/bin/python -c '"
       "import pstrain\nwith pstrain.init():\n  pstrain.barrier()\n  print(\"ok\", pstrain.size())'")


def build(folder):
    done = subprocess.run([ROOT / "python/build_wheel", folder], env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"),
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3000, check=False)
    if done.returncode != 0 and re.search(
            "Could not resolve|Temporary failure|No matching distribution|Failed to fetch", done.stdout):
        raise unittest.SkipTest(f"no archive or no PyPI: {done.stdout.strip().splitlines()[-1]}")
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    return next(Path(folder).glob("pstrain-*.whl"))


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="pstrain-wheel-", dir="/var/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        given = os.environ.get("PS_WHEEL")
        cls.wheel = Path(given) if given else build(Path(cls.folder, "first"))

    def test_its_tag_is_true(self):
        """It has no symbol of a newer glibc than the tag names."""
        found = re.fullmatch(r"pstrain-([\d.]+)-py3-none-manylinux_2_(\d+)_x86_64.*\.whl", self.wheel.name)
        self.assertTrue(found, self.wheel.name)
        self.assertLessEqual(int(found.group(2)), 35)
        self.assertLessEqual(self.wheel.stat().st_size, MOST_BYTES)
        plain = Path(self.folder, "plain")
        with zipfile.ZipFile(self.wheel) as z:
            z.extractall(plain)
        programs = [p for p in plain.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreaterEqual(len(programs), 3)
        for path in programs:
            text = subprocess.run(["objdump", "-T", path], check=True, text=True, stdout=subprocess.PIPE).stdout
            minors = {int(n) for n in re.findall(r"GLIBC_2\.(\d+)", text)}
            self.assertLessEqual(max(minors), int(found.group(2)), path)
        said = subprocess.run(["python3", "-c", "import sys; sys.path.insert(0, sys.argv[1]); "
                               "from psrunlib import places; print(places.version())", plain / "pstrain/psrun"],
                              check=True, text=True, stdout=subprocess.PIPE).stdout
        self.assertEqual(said.strip(), found.group(1))

    @unittest.skipUnless(os.environ.get("PS_WHEEL_TWICE"), "PS_WHEEL_TWICE=1 builds the wheel twice")
    def test_the_same_bytes_twice(self):
        one, two = (build(Path(self.folder, name)) for name in ("one", "an-other"))
        self.assertEqual(one.name, two.name)
        self.assertEqual(one.read_bytes(), two.read_bytes())

    def use(self, release):
        if release not in WANTED:
            self.skipTest("not in PS_WHEEL_RELEASES")
        root = Root(release)
        self.addCleanup(root.close)
        code, text = root.call("apt-get -q update && apt-get install -y --no-install-recommends python3-venv")
        if code != 0:
            self.skipTest(f"no packages of {release}: {text.strip().splitlines()[-1]}")
        (root.path / "wheel").mkdir()
        shutil.copy(self.wheel, root.path / "wheel")
        root.add_user()
        self.assertIn("[worker 0] ok 2", root.must(USE, user=USER, timeout=300))

    def test_bookworm(self):
        self.use("bookworm")

    def test_trixie(self):
        self.use("trixie")

    def test_jammy(self):
        self.use("jammy")

    def test_noble(self):
        self.use("noble")


if __name__ == "__main__":
    unittest.main()
