"""A DLRM in PyTorch: nn.EmbeddingBag(sparse=True) with Adagrad, layers with Adam.

clicks_by_hand.py CLICKS MODEL ROWS BATCH RATE OUT: trains one epoch in the order of the lines, from the weights in MODEL
and ROWS. OUT gets all weights; the AUC and the log loss of all lines afterwards are printed.
"""
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import torch  # noqa: E402

from benchlib import safetensors  # noqa: E402

MISSING = 1 << 32


def main(clicks, model, rows, batch, rate, out):
    torch.set_num_threads(1)
    lines = [line.rstrip("\n").split("\t") for line in Path(clicks).read_text().split("\n") if line]
    labels = torch.tensor([[float(line[0])] for line in lines])
    counts = torch.tensor([[math.log1p(max(0, int(cell or 0))) for cell in line[1:14]] for line in lines])
    weights, tables = ({name: torch.tensor(values) for name, values in safetensors.load(path).items()} for path in (model, rows))
    names = [f"pairs.rows.C{k}" for k in range(1, 27)]
    place = [{int(i): at for at, i in enumerate(tables[f"{name}.ids"])} for name in names]
    ids = torch.tensor([[place[k][int(cell, 16) if cell else MISSING] for k, cell in enumerate(line[14:])] for line in lines])
    bags = [torch.nn.EmbeddingBag.from_pretrained(tables[f"{name}.weight"], freeze=False, mode="sum", sparse=True) for name in names]
    dense = {name: value.requires_grad_() for name, value in weights.items()}
    pairs = [(i, j) for i in range(27) for j in range(i)]

    def linear(name, x):
        return torch.nn.functional.linear(x, dense[f"{name}.weight"], dense[f"{name}.bias"])

    def logits(part):
        x = linear("pairs.bottom2", linear("pairs.bottom1", counts[part]).relu()).relu()
        vectors = torch.stack([x] + [bag(ids[part, k:k + 1]) for k, bag in enumerate(bags)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        flat = torch.stack([products[:, i, j] for i, j in pairs], 1)
        return linear("top2", linear("top1", torch.cat([x, flat], 1)).relu())

    optimizers = (torch.optim.Adagrad([bag.weight for bag in bags], lr=float(rate)),
                  torch.optim.Adam(list(dense.values()), lr=0.01))
    for begin in range(0, len(lines), int(batch)):
        part = slice(begin, begin + int(batch))
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits(part), labels[part]).backward()
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        scores = logits(slice(None))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        yes, no = scores[labels > 0.5], scores[labels < 0.5]
        auc = ((yes[:, None] > no).double() + 0.5 * (yes[:, None] == no).double()).mean()
    print(f"{float(auc)} {float(loss)}")
    safetensors.save(out, {**{name: value.detach().numpy() for name, value in dense.items()},
                           **{name: bag.weight.detach().numpy() for name, bag in zip(names, bags)}})


if __name__ == "__main__":
    main(*sys.argv[1:])
