"""How far the images of a defence can be read, in a word, and what that says of a run in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from simulations.report.analysis.bars import CLASS_MEAN, READ_GAIN
from simulations.report.analysis.cell import Cell
from simulations.report.analysis.control import LEAST_IMAGES
from simulations.report.analysis.families import ATTRIBUTES, IMAGES, READING
from simulations.report.analysis.real_updates import apart
from simulations.report.analysis.score import Score
from simulations.report.analysis.summary import Line
from simulations.report.text import capital, count, decibel, points, short_names

MOST = 0.5
"""Share of the images that must be read, one by one, before all are called readable."""


class Readability(StrEnum):
    """What the attacks of a report could read; never a promise of privacy."""

    READABLE = "readable"
    PARTLY = "partly readable"
    UNKNOWN = "unknown"
    NOT_RECOVERED = "not recovered"


RULE = (
    "The verdict is of the attack that reads most, whatever its mean. "
    f"An image is read when its guess picks it out of others of its kind and scores at least {READ_GAIN:g} dB above the best blind "
    "guess. Readable: at least half of the images are read. Partly: any of them is, or images are picked out far more often than "
    "chance, or the mean PSNR lies above the mean image, and above the mean of its class, with its whole interval, in any seed. "
    "Not recovered: none of that, and no mean above that bar, by attacks that read undefended images of that round. Unknown: fewer "
    f"than {LEAST_IMAGES} images, a mean above the bar whose interval is not, or no attack that reads undefended images either. "
    "Class mean: as many images would be read by who knows the class alone."
)
"""The thresholds, as the page states them."""


def readability(cell: Cell | None) -> Readability:
    """The verdict on what one attack recovered, of images, of rows of a table or of a sensitive attribute; see ``RULE``.

    Over several seeds it is of the images of all, and partly readable is what is so in any of them: an interval over two seeds is
    so wide that it would hide what both show. Of rows and attributes the bar is the best blind guess: readable is what is right in
    at least half of the cases that it misses.
    """
    found = _scored(cell)
    if cell is None or found is None:
        return Readability.UNKNOWN
    of, score, mean, null = found
    bar = max(cell.scales.get(CLASS_MEAN, null), null) if of == IMAGES.decides else null
    together = score.status == "ok" and score.low is not None and score.low > bar
    if of != IMAGES.decides:
        some = of in cell.leaking or together
        most = some and mean - null >= MOST * (1 - null)
    else:
        read, n = cell.read or (0, score.n)
        if (
            cell.read is None and cell.leaks and cell.picks and cell.picked
        ):  # rows of a version that told no single images
            read, n = cell.picked
        most = read >= MOST * n
        some = read > 0 or cell.picks or cell.clear or together
    if most or some:
        return Readability.READABLE if most else Readability.PARTLY
    # A mean above the bar that its interval does not tell from it is no evidence that nothing was recovered.
    return Readability.NOT_RECOVERED if score.status == "ok" and mean <= bar else Readability.UNKNOWN


def _scored(cell: Cell | None) -> tuple[tuple[str, str], Score, float, float] | None:
    """(metric and reference, score, its mean, the best blind guess's) that a verdict is of; None where there can be none."""
    of = next((one.decides for one in (IMAGES, READING, ATTRIBUTES) if cell and one.scored(cell.scores)), None)
    if cell is None or of is None:
        return None
    score = cell.scores[of]
    if score.mean is None or score.all_failed or score.n < LEAST_IMAGES or cell.too_few:
        return None
    return of, score, score.mean, max(cell.null_scores.get(of, {}).values(), default=0.0)


def verdicts(line: Line) -> tuple[tuple[str, Readability], ...]:
    """(what was attacked, verdict) of a defence: of probes and of real updates apart, else one with ""."""
    return tuple((of, readability(cell)) for of, cell in judged(line).items())


def judged(line: Line) -> dict[str, Cell | None]:
    """What was attacked -> the attack by which a defence is judged: that with the worst verdict, and of these what reads most.

    It need not be the one of the headline, whose PSNR is the highest. What could not be decided comes before what was not
    recovered, for it is no evidence for a defence; what an attack without a control failed at is none either way.
    """
    kind = IMAGES if line.leading else READING if line.reading else ATTRIBUTES
    split = line.strongest is not None and line.strongest in (line.probe, line.update)
    probes, updates = apart(line.cells)
    found: dict[str, Cell | None] = {}
    for leading in line.leading or tuple(filter(None, [line.reading or line.attributes])):
        among = (probes if leading is line.probe else updates) if split else line.cells
        candidates = [leading, *(cell for cell in among if kind.scored(cell.scores))]
        found[leading.observation if split else ""] = max(candidates, key=_told_most)  # of equals the first
    return found or {"": None}


def _told_most(cell: Cell) -> tuple[int, float, float]:
    """How bad the verdict on an attack is, the share of the images that it reads, and that of those it picks out."""
    word, scored = readability(cell), _scored(cell)
    open_ = word is Readability.UNKNOWN and scored is not None and scored[1].status == "ok"
    how_bad = _ORDER[word] + 2 * open_
    if how_bad < _ORDER[Readability.PARTLY]:
        return how_bad, 0.0, 0.0
    read, picked = (one[0] / one[1] if one and one[1] else 0.0 for one in (cell.read, cell.picked))
    return how_bad, read, picked if not read and cell.picks else 0.0


def conclusion(lines: Sequence[Line]) -> str:
    """What the run says, a sentence or two for each kind of message that was attacked; "" before anything was."""
    if not any(line.attacks for line in lines):
        return ""
    attacked = [line for line in lines if line.attacks]
    kinds = dict.fromkeys(of for line in attacked for of in judged(line))
    what = "rows" if any(line.reading for line in lines) else "images"
    told = [_concluded(of, what, [line for line in attacked if of in judged(line)]) for of in kinds]
    untaught = next((f"{capital(line.untaught)}." for line in lines if line.defense and line.untaught), "")
    return " ".join(filter(None, [*told, untaught]))


def _concluded(of: str, what: str, lines: Sequence[Line]) -> str:
    """What is said of the attacks on one kind of message."""
    cells = {line.defense: judged(line)[of] for line in lines}
    found = {defense: readability(cell) for defense, cell in cells.items()}
    start = f"{capital(of)}: without" if of else "Without"
    told = []
    if "" in found:
        how_many = counted(cells[""])
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
    return f"{name} {', '.join(filter(None, [counted(cell), drop]))}".rstrip()


def counted(cell: Cell | None) -> str:
    """How many images an attack read, beside what the mean of the class reads; where none, by what it is partly readable."""
    if cell is None or cell.read is None:
        return ""
    read, n = cell.read
    if not read and readability(cell) is Readability.PARTLY:
        if cell.picks and cell.picked:
            return f"{cell.picked[0]} of {cell.picked[1]} picked out, none read"
        return f"none of {n} read, {decibel(cell.mean(*IMAGES.decides))} dB"
    by_class = cell.read_of_class if read else None
    return f"{read} of {n} read" + (f", class mean {by_class[0]} of {by_class[1]}" if by_class and by_class[0] else "")


_ORDER = {
    Readability.UNKNOWN: 0,
    Readability.NOT_RECOVERED: 1,
    Readability.PARTLY: 3,
    Readability.READABLE: 4,
}
"""How bad a verdict is; between those on one attack that was not recovered and partly readable is what could not be decided."""
_PLAIN = {
    Readability.READABLE: "the {} are readable",
    Readability.PARTLY: "the {} are partly readable",
    Readability.UNKNOWN: "no attack is shown to read the {}, so that nothing here is evidence for a defence",
    Readability.NOT_RECOVERED: "the {} were not recovered",
}
_WORDS = {
    Readability.READABLE: "left them readable",
    Readability.PARTLY: "left them partly readable",
    Readability.UNKNOWN: "cannot be judged",
    Readability.NOT_RECOVERED: "kept these attacks from recovering them",
}
