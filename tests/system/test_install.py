"""cmake --install with any prefix and DESTDIR, man pages, completion, and the one version."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from jobs import BIN, ROOT, JobTest, nightly, run_well

BUILD = BIN.resolve().parent
MANUALS = BUILD / "deploy/manuals"
PROGRAMS = ("psrun", "ps-server", "ps-worker")


def run(*command, **more):
    return run_well(command, **more)


def program(name):
    return ROOT / "deploy/psrun" if name == "psrun" else BIN / name


def names_of_options(name):
    text = run(program(name), "--help")
    lines = re.findall(r"^  (-.*?)(?:\s{2,}.*)?$", text, re.M)
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", "\n".join(re.sub(r"\{.*?\}", "", x) for x in lines)))


class Install(JobTest):
    """Installed for /opt/x, but staged by DESTDIR. The programs run from a place for which they were not built."""

    @classmethod
    def setUpClass(cls):
        cls.stage = Path(tempfile.mkdtemp(prefix="pstrain-install-"))
        run("cmake", "--install", BUILD, "--prefix", "/opt/x", env=dict(os.environ, DESTDIR=str(cls.stage)))
        cls.prefix = cls.stage / "opt/x"

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.stage)

    def test_psrun_runs_a_job_from_anywhere(self):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PS_")}
        config = self.prefix / "share/pstrain/configs/digits-basicnet.yaml"
        text = run(self.prefix / "bin/psrun", "-s", "1", "-w", "2", "--verbose", "--out", self.path("out"), config,
                   "train.epochs=1", "train.steps=5", env=clean, cwd=self.folder)
        self.assertIn("test", text)
        self.assertTrue(Path(self.path("out"), "summary.json").exists())
        lines = run(self.prefix / "bin/psrun", "-s", "1", "-w", "1", "--dry-run", config, env=clean, cwd=self.folder)
        self.assertIn(f"{self.prefix}/bin/ps-server", lines)
        self.assertNotIn(str(BUILD), lines)
        run(self.prefix / "bin/pstrain-show-runs", self.path("out"))

    def test_a_program_that_is_missing(self):
        away = self.path("away")
        shutil.move(self.prefix / "bin/ps-worker", away)
        self.addCleanup(shutil.move, away, self.prefix / "bin/ps-worker")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PS_")}
        done = subprocess.run([self.prefix / "bin/psrun", "-w", "1", "x.yaml"], env=clean, text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no ps-worker in", done.stderr)
        self.assertIn("pstrain-worker", done.stderr)

    def test_nothing_of_the_build_is_in_it(self):
        texts = [path for path in self.prefix.rglob("*") if path.suffix in (".py", ".pc", ".cmake", ".1", ".service")]
        self.assertTrue(texts)
        for path in texts:
            self.assertNotIn(str(BUILD), path.read_text(encoding="utf-8"), path)
        for name in ("bin/ps-server", "bin/ps-worker"):
            self.assertNotRegex(run("readelf", "-d", self.prefix / name), "RPATH|RUNPATH")


@nightly
class Folders(JobTest):
    def test_folders_may_be_absolute(self):
        """As distributions give them: pkg-config finds the header and the library all the same."""
        build, lib = self.path("build"), Path(self.path("opt/y/lib/pkgconfig"))
        run("cmake", "-S", ROOT, "-B", build, "-DPS_WORKER=OFF", "-DPS_TESTS=OFF", "-DPS_WITH_GLOO=OFF",
            "-DCMAKE_INSTALL_PREFIX=/opt/x", "-DCMAKE_INSTALL_LIBDIR=/opt/y/lib")
        lib.mkdir(parents=True)
        shutil.copy(Path(build, "library/pstrain.pc"), lib)
        words = run("pkg-config", "--cflags", "--libs", "pstrain", env=dict(os.environ, PKG_CONFIG_PATH=str(lib))).split()
        self.assertEqual([os.path.normpath(word[2:]) for word in words[:2]],
                         [self.path("opt/x/include"), self.path("opt/y/lib")])

    def test_fault_points_of_the_tests_do_not_stay(self):
        """The documents' command, in a folder in which tests/run has built, configures what people install."""
        for words, says in (["-DPS_FAULT_POINTS=ON"], "ON"), ([], "OFF"):
            run("cmake", "--preset", "release", "-B", self.path("build"), "-DPS_WORKER=OFF", "-DPS_TESTS=OFF",
                "-DPS_WITH_GLOO=OFF", *words, cwd=ROOT)
            self.assertIn(f"PS_FAULT_POINTS:BOOL={says}\n", self.text_of("build", "CMakeCache.txt"))


@unittest.skipUnless((MANUALS / "man/psrun.1").exists(), "this build has no man pages")
class Manuals(unittest.TestCase):
    def test_pages_have_every_option(self):
        for name in PROGRAMS:
            page = (MANUALS / f"man/{name}.1").read_text(encoding="utf-8").replace("\\-", "-")
            for option in names_of_options(name):
                self.assertRegex(page, rf"(?m)^\.B .*(?<![\w-]){option}\b", name)
            others = page.split(".SH SEE ALSO\n")[1]
            self.assertEqual(set(re.findall(r"\\fB(.*?)\\fR\(1\)", others)), set(PROGRAMS) - {name})
            if shutil.which("groff"):
                said = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", MANUALS / f"man/{name}.1"],
                                      text=True, capture_output=True, check=False)
                self.assertEqual((said.returncode, said.stderr), (0, ""), name)

    def complete(self, name, *words):
        """Returns what bash offers for the last word."""
        script = (f'source {MANUALS}/bash/{name}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{name.replace("-", "_")} 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"')
        return run("bash", "-c", script, "bash", name, *words, cwd=ROOT).split()

    @unittest.skipUnless(shutil.which("bash"), "no bash")
    def test_bash(self):
        for name in PROGRAMS:
            self.assertEqual(set(self.complete(name, "-")), names_of_options(name), name)
        self.assertEqual(self.complete("psrun", "-m", "a"), ["allreduce"])
        self.assertEqual(self.complete("psrun", "configs/digits-basicnet.yaml", "optimizer.lr"),
                         ["optimizer.lr=", "optimizer.lr_decay="])
        self.assertEqual(self.complete("psrun", "configs/digits-b"), ["configs/digits-basicnet.yaml"])
        self.assertEqual(self.complete("ps-worker", "--set", "train.epo"), ["train.epochs="])
        self.assertEqual(self.complete("ps-server", "--curve", "configs/dig"), ["configs/digits"])
        self.assertEqual(self.complete("psrun", "--", "python3", "-"), [])

    @unittest.skipUnless(shutil.which("zsh"), "no zsh")
    def test_zsh(self):
        for name in PROGRAMS:
            script = f"_arguments() {{ print -l -- $@; }}; source {MANUALS}/zsh/_{name}"
            said = run("zsh", "-fc", script)
            self.assertEqual(set(re.findall(r"(?m)^\*?(-[\w-]+)\[", said)), names_of_options(name), name)
            # as zsh itself reads the words
            run("zsh", "-fc", f"autoload -Uz compinit && compinit -D && autoload -Uz +X _arguments; "
                              f"fpath=({MANUALS}/zsh $fpath); autoload -Uz +X _{name}")


class Version(unittest.TestCase):
    """Only CMakeLists.txt has the version."""

    def test_psrun_without_its_checkout(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "deploy", Path(folder, "deploy"), ignore=shutil.ignore_patterns("__pycache__"))
            done = subprocess.run([Path(folder, "deploy/psrun"), "--help"], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr, f"psrun: {os.path.realpath(folder)} is no checkout of pstrain: psrun needs "
                                          "all of it, or an installation (cmake --install)\n")

    def test_all_agree(self):
        text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
        version = re.search(r"project\(pstrain VERSION (\d+\.\d+\.\d+)", text).group(1)
        for name in PROGRAMS:
            self.assertEqual(run(program(name), "--version"), f"{name} {version}\n")
        library = next(BUILD.rglob("libpstrain.so"), None)
        if library and not re.search("^PS_SANITIZE:\\w+=.+", (BUILD / "CMakeCache.txt").read_text(), re.M):
            said = run("python3", "-c", "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).pstrain_version; "
                                        "f.restype = ctypes.c_char_p; print(f().decode())", library)
            self.assertEqual(said.strip(), version)
        self.assertIn(f"Version: {version}\n", (BUILD / "library/pstrain.pc").read_text(encoding="utf-8"))
        # The Python package's comes from the same line.
        project = (ROOT / "python/pyproject.toml").read_text(encoding="utf-8")
        self.assertNotRegex(project, r'(?m)^version = "')
        place, pattern = (re.search(rf"(?m)^{key} = (['\"])(.*)\1$", project).group(2) for key in ("input", "regex"))
        self.assertEqual(re.search(pattern, (ROOT / "python" / place).read_text(encoding="utf-8")).group("value"),
                         version)
        log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertRegex(log, rf"(?m)^## {re.escape(version)}\b")


if __name__ == "__main__":
    unittest.main()
