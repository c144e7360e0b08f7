"""pstrain.ray: Ray Train's workers with servers as actors, on this machine."""
import re
import unittest
from pathlib import Path

from jobs import ROOT, python_with, run_well, wait_until
from test_python import WHY_NOT, PythonTest, environment

SCRIPT = str(ROOT / "tests/system/python/ray_fits.py")
# A busy machine starts Ray's processes slowly.
RAY = {"RAY_raylet_start_wait_time_s": "600", "RAY_worker_register_timeout_seconds": "600", "RAY_USAGE_STATS_ENABLED": "0",
       "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600"}


def servers(mark):
    """The ps-servers that have the mark in their environment."""
    found = []
    for there in Path("/proc").glob("[0-9]*"):
        try:
            if (there / "comm").read_text().strip() == "ps-server" and mark in (there / "environ").read_bytes():
                found.append(there.name)
        except OSError:
            continue
    return found


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Ray(PythonTest):
    def test_ray_train(self):
        python = python_with("torch", "ray.train", "pyarrow")
        self.addCleanup(lambda: self.assertEqual(servers(self.folder.encode()), []))
        said = run_well([python, SCRIPT, self.folder], timeout=1800, env=dict(environment(), PS_MARK=self.folder, **RAY))
        found = dict(re.findall(r"(?m)^(.*?): (.*)", said.replace("none: Contr", "no place: Contr")))
        wanted = re.search("loss .*", self.job(program=(python, SCRIPT), timeout=600))[0]
        for name in ("none", "killed worker", "killed server"):
            self.assertEqual(found.get(name), wanted, said)
        self.assertEqual(found["server"], "server 1 was ended by SIGKILL")
        self.assertRegex(found["exception"], "ValueError: no such weight")
        self.assertRegex(found["no place"], "Ray has found no place for 1 servers with {'CPU': 99} each within 1 s")
        wait_until(lambda: not servers(self.folder.encode()), "servers were left running")


if __name__ == "__main__":
    unittest.main(verbosity=2)
