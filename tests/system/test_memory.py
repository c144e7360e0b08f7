"""Memory does not grow: 10,000 steps take no more than 1,000. A server holds its weights, their
state and W gradients. What is on its way to a part that stands still stays within the credits."""
import contextlib
import unittest

import test_stopped
from jobs import JobTest, resident_bytes, wait_until

STEPS = ["train.steps=12000", "train.epochs=1000", "train.log_every=1000", "train.eval_every=0",
         "data.batch=2", "schedule.name=constant", "model.dropout=false"]


class Memory(JobTest):
    def wait_for_record(self, parts, step):
        def is_there():
            self.assertIsNone(parts["worker 0"].popen.poll(), parts["worker 0"].text())
            with contextlib.suppress(FileNotFoundError, ValueError):
                return any(r["step"] >= step for r in self.records("worker-0"))

        wait_until(is_there, f"step {step} was not reached", 240)

    def sizes_at(self, parts, step):
        self.wait_for_record(parts, step)
        return {name: resident_bytes(part.popen.pid) for name, part in parts.items()}

    def test_no_growth_from_step_1000_to_10000(self):
        for exchange, servers in (("ps", 2), ("allreduce", 0)):
            settings = [*STEPS, f"exchange.name={exchange}", "exchange.shm=off"]
            parts = self.start_job(servers, 2, *settings)
            early = self.sizes_at(parts, 1000)
            late = self.sizes_at(parts, 10000)
            for name in parts:
                grown = late[name] - early[name]
                self.assertLessEqual(grown, 2**20, f"{exchange}: {name} grew by {grown} bytes")
            self.assertEqual(set(self.wait_all(parts, 60).values()), {0})

    def test_a_server_holds_what_it_must(self):
        # An MLP of 64 x 16384 x 64 x 10: 2.1 million weights, 8.5 MB; AdamW holds three times that,
        # and each of two workers pushes as much again: 42 MB, and everything else on top.
        config = self.wide_model()
        # Through shared memory the workers' own arenas would be counted as the server's, too.
        self.psrun("-s", 1, "-w", 2, config, "train.steps=30", "exchange.shm=off")
        weights = self.summary()["params"] * 4
        self.assertLess(self.summary()["server_peak_rss_bytes"], 5 * weights + 16 * 2**20)


class StoppedFor30Seconds(test_stopped.StoppedServer):
    SECONDS = 30


if __name__ == "__main__":
    unittest.main(verbosity=2)
