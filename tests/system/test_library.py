"""libpstrain as users have it: installed, with their own program, and with servers that have no model."""
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

from jobs import BIN, DIGITS, ROOT, JobTest, Process, free_port, run_well

EXAMPLE = ROOT / "docs/examples/linear.c"
ROWS = ROOT / "docs/examples/rows.c"
BUILD = BIN.resolve().parent
SANITIZED = re.search(r"^PS_SANITIZE:\w+=.+", (BUILD / "CMakeCache.txt").read_text(encoding="utf-8"),
                      re.M)
RESULT = re.compile(r"w = (\S+) (\S+) (\S+)  b = (\S+)  loss = (\S+)")
SOON = ["--set", "net.heartbeat_ms=200", "--set", "net.dead_after_ms=8000"]

CONSUMER = """cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(pstrain 0.1 REQUIRED)
add_executable(linear linear.c)
target_link_libraries(linear PRIVATE pstrain::pstrain)
"""


def run(*command, **more):
    return run_well(command, **more)


@unittest.skipIf(SANITIZED, "a program without the sanitizer cannot load the library")
class Library(JobTest):
    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp(prefix="pstrain-library-"))
        run("cmake", "--install", BUILD, "--prefix", cls.place)
        cls.library = next(cls.place.rglob("libpstrain.so"))
        cls.program = cls.compile(EXAMPLE)
        text = EXAMPLE.read_text(encoding="utf-8")
        endless = cls.place / "endless.c"
        endless.write_text(text.replace("STEPS = 200", "STEPS = 2000000000"), encoding="utf-8")
        cls.endless = cls.compile(endless)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.place)

    @classmethod
    def compile(cls, source):
        env = dict(os.environ, PKG_CONFIG_PATH=str(cls.library.parent / "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "pstrain", env=env).split()
        program = cls.place / source.stem
        run("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", source, *flags,
            f"-Wl,-rpath,{cls.library.parent}", "-o", program)
        return program

    def start(self, servers, workers, program, server_args=()):
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
               "WORLD_SIZE": str(workers), "PS_SERVERS": str(servers)}
        argv = ([[BIN / "ps-server", *server_args, *SOON]] * servers +
                [program if isinstance(program, list) else [program]] * workers)
        parts = {}
        for i, one in enumerate(argv):
            rank = i if i < servers else i - servers
            name = f"{'server' if i < servers else 'worker'} {rank}"
            key = "PS_SERVER_RANK" if i < servers else "RANK"
            parts[name] = Process(name, one, dict(env, **{key: str(rank)}))
            self.addCleanup(parts[name].end)
        return parts

    def wait(self, parts, seconds=60):
        return {name: part.popen.wait(seconds) for name, part in parts.items()}

    def check_result(self, text):
        found = [float(x) for x in RESULT.search(text).groups()]
        for got, want in zip(found, (2, -1, 0.5, 3)):
            self.assertAlmostEqual(got, want, delta=0.1)
        return RESULT.search(text).group(0)

    def test_the_example(self):
        results = set()
        for servers in (1, 2):
            parts = self.start(servers, 2, self.program, ["--set", "server.shards=1"])
            for name, code in self.wait(parts).items():
                self.assertEqual(code, 0, f"{name}: {parts[name].text()}")
            results.add(self.check_result(parts["worker 0"].text()))
        self.assertEqual(len(results), 1, results)

    def test_the_example_with_rows(self):
        program, results = self.compile(ROWS), set()
        for servers in (1, 2):
            parts = self.start(servers, 2, program, ["--set", "server.shards=1"])
            for name, code in self.wait(parts).items():
                self.assertEqual(code, 0, f"{name}: {parts[name].text()}")
            results.add(re.search(r"50 users, 40 items, loss = (\S+)", parts["worker 0"].text()).group(1))
        self.assertEqual(len(results), 1, results)
        self.assertLess(float(results.pop()), 1e-3)

    def test_psrun_gives_it_the_keys(self):
        said = self.psrun("--curve", self.path("keys"), "-s", 1, "-w", 2, "--", self.program, timeout=60)
        self.check_result(said)

    def test_a_cmake_package(self):
        source = Path(self.folder)
        (source / "CMakeLists.txt").write_text(CONSUMER, encoding="utf-8")
        shutil.copy(EXAMPLE, source)
        run("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.place}")
        run("cmake", "--build", source / "build")
        env = dict(os.environ, RANK="0", WORLD_SIZE="1", PS_SERVERS="0")
        self.check_result(run(source / "build/linear", env=env))

    def test_only_its_own_names_are_exported(self):
        symbols = [line.split()[2] for line in run("nm", "-D", "--defined-only", self.library).splitlines()]
        names = {name.removesuffix("@@PSTRAIN_0") for name in symbols} - {"PSTRAIN_0"}  # which some linkers list
        header = (self.place / "include/pstrain.h").read_text(encoding="utf-8")
        declared = set(re.findall(r"\b(pstrain_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
        self.assertEqual(declared, names)
        self.assertRegex(run("readelf", "-d", self.library), r"SONAME.*\[libpstrain\.so\.0\]")

    def kill_and_watch(self, victim):
        parts = self.start(2, 2, self.endless)
        parts["server 0"].wait_for("members=4/4")
        parts[victim].popen.kill()
        for name, code in self.wait(parts).items():
            if name != victim:
                self.assertEqual(code, 1, f"{name}: {parts[name].text()}")
                self.assertRegex(parts[name].text(), victim, name)

    def test_a_killed_worker(self):
        self.kill_and_watch("worker 1")

    def test_a_killed_server(self):
        self.kill_and_watch("server 1")

    def test_a_model_on_one_side_only(self):
        short = ["--set", "net.join_timeout_ms=5000", "--set", "job.name=job"]
        parts = self.start(1, 1, self.program, ["--config", DIGITS, *short])
        self.assertEqual(parts["worker 0"].popen.wait(60), 1)
        self.assertRegex(parts["worker 0"].text(), "has no model.*but the job has one")
        self.assertEqual(parts["server 0"].popen.wait(60), 1)
        worker = [BIN / "ps-worker", "--config", DIGITS, "--out", self.path("out")]
        parts = self.start(1, 1, [*worker, *short], short)
        self.assertEqual(parts["worker 0"].popen.wait(60), 1)
        self.assertRegex(parts["worker 0"].text(), "the job has no model")
        self.assertEqual(parts["server 0"].popen.wait(60), 1)


if __name__ == "__main__":
    unittest.main()
