"""What dlrm.py needs: samples with labels 0 and 1, and how well a model ranks them.

A source is Criteo's file, MovieLens' ratings, or a generator. Workers share its stream: they have the
same batches for any number of workers, each a part of every batch. Every tenth sample is held out.
"""
import array
import codecs
import csv
import gzip
import itertools
import math
import pathlib
import re
import zlib

import torch

RATINGS = ("ratings.csv", "ratings.dat", "u.data")  # MovieLens'
MISSING = 1 << 32  # the id of an empty cell: Criteo's ids have 32 bits


class Criteo:
    """The TSV file of the Criteo challenges, plain or gzip: label, 13 counts, 26 ids in hex; cells may be empty.
    Streamed: any length takes the same memory. Each worker reads all lines, and parses its own."""

    dense, tables = 13, [f"C{i}" for i in range(1, 27)]

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            try:
                for number, line in enumerate(gzip.open(raw) if zipped else raw, 1):
                    line = line.rstrip(b"\r\n")
                    if number == 1:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    if line:
                        yield number, line
            except (EOFError, OSError, zlib.error) as error:
                raise ValueError(f"{self.path} cannot be read to its end: {error}") from None

    def parse(self, lines):
        rows = [self._cells(number, line.split(b"\t")) for number, line in lines]
        counts = torch.tensor([row[1:14] for row in rows], dtype=torch.float32).view(-1, 13)
        ids = torch.tensor([row[14:] for row in rows], dtype=torch.int64).view(-1, 26)
        return torch.log1p(counts), ids, torch.tensor([row[0] for row in rows], dtype=torch.float32), None

    def _cells(self, number, cells):
        if len(cells) != 40:
            raise ValueError(f"{self.path}, line {number}: it has {len(cells)} columns, not 40: a label, 13 counts and "
                             "26 ids with tabs between them")
        values = []
        try:
            for read, cell in zip(READ, cells):
                values.append(read(cell))
        except ValueError:
            kind = "a label, 0 or 1" if not values else "a count" if len(values) < 14 else "an id, in hex of at most 63 bits"
            raise ValueError(f"{self.path}, line {number}, column {len(values) + 1}: "
                             f"{cells[len(values)].decode(errors='replace')!r} is not {kind}") from None
        return values


def read_count(cell):
    if cell and not re.fullmatch(rb"[+-]?[0-9]+", cell):  # int() takes more
        raise ValueError
    return max(0, int(cell or 0))


def read_id(cell):
    if not cell:
        return MISSING
    if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", cell) or int(cell, 16) >> 63:
        raise ValueError
    return int(cell, 16)


READ = [(b"0", b"1").index] + [read_count] * 13 + [read_id] * 26


class MovieLens:
    """ratings.csv, ratings.dat with "::", or u.data with tabs: user, movie, rating, time in seconds. In an order drawn
    at random, which is the same everywhere. A rating of 4 and more counts as a click."""

    dense, tables = 1, ["user", "movie"]

    def __init__(self, path):
        self.path = path
        self.ids, self.numbers = array.array("q"), array.array("d")  # (n, 2): user, movie; rating, time
        with open(path, newline="", encoding="utf-8") as file:
            lines = (line.replace("::", ",").replace("\t", ",") for line in file)
            for number, cells in enumerate(csv.reader(lines), 1):
                if number == 1 and cells and not cells[0].isdigit():
                    continue  # the names of the columns
                try:
                    user, movie, rating, time = cells
                    self.ids.extend((int(user), int(movie)))
                    self.numbers.extend((float(rating), float(time)))
                except ValueError:
                    raise ValueError(f"{path}, line {number}: it is not user, movie, rating, time: {','.join(cells)}") from None
        self.ids = torch.tensor(self.ids).view(-1, 2)
        self.numbers = torch.tensor(self.numbers).view(-1, 2)

    def __iter__(self):
        yield from torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(1)).tolist()

    def parse(self, samples):
        chosen = torch.tensor(samples, dtype=torch.int64)
        rating, time = self.numbers[chosen].unbind(1)
        years = (time - 1.2e9) / 3.2e8  # in decades, about 0
        return years.float()[:, None], self.ids[chosen], (rating >= 4).float(), None


def mixed(x):
    """A hash of int64: the finalizer of splitmix64."""
    for shift, factor in ((30, -0x40a7b892e31b1a47), (27, -0x6b2fb644ecceee15)):
        x = (x ^ ((x >> shift) & (1 << 64 - shift) - 1)) * factor
    return x ^ ((x >> 31) & (1 << 33) - 1)


class Generated:
    """Clicks whose true probability is known, and with it the best AUC that a model can have: 13 counts, 26 ids of
    Zipf's distribution. Each sample depends on the seed and its number alone."""

    dense, tables, path = 13, [f"C{i}" for i in range(1, 27)], "the generator"

    def __init__(self, n, rows=1000, seed=1):
        """n: samples; rows: ids of each table."""
        self.n, self.seed = n, seed
        self.ranks = (1 / torch.arange(1, rows + 1, dtype=torch.float64) ** 1.05).cumsum(0)
        g = torch.Generator().manual_seed(seed)
        self.truth = torch.randn(26 * rows, 3, generator=g, dtype=torch.float64)  # of an id: alone; in pairs
        self.of_table = torch.arange(26) * rows

    def __iter__(self):
        yield from range(self.n)

    def parse(self, samples):
        key = mixed(torch.tensor(samples, dtype=torch.int64)[:, None] * 64 + self.seed + (torch.arange(40) << 40))
        u = (((key >> 11) & (1 << 53) - 1).double() + 0.5) * 2.0 ** -53  # (n, 40)
        rank = torch.searchsorted(self.ranks, u[:, :26].contiguous() * self.ranks[-1]).clamp(max=len(self.ranks) - 1)
        counts = torch.exp(1 + 1.5 * math.sqrt(2) * torch.erfinv(2 * u[:, 26:39] - 1)).floor()
        truth = self.truth[rank + self.of_table]  # (n, 26, 3)
        pairs = (truth[..., 1:].sum(1) ** 2 - (truth[..., 1:] ** 2).sum(1)).sum(1) / 2
        logit = (-1.35 + 1.21 * truth[..., 0].sum(1) / math.sqrt(26) + 0.24 * pairs / math.sqrt(26 * 25)
                 + torch.log1p(counts) @ torch.linspace(-0.1, 0.1, 13, dtype=torch.float64))
        ids = mixed(rank + (torch.arange(26) << 40)) & (1 << 63) - 1  # as they come: any 63 bits
        return torch.log1p(counts).float(), ids, (u[:, 39] < logit.sigmoid()).float(), logit.float()


def batches(source, size, rank, ranks, tests=False):
    """This rank's part of each batch of the source's: (counts, ids, labels, logits of the truth or None), and of how many
    samples in all ranks. A part may be empty, in the last batch. tests: of what is held out, else of the rest."""
    begun = False
    chosen = (sample for i, sample in enumerate(source) if (i % 10 == 9) == tests)
    while batch := list(itertools.islice(chosen, size)):
        n, begun = len(batch), True
        yield source.parse(batch[n * rank // ranks:n * (rank + 1) // ranks]), n
    if not begun:
        raise ValueError(f"{source.path} has {'less than 10 samples: every tenth is held out' if tests else 'no samples'}")


def find(path, samples, rows):
    """The source in a file, or in a folder of MovieLens'; without a path the generator."""
    if path is None:
        return Generated(samples, rows)
    path = pathlib.Path(path)
    for name in RATINGS:
        if path.is_dir() and (path / name).exists():
            path = path / name
    if path.is_dir():
        raise ValueError(f"{path} has none of {', '.join(RATINGS)}: name a file")
    return MovieLens(path) if path.name in RATINGS else Criteo(path)


class Scores:
    """How well logits rank and predict the labels: AUC, by counts in 65,536 steps from -16 to 16, and log loss. The
    counts of several ranks add up."""

    def __init__(self):
        self.counts = torch.zeros(2, 1 << 16, dtype=torch.int64)
        self.loss = torch.zeros(1, dtype=torch.float64)

    def add(self, logits, labels):
        steps = ((logits.double() + 16) * 2048).clamp(0, (1 << 16) - 1).long()
        for label in (0, 1):
            self.counts[label] += torch.bincount(steps[labels == label], minlength=1 << 16)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="sum")
        self.loss += loss

    def result(self):
        """(AUC, log loss)"""
        no, yes = self.counts.double()
        below = no.cumsum(0) - no / 2  # equal scores count half
        return float((yes * below).sum() / (no.sum() * yes.sum())), float(self.loss / self.counts.sum())
