"""What finished runs found, as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from simulations.console.results import table
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import Finding, outcomes
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.text import NOTHING, dagger, percent, points, two


def print_findings(console: Terminal, directory: Path) -> None:
    """Print a table of each study of a run, and below it what a reader must know besides."""
    print_read(console, read_run(directory))


def print_read(console: Terminal, read: ReadRun, title: str = "") -> None:
    """Likewise of one run, or of several that were read as one, with a title over each table."""
    for study in read.studies:
        found = list(outcomes(read.lines(study)))
        names = [title, *(study.words if len(read.studies) > 1 else ())]
        console.print(_table(found, " · ".join(filter(None, names))))
        for one in found:
            for claim in one.claims:
                console.say(f"  {one.defense or 'no defence'}: {claim.text}")
            for warning in one.warnings:
                console.say(f"  {one.defense or 'no defence'}: {warning}")


def recovered_text(shown: str, status: str, interval: str) -> str:
    """What an attack has right, with the mark of a score that is no verdict and its interval."""
    return (shown or NOTHING) + dagger(status) + (f" ({interval})" if interval else "")


def _table(found: Sequence[Finding], title: str) -> Table:
    messages = any(one.message for one in found)
    budgets = any(one.epsilon is not None or one.numbered_claims for one in found)

    def rows() -> Iterator[list[str]]:
        for one in found:
            cells = [one.defense or "none" if one.first else "", *([one.message] if messages else []), one.verdict]
            cells.append(recovered_text(one.shown, one.status, one.interval))
            if one.first:
                further = f" ({one.further_epsilon})" if one.further_epsilon else ""
                cells += [percent(one.accuracy), points(one.change) if one.change is not None else ""]
                claimed = "; ".join(f"{claim.number}, {claim.detail}" for claim in one.numbered_claims)
                cells += [claimed or two(one.epsilon) + further] if budgets else []
            yield cells

    texts = ("defence", *(["message"] if messages else []), "verdict", "recovered")
    return table(texts, ("accuracy", "change", *(["epsilon"] if budgets else [])), rows(), title)
