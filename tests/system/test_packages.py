"""The .debs in fresh folders of the releases that they are for: built there, the same bytes twice,
installed, and used by an ordinary user.

PS_RELEASES names the releases, PS_ROOTS a folder of their roots (roots.py).
"""
import json
import os
import re
import shutil
import subprocess
import unittest

from jobs import ROOT
from roots import USER, Root

NAMES = {"pstrain", "pstrain-server", "pstrain-worker", "libpstrain0", "libpstrain-dev"}
WANTED = os.environ.get("PS_RELEASES", "bookworm trixie noble").split()
EPOCH = "1700000000"
SOURCES = ("ARCHITECTURE.md", "CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md", "LICENSE", "README.md",
           "SECURITY.md", "bench", "common", "configs", "coordinator", "deploy", "docs", "library", "python", "server",
           "session", "worker")
RUN = ("cd ~ && psrun -s 2 -w 2 --out run /usr/share/pstrain/configs/digits-basicnet.yaml train.epochs=1 && "
       "pstrain-show-runs run")


def copy_sources(place):
    place.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)


class Packages:
    """Mixed into a TestCase for each release."""

    release = ""

    @classmethod
    def setUpClass(cls):
        cls.root = Root(cls.release)
        cls.addClassCleanup(cls.root.close)
        code, text = cls.root.call("apt-get -q update")
        if code != 0:
            raise unittest.SkipTest(f"no packages of {cls.release}: {text.strip().splitlines()[-1]}")

    def build(self, root, source, out):
        copy_sources(root.path / source)
        root.must(f"/{source}/deploy/build-packages /{out}", SOURCE_DATE_EPOCH=EPOCH)

    def test_build_and_use(self):
        builder = self.root
        copy_sources(builder.path / "tools")
        builder.must("/tools/deploy/packages packaging")
        self.build(builder, "source", "first")
        debs = sorted((builder.path / "first").glob("*.deb"))
        self.assertEqual({deb.name.split("_")[0] for deb in debs}, NAMES)
        self.check_depends(debs)
        self.check_sbom(builder.path / "first/pstrain.spdx.json", debs)
        self.check_lintian(debs)
        if self.release == WANTED[0]:
            self.build(builder, "another-place", "second")
            for file in debs + [builder.path / "first/pstrain.spdx.json"]:
                self.assertEqual(file.read_bytes(), (builder.path / "second" / file.name).read_bytes(), file.name)
        self.use(debs)

    def check_depends(self, debs):
        depends = {deb.name.split("_")[0]: subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True, text=True,
                                                          stdout=subprocess.PIPE).stdout for deb in debs}
        self.assertNotRegex(depends["pstrain-server"], "gloo|cuda|nccl|dnnl")
        self.assertRegex(depends["pstrain-server"], r"libc6 \(>=.*libzmq5")
        self.assertRegex(depends["pstrain-server"], "libmicrohttpd")
        self.assertRegex(depends["pstrain-worker"], "libdnnl")
        self.assertRegex(depends["pstrain"], r"pstrain-server \(= .*pstrain-worker \(= ")

    def check_sbom(self, path, debs):
        with open(path, encoding="utf-8") as f:
            document = json.load(f)
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        names = {package["name"] for package in document["packages"]}
        self.assertLessEqual(NAMES | {"libc6"}, names)
        self.assertTrue(any(name.startswith("libsodium") for name in names), names)  # libzmq brings it
        self.assertEqual({p["packageFileName"] for p in document["packages"] if "packageFileName" in p},
                         {deb.name for deb in debs})
        ids = {package["SPDXID"] for package in document["packages"]} | {"SPDXRef-DOCUMENT"}
        for relation in document["relationships"]:
            self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, ids)

    def check_lintian(self, debs):
        if shutil.which("lintian"):
            said = subprocess.run(["lintian", "--allow-root", "--fail-on", "none", *debs], text=True, check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
            self.assertEqual(re.findall("(?m)^E: .*", said), [])

    def use(self, debs):
        """In a second folder, which has only the release and the packages."""
        fresh = Root(self.release)
        self.addCleanup(fresh.close)
        (fresh.path / "debs").mkdir()
        for deb in debs:
            shutil.copy(deb, fresh.path / "debs")
        fresh.must("apt-get -q update && apt-get install -y --no-install-recommends /debs/pstrain-server_*.deb")
        self.assertIn("ps-server", fresh.must("ps-server --version && ! command -v ps-worker"))
        fresh.must("apt-get install -y --no-install-recommends /debs/*.deb && ldconfig -p | grep -q libpstrain.so.0")
        for program in ("psrun", "ps-server", "ps-worker"):
            for file in (f"man/man1/{program}.1.gz", f"bash-completion/completions/{program}",
                         f"zsh/vendor-completions/_{program}"):
                fresh.must(f"test -s /usr/share/{file}")
        fresh.must("! grep -q PS_TEST_FAULT /usr/bin/ps-server /usr/bin/ps-worker /usr/lib/*/libpstrain.so.0")
        fresh.add_user()
        text = fresh.must(RUN, user=USER, timeout=300)
        self.assertRegex(text, r"test +accuracy 0\.\d+")
        fresh.must("apt-get purge -y pstrain pstrain-server pstrain-worker libpstrain0 libpstrain-dev")
        left = fresh.must("find / -xdev -path /home -prune -o -path /debs -prune -o -name '*pstrain*' -print")
        self.assertEqual([p for p in left.split() if not p.startswith("/var/")], [])


class Bookworm(Packages, unittest.TestCase):
    release = "bookworm"


class Trixie(Packages, unittest.TestCase):
    release = "trixie"


class Noble(Packages, unittest.TestCase):
    release = "noble"


def load_tests(loader, tests, pattern):
    chosen = [case for case in (Bookworm, Trixie, Noble) if case.release in WANTED]
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, chosen))


if __name__ == "__main__":
    unittest.main()
