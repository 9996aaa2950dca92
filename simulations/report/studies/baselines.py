"""Comparisons for scores: null baselines, the chance of identifying an image, and an attack's own guess from noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import PSNR, RECOGNITION, RETRIEVAL, SSIM
from attacks.metrics.metric import Metric
from attacks.metrics.names import Role
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import exact
from simulations.report.text import count
from simulations.run_folder.rows import Row

FAR_MORE = 10
"""Multiple of chance that the whole 95 % interval of retrieval must lie above: of 100 candidates above 10 %, where 5 of 16 images
suffice. A guess that is as near to every candidate reaches that by the binomial law once in 2.5 million runs (P = 4.0e-7 at 1 %).
This is not the rate of an attacker that knows the class: the mean of its other images was nearest to 11 of 96 true digits and to 3
of 96 true photographs, which reaches 5 of 16 in 2.9 % of runs at the first rate, in 0.01 % at the second. The rows of
``CLASS_MEAN`` hold its rate in a run. Of fewer images nearly all must be found (2 of 2, 3 of 4), one is never enough, and with ten
candidates or fewer nothing is."""

ON_NOISE = "from noise"
"""Name of an attack's own guess from noise among its null baselines."""

Audit = tuple[Any, ...]
"""(experiment, scenario, dataset, model, cut, seed, round, observation, clients of a sum): what score and null share."""

T = TypeVar("T")


def picked_out(row: Row) -> bool:
    """Whether far more true images were identified than chance explains: see ``FAR_MORE``."""
    found, chance = exact([row]), chance_of_retrieval(row)
    return row.status != "failed" and found is not None and chance is not None and found[1] > FAR_MORE * chance


def unjudged(row: Row | None) -> str:
    """Reason why too few candidates rule out identification, whatever the guesses are; "" where they suffice.

    Args:
        row: Of the retrieval that belongs to a score; None where there is none.
    """
    if row is None or row.value is None:
        return "nobody could look for the true images among others"
    chance = chance_of_retrieval(row)
    if chance is None:
        return "the chance of picking out a true image is not known"
    if FAR_MORE * chance < 1:
        return ""
    return f"only {count(round(1 / chance), 'candidate')}: too few to tell a hit from chance"


def chance_of_retrieval(row: Row) -> float | None:
    """Chance that a null guess is nearest to its image among the candidates; None where the row does not state it."""
    chance = row.card.chance
    return float(chance) if chance is not None and 0 < chance <= 1 else None


def audit_of(row: Row) -> Audit:
    """The audited round and observation of a row; sums over other numbers of clients are other observations."""
    return (*row.study, row.seed, row.round, row.card.observation, row.card.clients)


def _scored(row: Row) -> tuple[Audit, str, str]:
    return audit_of(row), row.metric, row.reference


def closest(row: Row, candidates: Sequence[T], row_of: Callable[[T], Row]) -> list[T]:
    """Candidates with the same number of images and local steps, or all when none has."""
    wanted = _size(row)
    return [one for one in candidates if _size(row_of(one)) == wanted] or list(candidates)


def _size(row: Row) -> tuple[Any, Any]:
    return row.card.images, row.card.local_steps


class Nulls:
    """Look up the null baselines (or the scales) of a row: same round and observation, and its defence's own where it has any."""

    def __init__(self, rows: Iterable[Row], *, scales: bool = False) -> None:
        roles = (Role.SCALE,) if scales else (Role.NULL_BASELINE, Role.NULL_CONTROL)
        able = (row for row in rows if row.role in roles and row.value is not None)
        self._of_defense = grouped(able, lambda row: (*_scored(row), row.defense))

    def of(self, row: Row) -> dict[str, float]:
        """Name -> mean of every null baseline with the row's metric and reference."""
        found = {r.attack: r.value for r in self.rows(row) if r.value is not None}
        # What an attack makes of noise is a baseline for itself alone, and noise is as long as the updates of its own pipeline.
        if row.role is Role.NULL_CONTROL:
            return found
        mine = [r for r in self._alike(row, row.defense) if (r.role, r.attack) == (Role.NULL_CONTROL, row.attack)]
        values = [r.value for r in closest(row, mine, lambda r: r) if r.value is not None]
        return found | ({ON_NOISE: values[-1]} if values else {})

    def rows(self, row: Row) -> list[Row]:
        """Null baselines of the row's images with its metric and reference, without guesses from noise."""
        # Clients hold the same images whatever the defence, so the undefended run's baselines serve for all.
        own, plain = ([r for r in self._alike(row, of) if r.role is not Role.NULL_CONTROL] for of in (row.defense, ""))
        return closest(row, own or plain, lambda r: r)

    def _alike(self, row: Row, defense: str) -> Sequence[Row]:
        return self._of_defense.get((*_scored(row), defense), ())

    def best(self, row: Row) -> tuple[str, float] | None:
        """The highest of ``of(row)``.

        Without a baseline, a membership score is compared with chance, 0.5, and recognition with one over the number of classes.
        """
        found = self.of(row)
        if not found and row.metric == RECOGNITION.name:
            chance = row.card.chance_of_recognition
            return None if chance is None else ("chance", chance)
        if not found and row.metric == MEMBERSHIP_AUC.name:
            return "chance", 0.5
        return max(found.items(), key=lambda item: item[1]) if found else None


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
    from scipy.stats import hypergeom

    members, others = row.card.members, row.card.others
    if row.metric != MEMBERSHIP_TPR.name or row.status == "failed" or row.value is None or not members or not others:
        return False
    count, allowed = round(row.value * members), math.floor(others / 100 + 1e-9)
    # As many members or more stand before non-member number allowed + 1: at most ``allowed`` others among the first records.
    return count > 0 and bool(hypergeom.cdf(allowed, members + others, others, count + allowed) <= 0.025)


class NoiseControl:
    """Null control of attacks with an image prior: a guess from noise must be no success, and real updates must give more."""

    def __init__(self, rows: Iterable[Row]) -> None:
        kept = list(rows)
        own = (row for row in kept if row.learns_prior and row.reference == "original")
        guesses = (row for row in own if row.is_attack or row.role is Role.NULL_CONTROL)
        self._found = grouped(
            guesses, lambda row: (audit_of(row), row.defense, row.attack, row.role is Role.NULL_CONTROL, row.metric)
        )
        self._nulls = Nulls(kept)

    def reason(self, row: Row) -> str:
        """Reason why the null control of the row's attack failed under its defence; "" where it holds or is not needed.

        It holds if the guess from noise (i) does not beat the mean image, by the interval of its PSNR, (ii) picks true images out
        no more often than ``picked_out`` asks for, and (iii) if the attack's own PSNR and SSIM lie above its guess from noise with
        their whole intervals.
        """
        if found := self.success(row):
            return found
        if not row.learns_prior:
            return ""
        for metric in (PSNR, SSIM):
            own, of_noise = self._one(row, metric), self._one(row, metric, of_noise=True)
            if own is None or of_noise is None or of_noise.value is None:
                continue
            if not leaks(own, (ON_NOISE, of_noise.value)):
                return f"its {metric.name.upper()} is not clearly above what it makes of noise"
        return ""

    def success(self, row: Row) -> str:
        """Reason why the guess from noise is a success by (i) or (ii), or is unknown; "" where it is none."""
        if not row.learns_prior:
            return ""
        blind = self._one(row, PSNR, of_noise=True)
        if blind is None or blind.value is None or blind.status == "failed":
            return "nobody scored what it makes of noise"
        null = self._nulls.best(blind)
        if leaks(blind, null):
            return f"on noise it scores above the {null[0] if null else ''} image"
        picked = self._one(row, RETRIEVAL, of_noise=True)
        return "on noise it picks true images out" if picked is not None and picked_out(picked) else ""

    def _one(self, row: Row, metric: Metric, *, of_noise: bool = False) -> Row | None:
        of_noise = of_noise or row.role is Role.NULL_CONTROL
        same = self._found.get((audit_of(row), row.defense, row.attack, of_noise, metric.name), [])
        return next(iter(closest(row, same, lambda one: one)), None)
