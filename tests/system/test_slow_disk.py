"""The disk takes longer for a file than a step of the job may take. The other parts wait with a
separate deadline, and know what they wait for."""
import os
import time
import unittest

from jobs import DIGITS, JobTest, SlowDisk, first, wait_until

STEP_TIMEOUT_S = 2
SETTINGS = ["train.steps=8", "train.save_every=4", "data.train=0-255",
            f"net.step_timeout_ms={int(STEP_TIMEOUT_S * 1000)}"]
MODES = (("ps", 1, "exchange.name=ps"), ("allreduce", 0, "exchange.name=allreduce"))
CHECKPOINT = "step-4.safetensors"
FIRST = "first.safetensors"


class SlowFiles(JobTest):
    def setUp(self):
        super().setUp()
        self.disk = SlowDisk(self.path("held"))
        self.hold, self.let_go = self.disk.hold, self.disk.let_go

    def start(self, servers, *settings):
        return self.start_job(servers, 2, *SETTINGS, *settings, prefix=self.disk.prefix)

    def first_weights(self):
        """A file of first weights, which is slow to read."""
        self.psrun("-m", "single", "--overwrite", DIGITS, "train.steps=1", out="first")
        os.rename(self.path("first/model.safetensors"), self.path(FIRST))
        self.hold(FIRST)
        return f"train.init={self.path(FIRST)}"

    def check_done(self, parts):
        codes = self.wait_all(parts)
        logs = "\n".join(p.text() for p in parts.values())
        self.assertEqual(set(codes.values()), {0}, logs)
        self.assertEqual(self.summary("worker-0")["steps"], 8)

    def check_all_said(self, parts, said):
        codes = self.wait_all(parts)
        for name, part in parts.items():
            self.assertEqual(codes[name], 1, name)
            self.assertRegex(part.text(), said)  # all parts say the same

    def wait_for_file(self, name):
        wait_until(lambda: os.path.exists(self.path("worker-0", name)), f"{name} was never begun")

    def test_files_that_take_longer_than_a_step_may(self):
        begun = {f"{CHECKPOINT}.tmp": f"checkpoints/{CHECKPOINT}.tmp", "model.safetensors": "model.safetensors.tmp",
                 "summary.json": "summary.json.tmp"}
        for mode, servers, exchange in MODES:
            with self.subTest(mode=mode):
                for held in begun:
                    self.hold(held)
                parts = self.start(servers, exchange)
                for held, path in begun.items():
                    self.wait_for_file(path)
                    time.sleep(STEP_TIMEOUT_S + 0.5)  # the deadline passes
                    self.let_go(held)
                self.check_done(parts)
                os.rename(self.path("worker-0"), self.path(mode))

    def test_a_file_that_is_never_written(self):
        for mode, servers, exchange in MODES:
            with self.subTest(mode=mode):
                self.hold(f"{CHECKPOINT}.tmp")
                parts = self.start(servers, exchange, "train.file_timeout_ms=1000")
                path = self.path("worker-0/checkpoints", CHECKPOINT)
                said = rf"ERROR.*worker 0 \(host \S+\) has written {path} \(train.file_timeout_ms\)"
                parts["worker 1"].wait_for(said)
                self.let_go(f"{CHECKPOINT}.tmp")
                self.check_all_said(parts, said)
                os.rename(self.path("worker-0"), self.path(mode))

    def test_first_weights_that_take_longer_than_a_step_may(self):
        for mode, servers, exchange in first(1, MODES):
            with self.subTest(mode=mode):
                init = self.first_weights()
                parts = self.start(servers, exchange, init)
                self.wait_for_file("metrics.jsonl")
                time.sleep(STEP_TIMEOUT_S + 0.5)  # the deadline passes
                self.assertEqual(self.records("worker-0"), [])
                self.let_go(FIRST)
                self.check_done(parts)
                os.rename(self.path("worker-0"), self.path(mode))

    def test_first_weights_that_are_never_read(self):
        for mode, servers, exchange in MODES:
            with self.subTest(mode=mode):
                init = self.first_weights()
                parts = self.start(servers, exchange, init, "train.file_timeout_ms=1000")
                said = (rf"ERROR.*worker 0 \(host \S+\) has read {self.path(FIRST)} "
                        r"\(train.file_timeout_ms\)")
                parts["worker 1"].wait_for(said)
                self.let_go(FIRST)
                self.check_all_said(parts, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
