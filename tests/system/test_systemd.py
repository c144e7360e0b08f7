"""deploy/systemd: the units are valid, allow a service next to nothing, and take an end in order for none by failure."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, ROOT, free_port, listening_ports, wait_until

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
assert UNITS
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


class Ends(unittest.TestCase):
    def test_an_end_in_order_is_no_failure(self):
        """What the server ends with when it is told to: the unit is not started again, and not "failed"."""
        (unit,) = UNITS
        well = re.search(r"(?m)^SuccessExitStatus=(.*)$", unit.read_text(encoding="utf-8")).group(1).split()
        for number in (signal.SIGTERM, signal.SIGINT):
            port = free_port()
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PS_SERVERS="1", WORLD_SIZE="1")
            with subprocess.Popen([BIN / "ps-server", "--config", DIGITS, "--rank", "0"], env=env,
                                  stderr=subprocess.DEVNULL) as server:
                wait_until(lambda: port in listening_ports(server.pid))
                server.send_signal(number)
                self.assertIn(str(server.wait(timeout=50)), well)


if __name__ == "__main__":
    unittest.main()
