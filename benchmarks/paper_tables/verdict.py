"""The rule: a claim is confirmed, refuted or open by the interval of what it compares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalogue import Cell, Claim, Table, possible
from records import LATE, Records, chosen

from attacks.metrics.metric import OverSeeds
from attacks.metrics.registry import metric_of
from attacks.metrics.training import TEST_ACCURACY
from simulations.report.studies.intervals import interval, newcombe
from simulations.report.studies.score import Score, merge, same_images
from simulations.run_folder.rows import Row

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "open"
NOT_VALIDATED = "not-validated"
NOT_YET = "not run yet"
"""Note on a claim whose runs have no small file."""
LEAST_SEEDS = 3
"""Fewer seeds decide nothing of what has seeds."""
STILL = 0.01
"""An accuracy has converged that changes by no more than this over the last quarter of the rounds, in the mean over seeds."""
Ends = tuple[float | None, float | None]
"""Lower and upper end of an interval; None where it has none."""


@dataclass(frozen=True)
class Judged:
    """One claim with what was measured, in shown units.

    Attributes:
        claim: What was judged.
        verdict: One of the three words.
        value: The compared number; None where it is missing.
        low: Lower end of its 95 % interval.
        high: Upper end.
        n: Images or other units behind the number, in words: of a run the least number behind a cell, all seeds together.
        seeds: Seeds behind it; "-" where it has none.
        note: Why the claim is open although there is a number, or why there is none.
    """

    claim: Claim
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: str = ""
    seeds: tuple[int, ...] | str = ()
    note: str = ""


def side_of(low: float | None, high: float | None, side: str, bound: float) -> str:
    """Confirmed where the interval lies wholly on the claimed side of the bound, refuted where wholly on the other, else open."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return OPEN
    above, below = low > bound, high < bound
    if side not in ("above", "below"):
        raise ValueError(f"side is {side!r}; expected above or below")
    claimed, other = (above, below) if side == "above" else (below, above)
    return CONFIRMED if claimed else REFUTED if other else OPEN


def judge(claim: Claim, records: Records) -> Judged:
    """The verdict on one claim by its runs."""
    cells = [cell for _, cell in claim.terms]
    runs = [records.get(cell.run, {}) for cell in cells]
    seeds = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    if not seeds:
        return Judged(claim, OPEN, note=NOT_YET)
    rows = {seed: [chosen(run[seed], cell) for run, cell in zip(runs, cells, strict=True)] for seed in seeds}
    known = {seed: scores for seed in seeds if (scores := _scores(rows[seed]))}
    used = tuple(known)
    if not used:
        return Judged(claim, OPEN, note="the runs have no such number")
    found = _compared(claim, [rows[seed] for seed in used], list(known.values()))
    value, low, high = (None if one is None else claim.scale * one for one in found)
    units = min(sum(of[at].n for of in known.values()) for at in range(len(cells)))
    unusual = {one.status for of in known.values() for one in of} - {"ok"}
    notes = sorted(unusual - {NOT_VALIDATED} if claim.control else unusual) + ([claim.note] if claim.note else [])
    if dropped := [seed for seed in seeds if seed not in known]:
        # A failed attack is a result: to leave its seed out of the mean would favour those that worked.
        notes.append(f"no number in seed{'s' if len(dropped) > 1 else ''} {', '.join(map(str, dropped))}")
    converged = all(_converged(cell, [run[seed] for seed in used]) for cell, run in zip(cells, runs, strict=True))
    return _decided(claim, (value, low, high), f"{units:,}", used, notes, converged)


def _decided(
    claim: Claim, found: tuple[float | None, float | None, float | None], n: str, seeds: tuple[int, ...] | str,
    notes: Sequence[str], converged: bool,
) -> Judged:  # fmt: skip
    """The verdict on a compared number with its ends, which ``notes``, too few seeds or an early end leave open."""
    value, (low, high) = found[0], within(found[1], found[2], possible(claim))
    by_interval = side_of(low, high, claim.side, claim.bound)
    weak = [] if isinstance(seeds, str) or len(seeds) >= LEAST_SEEDS else [("one seed", "two seeds")[len(seeds) - 1]]
    weak += [] if converged else ["convergence not shown"]
    if by_interval != OPEN and weak and not notes:
        notes = [f"{by_interval}, but {' and '.join(weak)}"]
    note = " and ".join(notes) or ("" if low is not None else "no interval")
    return Judged(claim, OPEN if notes else by_interval, value, low, high, n, seeds, note)


def _converged(cell: Cell, seeds: Sequence[Sequence[Row]]) -> bool:
    """Whether an accuracy at the end of training stood still; other numbers need not."""
    if cell.metric != TEST_ACCURACY.name or cell.at != "last":
        return True
    pairs = [(chosen(rows, cell), chosen(rows, replace(cell, at=LATE))) for rows in seeds]
    if not all(late for _, late in pairs):
        return False
    changes = [(merge(last).mean or 0.0) - (merge(late).mean or 0.0) for last, late in pairs]
    return abs(math.fsum(changes) / len(changes)) <= STILL


def _scores(rows: Sequence[Sequence[Row]]) -> list[Score]:
    """The scores of all cells in one seed; none where a cell has no number."""
    scores = [merge(found) for found in rows if found]
    return scores if len(scores) == len(rows) and all(one.mean is not None for one in scores) else []


def _compared(
    claim: Claim, rows: Sequence[Sequence[Sequence[Row]]], scores: Sequence[Sequence[Score]]
) -> tuple[float, float | None, float | None]:
    """The sum over all seeds with its interval.

    Of one seed, and of seeds that happen to agree exactly, it is what the cells' own intervals allow. Of several seeds it is that
    of the score of a lone cell, and Student's t of sums. Where seeds have a number on the same images, their agreement says
    nothing of other images: the interval is then never narrower than what the cells' own allow on average.
    """
    factors = [factor for factor, _ in claim.terms]
    sums = [math.fsum(f * (one.mean or 0.0) for f, one in zip(factors, of, strict=True)) for of in scores]
    value = math.fsum(sums) / len(sums)
    low, high = interval(sums)
    if len(sums) > 1 and len(factors) == 1:
        whole = merge([row for of in rows for row in of[0]])
        value = factors[0] * (whole.mean or 0.0)
        low, high = _scaled(factors[0], whole.low, whole.high)
    if low is None or high is None or low == high:
        return value, *_average([_hull(claim, of) for of in scores])
    shared = [any(_shared(row) for of in rows for row in of[at]) for at in range(len(factors))]
    least, most = _average([_hull(claim, of, shared) for of in scores])
    return value, low if least is None else min(low, least), high if most is None else max(high, most)


def _shared(row: Row) -> bool:
    return same_images(row) or metric_of(row.metric).over_seeds is OverSeeds.AREA


def _scaled(factor: float, low: float | None, high: float | None) -> Ends:
    if low is None or high is None:
        return None, None
    return min(factor * low, factor * high), max(factor * low, factor * high)


def _average(hulls: Sequence[Ends]) -> Ends:
    lows, highs = [one for one, _ in hulls if one is not None], [one for _, one in hulls if one is not None]
    if len(lows) < len(hulls) or len(highs) < len(hulls):
        return None, None
    return math.fsum(lows) / len(lows), math.fsum(highs) / len(highs)


def _hull(claim: Claim, scores: Sequence[Score], shared: Sequence[bool] | None = None) -> Ends:
    """Lowest and highest sum that the cells' own intervals allow; with ``shared`` cells that are not stand at their means.

    A difference of two accuracies has the interval of ``newcombe``, which is narrower.
    """
    if (change := _change(claim, scores)) is not None:
        return change
    low = high = 0.0
    for at, ((factor, _), one) in enumerate(zip(claim.terms, scores, strict=True)):
        fixed = shared is not None and not shared[at]
        least, most = _scaled(factor, *((one.mean, one.mean) if fixed else (one.low, one.high)))
        if least is None or most is None:
            return None, None
        low, high = low + least, high + most
    return low, high


def _change(claim: Claim, scores: Sequence[Score]) -> tuple[float, float] | None:
    """Interval of an accuracy less another one, each a share of test images; None for other sums."""
    factors = [factor for factor, _ in claim.terms]
    counted = [(one.mean, one.n) for one in scores if one.mean is not None and 0 <= one.mean <= 1 <= one.n]
    if factors != [1.0, -1.0] or len(counted) < 2 or any(cell.metric != TEST_ACCURACY.name for _, cell in claim.terms):
        return None
    return newcombe(*counted)


def measured_earlier(claim: Claim) -> Judged:
    """The verdict on what an earlier page of results has, by the same rule.

    One of these stands in ``claim.earlier``, in shown units: ``interval``, the compared number with both ends; ``cells``, the two
    numbers whose difference it is, each with its ends, of which the widest difference is taken; ``by_seed``, the compared number
    of each seed from 0 on, or both of its accuracies; ``shares``, two accuracies. Accuracies are on the same ``tests`` images in
    all seeds, so that no interval is narrower than that of one seed's images (Newcombe 1998, method 10). ``value`` stands where
    the page rounds another way. ``n`` is in words.
    """
    found: Mapping[str, Any] = claim.earlier
    value, low, high = found.get("interval", (None, None, None))
    if "cells" in found:
        (left, least, most), (right, lowest, highest) = found["cells"]
        value, low, high = left - right, least - highest, most - lowest
    each, shares = found.get("by_seed", ()), found.get("shares")
    if each and isinstance(each[0], list):
        shares = [math.fsum(of) / len(each) for of in zip(*each, strict=True)]
        each = [left - right for left, right in each]
    if each:
        value, (low, high) = math.fsum(each) / len(each), interval(each)
    if shares is not None:
        value = shares[0] - shares[1] if value is None else value
        least, most = newcombe(*((share / 100, found["tests"]) for share in shares))
        low, high = (100 * least, 100 * most) if low is None else (min(low, 100 * least), max(high, 100 * most))
    value = found.get("value", value)
    reasons = [reason for reason in (claim.note or found.get("note", ""),) if reason]
    n = found.get("n") or f"{found['tests']:,}"
    seeds = range(len(each)) if each else found.get("seeds", (0,))
    accuracy = any(cell.metric == TEST_ACCURACY.name for _, cell in claim.terms) or (
        not claim.terms and claim.unit == "points"
    )
    ends = (value, low, high)
    return _decided(claim, ends, n, seeds if isinstance(seeds, str) else tuple(seeds), reasons, not accuracy)


def within(low: float | None, high: float | None, ends: tuple[float, float]) -> Ends:
    """An interval cut to the values that the quantity can have, the smallest and the largest."""
    return None if low is None else max(low, ends[0]), None if high is None else min(high, ends[1])


def judged(table: Table, records: Records) -> list[Judged]:
    """All claims of a table. An earlier number decides a claim until as many seeds of a run have measured it."""
    found = []
    for claim in table.claims:
        own, earlier = judge(claim, records), measured_earlier(claim) if claim.earlier else None
        found.append(own if earlier is None or len(own.seeds) >= max(1, len(earlier.seeds)) else earlier)
    return found


def counting(found: Sequence[Judged]) -> list[Judged]:
    """The paper's claims about its own method: no variants, none of ours, and no controls unless there is nothing else."""
    own = _of_the_paper(found)
    return [one for one in own if not one.claim.control] or own


def overall(found: Sequence[Judged]) -> str:
    """Refuted if any claim that counts is, confirmed if all are and the controls as well, else open."""
    if any(one.verdict == REFUTED for one in counting(found)):
        return REFUTED
    own = _of_the_paper(found)
    return CONFIRMED if own and all(one.verdict == CONFIRMED for one in own) else OPEN


def _of_the_paper(found: Sequence[Judged]) -> list[Judged]:
    return [one for one in found if not (one.claim.variant or one.claim.ours)]


def favoured(found: Sequence[Judged]) -> str:
    """The defences that all refuted claims of a table favour; "" where one of them speaks against the paper's defence."""
    refuted = [one.claim.favours for one in counting(found) if one.verdict == REFUTED]
    return " and ".join(dict.fromkeys(refuted)) if all(refuted) else ""
