"""The report's section on claimed epsilons that canaries tested: bounds, gap, power, and what each view of the messages shows."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from attacks.dp_audit.bounds import LITTLE
from attacks.dp_audit.verdict import SMALLEST
from attacks.metrics.training import EPSILON_SHOWN, EPSILON_SHOWN_GAUSSIAN
from simulations.report.analysis.finding import Finding
from simulations.report.columns import Column, Shown, Table, number
from simulations.report.section import Content, Section
from simulations.report.studies.study import Study
from simulations.report.text import count, plain, two
from strategies.federated.shown_epsilon import CONFIDENCE, ShownEpsilon

NO_REFUTATION = "could not have refuted the claim"
NOTE = """<i>ε shown</i> assumes nothing about the mechanism. <i>If noise is Gaussian</i> assumes that the mechanism is as private
as a Gaussian one (μ-GDP), and for some views that the scores of canaries are independent. <i>Gap</i> is the claim less the bound
above it. All bounds of a defence and seed hold together with the stated confidence. <i>At most</i> is what the bound before it
could have been if all guesses of these canaries had been right. A bound that could not have exceeded {} is no evidence of
privacy, and a view that could not have exceeded the claim could not have refuted it."""
LEVELS = """An example-level ε is about one example, and a client-level ε about all examples of a client: the two cannot be
compared, whichever is smaller."""
SEEDS = """Of several seeds, the row has the one whose bound is nearest to its claim or furthest above it. Such a claim is refuted
only if the bounds of all seeds are above it, or if the confidence stays at {} % after a union bound over the seeds."""


Audited = tuple[str, ShownEpsilon, Any]
"""A row: a defence, its audit, which names what its epsilon protects, and that audit again or one view of it."""


def joint(audits: Sequence[ShownEpsilon]) -> float:
    """The confidence with which all bounds of all audits and seeds hold together, by a union bound; in [0, 1)."""
    return max(0.0, 1 - sum(audit.seeds * (1 - audit.confidence) for audit in audits))


def limit(largest: float, claimed: float) -> str:
    """What a bound cannot say that could be ``largest`` at most, beside a claim; "" for one with power."""
    powerless = "no power" if largest < LITTLE else ""
    return ", ".join(filter(None, [powerless, "" if largest > claimed + SMALLEST else NO_REFUTATION]))


def _bound(name: str) -> tuple[Column, Column]:
    """The columns of a lower bound and of its largest value, of (defence, audit, audit or view)."""

    def bound(row: Audited) -> Shown:
        value, gap = getattr(row[2], name), row[1].claimed - getattr(row[2], name)
        return Shown(f"≥ {two(value)}", ("above the claim" if gap < 0 else f"gap {two(gap)}",))

    def largest(row: Audited) -> Shown:
        value = getattr(row[2], f"largest_{name}")
        return Shown(two(value), (limit(value, row[1].claimed),))

    return number({"plain": "ε shown", "gaussian": "if noise is Gaussian"}[name], bound), number("at most", largest)


def _claimed(row: Audited) -> Shown:
    terms = (row[1].level, row[1].neighbours, f"δ = {plain(row[1].delta)}")
    return Shown(two(row[1].claimed), (", ".join(filter(None, terms)),))


def _strongest(row: Audited) -> Shown:
    audit = row[1]
    confidence = (
        f"{_percent(audit.confidence)} confidence{f' in one of {audit.seeds} seeds' if audit.seeds > 1 else ''}"
    )
    above = f"{audit.seeds_above} of {audit.seeds} seeds above the claim, not corrected" if audit.uncorrected else ""
    refuted = f"above the claim: {', '.join(audit.refuted_by)}" if audit.refuted_by else ""
    return Shown(audit.part, (confidence, above, audit.covers, refuted))


def _percent(share: float) -> str:
    return f"{plain(round(100 * share, 1))} %"


DEFENCE = Column("Defence", lambda row: row[0], "defence")
BOUNDS = (*_bound("plain"), *_bound("gaussian"))
CLAIMS = (
    DEFENCE,
    number("ε claimed", _claimed),
    *BOUNDS,
    number("Canaries", lambda row: Shown(row[1].canaries, (f"{row[1].correct} of {row[1].guesses} guesses right",))),
    Column("Strongest view", _strongest),
)
VIEWS = (DEFENCE, Column("View", lambda row: row[2].part), number("Canaries", lambda row: row[2].canaries), *BOUNDS)


def audited_epsilon(_: Study, lines: Sequence[Finding]) -> Content | None:
    """Claims beside bounds, by audit and by view of the messages; None where no claim was audited."""
    named = [(line.defense, line.budget.shown) for line in lines if line.budget and line.budget.shown]
    audits = [audit for _, audit in named]
    if not named:
        return None
    seeds, bounds = max(audit.seeds for audit in audits), _percent(joint(audits))
    notes: list[str] = [Markup('<p class="soft small after">{}</p>').format(Markup(NOTE).format(plain(LITTLE)))]
    if len({audit.level for audit in audits if audit.level}) > 1:
        notes.append(LEVELS)
    if len(audits) > 1 or seeds > 1:
        tested = f"{count(len(audits), 'claim')}, up to {count(seeds, 'seed')} each"
        notes.append(f"{tested}: all bounds hold together with {bounds} confidence (union bound).")
    if seeds > 1:
        notes.append(SEEDS.format(plain(100 * CONFIDENCE)))
    whole = Table("Epsilon claimed and shown", CLAIMS, [(defense, audit, audit) for defense, audit in named])
    parts = [(defense, audit, part) for defense, audit in named for part in audit.parts]
    views = [Table("Each view of the messages", VIEWS, parts, how="folded")] if parts else []
    return Content([whole, *notes, *views])


SECTION = Section(
    "audited_epsilon",
    "Epsilon claimed and shown",
    audited_epsilon,
    text="""A claimed ε is an upper bound by the defence's own account. Canaries show a lower bound. For an example-level ε they
    are examples whose gradients the auditor chose, among the clients' own. For a client-level ε they are clients whose whole
    updates the auditor chose. Each has a fair coin. The server guessed the coins from the updates and numbers that it received. A
    bound above the claim refutes the claim, with the bound's confidence and under its assumption. A bound below proves nothing.""",
    metrics=(EPSILON_SHOWN.name, EPSILON_SHOWN_GAUSSIAN.name),
)
