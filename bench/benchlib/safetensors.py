"""safetensors files with numpy alone: {name: array}."""
import json
import struct

import numpy as np

TYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
NAMES = {np.dtype("float32"): "F32", np.dtype("int64"): "I64"}


def load(path):
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8:8 + n])
    entries.pop("__metadata__", None)
    out = {}
    for name, entry in entries.items():
        begin, end = (8 + n + v for v in entry["data_offsets"])
        out[name] = np.frombuffer(raw[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


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
