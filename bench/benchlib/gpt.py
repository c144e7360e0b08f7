"""The small GPT of python/examples on given hosts: through PyTorch DDP with its communication
hooks, and through the Python package's servers. bench/gpt_job.py is a rank."""
import os
import shutil

from . import training
from .exchange_job import Marks
from .job_config import ROOT, BenchError
from .processes import Group
from .stats import percentile

NAME = "gpt"  # where bench/pytorch takes a configuration
CONTEXT = 64  # tokens of a sequence
BATCH, STEPS, WARMUP = 8, 60, 10


class Gpt:
    """As training.Training, of which it has ddp and package."""

    seed = 0

    def __init__(self, build_dir, keys, where, workers, servers):
        self.build_dir, self.where = build_dir, where
        self.workers, self.servers = workers, servers
        given = dict(key.split("=", 1) for key in keys)
        self.steps = int(given.get("train.steps", STEPS))
        self.warmup = int(given.get("train.warmup_steps", min(WARMUP, self.steps // 2)))
        if not 0 < self.warmup < self.steps:
            raise BenchError(f"{NAME}: train.warmup_steps={self.warmup} of train.steps={self.steps}: "
                             "some have to be timed, and at least one not")

    def ddp(self, python, hook):
        with Group(training.TIMEOUT_S) as group:
            return self._run(group, python, {}, "--hook", hook)

    def package(self, python, codec):
        with Group(training.TIMEOUT_S) as group:
            env = training.start_servers(group, self.build_dir, self.where, self.workers,
                                         self.servers)
            return self._run(group, python, env, "--package", codec)

    def _run(self, group, python, env, *words):
        host, port = self.where.address("worker", 0)
        env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(self.workers),
               "GLOO_SOCKET_IFNAME": self.where.interface, "OMP_NUM_THREADS": "1",
               "USE_LIBUV": "0", "TRANSFORMERS_OFFLINE": "1", **env}
        script = os.path.join(ROOT, "bench", "gpt_job.py")
        ranks = [group.start(f"PyTorch rank {r}", [
            *self.where.prefix("worker", r), shutil.which(python), script, "--steps",
            str(self.steps), "--warmup", str(self.warmup), "--batch", str(BATCH), *words],
            dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(self.workers)]
        marks = Marks(group)
        group.finish(marks)
        found, steps = ranks[0].result(), self.steps - self.warmup
        sequences = BATCH * self.workers * steps / found["seconds"]
        return {"step_ms_p50": percentile(found["step_ms"], 0.5), "samples_per_second": sequences,
                "tokens_per_second": sequences * CONTEXT, "train_loss": found["loss"],
                "cpu_ms_per_step": marks.seconds() * 1e3 / steps, "test_accuracy": None,
                "bytes_sent_per_step": None}
