"""An exported model with a run's weights, fed by the preprocessing that stands beside them.

    exported.py predict MODEL.py WEIGHTS TABLE PREDICTIONS.csv       the same numbers, within 1e-6
    exported.py train MODEL.py FIRST LAST TABLE STEPS LR MOMENTUM    all lines a step, by SGD, end with LAST's weights
"""
import csv
import json
import struct
import sys

import torch

MISSING = {"", "nan", "na", "n/a", "<na>", "null", "none", "?", "-"}


def read_weights(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    state = json.loads(head.pop("__metadata__")["preprocessing"])
    return {k: torch.frombuffer(bytearray(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]),
                                dtype=torch.float32).reshape(t["shape"]) for k, t in head.items()}, state


def cell(column, text):
    """The inputs of a cell, and the numbers of an embedding."""
    names, missing = column["categories"], text.lower() in MISSING
    if column.get("embedded"):
        known = len(names) + column["own"]
        return [], [len(names) if missing else names.index(text) if text in names else known]
    if not names:
        value = column["fill"] if missing else float(text)
        out = [(value - column["mean"]) / column["std"]]
    elif missing:
        out = [0.0 if column["own"] else share for share in column["shares"]]
    else:
        out = [float(text == name) for name in names]
    return out + [float(missing)] * column["own"], []


def inputs(state, lines):
    out = []
    for line in lines:
        cells = [cell(column, line[column["name"]]) for column in state["columns"]]
        out.append([v for part in (0, 1) for pair in cells for v in pair[part]])
    return torch.tensor(out, dtype=torch.float64).float()


def lines_of(path):
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def model_of(path, weights):
    names = {}
    with open(path, encoding="utf-8") as f:
        exec(f.read(), names)
    model = names["Model"]()
    model.load_state_dict(weights)
    return model


def same(a, b, what, bound):
    assert abs(a - b) <= bound * max(1, abs(a)), (a, b, what)


def predict(source, weights, table, predictions):
    tensors, state = read_weights(weights)
    lines = lines_of(table)
    with torch.no_grad():
        outputs = model_of(source, tensors).eval()(inputs(state, lines))
    if state["classes"]:
        outputs = outputs.softmax(1)
    for line, row, ours in zip(lines, outputs.tolist(), lines_of(predictions), strict=True):
        if not state["classes"]:
            row = [y * t["std"] + t["mean"] for y, t in zip(row, state["targets"], strict=True)]
        said = [float(v) for k, v in ours.items() if k.startswith(("output_", "probability_"))]
        for y, v in zip(row, said, strict=True):
            same(y, v, line, 1e-6)


def train(source, first, last, table, steps, lr, momentum):
    tensors, state = read_weights(first)
    lines = lines_of(table)
    model, x = model_of(source, tensors), inputs(state, lines)
    target, = state["targets"]
    y = torch.tensor([[(float(line[target["name"]]) - target["mean"]) / target["std"]] for line in lines])
    optimizer = torch.optim.SGD(model.parameters(), float(lr), float(momentum))
    for _ in range(int(steps)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    for name, wanted in read_weights(last)[0].items():
        got = model.state_dict()[name]
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6), (name, (got - wanted).abs().max())


if __name__ == "__main__":
    {"predict": predict, "train": train}[sys.argv[1]](*sys.argv[2:])
    print("the same")
