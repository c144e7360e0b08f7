"""deploy/k8s through kubectl's kustomize and PyPI's kubernetes-validate: no cluster is needed.

Tries each kubectl that it finds: the one installed, and Debian's (1.20 in Debian 12), which it
unpacks into a folder here. What cannot be had is skipped, and the test says so."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

from jobs import ROOT
from psrunlib.supervise import RESUMABLE

try:
    import yaml
except ImportError:
    yaml = None

CRD = ("https://raw.githubusercontent.com/kubernetes-sigs/jobset/main/config/components/crd/bases/"
       "jobset.x-k8s.io_jobsets.yaml")
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

    def made(self, kubectl, variant, folder=ROOT / "deploy"):
        done = subprocess.run([kubectl, "kustomize", str(folder / variant)],
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

    def test_images_of_a_registry(self):
        """`images:` of the folder that is applied names all of them."""
        folder = Path(self.folder, "mine")
        shutil.copytree(ROOT / "deploy/k8s", folder / "k8s")
        for file in folder.rglob("kustomization.yaml"):
            text = re.sub("(?m)^    newName: .*\n", "", file.read_text(encoding="utf-8"))
            file.write_text(re.sub("(?m)^  - name: (pstrain-(?:server|worker))\n    newTag: latest$",
                                   r"  - name: \1\n    newName: reg.example:5000/\1\n    newTag: v7", text), encoding="utf-8")
        for kubectl in self.kubectls:
            for variant in (*VARIANTS, "k8s/jobset"):
                with self.subTest(kubectl=kubectl, variant=variant):
                    self.assertEqual(re.findall(r"image: (\S+)", self.made(kubectl, variant, folder)),
                                     ["reg.example:5000/pstrain-server:v7", "reg.example:5000/pstrain-worker:v7"])

    def test_jobset(self):
        """One resource instead of three. It names the ConfigMaps by the names that kustomize gives them."""
        for kubectl in self.kubectls:
            with self.subTest(kubectl=kubectl):
                text = self.made(kubectl, "k8s/jobset")
                self.assertEqual(sorted(re.findall(r"(?m)^kind: (\w+)$", text)),
                                 ["ConfigMap", "ConfigMap", "JobSet", "PersistentVolumeClaim"])
                for name, uses in (("job", 2), ("size", 2)):
                    (made,) = re.findall(rf"(?m)^  name: (pstrain-{name}-\w+)$", text)
                    self.assertEqual(len(re.findall(rf" +name: {made}\n", text)), 1 + uses, text)
                self.assertIn("MASTER_ADDR: pstrain-server-0-0.pstrain\n", text)

    def jobset(self):
        made = yaml.safe_load_all(self.made(self.kubectls[0], "k8s/jobset"))
        return next(m for m in made if m["kind"] == "JobSet")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_jobset_restarts_by_exit_code(self):
        found = self.jobset()["spec"]
        self.assertEqual(found["failurePolicy"]["rules"], [{"name": "told_to_end", "action": "RestartJobSetAndIgnoreMaxRestarts",
                                                            "onJobFailureReasons": ["PodFailurePolicy"]}])
        for job in found["replicatedJobs"]:
            spec = job["template"]["spec"]
            self.assertEqual(spec["podFailurePolicy"]["rules"][0],
                             {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [RESUMABLE]}})
            self.assertEqual(spec["completions"], spec["parallelism"])

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_jobset_takes_it(self):
        """Its own schema, of the file that PS_JOBSET_CRD names or GitHub has."""
        path = os.environ.get("PS_JOBSET_CRD")
        try:
            text = Path(path).read_text(encoding="utf-8") if path else urllib.request.urlopen(CRD, timeout=30).read()
        except OSError as error:
            self.skipTest(f"no {CRD}: {error}; PS_JOBSET_CRD names a file")
        (version,) = [v for v in yaml.safe_load(text)["spec"]["versions"] if v["name"] == "v1alpha2"]
        self.check(self.jobset(), version["schema"]["openAPIV3Schema"], "JobSet")

    def check(self, value, schema, where):
        """Types, required and unknown keys, enumerations."""
        if "enum" in schema:
            self.assertIn(value, schema["enum"], where)
        kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
        if schema.get("type") in kinds:
            self.assertIsInstance(value, kinds[schema["type"]], where)
        if schema.get("type") == "array":
            for at, item in enumerate(value):
                self.check(item, schema["items"], f"{where}[{at}]")
        elif "properties" in schema:
            self.assertEqual(set(schema.get("required", ())) - set(value), set(), where)
            for key, item in value.items():
                self.assertIn(key, schema["properties"], where)
                self.check(item, schema["properties"][key], f"{where}.{key}")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_pods_are_confined_and_have_their_own_key_alone(self):
        for variant in (*VARIANTS, "k8s/jobset"):
            made = list(yaml.safe_load_all(self.made(self.kubectls[0], variant)))
            self.assertEqual([m for m in made if m["kind"] == "Secret"], [], "a key in a manifest")
            jobs = [j for m in made if m["kind"] == "JobSet" for j in m["spec"]["replicatedJobs"]]
            specs = [m["spec"] for m in made if m["kind"] in ("StatefulSet", "Job")] + [j["template"]["spec"] for j in jobs]
            for role in ("server", "worker"):
                (pod,) = [s["template"]["spec"] for s in specs if s["template"]["metadata"]["labels"]["role"] == role]
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
        made = {variant: self.made(self.kubectls[0], variant) for variant in VARIANTS}
        if yaml:  # what JobSet makes
            made["k8s/jobset"] = yaml.safe_dump_all(
                {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": j["name"]}, "spec": j["template"]["spec"]}
                for j in self.jobset()["spec"]["replicatedJobs"])
        for variant, text in made.items():
            path = Path(self.folder, "made.yaml")
            path.write_text(text, encoding="utf-8")
            code, said = output(str(python.with_name("kubernetes-validate")), "--strict", str(path))
            self.assertEqual(code, 0, said)
            self.assertEqual(said.count("passed"), 2 if "jobset" in variant else 5, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
