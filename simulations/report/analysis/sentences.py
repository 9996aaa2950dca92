"""One careful sentence about a defence: what the strongest attack recovered, and against what."""

from __future__ import annotations

from simulations.report.analysis.cell import Cell
from simulations.report.analysis.control import LEAST_IMAGES
from simulations.report.analysis.families import ATTRIBUTES, IMAGES, READING, Family
from simulations.report.analysis.readability import counted, judged, readability
from simulations.report.analysis.real_updates import stand_ins
from simulations.report.analysis.score import Score
from simulations.report.analysis.summary import Line
from simulations.report.text import count, decibel, round_name
from simulations.rows import null_name

LINE_UP = 0.0101
"""Highest chance of a blind guess in a full line-up, which has 99 others for each true image."""


def sentence(line: Line) -> str:
    """The headline of one defence, without its name: what the strongest attack recovered, and against what.

    Where the scenario knows one-step probes, this is said of them and of the updates that training sends, each with its interval.
    Where another attack than that with the highest PSNR reads more, it is named, for the verdict is of it.

    Never says that something is private: an attack that fails shows only that this attack fails.
    """
    told = _sentence(line)
    for of, cell in judged(line).items():
        leading = line.leading or (line.reading or line.attributes,)
        if cell is not None and cell not in leading:
            doubt = "" if cell.status == "ok" else f", {cell.status}"
            found = counted(cell) or readability(cell).value
            where = f"{cell.attack}, {round_name(cell.round, cell.final)}"
            told += f" The verdict{f' on the {of}' if of else ''} is of {where}: {found}{doubt}."
    return told


def _sentence(line: Line) -> str:
    """What is said of the strongest attack, or why nothing is."""
    best = line.strongest
    if line.reading is not None:
        return f"the strongest attack {_read(line.reading)}."
    if best is None and line.attributes is not None:
        return f"the strongest attack {_guessed(line.attributes)}."
    if best is None or best.psnr is None or best.psnr.mean is None:
        if not line.attacks:
            if line.bounds:
                return f"only attacked by what no server can do ({'; '.join(line.bounds)}), which says nothing of one that can."
            if line.apart:
                return f"attacked only {' and '.join(line.apart)}, of which sections of their own tell."
            return "not attacked yet."
        return "no attack on the images has a score, so nothing is known about them."
    told = f"{_observed(line, best)}."
    if line.attributes is None:
        return told
    return f"{told} Of {ATTRIBUTES.attacked} the strongest attack {_guessed(line.attributes, '')}."


def _observed(line: Line, best: Cell) -> str:
    """What the strongest attack did, on probes and on real updates where these are told apart."""
    if line.strongest not in (line.probe, line.update):
        return _recovered(best)
    parts = [f"{_seen(cell)}: {_recovered(cell, within=True)}" for cell in line.leading]
    if line.update is None:
        parts.append(f"real updates: {'no score of their images' if line.update_attacks else 'not attacked'}")
    return "; ".join(parts)


def _seen(cell: Cell) -> str:
    """What was attacked, such as "training update of 4 steps"."""
    steps = cell.card.local_steps
    return (
        cell.observation
        if steps is None or cell.observation in stand_ins()
        else f"{cell.observation} of {count(steps, 'step')}"
    )


def _recovered(cell: Cell, *, within: bool = False) -> str:
    """What an attack on the images did; ``within``: with the interval of its mean."""
    score = cell.scores[IMAGES.decides]
    if score.all_failed:
        return f"the attack failed on all {score.n} images, so nothing is known about them"
    seeds = len(score.by_seed)
    details = [f"n = {score.n}" + (f" over {seeds} seeds" if seeds > 1 else "")]
    if within and score.low is not None and score.high is not None:
        details.insert(0, f"95 % interval {decibel(score.low)} to {decibel(score.high)}")
    details += [f"worst {decibel(score.worst)}"] if score.worst is not None else []
    details += [f"{count(score.failures, 'failure')} scored as a grey image"] if score.failures else []
    shown = f"{decibel(score.mean)} dB ({', '.join(details)})"
    return f"the strongest attack {_verdict(cell, score, shown)}"


def _read(cell: Cell) -> str:
    """What a score says of the rows of a table."""
    return _shared(cell, READING, " of the cells", "row", "each column's most frequent category")


def _guessed(cell: Cell, what: str = f" of the values of {ATTRIBUTES.attacked}") -> str:
    """What a score says of a sensitive attribute."""
    return _shared(cell, ATTRIBUTES, what, "image", "its most frequent value")


def _shared(cell: Cell, of: Family, what: str, one: str, blind: str) -> str:
    """What a share of right guesses says, by its number, its interval and the null baseline.

    Args:
        cell: The attack.
        of: Kind of the score.
        what: Of what the share is, behind a space; "" where that was said.
        one: What n counts.
        blind: What the null baseline answers.
    """
    score = cell.scores[of.decides]
    null = max(cell.null_scores.get(of.decides, {}).values(), default=None)
    shown = f"{100 * (score.mean or 0):.1f} %{what} (n = {score.n} {one}s"
    # Of one attribute an image has all or nothing.
    tells = of is READING and score.worst is not None
    shown += f", worst {one} {100 * (score.worst or 0):.1f} %)" if tells else ")"
    if score.n < LEAST_IMAGES:
        return f"has right {shown}: too few {one}s for a verdict, which needs {LEAST_IMAGES} or more"
    if null is None:
        return f"has right {shown}; there is no null baseline to compare with"
    told = f"{blind}: {100 * null:.1f} %"
    return (
        f"read {shown}, above {told}" if of.decides in cell.leaking else f"has right {shown}, not clearly above {told}"
    )


def among(chance: float) -> str:
    """Of how many candidates images were picked out; where others were few, how often luck does it."""
    if chance <= LINE_UP:
        return f" of {1 / chance:.3g} candidates"
    return f", where a blind guess may be right in {100 * chance:.3g} %"


def _verdict(cell: Cell, score: Score, shown: str) -> str:
    """What a score says of the images, by their number, the null baselines and the true images that were picked out."""
    hits = ""
    if cell.picked and cell.chance_of_retrieval:
        hits = f"{picked(cell)} true images picked out{among(cell.chance_of_retrieval)}"
    if cell.unjudged:
        above = f", above the {null_name(cell.best_null[0])} image" if cell.leaks and cell.best_null else ""
        return f"scored {shown}{above}; whether that is these very images could not be judged: {cell.unjudged}"
    if cell.too_few:
        told = f"scored {shown}, {hits}" if hits else f"scored {shown}"
        return f"{told}: too few images for a verdict, which needs {LEAST_IMAGES} or more"
    if cell.best_null is None:
        return f"scored {shown}; there is no null baseline to compare with"
    if cell.leaks and cell.picks:
        return f"recovered the images at {shown}, {hits}"
    if cell.leaks:
        above = f"above the {null_name(cell.best_null[0])} image ({decibel(cell.best_null[1])} dB)"
        but = f"but with no more than {hits}" if hits else "but nobody looked for the true images among others"
        return f"scored {shown}, {above}, {but}"
    failed = f"scored {shown}, {_failed(cell, score)}"
    return f"{failed}, {'yet' if cell.picks else 'and'} {hits}" if hits else failed


def picked(cell: Cell) -> str:
    """How many true images an attack picked out, such as "15 of 16"; "" where nobody looked."""
    return f"{cell.picked[0]} of {cell.picked[1]}" if cell.picked else ""


def _failed(cell: Cell, score: Score) -> str:
    """How an attack that does not clear its null baselines compares with them."""
    null = cell.best_null
    assert null is not None
    assert score.mean is not None
    grey = cell.nulls.get("baseline:grey")
    if grey is not None and score.mean <= grey:
        text = "no better than a grey image"
    elif score.mean <= null[1]:
        text = f"no better than the {null_name(null[0])} image ({decibel(null[1])} dB)"
    else:
        text = f"not clearly better than the {null_name(null[0])} image ({decibel(null[1])} dB)"
    if score.worst is not None and score.worst > null[1] and score.n > 1:
        text += "; its worst image is above that baseline's mean"
    return text
