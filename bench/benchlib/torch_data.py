"""The files that data.* names, as tensors: the same samples as pstrain's readers give."""
import csv
import gzip
import io
import os
import re

import numpy as np
import torch

from .job_config import BenchError

IDX_TYPES = {8: np.uint8, 9: np.int8, 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def _read(path):
    try:
        with open(path, "rb") as f:
            raw = f.read()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror or error}") from error


def _idx(path):
    raw = _read(path)
    dims = np.frombuffer(raw, ">u4", raw[3], 4)
    return np.frombuffer(raw, IDX_TYPES[raw[2]], offset=4 + 4 * raw[3]).reshape(dims)


def _idx_pair(files):
    images = _idx(files[0])
    if images.ndim == 3:
        images = images[:, None]
    return images, _idx(files[1])


def _rows(files, label_bytes, shape):
    """CIFAR's binary form: label bytes, then the pixels; the last label counts."""
    size = label_bytes + int(np.prod(shape))
    rows = np.concatenate([np.frombuffer(_read(f), np.uint8).reshape(-1, size) for f in files])
    return rows[:, label_bytes:].reshape(-1, *shape), rows[:, label_bytes - 1]


def _stl10_pair(files):
    # Stored column by column.
    images = np.frombuffer(_read(files[0]), np.uint8).reshape(-1, 3, 96, 96)
    return images.transpose(0, 1, 3, 2), np.frombuffer(_read(files[1]), np.uint8) - 1


def _is_number(field):
    try:
        return bool(field.strip()) and float(field) is not None
    except ValueError:
        return False


def _csv(files):
    """Numbers, and the class in the last column; perhaps a line of names first."""
    tables = []
    for file in files:
        text = _read(file).decode("utf-8-sig").lstrip()
        separator = re.match(r' *(?:"(?:[^"]|"")*")?[^,;\t\n]*([,;\t]?)', text)[1] or ","
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        rows = [row for row in lines if any(field.strip() for field in row)]
        tables.append(np.array(rows[not any(map(_is_number, rows[0])):], np.float64))
    table = np.concatenate(tables)
    return table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)


READERS = {
    "idx": _idx_pair, "npy": lambda files: (np.load(files[0]), np.load(files[1])), "stl10": _stl10_pair, "csv": _csv,
    "cifar10": lambda files: _rows(files, 1, (3, 32, 32)), "cifar100": lambda files: _rows(files, 2, (3, 32, 32)),
}
FILES = {  # by default, the first set that is there; each may end in .gz
    ("idx", "train"): [["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]],
    ("idx", "test"): [[f"{name}-images-idx3-ubyte", f"{name}-labels-idx1-ubyte"] for name in ("t10k", "test")],
    ("cifar10", "train"): [[f"data_batch_{i}.bin" for i in range(1, 6)]], ("cifar10", "test"): [["test_batch.bin"]],
    ("cifar100", "train"): [["train.bin"]], ("cifar100", "test"): [["test.bin"]],
    ("stl10", "train"): [["train_X.bin", "train_y.bin"]], ("stl10", "test"): [["test_X.bin", "test_y.bin"]],
    ("csv", "train"): [["train.csv"]], ("csv", "test"): [["test.csv"]],
    ("npy", "train"): [["train_x.npy", "train_y.npy"]], ("npy", "test"): [["test_x.npy", "test_y.npy"]],
}


def _folder(config):
    """data.path from the working folder, else from the configuration file's."""
    path = config["data.path"]
    if os.path.isdir(path):
        return path
    return os.path.join(os.path.dirname(config.described["file"]), path)


def _found(folder, name):
    path = os.path.join(folder, name)
    for candidate in (path, path + ".gz", path.removesuffix(".gz")):
        if os.path.exists(candidate):
            return candidate
    return None


def _split(config, split):
    """(files, range or None) of "a,b@0-99", "0-99" or ""."""
    text = config[f"data.{split}"]
    names, at, span = text.partition("@")
    if not at and re.fullmatch(r"\d+-\d+", text):
        names, span = "", text
    files = [n.strip() for n in names.split(",") if n.strip()]
    folder = _folder(config)
    for names in [files] if files else FILES[(config["data.kind"], split)]:
        found = [_found(folder, name) for name in names]
        if all(found):
            return found, tuple(int(v) for v in span.split("-")) if span else None
    raise BenchError(f"data.{split}: no {', '.join(names)} in {folder}")


def _synthetic(config, split):
    """Shapes and counts of the synthetic set, not its values: for timing alone."""
    n = config["data.samples" if split == "train" else "data.test_samples"]
    shape = config["model.input"]
    outputs = config.tensors[-1]["shape"][0]
    draw = np.random.default_rng(1 if split == "train" else 2)
    labels = draw.integers(0, outputs, n)
    return draw.standard_normal((n, *shape), np.float32), labels


def _normalised(config, images):
    """(value * scale - mean) / std per channel, in the roundings of pstrain's reader; only
    integers are scaled."""
    scale, normalize = config["data.scale"], config["data.normalize"]
    half = len(normalize) // 2
    channels = images.shape[1] if images.ndim > 2 else 1
    out = np.empty(images.shape, np.float32)
    for c in range(channels):
        mean = np.float32(normalize[c % half] if half else 0)
        std = np.float32(normalize[half + c % half] if half else 1)
        part = (slice(None), c) if images.ndim > 2 else slice(None)
        if images.dtype == np.uint8:
            table = ((np.arange(256) * scale).astype(np.float32) - mean) / std
            out[part] = table[images[part]]
        else:
            out[part] = (images[part].astype(np.float32) - mean) / std
    return out


def load(config, split):
    """(x float32 normalised (n, *shape), labels int64) as torch tensors."""
    kind = config["data.kind"]
    if config["data.crop_padding"] or config["data.flip"]:
        raise BenchError("random crops and flips are drawn differently in PyTorch: compare "
                         "with data.crop_padding=0 data.flip=false")
    if config["data.resize"]:
        raise BenchError("data.resize is not done on the PyTorch side")
    if kind == "synthetic":
        images, labels = _synthetic(config, split)
    elif kind in READERS:
        files, limits = _split(config, split)
        images, labels = READERS[kind](files)
        if limits:
            images = images[limits[0]:limits[1] + 1]
            labels = labels[limits[0]:limits[1] + 1]
    else:
        raise BenchError(f"data.kind {kind}: the PyTorch side does not have it")
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu" or labels.size != len(labels):
        raise BenchError("samples that are compared with numbers are not in the PyTorch side: " "compare with labels")
    x = torch.from_numpy(_normalised(config, images))
    x = x.reshape(len(x), *config["model.input"])
    return x, torch.from_numpy(np.array(labels, dtype=np.int64).reshape(-1))
