"""deploy/systemd: the units are valid, and allow a service next to nothing."""
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from jobs import ROOT

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
MOST_EXPOSED = 2.0  # of 10, by systemd's own count


@unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
class Units(unittest.TestCase):
    def analyze(self, *words):
        done = subprocess.run(["systemd-analyze", *map(str, words)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=False)
        return done.returncode, done.stdout

    def test_valid(self):
        for unit in UNITS:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder, unit.name)
                # The programs and pages are not installed here.
                text = re.sub("/usr/bin/ps-server", "/bin/true", unit.read_text(encoding="utf-8"))
                copy.write_text(re.sub("(?m)^Documentation=.*\n", "", text), encoding="utf-8")
                code, said = self.analyze("verify", copy)
                self.assertNotIn(copy.name, said)
                self.assertNotIn("Unknown", said)
                self.assertEqual(code, 0, said)

    def test_exposure(self):
        for unit in UNITS:
            code, said = self.analyze("security", "--offline=yes", unit)
            if "unrecognized option" in said:
                self.skipTest("this systemd-analyze cannot read files (--offline)")
            found = re.search(r"exposure level for \S+: ([\d.]+)", said)
            self.assertTrue(found, said)
            self.assertLessEqual(float(found.group(1)), MOST_EXPOSED)


if __name__ == "__main__":
    unittest.main()
