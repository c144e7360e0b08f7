"""data.stream: samples that stay in their file give the same results as samples in memory."""
import os
import random
import subprocess
import unittest
from array import array
from pathlib import Path

from jobs import JobTest, npy

IMAGES, SIDE = 240, 6


class Streamed(JobTest):
    def setUp(self):
        super().setUp()
        draw = random.Random(3)
        count = IMAGES * 2 * SIDE * SIDE
        shape = f"({IMAGES}, 2, {SIDE}, {SIDE})"
        self.write("u1.npy", npy("|u1", shape, bytes(draw.randrange(256) for _ in range(count))))
        for descr, kind in (("<f4", "f"), ("<f8", "d")):
            self.write(descr[1:] + ".npy", npy(descr, shape, array(kind, (draw.gauss(0, 1) for _ in range(count)))))
        self.write("y.npy", npy("<i8", f"({IMAGES},)", array("q", (draw.randrange(5) for _ in range(IMAGES)))))
        self.write("job.yaml", (
            f"model: {{input: [2, {SIDE}, {SIDE}], layers: [{{conv2d: {{out: 4, kernel: 3}}}}, relu, "
            f"flatten, linear: 5]}}\n"
            f"train: {{epochs: 2}}\n"
            f"data: {{kind: npy, path: '{self.folder}', train: 'u1.npy,y.npy@7-190', test: 'u1.npy,y.npy@191-239',\n"
            "  batch: 16, normalize: [0.4, 0.5, 0.2, 0.3], flip: true, crop_padding: 1}\n").encode())

    def write(self, name, content):
        Path(self.path(name)).write_bytes(bytes(content))

    def train(self, out, *settings):
        said = self.psrun(self.path("job.yaml"), *settings, out=out)
        return said, self.weights(out), self.summary(out)["test_loss"]

    def check_same(self, name, *settings):
        _, weights, loss = self.train(f"{name}-memory", *settings)
        for threads in (1, 3):
            out = f"{name}-stream{threads}"
            _, streamed, streamed_loss = self.train(out, *settings, "data.stream=true", f"data.threads={threads}")
            self.assertEqual(streamed, weights)
            self.assertEqual(streamed_loss, loss)

    def test_the_bits_are_those_of_samples_in_memory(self):
        self.check_same("single", "-m", "single")
        self.check_same("workers", "-s", "1", "-w", "3")
        for kind in ("f4", "f8"):
            self.check_same(kind, "-m", "single", f"data.train={kind}.npy,y.npy@3-150", f"data.test={kind}.npy,y.npy")

    def test_a_job_that_goes_on_has_the_same_bits(self):
        self.train("whole", "-m", "allreduce", "-w", "2")
        some = ("-m", "allreduce", "-w", "2", "data.stream=true", "checkpoint.every=4")
        self.psrun(self.path("job.yaml"), *some, "train.stop_after=4", out="part", code=75)
        self.psrun("--resume", self.path("part"), out="part")
        self.assertEqual(self.weights("part"), self.weights("whole"))

    def test_predictions_are_the_same(self):
        self.train("out", "-m", "single")
        weights = ("--init", self.path("out", "model.safetensors"))
        for what in ("test", self.path("u1.npy")):
            said = []
            for stream in ("false", "true"):
                self.psrun("--predict", what, *weights, self.path("job.yaml"), f"data.stream={stream}",
                           out=f"said-{len(said)}-{os.path.basename(what)}")
                said.append(Path(self.path(f"said-{len(said)}-{os.path.basename(what)}",
                                           "predictions.npy")).read_bytes())
            self.assertEqual(*said)

    def test_memory_does_not_grow_with_the_file(self):
        """1.6 GB, as a file with holes."""
        header = npy("|u1", "(200000, 8192)", b"")
        with open(self.path("large.npy"), "wb") as f:
            f.write(header)
            f.truncate(len(header) + 200000 * 8192)
        self.write("large_y.npy", npy("|u1", "(200000,)", bytes(200000)))
        self.write("large.yaml", (
            f"model: {{input: [8192], layers: [linear: 2]}}\ntrain: {{steps: 30, device: cpu}}\n"
            f"data: {{kind: npy, path: '{self.folder}', train: 'large.npy,large_y.npy', stream: true}}\n").encode())
        self.psrun("-m", "single", self.path("large.yaml"))
        self.assertLess(self.summary()["peak_rss_bytes"], 600 << 20)

    def test_what_cannot_be_streamed_is_refused(self):
        job = (self.path("job.yaml"), "data.stream=true")
        said = self.psrun("-m", "single", *job, "data.kind=idx", code=1)
        self.assertIn("data.stream: reads samples of data.kind npy, csv or criteo: set one of them, or remove data.stream", said)
        subprocess.run(["gzip", "-k", self.path("u1.npy")], check=True)
        said = self.psrun("-m", "single", *job, "data.train=u1.npy.gz,y.npy", code=1)
        self.assertIn("u1.npy.gz: is compressed, and data.stream reads samples in any order: unpack it", said)
        os.truncate(self.path("u1.npy"), 5000)
        said = self.psrun("-m", "single", *job, code=1)
        self.assertIn("u1.npy: has 5000 bytes, and its header says", said)

    def test_a_file_that_becomes_shorter_ends_the_job(self):
        parts = self.start_job(0, 1, "exchange.name=none", "data.stream=true", "train.epochs=1000000",
                               "train.log_every=1", config=self.path("job.yaml"))
        self.wait_for_steps("worker-0")
        os.truncate(self.path("u1.npy"), 5000)
        self.assertEqual(self.wait_all(parts), {"worker 0": 1})
        self.assertRegex(parts["worker 0"].text(), r"u1.npy: has become shorter: sample \d+ is no longer there")


if __name__ == "__main__":
    unittest.main()
