"""What a run found, in a line for each defence: the first table of the page, the last one on the terminal, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attacks.metrics.metric import ATTRIBUTES, CELLS
from simulations.console.terminal import Terminal
from simulations.report.analysis.conclusion import judged
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import readability
from simulations.report.analysis.run import read_run
from simulations.report.studies.cell import Cell
from simulations.report.text import NOTHING, percent, percentage, points, two, within

OTHER = {CELLS.decides: "of cells", ATTRIBUTES.decides: "of values"}
"""Score -> what it is a share of, where an attack recovers no images."""


@dataclass(frozen=True)
class Finding:
    """A defence and one kind of message.

    Attributes:
        defense: Pipeline text; "" without a defence.
        message: What was attacked, such as "one-step probe"; "" where the scenario sends one kind.
        verdict: As the report says it.
        recovered: Such as "7 of 16"; "" where nothing was scored. ``interval``: of that share, at 95 %.
        accuracy: Of the model as deployed, in [0, 1]; None where it was not measured. ``change``: in percentage points, or "".
        epsilon: Spent by training; None without a bound.
        warnings: What a reader must know besides.
        first: It is the first line of its defence. The others have neither accuracy nor epsilon nor warnings.
    """

    defense: str
    message: str
    verdict: str
    recovered: str
    interval: str
    accuracy: float | None = None
    change: str = ""
    epsilon: float | None = None
    warnings: tuple[str, ...] = ()
    first: bool = False


def outcomes(lines: Iterable[Line]) -> Iterator[Finding]:
    """One for each defence and kind of message."""
    for line in lines:
        accuracy = line.deployed.mean if line.deployed else None
        change = points(-line.drop) if line.drop is not None else ""
        whole = (accuracy, change, line.epsilon, line.caveats, True)
        for at, (message, cell) in enumerate(judged(line).items()):
            found = line.defense, message, readability(cell).value, *_recovered(cell)
            yield Finding(*found, *whole) if at == 0 else Finding(*found)


def _recovered(cell: Cell | None) -> tuple[str, str]:
    """The count, or the share, and its interval."""
    if cell is None:
        return "", ""
    score = cell.share if cell.recovered else None
    shown = f"{cell.recovered[0]} of {cell.recovered[1]}" if cell.recovered else ""
    for metric, what in OTHER.items():
        if not shown and metric in cell.scores:
            score = cell.scores[metric]
            shown = f"{percent(score.mean)} {what}"
    interval = within(score.low, score.high, percentage) if score else ""
    return shown, f"{interval} %" if interval else ""


def print_outcomes(console: Terminal, directory: Path) -> None:
    """Print the table of each study of a run, and below it what a reader must know besides."""
    read = read_run(directory)
    for study in read.studies:
        found = list(outcomes(read.lines(study)))
        console.print(_table(found))
        for one in found:
            for warning in one.warnings:
                console.say(f"  {one.defense or 'no defence'}: {warning}")


def as_json(directory: Path) -> list[dict[str, Any]]:
    """The same for programs; a budget that is infinite is null."""
    read = read_run(directory)
    found = [one for study in read.studies for one in outcomes(read.lines(study))]
    return [{**asdict(one), "epsilon": one.epsilon if math.isfinite(one.epsilon or 0.0) else None} for one in found]


def _table(found: list[Finding]) -> Table:
    messages, budgets = any(one.message for one in found), any(one.epsilon is not None for one in found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ["defence", *(["message"] if messages else []), "verdict", "recovered", "accuracy", "change"]
    for name in [*names, *(["epsilon"] if budgets else [])]:
        table.add_column(
            name, overflow="fold", justify="right" if name in ("accuracy", "change", "epsilon") else "left"
        )
    for one in found:
        recovered = one.recovered + (f" ({one.interval})" if one.interval else "")
        cells = [one.defense or "none" if one.first else "", *([one.message] if messages else []), one.verdict]
        cells += [recovered or NOTHING, percent(one.accuracy) if one.first else "", one.change]
        table.add_row(*map(Text, [*cells, *([two(one.epsilon)] if budgets and one.first else [])]))
    return table
