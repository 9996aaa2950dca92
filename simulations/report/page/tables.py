"""The tables of a study's page, each a list of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from markupsafe import Markup

from attacks.metrics import images
from attacks.metrics.costs import ATTACK_SECONDS
from attacks.metrics.guesses import CLASS_MEAN_PSNR, CLASS_MEAN_SSIM, COLUMN, MEMBERSHIP_TPR
from attacks.metrics.metric import LABELS, MEMBERSHIP
from attacks.metrics.names import Role
from attacks.metrics.registry import known_metric, metric_label
from simulations.report.analysis.failures import failures
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message, Place
from simulations.report.columns import (
    COUNT,
    DEFENCE,
    FAILURES,
    IDENTIFIED,
    OF_PSNR,
    OF_SSIM,
    OVER_NULL,
    STATUS,
    Cards,
    Column,
    Show,
    Shown,
    Table,
    attack,
    card,
    change,
    number,
    over_interval,
    pill,
    recognised,
    round_of,
    scored,
)
from simulations.report.drawing.pictures import LONG
from simulations.report.section import sections
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import CLASS_METRICS, Control, images_behind
from simulations.report.studies.intervals import Range
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.plain import Plain
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import merge
from simulations.report.studies.study import Study
from simulations.report.text import (
    breakable,
    count,
    dagger,
    decibel,
    percent,
    percentage,
    plain,
    round_mark,
    seconds,
    short_names,
    size,
    times,
    two,
    whole_percent,
)
from simulations.run_folder.rows import Row

FEW = 2
"""Rows of the positive control up to which it is not folded."""
ROUND = number("Round", lambda cell: round_mark(cell.round, cell.final))
AREA = scored("AUC", MEMBERSHIP.decides, two, two)
RATE = scored("TPR at 1\N{NO-BREAK SPACE}% FPR", MEMBERSHIP_TPR.of(), percent, percentage)


def _time(cell: Cell) -> Shown:
    spent, iterations = cell.mean(ATTACK_SECONDS.name), cell.fact("iterations")
    return Shown(seconds(spent), (f"{iterations} iterations" if iterations else "",), spent)


TIME = number("Time", _time)


def glance(findings: Sequence[Finding], messages: Sequence[Message], attacks: Sequence[str]) -> Table:
    """What attacks found in some kinds and sizes of messages, with accuracy and epsilon."""
    names = short_names(attacks, LONG)

    def found(message: Message) -> Shown:
        ends = f" ({message.interval})" if message.interval else ""
        counted = Markup("<b>{}</b> {}{}").format(message.shown, message.counted, ends) if message.shown else ""
        by = Markup("by {}").format(breakable(names[message.attack])) if message.attack else ""
        return Shown(pill(message.verdict), (counted, by, message.difference.said if message.difference else ""))

    spent = number("ε", _epsilon, "folds", optional=True)
    shown = (DEFENCE, *_by_message(messages, found), number("Accuracy", _accuracy), spent)
    return Table("At a glance", shown, findings, look="plain stacked")


def ladder(findings: Sequence[Finding], messages: Sequence[Message]) -> Table:
    """The verdict on every kind and size of message."""
    shown = _by_message(messages, lambda message: Shown(pill(message.verdict), (message.shown, message.by_chance)))
    return Table("Where the leak ends", (DEFENCE, *shown), findings, look="plain stacked")


def _by_message(messages: Sequence[Message], show: Callable[[Message], Shown]) -> Iterator[Column]:
    def read(place: Place, of: Finding) -> Shown | None:
        message = of.message(place)
        return show(message) if message else None

    return (Column(sent.message or "Messages", partial(read, sent.place), below=sent.size) for sent in messages)


def _accuracy(of: Finding) -> Shown | None:
    accuracy, score = of.accuracy, of.accuracy.deployed
    if score:
        return Shown(percent(score.mean), (score.within(percentage), accuracy.change_text, accuracy.note))
    return Shown(of.reported.number, (of.reported.detail,)) if of.reported else None


def _epsilon(of: Finding) -> Shown:
    claims, lines = [claim for claim in of.claims if claim.number], of.budget.lines if of.budget else ()
    if not claims:
        return Shown(two(of.epsilon), lines)
    first, *others = claims
    further = [line for claim in others for line in (claim.number, claim.detail)]
    return Shown(first.number, (first.detail, *further, *lines))


def cost(findings: Sequence[Finding]) -> Table:
    """Accuracy, epsilon, what attacks infer besides images, time and bytes."""
    several = len({of.accuracy.round for of in findings} - {None}) > 1

    def defence(of: Finding) -> Shown:
        after = "" if of.accuracy.round is None or not several else f"after round {of.accuracy.round}"
        return Shown(of.defense, (after, count(of.failed_clients, "client failure") if of.failed_clients else ""))

    def epsilon(of: Finding) -> Shown:
        delta = of.budget.terms.get("delta") if of.budget and of.epsilon is not None else None
        return Shown(two(of.epsilon), () if delta is None else (f"δ = {plain(delta)}",))

    shown = (
        Column("Defence", defence, "defence"),
        number("clean, %", lambda of: over_interval(of.accuracy.clean, percentage)).opening,
        number("protected, %", lambda of: over_interval(of.accuracy.protected, percentage), optional=True),
        number("change", change),
        number("ε", epsilon, optional=True).opening,
        number("labels inferred", _labels, optional=True).opening,
        number("member AUC", lambda of: of.membership and AREA.of(of.membership), optional=True).opening,
        number("TPR at 1\N{NO-BREAK SPACE}% FPR", _members_named, optional=True),
        number("time", lambda of: _relative(of.seconds, seconds), optional=True).opening,
        number("bytes", lambda of: _relative(of.bytes, size), optional=True),
    )
    return Table("Cost and budget", shown, findings, look="fitted")


def _labels(of: Finding) -> Shown | None:
    if of.labels is None:
        return None
    score, nulls = of.labels.scores[LABELS.decides], of.labels.null_scores.get(LABELS.decides, {})
    chances = (f"chance {whole_percent(value)}" for value in nulls.values())
    return Shown(percent(score.mean) + dagger(score.status), (*chances, round_of(of.labels)))


def _members_named(of: Finding) -> Shown | None:
    """The highest rate of members, and by which attack where another has the highest AUC."""
    cell = of.membership_rate
    if cell is None:
        return None
    rate, when = RATE.of(cell), ", ".join(filter(None, (round_of(cell), cell.observation)))
    by = Markup("by {}, {}").format(breakable(cell.attack), when) if cell != of.membership else ""
    return replace(rate, below=(*rate.below, by))


def _relative(pair: Range, show: Show) -> Shown:
    """A cost, or its ratio to no defence over it."""
    value, ratio = pair
    return Shown(show(value), value=value) if ratio is None else Shown(times(ratio), (show(value),), value)


def every_attack(cells: Sequence[Cell], cards: Cards) -> Table:
    """A row for each attack on each defence in each round: its counts, its control, and what it spent."""
    shown = (
        *(DEFENCE, attack(lambda cell: (cell.observation,)), ROUND, STATUS),
        IDENTIFIED.opening,
        number("recognisable", lambda cell: cell.recognisable and " of ".join(map(str, cell.recognisable))),
        *(OF_PSNR.opening, OVER_NULL, OF_SSIM),
        number("recognised", recognised, optional=True),
        scored("labels", LABELS.decides, percent, optional=True),
        *(TIME.opening, COUNT, FAILURES, card(cards)),
    )
    return Table("All attacks", shown, cells, how="folded", look="tall dense", summary=count(len(cells), "attack"))


def members(cells: Sequence[Cell], cards: Cards) -> tuple[Table, Table]:
    """Tests of membership that infer members, and the others, which are folded."""

    def records(cell: Cell) -> Shown:
        n = cell.scores[MEMBERSHIP.decides].n
        return Shown(n, () if cell.members is None else (count(cell.members, "member"),))

    shown = (
        *(DEFENCE, attack(), ROUND, STATUS, AREA, RATE),
        *(number("Records", records), FAILURES, TIME, card(cards)),
    )
    chance = [cell for cell in cells if not cell.tells_members]
    doubted = sum(bool(dagger(cell.status)) for cell in chance)
    doubts = f" ({doubted} of them not validated or under-powered)" if doubted else ""
    summary = f"{count(len(chance), 'test')} not shown to infer members{doubts}"
    telling = Table("Membership", shown, [cell for cell in cells if cell.tells_members], look="tall")
    return telling, Table("Membership not shown", shown, chance, how="folded", look="tall", summary=summary)


def representatives(cells: Sequence[Cell], cards: Cards) -> Table:
    """What attacks drew of the classes."""
    shown = (
        *(DEFENCE, attack(), ROUND, STATUS),
        number("Recognised", recognised),
        scored("Class-mean PSNR, dB", CLASS_MEAN_PSNR.of(), decibel),
        scored("Class-mean SSIM", CLASS_MEAN_SSIM.of(), two),
        FAILURES,
        card(cards),
    )
    return Table("Class representatives", shown, cells, look="tall")


def control(study: Study, words: Plain) -> Table:
    """The positive control of every attack in every round and on every message; scores of images come first."""

    def place(of: Control) -> tuple[str, ...]:
        message = ", ".join(filter(None, (of.row.card.observation, str(MessageSize.of(of.row.card)))))
        return of.row.attack, of.row.metric, round_mark(of.row.round, of.row.final), message

    rows = sorted(grouped(study.controls, place).items(), key=lambda item: item[0][1] != images.IDENTIFIED.name)
    verdicts = {key: all(test.passed for test in of) for key, of in rows if _judged(of)}
    names, lost = short_names(study.attacks, LONG), [key for key, passed in verdicts.items() if not passed]
    bad = dict.fromkeys(f"{names[attack]} ({metric_label(metric)})" for attack, metric, *_ in lost)
    passed = f"{len(verdicts) - len(lost)} of {count(len(verdicts), 'control')} passed"
    shown = (
        Column(f"Attack on the {words.run}", lambda row: row[0][0], "attack"),
        Column("Score", lambda row: metric_label(row[0][1])),
        number("Round", lambda row: row[0][2]),
        Column("Message", lambda row: row[0][3] or None),
        number("Reached", lambda row: _checked(row[1]), "folds"),
        Column(
            "Why it failed", lambda row: "; ".join(dict.fromkeys(test.reason for test in row[1] if test.reason)), "text"
        ),
    )
    summary = f"{passed}; ✗ not better than the null baseline: {', '.join(bad)}" if bad else passed
    return Table("Positive control", shown, rows, how="folded", look="tall", summary=summary, unfolded=len(rows) <= FEW)


def _judged(of: Sequence[Control]) -> bool:
    """Whether there is a verdict: enough images, and enough others to look for the true ones among."""
    return not any(test.too_few or test.open for test in of)


def _checked(of: Sequence[Control]) -> Shown:
    """The score of one attack at one place, mean over seeds, above the best null baseline."""
    show, passed = percent if of[0].row.metric == images.IDENTIFIED.name else two, sum(test.passed for test in of)
    mark = "†" if not _judged(of) else "✓" if passed == len(of) else "✗"
    nulls = dict(test.null for test in of if test.null)
    against = f"against {'/'.join(nulls)} {show(sum(nulls.values()) / len(nulls))}" if nulls else ""
    n = sum(images_behind(test.row) for test in of if test.row.value is not None)
    counted = f"{passed} of {len(of)} seeds" if len(of) > 1 else ""
    few = "" if _judged(of) else f"no verdict: n = {n}"
    return Shown(f"{mark} {show(merge([test.row for test in of]).mean)}", (against, counted, few))


def failed(study: Study) -> Table:
    """Failures and refusals, for one reason each."""
    shown = (
        DEFENCE,
        Column("What failed", lambda failure: failure.what or "training", "attack"),
        Column("Rounds", lambda failure: ", ".join(dict.fromkeys(failure.rounds))),
        number("Seed", lambda failure: failure.seed),
        number("Trials", lambda failure: failure.trials or None),
        Column("Numbers concerned", lambda failure: ", ".join(failure.metrics)),
        Column("Message", lambda failure: failure.message or "no message", "text"),
    )
    return Table("Failures", shown, failures(study.all_rows), look="tall")


def other_numbers(study: Study) -> Table:
    """Metrics without a place of their own."""
    of_sections = {name for section in sections() for name in section.metrics}

    def place(row: Row) -> tuple[str, str, str, str, str]:
        at, guess = round_mark(row.round, row.final), row.attack
        return row.defense, guess, at, row.metric, row.reference

    groups = grouped((row for row in study.rows if not _has_place(row, of_sections)), place)
    rows = [(*key, merge(of)) for key, of in groups.items()]
    shown = (
        Column("Defence", lambda row: row[0], "defence"),
        Column("Attack", lambda row: row[1] or None, "attack"),
        number("Round", lambda row: row[2]),
        Column("Metric", lambda row: metric_label(row[3]) + (f" ({row[4]})" if row[4] else "")),
        Column("Status", lambda row: row[5].status, "status"),
        number("Value", lambda row: over_interval(row[5], plain)),
        number("Worst", lambda row: plain(row[5].worst)),
        number("n", lambda row: row[5].n),
        number("Failures", lambda row: row[5].failures),
    )
    return Table("Other numbers", shown, rows, how="folded", look="tall", summary=f"Other numbers ({len(rows)})")


def _has_place(row: Row, of_sections: Collection[str]) -> bool:
    """Whether the page, or one of its sections, shows a row elsewhere."""
    if (of_training := row.role is Role.TRAINING) and row.metric in of_sections:
        return row.reference == ""
    metric = known_metric(row.metric)
    if metric is None or row.reference not in metric.shown:
        return False
    return metric.of_training == of_training or metric is COLUMN


def tables(study: Study, findings: Sequence[Finding], words: Plain, cards: Cards) -> dict[str, Table]:
    """By name, the tables below the first screen; a page leaves out those without rows."""
    testing = [cell for cell in study.cells if cell.mean(*MEMBERSHIP.decides) is not None]
    drawing = [cell for cell in study.cells if any((name, "") in cell.scores for name in CLASS_METRICS)]
    tried = [cell for cell in study.cells if cell.leading.mean is not None or cell.status != "ok"]
    others = [cell for cell in tried if cell not in testing and cell not in drawing]
    telling, chance = members(testing, cards)
    return {
        "cost": cost(findings), "membership": telling, "no_membership": chance,
        "representatives": representatives(drawing, cards), "control": control(study, words), "failures": failed(study),
        "attacks": every_attack(others, cards), "others": other_numbers(study), "cards": cards.table("Threat cards"),
    }  # fmt: skip
