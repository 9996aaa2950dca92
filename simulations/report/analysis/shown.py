"""What an audit by canaries showed of a claimed epsilon: from the rows, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attacks.dp_audit.bounds import INDEPENDENT
from attacks.metrics.training import EPSILON_SHOWN
from defenses.neighbours import CLIENT_LEVEL, level_of
from simulations.report.studies.study import Study
from simulations.report.text import brief, capital, two
from simulations.run_folder.rows import Row
from strategies.federated.shown_epsilon import AUDIT, CONFIDENCE, ShownEpsilon

REFUTED = "the claimed epsilon is refuted"
"""How the warning about a refuted claim begins."""
NO_COST = "canaries were in this training: its accuracy is no measure of the defence's cost"
"""The caveat of a training with canaries."""
EXAMPLES, CLIENTS = "canaries", "canary clients"
"""Canaries of either kind."""
MOST_NAMED = 4
"""Views of the messages that a sentence names."""


def shown_epsilon(study: Study, defense: str) -> ShownEpsilon | None:
    """The audit of a defence; of several seeds the one nearest to a refutation, or furthest beyond it. None where none ran."""
    found = (ShownEpsilon.from_json(row.extra.get(AUDIT)) for row in _rows(study, defense))
    return ShownEpsilon.strongest([one for one in found if one is not None])


def canaries_in(study: Study, defense: str) -> str:
    """What canaries were in the training of a defence, ``EXAMPLES`` or ``CLIENTS``; "" where no audit ran, or not yet.

    A claim about clients is audited by clients whose whole updates are the auditor's, and which send nothing of their data.
    """
    if not _rows(study, defense):
        return ""
    shown = shown_epsilon(study, defense)
    level = shown.level if shown else level_of(neighbours_of(study, defense))
    return CLIENTS if level == CLIENT_LEVEL else EXAMPLES


def neighbours_of(study: Study, defense: str) -> str:
    """Between which data sets the epsilon of a defence holds, a name of ``defenses.neighbours``; "" where its rows do not say."""
    return next((row.neighbours for row in study.rows if row.defense == defense and row.neighbours), "")


def audit_warnings(study: Study, defense: str) -> list[str]:
    """That a claim is refuted, or that a bound of some seeds is above it, and why an audit has no result."""
    shown = shown_epsilon(study, defense)
    found = [f"the audit of epsilon failed: {row.message}" for row in _rows(study, defense) if row.status == "failed"]
    if shown is None or not shown.above:
        return found
    begins = f"{REFUTED}{_condition(shown)}" if shown.refuted else _uncorrected(shown)
    return [f"{begins}: claimed {two(shown.claimed)}, shown {_bounds(shown)}, by {_named(shown.refuted_by)}", *found]


def audit_text(shown: ShownEpsilon) -> str:
    """Three sentences: the claim; the bounds with their confidence; what these say of the claim."""
    of = ", ".join(filter(None, (shown.level, shown.neighbours)))
    of = f" ({of})" if of else ""
    finite = math.isfinite(shown.claimed)
    claim = f"epsilon claimed: {two(shown.claimed)} at delta {brief(shown.delta)}{of}."
    number = f"{shown.canaries} {'canary' if shown.canaries == 1 else 'canaries'}"
    confidence = f"{shown.confidence * 100:.4g} % confidence"
    if shown.seeds > 1:
        confidence += f" in one of {shown.seeds} seeds, {shown.corrected * 100:.4g} % if corrected for all"
    bounds = f"Shown: {_bounds(shown)} ({confidence}; {number}, {shown.part})."
    said = (claim if finite else "no finite epsilon is claimed.", bounds, _found(shown) if finite else "", shown.covers)
    return " ".join(filter(None, said))


def _found(shown: ShownEpsilon) -> str:
    """That a claim is refuted, or could not have been, or what is between claim and bounds."""
    if shown.refuted:
        every = f" by each of {shown.seeds} seeds" if shown.seeds > 1 and shown.seeds_above == shown.seeds else ""
        return f"The claim is refuted{every}{_condition(shown)}."
    if shown.uncorrected:
        return f"{capital(_uncorrected(shown))}."
    if not shown.could_refute:
        return f"The canaries could not have refuted the claim: they could show at most {two(shown.largest)}."
    further = f", {two(shown.gap_gaussian)} if noise is Gaussian" if shown.gaussian_adds else ""
    return f"Gap: {two(shown.gap)} without an assumption{further}."


def _bounds(shown: ShownEpsilon) -> str:
    """The bound without an assumption, and the other where it is larger."""
    more = " and scores are independent" if shown.assumes == INDEPENDENT else ""
    gaussian = f", at least {two(shown.gaussian)} if noise is Gaussian{more}" if shown.gaussian_adds else ""
    return f"at least {two(shown.plain)} without an assumption{gaussian}"


def _uncorrected(shown: ShownEpsilon) -> str:
    """That a bound is above the claim, which refutes nothing."""
    if shown.seeds == 1:
        return f"a bound is above the claim, with less than {CONFIDENCE * 100:.4g} % confidence"
    return f"in {shown.seeds_above} of {shown.seeds} seeds a bound is above the claim; not corrected for {shown.seeds} seeds"


def _named(parts: Sequence[str]) -> str:
    """The first views of several, and the number of the others."""
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _condition(shown: ShownEpsilon) -> str:
    """Under what a refutation holds; "" where the bound without an assumption is above the claim."""
    return "" if shown.refuted_plainly else " if noise is Gaussian"


def _rows(study: Study, defense: str) -> Sequence[Row]:
    return study.utility.get((defense, EPSILON_SHOWN.name, ""), ())
