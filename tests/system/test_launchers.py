"""Launchers that other systems run: Slurm, Kubernetes, the containers' entry point.

Slurm's srun and scontrol are stand-ins here (named so): they start the tasks on this machine
with the variables that Slurm sets.
"""
import json
import math
import os
import re
import shutil
import stat
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

from jobs import BIN, ROOT, free_port

try:
    import yaml
except ImportError:
    yaml = None

SBATCH = ROOT / "deploy/slurm/pstrain.sbatch"

STAND_IN_SRUN = r"""#!/bin/bash
# Stand-in for Slurm's srun: starts --ntasks tasks on this machine.
n=1
while [ $# -gt 0 ]; do
    case $1 in
    --ntasks=*) n=${1#*=}; shift ;;
    --*) shift ;;
    *) break ;;
    esac
done
pids=
for ((i = 0; i < n; i++)); do
    SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
    pids="$pids $!"
done
status=0
for pid in $pids; do wait "$pid" || status=$?; done
exit $status
"""

STAND_IN_SCONTROL = r"""#!/bin/sh
# Stand-in for Slurm's scontrol show hostnames.
echo "$3" | tr , '\n'
"""

# Warns the job, as Slurm does, and ends with a checkpoint when it is told to.
WARNED_WORKER = r"""#!/bin/bash
trap 'exit 75' TERM
parent() { awk '{ print $4 }' "/proc/$1/stat"; }
step=$(parent "$PPID")
echo $$ "$step" >"$STAND_IN/step"
kill -USR1 "$(parent "$step")"
while :; do sleep 0.01; done
"""

# Ends only when the batch script has seen the end of the step.
STAND_IN_SCANCEL = r"""#!/bin/sh
read -r worker step <"$STAND_IN/step"
kill -TERM "$worker"
while [ -e "/proc/$step" ]; do sleep 0.01; done
"""

STAND_IN_GETENT = r"""#!/bin/sh
# Stand-in for getent hosts: the name that a container network gives to an address.
echo "172.18.0.3 $STAND_IN_NAME.cluster"
"""

STAND_IN_PROGRAM = r"""#!/bin/sh
# Stand-in for ps-server and ps-worker: prints its arguments and environment.
echo "${0##*/} rank=${RANK:-} server_rank=${PS_SERVER_RANK:-} world=$WORLD_SIZE" \
    "servers=$PS_SERVERS master=$MASTER_ADDR:$MASTER_PORT args=$*"
"""


def write_program(folder, name, text):
    path = Path(folder) / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Slurm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        write_program(self.folder.name, "srun", STAND_IN_SRUN)
        write_program(self.folder.name, "scontrol", STAND_IN_SCONTROL)

    def run_sbatch(self, *args, **extra):
        env = dict(os.environ, PATH=f"{self.folder.name}:{os.environ['PATH']}",
                   SLURM_JOB_NODELIST="node1,node2", SLURM_JOB_ID="4711", SLURM_NTASKS="4",
                   SLURM_SUBMIT_DIR=str(ROOT))
        env.pop("MASTER_ADDR", None)
        env.pop("MASTER_PORT", None)
        env.update(extra)
        return subprocess.run([str(SBATCH), *args], env=env, cwd=ROOT, text=True,
                              capture_output=True, timeout=110)

    def test_dry_run_prints_servers_then_workers(self):
        run = self.run_sbatch("--dry-run", "configs/digits-basicnet.yaml", "train.epochs=3")
        self.assertEqual(run.returncode, 0, run.stderr)
        servers, workers = run.stdout.splitlines()
        self.assertIn("MASTER_ADDR=node1 MASTER_PORT=30211 WORLD_SIZE=4 PS_SERVERS=2", servers)
        self.assertRegex(servers, r"srun .*--ntasks=2 .*ps-server .*--set train.epochs=3")
        self.assertRegex(workers, r"srun .*--ntasks=4 --cpus-per-task=1 .*ps-worker .*--out runs/slurm-4711 --resume auto")

    def test_a_worker_has_the_cpus_of_a_task(self):
        """srun gives a step one CPU for each task unless it is told, whatever sbatch was given."""
        run = self.run_sbatch("--dry-run", "configs/digits-basicnet.yaml", SLURM_CPUS_PER_TASK="6")
        servers, workers = run.stdout.splitlines()
        self.assertIn("--cpus-per-task=1 ", servers)
        self.assertIn("--cpus-per-task=6 ", workers)

    def test_allreduce_has_no_servers(self):
        run = self.run_sbatch("--dry-run", "configs/digits-basicnet.yaml", PS_MODE="allreduce")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(len(run.stdout.splitlines()), 1)
        self.assertIn("PS_SERVERS=0", run.stdout)
        self.assertIn("exchange.name=allreduce", run.stdout)

    def test_bad_calls_say_what_is_missing(self):
        for args, extra, words in [
                ((), {}, "name a configuration"),
                (("nowhere.yaml",), {}, "no file nowhere.yaml"),
                (("configs/digits-basicnet.yaml",), {"PS_MODE": "ring"}, "PS_MODE"),
                (("configs/digits-basicnet.yaml",), {"PS_SERVERS_PER_NODE": "two"}, "PS_SERVERS_PER_NODE"),
                (("configs/digits-basicnet.yaml",), {"PS_SERVERS_PER_NODE": "0"}, "from 1"),
                (("configs/digits-basicnet.yaml",), {"SLURM_JOB_NODELIST": ""}, "sbatch")]:
            run = self.run_sbatch(*args, **extra)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)

    def test_workers_that_end_while_slurm_warns_them(self):
        """Their exit code counts, and the job is queued again."""
        folder = self.folder.name
        write_program(folder, "scontrol", '#!/bin/sh\n[ "$1" != requeue ] || echo "$*" >"$STAND_IN/requeued"\necho node1\n')
        write_program(folder, "ps-worker", WARNED_WORKER)
        write_program(folder, "scancel", STAND_IN_SCANCEL)
        run = self.run_sbatch("configs/digits-basicnet.yaml", PS_MODE="allreduce", PS_BIN=folder, PS_OUT=folder,
                              SLURM_NTASKS="1", STAND_IN=folder)
        self.assertEqual(run.returncode, 75, run.stdout + run.stderr)
        self.assertEqual((Path(folder) / "requeued").read_text(), "requeue 4711\n")

    @unittest.skipUnless((BIN / "ps-worker").exists(), f"no ps-worker in {BIN}")
    def test_real_programs_train_under_the_stand_in(self):
        out = Path(self.folder.name) / "out"
        run = self.run_sbatch("configs/digits-basicnet.yaml", "train.epochs=1",
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), PS_BIN=str(BIN),
                              PS_OUT=str(out), SLURM_NTASKS="2")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertTrue((out / "summary.json").exists())


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if yaml is None:
            raise unittest.SkipTest("python3-yaml is not installed")
        folder = ROOT / "deploy/k8s/base"
        cls.kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        cls.objects = {}
        for name in cls.kustomization["resources"]:
            for item in yaml.safe_load_all((folder / name).read_text()):
                cls.objects[item["kind"]] = item
        cls.size = {}
        for generator in cls.kustomization["configMapGenerator"]:
            for literal in generator.get("literals", []):
                key, value = literal.split("=", 1)
                cls.size[key] = value

    def test_numbers_agree(self):
        job = self.objects["Job"]["spec"]
        self.assertEqual(job["completionMode"], "Indexed")
        self.assertEqual(job["completions"], job["parallelism"])
        self.assertEqual(str(job["completions"]), self.size["WORLD_SIZE"])
        self.assertEqual(str(self.objects["StatefulSet"]["spec"]["replicas"]),
                         self.size["PS_SERVERS"])

    def test_the_coordinator_has_its_name(self):
        service, servers = self.objects["Service"], self.objects["StatefulSet"]
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(servers["spec"]["serviceName"], service["metadata"]["name"])
        self.assertEqual(self.size["MASTER_ADDR"],
                         f"{servers['metadata']['name']}-0.{service['metadata']['name']}")
        self.assertEqual(service["spec"]["selector"],
                         servers["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(service["spec"]["ports"][0]["port"], int(self.size["MASTER_PORT"]))

    def test_config_maps_are_those_that_are_made(self):
        made = {g["name"] for g in self.kustomization["configMapGenerator"]}
        for kind in ("StatefulSet", "Job"):
            pod = self.objects[kind]["spec"]["template"]["spec"]
            used = {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
            for container in pod["containers"]:
                used |= {e["configMapRef"]["name"] for e in container["envFrom"]}
                mounted = {m["name"] for m in container["volumeMounts"]}
                self.assertLessEqual(mounted, {v["name"] for v in pod["volumes"]})
            self.assertLessEqual(used, made)

    def test_the_job_is_the_first_job(self):
        mine = yaml.safe_load((ROOT / "deploy/k8s/base/job.yaml").read_text())
        first = yaml.safe_load((ROOT / "configs/digits-basicnet.yaml").read_text())
        self.assertEqual(mine["data"].pop("path"), "/opt/pstrain/configs/digits")
        first["data"].pop("path")
        self.assertEqual(mine.pop("checkpoint"), {"every": 100})
        self.assertGreater(mine.pop("recovery")["rejoins"], 0)
        self.assertEqual(mine, first)

    def test_gpu_overlay_patches_what_there_is(self):
        folder = ROOT / "deploy/k8s/gpu"
        overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
        self.assertEqual(overlay["bases"], ["../base"])
        patch = yaml.safe_load((folder / overlay["patchesStrategicMerge"][0]).read_text())
        job = self.objects[patch["kind"]]
        self.assertEqual(patch["metadata"]["name"], job["metadata"]["name"])
        names = [[c["name"] for c in o["spec"]["template"]["spec"]["containers"]]
                 for o in (patch, job)]
        self.assertEqual(*names)


class Image(unittest.TestCase):
    def test_keys_stay_out_of_it(self):
        """Compose has the job's keys in ./keys of the checkout, which is what an image is built from."""
        patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
        compose = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
        self.assertIn("PS_CURVE_DIR=$PWD/keys", compose)
        for name in re.findall(r"/(\w+\.key)\"", compose):
            self.assertTrue(any(pattern.startswith("**/") and Path("keys", name).match(pattern[3:]) for pattern in patterns), name)


class ContainerNode(unittest.TestCase):
    """deploy/node finds rank and coordinator from the replica's name."""

    def node(self, role, name, **extra):
        with tempfile.TemporaryDirectory() as folder:
            write_program(folder, "getent", STAND_IN_GETENT)
            for program in ("ps-server", "ps-worker"):
                write_program(folder, program, STAND_IN_PROGRAM)
            env = {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN_NAME": name, **extra}
            run = subprocess.run([str(ROOT / "deploy/node"), role], env=env, text=True,
                                 capture_output=True, timeout=30)
        return run

    def test_names_of_both_composes(self):
        for joint in "-_":
            with self.subTest(joint=joint):
                run = self.node("worker", f"my-job{joint}worker{joint}3", PS_WORKERS="4",
                                PS_FIRST_SERVICE="server")
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn(f"rank=2 server_rank= world=4 servers=2 "
                              f"master=my-job{joint}server{joint}1:29500", run.stdout)
                run = self.node("server", f"p{joint}server{joint}2")
                self.assertIn(f"server_rank=1 world=2 servers=2 "
                              f"master=p{joint}server{joint}1:29500", run.stdout)

    def test_allreduce_takes_the_first_worker(self):
        run = self.node("worker", "p-ring-2", PS_MODE="allreduce", PS_SET="train.epochs=2 a.b=c")
        self.assertIn("rank=1 server_rank= world=2 servers=0 master=p-ring-1:29500", run.stdout)
        self.assertIn("--set train.epochs=2 --set a.b=c --set exchange.name=allreduce --overwrite "
                      "--out /runs/allreduce", run.stdout)

    def test_a_pattern_is_no_name_of_files(self):
        run = self.node("worker", "p-worker-1", PS_SET="data.train=/et[c]/* job.name=x")
        self.assertIn("--set data.train=/et[c]/* --set job.name=x", run.stdout)

    def test_given_ranks_win(self):
        run = self.node("worker", "nonsense", RANK="7", MASTER_ADDR="10.0.0.1")
        self.assertIn("rank=7 server_rank= world=2 servers=2 master=10.0.0.1:29500", run.stdout)

    def test_bad_settings(self):
        for role, extra, words in [("boss", {}, "not 'boss'"),
                                   ("worker", {"PS_MODE": "x"}, "PS_MODE"),
                                   ("worker", {"PS_WORKERS": "two"}, "numbers"),
                                   ("worker", {"PS_LINK_MBIT": "0.5"}, "PS_LINK_MBIT is a whole number"),
                                   ("worker", {"PS_LINK_MBIT": "0"}, "PS_LINK_MBIT is a whole number")]:
            run = self.node(role, "p-worker-1", **extra)
            self.assertEqual(run.returncode, 2)
            self.assertIn(words, run.stderr)


class Demo(unittest.TestCase):
    def test_who_makes_the_keys(self):
        """A user of rootless Docker is root in its containers. Who makes them, can remove them."""
        for options, user in (("[name=seccomp,profile=builtin]", os.getuid()), ("[name=seccomp name=rootless]", 0)):
            with tempfile.TemporaryDirectory() as folder:
                write_program(folder, "docker", f"""#!/bin/sh
case $* in
"info -f"*) echo '{options}' ;;
run*) echo "$*" >{folder}/run; exit 1 ;;
esac
""")
                run = subprocess.run([str(ROOT / "deploy/compose-demo")], text=True, capture_output=True, timeout=60,
                                     env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PS_BUILD="no"))
                self.assertIn("making the job's keys failed", run.stderr)
                self.assertIn(f"-u {user} ", Path(folder, "run").read_text())


class Patience(unittest.TestCase):
    """Whoever tells a job to end lets worker 0 write what it keeps: servers are needed until then."""

    @classmethod
    def setUpClass(cls):
        said = subprocess.run([BIN / "ps-config-json", ""], check=True, stdout=subprocess.PIPE, timeout=60).stdout
        keys = json.loads(said)["keys"]
        cls.needed = (keys["train.file_timeout_ms"] + keys["net.step_timeout_ms"]) / 1000

    @staticmethod
    def read(name):
        return (ROOT / "deploy" / name).read_text(encoding="utf-8")

    def test_systemd(self):
        seconds = re.search(r"(?m)^TimeoutStopSec=(\d+)$", self.read("systemd/pstrain-server@.service")).group(1)
        self.assertGreaterEqual(int(seconds), self.needed)

    @unittest.skipIf(yaml is None, "no python3-yaml")
    def test_compose(self):
        services = yaml.safe_load(self.read("compose.yaml"))["services"]
        for name in ("server", "worker", "ring"):
            minutes = re.fullmatch(r"(\d+)m", services[name]["stop_grace_period"]).group(1)
            self.assertGreaterEqual(60 * int(minutes), self.needed, name)

    @unittest.skipIf(yaml is None, "no python3-yaml")
    def test_kubernetes(self):
        pods = [item["spec"]["template"]["spec"] for file in ("servers", "workers")
                for item in yaml.safe_load_all(self.read(f"k8s/base/{file}.yaml")) if item["kind"] != "Service"]
        jobset = yaml.safe_load(self.read("k8s/jobset/jobset.yaml"))
        pods += [job["template"]["spec"]["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]
        self.assertEqual(len(pods), 4)
        for pod in pods:
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], self.needed)


class Table(unittest.TestCase):
    def test_show_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "ps"
            run_dir.mkdir()
            (run_dir / "summary.json").write_text(
                '{"mode": "ps", "servers": 2, "workers": 3, "samples_per_second": 1234.5,\n'
                ' "step_ms_p50": 1.5, "step_ms_p99": 2.25, "bytes_sent_per_step": 1000.0,'
                ' "bytes_received_per_step": 2000, "test_loss": 0.25, "test_accuracy": 0.975}')
            run = subprocess.run([str(ROOT / "deploy/show-runs"), str(run_dir)], text=True,
                                 capture_output=True, timeout=30)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(re.split(r"\s+", run.stdout.splitlines()[1].strip()),
                             ["ps", "2", "3", "1,234", "1.50", "2.25", "1.0", "2.0", "0.2500",
                              "97.50%", "1.00x", str(run_dir)])
            run = subprocess.run([str(ROOT / "deploy/show-runs"), folder], text=True,
                                 capture_output=True, timeout=30)
            self.assertEqual(run.returncode, 1)
            self.assertIn("did not finish", run.stderr)

    def test_a_language_with_decimal_commas(self):
        """awk would read 0.9 as 0, and draw 1,5. Not each machine has such a language: awk must not be given any."""
        with tempfile.TemporaryDirectory() as folder:
            write_program(folder, "awk", f'#!/bin/sh\necho "$LC_ALL" >>{folder}/languages\n'
                                         f'exec {shutil.which("awk")} "$@"\n')
            Path(folder, "summary.json").write_text('{"test_loss": 0.25}')
            Path(folder, "metrics.jsonl").write_text("".join(f'{{"step":{step},"loss_mean":{loss}}}\n'
                                                             for step, loss in ((1, 1), (2, 0.5), (3, 0.25))))
            for language in ("C", "de_DE.UTF-8"):
                run = subprocess.run([str(ROOT / "deploy/show-runs"), "--plot", f"{folder}/plot.svg", folder], text=True,
                                     capture_output=True, stdin=subprocess.DEVNULL, timeout=30,
                                     env={"PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": language})
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn(" 0.2500 ", run.stdout)
            self.assertEqual(set(Path(folder, "languages").read_text().splitlines()), {"C"})

    def draw(self, folder, name, records, *options):
        """Returns the texts of the plot, by where they are: those at the left are the axes'."""
        os.makedirs(os.path.join(folder, name))
        with open(os.path.join(os.fsencode(folder), os.fsencode(name), b"metrics.jsonl"), "w", encoding="ascii") as f:
            f.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        Path(folder, name, "summary.json").write_text("{}")
        plot = os.path.join(folder, "plot.svg")
        subprocess.run([str(ROOT / "deploy/show-runs"), "--plot", plot, *options, name], check=True, stdout=subprocess.DEVNULL,
                       cwd=folder, timeout=30)
        return ET.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}text")

    def test_logarithmic_axes(self):
        """Three or more labels, each where its value is, none on another one."""
        for low, high in ((0.55, 0.9), (0.21, 0.24), (0.1, 1.2), (1e-6, 30), (3.2, 3.9)):
            with self.subTest(low=low), tempfile.TemporaryDirectory() as folder:
                records = [{"step": step, "test_loss": high * (low / high) ** (step / 9)} for step in range(10)]
                texts = [t for t in self.draw(folder, "run", records, "--log") if t.get("text-anchor") == "end"]
                labels = [(float(t.text), float(t.get("y"))) for t in texts if float(t.get("x")) < 100]
                self.assertGreaterEqual(len(labels), 3)
                (one, at), (other, other_at) = labels[0], labels[-1]
                for value, y in labels:
                    share = math.log(value / one) / math.log(other / one)
                    self.assertAlmostEqual(y, at + share * (other_at - at), delta=0.2)
                heights = sorted(y for _, y in labels)
                self.assertGreater(min(b - a for a, b in zip(heights, heights[1:])), 12)

    def test_long_and_strange_names(self):
        for name, shown in (("x" * 120 + "/" + "\u00e9" * 70, "..." + "\u00e9" * 48), (os.fsdecode(b"caf\xe9 <&>\x01"), "caf? <&>?"),
                            ("\u65e5\u672c", "\u65e5\u672c")):
            with tempfile.TemporaryDirectory() as folder:
                texts = self.draw(folder, name, [{"step": step, "test_loss": 1} for step in (9000, 10000)])
                self.assertIn(f"step ({shown})", [t.text for t in texts])
                last, = [t for t in texts if t.text == "10,000"]
                self.assertEqual((last.get("text-anchor"), last.get("x")), ("end", "856.0"))

    def test_the_figure_to_judge_by(self):
        """summary.json names its key. A folder may be named like a variable of awk."""
        for summary, shown in (({"test_accuracy": 0.75, "test_auc": 0.5, "test_quality": "test_auc"}, "AUC 0.5000"),
                               ({"test_accuracy": 0.75, "test_auc": 0.5, "test_quality": "test_accuracy"}, "75.00%"),
                               ({"test_accuracy": 0.75, "test_auc": 0.5}, "75.00%"),  # of another program
                               ({"test_accuracy": None, "test_r2": -1.5, "test_quality": "test_r2"}, "R2 -1.5000"),
                               ({"test_accuracy": None}, "-")):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "lr=0.1").mkdir()
                (Path(folder) / "lr=0.1/summary.json").write_text(json.dumps({"mode": "ps", "test_loss": 2.5, **summary}))
                run = subprocess.run([str(ROOT / "deploy/show-runs"), "lr=0.1"], text=True, capture_output=True,
                                     cwd=folder, stdin=subprocess.DEVNULL, timeout=30)
                self.assertRegex(run.stdout, rf"\nps .* 2\.5000 +{re.escape(shown)} +0\.00x  lr=0\.1\n\Z", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
