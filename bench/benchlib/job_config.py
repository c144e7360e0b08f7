"""A job's configuration, as ps-config-json understands it."""
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class BenchError(Exception):
    """An error for the user, shown without a traceback."""


def find_build_dir(given=None):
    path = given or os.environ.get("PS_BUILD_DIR") or os.path.join(ROOT, "build", "release")
    if not os.path.exists(os.path.join(path, "bin", "ps-config-json")):
        raise BenchError(
            f"no programs in {path}/bin: build them (cmake --preset release && cmake --build "
            "--preset release), or name the build folder with --build-dir")
    return os.path.abspath(path)


class JobConfig:
    """config["optimizer.lr"], config.layers, config.tensors."""

    def __init__(self, described):
        self.described = described
        self.keys, self.layers, self.tensors, self.buffers, self.n_params = (
            described[key] for key in ("keys", "layers", "tensors", "buffers", "n_params"))

    def __getitem__(self, key):
        return self.keys[key]

    @classmethod
    def load(cls, build_dir, config, overrides=()):
        argv = [os.path.join(build_dir, "bin", "ps-config-json"), config, *overrides]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise BenchError(done.stderr.strip() or f"{argv[0]} ended with {done.returncode}")
        return cls(json.loads(done.stdout))

    @classmethod
    def read(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    def write(self, path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.described, f)

    def batch(self, rank):
        batches = self["data.batch"]
        return batches[rank if len(batches) > 1 else 0]

    def gradient_bytes(self):
        return 4 * self.n_params
