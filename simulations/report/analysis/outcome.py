"""Findings of a run, a line for each defence and kind of message: for the page, the terminal and programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attacks.metrics.metric import ATTRIBUTES, CELLS
from defenses.neighbours import ADD_OR_REMOVE, level_of
from simulations.report.analysis.conclusion import judged
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import readability
from simulations.report.analysis.run import read_run
from simulations.report.analysis.shown import audit_text
from simulations.report.studies.cell import Cell
from simulations.report.studies.plain import plain_words_of
from simulations.report.text import count, dagger, percent, percentage, points, two, within
from strategies.external_app.claim import AppAccuracy, Claim
from strategies.federated.shown_epsilon import ShownEpsilon

OTHER = {CELLS.decides: "cells", ATTRIBUTES.decides: "values"}
"""Score -> what it is a share of, where an attack recovers no images."""
OF_THE_LINE = ["cost_note", "epsilon", "epsilon_with_probes", "epsilon_all_cuts", "budget", "claims", "reported"]
"""What a finding has of its line as it is."""


@dataclass(frozen=True)
class Finding:
    """The finding for one defence and one kind of message.

    Attributes:
        defense: Pipeline text; "" without a defence.
        message: What was attacked, such as "one-step probe"; "" where the scenario sends one kind.
        verdict: As the report says it.
        of: What an attack has right: "images", "cells" or "values".
        recovered: Images that the strongest attack recovered, of ``attacked``; None where it recovers something else.
        share: Of what it has right, in [0, 1], with its 95 % interval ``low`` to ``high``; ``null``: that of the null baseline.
        attack: Text of the strongest attack; "" where none was scored. ``clients``: of how many clients its scores are.
        status: Of that attack's score, such as "not-validated".
        accuracy: Of the model as deployed, in [0, 1]; ``change``: against no defence, with its 95 % interval ``change_low`` to
            ``change_high``. None where they were not measured.
        cost_note: Why ``change`` is not the defence's cost, or cannot be given; "" without canaries in training.
        epsilon: Spent by training or queries; None without a bound. Likewise with the audit's probes, and over all cuts.
        level: What ``epsilon`` and its bounds protect, "example-level" or "client-level"; "" without an epsilon.
        neighbours: Between which data sets they hold (see ``defenses.neighbours``); "" without an epsilon.
        epsilon_shown: Lower bound of epsilon from canaries in training, without an assumption about the mechanism; None where no
            claim was audited.
        epsilon_shown_gaussian: The same if noise is Gaussian.
        epsilon_gap: The claim less ``epsilon_shown``; negative where this bound is above the claim.
        epsilon_gap_gaussian: The claim less ``epsilon_shown_gaussian``.
        epsilon_confidence: With which both bounds hold, in [0, 1); of several seeds, those of all by a union bound.
        audit: Claim, bounds, confidence, canaries and power in sentences; "" without an audit.
        claims: What an external app itself says about its differential privacy; ``epsilon`` is never taken from it.
        reported: The accuracy that an external app itself reports; ``accuracy`` is never taken from it.
        epsilon_by_accountant: Name of an accountant, or of other neighbours -> that epsilon of the same noise.
        epsilon_terms: What ``epsilon`` follows from, by name: noise multiplier, clipping norm, sample rate, steps and delta.
        budget: Both in words; "" without an epsilon.
        warnings: What a reader must know besides: on the first line of a defence of all messages, and on each line of its own.
        first: It is the first line of its defence: the others have neither accuracy nor epsilon nor claims.
    """

    defense: str
    message: str
    verdict: str
    of: str = "images"
    recovered: int | None = None
    attacked: int | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    null: float | None = None
    attack: str = ""
    clients: int | None = None
    status: str = ""
    accuracy: float | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    cost_note: str = ""
    epsilon: float | None = None
    epsilon_with_probes: float | None = None
    epsilon_all_cuts: float | None = None
    level: str = ""
    neighbours: str = ""
    epsilon_shown: float | None = None
    epsilon_shown_gaussian: float | None = None
    epsilon_gap: float | None = None
    epsilon_gap_gaussian: float | None = None
    epsilon_confidence: float | None = None
    audit: str = ""
    epsilon_by_accountant: Mapping[str, float] = field(default_factory=dict)
    epsilon_terms: Mapping[str, float] = field(default_factory=dict)
    budget: str = ""
    claims: tuple[Claim, ...] = ()
    reported: AppAccuracy | None = None
    warnings: tuple[str, ...] = ()
    first: bool = False

    @property
    def shown(self) -> str:
        """The count, or the share; "" without a score."""
        if self.recovered is not None:
            return f"{self.recovered} of {self.attacked}"
        return "" if self.share is None else f"{percent(self.share)} of {self.of}"

    @property
    def interval(self) -> str:
        """Interval of the share, the null baseline where the share is of cells or values, and the number of clients."""
        shown = [f"{found} %"] if (found := within(self.low, self.high, percentage)) else []
        shown += [f"null {percent(self.null)}"] if self.null is not None else []
        return ", ".join(shown + ([count(self.clients, "client")] if self.clients else []))

    @property
    def change_interval(self) -> str:
        """Interval of the change in percentage points; "" without one."""
        return within(self.change_low, self.change_high, points)

    @property
    def change_text(self) -> str:
        """The change with its interval; "" where it was not measured."""
        if self.change is None:
            return ""
        return ", ".join(filter(None, [f"{points(self.change)} points", self.change_interval]))

    @property
    def protects(self) -> str:
        """What ``epsilon`` protects and between which neighbours, for tables; "" without an epsilon."""
        return ", ".join(filter(None, (self.level, self.neighbours)))

    @property
    def further_epsilon(self) -> tuple[str, ...]:
        """Lines for tables: the epsilon of other neighbours, and that of all cuts or of the audit's messages besides."""
        other = self.epsilon_by_accountant.get(ADD_OR_REMOVE)
        found = {ADD_OR_REMOVE: other, "all cuts": self.epsilon_all_cuts}
        if self.epsilon_all_cuts is None:
            found["with probes"] = self.epsilon_with_probes
        return tuple(f"{name}: {two(value)}" for name, value in found.items() if value is not None)

    @property
    def shown_epsilon(self) -> tuple[str, ...]:
        """Lines for tables: each lower bound of epsilon with its gap, that of Gaussian noise where it is larger, and confidence."""
        plain, gaussian = self.epsilon_shown, self.epsilon_shown_gaussian
        if plain is None:
            return ()
        lines = [f"shown \N{GREATER-THAN OR EQUAL TO} {two(plain)}{_gap(self.epsilon_gap)}"]
        if gaussian is not None and gaussian > plain:
            gap = _gap(self.epsilon_gap_gaussian)
            lines.append(f"\N{GREATER-THAN OR EQUAL TO} {two(gaussian)} if noise is Gaussian{gap}")
        if self.epsilon_confidence is not None:
            lines.append(f"{100 * self.epsilon_confidence:.4g} % confidence")
        return tuple(lines)

    @property
    def numbered_claims(self) -> tuple[Claim, ...]:
        """The claims that state an epsilon."""
        return tuple(claim for claim in self.claims if claim.number)


def outcomes(lines: Iterable[Line]) -> Iterator[Finding]:
    """One for each defence and kind of message, and for a sensitive attribute."""
    for line in lines:
        cells = judged(line)
        if line.attributes is not None and line.attributes not in cells.values():
            cells["sensitive attribute"] = line.attributes
        cost: dict[str, Any] = {
            "accuracy": line.deployed.mean if line.deployed else None,
            **(
                {"change": line.change.mean, "change_low": line.change.low, "change_high": line.change.high}
                if line.change
                else {}
            ),
            **{name: getattr(line, name) for name in OF_THE_LINE},
            **_level(line),
            **_audited(line.shown),
            "epsilon_by_accountant": dict(line.by_accountant),
            "epsilon_terms": {**line.terms, **({} if line.delta is None else {"delta": line.delta})},
            "first": True,
        }
        # Caveats on a message stand on its line, or by its name on the first where it has none.
        by_message = line.caveats_by_message if line.caveats_by_message.keys() <= cells.keys() else {}
        common = line.caveats if by_message else line.all_caveats
        for message, cell in cells.items():
            warnings = (*common, *by_message.get(message, ()))
            yield Finding(line.defense, message, readability(cell).value, **_right(cell), **cost, warnings=warnings)
            cost, common = {}, ()


def _gap(gap: float | None) -> str:
    """What the claim leaves above a bound, in brackets; "" without a finite claim."""
    if gap is None or not math.isfinite(gap):
        return ""
    return f" (gap {two(gap)})" if gap >= 0 else " (above the claim)"


def _level(line: Line) -> dict[str, str]:
    """What the epsilon of a line protects: as its rows say, or as its audit does where an app itself makes the claim."""
    named = line.neighbours if line.epsilon is not None else line.shown.neighbours if line.shown else ""
    return {"level": level_of(named), "neighbours": named}


def _audited(shown: ShownEpsilon | None) -> dict[str, Any]:
    """What a finding says of an audited claim."""
    if shown is None:
        return {}
    return {
        "epsilon_shown": shown.plain,
        "epsilon_shown_gaussian": shown.gaussian,
        "epsilon_gap": shown.gap,
        "epsilon_gap_gaussian": shown.gap_gaussian,
        "epsilon_confidence": shown.corrected,
        "audit": audit_text(shown),
    }


def verdict_lines(directory: Path) -> Iterator[str]:
    """The verdict on each defence and kind of message of a run, a line for each."""
    read = read_run(directory)
    for study in read.studies:
        plain = plain_words_of(study.rows)
        for one in outcomes(read.lines(study)):
            of = ", ".join(filter(None, (one.defense or plain.name, one.message)))
            right = "images recovered" if one.recovered is not None else "right"
            counted = f"{one.shown}{dagger(one.status)} {right}" if one.shown else ""
            interval = f" ({one.interval})" if counted and one.interval else ""
            yield f"{of}: {one.verdict}, {counted or 'no attack on images has a score'}{interval}"


def _right(cell: Cell | None) -> dict[str, Any]:
    """What an attack has right."""
    if cell is None:
        return {}
    about: dict[str, Any] = {"attack": cell.attack, "status": cell.status, "clients": cell.clients}
    if cell.recovered:
        share, (recovered, attacked) = cell.share, cell.recovered
        ends = {"share": share.mean, "low": share.low, "high": share.high} if share else {}
        return {"recovered": recovered, "attacked": attacked, **about, **ends}
    for metric, of in OTHER.items():
        if score := cell.scores.get(metric):
            null = cell.null(metric)
            ends = {"share": score.mean, "low": score.low, "high": score.high}
            return {"of": of, "null": null, **about, "status": score.status, **ends}
    return about


def as_json(directory: Path) -> list[dict[str, Any]]:
    """The findings of a run for programs, each with its study; numbers that are not finite are null."""
    read = read_run(directory)
    return [
        {"study": " · ".join(study.words)}
        | {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(one).items()
        }
        for study in read.studies
        for one in outcomes(read.lines(study))
    ]
