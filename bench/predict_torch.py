"""PyTorch's side of bench/trainer predict: the model's answers for one file of samples.

  python3 predict_torch.py JOB.json WEIGHTS X.npy THREADS BATCH [channels_last]

Prints {"samples_per_second": S}: from the bytes in memory to probabilities, without starting
Python or reading files.
"""
import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchlib import safetensors, torch_model  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402


def main():
    job, weights, samples, threads, batch, *words = sys.argv[1:]
    config = JobConfig.read(job)
    torch.set_num_threads(int(threads))
    model = torch_model.Model(config).eval()
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in safetensors.load(weights).items()})
    form = torch.channels_last if "channels_last" in words else torch.contiguous_format
    model = model.to(memory_format=form)
    x = torch.from_numpy(np.load(samples))
    best = 0.0
    for _ in range(2):  # the first one warms up
        begin = time.perf_counter()
        with torch.inference_mode():
            for i in range(0, len(x), int(batch)):
                part = (x[i:i + int(batch)].float() * config["data.scale"]).to(memory_format=form)
                torch.softmax(model(part), 1)
        best = max(best, len(x) / (time.perf_counter() - begin))
    print(json.dumps({"samples_per_second": best}))


main()
