"""Which token of one transmission is which of another, where the same rows were sent several times in orders of their own."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
"""Of matching all transmissions to their mean, at most; it seldom needs more than four."""


def closest(wanted: Tensor, tokens: Tensor) -> Tensor:
    """Tokens (B, N, D) in the order that fits wanted (B, N, D) best: one assignment a row of the smallest squared distance."""
    from scipy.optimize import linear_sum_assignment

    costs = torch.cdist(wanted, tokens).square().cpu().double().numpy()
    slots = torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs]).to(tokens.device)
    return tokens.gather(1, slots.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


def matched_mean(sent: Tensor) -> Tensor:
    """The mean of transmissions (T, B, N, D), each token with the one that fits it in every other: (B, N, D), in any order.

    As k-means, with one token of each transmission in every cluster: it starts at the first transmission, and each round matches
    all to the mean of the round before.
    """
    mean = sent[0]
    for _ in range(ROUNDS):
        better = torch.stack([closest(mean, one) for one in sent]).mean(0)
        if torch.equal(better, mean):
            break
        mean = better
    return mean
