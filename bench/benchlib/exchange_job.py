"""One exchange without arithmetic: real servers, ps-bench-exchange as workers."""
import os
import subprocess
import tempfile

from .job_config import BenchError
from .netns import Local
from .processes import Group, cpu_seconds
from .stats import of_times

JOB = """\
job: {{name: exchange, servers: {servers}, workers: {workers}}}
model:
  input: [{inputs}]
  loss: mse
  layers:
    - linear: {{name: fc, out: {outputs}}}
optimizer: {{name: sgd, lr: 1}}
"""
INPUTS = 63  # and a bias: 64 numbers for each output


class Exchange:
    """The exchange to measure. nbytes: size of a worker's gradient. Without servers: all-reduce.
    curve: with keys, which run makes."""

    def __init__(self, nbytes, workers, servers, shards="auto", codec="none", shm="auto",
                 chunk="auto", steps=20, warmup=3, extra=(), curve=False):
        self.outputs = max(1, round(nbytes / 4 / (INPUTS + 1)))
        self.nbytes = 4 * self.outputs * (INPUTS + 1)
        self.workers, self.servers, self.shards = workers, servers, shards
        self.codec, self.shm, self.chunk = codec, shm, chunk
        self.steps, self.warmup, self.extra, self.curve = steps, warmup, list(extra), curve

    def write(self, path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(JOB.format(servers=self.servers, workers=self.workers, inputs=INPUTS, outputs=self.outputs))

    def sets(self):
        keys = [f"exchange.name={'ps' if self.servers else 'allreduce'}", f"server.shards={self.shards}",
                f"exchange.codec={self.codec}", f"exchange.shm={self.shm}", f"exchange.chunk={self.chunk}",
                f"train.steps={self.steps}", f"train.warmup_steps={self.warmup}", "exchange.codec_warmup=0",
                "exchange.codec_cooldown=0", "net.insecure=true"]  # emulated hosts; PS_CURVE_DIR encrypts all the same
        return [word for key in keys + self.extra for word in ("--set", key)]


class Marks:
    """The CPU time of every part between rank 0's two marks."""

    def __init__(self, group):
        self.group, self.seen = group, []

    def __call__(self, part, line):
        if line != "mark":
            return
        self.seen.append(sum(cpu_seconds(p.popen.pid) for p in self.group.parts))
        part.popen.stdin.write("go\n")
        part.popen.stdin.flush()

    def seconds(self):
        if len(self.seen) != 2:
            raise BenchError("the workers did not time their steps")
        return self.seen[1] - self.seen[0]


def start(group, exchange, build_dir, config, where, keys):
    words = ["--config", config, "--init-method", where.init_method("server" if exchange.servers else "worker"),
             *exchange.sets(), *(word for key in keys for word in ("--set", key))]
    for s in range(exchange.servers):
        group.start_part(where, build_dir, "server", s, ["--rank", str(s), *words])
    return [group.start_part(where, build_dir, "worker", r, ["--rank", str(r), *words], "ps-bench-exchange")
            for r in range(exchange.workers)]


def make_keys(build_dir, folder):
    """Makes the keys of a job in folder/keys. Returns the configuration that uses them."""
    keys = os.path.join(folder, "keys")
    done = subprocess.run([os.path.join(build_dir, "bin", "ps-server"), "--make-keys", keys], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise BenchError(f"ps-server --make-keys: {done.stdout.strip()}")
    return [f"net.curve={keys}"]


def run(exchange, build_dir, where=None, timeout_s=300):
    """Runs one job. Returns times (milliseconds, of all workers' steps), bytes and CPU time."""
    with tempfile.TemporaryDirectory(prefix="pstrain-exchange-") as folder:
        config = os.path.join(folder, "exchange.yaml")
        exchange.write(config)
        keys = make_keys(build_dir, folder) if exchange.curve else []
        with Group(timeout_s) as group:
            workers = start(group, exchange, build_dir, config, where or Local(), keys)
            marks = Marks(group)
            group.finish(marks)
            results = [w.result() for w in workers]
    return figures(exchange, results, marks.seconds())


def figures(exchange, results, cpu):
    sent, received = (sum(r[f"bytes_{way}"] for r in results) / len(results) / exchange.steps for way in ("sent", "received"))
    moved = 2 * exchange.nbytes * exchange.workers * exchange.steps
    times = of_times(ns for r in results for ns in r["step_ns"])
    return {"bytes": exchange.nbytes, "workers": exchange.workers, "servers": exchange.servers,
            "codec": exchange.codec, "chunk_bytes": results[0]["chunk_bytes"], "chunks": results[0]["chunks"], **times,
            "cpu_ns_per_byte": cpu * 1e9 / moved, "bytes_sent_per_step": sent, "bytes_received_per_step": received,
            "compression_ratio": exchange.nbytes / sent if sent else None}
