"""The rule: a claim is confirmed, refuted or open by the interval of what it compares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from entry import Cell, Claim, Entry, Quoted
from records import Records, score

from simulations.report.studies.score import Score, interval

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "open"
NOT_RUN = "cannot be run here"
EXACT = ("edge-parameters", "edge-macs", "edge-training-macs", "edge-peak-bytes")
"""Metrics that are counted, so that they have no interval."""


@dataclass(frozen=True)
class Judged:
    """One claim with what was measured.

    Attributes:
        claim: What was judged.
        verdict: One of the three words.
        value: The compared number; None where it is missing.
        low: Lower end of its 95 % interval.
        high: Upper end.
        n: Least number of units behind a cell, all seeds together.
        seeds: Seeds that have all cells.
        note: Why the claim is open although there is a number, or why there is none.
    """

    claim: Claim | Quoted
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    seeds: tuple[int, ...] = ()
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


def judge(claim: Claim, records: Records, first: str) -> Judged:
    """The verdict on one claim; ``first`` is the run of cells that name none."""
    runs = [records.get(cell.run or first, {}) for _, cell in claim.terms]
    seeds = sorted(set.intersection(*(set(run) for run in runs)))
    if not seeds:
        return Judged(claim, OPEN, note="not run yet")
    scores = {
        seed: [score(run[seed], cell) for run, (_, cell) in zip(runs, claim.terms, strict=True)] for seed in seeds
    }
    known = {seed: [one for one in of if one and one.mean is not None] for seed, of in scores.items()}
    used = tuple(seed for seed in seeds if len(known[seed]) == len(claim.terms))
    if not used:
        return Judged(claim, OPEN, note="the runs have no such number")
    factors = [factor for factor, _ in claim.terms]
    sums = [math.fsum(f * (one.mean or 0.0) for f, one in zip(factors, known[seed], strict=True)) for seed in used]
    value = math.fsum(sums) / len(sums)
    low, high = _ends(claim, sums, [known[seed] for seed in used])
    n = min(sum(known[seed][at].n for seed in used) for at in range(len(factors)))
    unusual = sorted({one.status for seed in used for one in known[seed] if one.status != "ok"})
    if unusual:
        return Judged(claim, OPEN, value, low, high, n, used, f"{' and '.join(unusual)}")
    note = "" if low is not None else "no interval"
    return Judged(claim, side_of(low, high, claim.side, claim.bound), value, low, high, n, used, note)


def _ends(claim: Claim, sums: Sequence[float], scores: Sequence[Sequence[Score]]) -> tuple[float | None, float | None]:
    """Student's t over seeds; of one seed, and of seeds that happen to agree exactly, what the cells' own intervals allow."""
    low, high = interval(sums)
    if low is not None and high is not None and low < high:
        return low, high
    hulls = [_hull(claim, one) for one in scores]
    lows, highs = [one for one, _ in hulls if one is not None], [one for _, one in hulls if one is not None]
    if len(lows) < len(hulls) or len(highs) < len(hulls):
        return None, None
    return math.fsum(lows) / len(lows), math.fsum(highs) / len(highs)


def _hull(claim: Claim, scores: Sequence[Score]) -> tuple[float | None, float | None]:
    """Lowest and highest sum that the cells' own intervals allow."""
    low = high = 0.0
    for (factor, cell), one in zip(claim.terms, scores, strict=True):
        ends = (one.mean, one.mean) if cell.metric in EXACT else (one.low, one.high)
        if ends[0] is None or ends[1] is None:
            return None, None
        products = sorted((factor * ends[0], factor * ends[1]))
        low, high = low + products[0], high + products[1]
    return low, high


def quote(claim: Quoted) -> Judged:
    """The verdict on numbers of a page, by the same rule."""
    note = "" if claim.low is not None else "no interval"
    verdict = side_of(claim.low, claim.high, claim.side, claim.bound)
    return Judged(claim, verdict, claim.value, claim.low, claim.high, note=note)


def judged(entry: Entry, records: Records) -> list[Judged]:
    """All claims of an entry. Numbers of a page stand in until runs decide, beside the claims that they do not cover."""
    own = [judge(claim, records, entry.runs[0].name) for claim in entry.claims]
    ran = any(one.seeds for one in own)
    if entry.covered and not ran:
        own = []
    return own + [quote(claim) for claim in entry.quoted if not (ran and claim.standin)]


def overall(verdicts: Sequence[str]) -> str:
    """Refuted if any claim is, confirmed if all are, else open."""
    if REFUTED in verdicts:
        return REFUTED
    return CONFIRMED if verdicts and all(one == CONFIRMED for one in verdicts) else OPEN


def verdict_on(entry: Entry, records: Records) -> str:
    """The word of an entry's line."""
    return NOT_RUN if entry.why else overall([one.verdict for one in judged(entry, records)])


def cells_of(entries: Sequence[Entry], run: str) -> list[Cell]:
    """All cells that claims read in a run."""
    found = [
        cell
        for entry in entries
        for claim in entry.claims
        for _, cell in claim.terms
        if (cell.run or entry.runs[0].name) == run
    ]
    return list(dict.fromkeys(found))
