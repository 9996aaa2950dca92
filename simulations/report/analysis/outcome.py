"""Findings of a run, one for each defence: for the page, the terminal and programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attacks.metrics.metric import ATTRIBUTES, CELLS
from defenses.neighbours import ADD_OR_REMOVE, level_of
from simulations.console.results import finite
from simulations.report.analysis.line import Line
from simulations.report.analysis.paired import PairedDifference
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.shown import audit_text
from simulations.report.analysis.verdict import LEAKS, Judged, judge
from simulations.report.studies.cell import FOUND, SEEN
from simulations.report.studies.plain import plain_words_of
from simulations.report.text import count, dagger, percent, percentage, points, two, within
from strategies.external_app.claim import AppAccuracy, Claim

USUAL_CHANCE = 0.0105
"""Of images with about 99 others, which the glossary gives."""
COUNTED = {SEEN: "recognisable", FOUND: "identified", CELLS.decides: "of cells", ATTRIBUTES.decides: "of values"}
"""Score behind a verdict -> what it is a share of."""


@dataclass(frozen=True)
class Message:
    """What the attacks found in a defence's messages of one kind and size.

    Attributes:
        message: What was attacked, such as "training update"; "" where the scenario sends one kind alone.
        real: Clients send such messages without being asked for them.
        images: Images behind one message, by ``steps`` local steps; None where that is not known.
        verdict: In a word of ``verdict.Verdict``.
        of: What is counted: "recognisable" or "identified" images, or shares "of cells" or "of values".
        found: Images of ``attacked``; None for cells and values.
        share: Of images, cells or values, in [0, 1], with its 95 % interval ``low`` to ``high``.
        recognisable: Images that are recognisable in the guesses of the strongest attack; ``identified``: that it identifies.
        chance: Bound on the probability that the best of as many guesses of the class has as many images.
        null: The null baseline of cells or values; of images the largest chance of a guess that knows the class.
        sent: Messages that the images were in, where these are fewer than images; else None.
        attack: Text of the strongest attack, ``tried`` of how many; ``adaptive``: some of them were made against the defence.
        clients: Of how many clients its scores are.
        status: Of its score, such as "not-validated".
        difference: To no defence, by image; None where neither has any image.
        warnings: What a reader must know of these messages.
    """

    message: str
    real: bool
    images: int | None
    steps: int | None
    verdict: str
    of: str = ""
    found: int | None = None
    attacked: int | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    recognisable: int | None = None
    identified: int | None = None
    chance: float | None = None
    null: float | None = None
    sent: int | None = None
    attack: str = ""
    tried: int = 0
    adaptive: bool = False
    clients: int | None = None
    status: str = ""
    difference: PairedDifference | None = None
    warnings: tuple[str, ...] = ()
    title: str = ""

    @property
    def shown(self) -> str:
        """The count, or the share; "" without a score."""
        if self.found is not None:
            return f"{self.found} of {self.attacked}{dagger(self.status)}"
        return "" if self.share is None else f"{percent(self.share)} {self.of}{dagger(self.status)}"

    @property
    def interval(self) -> str:
        """The interval in per cent, the number of messages, the null baseline (of images where they have fewer others than 99), and
        whether chance may give as much.
        """
        ends = within(self.low, self.high, percentage)
        known = self.null is not None and (self.found is None or self.null > USUAL_CHANCE)
        parts = (
            f"{ends} %" if ends else "",
            f"{'null' if self.found is None else 'chance'} {percent(self.null)}" if known else "",
            "" if self.sent is None else f"in {count(self.sent, 'message')}",
            self.by_chance,
        )
        return ", ".join(filter(None, parts))

    @property
    def by_chance(self) -> str:
        """What is said of images that are found where the verdict is not that any are."""
        return "no more than chance may give" if self.found and self.verdict not in LEAKS else ""

    @property
    def text(self) -> str:
        """Verdict, count and interval in a line."""
        counted = self.shown
        if self.found is not None:
            # The verdict has said what was counted where it found something.
            counted += " images" if self.verdict[:5] == self.of[:5] else f" {self.of}"
        return ", ".join(filter(None, (self.verdict, counted))) + (
            f" ({self.interval})" if counted and self.interval else ""
        )


@dataclass(frozen=True)
class Accuracy:
    """Of the model as deployed, in [0, 1], with its 95 % interval; the change against no defence likewise, None without one."""

    mean: float
    low: float | None
    high: float | None
    n: int
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    note: str = ""

    @property
    def change_text(self) -> str:
        """The change with its interval; "" where it was not measured."""
        ends = within(self.change_low, self.change_high, points)
        return "" if self.change is None else f"{points(self.change)} points" + (f", {ends}" if ends else "")


@dataclass(frozen=True)
class Epsilon:
    """A privacy budget with its terms, and what an audit showed of it.

    Attributes:
        spent: By training or queries; None where an app alone makes a claim. Likewise with the audit's probes, and over all cuts.
        level: What it protects, "example-level" or "client-level".
        neighbours: Between which data sets it holds (see ``defenses.neighbours``).
        terms: What it follows from, by name: noise multiplier, clipping norm, sample rate, steps and delta.
        by_accountant: Name of an accountant, or of other neighbours -> that epsilon of the same noise.
        text: All of this in words.
        shown: Lower bound from canaries, without an assumption about the mechanism; None without an audit.
        shown_gaussian: The same if noise is Gaussian; ``gap`` and ``gap_gaussian``: the claim less each.
        confidence: With which both hold, in [0, 1); of several seeds, those of all by a union bound.
        audit: Claim, bounds, confidence, canaries and power in sentences; "" without an audit.
    """

    spent: float | None
    with_probes: float | None = None
    all_cuts: float | None = None
    level: str = ""
    neighbours: str = ""
    terms: Mapping[str, float] = field(default_factory=dict)
    by_accountant: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    shown: float | None = None
    shown_gaussian: float | None = None
    gap: float | None = None
    gap_gaussian: float | None = None
    confidence: float | None = None
    audit: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines for tables, behind the number: what it protects, other budgets, and the bounds that were shown."""
        found = {f"if {ADD_OR_REMOVE}": self.by_accountant.get(ADD_OR_REMOVE), "all cuts": self.all_cuts}
        found |= {"if the audit's probes count": self.with_probes} if self.all_cuts is None else {}
        lines = [
            self.level,
            self.neighbours,
            *(f"{name}: {two(value)}" for name, value in found.items() if value is not None),
        ]
        if self.shown is not None:
            lines.append(f"shown \N{GREATER-THAN OR EQUAL TO} {two(self.shown)}")
            if self.shown_gaussian is not None and self.shown_gaussian > self.shown:
                lines.append(f"\N{GREATER-THAN OR EQUAL TO} {two(self.shown_gaussian)} if noise is Gaussian")
        return tuple(filter(None, lines))


@dataclass(frozen=True)
class Finding:
    """The finding for one defence.

    Attributes:
        defense: Pipeline text; "" without a defence.
        messages: What was found in each kind and size of message, real ones first.
        accuracy: None where it was not measured.
        epsilon: None without a bound or an audited claim.
        claims: What an external app itself says about its differential privacy; ``epsilon`` is never taken from it.
        reported: The accuracy that an external app itself reports; ``accuracy`` is never taken from it.
        warnings: What a reader must know besides, of all messages.
    """

    defense: str
    messages: tuple[Message, ...]
    accuracy: Accuracy | None = None
    epsilon: Epsilon | None = None
    claims: tuple[Claim, ...] = ()
    reported: AppAccuracy | None = None
    warnings: tuple[str, ...] = ()

    @property
    def numbered_claims(self) -> tuple[Claim, ...]:
        """The claims that state an epsilon."""
        return tuple(claim for claim in self.claims if claim.number)


def outcomes(lines: Iterable[Line]) -> list[Finding]:
    """The finding of each line."""
    return [_finding(line) for line in lines]


def _finding(line: Line) -> Finding:
    judged = list(line.judged)
    if line.attributes is not None and all(one.cell != line.attributes for one in judged):
        judged += judge([line.attributes])
    return Finding(
        line.defense,
        tuple(_message(line, one) for one in judged),
        _accuracy(line),
        _epsilon(line),
        line.claims,
        line.reported,
        line.caveats,
    )


def _message(line: Line, one: Judged) -> Message:
    cell, score, warnings = one.cell, one.score, line.caveats_of.get(one.title, ())
    about: dict[str, Any] = {"message": one.message, "real": one.real, "verdict": one.verdict.value, "title": one.title}
    about |= {"images": one.rung.images if one.rung else None, "steps": one.rung.steps if one.rung else None}
    if cell is None or score is None or one.of is None:
        return Message(**about, warnings=warnings)
    found = one.found
    return Message(
        **about,
        of=COUNTED[one.of],
        found=found[0] if found else None,
        attacked=score.attacked,
        share=score.mean,
        low=score.low,
        high=score.high,
        recognisable=cell.recognisable[0] if cell.recognisable else None,
        identified=cell.identified[0] if cell.identified else None,
        chance=one.probability,
        null=cell.chance if found else cell.null(one.of),
        sent=score.messages,
        attack=cell.attack,
        tried=len(one.cells),
        adaptive=one.title in line.adaptive,
        clients=cell.clients,
        status=cell.status,
        difference=line.differences.get(one.title),
        warnings=warnings,
    )


def _accuracy(line: Line) -> Accuracy | None:
    found, change = line.deployed, line.change
    if found is None or found.mean is None:
        return None
    ends = (change.mean, change.low, change.high) if change else (None, None, None)
    return Accuracy(found.mean, found.low, found.high, found.n, *ends, line.cost_note)


def _epsilon(line: Line) -> Epsilon | None:
    shown = line.shown
    if line.epsilon is None and shown is None:
        return None
    named = line.neighbours if line.epsilon is not None else shown.neighbours if shown else ""
    audited = (
        (shown.plain, shown.gaussian, shown.gap, shown.gap_gaussian, shown.corrected, audit_text(shown))
        if shown
        else ()
    )
    terms = {**line.terms, **({} if line.delta is None else {"delta": line.delta})}
    budgets = line.epsilon, line.epsilon_with_probes, line.epsilon_all_cuts
    return Epsilon(*budgets, level_of(named), named, terms, dict(line.by_accountant), line.budget, *audited)


def verdict_lines(directory: Path) -> Iterator[str]:
    """The verdict on each defence and kind of message of a run, a line for each."""
    read = read_run(directory)
    for study in read.studies:
        plain = plain_words_of(study.rows)
        for one in outcomes(read.lines(study)):
            for message in one.messages or (
                Message("", False, None, None, "unknown, no attack on images has a score"),
            ):
                yield f"{', '.join(filter(None, (one.defense or plain.name, message.title)))}: {message.text}"


def as_json(directory: Path) -> list[dict[str, Any]]:
    """The findings of a run for programs."""
    return findings(read_run(directory))


def findings(read: ReadRun) -> list[dict[str, Any]]:
    """Those of one run, or of several read as one, each with its study; numbers that are not finite are null."""
    return [
        {"study": " · ".join(study.words), **finite(asdict(one))}
        for study in read.studies
        for one in outcomes(read.lines(study))
    ]
