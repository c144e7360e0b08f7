"""deploy/k8s through kubectl's kustomize and PyPI's kubernetes-validate: no cluster is needed.

Tries each kubectl that it finds: the one installed, and Debian's (1.20 in Debian 12), which it
unpacks into a folder here. What cannot be had is skipped, and the test says so."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from jobs import ROOT

try:
    import yaml
except ImportError:
    yaml = None

VARIANTS = {"k8s": "pstrain-worker:latest", "k8s/gpu": "pstrain-worker-cuda:latest"}


def output(*argv, cwd=None, seconds=120):
    """Returns (exit code, output)."""
    try:
        done = subprocess.run(argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout


def debians_kubectl(folder):
    """Returns its path, or None if there is no such package."""
    code, _ = output("apt-get", "download", "kubernetes-client", cwd=folder)
    package = next(Path(folder).glob("kubernetes-client_*.deb"), None)
    if code != 0 or not package or output("dpkg", "-x", str(package), folder)[0] != 0:
        return None
    return str(Path(folder, "usr/bin/kubectl"))


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="pstrain-k8s-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        found = (shutil.which("kubectl"), debians_kubectl(cls.folder))
        cls.kubectls = [path for path in found if path]
        if not cls.kubectls:
            raise unittest.SkipTest("no kubectl: neither installed, nor to be downloaded "
                                    "(Debian: kubernetes-client)")

    def made(self, kubectl, variant):
        done = subprocess.run([kubectl, "kustomize", str(ROOT / "deploy" / variant)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"{kubectl}: {done.stderr}")
        return done.stdout

    def test_every_variant_is_made(self):
        for kubectl in self.kubectls:
            for variant, image in VARIANTS.items():
                with self.subTest(kubectl=kubectl, variant=variant):
                    text = self.made(kubectl, variant)
                    self.assertIn(f"image: {image}\n", text)
                    self.assertEqual("nvidia.com/gpu: 1" in text, variant == "k8s/gpu")
                    for kind in ("StatefulSet", "Job", "Service", "ConfigMap"):
                        self.assertIn(f"\nkind: {kind}\n", text)

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_pods_are_confined_and_have_their_own_key_alone(self):
        for variant in VARIANTS:
            made = list(yaml.safe_load_all(self.made(self.kubectls[0], variant)))
            self.assertEqual([m for m in made if m["kind"] == "Secret"], [], "a key in a manifest")
            for kind, role in (("StatefulSet", "server"), ("Job", "worker")):
                (pod,) = [m["spec"]["template"]["spec"] for m in made if m["kind"] == kind]
                (secret,) = [v["secret"] for v in pod["volumes"] if "secret" in v]
                self.assertEqual([i["key"] for i in secret["items"]], [f"{role}.key"])
                self.assertEqual(secret["defaultMode"], 0o440)
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertGreater(pod["securityContext"]["runAsUser"], 0)
                (container,) = pod["containers"]
                limits = container["securityContext"]
                self.assertEqual(limits["capabilities"], {"drop": ["ALL"]})
                self.assertFalse(limits["allowPrivilegeEscalation"])
                self.assertEqual(limits.get("readOnlyRootFilesystem", False), role == "server")

    def test_kubernetes_takes_them(self):
        python = Path(self.folder, "venv/bin/python")
        code, said = output(sys.executable, "-m", "venv", str(python.parents[1]))
        if code == 0:
            code, said = output(str(python), "-m", "pip", "install", "-q", "kubernetes-validate")
        if code != 0:
            self.skipTest(f"kubernetes-validate cannot be installed: {said.strip()[-200:]}")
        for variant in VARIANTS:
            path = Path(self.folder, "made.yaml")
            path.write_text(self.made(self.kubectls[0], variant), encoding="utf-8")
            code, said = output(str(python.with_name("kubernetes-validate")), "--strict", str(path))
            self.assertEqual(code, 0, said)
            self.assertEqual(said.count("passed"), 5, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
