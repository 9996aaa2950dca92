"""All checks of a gate: each limit on what a study shows of a defence and of its messages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.metric import IMAGES
from attacks.metrics.training import TEST_ACCURACY
from attacks.scoring.intervals import exact_interval
from simulations.compare.groups import Group
from simulations.gate.check import Check, Decision, least, most, told
from simulations.gate.limits import FREE, REAL, GateLimits, Limits
from simulations.report.analysis.budget import audit_warnings
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message, Verdict, counts, judge
from simulations.report.analysis.run import Summary
from simulations.report.studies.cell import FOUND, SEEN, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import PARTLY_FAILED, Score
from simulations.report.text import numbered, two
from simulations.settings.errors import ConfigError, require_known

OF_IMAGES = {
    "max-recognisable": (SEEN, (Verdict.RECOGNISABLE,)),
    "max-identifiable": (FOUND, (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE)),
}
"""Limit -> its score, and the verdicts by which an image is found beyond chance."""
LEVELS = {"example": "example-level", "client": "client-level"}
LOST = ("failed", PARTLY_FAILED, "refused")
"""Statuses of attacks that gave no score, or none for some seeds."""
TPR = MEMBERSHIP_TPR.of()


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
        if gone := sorted(
            {*finding.study.seeds} - {row.seed for row in finding.study.rows if row.defense == finding.defense}
        ):
            checks.append(Check("", of, Decision.UNDECIDED, f"no rows of {numbered('seed', gone)}"))
        checks += _of_messages(summary, finding, limits, kind, of)
        checks += _of_finding(finding, limits.every, of)
    return checks


def require_messages(group: Group, limits: GateLimits, kind: str) -> None:
    """Raise ``ConfigError`` for a title that no message of the runs has, whatever the defence."""
    every = [one for of in group.run.summaries for finding in of.findings for one in _every_message(finding)]
    titles = list(dict.fromkeys(one.title for one in every))
    for title in limits.by_message:
        require_known("message", title, titles)
    if kind:
        require_known("message", kind, [*titles, REAL])


def _every_message(finding: Finding) -> list[Message]:
    """The messages of a finding, and what other adversaries of the run saw."""
    messages, study = list(finding.messages), finding.study
    for words, cells in (("by an active server", study.active_cells), ("as sums over clients", study.aggregate_cells)):
        mine = judge([cell for cell in cells if cell.defense == finding.defense and not cell.is_upper_bound])
        messages += [replace(one, message=f"{one.message} {words}") for one in mine]
    return messages


def _chosen(summary: Summary, defense: str | None) -> Finding:
    named = {summary.name(finding): finding for finding in summary.findings}
    if defense is None and len(summary.findings) == 1:
        return summary.findings[0]
    if defense is None:
        raise ConfigError(f"--defense is missing, and the run has several; allowed: {' or '.join(map(repr, named))}")
    require_known("defence", defense, named)
    return named[defense]


def _of_group(group: Group) -> Iterator[Check]:
    """What leaves every gate undecided: a run that goes on, and lines that were lost."""
    for folder in group.unfinished:
        yield Check("", folder.name, Decision.UNDECIDED, "the run is not finished")
    for damage in group.damaged:
        yield Check("", group.name, Decision.UNDECIDED, damage)


def _of_messages(summary: Summary, finding: Finding, limits: GateLimits, kind: str, of: str) -> Iterator[Check]:
    def looked_at(of: Finding) -> dict[str, Message]:
        every = _every_message(of)
        return {one.title: one for one in every if not kind or one.title == kind or (kind == REAL and one.real)}

    mine = looked_at(finding)
    every = list(dict.fromkeys(title for of in summary.findings for title in looked_at(of)))
    for title in every or [""]:
        for key, allowed in limits.of(title).items():
            named = f"{of}, {title}" if title else of
            if title in mine:
                yield _of_message(key, mine[title], allowed, named)
            else:
                why = "such messages were not attacked under it" if title else "no message was attacked"
                yield Check(key, named, Decision.UNDECIDED, why, allowed=allowed)
    if any(map(limits.of, every)) or limits.every.max_tpr != FREE:
        for why in _gaps(summary, finding, mine):
            yield Check("", of, Decision.UNDECIDED, why)


def _gaps(summary: Summary, finding: Finding, messages: dict[str, Message]) -> Iterator[str]:
    """What was not measured, though attacks were to measure it or did so under another defence."""
    seen = {one.cells[0].observation for one in messages.values()}
    rows = [row for row in finding.study.all_rows if row.defense == finding.defense and row.is_attack]
    lost = [row.attack for row in rows if row.status in LOST and row.card.observation in seen]
    for cell in _cells(finding):
        images = IMAGES.scored(cell.scores) and cell.observation in seen and not {SEEN, FOUND} <= {*cell.scores}
        lost += [cell.attack] if images or (MEMBERSHIP_AUC.of() in cell.scores and TPR not in cell.scores) else []
    if lost:
        yield f"attacks gave no score, or not all of it: {'; '.join(dict.fromkeys(lost))}"
    for other in summary.findings:
        for title, of in ((one.title, one.cells) for one in _every_message(other) if one.title in messages):
            yield from _missing(title, of, messages[title].cells)
        theirs, mine = ([cell for cell in _cells(each) if TPR in cell.scores] for each in (other, finding))
        yield from _missing("membership", theirs, mine)


def _missing(what: str, theirs: Sequence[Cell], mine: Sequence[Cell]) -> Iterator[str]:
    """A round and seed that were attacked under another defence alone."""
    there, here = (
        {(cell.round, seed) for cell in of for score in cell.scores.values() for seed in score.by_seed}
        for of in (theirs, mine)
    )
    if fewer := sorted(there - here):
        at, seed = fewer[0]
        yield f"{what}: not attacked in round {at} of seed {seed}, as under another defence"


def _cells(finding: Finding) -> list[Cell]:
    """Of every adversary, without upper bounds."""
    study = finding.study
    further = [cell for cell in (*study.active_cells, *study.aggregate_cells) if cell.defense == finding.defense]
    return [*finding.cells, *(cell for cell in further if not cell.is_upper_bound)]


def _of_message(key: str, message: Message, allowed: float, title: str) -> Check:
    """One attack beyond the limit fails. To pass, each that found anything is within, and one of each round passed its control."""
    metric, verdicts = OF_IMAGES[key]
    cells = [cell for cell in message.cells if metric in cell.scores and cell.scores[metric].mean is not None]
    if not cells:
        return Check(key, title, Decision.UNDECIDED, "no attack on images has a score", allowed=allowed)
    rounds = grouped(message.cells, lambda cell: cell.round)
    blind = [at for at, of in rounds.items() if not any(map(_validated, of))]
    why = f"no attack on {numbered('round', blind)} passed its positive control on enough images" if blind else ""
    scores = [_cautious(cell.scores[metric]) for cell in cells if _validated(cell) or cell.mean(*metric)]
    certain, beyond = message.verdict in verdicts, max(scores, key=_low, default=None)
    if beyond is not None and (certain if allowed == 0 else _low(beyond)[0] > allowed):
        score = beyond
    else:
        score = max(scores or [_cautious(cell.scores[metric]) for cell in cells], key=_high)
    return most(key, title, allowed, score, "image", n=score.n, certain=certain, why=why)


def _validated(cell: Cell) -> bool:
    return FOUND in cell.scores and counts(cell.scores[FOUND])


def _low(score: Score) -> tuple[float, float]:
    return score.low or 0.0, score.mean or 0.0


def _high(score: Score) -> float:
    return 1.0 if score.high is None else score.high


def _cautious(score: Score) -> Score:
    """The score with an upper end for which failed trials tell nothing, and images that no client scored are found."""
    unscored = score.attacked - score.n
    if not unscored and not score.failures:
        return score
    left, hits = score.n - score.failures + unscored, (score.mean or 0.0) * score.n + unscored
    if left <= hits or 2 * unscored >= score.n:  # more are not counted one by one
        return replace(score, high=1.0)
    each = told(score.mean or 0.0, *(score.ends or (0.0, 1.0))) / score.n  # below 1 where images share messages
    return replace(score, high=max(_high(score), exact_interval(hits * each, left * each).high))


def _of_finding(finding: Finding, limits: Limits, of: str) -> Iterator[Check]:
    if limits.max_tpr != FREE:
        yield _membership(finding, limits.max_tpr, of)
    if limits.max_epsilon != FREE:
        yield _epsilon(finding, limits, of)
    if limits.min_accuracy != FREE:
        yield _accuracy(finding, limits.min_accuracy, of)


def _accuracy(finding: Finding, allowed: float, of: str) -> Check:
    accuracy, study = finding.accuracy, finding.study
    tested = [row.round for row in study.rows if row.metric == TEST_ACCURACY.name and not row.final]
    if accuracy.deployed is None or accuracy.round != max(tested, default=None):
        return Check(
            "min-accuracy", of, Decision.UNDECIDED, "no accuracy of the last round was measured", allowed=allowed
        )
    check = least("min-accuracy", of, allowed, accuracy.deployed)
    return replace(check, said=", ".join(filter(None, (check.said, accuracy.note))))


def _membership(finding: Finding, allowed: float, of: str) -> Check:
    """Of all attacks on membership: the highest lower end fails, the highest upper end passes."""
    cells = [cell for cell in _cells(finding) if cell.mean(*TPR) is not None]
    if not cells:
        return Check("max-tpr", of, Decision.UNDECIDED, "no attack on membership has a score", allowed=allowed)
    lowest, highest = (max(cells, key=lambda cell: key(cell.scores[TPR])) for key in (_low, _high))
    cell = lowest if _low(lowest.scores[TPR])[0] > allowed else highest
    score, why = cell.scores[TPR], "" if cell.members else "the rows do not say of how many members"
    if any(one.scores[TPR].failures for one in cells) or not any(one.scores[TPR].status == "ok" for one in cells):
        why = "trials failed, or no attack passed its positive control on enough records"
    certain = any(TPR in one.leaking for one in cells)
    return most("max-tpr", of, allowed, score, "member", n=cell.members or score.n, certain=certain, why=why)


def _epsilon(finding: Finding, limits: Limits, of: str) -> Check:
    """An epsilon follows from its terms and has no interval; an audit's lower bound above it, or above the limit, counts."""
    budget, allowed = finding.budget, limits.max_epsilon
    spent = None if budget is None else budget.spent if budget.all_cuts is None else budget.all_cuts
    audit = budget.shown if budget else None
    shown = audit.plain if audit and (audit.seeds == 1 or audit.corrected >= audit.confidence) else 0.0

    def check(outcome: Decision, *said: str) -> Check:
        return Check("max-epsilon", of, outcome, ", ".join(filter(None, said)), spent, shown or None, spent, allowed)

    if budget is None or spent is None:
        none = "no epsilon follows from what the clients did"
        return (
            check(Decision.FAILED, none, f"canaries show at least {two(shown)}")
            if shown > allowed
            else check(Decision.UNDECIDED, none)
        )
    delta = budget.terms.get("delta")
    said = f"epsilon {two(spent)}", f"delta {delta:g}" if delta is not None else "", budget.level, budget.neighbours
    if shown > allowed:
        return check(Decision.FAILED, *said, f"canaries show at least {two(shown)}")
    asked = LEVELS.get(limits.level, budget.level)
    doubts = [*audit_warnings(finding.study, finding.defense), *_unknown_epsilon(finding)]
    doubts += [f"the limit is {asked}"] if budget.level != asked else []
    doubts += ["canaries show more"] if audit and max(audit.plain, audit.gaussian) > spent else []
    if doubts:
        return check(Decision.UNDECIDED, *said, *doubts)
    return check(Decision.PASSED if math.isfinite(spent) and spent <= allowed else Decision.FAILED, *said)


def _unknown_epsilon(finding: Finding) -> Iterator[str]:
    """Rounds of a seed whose epsilon is not known: it only grows, so that an earlier one says too little."""
    study, defense = finding.study, finding.defense
    rows, tested = (
        study.utility.get((defense, *key), ()) for key in (("epsilon", ""), (TEST_ACCURACY.name, "original"))
    )
    if any(
        row.status in LOST or row.value is None or not math.isfinite(row.value) for row in rows if row.value != math.inf
    ):
        yield "the epsilon of a round is missing"
    if len({row.neighbours for row in rows}) > 1:
        yield "seeds have different neighbours"
    for seed, of in grouped([row for row in tested if not row.final], lambda row: row.seed).items():
        if max(row.round for row in of) > max((row.round for row in rows if row.seed == seed), default=0):
            yield f"no epsilon of the last round of seed {seed}"
