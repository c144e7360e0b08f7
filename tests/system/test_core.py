"""The core alone, -DPS_WORKER=OFF: servers, libpstrain and psrun, without what ps-worker needs. It builds, tests,
installs and packages."""
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

from jobs import ROOT, run_well

# What ps-worker and the all-reduce engine stand on.
NOT_NEEDED = re.compile(r"dnnl|gomp|gloo|libpng|libjpeg|libwebp|nccl|cuda", re.I)


def must(*command, **more):
    return run_well(command, timeout=None, **more)


class Core(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="pstrain-core-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.build = cls.folder / "build"
        cls.env = dict(os.environ, CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="yes")
        must("cmake", "-S", ROOT, "-B", cls.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             "-DPS_WORKER=OFF", "-DPS_WITH_GLOO=OFF", "-DPS_WITH_NCCL=OFF", "-DPS_FAULT_POINTS=ON")
        must("cmake", "--build", cls.build, env=cls.env)

    def test_it_looks_for_nothing_else(self):
        cache = (self.build / "CMakeCache.txt").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"(?m)^(?:DNNL|PNG|JPEG|OpenMP)\w*:\w+=/.*", cache), [])

    def test_its_tests_pass(self):
        text = must("ctest", "--test-dir", self.build, "-LE", "nightly|sources", "-j", 2)
        self.assertGreater(int(re.search(r"100% tests passed, 0 tests failed out of (\d+)", text)[1]), 80)

    def test_installed_and_packaged(self):
        stage = self.folder / "stage"
        must("cmake", "--install", self.build, "--prefix", "/usr", env=dict(os.environ, DESTDIR=str(stage)))
        self.assertFalse((stage / "usr/bin/ps-worker").exists())
        library = next(stage.rglob("libpstrain.so.0"))
        for program in (stage / "usr/bin/ps-server", library):
            self.assertNotRegex(must("ldd", program), NOT_NEEDED)
        must("cpack", "--config", self.build / "CPackConfig.cmake", "-B", self.folder / "debs")
        debs = {deb.name.split("_")[0]: must("dpkg-deb", "-f", deb, "Depends")
                for deb in (self.folder / "debs").glob("*.deb")}
        self.assertEqual(set(debs), {"pstrain", "pstrain-server", "libpstrain0", "libpstrain-dev"})
        self.assertNotIn("pstrain-worker", debs["pstrain"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
