"""Comparisons for scores: null baselines, and the rate at which members are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import RECOGNITION
from attacks.metrics.names import Role
from simulations.report.studies.rows import grouped
from simulations.run_folder.rows import Row

Audit = tuple[Any, ...]
"""(experiment, scenario, dataset, model, cut, seed, round, observation, clients of a sum): what score and null share."""

T = TypeVar("T")


def audit_of(row: Row) -> Audit:
    """The audited round and observation of a row; sums over other numbers of clients are other observations."""
    return (*row.study, row.seed, row.round, row.card.observation, row.card.clients)


def _scored(row: Row) -> tuple[Audit, str, str]:
    return audit_of(row), row.metric, row.reference


def closest(row: Row, candidates: Sequence[T], row_of: Callable[[T], Row]) -> list[T]:
    """Candidates with the same number of images and local steps, or all when none has."""
    wanted = _size(row)
    return [candidate for candidate in candidates if _size(row_of(candidate)) == wanted] or list(candidates)


def _size(row: Row) -> tuple[Any, Any]:
    return row.card.images, row.card.local_steps


class Nulls:
    """Look up the null baselines (or the scales) of a row: same round and observation, and its defence's own where it has any."""

    def __init__(self, rows: Iterable[Row], *, scales: bool = False) -> None:
        role = Role.SCALE if scales else Role.NULL_BASELINE
        self._by_seed = {
            seed: grouped(
                (row for row in of if row.role is role and row.value is not None),
                lambda row: (*_scored(row), row.defense),
            )
            for seed, of in grouped(rows, lambda row: row.seed).items()
        }

    def over(self, other: Nulls) -> Nulls:
        """These, and those of the other's seeds that have no row here."""
        both = Nulls(())
        both._by_seed = other._by_seed | self._by_seed
        return both

    def of(self, row: Row) -> dict[str, float]:
        """Name -> mean of every null baseline with the row's metric and reference."""
        # Clients hold the same images whatever the defence, so the undefended run's baselines serve for all.
        known, scored = self._by_seed.get(row.seed, {}), _scored(row)
        own, plain = (known.get((*scored, of), ()) for of in (row.defense, ""))
        return {r.attack: r.value for r in closest(row, own or plain, lambda r: r) if r.value is not None}

    def best(self, row: Row) -> tuple[str, float] | None:
        """The highest of ``of(row)``; without any, of membership and recognition the chance."""
        chance = row.card.chance_of_recognition if row.metric == RECOGNITION.name else None
        chance = 0.5 if row.metric == MEMBERSHIP_AUC.name else chance
        nulls = self.of(row) or ({} if chance is None else {"chance": chance})
        return max(nulls.items(), key=lambda item: item[1], default=None)


def leaks(row: Row, null: tuple[str, float] | None) -> bool:
    """Whether a score's whole interval lies above the null baseline.

    Without an interval (n = 1) the score itself decides: what was recovered is not to be hidden by a small sample.
    """
    if null is None or row.status == "failed" or row.value is None:
        return False
    return (row.value if row.ci_low is None else row.ci_low) > null[1]


def names_members(row: Row) -> bool:
    """Whether the true positive rate of membership at 1 % false positives exceeds chance, whatever the AUC is.

    The threshold lies at the k-th highest non-member, k = floor(N / 100) + 1, and were all records alike the count of members above
    it would be negative hypergeometric: so many or more of them in 2.5 % of runs at most count as members named. The row's own
    interval takes the threshold as given. It alone would be no test: with 446 members and 137 others its lower end lies above 1 %
    in 23 % of the runs without any leak.
    """
    from scipy.stats import hypergeom  # slow to import

    members, others = row.card.members, row.card.others
    if row.metric != MEMBERSHIP_TPR.name or row.status == "failed" or row.value is None or not members or not others:
        return False
    count, allowed = round(row.value * members), math.floor(others / 100 + 1e-9)
    # As many members or more stand before non-member number allowed + 1: at most ``allowed`` others among the first records.
    return count > 0 and bool(hypergeom.cdf(allowed, members + others, others, count + allowed) <= 0.025)
