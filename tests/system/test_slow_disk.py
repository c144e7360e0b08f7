"""A disk that takes longer over a file than a step of the job may take: the others wait for it
by a deadline of its own, and know what they wait for."""
import os
import time
import unittest

from jobs import BIN, DIGITS, JobTest

STEP_TIMEOUT_S = 1.5
SETTINGS = ["train.steps=8", "train.save_every=4", "data.train=0-255",
            f"net.step_timeout_ms={int(STEP_TIMEOUT_S * 1000)}"]
MODES = (("ps", 1, "exchange.name=ps"), ("allreduce", 0, "exchange.name=allreduce"))
CHECKPOINT = "step-4.safetensors"
FIRST = "first.safetensors"


class SlowDisk(JobTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("held"))

    def start(self, servers, *settings):
        disk = ["env", f"LD_PRELOAD={BIN}/libslow_disk.so", f"PS_SLOW_DISK={self.path('held')}",
                "ASAN_OPTIONS=verify_asan_link_order=0"]
        return self.start_job(servers, 2, *SETTINGS, *settings, prefix=disk)

    def hold(self, name):
        with open(self.path("held", name), "w", encoding="ascii"):
            pass

    def let_go(self, name):
        os.unlink(self.path("held", name))

    def first_weights(self):
        """A file of first weights, which is slow to read."""
        self.psrun("-m", "single", "--overwrite", DIGITS, "train.steps=1", out="first")
        os.rename(self.path("first/model.safetensors"), self.path(FIRST))
        self.hold(FIRST)
        return f"train.init={self.path(FIRST)}"

    def check_done(self, parts):
        codes = self.wait_all(parts, 20)
        logs = "\n".join(p.text() for p in parts.values())
        self.assertEqual(set(codes.values()), {0}, logs)
        self.assertEqual(self.summary("worker-0")["steps"], 8)

    def check_all_said(self, parts, said):
        codes = self.wait_all(parts, 20)
        for name, part in parts.items():
            self.assertEqual(codes[name], 1, name)
            self.assertRegex(part.text(), said)  # the same words for everybody

    def wait_for_file(self, name):
        end = time.monotonic() + 20
        while not os.path.exists(self.path("worker-0", name)):
            self.assertLess(time.monotonic(), end, f"{name} was never begun")
            time.sleep(0.02)

    def test_files_that_take_longer_than_a_step_may(self):
        for mode, servers, exchange in MODES:
            for held, begun in ((f"{CHECKPOINT}.tmp", f"checkpoints/{CHECKPOINT}.tmp"),
                                ("model.safetensors", "model.safetensors.tmp"),
                                ("summary.json", "summary.json.tmp")):
                with self.subTest(mode=mode, held=held):
                    self.hold(held)
                    parts = self.start(servers, exchange)
                    self.wait_for_file(begun)
                    time.sleep(2.5 * STEP_TIMEOUT_S)
                    self.let_go(held)
                    self.check_done(parts)
                    os.rename(self.path("worker-0"), self.path(f"{mode}-{held}"))

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
        for mode, servers, exchange in MODES:
            with self.subTest(mode=mode):
                init = self.first_weights()
                parts = self.start(servers, exchange, init)
                self.wait_for_file("metrics.jsonl")
                time.sleep(2.5 * STEP_TIMEOUT_S)
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
