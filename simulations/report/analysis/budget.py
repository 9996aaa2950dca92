"""A privacy budget: epsilon with its terms, and what an audit by canaries showed of it, from the rows and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attacks.dp_audit.bounds import INDEPENDENT
from attacks.metrics.training import EPSILON_BY, EPSILON_SHOWN
from defenses.neighbours import ADD_OR_REMOVE, BUDGET, CLIENT_LEVEL, MEANING, level_of
from defenses.training import accounting
from simulations.report.studies.study import Study
from simulations.report.text import brief, capital, plain, two
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
    audits = (ShownEpsilon.from_json(row.extra.get(AUDIT)) for row in _rows(study, defense))
    return ShownEpsilon.strongest([audit for audit in audits if audit is not None])


def canaries_in(study: Study, defense: str) -> str:
    """What canaries were in the training of a defence, ``EXAMPLES`` or ``CLIENTS``; "" where no audit ran, or not yet.

    A claim about clients is audited by clients whose whole updates are the auditor's, and which send nothing of their data.
    """
    if not _rows(study, defense):
        return ""
    audit = shown_epsilon(study, defense)
    level = audit.level if audit else level_of(neighbours_of(study, defense))
    return CLIENTS if level == CLIENT_LEVEL else EXAMPLES


def neighbours_of(study: Study, defense: str) -> str:
    """Between which data sets the epsilon of a defence holds, a name of ``defenses.neighbours``; "" where its rows do not say."""
    return next((row.neighbours for row in study.rows if row.defense == defense and row.neighbours), "")


def audit_warnings(study: Study, defense: str) -> list[str]:
    """That a claim is refuted, or that a bound of some seeds is above it, and why an audit has no result."""
    audit = shown_epsilon(study, defense)
    failed = [f"the audit of epsilon failed: {row.message}" for row in _rows(study, defense) if row.status == "failed"]
    if audit is None or not audit.above:
        return failed
    begins = f"{REFUTED}{_condition(audit)}" if audit.refuted else _uncorrected(audit)
    return [f"{begins}: claimed {two(audit.claimed)}, shown {_bounds(audit)}, by {_named(audit.refuted_by)}", *failed]


def audit_text(audit: ShownEpsilon) -> str:
    """Three sentences: the claim; the bounds with their confidence; what these say of the claim."""
    of = ", ".join(filter(None, (audit.level, audit.neighbours)))
    of = f" ({of})" if of else ""
    finite = math.isfinite(audit.claimed)
    claim = f"epsilon claimed: {two(audit.claimed)} at delta {brief(audit.delta)}{of}."
    number = f"{audit.canaries} {'canary' if audit.canaries == 1 else 'canaries'}"
    confidence = f"{audit.confidence * 100:.4g} % confidence"
    if audit.seeds > 1:
        confidence += f" in one of {audit.seeds} seeds, {audit.corrected * 100:.4g} % if corrected for all"
    bounds = f"Shown: {_bounds(audit)} ({confidence}; {number}, {audit.part})."
    said = (claim if finite else "no finite epsilon is claimed.", bounds, _found(audit) if finite else "", audit.covers)
    return " ".join(filter(None, said))


def _found(audit: ShownEpsilon) -> str:
    """That a claim is refuted, or could not have been, or what is between claim and bounds."""
    if audit.refuted:
        every = f" by each of {audit.seeds} seeds" if audit.seeds > 1 and audit.seeds_above == audit.seeds else ""
        return f"The claim is refuted{every}{_condition(audit)}."
    if audit.uncorrected:
        return f"{capital(_uncorrected(audit))}."
    if not audit.could_refute:
        return f"The canaries could not have refuted the claim: they could show at most {two(audit.largest)}."
    further = f", {two(audit.gap_gaussian)} if noise is Gaussian" if audit.gaussian_adds else ""
    return f"Gap: {two(audit.gap)} without an assumption{further}."


def _bounds(audit: ShownEpsilon) -> str:
    """The bound without an assumption, and the other where it is larger."""
    more = " and scores are independent" if audit.assumes == INDEPENDENT else ""
    gaussian = f", at least {two(audit.gaussian)} if noise is Gaussian{more}" if audit.gaussian_adds else ""
    return f"at least {two(audit.plain)} without an assumption{gaussian}"


def _uncorrected(audit: ShownEpsilon) -> str:
    """That a bound is above the claim, which refutes nothing."""
    if audit.seeds == 1:
        return f"a bound is above the claim, with less than {CONFIDENCE * 100:.4g} % confidence"
    return f"in {audit.seeds_above} of {audit.seeds} seeds a bound is above the claim; not corrected for {audit.seeds} seeds"


def _named(parts: Sequence[str]) -> str:
    """The first views of several, and the number of the others."""
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _condition(audit: ShownEpsilon) -> str:
    """Under what a refutation holds; "" where the bound without an assumption is above the claim."""
    return "" if audit.refuted_plainly else " if noise is Gaussian"


def _rows(study: Study, defense: str) -> Sequence[Row]:
    return study.utility.get((defense, EPSILON_SHOWN.name, ""), ())


SAME = 1e-6
"""Relative difference up to which an accountant's epsilon is the claimed one."""
TERMS = {
    "noise-multiplier": "noise multiplier {}", "clipping-norm": "clipping norm {}", "sample-rate": "sample rate {}",
    "steps": "{} steps", "delta": "delta {}",
}  # fmt: skip
"""What an epsilon follows from, in a reader's words."""


@dataclass(frozen=True)
class Budget:
    """A privacy budget with its terms, and what an audit showed of it.

    Attributes:
        spent: By training (in split learning evaluation too) so far, in edge-cloud inference by the queries at one cut; infinite
            where there is no guarantee, None where an app alone makes a claim.
        with_probes: With the audit's probe messages; never below ``spent``.
        all_cuts: Of all that a run sent of an image where it serves the same images at several cuts.
        neighbours: Between which data sets it holds (see ``defenses.neighbours``); "" where the rows do not say.
        terms: Name in ``TERMS`` -> what it follows from, the largest of all clients.
        by_accountant: Name of an accountant, or of other neighbours -> that epsilon of the same noise, where clients report it.
        shown: Lower bounds from canaries, beside the claim; None where no audit ran.
    """

    spent: float | None
    with_probes: float | None = None
    all_cuts: float | None = None
    neighbours: str = ""
    terms: Mapping[str, float] = field(default_factory=dict)
    by_accountant: Mapping[str, float] = field(default_factory=dict)
    shown: ShownEpsilon | None = None

    @classmethod
    def of(cls, study: Study, defense: str) -> Budget | None:
        """Read from rows; None without a bound and without an audited claim."""
        known = largest(study, defense, "", ("epsilon", "epsilon-with-probes", "epsilon-all-cuts"))
        spent, with_probes = known.get("epsilon"), known.get("epsilon-with-probes")
        audit = shown_epsilon(study, defense)
        if spent is None and audit is None:
            return None
        if with_probes is not None and spent is not None:
            # Probes cost on top: both together have spent no less than training alone.
            with_probes = max(with_probes, spent)
        named = audit.neighbours if audit and spent is None else neighbours_of(study, defense)
        terms = largest(study, defense, BUDGET, TERMS) | largest(study, defense, "", ("delta",))
        by = largest(study, defense, EPSILON_BY.name, accounting.MEANING)
        return cls(spent, with_probes, known.get("epsilon-all-cuts"), named, terms, by, audit)

    @property
    def level(self) -> str:
        """What it protects, "example-level" or "client-level"; "" without neighbours."""
        return level_of(self.neighbours)

    @property
    def text(self) -> str:
        """What it follows from, its neighbours, and what other accountants say, in words; "" where nothing was spent."""
        if self.spent is None:
            return ""
        said = ", ".join(words.format(plain(self.terms[name])) for name, words in TERMS.items() if name in self.terms)
        others = by_accountant_text(self.by_accountant, self.spent)
        parts = [MEANING.get(self.neighbours, self.neighbours), said, f"by accountant {others}" if others else ""]
        return f"budget: {'; '.join(filter(None, parts))}" if any(parts) else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines for tables, behind the number: what it protects, other budgets, and the bounds that were shown."""
        budgets = {f"if {ADD_OR_REMOVE}": self.by_accountant.get(ADD_OR_REMOVE), "all cuts": self.all_cuts}
        budgets |= {"if the audit's probes count": self.with_probes} if self.all_cuts is None else {}
        lines = [
            self.level,
            self.neighbours,
            *(f"{name}: {two(value)}" for name, value in budgets.items() if value is not None),
        ]
        if self.shown:
            lines.append(f"shown \N{GREATER-THAN OR EQUAL TO} {two(self.shown.plain)}")
            if self.shown.gaussian_adds:
                lines.append(f"\N{GREATER-THAN OR EQUAL TO} {two(self.shown.gaussian)} if noise is Gaussian")
        return tuple(filter(None, lines))

    @property
    def audit(self) -> str:
        """Claim, bounds with their confidence, and what these say of the claim; "" without an audit."""
        return audit_text(self.shown) if self.shown else ""

    def to_json(self) -> dict[str, Any]:
        """For programs: the bounds hold together with "confidence", of several seeds by a union bound."""
        audit = self.shown
        return {
            "spent": self.spent, "with_probes": self.with_probes, "all_cuts": self.all_cuts,
            "level": self.level, "neighbours": self.neighbours, "terms": self.terms,
            "by_accountant": self.by_accountant, "text": self.text,
            "shown": audit.plain if audit else None, "shown_gaussian": audit.gaussian if audit else None,
            "gap": audit.gap if audit else None, "gap_gaussian": audit.gap_gaussian if audit else None,
            "confidence": audit.corrected if audit else None, "audit": self.audit,
        }  # fmt: skip


def largest(study: Study, defense: str, prefix: str, names: Iterable[str]) -> dict[str, float]:
    """Name behind a prefix -> the largest such number of all rounds, for those that clients report: a budget only grows."""
    series = {name: study.series(defense, f"{prefix}{name}").values() for name in names}
    numbers = {name: [score.mean for score in of if score.mean is not None] for name, of in series.items()}
    return {name: max(of) for name, of in numbers.items() if of}


def by_accountant_text(epsilons: Mapping[str, float], claimed: float | None) -> str:
    """Each accountant's epsilon and what it is; "" without any. That of the claim is named."""
    of = next((name for name, value in epsilons.items() if claimed and math.isclose(value, claimed, rel_tol=SAME)), "")
    return ", ".join(
        f"{name.upper() if len(name) == 3 else name} {two(value)} ({'claimed; ' if name == of else ''}{accounting.MEANING[name]})"
        for name, value in epsilons.items()
    )
