"""Checkpoints of pstrain (docs/checkpoints.md), read into PyTorch and written from it."""
import json
import os
import zlib

import numpy as np
import torch

from . import safetensors

MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"
FORMAT = "pstrain checkpoint 1"
STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "sum")


def _tensors(folder, name):
    arrays = safetensors.load(os.path.join(folder, name))
    return {k: torch.from_numpy(v.copy()) for k, v in arrays.items()}


def load(folder, model, optimizer):
    """Fills both; gives (step, epoch, samples of the epoch that all workers have seen)."""
    model.load_state_dict(_tensors(folder, MODEL), strict=True)
    for name, value in _tensors(folder, OPTIMIZER).items():
        tensor, _, key = name.rpartition(".")
        optimizer.state[model.get_parameter(tensor)][key] = value
    with open(os.path.join(folder, MANIFEST), encoding="utf-8") as f:
        state = json.load(f)["state"]
    return state["step"], state["epoch"], state["position"]


def _optimizer_arrays(model, optimizer, step):
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        state = optimizer.state[param]
        for key in STATES:
            if state.get(key) is not None:
                yield f"{name}.{key}", state[key].numpy()
        # SGD does not count: what it may have comes from a file.
        counts = type(optimizer).__name__ != "SGD"
        yield f"{name}.step", np.array(state["step"] if counts else step, np.float32)


def _noted(path):
    with open(path, "rb") as f:
        raw = f.read()
    return {"bytes": len(raw), "crc32": zlib.crc32(raw)}


def _text(manifest):
    return json.dumps(manifest, indent=1, sort_keys=True)


def save(folder, model, optimizer, step, epoch, position):
    """A folder that --resume goes on from, once it is RUN/checkpoints/step-<step>."""
    os.makedirs(folder)
    safetensors.save(os.path.join(folder, MODEL), {k: v.detach().numpy() for k, v in model.state_dict().items()})
    safetensors.save(os.path.join(folder, OPTIMIZER), dict(_optimizer_arrays(model, optimizer, step)))
    manifest = {"format": FORMAT, "state": {"step": step, "epoch": epoch, "position": position},
                "files": {name: _noted(os.path.join(folder, name)) for name in (MODEL, OPTIMIZER)}}
    manifest["crc32"] = zlib.crc32(_text(manifest).encode())
    with open(os.path.join(folder, MANIFEST), "w", encoding="utf-8") as f:
        f.write(_text(manifest))
