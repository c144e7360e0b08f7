"""Steps whose gradient a rounding decides.

A relu whose input is within a rounding of 0 may have either slope; of two inputs that are as
near to each other, a max_pool may take either. Two correct programs then have gradients that
differ by far more than their roundings.
"""
import copy

import torch

DRAWS, ROUNDINGS = 4, 8
FLOAT32_HALF_UNIT = 2.0 ** -24


class Ties:
    """Measures for each step how far from the exact gradient (float64) one is that begins from
    weights a few roundings away, and PyTorch's own, in parts of the exact one's largest element.
    all_reduce(t): sums a tensor over the ranks; world: their number. Each has equally many samples,
    so DDP's mean over the ranks is the mean over the samples."""

    def __init__(self, model, loss, all_reduce, world):
        self.model, self.loss, self.all_reduce, self.world = model, loss, all_reduce, world
        self.double = copy.deepcopy(model).double()
        self.moves = []

    def _gradient(self, x, y, draw):
        """With the weights as they are (draw 0), or each moved by up to ROUNDINGS, alike on all ranks."""
        chance = torch.Generator().manual_seed(1000 * len(self.moves) + draw)
        with torch.no_grad():
            for exact, p in zip(self.double.parameters(), self.model.parameters()):
                exact.copy_(p)
                if draw:
                    moves = 2 * torch.rand(p.shape, generator=chance, dtype=torch.float64) - 1
                    exact.mul_(1 + ROUNDINGS * FLOAT32_HALF_UNIT * moves)
        gradients = torch.autograd.grad(self.loss(self.double(x), y), list(self.double.parameters()))
        flat = torch.cat([g.flatten() for g in gradients]) / self.world
        self.all_reduce(flat)
        return flat

    def step(self, x, y):
        """After the backward pass of x and y, before the optimizer changes the weights."""
        x = x.double()
        exact = self._gradient(x, y, 0)
        others = [self._gradient(x, y, draw) for draw in range(1, DRAWS + 1)]
        others.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]).double())
        self.moves.append(max((g - exact).abs().max().item() for g in others) / exact.abs().max().item())
