"""Steps of both sides, each in a process of its own on the same cores."""
import json
import os
import subprocess

from .job_config import ROOT, BenchError

STEP_TORCH = os.path.join(ROOT, "bench", "step_torch.py")

# oneDNN reads ONEDNN_MAX_CPU_ISA. What else computes on either side is held to the same: our loops, and
# PyTorch's and MKL's.
OF_ISA = {"AVX2": {"PS_CPU_LEVEL": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}


def _settings(core, threads):
    """Of a process on one core, or on all with several threads."""
    def pin():
        if threads == 1:
            os.sched_setaffinity(0, {core})
    held = OF_ISA.get(os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper(), {})
    return {"env": {**held, **os.environ, "OMP_NUM_THREADS": str(threads)}, "preexec_fn": pin,
            "text": True, "stdout": subprocess.PIPE}


def run_on(core, argv, threads):
    """Runs a program. Returns (the JSON that it prints, its stderr)."""
    done = subprocess.run(argv, stderr=subprocess.PIPE, **_settings(core, threads))
    if done.returncode != 0:
        raise BenchError(f"{argv[0]}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


class Torch:
    """One PyTorch process for many models: step_torch.py, with one request a line. It has started
    when this is made: nothing runs beside the first measurement."""

    def __init__(self, python, core, threads):
        self.popen = subprocess.Popen([python, STEP_TORCH], stdin=subprocess.PIPE,
                                      **_settings(core, threads))
        if self.popen.stdout.readline() != "ready\n":
            raise BenchError(f"{python} does not start {STEP_TORCH}; see above")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.stdin.close()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def run(self, job, *words, **settings):
        """The JSON that step_torch.py prints of the job."""
        request = {"job": job, "words": words, **settings}
        try:
            self.popen.stdin.write(json.dumps(request) + "\n")
            self.popen.stdin.flush()
            line = self.popen.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"PyTorch ended in the middle of {job}; see above")
        return json.loads(line)
