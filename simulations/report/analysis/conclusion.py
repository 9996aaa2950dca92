"""The verdict for each defence, and the defences that cannot be told apart from none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability, readability
from simulations.report.studies.cell import Cell
from simulations.report.text import short_names

LEVEL = 0.05
"""Of Fisher's exact test, two-sided."""


def verdicts(line: Line) -> tuple[tuple[str, Readability], ...]:
    """(attacked data, verdict) of a defence: probes and real updates apart, else one pair with ""."""
    return tuple((of, readability(cell)) for of, cell in judged(line).items())


def judged(line: Line) -> dict[str, Cell | None]:
    """Attacked data -> the attack that decides a defence's verdict: that of the headline."""
    split = line.strongest is not None and line.strongest in (line.probe, line.update)
    leading = line.leading or tuple(filter(None, [line.reading or line.attributes]))
    found: dict[str, Cell | None] = {cell.observation if split else "": cell for cell in leading}
    return found or {"": None}


def not_distinguished(lines: Sequence[Line]) -> str:
    """The defences under which chance may explain the difference to no defence, for each kind of message, as a sentence; or ""."""
    names = short_names([line.defense for line in lines if line.defense])
    plain = next((judged(line) for line in lines if not line.defense), {})
    alike = [
        f"{names[line.defense]}{f' ({of})' if of else ''}"
        for line in lines
        for of, cell in judged(line).items()
        if line.defense and differ_by_chance(cell, plain.get(of))
    ]
    return f"Not distinguishable from no defence (Fisher's exact test): {', '.join(alike)}." if alike else ""


def differ_by_chance(cell: Cell | None, plain: Cell | None) -> bool:
    """Whether chance may explain the difference in recovered images with and without the defence, by Fisher's exact test.

    Both may be the maximum over several attacks, and not over as many: a larger count is no sign that a defence does harm.
    """
    if not (cell and plain and cell.recovered and plain.recovered) or readability(plain) is Readability.UNKNOWN:
        return False
    if not (recovers(cell) or recovers(plain)):
        return False
    from scipy.stats import fisher_exact

    table = np.array([[recovered, n - recovered] for recovered, n in (cell.recovered, plain.recovered)])
    return bool(fisher_exact(table).pvalue >= LEVEL)


def recovers(cell: Cell | None) -> bool:
    """Whether any image is recovered, whether or not there are enough images for a verdict."""
    return cell is not None and cell.recovered is not None and cell.recovered[0] > 0
