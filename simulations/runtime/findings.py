"""Findings of finished runs, as the terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from simulations.console.results import table
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import Finding, outcomes
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.text import NOTHING, dagger, fixed, percent, points, two, within


def print_findings(console: Terminal, directory: Path) -> None:
    """Print a table of each study of a run, and below it the notes that a reader needs."""
    print_read(console, read_run(directory))


def print_read(console: Terminal, read: ReadRun, title: str = "") -> None:
    """Print the tables of one run, or of several read as one, with a title over each."""
    for study in read.studies:
        lines = list(read.lines(study))
        found = list(outcomes(lines))
        names = [title, *(study.words if len(read.studies) > 1 else ())]
        console.print(_table(found, " · ".join(filter(None, names))))
        if any(dagger(one.status) for one in found):
            console.say("  † not validated, or too few images for a verdict")
        for one in found:
            reported = one.reported.text if one.reported else ""
            notes = [*(claim.text for claim in one.claims), one.budget, one.audit, reported]
            # Not those of each finding: they do not name their message.
            notes += [of for line in lines if one.first and line.defense == one.defense for of in line.all_caveats]
            for note in filter(None, notes):
                console.say(f"  {one.defense or 'no defence'}: {note}")


def recovered_text(shown: str, status: str, interval: str, between: str = " ") -> str:
    """The share that an attack recovered, with the mark of a score without a verdict, and its interval after ``between``."""
    return (shown or NOTHING) + dagger(status) + (f"{between}({interval})" if interval else "")


def _interval(one: Finding) -> str:
    """``one.interval`` in whole per cent, which a narrow table holds in one line."""
    shown = [f"{found} %"] if (found := within(one.low, one.high, _whole)) else []
    return ",\n".join(shown + ([f"null {_whole(one.null)} %"] if one.null is not None else []))


def _whole(share: float | None) -> str:
    return fixed(None if share is None else 100 * share, 0)


def _table(found: Sequence[Finding], title: str) -> Table:
    """Two lines a cell, so that 80 columns hold it; a column of messages only where there are several kinds."""
    messages = {one.message for one in found}
    budgets = any(one.epsilon is not None or one.numbered_claims for one in found)
    if len(messages) == 1:
        attacked = "".join(f"What the strongest attack recovered from {one}s" for one in messages if one)
        title = ". ".join(filter(None, (title, attacked)))

    def rows() -> Iterator[list[str]]:
        for one in found:
            cells = [one.defense or "none" if one.first else "", *([one.message] if len(messages) > 1 else [])]
            cells += [one.verdict, recovered_text(one.shown, one.status, _interval(one), "\n")]
            if one.first:
                own = one.reported if one.accuracy is None else None
                shown = [own.number if own else percent(one.accuracy)]
                shown += [f"({points(one.change)})", one.change_interval] if one.change is not None else []
                # Why it is no cost stands below the table, among the warnings.
                cells.append("\n".join(filter(None, [*shown, "with canaries" if one.cost_note else ""])))
                if budgets:
                    claimed = "; ".join(f"{claim.number}, {claim.detail}" for claim in one.numbered_claims)
                    further = (*one.protects.split(", "), *one.shown_epsilon, *one.further_epsilon)
                    cells.append("\n".join(filter(None, [claimed or two(one.epsilon), *further])))
            yield cells

    texts = ("defence", *(["message"] if len(messages) > 1 else []), "verdict", "recovered")
    return table(texts, ("accuracy (change)", *(["epsilon"] if budgets else [])), rows(), title)
