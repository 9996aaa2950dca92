"""All checks of a gate: each limit on what a study shows of a defence and of its messages."""

import math
from collections.abc import Iterator, Sequence

from simulations.compare.groups import Group
from simulations.gate.check import Check, Outcome, least, most
from simulations.gate.limits import FREE, GateLimits, Limits
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message, Verdict
from simulations.report.analysis.run import Summary
from simulations.report.studies.cell import FOUND, SEEN
from simulations.report.text import two
from simulations.settings.errors import ConfigError, require_known

REAL = "real"
"""In place of a message's title: all that clients send without being asked."""
OF_IMAGES = {
    "max-recognisable": (SEEN, (Verdict.RECOGNISABLE,)),
    "max-identifiable": (FOUND, (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE)),
}
"""Limit -> its score, and the verdicts by which an image is found beyond chance."""
LEVELS = {"example": "example-level", "client": "client-level"}


def checks_of(group: Group, limits: GateLimits, defense: str | None = None, kind: str = "") -> list[Check]:
    """Every limit on the defence in each study of a run, or of runs that differ in their seed alone.

    Args:
        group: The runs.
        limits: What must hold.
        defense: Its text, or what pages call the run without one; None where there is one pipeline.
        kind: Title of the messages that are looked at, or ``REAL``; "" for all.

    Raises:
        ConfigError: When the run has no row or no such defence, or several defences and none is named.
    """
    chosen = [(summary, _chosen(summary, defense)) for summary in group.run.summaries]
    if not chosen:
        raise ConfigError(f"{group.folders[0]} holds no row that can be read")
    checks = list(_of_group(group))
    for summary, finding in chosen:
        of = " · ".join(filter(None, [*(summary.study.words if len(chosen) > 1 else ()), summary.name(finding)]))
        messages = [one for one in finding.messages if not kind or one.title == kind or (kind == REAL and one.real)]
        checks += _of_messages(finding, messages, limits, of)
        checks += _of_finding(finding, limits.every, of)
    return checks


def require_messages(group: Group, limits: GateLimits, kind: str) -> None:
    """Raise ``ConfigError`` for a title that no message of the runs has, whatever the defence."""
    titles = {one.title: None for of in group.run.summaries for finding in of.findings for one in finding.messages}
    for title in [*limits.by_message, *({kind} - {"", REAL})]:
        require_known("message", title, [*titles, REAL])


def _chosen(summary: Summary, defense: str | None) -> Finding:
    named = {summary.name(finding): finding for finding in summary.findings} | {
        of.defense: of for of in summary.findings if of.defense
    }
    if defense is None and len(summary.findings) == 1:
        return summary.findings[0]
    if defense is None:
        raise ConfigError(f"--defense is missing, and the run has several; allowed: {' or '.join(map(repr, named))}")
    require_known("defence", defense, named)
    return named[defense]


def _of_group(group: Group) -> Iterator[Check]:
    """What leaves every gate undecided: a run that goes on, and lines that were lost."""
    for folder in group.unfinished:
        yield Check("", folder.name, Outcome.UNDECIDED, "the run is not finished")
    for damage in group.damaged:
        yield Check("", group.name, Outcome.UNDECIDED, damage)


def _of_messages(finding: Finding, messages: Sequence[Message], limits: GateLimits, of: str) -> Iterator[Check]:
    for key in OF_IMAGES:
        limited = [(one, limits.of(one.title).to_mapping()[key]) for one in messages]
        limited = [(one, allowed) for one, allowed in limited if allowed != FREE]
        if not messages and limits.every.to_mapping()[key] != FREE:
            yield Check(key, of, Outcome.UNDECIDED, "no message was attacked")
        for message, allowed in limited:
            yield _of_message(key, message, allowed, of)
    lost = {cell.attack: None for cell in finding.cells if not cell.has_result and cell.status == "failed"}
    if lost and any(limits.of(one.title) != type(limits.of(one.title))() for one in messages):
        yield Check("", of, Outcome.UNDECIDED, f"attacks gave no score: {'; '.join(lost)}")


def _of_message(key: str, message: Message, allowed: float, of: str) -> Check:
    """One attack beyond the limit fails; to pass, those that passed their controls, or found anything, must be within it."""
    metric, verdicts = OF_IMAGES[key]
    title, certain = f"{of}, {message.title}" if message.title else of, message.verdict in verdicts
    scores = [
        cell.scores[metric] for cell in message.cells if metric in cell.scores and cell.scores[metric].mean is not None
    ]
    if not scores:
        return Check(key, title, Outcome.UNDECIDED, "no attack on images has a score", allowed=allowed)
    telling = [score for score in scores if score.status == "ok" or score.mean] or scores
    highest = max(scores, key=lambda score: (score.low or 0.0, score.mean or 0.0))
    widest = max(telling, key=lambda score: 1.0 if score.high is None else score.high)
    beyond = certain if allowed == 0 else (highest.low or 0.0) > allowed
    why = "no attack passed its positive control on enough images" if message.verdict is Verdict.UNKNOWN else ""
    score = highest if beyond else widest
    return most(key, title, allowed, score, "image", n=score.n, certain=certain, why=why)


def _of_finding(finding: Finding, limits: Limits, of: str) -> Iterator[Check]:
    if limits.max_tpr != FREE:
        yield _membership(finding, limits.max_tpr, of)
    if limits.max_epsilon != FREE:
        yield _epsilon(finding, limits, of)
    if limits.min_accuracy != FREE:
        score = finding.accuracy.deployed
        nothing = Check("min-accuracy", of, Outcome.UNDECIDED, "no accuracy was measured", allowed=limits.min_accuracy)
        yield least("min-accuracy", of, limits.min_accuracy, score) if score else nothing


def _membership(finding: Finding, allowed: float, of: str) -> Check:
    from attacks.metrics.guesses import MEMBERSHIP_TPR

    cell = finding.membership_rate
    if cell is None:
        return Check("max-tpr", of, Outcome.UNDECIDED, "no attack on membership has a score", allowed=allowed)
    score = cell.scores[MEMBERSHIP_TPR.of()]
    why = "" if score.status == "ok" else f"the measurement is {score.status.replace('-', ' ')}"
    n, certain = cell.members or score.n, MEMBERSHIP_TPR.of() in cell.leaking
    return most("max-tpr", of, allowed, score, "member", n=n, certain=certain, why=why)


def _epsilon(finding: Finding, limits: Limits, of: str) -> Check:
    """An epsilon follows from its terms and has no interval; an audit's lower bound above it, or above the limit, counts."""
    budget, allowed = finding.budget, limits.max_epsilon
    spent = None if budget is None else budget.spent if budget.all_cuts is None else budget.all_cuts
    shown = max(budget.shown.plain, 0.0) if budget and budget.shown else 0.0

    def check(outcome: Outcome, said: str) -> Check:
        return Check("max-epsilon", of, outcome, said, spent, shown or None, spent, allowed)

    if budget is None or spent is None:
        return check(
            Outcome.FAILED if shown > allowed else Outcome.UNDECIDED, "no epsilon follows from what the clients did"
        )
    said = ", ".join(filter(None, (f"epsilon {two(spent)}", budget.level, budget.neighbours)))
    if shown > allowed:
        return check(Outcome.FAILED, f"{said}; canaries show at least {two(shown)}")
    if shown > spent:
        return check(Outcome.UNDECIDED, f"{said}, which canaries refute: at least {two(shown)}")
    if not math.isfinite(spent) or spent > allowed:
        return check(Outcome.FAILED, said)
    if limits.level and budget.level != LEVELS[limits.level]:
        return check(Outcome.UNDECIDED, f"{said}; the limit is of a {LEVELS[limits.level]} epsilon")
    return check(Outcome.PASSED, said)
