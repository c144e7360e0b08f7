"""Fresh folders with a Debian or Ubuntu in them, made by debootstrap, to test installed files."""
import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path

DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
RELEASES = {"bookworm": DEBIAN, "trixie": DEBIAN, "jammy": UBUNTU, "noble": UBUNTU}
KEYRINGS = {DEBIAN: "/usr/share/keyrings/debian-archive-keyring.gpg",
            UBUNTU: "/usr/share/keyrings/ubuntu-archive-keyring.gpg"}
# Debian has no package of Ubuntu's keys: they are taken from Ubuntu's own, if it has this sum.
UBUNTU_KEYS = UBUNTU + "/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYS_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
USER = 1000  # user id of the ordinary user in the folder
HOMES = {0: "root", USER: "home/user"}  # in the folder


def skip(why):
    raise unittest.SkipTest(why)


def keyring(archive, folder):
    if os.path.exists(KEYRINGS[archive]):
        return KEYRINGS[archive]
    if archive != UBUNTU:
        skip(f"no {KEYRINGS[archive]} to check the archive's packages with")
    try:
        with urllib.request.urlopen(UBUNTU_KEYS, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        skip(f"Ubuntu's keys cannot be had: {error}")
    if hashlib.sha256(data).hexdigest() != UBUNTU_KEYS_SHA256:
        skip(f"{UBUNTU_KEYS} has another SHA-256 than expected")
    deb = Path(folder, "keys.deb")
    deb.write_bytes(data)
    subprocess.run(["dpkg-deb", "-x", deb, Path(folder, "keys")], check=True)
    return str(Path(folder, "keys") / KEYRINGS[UBUNTU].lstrip("/"))


class Root:
    """A folder with a release in it; close removes it.

    PS_ROOTS names a folder of RELEASE.tar, made once (tar -C ROOT -c .), to save the time."""

    def __init__(self, release):
        if os.geteuid() != 0:
            skip("making a folder of another release needs root")
        self.folder = Path(tempfile.mkdtemp(prefix=f"pstrain-{release}-", dir="/var/tmp"))
        self.path = self.folder / "root"
        self.mounted = []
        try:
            self._make(release)
            self._mount()
        except BaseException:
            self.close()
            raise

    def _make(self, release):
        saved = Path(os.environ.get("PS_ROOTS", "/nowhere"), f"{release}.tar")
        self.path.mkdir()
        if saved.exists():
            subprocess.run(["tar", "-C", self.path, "-xf", saved], check=True)
        else:
            self._debootstrap(release)
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")

    def _debootstrap(self, release):
        program = shutil.which("debootstrap", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if not program:
            skip("no debootstrap")
        archive = RELEASES[release]
        # A release that this debootstrap does not know yet is made like its predecessors.
        script = release if (SCRIPTS / release).exists() else {DEBIAN: "sid", UBUNTU: "jammy"}[archive]
        components = "main" if archive == DEBIAN else "main,universe"
        done = subprocess.run(
            [program, "--variant=minbase", f"--components={components}", f"--keyring={keyring(archive, self.folder)}",
             release, self.path, archive, SCRIPTS / script], text=True, capture_output=True, check=False)
        if done.returncode != 0:
            skip(f"no {release}: {(done.stdout.strip().splitlines() or ['debootstrap failed'])[-1]}")

    def _mount(self):
        for kind, source, place in (("--bind", "/dev", "dev"), ("-tproc", "proc", "proc"),
                                    ("-ttmpfs", "tmpfs", "dev/shm")):
            if subprocess.run(["mount", kind, source, self.path / place], capture_output=True, check=False).returncode:
                skip(f"/{place} cannot be mounted in a folder here")
            self.mounted.insert(0, self.path / place)

    def close(self):
        for place in self.mounted:
            subprocess.run(["umount", "-l", place], check=False)
        # --one-file-system: a file system that is still mounted is not part of the folder.
        subprocess.run(["rm", "-rf", "--one-file-system", self.folder], check=False)

    def call(self, script, user=0, timeout=1800, **env):
        """Runs a shell script in the folder, with network, as a user. Returns (exit code, output)."""
        argv = ["chroot", f"--userspec={user}:{user}", str(self.path), "/usr/bin/env", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                f"HOME=/{HOMES[user]}", *(f"{k}={v}" for k, v in env.items()),
                "sh", "-ec", script]
        done = subprocess.run(argv, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, check=False)
        return done.returncode, done.stdout

    def must(self, script, **more):
        code, text = self.call(script, **more)
        if code != 0:
            raise AssertionError(f"{script}\nended with {code}:\n{text[-6000:]}")
        return text

    def add_user(self):
        home = self.path / HOMES[USER]
        home.mkdir(parents=True)
        os.chown(home, USER, USER)
