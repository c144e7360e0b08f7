"""A rank of a job of test_rows_bounded.py: python3 bounded_worker.py FILE FIRST END [OPTION=VALUE...]. Steps FIRST to END - 1
of one table with bounds; FIRST > 0: from the state_dict in FILE, which it writes at the end. Rank 0 says what it has."""
import sys

import torch

import pstrain
from pstrain import job as jobs

FILE, FIRST, END = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
OPTIONS = {word.split("=")[0]: int(word.split("=")[1]) for word in sys.argv[4:]}
EARLIER = OPTIONS.pop("earlier", 0)  # steps of other rows, before the state is loaded


def ids_of(rank, step):
    return torch.randint(0, 60 + 4 * step, (30,), generator=torch.Generator().manual_seed(10 * step + rank)).view(-1, 2)


def main():
    torch.set_num_threads(1)
    jobs.listen()
    pstrain.init()
    rank = pstrain.rank()
    rows = pstrain.EmbeddingBag("user", 4, mode="sum", optimizer="sparse_adam", lr=0.1, **OPTIONS)

    def step(number):
        rows(ids_of(rank, number)).square().sum().backward()
        rows.step()

    for number in range(EARLIER):
        step(1000 + number)
    if FIRST:
        rows.load_state_dict(torch.load(FILE))
    for number in range(FIRST, END):
        step(number)
    state = rows.state_dict()
    if rank == 0:
        torch.save(state, FILE)
    pstrain.shutdown()


main()
