"""What the long tables of the report hold: the positive control, threat cards, failures and numbers without a place."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.report.control import IMAGE_METRICS, Control
from simulations.report.metrics import ATTACK_METRICS, MCC_METRICS, UTILITY_METRICS
from simulations.report.rows import Row, null_name
from simulations.report.score import Score, merge
from simulations.report.study import Cell, Study
from simulations.report.text import listing, round_mark, setting

CARD_ORDER = (
    "observation",
    "images",
    "batch",
    "attacked",
    "tokens",
    "sendings",
    "order",
    "client_half",
    "client_half_update",
    "local_steps",
    "labels",
    "labels_held_by",
    "learning_rate",
    "mode",
    "augmentation",
    "momentum",
    "defense_strength",
    "batch_norm_statistics",
    "auxiliary_data",
    "selection",
    "restarts",
    "iterations",
)
"""Settings of a threat card in the order in which a reader asks for them; unknown ones follow."""


@dataclass(frozen=True)
class Verdict:
    """The positive control of one attack in one round: how many seeds passed, the scores, and why it failed."""

    passed: int
    seeds: int
    value: float | None
    null: tuple[str, float] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class ControlRow:
    """One attack's verdicts: (round, final, observation) -> verdict, None where it did not run."""

    attack: str
    metric: str
    verdicts: tuple[Verdict | None, ...]


def control_table(study: Study) -> tuple[list[tuple[int, bool, str]], list[ControlRow]]:
    """Columns (round, whether it is the final model, observation), and one row per attack and kind of score."""
    found: dict[tuple[str, str], dict[tuple[int, bool, str], list[Control]]] = defaultdict(lambda: defaultdict(list))
    for control in study.controls:
        row = control.row
        place = (row.round, row.final, setting(row.setting.get("observation") or ""))
        found[row.attack, row.metric][place].append(control)
    columns = sorted({place for places in found.values() for place in places})
    rows = [
        ControlRow(attack, metric, tuple(_verdict(places[at]) if at in places else None for at in columns))
        for (attack, metric), places in sorted(found.items(), key=lambda item: item[0][1] != "psnr")
    ]
    return columns, rows


def _verdict(of: Sequence[Control]) -> Verdict:
    nulls = [control.null for control in of if control.null]
    names = "/".join(dict.fromkeys(null_name(name) for name, _ in nulls))
    null = (names, sum(value for _, value in nulls) / len(nulls)) if nulls else None
    reasons = tuple(dict.fromkeys(control.reason for control in of if control.reason))
    return Verdict(sum(c.passed for c in of), len(of), merge([c.row for c in of]).mean, null, reasons)


@dataclass(frozen=True)
class Cards:
    """Threat cards: what every attack shares, and a table of what differs.

    Attributes:
        shared: Setting -> text, the same on all cards.
        differing: Settings that differ.
        rows: (number, attacks, texts in the order of ``differing``).
        numbers: Card as JSON -> its number.
    """

    shared: dict[str, str]
    differing: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]
    numbers: dict[str, int]


def cards(cells: Sequence[Cell]) -> Cards:
    """Numbers the threat cards in order of appearance."""
    attacks: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        if cell.attack not in attacks[cell.card]:
            attacks[cell.card].append(cell.attack)
    found = {card: {key: setting(value) for key, value in json.loads(card).items()} for card in attacks}
    order = {key: place for place, key in enumerate(CARD_ORDER)}
    keys = sorted({key for card in found.values() for key in card}, key=lambda key: (order.get(key, len(order)), key))
    differ = [key for key in keys if len({card.get(key) for card in found.values()}) > 1]
    first: Mapping[str, str] = next(iter(found.values()), {})
    rows = (
        (number, tuple(attacks[card]), tuple(values.get(key, "") for key in differ))
        for number, (card, values) in enumerate(found.items(), 1)
    )
    shared = {key: first[key] for key in keys if key not in differ}
    return Cards(shared, tuple(differ), tuple(rows), {card: number for number, card in enumerate(found, 1)})


@dataclass(frozen=True)
class Failure:
    """Something that failed for one reason, with all rounds and metrics that it cost."""

    defense: str
    what: str
    rounds: tuple[str, ...]
    trials: int
    seed: int
    metrics: tuple[str, ...]
    message: str


def failures(rows: Sequence[Row]) -> list[Failure]:
    """Failed rows, and rows with failed trials; rows that differ only by round or metric are one failure."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.status == "failed" or row.failures:
            client = "" if row.client is None else f"client {row.client}"
            told = row.setting.get("attack_failures")
            message = row.message or (setting(told) if isinstance(told, str) else listing(told) if told else "")
            groups[row.defense, row.attack or client, row.seed, message].append(row)
    return [
        Failure(defense, what, *_rounds_and_trials(of), seed, tuple(dict.fromkeys(r.metric for r in of)), message)
        for (defense, what, seed, message), of in groups.items()
    ]


def _rounds_and_trials(rows: Sequence[Row]) -> tuple[tuple[str, ...], int]:
    """Rounds, and the failed trials of all of them; metrics of one round share their trials."""
    trials: dict[tuple[int, bool], int] = defaultdict(int)
    for row in rows:
        at = row.round, row.final
        trials[at] = max(row.failures, trials[at])
    return tuple(round_mark(*at) for at in sorted(trials)), sum(trials.values())


@dataclass(frozen=True)
class Other:
    """A number that has no place in the other tables."""

    defense: str
    attack: str
    round: str
    metric: str
    reference: str
    score: Score


def others(study: Study) -> list[Other]:
    """Scores of metrics that this version does not know, in order of appearance."""
    groups: dict[tuple[str, str, str, str, str], list[Row]] = defaultdict(list)
    for row in study.rows:
        known = ATTACK_METRICS if row.attack else UTILITY_METRICS
        if row.metric not in known or _unusual(row):
            at = round_mark(row.round, row.final)
            groups[row.defense, row.attack, at, row.metric, row.reference].append(row)
    return [Other(*key, merge(of)) for key, of in groups.items()]


def _unusual(row: Row) -> bool:
    """Whether a known metric comes with a reference that has no column."""
    if row.metric in {*IMAGE_METRICS, *MCC_METRICS, "test-accuracy"}:
        return row.reference not in {"original", "transformed"}
    return row.reference != "" and row.metric != "test-loss"
