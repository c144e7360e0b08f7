"""Whole jobs on the device cuda, with the host in the GPU's place (contract/host_gpu.c)."""
import os
import re
import unittest
from array import array
from pathlib import Path
from unittest import mock

from jobs import BIN, ROOT, Faults, JobTest, alive, kill, npy, read_safetensors

MODEL = """
model:
  input: [1, 8, 8]
  loss: cross_entropy
  layers: [{conv2d: {name: a, out: 6, kernel: 3}}, {batch_norm2d: {name: n}}, relu,
           {max_pool2d: 2}, {dropout: 0.25}, flatten, {linear: {name: b, out: 24}}, relu,
           {dropout: 0.5}, {linear: {name: c, out: 10}}]
train: {epochs: 4, seed: 3, device: cuda}
data: {kind: idx, path: %s, train: 0-74, test: 0-39, scale: 0.0625, batch: 16, eval_batch: 16,
       drop_last: false}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine}
""" % (ROOT / "configs/digits")

LOCAL = ["sync.policy=local", "sync.local_steps=4", "sync.outer_momentum=0.5"]


class HostGpu(JobTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        for name in os.listdir(BIN):
            if name != "ps-worker":
                os.symlink(BIN / name, self.path("bin", name))
        os.symlink(BIN / "ps-worker-host-gpu", self.path("bin", "ps-worker"))
        self.config = self.file("job.yaml", MODEL)

    def run_job(self, out, mode, *settings, eager=0):
        os.environ["PS_HOST_GPU_EAGER"] = str(eager)
        self.addCleanup(os.environ.pop, "PS_HOST_GPU_EAGER", None)
        self.psrun("--build-dir", self.folder, *mode, self.config, *settings, out=out)
        return self.weights(out)

    def losses(self, out):
        return {r["step"]: r["loss"] for r in self.records(out) if "loss_mean" in r}

    def test_memory_is_told_and_an_error_says_what_fits(self):
        self.run_job("told", ["-m", "single"])
        self.assertGreater(self.summary("told")["device_memory_bytes"], 10000)
        with mock.patch.dict(os.environ, PS_HOST_GPU_KIB="200"):
            said = self.psrun("--build-dir", self.folder, "-m", "single", self.config, "data.batch=74", code=1)
        self.assertRegex(said, r"activations and their gradients: the GPU is full: at most [1-9]\d? of 74 samples fit")

    def test_a_worker_binds_itself_to_its_gpus_node(self):
        """Once, whatever the number of steps; not where train.numa=false, nor where somebody has bound it."""
        cores = sorted(os.sched_getaffinity(0))
        files = {"bus/pci/devices/0000:3b:00.0/numa_node": 0, "devices/system/node/online": "0-1",
                 "devices/system/cpu/online": ",".join(map(str, cores)), "devices/system/node/node0/cpulist": cores[-1]}
        for name, text in files.items():
            os.makedirs(os.path.dirname(self.path("sys", name)), exist_ok=True)
            Path(self.path("sys", name)).write_text(f"{text}\n", encoding="ascii")

        def lines(*settings):
            said = self.psrun("--build-dir", self.folder, "--overwrite", "--verbose", "-m", "single", self.config, *settings)
            return re.findall(r"numa gpu=0000:3b:00\.0 node=0 of=2 cores=(\d+) memory=", said)
        with mock.patch.dict(os.environ, PS_HOST_GPU_SYS=self.path("sys")):
            self.assertEqual(lines(), [str(cores[-1])])
            self.arenas_are_there()
            self.assertEqual(lines("train.numa=false"), [])
            Path(self.path("sys", "devices/system/cpu/online")).write_text(f"{cores[0]},1023\n", encoding="ascii")
            self.assertEqual(lines(), [])

    def arenas_are_there(self):
        """Of a worker that runs. A thread that is older than the binding says which memory was bound by itself."""
        psrun = self.start_psrun("--build-dir", self.folder, "-m", "ps", "-s", 1, "-w", 1, self.config, "train.epochs=100000",
                                 "train.log_every=1", out="moved")
        self.wait_for_steps("moved")
        if "memory=preferred" not in self.text_of("moved", "logs", "worker-0.log"):
            return  # a container may not say where memory is to be
        worker = next(pid for pid, line in alive(self.path("moved")) if line.split()[0].endswith("/ps-worker"))
        threads = Path(f"/proc/{worker}/task").iterdir()
        older = next(path for path in threads if (path / "comm").read_text(encoding="utf-8") == "signals\n")
        maps = (older / "numa_maps").read_text(encoding="utf-8")
        self.assertEqual(sorted(re.findall(r" (\S+) file=/memfd:the\\040(parameters|gradients)", maps)),
                         [("prefer:0", "gradients"), ("prefer:0", "parameters")])
        kill(psrun)

    def test_every_step_has_its_own_loss_and_graphs_change_no_bit(self):
        for mode in (["-m", "single"], ["-m", "ps", "-s", 1, "-w", 2]):
            name = mode[1]
            direct = self.run_job(f"{name}-direct", mode, "train.graphs=false",
                                  "train.log_every=1")
            losses = self.losses(f"{name}-direct")
            for i, (more, eager) in enumerate(((["train.log_every=1"], 0),
                                               (["train.log_every=3"], 0),
                                               (["train.log_every=1000"], 38),
                                               (["train.log_every=1000"], 1))):
                out = f"{name}-{i}"
                self.assertEqual(self.run_job(out, mode, *more, eager=eager), direct, out)
                found = self.losses(out)
                self.assertTrue(found)
                self.assertEqual(found, {step: losses[step] for step in found}, out)
                self.assertEqual(self.summary(out)["train_loss"],
                                 self.summary(f"{name}-direct")["train_loss"])
                self.assertEqual(self.summary(out)["test_loss"],
                                 self.summary(f"{name}-direct")["test_loss"])

    def test_the_cpu_trains_to_the_same_weights_within_rounding(self):
        servers = ["-m", "ps", "-s", 1, "-w", 2]
        for name, mode, more in (("single", ["-m", "single"], []), ("ps", servers, []), ("local", servers, LOCAL)):
            ways = {}
            for device in ("cuda", "cpu"):
                out = f"{name}-{device}"
                self.run_job(out, mode, f"train.device={device}", "train.accumulate=2",
                             "train.epochs=2", *more)
                ways[device], _ = read_safetensors(self.path(out, "model.safetensors"))
            for name, (kind, _, values) in ways["cuda"].items():
                bound = 0 if kind == "I64" else 1e-4
                worst = max(abs(a - b) for a, b in zip(values, ways["cpu"][name][2]))
                self.assertLessEqual(worst, bound, name)

    def test_local_steps_go_on_after_a_death_and_from_a_checkpoint(self):
        mode = ["-m", "ps", "-s", 1, "-w", 2]
        job = [*LOCAL, "sync.fragments=2", "sync.overlap=1", "exchange.codec=int8", "checkpoint.every=4"]
        whole = self.run_job("whole", mode, *job)
        self.assertEqual(self.run_job("eager", mode, *job, eager=38), whole)
        faults = Faults(self.path("faults"), "worker/1@step.begun:7:kill")
        with mock.patch.dict(os.environ, faults.env):
            self.assertEqual(self.run_job("killed", [*mode, "--restarts", 1], *job), whole)
        self.assertEqual(self.summary("killed")["recovery"]["restarts"], 1)
        self.psrun("--build-dir", self.folder, *mode, self.config, *job, "train.stop_after=6", out="part", code=75)
        said = self.psrun("--build-dir", self.folder, *mode, "--resume", self.path("part"), out="part")
        self.assertIn("resume step=6 ", said)
        self.assertEqual(self.weights("part"), whole)
        self.assertEqual(self.summary("part")["test_loss"], self.summary("whole")["test_loss"])

    def test_a_gpu_that_has_failed_is_of_no_use_to_its_process(self):
        """It does not join again itself: psrun starts another process, which can use the GPU."""
        mode = ["-m", "ps", "-s", 1, "-w", 2]
        whole = self.run_job("whole", mode)
        fails = self.file("fails", "")
        with mock.patch.dict(os.environ, PS_HOST_GPU_FAILS=fails):
            said = self.psrun("--build-dir", self.folder, *mode, "--restarts", 1, self.config, out="failed")
        self.assertRegex(said, r"worker [01] .*the host in its place has failed.*it is started again")
        self.assertEqual(self.weights("failed"), whole)
        self.assertEqual(self.summary("failed")["recovery"]["restarts"], 1)

    def test_a_kernel_that_hangs_ends_its_process_in_time(self):
        """Its error names pass, gradient and card, and comes before the others have waited for too long."""
        mode = ["-m", "ps", "-s", 1, "-w", 2]
        whole = self.run_job("whole", mode)
        hangs = self.file("hangs", "")
        with mock.patch.dict(os.environ, PS_HOST_GPU_HANGS=hangs):
            said = self.psrun("--build-dir", self.folder, *mode, "--restarts", 1, self.config, "net.step_timeout_ms=8000",
                              out="hung")
        self.assertRegex(said, r"worker [01] .*step \d+: cuda: the .*: not done for 6.0 s \(by net.step_timeout_ms\): "
                               r"a kernel hangs on cuda: the host in its place.*it is started again")
        self.assertEqual(self.weights("hung"), whole)
        self.assertEqual(self.summary("hung")["recovery"]["restarts"], 1)

    def test_a_gpu_that_is_too_small_is_not_tried_again_and_again(self):
        """Another process may have had its memory: so it is tried twice."""
        with mock.patch.dict(os.environ, PS_HOST_GPU_KIB="200"):
            said = self.psrun("--build-dir", self.folder, "-m", "ps", "-s", 1, "-w", 1, "--restarts", 5, self.config,
                              "data.batch=74", code=1)
        self.assertRegex(said, r"worker 0 .*the GPU is full.*it is started again \(restart 1 of 5\)")
        self.assertRegex(said, r"the job failed: worker 0 .*\n.*the GPU is full: at most [1-9]\d? of 74 samples fit")
        self.assertNotIn("restart 2 of 5", said)
        self.assertNotIn("rejoin n=2", said)

    def on_hosts(self, hosts, more=""):
        """Worker r of every job that follows is on the host with the name hosts[r]."""
        worker = Path(self.path("bin", "ps-worker"))
        worker.unlink()
        worker.write_text(f'#!/bin/sh\nexec {BIN.resolve()}/ps-worker-host-gpu "$@" '
                          f'--set net.host=$(echo {hosts} | cut -c$((RANK + 1))) {more}\n', encoding="utf-8")
        worker.chmod(0o755)

    def two_levels(self, out, hosts, servers, *settings, eager=0):
        self.on_hosts(hosts)
        return self.run_job(out, ["-m", "ps", "-s", servers, "-w", len(hosts)], "exchange.levels=2", *settings,
                            eager=eager)

    def test_gradients_encoded_on_the_gpu_have_the_bits_of_the_hosts(self):
        """With two levels the host encodes. Micro-batches, and layers by themselves."""
        self.on_hosts("ab")
        for i, (codec, *keys) in enumerate((("int8", "train.accumulate=2"), ("fp16", "loss_scale.use=on"), ("bf16",))):
            keys += [f"exchange.codec={codec}", "exchange.codec_min=100", "exchange.chunk=16KiB"]
            there = self.run_job(f"{codec}-there", ["-m", "ps", "-s", 2, "-w", 2], *keys, eager=(0, 38, 6)[i])
            self.assertIn("codec gradients=encoded-by-cuda", self.text_of(f"{codec}-there", "logs", "worker-0.log"))
            self.assertEqual(self.two_levels(f"{codec}-here", "ab", 2, *keys), there, codec)
            self.assertNotIn("encoded-by", self.text_of(f"{codec}-here", "logs", "worker-0.log"))
            self.assertEqual(self.losses(f"{codec}-here"), self.losses(f"{codec}-there"))
            faults = Faults(self.path(f"faults-{codec}"), "worker/1@step.begun:7:kill")
            with mock.patch.dict(os.environ, faults.env):  # the other one encodes for a new session then
                self.assertEqual(self.run_job(f"{codec}-killed", ["-m", "ps", "-s", 2, "-w", 2, "--restarts", 1], *keys), there)
            self.assertEqual(self.summary(f"{codec}-killed")["recovery"]["restarts"], 1)

    def test_all_parts_are_told_the_shards_beside_gpus(self):
        """As no other process can know where the workers compute; not where a newcomer would lack it."""
        def told(*words):
            said = self.psrun("--dry-run", "-m", "ps", "-s", 2, "-w", 2, self.config, *words)
            return [re.findall(r"server\.shards=(\d+)", line) for line in said.splitlines() if "MASTER_ADDR" in line]
        self.assertEqual(told(), [["1"]] * 4)
        self.assertEqual(told("server.shards=3"), [["3"]] * 4)
        self.assertEqual(told("train.device=cpu"), [[]] * 4)
        self.assertEqual(told("job.workers=2..4"), [[]] * 4)

    def sums_of(self, out):
        """Where the workers of worker 0's host have added up, by its log."""
        return re.findall(r" levels sums=(\w+)", self.text_of(out, "logs", "worker-0.log"))

    def test_two_levels_have_the_bits_of_their_order(self):
        self.on_hosts("aab")
        flat = self.run_job("flat", ["-m", "ps", "-s", 1, "-w", 3])
        for i, hosts in enumerate(("aab", "aaa", "abc")):  # (r0 + r1) + r2 each
            self.assertEqual(self.two_levels(f"flat-{hosts}", hosts, 1 + i % 2, eager=6 * (i % 2)), flat, hosts)
            self.assertEqual(self.sums_of(f"flat-{hosts}"), ["gpu"] * (i < 2))
        by_host = self.two_levels("by-host", "aabb", 1)
        for i, keys in enumerate((["exchange.chunk=16KiB"], ["server.shards=2"], ["train.graphs=false"])):
            self.assertEqual(self.two_levels(f"by-host-{i}", "aabb", 1 + i % 2, *keys, eager=(6, 1, 0)[i]), by_host, keys)
        with mock.patch.dict(os.environ, PS_HOST_GPU_ALONE="1"):
            self.assertEqual(self.two_levels("in-host-memory", "aabb", 2), by_host)
        self.assertEqual(self.sums_of("in-host-memory"), ["host"])
        self.assertNotEqual(self.two_levels("mixed", "abab", 1), by_host)
        ways = [read_safetensors(self.path(out, "model.safetensors"))[0] for out in ("by-host", "mixed")]
        for name, (kind, _, values) in ways[0].items():
            worst = max(abs(a - b) for a, b in zip(values, ways[1][name][2]))
            self.assertLessEqual(worst, 0 if kind == "I64" else 1e-4, name)

    def test_a_gpu_beside_a_processor(self):
        """Their host adds up in its memory."""
        jobs = []
        for levels in 1, 2:
            self.on_hosts("aa", "--set train.device=$(echo cuda cpu | cut -d' ' -f$((RANK + 1)))")
            jobs.append(self.run_job(f"both-{levels}", ["-m", "ps", "-s", 1, "-w", 2], f"exchange.levels={levels}"))
        self.assertEqual(*jobs)
        self.assertEqual(self.sums_of("both-2"), [])

    def test_a_gradient_that_is_not_finite_is_named(self):
        """Weights grow until some gradient is not finite."""
        self.on_hosts("aa")
        said = self.psrun("--build-dir", self.folder, "-m", "ps", "-s", 1, "-w", 2, self.config, "exchange.levels=2",
                          "optimizer.lr=1e9", "train.epochs=100", code=1)
        self.assertRegex(said, r"the gradient of worker [01] for .* in step \d")

    def test_two_levels_with_what_a_job_may_have(self):
        for i, keys in enumerate((["exchange.codec=int8"], ["optimizer.clip_norm=0.5", "train.accumulate=2"],
                                  ["loss_scale.use=on", "train.precision=fp16"])):
            first = self.two_levels(f"{i}", "aabb", 1, *keys)
            self.assertEqual(self.two_levels(f"{i}-again", "aabb", 2, *keys, eager=6), first, keys)
            with mock.patch.dict(os.environ, PS_HOST_GPU_ALONE="1"):
                self.assertEqual(self.two_levels(f"{i}-alone", "aabb", 1, *keys), first, keys)
            for out in f"{i}-again", f"{i}-alone":
                self.assertEqual(self.summary(out)["test_loss"], self.summary(f"{i}")["test_loss"])

    def test_a_death_ends_a_job_with_two_levels_and_it_is_resumed(self):
        job = ["checkpoint.every=4", "exchange.codec=onebit", "exchange.codec_warmup=2", "exchange.codec_cooldown=2"]
        whole = self.two_levels("whole", "aab", 1, *job)
        mode = ["--build-dir", self.folder, "-m", "ps", "-s", 1, "-w", 3, self.config, "exchange.levels=2", *job]
        for name, point in (("worker 0", "step.begun"), ("worker 1", "step.begun"), ("server 0", "chunk.stepped")):
            out = name.replace(" ", "-")
            self.psrun(*mode, "train.stop_after=4", out=out, code=75)
            faults = Faults(self.path(f"faults-{out}"), f"{name.replace(' ', '/')}@{point}:2:kill")
            resume = [*mode, "--resume", self.path(out)]
            with mock.patch.dict(os.environ, faults.env):
                said = self.psrun(*resume, out=out, code=1)
            self.assertIn(f"the job failed: {name} was ended by SIGKILL", said)
            self.assertIn("--resume goes on from the last checkpoint", said)
            self.assertIn("resume step=4 ", self.psrun(*resume, out=out))
            self.assertEqual(self.weights(out), whole, name)

    def test_pictures_are_normalised_there_as_on_the_host(self):
        """The same pictures as bytes and, scaled, as float32."""
        pixels = [(i * i + i // 7) % 256 for i in range(60 * 2 * 8 * 8)]
        settings = ["model.input=[2, 8, 8]", "data.kind=npy", "data.scale=0.0625", "data.normalize=[3, 5, 2, 7]",
                    "data.crop_padding=2", "data.flip=true", "data.train=", "data.test=", "train.epochs=2"]
        trained = []
        for name, descr, values in (("bytes", "|u1", bytes(pixels)),
                                    ("floats", "<f4", array("f", (v * 0.0625 for v in pixels)).tobytes())):
            os.mkdir(self.path(name))
            for split in "train", "test":
                Path(self.path(name, f"{split}_x.npy")).write_bytes(npy(descr, "(60, 2, 8, 8)", values))
                Path(self.path(name, f"{split}_y.npy")).write_bytes(
                    npy("<i8", "(60,)", array("q", (i % 10 for i in range(60))).tobytes()))
            self.run_job(f"by-{name}", ["-m", "single"], *settings, f"data.path={self.path(name)}")
            weights, _ = read_safetensors(self.path(f"by-{name}", "model.safetensors"))
            trained.append((weights, self.summary(f"by-{name}")["test_loss"]))
        self.assertEqual(trained[0], trained[1])

    def test_lamb(self):
        mode = ["-m", "single"]
        lamb = ["optimizer.name=lamb", "optimizer.momentum=0", "optimizer.lr=0.01", "train.steps=12",
                "optimizer.decay_bias_norm=false", "train.log_every=1"]
        first = self.run_job("lamb-cuda", mode, *lamb)
        self.assertEqual(self.run_job("lamb-eager", mode, *lamb, eager=38), first)
        self.run_job("lamb-cpu", mode, *lamb, "train.device=cpu")
        theirs = self.losses("lamb-cpu")
        self.assertEqual(len(theirs), 12)
        # The weights differ more: the gradient of a bias before a batch norm is only rounding. Steps go by its sign.
        for step, loss in self.losses("lamb-cuda").items():
            self.assertAlmostEqual(loss, theirs[step], delta=1e-4 * theirs[step])

    def test_a_library_of_convolutions_changes_the_weights_within_rounding(self):
        mode = ["-m", "ps", "-s", 1, "-w", 2]
        self.run_job("without", mode, "train.cudnn=off")
        os.environ["PS_HOST_CONV"] = "1"
        self.addCleanup(os.environ.pop, "PS_HOST_CONV", None)
        first = self.run_job("with", mode, "train.cudnn=on")
        again = self.run_job("again", mode, "train.cudnn=on", eager=38)
        self.assertTrue(first == again)
        self.assertIn("convolutions", self.summary("with")["device"])
        self.assertNotIn("convolutions", self.summary("without")["device"])
        ways = [read_safetensors(self.path(out, "model.safetensors"))[0]
                for out in ("with", "without")]
        for name, (kind, _, values) in ways[0].items():
            worst = max(abs(a - b) for a, b in zip(values, ways[1][name][2]))
            self.assertLessEqual(worst, 0 if kind == "I64" else 1e-4, name)

    def test_a_library_that_is_not_there_is_named(self):
        text = self.psrun("--build-dir", self.folder, "-m", "single", self.config,
                          "train.cudnn=on", out="missing", code=1)
        self.assertIn("train.cudnn", text)


if __name__ == "__main__":
    unittest.main()
