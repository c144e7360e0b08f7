"""The unit tests on aarch64: built by Debian's cross compiler, run by qemu's user mode.

Compiler, emulator and libraries are fetched from Debian's registry and unpacked into the
folder `cross` of this build; nothing is installed, and apt's own state is not touched, so
that no root is needed. A second run finds them there. Skips, and says why, where they
cannot be had.
"""
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve().parent
CROSS = BUILD / "cross"
SUITE = "bookworm"
MIRROR = os.environ.get("PS_DEBIAN_MIRROR", "http://deb.debian.org/debian")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TOOLS = ["gcc-aarch64-linux-gnu", "g++-aarch64-linux-gnu", "qemu-user-static"]
EM_AARCH64 = 183  # the machine in an ELF file
LIBRARIES = ["libc6-dev", "libstdc++-12-dev", "libzmq3-dev", "libmsgpack-dev",
             "libyaml-dev", "libjansson-dev", "zlib1g-dev", "libdnnl-dev", "libcmocka-dev"]
# The compiler's C library: its linker scripts name paths of this machine. The target's is used.
LEFT_OUT = ("libc6-arm64-cross_", "libc6-dev-arm64-cross_", "linux-libc-dev-arm64-cross_")


def run(*argv, **more):
    more.setdefault("timeout", 600)
    return subprocess.run([str(a) for a in argv], text=True, capture_output=True, **more)


def skip(why):
    raise unittest.SkipTest(why)


def last_line(done):
    return ((done.stderr or done.stdout).strip().splitlines() or ["no reason given"])[-1]


def unpack(arch, packages, to):
    """Unpacks the packages and their dependencies into the folder `to`."""
    state = CROSS / f"apt-{arch}"
    for folder in ("etc", "lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "etc/sources.list").write_text(
        f"deb [signed-by={KEYRING}] {MIRROR} {SUITE} main\n")
    apt = ["apt-get", "-q", "-y", "-o", f"APT::Architecture={arch}",
           "-o", f"APT::Architectures={arch}", "-o", "APT::Install-Recommends=false",
           "-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=true",
           "-o", f"Dir::Etc={state}/etc", "-o", f"Dir::State={state}",
           "-o", f"Dir::State::status={state}/status", "-o", f"Dir::Cache={state}/cache",
           "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=20"]
    for words in (["update", "--error-on=any"], ["install", "--download-only", *packages]):
        done = run(*apt, *words, timeout=900)
        if done.returncode != 0:
            skip(f"Debian's packages for {arch} cannot be had: {last_line(done)}")
    (to / "usr/lib").mkdir(parents=True, exist_ok=True)
    if not (to / "lib").exists():
        (to / "lib").symlink_to("usr/lib")
    for package in sorted((state / "cache/archives").glob("*.deb")):
        if package.name.startswith(LEFT_OUT):
            continue
        done = run("dpkg-deb", "-x", package, to)
        if done.returncode != 0:
            raise AssertionError(f"{package.name}: {last_line(done)}")
    shutil.rmtree(state)


def relative_links(root):
    """Makes the links of a root that is not this machine's relative."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder) / name for name in folders + files):
            if path.is_symlink() and os.readlink(path).startswith("/"):
                target = root / os.readlink(path).lstrip("/")
                path.unlink()
                path.symlink_to(os.path.relpath(target, path.parent))


def write_program(name, *argv):
    path = CROSS / "bin" / name
    path.write_text("#!/bin/sh\nexec " + " ".join(str(a) for a in argv) + ' "$@"\n')
    path.chmod(0o755)
    return path


def set_up():
    """Fills CROSS. Its file `complete` shows that this was finished."""
    if (CROSS / "complete").exists():
        return
    for program in ("apt-get", "dpkg-deb", "cmake", "ninja"):
        if not shutil.which(program):
            skip(f"{program} is missing")
    if not os.path.exists(KEYRING):
        skip(f"{KEYRING} is missing: the packages' signatures cannot be checked")
    if os.uname().machine != "x86_64":
        skip(f"the cross compiler is for x86-64, this is {os.uname().machine}")
    shutil.rmtree(CROSS, ignore_errors=True)
    unpack("amd64", TOOLS, CROSS / "host")
    unpack("arm64", LIBRARIES, CROSS / "target")
    relative_links(CROSS / "target")
    (CROSS / "bin").mkdir()
    host, target = CROSS / "host/usr", CROSS / "target"
    write_program("qemu", host / "bin/qemu-aarch64-static", "-L", target)
    for name in ("gcc", "g++"):
        write_program(name, "env", f"LD_LIBRARY_PATH={host}/lib/x86_64-linux-gnu",
                      host / f"bin/aarch64-linux-gnu-{name}", f"--sysroot={target}")
    done = run(CROSS / "bin/gcc", "--version")
    if done.returncode != 0:
        skip(f"Debian {SUITE}'s cross compiler does not run here: {last_line(done)}")
    (CROSS / "complete").touch()


# qemu-user answers a question for TCP_INFO with four bytes, so these tests cannot see what
# strangers send.
WITHOUT = "^(test_gate|test_coordinator_door|test_coordinator_members|test_join_failures)$"


class Aarch64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        set_up()
        cls.build = CROSS / "build"
        done = run("cmake", "-S", ROOT, "-B", cls.build, "-G", "Ninja",
                   "-DCMAKE_BUILD_TYPE=Release", "-DPS_WERROR=ON",
                   "-DPS_WITH_CUDA=OFF", "-DPS_WITH_NCCL=OFF", f"-DPS_CROSS_ROOT={CROSS}",
                   f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/tests/support/aarch64.cmake")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_it_builds_and_passes_the_unit_tests(self):
        done = run("cmake", "--build", self.build, timeout=2400)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        with open(self.build / "bin/ps-server", "rb") as f:
            self.assertEqual(int.from_bytes(f.read(20)[18:], "little"), EM_AARCH64)
        jobs = str(os.cpu_count() or 1)
        done = run("ctest", "--test-dir", self.build, "-L", "unit", "-E", WITHOUT, "-j", jobs,
                   "--output-on-failure", "--no-tests=error", timeout=1500,
                   env=dict(os.environ, OMP_NUM_THREADS="1"))
        print(done.stdout[-600:], file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr)


if __name__ == "__main__":
    unittest.main()
