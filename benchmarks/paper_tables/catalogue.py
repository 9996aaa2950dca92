"""Reads the papers' claims from ``claims/*.toml``: tables and figures, the runs that measure them, and what a claim compares.

A file holds one paper. ``names`` are pipelines of defences; a list of them stands for their mean, and a name that is not listed is
filled into ``unnamed``. ``numbers`` are metrics as rows have them. A claim compares a ``sum`` such as
``accuracy(BS) - accuracy()`` with a bound, in the unit that the page shows.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.metrics.registry import metric_of

FOLDER = Path(__file__).resolve().parent / "claims"
PERCENT = ("test-accuracy", "attribute-accuracy", "recognition")
"""Metrics that the page shows in per cent, and their differences in points."""
UNITS = {"psnr": "dB", "psnr-paper": "dB"}
TERM = re.compile(r"([+-]?)\s*([\d.]*)\s*([\w-]+)\(([^()]*)\)\s*")
"""A sign, a factor, the name of a number, and that of a pipeline."""


@dataclass(frozen=True)
class Run:
    """One configuration with settings over it, repeated with several seeds.

    Attributes:
        name: Stem of a file in ``simulations/configs``, and after a hyphen a label where settings are over it.
        settings: "key=value" over the file, without the seed.
        seconds: Rough cost of one seed, by which cheaper runs go first.
        most_seeds: No more seeds than this are run unless the run is named.
    """

    name: str
    settings: tuple[str, ...] = ()
    seconds: int = 300
    most_seeds: int = 5


@dataclass(frozen=True)
class Cell:
    """One number of a run, by the fields of its rows.

    Attributes:
        metric: Name of the metric.
        defense: Pipeline text; "" is no defence.
        attack: Attack text, or the name of a null baseline; "" for a number about training.
        reference: What images were compared with, or "deployed": protected test images, or plain ones where nothing protects them.
        at: "first" or "last" round that has the number, or the number of a round.
        cut: Where the model is cut; "" for any.
        observation: What was attacked, as threat cards name it; "" for any.
        run: Name of the run.
    """

    metric: str
    defense: str = ""
    attack: str = ""
    reference: str = ""
    at: str | int = "last"
    cut: str = ""
    observation: str = ""
    run: str = ""


@dataclass(frozen=True)
class Claim:
    """A sum of cells with factors, which a paper says to lie above or below a number.

    Attributes:
        says: The claim in a few words.
        terms: (factor, cell); () where no run measures it.
        side: "above" or "below": where the sum lies by the claim.
        bound: The number that the sum is compared with, in shown units.
        unit: Of the sum; "" for none.
        scale: What a run's sum is multiplied by on the page, such as 100 for points.
        paper: The paper's numbers for the terms, in their order; "" where it has none.
        promise: Key of the paper's promise that the claim helps to decide; "" for none.
        control: Whether the claim is that the attack works without a defence. Its rows then decide it also where they are
            not validated, since not to be validated is to fail there. It refutes no table.
        variant: Whether it is of a configuration beside the paper's own method. It is shown, and decides nothing.
        favours: The defence that is better than the paper says where the claim is refuted; "" where a refutation speaks
            against the paper's defence or for none.
        ours: Why the comparison or its bound is no claim of the paper; it is shown, and decides nothing. "" where it is.
        note: Why the claim is open whatever its interval; "" where the interval decides.
        command: What repeats the number, in Markdown, where that is not the table's; "" for the table's.
        earlier: What the pages of results had in commit 55596c58, by ``verdict.measured_earlier``.
        within: Smallest and largest possible value, where these do not follow from the terms.
    """

    says: str
    terms: tuple[tuple[float, Cell], ...] = ()
    side: str = "below"
    bound: float = 0.0
    unit: str = ""
    scale: float = 1.0
    paper: str = ""
    promise: str = ""
    control: bool = False
    variant: bool = False
    favours: str = ""
    ours: str = ""
    note: str = ""
    command: str = ""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    within: tuple[float, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper with claims.

    Attributes:
        name: "Table 4" or "Figure 5", numbered as in the paper; other words for comparisons of ours.
        says: What it claims, with remarks on our size and on stronger attacks.
        claims: In the page's order.
        command: What repeats its numbers, in Markdown, where the runner does not; "" where it does.
    """

    name: str
    says: str
    claims: tuple[Claim, ...]
    command: str = ""

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs that its claims read."""
        return tuple(dict.fromkeys(cell.run for claim in self.claims for _, cell in claim.terms))


@dataclass(frozen=True)
class Paper:
    """One paper.

    Attributes:
        name: Short name.
        about: Authors, terms, size of our runs and stronger attacks, for the page.
        promises: Key -> what the paper promises above all, in a sentence.
        runs: Runs by name.
        tables: Tables and figures with claims of their own.
        repeats: Figure -> the table or figure that has all of its claims, such as one of which it shows pictures.
        nothing: Table or figure without a claim to check -> why.
        absent: Table or figure that cannot be run here -> why.
    """

    name: str
    about: str
    promises: Mapping[str, str]
    runs: Mapping[str, Run]
    tables: tuple[Table, ...]
    repeats: Mapping[str, str]
    nothing: Mapping[str, str]
    absent: Mapping[str, str]


def pipelines(name: str, known: Mapping[str, Any]) -> list[str]:
    """Pipeline texts of a name, by a file's or table's ``names`` and ``unnamed``; the mean over them is meant."""
    found = known["names"].get(name, known.get("unnamed", "{}").replace("{}", name) if name else "")
    return [found] if isinstance(found, str) else [text for one in found for text in pipelines(one, known)]


def terms(text: str, runs: Sequence[str], known: Mapping[str, Any], **where: Any) -> tuple[tuple[float, Cell], ...]:
    """The terms of a sum; over several runs of its mean.

    Raises:
        ValueError: When the text is no sum, or names an unknown number.
    """
    if TERM.sub("", text):
        raise ValueError(f"{text!r}: no sum of numbers such as 'accuracy(BS) - 0.5 accuracy()'")
    found = []
    for run in runs:
        for sign, factor, number, name in TERM.findall(text):
            if number not in known["numbers"]:
                raise ValueError(f"{text!r}: unknown number {number!r}; known: {', '.join(known['numbers'])}")
            defenses = pipelines(name, known)
            share = float(f"{sign}{factor or 1}") / (len(defenses) * len(runs))
            fields = {**known["numbers"][number], **where, "run": run}
            found += [(share, Cell(defense=defense, **fields)) for defense in defenses]
    return tuple(found)


def _claim(data: Mapping[str, Any], known: Mapping[str, Any], first: str) -> Claim:
    kept = dict(data)
    text, run = kept.pop("sum", ""), kept.pop("run", first)
    where = {name: kept.pop(name) for name in ("cut", "at") if name in kept}
    of = terms(text, [run] if isinstance(run, str) else run, known, **where)
    if of:
        metric = of[0][1].metric
        shown = UNITS.get(metric, "") if metric not in PERCENT else "%" if len(of) == 1 else "points"
        kept = {"unit": shown, "scale": 100.0 if metric in PERCENT else 1.0, **kept}
    for side in ("above", "below"):
        if side in kept:
            kept |= {"side": side, "bound": float(kept.pop(side))}
    return Claim(terms=of, **kept)


def _table(name: str, data: Mapping[str, Any], paper: Mapping[str, Any]) -> Table:
    known = {**paper, "names": {**paper.get("names", {}), **data.get("names", {})}}
    shared = {"note": data["note"]} if "note" in data else {}
    claims = tuple(_claim({**shared, **one}, known, data.get("run", "")) for one in data["claims"])
    return Table(name, data["says"], claims, data.get("command", ""))


def papers() -> tuple[Paper, ...]:
    """All papers, in the order of their files."""
    return tuple(_paper(tomllib.loads(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.toml")))


def _paper(data: Mapping[str, Any]) -> Paper:
    runs = {name: Run(name, **of) for name, of in data["runs"].items()}
    tables = tuple(_table(name, of, data) for name, of in data["tables"].items())
    rest = (data.get(name, {}) for name in ("repeats", "nothing", "absent"))
    return Paper(data["paper"], data["about"], data["promises"], runs, tables, *rest)


def cells_of(run: str) -> list[Cell]:
    """All cells that claims read in a run."""
    claims = [claim for paper in papers() for table in paper.tables for claim in table.claims]
    return list(dict.fromkeys(cell for claim in claims for _, cell in claim.terms if cell.run == run))


def possible(claim: Claim) -> tuple[float, float]:
    """Smallest and largest value that a claim's sum can have, in shown units."""
    ends = [sorted(claim.scale * factor * end for end in range_of(cell.metric)) for factor, cell in claim.terms]
    low, high = claim.within or (sum(low for low, _ in ends), sum(high for _, high in ends))
    return (low, high) if ends or claim.within else (-math.inf, math.inf)


def range_of(metric: str) -> tuple[float, float]:
    """Smallest and largest value of a metric."""
    return metric_of(metric).range
