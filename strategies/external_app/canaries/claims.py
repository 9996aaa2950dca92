"""The epsilon that an app's reply to training claims, and groups of claims that canaries can test together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Message

from strategies.external_app.claim import number_of
from strategies.external_app.claimed_privacy import DELTA, EPSILON, NAMES

ALIKE = 1.05
"""Ratio up to which two claims count as one, the larger."""
MOST_GROUPS = 4
GROWS = 1.01
"""Ratio of a node's claims in two rounds from which on an account over all rounds is suspected."""
NO_EPSILON = "its reply to training reports no epsilon, a finite number from 0 on; Opacus gives it by get_epsilon"
NO_DELTA = "its reply to training reports an epsilon without delta or target_delta, a number in (0, 1)"


class UnclaimedError(ValueError):
    """A reply without an epsilon that canaries can test."""


@dataclass(frozen=True)
class ReportedClaim:
    """What one node claims in one round.

    Attributes:
        epsilon: Finite, at least 0.
        delta: In (0, 1).
    """

    epsilon: float
    delta: float


def reported_claim(reply: Message) -> ReportedClaim:
    """The epsilon and delta in the metrics of a reply to training; ``UnclaimedError`` where one is missing."""
    found: dict[str, float | None] = {}
    for record in reply.content.metric_records.values():
        for key, value in record.items():
            name = NAMES.get(key.lower().replace("-", "_"), "")
            if name in (EPSILON, DELTA):
                found.setdefault(name, number_of(value, 1.0 if name == DELTA else math.inf))
    epsilon, delta = found.get(EPSILON), found.get(DELTA)
    if epsilon is None:
        raise UnclaimedError(NO_EPSILON)
    if not delta:
        raise UnclaimedError(NO_DELTA)
    return ReportedClaim(epsilon, delta)


def levels(claims: Sequence[ReportedClaim]) -> list[float]:
    """Claimed epsilons, ascending, such that canaries of all smaller or equal claims are tested against each.

    A claim of a smaller epsilon implies that of a larger one. So the largest level has all canaries, and a smaller one finds a
    fault of a node that claims less. Claims within ``ALIKE`` of a larger one have no level of their own.
    """
    found: list[float] = []
    for epsilon in sorted({one.epsilon for one in claims}, reverse=True):
        if not found or epsilon * ALIKE < found[-1]:
            found.append(epsilon)
    return sorted([*found[: MOST_GROUPS - 1], *found[MOST_GROUPS - 1 :][-1:]])


def grows(claims: Sequence[ReportedClaim]) -> bool:
    """Whether one node's claims, in the order of rounds, grow in each round."""
    pairs = list(itertools.pairwise(claims))
    return bool(pairs) and all(later.epsilon > GROWS * earlier.epsilon for earlier, later in pairs)
