"""A rank of the job of test_rows_export.py: python3 rows_export_worker.py EXPORT ROWS. Loads ROWS rows, piece by piece, exports
them, and prints by how much its memory has grown meanwhile at most."""
import re
import sys

import torch

import pstrain

DIM, PIECE = 16, 1 << 16


def peak_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) << 10


def forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def piece(at, n):
    """Ids and values: number i has the id 3i."""
    numbers = torch.arange(at, at + n)
    return 3 * numbers, (numbers.view(-1, 1) * DIM + torch.arange(DIM)).float()


def load(rows, ids, values):
    """Beside the rows that are there: load_state_dict would replace them."""
    rows._rows.job.session.block("pstrain_rows_load", 0, ids.data_ptr(), len(ids), values.data_ptr(), 0, 0)


def main():
    torch.set_num_threads(1)
    path, many = sys.argv[1], int(sys.argv[2])
    pstrain.init()
    rows = pstrain.Embeddings({"user": dict(dim=DIM)}, optimizer="sgd", lr=0.5)
    rows({"user": torch.tensor([[1]])})
    for at in range(0, many, PIECE):
        load(rows, *piece(at, min(PIECE, many - at)))
    rows.export(path)  # what an export of any size needs: code, buffers
    forget_peak()
    before = peak_bytes()
    rows.export(path)
    print(f"rank {pstrain.rank()}: grown {peak_bytes() - before}", flush=True)
    ids, weight = pstrain.rows(path).tables["user"]
    assert torch.equal(ids, 3 * torch.arange(many))
    for at in range(0, many, PIECE):
        assert torch.equal(weight[at:at + PIECE], piece(at, min(PIECE, many - at))[1])
    try:
        rows.export("/nowhere/rows")
    except pstrain.InputError as error:
        assert "rows are not exported: /nowhere/rows" in str(error), error
    rows({"user": torch.tensor([[1]])})["user"].sum().backward()
    rows.step()  # the job goes on
    pstrain.shutdown()


main()
