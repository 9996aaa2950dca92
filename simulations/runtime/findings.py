"""What a finished run found, as the terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import Finding, outcomes
from simulations.report.analysis.run import read_run
from simulations.report.text import NOTHING, dagger, percent, points, two


def print_findings(console: Terminal, directory: Path) -> None:
    """Print a table of each study of a run, and below it what a reader must know besides."""
    read = read_run(directory)
    for study in read.studies:
        found = list(outcomes(read.lines(study)))
        console.print(_table(found, " · ".join(study.words) if len(read.studies) > 1 else ""))
        for one in found:
            for warning in one.warnings:
                console.say(f"  {one.defense or 'no defence'}: {warning}")


def _table(found: Sequence[Finding], title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title) if title else None)
    messages, budgets = any(one.message for one in found), any(one.epsilon is not None for one in found)
    for name in ("defence", *(["message"] if messages else []), "verdict", "recovered"):
        table.add_column(name, overflow="fold")
    for name in ("accuracy", "change", *(["epsilon"] if budgets else [])):
        table.add_column(name, overflow="fold", justify="right")
    for one in found:
        cells = [one.defense or "none" if one.first else "", *([one.message] if messages else []), one.verdict]
        interval = f" ({one.interval})" if one.interval else ""
        cells.append((one.shown or NOTHING) + dagger(one.status) + interval)
        if one.first:
            further = f" ({one.further_epsilon})" if one.further_epsilon else ""
            cells += [percent(one.accuracy), points(one.change) if one.change is not None else ""]
            cells += [two(one.epsilon) + further] if budgets else []
        table.add_row(*map(Text, cells))
    return table
