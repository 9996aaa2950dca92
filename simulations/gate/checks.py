"""All checks of a gate: each limit on what a study shows of a defence and of its messages."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attacks.metrics.costs import MODEL_REFUSED
from attacks.metrics.guesses import MEMBERSHIP_TPR
from attacks.metrics.metric import IMAGES, MEMBERSHIP
from attacks.metrics.training import TEST_ACCURACY
from attacks.scoring.intervals import exact_interval
from simulations.compare.groups import Group
from simulations.gate.check import Check, Decision, effective_size, least, most
from simulations.gate.limits import FREE, REAL, GateLimits, Limits
from simulations.report.analysis.budget import audit_warnings
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message, Verdict, counts, judge
from simulations.report.analysis.run import Summary
from simulations.report.studies.cell import FOUND, RESULTS, SEEN, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import DECIDING
from simulations.report.text import numbered, two
from simulations.settings.errors import ConfigError, require_known
from strategies.audit.threat_card import ThreatCard

OF_IMAGES = {
    "max-recognisable": (SEEN, (Verdict.RECOGNISABLE,)),
    "max-identifiable": (FOUND, (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE)),
}
"""Limit -> its score, and the verdicts by which an image is found beyond chance."""
LEVELS = {"example": "example-level", "client": "client-level"}
LOST = ("failed", "refused")
"""Statuses of rows without a score."""
TPR, MEMBERS = MEMBERSHIP_TPR.of(), "membership"
SCORED = frozenset(metric for metric, _ in DECIDING)
"""Metrics whose rows are of an attack as a whole, or decide."""
SCORES_OF = ((IMAGES.decides, SEEN, FOUND), (MEMBERSHIP.decides, TPR))
"""Scores that an attack with the first of them has all of."""


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
    checks = [_undecided(folder.name, "the run is not finished") for folder in group.unfinished]
    checks += [_undecided(group.name, damage) for damage in group.damaged]
    for summary, finding in chosen:
        of = " · ".join(filter(None, [*(summary.study.words if len(chosen) > 1 else ()), summary.name(finding)]))
        if gone := sorted(
            {*finding.study.seeds} - {row.seed for row in finding.study.rows if row.defense == finding.defense}
        ):
            checks.append(_undecided(of, f"no rows of {numbered('seed', gone)}"))
        checks += _of_messages(summary, finding, limits, kind, of)
        checks += _of_finding(finding, limits.every, of)
    return checks or [_undecided(kind, "no limit is on these messages")]


def _undecided(of: str, why: str, limit: str = "", allowed: float | None = None) -> Check:
    return Check(limit, of, Decision.UNDECIDED, why, allowed=allowed)


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
    others = (
        replace(one, message=f"{one.message} {words}") for words, of in _of_others(finding).items() for one in judge(of)
    )
    return [*finding.messages, *others]


def _of_others(finding: Finding) -> dict[str, list[Cell]]:
    """By what other adversaries see, their attacks without upper bounds."""
    study = finding.study
    every = {"by an active server": study.active_cells, "as sums over clients": study.aggregate_cells}
    return {
        words: [cell for cell in of if cell.defense == finding.defense and not cell.is_upper_bound]
        for words, of in every.items()
    }


def _cells(finding: Finding) -> list[Cell]:
    """Of every adversary, without upper bounds."""
    return [*finding.cells, *(cell for of in _of_others(finding).values() for cell in of)]


def _chosen(summary: Summary, defense: str | None) -> Finding:
    named = {summary.name(finding): finding for finding in summary.findings}
    if defense is None and len(summary.findings) == 1:
        return summary.findings[0]
    if defense is None:
        raise ConfigError(f"--defense is missing, and the run has several; allowed: {' or '.join(map(repr, named))}")
    require_known("defence", defense, named)
    return named[defense]


def _of_messages(summary: Summary, finding: Finding, limits: GateLimits, kind: str, of: str) -> Iterator[Check]:
    def looked_at(of: Finding) -> dict[str, Message]:
        if kind == REAL:
            return {one.title: one for one in of.messages if one.real}
        return {one.title: one for one in _every_message(of) if kind in ("", one.title)}

    mine = looked_at(finding)
    every = list(dict.fromkeys(title for of in summary.findings for title in looked_at(of)))
    for title in every or [""]:
        for key, allowed in limits.of(title).items():
            named = f"{of}, {title}" if title else of
            if title in mine:
                yield _of_message(key, mine[title], allowed, named)
            else:
                why = "such messages were not attacked under it" if title else "no message was attacked"
                yield _undecided(named, why, key, allowed)
    if any(map(limits.of, every)) or limits.every.max_tpr != FREE:
        yield from (_undecided(of, why) for why in _gaps(summary, finding, limits, mine, kind))


def _gaps(
    summary: Summary, finding: Finding, limits: GateLimits, messages: Mapping[str, Message], kind: str
) -> Iterator[str]:
    """What was not measured, though attacks were to measure it or did so under another defence."""
    seen, members = {one.cells[0].observation for one in messages.values()}, limits.every.max_tpr != FREE

    def wanted(card: ThreatCard) -> bool:
        return not card.upper_bound and (not kind or members or card.observation in seen)

    rows = [row for row in finding.study.all_rows if row.defense == finding.defense and row.is_attack]
    lost = [row.attack for row in rows if row.status in LOST and row.metric in SCORED and wanted(row.card)]
    lost += [cell.attack for cell in _cells(finding) if wanted(cell.card) and _lacks(cell)]
    if lost:
        yield f"attacks gave no score, or not all of it: {'; '.join(dict.fromkeys(lost))}"
    for what, here in _measured(finding).items():
        there = {pair for other in summary.findings for pair in _measured(other).get(what, ())}
        limited = members if what == MEMBERS else what in messages and limits.of(what)
        if limited and (fewer := sorted(there - here)):
            yield f"{what}: not attacked in round {fewer[0][0]} of seed {fewer[0][1]}, as under another defence"


def _lacks(cell: Cell) -> bool:
    """Whether a score is missing for a seed in which the attack ran."""
    given = {key: {*score.by_seed} for key, score in cell.scores.items() if key != MODEL_REFUSED.of()}
    ran = {seed for seeds in given.values() for seed in seeds}
    whole = next((needs for needs in SCORES_OF if needs[0] in given), None)
    if whole is None:
        return not any(ran <= given.get(key, set()) for key in RESULTS)
    return any(ran - given.get(key, set()) for key in whole)


def _measured(finding: Finding) -> dict[str, set[tuple[int, int]]]:
    """Kind of message, or ``MEMBERS`` -> each round and seed of a score that a limit is on."""
    of: dict[str, tuple[Sequence[Cell], tuple[Scored, ...]]] = {MEMBERS: (_cells(finding), (TPR,))}
    of |= {one.title: (one.cells, (SEEN, FOUND)) for one in _every_message(finding)}
    return {
        what: {
            (cell.round, at) for cell in cells for key in keys if key in cell.scores for at in cell.scores[key].by_seed
        }
        for what, (cells, keys) in of.items()
    }


def _of_message(key: str, message: Message, allowed: float, title: str) -> Check:
    """One attack beyond the limit fails. To pass, each that found anything is within, and one of each round passed its control."""
    metric, verdicts = OF_IMAGES[key]
    cells = [cell for cell in message.cells if cell.mean(*metric) is not None]
    if not cells:
        return _undecided(title, "no attack on images has a score", key, allowed)
    able = [cell for cell in cells if _validated(cell) or cell.mean(*metric)] or cells
    score = _decisive((_cautious(cell.scores[metric]) for cell in able), allowed)
    chance = max(cell.chance or 0.0 for cell in cells) if metric == FOUND else 0.0
    certain, why = message.verdict in verdicts, _blind(message.cells, _validated)
    return most(key, title, allowed, score, "image", n=score.n, certain=certain, chance=chance, why=why)


def _decisive(scores: Iterable[Score], allowed: float) -> Score:
    """Of all attacks: the highest lower end where it is beyond the limit, else the highest upper end, of a limit of 0 of a find."""
    known = list(scores)
    beyond = max(known, key=lambda score: (score.low or 0.0, score.mean or 0.0))
    high = max(known, key=lambda score: (allowed == 0 and bool(score.mean), 1.0 if score.high is None else score.high))
    return beyond if (beyond.low or 0.0) > allowed else high


def _blind(cells: Iterable[Cell], sound: Callable[[Cell], bool]) -> str:
    """In which rounds no attack is validated; "" where one of each is."""
    rounds = [at for at, of in grouped(cells, lambda cell: cell.round).items() if not any(map(sound, of))]
    return f"no attack on {numbered('round', rounds)} passed its positive control on enough records" if rounds else ""


def _validated(cell: Cell) -> bool:
    return FOUND in cell.scores and counts(cell.scores[FOUND])


def _cautious(score: Score) -> Score:
    """The score with an upper end for which failed trials tell nothing, and images that no client scored are found."""
    unscored = score.unscored
    if not unscored and not score.failures:
        return score
    left, hits = score.n - score.failures + unscored, (score.mean or 0.0) * score.n + unscored
    if left <= hits or 2 * unscored >= score.n:  # more are not counted one by one
        return replace(score, high=1.0)
    each = (
        effective_size(score.mean or 0.0, *(score.ends or (0.0, 1.0))) / score.n
    )  # below 1 where images share messages
    return replace(
        score, high=max(1.0 if score.high is None else score.high, exact_interval(hits * each, left * each).high)
    )


def _of_finding(finding: Finding, limits: Limits, of: str) -> Iterator[Check]:
    if limits.max_tpr != FREE:
        yield _membership(finding, limits.max_tpr, of)
    if limits.max_epsilon != FREE:
        yield _epsilon(finding, limits, of)
    if limits.min_accuracy != FREE:
        yield _accuracy(finding, limits.min_accuracy, of)


def _accuracy(finding: Finding, allowed: float, of: str) -> Check:
    accuracy, study = finding.accuracy, finding.study
    last = max((row.round for row in study.rows if row.metric == TEST_ACCURACY.name), default=None)
    if accuracy.deployed is None or accuracy.round != last or {*accuracy.deployed.by_seed} != {*study.seeds}:
        return _undecided(of, "no accuracy of the last round and all seeds was measured", "min-accuracy", allowed)
    check = least("min-accuracy", of, allowed, accuracy.deployed)
    return replace(check, said=", ".join(filter(None, (check.said, accuracy.note))))


def _membership(finding: Finding, allowed: float, of: str) -> Check:
    cells = [cell for cell in _cells(finding) if cell.mean(*TPR) is not None]
    if not cells:
        return _undecided(of, "no attack on membership has a score", "max-tpr", allowed)
    doubts = f"no verdict on members ({'; '.join(sorted({cell.card.no_verdict for cell in cells} - {''}))})"
    if not (sound := [cell for cell in cells if not cell.card.no_verdict]):
        return _undecided(of, doubts, "max-tpr", allowed)
    why = doubts if len(sound) < len(cells) else ""
    cells = sound
    score = _decisive((cell.scores[TPR] for cell in cells), allowed)
    members = next(cell.members for cell in cells if cell.scores[TPR] is score)
    why = why if members else "the rows do not say of how many members"
    why = "trials failed" if any(cell.scores[TPR].failures for cell in cells) else why
    why = _blind(cells, lambda cell: cell.scores[TPR].status == "ok") or why
    certain = any(TPR in cell.leaking for cell in cells)
    return most("max-tpr", of, allowed, score, "member", n=members or score.n, certain=certain, why=why)


def _epsilon(finding: Finding, limits: Limits, of: str) -> Check:
    """An epsilon follows from its terms and has no interval; an audit's lower bound above it, or above the limit, counts."""
    budget, allowed = finding.budget, limits.max_epsilon
    spent = None if budget is None else budget.spent if budget.all_cuts is None else budget.all_cuts
    audit, level = budget.shown if budget else None, budget.level if budget else ""
    asked = LEVELS.get(limits.level, level)
    # A bound on clients says nothing of a limit on examples; of several seeds only the largest is known.
    shown = audit.plain if audit and audit.seeds == 1 and audit.level in (asked, LEVELS["example"], "") else 0.0
    delta = budget.terms.get("delta") if budget else None
    said = [f"epsilon {two(spent)}" if spent is not None else "no epsilon follows from what the clients did"]
    said += [f"delta {delta:g}" if delta is not None else "", level, budget.neighbours if budget else ""]
    if shown > allowed:
        outcome, doubts = Decision.FAILED, [f"canaries show at least {two(shown)}"]
    elif spent is not None and spent > allowed and level == asked:
        outcome, doubts = Decision.FAILED, []
    else:
        doubts = [*audit_warnings(finding.study, finding.defense), *_unknown_epsilon(finding)]
        doubts += [f"the limit is {asked}"] if level != asked else []
        doubts += (
            ["canaries show more"] if spent is not None and audit and max(audit.plain, audit.gaussian) > spent else []
        )
        outcome = Decision.PASSED if spent is not None and spent <= allowed and not doubts else Decision.UNDECIDED
    text = ", ".join(filter(None, [*said, *doubts]))
    return Check("max-epsilon", of, outcome, text, spent, shown or None, spent, allowed)


def _unknown_epsilon(finding: Finding) -> Iterator[str]:
    """Rounds of a seed whose epsilon is not known: it only grows, so that an earlier one says too little."""
    study, defense = finding.study, finding.defense
    rows, cuts, tested = (
        study.utility.get((defense, *key), ())
        for key in (("epsilon", ""), ("epsilon-all-cuts", ""), (TEST_ACCURACY.name, "original"))
    )
    if any(row.status in LOST or row.value is None or math.isnan(row.value) for row in (*rows, *cuts)):
        yield "the epsilon of a round is missing"
    if len({row.neighbours for row in rows}) > 1:
        yield "seeds have different neighbours"
    for seed, of in grouped(tested, lambda row: row.seed).items():
        last, known = max(row.round for row in of), (rows, cuts) if cuts else (rows,)
        if any(last > max((row.round for row in own if row.seed == seed), default=0) for own in known):
            yield f"no epsilon of the last round of seed {seed}"
