"""The top of a run's page: a verdict for each defence, and a sentence about all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attacks.metrics.metric import IMAGES
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability, readability
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.plain import OWN_CLIENTS, Plain
from simulations.report.text import capital, decibel, points, short_names

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


def conclusion(lines: Sequence[Line], plain: Plain = OWN_CLIENTS) -> str:
    """Conclusion of the run, a sentence for each defence and kind of attacked message; "" before any attack.

    ``plain``: what the run without a defence is called.
    """
    attacked = [line for line in lines if line.cells]
    kinds = dict.fromkeys(of for line in attacked for of in judged(line))
    what = "rows" if any(line.reading for line in lines) else "images"
    texts = [_concluded(of, what, plain.without, [line for line in attacked if of in judged(line)]) for of in kinds]
    untaught = next((f"{capital(line.untaught)}." for line in lines if line.defense and line.untaught), "")
    return " ".join(filter(None, [*texts, untaught if attacked else ""]))


def _concluded(of: str, what: str, without: str, lines: Sequence[Line]) -> str:
    """What is said of the attacks on one kind of message."""
    cells = {line.defense: judged(line)[of] for line in lines}
    names = short_names([line.defense for line in lines if line.defense]) | {"": capital(without)}
    texts = [f"{capital(of)}s."] if of else []
    works = "" in cells and readability(cells[""]) is not Readability.UNKNOWN
    for line in lines:
        cell = cells[line.defense]
        if not line.defense:
            texts.append(f"{names['']}: {_plainly(cell, what)}.")
        # Where no attack works without a defence, what was recovered is named; that nothing was says nothing here.
        elif works or recovers(cell) or "" not in cells:
            change = f"{points(line.cost.mean)} points" if line.cost else ""
            found = ", ".join(filter(None, [counted(cell), change]))
            texts.append(f"{names[line.defense]}: {readability(cell)}{f' ({found})' if found else ''}.")
    alike = [names[one] for one in cells if one and works and differ_by_chance(cells[one], cells[""])]
    same = f"Not distinguishable from no defence (Fisher's exact test): {', '.join(alike)}." if alike else ""
    return " ".join(filter(None, [*texts, same]))


def differ_by_chance(cell: Cell | None, plain: Cell | None) -> bool:
    """Whether chance may explain the difference in recovered images with and without the defence, by Fisher's exact test.

    Both may be the maximum over several attacks, and not over as many: a larger count is no sign that a defence does harm.
    """
    if not (recovers(cell) or recovers(plain)) or cell is None or plain is None:
        return False
    if cell.recovered is None or plain.recovered is None:
        return False
    from scipy.stats import fisher_exact

    table = np.array([[recovered, n - recovered] for recovered, n in (cell.recovered, plain.recovered)])
    return bool(fisher_exact(table).pvalue >= LEVEL)


def recovers(cell: Cell | None) -> bool:
    """Whether any image is recovered, whether or not there are enough images for a verdict."""
    return cell is not None and cell.recovered is not None and cell.recovered[0] > 0


def _plainly(cell: Cell | None, what: str) -> str:
    """The verdict on the run without a defence, with its reason where there is none; never against a count."""
    verdict, counts = readability(cell), counted(cell)
    few = f"too few {what} were attacked for a verdict, which needs {LEAST_IMAGES} or more"
    score = cell.scores.get(IMAGES.decides) if cell else None
    scored = cell and score and not score.all_failed and not cell.unjudged and (cell.too_few or score.n < LEAST_IMAGES)
    why = f"no attack is shown to recover the {what}, so nothing here is evidence for a defence"
    if recovers(cell):
        why = few
    elif scored:
        why = f"{few}, so nothing here is evidence for a defence"
    return f"{verdict}{f' ({counts})' if counts else ''}" + (f": {why}" if verdict is Readability.UNKNOWN else "")


def counted(cell: Cell | None) -> str:
    """Number of images that an attack recovered, beside that of the class mean; where 0, the evidence of partial recovery."""
    if cell is None or cell.recovered is None:
        return ""
    recovered, n = cell.recovered
    if not recovered and readability(cell) is Readability.PARTLY:
        if cell.picks and cell.picked:
            return f"0 of {n} recovered, {cell.picked[0]} of {cell.picked[1]} identified"
        return f"0 of {n} recovered, {decibel(cell.mean(*IMAGES.decides))} dB"
    by_class = cell.recovered_by_class if recovered else None
    return f"{recovered} of {n} recovered" + (
        f", class mean {by_class[0]} of {by_class[1]}" if by_class and by_class[0] else ""
    )
