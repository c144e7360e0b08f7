"""safetensors files with numpy alone: {name: array}."""
import json
import struct

import numpy as np
from psrunlib import verify

TYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
NAMES = {np.dtype("float32"): "F32", np.dtype("int64"): "I64"}


def load(path):
    return {name: np.frombuffer(raw, TYPES[kind]).reshape(shape)
            for name, (kind, raw, shape) in verify.read_weights(path).items()}


def save(path, arrays):
    entries, offset = {}, 0
    for name, array in arrays.items():
        entries[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                         "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for array in arrays.values():
            f.write(np.ascontiguousarray(array).tobytes())
