"""One judged claim in words: the compared number, its interval, what it is of."""

from __future__ import annotations

import math

from entry import Claim, Entry, Quoted
from verdict import REFUTED, Judged


def compared(one: Judged) -> str:
    """The compared number with its unit; "-" where there is none."""
    unit = f" {one.claim.unit}" if one.claim.unit else ""
    return "-" if one.value is None else f"{plain(one.value * _scale(one))}{unit}"


def single(one: Judged) -> str:
    """The numbers of single seeds in words; "" where the page has none or the claim is one of a run."""
    each = one.claim.each if isinstance(one.claim, Quoted) else ()
    return f"by seed: {', '.join(map(plain, each))}" if each else ""


def word(one: Judged) -> str:
    """The verdict, why it is open, whom a refutation favours, and whether the claim counts."""
    claim = one.claim
    remarks = [
        one.note,
        f"in favour of {claim.favours}" if one.verdict == REFUTED and claim.favours else "",
        "a control" if claim.control else "",
        "beside the paper's method" if claim.variant else "",
        claim.ours,
    ]
    found = "; ".join(filter(None, remarks))
    return one.verdict + (f" ({found})" if found else "")


def ends(one: Judged) -> str:
    """The ends of the interval; "" where there is none."""
    if one.low is None or one.high is None:
        return ""
    return f"{plain(one.low * _scale(one))} to {plain(one.high * _scale(one))}"


def units_of(one: Judged, entry: Entry) -> str:
    """Images or other units behind the number."""
    return one.claim.n or entry.page_n if isinstance(one.claim, Quoted) else f"{one.n:,}"


def seeds_of(one: Judged, entry: Entry) -> str:
    """Seeds behind the number, as the page has them."""
    claim = one.claim
    return claim.seeds or entry.page_seeds if isinstance(claim, Quoted) else ", ".join(map(str, one.seeds))


def by_seeds(seeds: str) -> str:
    """The same after its noun: "seed 0", "seeds 0, 1", "seeds: none"."""
    return f"seed {seeds}" if seeds.isdigit() else f"seeds {seeds}" if seeds[:1].isdigit() else f"seeds: {seeds}"


def _scale(one: Judged) -> float:
    return one.claim.scale if isinstance(one.claim, Claim) else 1.0


def plain(value: float) -> str:
    """Three digits or so; no negative zero."""
    value += 0.0
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 1000
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 0.1
        else f"{value:.4f}".rstrip("0").rstrip(".")
    )
