"""The table of attacks against defences: each cell shows the attack's best round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attacks.metrics.metric import ATTRIBUTES, CELLS, IMAGES, LABELS
from simulations.report.drawing.looks import Faces
from simulations.report.studies.cell import Cell
from simulations.report.studies.rows import grouped
from simulations.report.text import dagger, percent, round_name, signed

SHARES = {LABELS.decides: "labels", CELLS.decides: "cells", ATTRIBUTES.decides: "values"}
"""Score -> what it is a share of, where an attack recovers no images."""


@dataclass(frozen=True)
class Heat:
    """One attack against one defence.

    Attributes:
        text: What was recovered, such as "7 of 16".
        share: That, in [0, 1]; 0.0 where it is no share.
        null: The share of the best null baseline; None where the share is one of recovered images, which no baseline has.
        at: In which round.
        doubt: The dagger of an attack that is not validated; "" of others.
    """

    text: str
    share: float
    null: float | None
    at: str
    doubt: str


@dataclass(frozen=True)
class HeatRow:
    """One attack on one kind of message: defence -> its best result; a missing defence was not attacked."""

    attack: str
    observation: str
    of: str
    cells: Mapping[str, Heat]

    @property
    def most(self) -> float:
        """The largest share over defences."""
        return max(one.share for one in self.cells.values())


def heat_rows(cells: Sequence[Cell]) -> list[HeatRow]:
    """Rows of attacks: on images first, then on other data, the most successful first."""
    several = len({cell.observation for cell in cells}) > 1
    rows = [
        HeatRow(
            attack,
            observation if several else "",
            _of(of),
            {defense: _heat(max(each, key=_rank)) for defense, each in grouped(of, lambda one: one.defense).items()},
        )
        for (attack, observation), of in grouped(cells, lambda one: (one.attack, one.observation)).items()
    ]
    kinds = list(dict.fromkeys(["images", *(row.of for row in rows)]))
    return sorted(rows, key=lambda row: (kinds.index(row.of), -row.most))


def lead(rows: Sequence[HeatRow], names: Mapping[str, str], faces: Faces, bounds: Collection[str]) -> str:
    """The finding, as a sentence: which attacks recovered most images under which defence; "" where none recovered any."""
    of_images = [(row, defense, one) for row in rows for defense, one in row.cells.items() if row.of == "images"]
    able = [found for found in of_images if found[0].attack not in bounds and found[2].share and not found[2].doubt]
    if not able:
        return ""
    most = max(one.share for _, _, one in able)
    best: dict[str, tuple[str, Heat]] = {}
    for row, defense, one in able:
        if one.share == most:
            best.setdefault(names[row.attack], (faces[defense].name, one))
    places = {(one.text, under, one.at) for under, one in best.values()}
    if len(places) > 1:
        each = [f"{name} ({one.text} under {under}, {one.at})" for name, (under, one) in best.items()]
        return f"{_and(each)} recovered most images."
    text, under, at = places.pop()
    return f"{_and(list(best))} recovered most images: {text}{' each' if len(best) > 1 else ''} under {under} ({at})."


def _and(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])


def _of(cells: Sequence[Cell]) -> str:
    """What an attack recovers."""
    if any(cell.psnr is not None for cell in cells):
        return "images"
    return next((of for key, of in SHARES.items() if any(key in cell.scores for cell in cells)), "others")


def _score(cell: Cell) -> tuple[float | None, float | None]:
    """The share that an attack has right, where that is no share of images, and that of the best null baseline."""
    key = next((key for key in SHARES if key in cell.scores), ("", ""))
    return cell.mean(*key), cell.null(key)


def _rank(cell: Cell) -> tuple[float, float]:
    """The larger, the more an attack recovered; one without a score comes last."""
    if not cell.has_result:
        return -1.0, 0.0
    share = (cell.share.mean if cell.share else None) if cell.psnr else _score(cell)[0]
    gap = cell.gap if cell.gap is not None else cell.leading.mean
    return share or 0.0, gap or 0.0


def _heat(cell: Cell) -> Heat:
    at = round_name(cell.round, cell.final)
    if not cell.has_result:
        return Heat("failed", 0.0, None, at, "")
    if cell.psnr is None:
        share, null = _score(cell)
        text = percent(cell.leading.mean if share is None else share)
        return Heat(text, share or 0.0, null, at, dagger(cell.status))
    if cell.recovered and cell.share:
        return Heat("{} of {}".format(*cell.recovered), cell.share.mean or 0.0, None, at, dagger(cell.status))
    text = f"{signed(cell.gap)} dB" if cell.scores[IMAGES.decides].mean is not None else percent(None)
    return Heat(text, 0.0, None, at, dagger(cell.status))
