"""What an audit by canaries showed of a claimed epsilon: from the rows, and in words."""

from __future__ import annotations

import math

from attacks.dp_audit.gaussian_bounds import INDEPENDENT
from attacks.dp_audit.verdict import SMALLEST
from attacks.metrics.training import EPSILON_SHOWN
from simulations.report.studies.study import Study
from simulations.report.text import brief, two
from simulations.run_folder.rows import Row
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

REFUTED = "the claimed epsilon is refuted"
"""How the warning about a refuted claim begins."""
MOST_NAMED = 4
"""Views of the messages that a sentence names."""


def shown_epsilon(study: Study, defense: str) -> ShownEpsilon | None:
    """The audit of a defence; of several seeds the one nearest to a refutation. None where none ran."""
    found = (ShownEpsilon.from_json(row.extra.get(AUDIT)) for row in _rows(study, defense))
    return ShownEpsilon.strongest([one for one in found if one is not None])


def audit_warnings(study: Study, defense: str) -> list[str]:
    """That a claim is refuted, and why an audit has no result."""
    shown = shown_epsilon(study, defense)
    found = [f"the audit of epsilon failed: {row.message}" for row in _rows(study, defense) if row.status == "failed"]
    if shown is None or not shown.refuted:
        return found
    more = len(shown.refuted_by) - MOST_NAMED
    by = ", ".join(shown.refuted_by[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return [f"{REFUTED}{_condition(shown)}: claimed {two(shown.claimed)}, shown {_bounds(shown)}, by {by}", *found]


def audit_text(shown: ShownEpsilon) -> str:
    """Claim, bounds, gap and power of an audit, in sentences."""
    if math.isinf(shown.claimed):
        said = ["no finite epsilon is claimed."]
    else:
        said = [f"epsilon claimed: {two(shown.claimed)} at delta {brief(shown.delta)}."]
    number = f"{shown.canaries} {'canary' if shown.canaries == 1 else 'canaries'}"
    said.append(f"Shown: {_bounds(shown)} ({shown.confidence * 100:.4g} % confidence; {number}, {shown.part}).")
    if shown.refuted:
        said.append(f"The claim is refuted{_condition(shown)}.")
    elif math.isfinite(shown.claimed):
        further = f", {two(shown.gap_gaussian)} if noise is Gaussian" if shown.gaussian_adds else ""
        said.append(f"Gap: {two(shown.gap)} without an assumption{further}.")
    if shown.powerless:
        said.append(
            f"The canaries could not have shown more than {two(shown.largest)}: a small bound is no evidence of privacy."
        )
    said.append("Training included the canaries, which costs accuracy.")
    return " ".join(said)


def _bounds(shown: ShownEpsilon) -> str:
    """The bound without an assumption, and the other where it is larger."""
    text = f"at least {two(shown.plain)} without an assumption"
    if not shown.gaussian_adds:
        return text
    more = " and scores are independent" if shown.assumes == INDEPENDENT else ""
    return f"{text}, at least {two(shown.gaussian)} if noise is Gaussian{more}"


def _condition(shown: ShownEpsilon) -> str:
    """Under what a refutation holds; "" where the bound without an assumption is above the claim."""
    return "" if shown.plain > shown.claimed + SMALLEST else " if noise is Gaussian"


def _rows(study: Study, defense: str) -> list[Row]:
    return study.utility.get((defense, EPSILON_SHOWN.name, ""), [])
