"""The verdict of an audit: a claimed epsilon beside the lower bounds that several views of a mechanism give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.dp_audit.bounds import EpsilonBound, guesses_bound, one_run_bound, one_run_gaussian_bound, strongest

USUAL_SHARES = (0.01, 0.1, 0.5)
"""Shares of the canaries that are guessed: the few with the clearest scores, and more. Fixed before any score is seen."""


ALL = "all parameters"
"""The part that pools the canaries of all tensors."""
SHARES = (0.02, 0.2, 1.0)
"""Shares of the coins that are guessed; of fewer than ``FEW`` coins all are, because a bound needs guesses."""
FEW = 150
SMALLEST = 1e-9
"""Least claimed epsilon: what is refuted beyond this counts, so that a rounding error is no alarm."""


def right_guesses(scores: Tensor, coins: Tensor, guesses: int) -> int:
    """Number of right guesses, if the highest half of ``guesses`` scores are guessed 1 and as many of the lowest 0.

    An odd guess goes to the highest. Ties are broken by position, which must not depend on the coins.

    Scores (M,) are higher for a likelier coin of 1, infinite ones are fine; coins (M,) are bool. ``ValueError`` on other shapes,
    NaN, or a number of guesses outside 0 to M.
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
    shares: Sequence[float] = USUAL_SHARES,
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
        method: ``one_run_bound`` or ``one_run_gaussian_bound``.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares is {shares!r}; allowed: one or more numbers in (0, 1]")
    total, each = len(scores), 1 - (1 - confidence) / len(shares)
    counts = [max(1, round(share * total)) for share in shares]
    bounds = [
        method(total, count, right_guesses(scores, coins, count), delta=delta, confidence=each) for count in counts
    ]
    return strongest(bounds, confidence)


@dataclass(frozen=True)
class CanaryPart:
    """Scores and coins of one view of the mechanism, such as the weights of one tensor.

    Attributes:
        scores: (M,), higher for a likelier coin of 1; NaN is not allowed.
        coins: (M,), bool; independent and fair.
        centred: 0 lies between the scores of both coins, and was fixed before the scores were seen.
        directed: A higher score speaks for a coin of 1. Else it may speak for either, and both directions are tried.
        weight: Share of the error that the bounds of this part may have, relative to other parts; above 0.
    """

    scores: Tensor
    coins: Tensor
    centred: bool = False
    directed: bool = True
    weight: float = 1.0

    def bounds(self, delta: float, error: float) -> tuple[EpsilonBound, EpsilonBound]:
        """The bound without an assumption and the one of Gaussian noise, each wrong with a probability of at most ``error``."""
        if self.directed:
            return self._bounds(self.scores, delta, error)
        ways = [self._bounds(scores, delta, error / 2) for scores in (self.scores, -self.scores)]
        plain, gaussian = (strongest([way[at] for way in ways], 1 - error) for at in (0, 1))
        return plain, gaussian

    def _bounds(self, scores: Tensor, delta: float, error: float) -> tuple[EpsilonBound, EpsilonBound]:
        shares = SHARES if len(scores) >= FEW else (1.0,)
        plain, ranked = (
            bound_from_scores(scores, self.coins, delta=delta, confidence=1 - share, shares=shares, method=method)
            for method, share in (
                (one_run_bound, error),
                (one_run_gaussian_bound, error / 2 if self.centred else error),
            )
        )
        if not self.centred:
            return plain, ranked
        right = int(((scores > 0) == self.coins).sum())
        tested = guesses_bound(len(scores), right, delta=delta, confidence=1 - error / 2)
        return plain, strongest([ranked, tested], 1 - error)


@dataclass(frozen=True)
class Audit:
    """What an audit has shown about an epsilon.

    Attributes:
        claimed: The epsilon of the defence's own account of the audited training.
        delta: Of all epsilons.
        shown: The strongest bound without an assumption (Theorem 5.2 of one-run auditing).
        shown_gaussian: The strongest bound of those that assume Gaussian noise; its ``assumption`` says what else.
        by_part: Part of what was sent -> its two bounds in this order. A part is a tensor's name, ``ALL``, or another view.
    """

    claimed: float
    delta: float
    shown: EpsilonBound
    shown_gaussian: EpsilonBound
    by_part: Mapping[str, tuple[EpsilonBound, EpsilonBound]]

    @property
    def refuted(self) -> bool:
        """Whether a bound exceeds the claim. On full batches a correct DP-SGD has this in at most 1 - confidence of audits."""
        return max(self.shown.epsilon, self.shown_gaussian.epsilon) > self.claimed + SMALLEST

    @property
    def refuted_by(self) -> list[str]:
        """Parts with a bound above the claim."""
        claimed = self.claimed + SMALLEST
        return [part for part, bounds in self.by_part.items() if max(b.epsilon for b in bounds) > claimed]

    @property
    def strongest(self) -> tuple[str, EpsilonBound]:
        """The part with the largest bound of all, and this bound."""
        pairs = ((part, bound) for part, bounds in self.by_part.items() for bound in bounds)
        return max(pairs, key=lambda pair: pair[1].epsilon)


def audited(parts: Mapping[str, CanaryPart], claimed: float, delta: float, confidence: float) -> Audit:
    """Compare a claim with the bounds of all parts, which hold together with ``confidence``, in (0, 1).

    Its error is halved between the bound without an assumption and that of Gaussian noise, and divided among the parts by weight.
    """
    error = (1 - confidence) / (2 * sum(part.weight for part in parts.values()))
    bounds = {name: part.bounds(delta, error * part.weight) for name, part in parts.items()}
    plain, gaussian = (strongest([pair[at] for pair in bounds.values()], (1 + confidence) / 2) for at in (0, 1))
    return Audit(claimed, delta, plain, gaussian, bounds)
