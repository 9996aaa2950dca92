"""How far the images of a defence can be read, in a word, and what that says of a run in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from simulations.report.analysis.bars import READ_GAIN
from simulations.report.analysis.cell import Cell
from simulations.report.analysis.control import LEAST_IMAGES
from simulations.report.analysis.families import ATTRIBUTES, IMAGES, READING
from simulations.report.analysis.summary import Line
from simulations.report.text import capital, count, points, short_names
from simulations.rows import SCALE_PREFIX

MOST = 0.5
"""Share of the images that must be read, one by one, before all are called readable."""


class Readability(StrEnum):
    """What the strongest attack of a report could read; never a promise of privacy."""

    READABLE = "readable"
    PARTLY = "partly readable"
    UNKNOWN = "unknown"
    NOT_RECOVERED = "not recovered"


RULE = (
    f"An image is read when its guess picks it out of others of its kind and scores at least {READ_GAIN:g} dB above the best blind "
    "guess. Readable: at least half of the images are read. Partly: any of them is, or images are picked out far more often than "
    "chance, or the mean PSNR lies above the mean image, and above the mean of its class, with its whole interval. Not recovered: "
    "none of that, by an attack that reads undefended images of that round. Unknown: fewer than "
    f"{LEAST_IMAGES} images, or an attack that does not read undefended images either."
)
"""The thresholds, as the page states them."""

CLASS_MEAN = f"{SCALE_PREFIX}class-mean"
"""The scale of what who knows only the class could guess."""


def readability(cell: Cell | None) -> Readability:
    """The verdict on what one attack recovered, of images, of rows of a table or of a sensitive attribute; see ``RULE``.

    Over several seeds it is of the images of all, and of the interval over seeds. Of rows and attributes the bar is the best blind
    guess: readable is what is right in at least half of the cases that it misses.
    """
    if cell is None:
        return Readability.UNKNOWN
    of = next((one.decides for one in (IMAGES, READING, ATTRIBUTES) if one.scored(cell.scores)), None)
    score = cell.scores[of] if of else None
    if of is None or score is None or score.mean is None or score.all_failed or score.n < LEAST_IMAGES or cell.too_few:
        return Readability.UNKNOWN
    null = max(cell.null_scores.get(of, {}).values(), default=0.0)
    above = of in cell.leaking and (score.mean if score.low is None else score.low) > null
    if of != IMAGES.decides:
        most = above and score.mean - null >= MOST * (1 - null)
        some = above
    else:
        read, n = cell.read or (0, score.n)
        if cell.read is None and above and cell.picks and cell.picked:  # rows of a version that told no single images
            read, n = cell.picked
        most = read >= MOST * n
        some = (
            read > 0
            or cell.picks
            or (above and (score.low or score.mean) > max(cell.scales.get(CLASS_MEAN, null), null))
        )
    if most or some:
        return Readability.READABLE if most else Readability.PARTLY
    return Readability.NOT_RECOVERED if score.status == "ok" else Readability.UNKNOWN


def verdicts(line: Line) -> tuple[tuple[str, Readability], ...]:
    """(what was attacked, verdict) of a defence: of probes and of real updates apart, else one with ""."""
    return tuple((of, readability(cell)) for of, cell in _judged(line).items())


def _judged(line: Line) -> dict[str, Cell | None]:
    """What was attacked -> the attack by which a defence is judged."""
    cells = line.leading or tuple(filter(None, [line.reading or line.attributes]))
    apart = line.strongest in (line.probe, line.update) and line.strongest is not None
    return {cell.observation if apart else "": cell for cell in cells} or {"": None}


def conclusion(lines: Sequence[Line]) -> str:
    """What the run says, a sentence or two for each kind of message that was attacked; "" before anything was."""
    if not any(line.attacks for line in lines):
        return ""
    attacked = [line for line in lines if line.attacks]
    kinds = dict.fromkeys(of for line in attacked for of in _judged(line))
    what = "rows" if any(line.reading for line in lines) else "images"
    told = [_concluded(of, what, [line for line in attacked if of in _judged(line)]) for of in kinds]
    untaught = next((f"{capital(line.untaught)}." for line in lines if line.defense and line.untaught), "")
    return " ".join(filter(None, [*told, untaught]))


def _concluded(of: str, what: str, lines: Sequence[Line]) -> str:
    """What is said of the attacks on one kind of message."""
    cells = {line.defense: _judged(line)[of] for line in lines}
    found = {defense: readability(cell) for defense, cell in cells.items()}
    start = f"{capital(of)}: without" if of else "Without"
    told = []
    if "" in found:
        how_many = _count(cells[""])
        told.append(f"{start} a defence {_PLAIN[found['']].format(what)}" + (f" ({how_many})" if how_many else ""))
    defended = [line for line in lines if line.defense]
    names = short_names([line.defense for line in defended])
    groups = [(verdict, [line for line in defended if found[line.defense] is verdict]) for verdict in Readability]
    parts = [
        f"{len(group)} {_WORDS[verdict]} ({'; '.join(_told(line, names[line.defense], cells[line.defense]) for line in group)})"
        for verdict, group in groups
        if group
    ]
    if parts and found.get("") is not Readability.UNKNOWN:
        joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        told.append(f"{'of' if told else 'Of'} {count(len(defended), 'defence')} {joined}")
    return "; ".join(told) + "." if told else ""


def _told(line: Line, name: str, cell: Cell | None) -> str:
    """A defence with how many images were read and what it changes of the accuracy: "VisualMixer 2 of 16 read, −2.7 points"."""
    drop = f"{points(-line.drop)} points" if line.drop is not None else ""
    return f"{name} {', '.join(filter(None, [_count(cell), drop]))}".rstrip()


def _count(cell: Cell | None) -> str:
    return f"{cell.read[0]} of {cell.read[1]} read" if cell and cell.read else ""


_PLAIN = {
    Readability.READABLE: "the {} are readable",
    Readability.PARTLY: "some of the {} are readable",
    Readability.UNKNOWN: "no attack is shown to read the {}, so that nothing here is evidence for a defence",
    Readability.NOT_RECOVERED: "the {} were not recovered",
}
_WORDS = {
    Readability.READABLE: "left them readable",
    Readability.PARTLY: "left them partly readable",
    Readability.UNKNOWN: "cannot be judged",
    Readability.NOT_RECOVERED: "kept these attacks from recovering them",
}
