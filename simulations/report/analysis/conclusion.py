"""What a run says at the top of its page: a verdict for each defence, and a sentence about all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attacks.metrics.metric import IMAGES
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability, readability
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.plain import OWN_CLIENTS, Plain
from simulations.report.text import capital, count, decibel, points, short_names

LEVEL = 0.05
"""Of Fisher's exact test, two-sided."""


def verdicts(line: Line) -> tuple[tuple[str, Readability], ...]:
    """(what was attacked, verdict) of a defence: of probes and of real updates apart, else one with ""."""
    return tuple((of, readability(cell)) for of, cell in judged(line).items())


def judged(line: Line) -> dict[str, Cell | None]:
    """What was attacked -> the attack by which a defence is judged: that of the headline."""
    split = line.strongest is not None and line.strongest in (line.probe, line.update)
    leading = line.leading or tuple(filter(None, [line.reading or line.attributes]))
    found: dict[str, Cell | None] = {cell.observation if split else "": cell for cell in leading}
    return found or {"": None}


def conclusion(lines: Sequence[Line], plain: Plain = OWN_CLIENTS) -> str:
    """What the run says, a sentence or two for each kind of message that was attacked; "" before anything was.

    ``plain``: what the run without a defence is called.
    """
    if not any(line.attacks for line in lines):
        return ""
    attacked = [line for line in lines if line.attacks]
    kinds = dict.fromkeys(of for line in attacked for of in judged(line))
    what = "rows" if any(line.reading for line in lines) else "images"
    texts = [_concluded(of, what, plain.without, [line for line in attacked if of in judged(line)]) for of in kinds]
    untaught = next((f"{capital(line.untaught)}." for line in lines if line.defense and line.untaught), "")
    return " ".join(filter(None, [*texts, untaught]))


def _concluded(of: str, what: str, without: str, lines: Sequence[Line]) -> str:
    """What is said of the attacks on one kind of message."""
    cells = {line.defense: judged(line)[of] for line in lines}
    found = {defense: readability(cell) for defense, cell in cells.items()}
    plainly = f"{capital(of)}: {without}" if of else capital(without)
    texts = [f"{plainly} {_plainly(cells[''], what)}"] if "" in found else []
    defended = [line for line in lines if line.defense]
    names = short_names([line.defense for line in defended])

    def listed(some: Sequence[Line]) -> str:
        return "; ".join(_counted(line, names[line.defense], cells[line.defense]) for line in some)

    if found.get("") is Readability.UNKNOWN:
        # What was recovered is named; that nothing was says nothing here.
        some = [line for line in defended if recovers(cells[line.defense])]
        return "; ".join([*texts, *([f"under a defence: {listed(some)}"] if some else [])]) + "."
    groups = [(verdict, [line for line in defended if found[line.defense] is verdict]) for verdict in Readability]
    parts = [f"{len(group)} {_WORDS[verdict]} ({listed(group)})" for verdict, group in groups if group]
    if parts:
        joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        texts.append(f"{'of' if texts else 'Of'} {count(len(defended), 'defence')} {joined}")
    alike = [names[line.defense] for line in defended if differ_by_chance(cells[line.defense], cells.get(""))]
    said = "; ".join(texts) + "." if texts else ""
    return said + (f" Not distinguishable from no defence (Fisher's exact test): {', '.join(alike)}." if alike else "")


def differ_by_chance(cell: Cell | None, plain: Cell | None) -> bool:
    """Whether a defence's count of recovered images may be that without a defence: Fisher's exact test does not tell them apart.

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
    """Whether any image is recovered, be there enough images for a verdict or not."""
    return cell is not None and cell.recovered is not None and cell.recovered[0] > 0


def _plainly(cell: Cell | None, what: str) -> str:
    """What is said of the run without a defence, behind "without a defence"; never of a count that contradicts it."""
    verdict, counts = readability(cell), counted(cell)
    if verdict is not Readability.UNKNOWN:
        return _PLAIN[verdict].format(what) + (f" ({counts})" if counts else "")
    few = f"too few {what} were attacked for a verdict, which needs {LEAST_IMAGES} or more"
    if cell and cell.recovered and recovers(cell):
        return f"{cell.recovered[0]} of {cell.recovered[1]} {what} were recovered; {few}"
    score = cell.scores.get(IMAGES.decides) if cell else None
    if cell and score and not score.all_failed and not cell.unjudged and (cell.too_few or score.n < LEAST_IMAGES):
        return f"{few}, so that nothing here is evidence for a defence" + (f" ({counts})" if counts else "")
    return f"no attack is shown to recover the {what}, so that nothing here is evidence for a defence"


def _counted(line: Line, name: str, cell: Cell | None) -> str:
    """A defence with its count and what it changes of the accuracy: "VisualMixer 2 of 16 recovered, −2.7 points"."""
    drop = f"{points(-line.drop)} points" if line.drop is not None else ""
    return f"{name} {', '.join(filter(None, [counted(cell), drop]))}".rstrip()


def counted(cell: Cell | None) -> str:
    """How many images an attack recovered, beside what the mean of the class does; where none, by what it is partly readable."""
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


_PLAIN = {
    Readability.READABLE: "the {} are readable",
    Readability.PARTLY: "the {} are partly readable",
    Readability.NOT_RECOVERED: "the {} were not recovered",
}
_WORDS = {
    Readability.READABLE: "left them readable",
    Readability.PARTLY: "left them partly readable",
    Readability.UNKNOWN: "cannot be judged",
    Readability.NOT_RECOVERED: "kept these attacks from recovering them",
}
