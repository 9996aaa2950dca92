"""Guesses about the coins of canaries from their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.dp_audit.bounds import EpsilonBound, one_run_bound, strongest

SHARES = (0.01, 0.1, 0.5)
"""Shares of the canaries that are guessed: the few with the clearest scores, and more. Fixed before any score is seen."""


def right_guesses(scores: Tensor, coins: Tensor, guesses: int) -> int:
    """Number of right guesses, if the highest half of ``guesses`` scores are guessed 1 and as many of the lowest 0.

    An odd guess goes to the highest. Ties are broken by position, which must not depend on the coins.

    Args:
        scores: (M,), higher for a likelier coin of 1; infinite ones are fine.
        coins: (M,), bool.
        guesses: From 0 to M.

    Raises:
        ValueError: On other shapes, NaN, or a number of guesses outside its range.
    """
    if scores.ndim != 1 or scores.shape != coins.shape or coins.dtype != torch.bool:
        raise ValueError(
            f"scores {tuple(scores.shape)} and coins {tuple(coins.shape)} of {coins.dtype}; expected two vectors of one "
            "length, the coins of bool"
        )
    if scores.isnan().any():
        raise ValueError("scores hold NaN, which has no order")
    if not 0 <= guesses <= len(scores):
        raise ValueError(f"guesses is {guesses}; allowed: from 0 to the {len(scores)} canaries")
    order = scores.argsort(descending=True, stable=True)
    high = (guesses + 1) // 2
    low = guesses - high
    return int(coins[order[:high]].sum()) + int((~coins[order[len(order) - low :]]).sum())


def bound_from_scores(
    scores: Tensor,
    coins: Tensor,
    *,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
    method: Callable[..., EpsilonBound] = one_run_bound,
) -> EpsilonBound:
    """Bound epsilon by the guesses of ``right_guesses``: the strongest bound of those for several numbers of guesses.

    With S shares, each bound has the confidence 1 - (1 - confidence) / S (a union bound).

    Args:
        scores: (M,), as ``right_guesses``; M at least 1.
        coins: (M,), bool.
        delta: In [0, 1).
        confidence: Of the result, in (0, 1).
        shares: Shares of the canaries that are guessed, in (0, 1], one guess at least; chosen before the scores are seen.
        method: ``one_run_bound`` or ``attacks.dp_audit.gaussian_bounds.one_run_gaussian_bound``.

    Raises:
        ValueError: When a value is outside its range.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares is {shares!r}; allowed: one or more numbers in (0, 1]")
    total, each = len(scores), 1 - (1 - confidence) / len(shares)
    counts = [max(1, round(share * total)) for share in shares]
    bounds = [
        method(total, count, right_guesses(scores, coins, count), delta=delta, confidence=each) for count in counts
    ]
    return strongest(bounds, confidence)
