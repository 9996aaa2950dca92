"""How far the images of a defence can be read, in a word, and what that says of a run in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from simulations.report.analysis.cell import Cell
from simulations.report.analysis.control import LEAST_IMAGES
from simulations.report.analysis.families import ATTRIBUTES, IMAGES, READING
from simulations.report.analysis.summary import Line
from simulations.report.text import capital, count, points, short_names

MOST = 0.5
"""Share of the images that must be picked out, each out of others of its kind, before all are called readable."""


class Readability(StrEnum):
    """What the strongest attack of a report could read; never a promise of privacy."""

    READABLE = "readable"
    PARTLY = "partly readable"
    UNKNOWN = "unknown"
    NOT_RECOVERED = "not recovered"


RULE = (
    "Readable: the mean PSNR lies above the mean image with its whole interval, and at least half of the images are picked out of "
    "others of their kind by their guesses. Partly: the PSNR does, or images are picked out far more often than chance. Not "
    "recovered: neither, by an attack that reads undefended images of that round. Unknown: fewer than "
    f"{LEAST_IMAGES} images, or an attack that does not read undefended images either."
)
"""The thresholds, as the page states them."""


def readability(cell: Cell | None) -> Readability:
    """The verdict on what one attack recovered, of images, of rows of a table or of a sensitive attribute; see ``RULE``.

    Of rows and attributes the bar is the best blind guess: readable is what is right in at least half of the cases that it misses.
    """
    if cell is None:
        return Readability.UNKNOWN
    of = next((one.decides for one in (IMAGES, READING, ATTRIBUTES) if one.scored(cell.scores)), None)
    score = cell.scores[of] if of else None
    if score is None or score.mean is None or score.all_failed or score.n < LEAST_IMAGES or cell.too_few:
        return Readability.UNKNOWN
    leaks = of in cell.leaking
    if of != IMAGES.decides:
        null = max(cell.null_scores.get(of, {}).values(), default=0.0)  # type: ignore[arg-type]
        most = leaks and score.mean - null >= MOST * (1 - null)
    else:
        most = leaks and cell.picks and cell.picked is not None and cell.picked[0] >= MOST * cell.picked[1]
        leaks = leaks or cell.picks
    if leaks:
        return Readability.READABLE if most else Readability.PARTLY
    return Readability.NOT_RECOVERED if score.status == "ok" else Readability.UNKNOWN


def verdicts(line: Line) -> tuple[tuple[str, Readability], ...]:
    """(what was attacked, verdict) of a defence: of probes and of real updates apart, else one with ""."""
    cells = line.leading or tuple(filter(None, [line.reading or line.attributes]))
    apart = line.strongest in (line.probe, line.update) and line.strongest is not None
    return tuple((cell.observation if apart else "", readability(cell)) for cell in cells) or (
        ("", Readability.UNKNOWN),
    )


def conclusion(lines: Sequence[Line]) -> str:
    """What the run says, a sentence or two for each kind of message that was attacked; "" before anything was."""
    if not any(line.attacks for line in lines):
        return ""
    found = {line.defense: dict(verdicts(line)) for line in lines if line.attacks}
    kinds = list(dict.fromkeys(of for verdict in found.values() for of in verdict))
    what = "rows" if any(line.reading for line in lines) else "images"
    return " ".join(_concluded(of, what, [line for line in lines if of in found.get(line.defense, {})]) for of in kinds)


def _concluded(of: str, what: str, lines: Sequence[Line]) -> str:
    """What is said of the attacks on one kind of message."""
    read = {line.defense: dict(verdicts(line))[of] for line in lines}
    start = f"{capital(of)}: without" if of else "Without"
    told = [f"{start} a defence {_PLAIN[read['']].format(what)}"] if "" in read else []
    defended = [line for line in lines if line.defense]
    groups = [(verdict, [line for line in defended if read[line.defense] is verdict]) for verdict in Readability]
    parts = [f"{len(group)} {_WORDS[verdict]} ({_listed(group)})" for verdict, group in groups if group]
    if parts and read.get("") is not Readability.UNKNOWN:
        joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        told.append(
            f"of {count(len(defended), 'defence')} {joined}"
            if told
            else f"Of {count(len(defended), 'defence')} {joined}"
        )
    return "; ".join(told) + "." if told else ""


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


def _listed(lines: Sequence[Line]) -> str:
    """Names with what each changes of the accuracy, such as "VisualMixer −2.7 points"."""
    names = short_names([line.defense for line in lines])
    return ", ".join(
        names[line.defense] + (f" {points(-line.drop)} points" if line.drop is not None else "") for line in lines
    )
