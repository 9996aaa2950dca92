"""Placement of reconstructions beside originals where the order of a batch's images is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulations.report.drawing.picture_index import Picture
from strategies.audit.kinds import kinds


def placed(pictures: Sequence[Picture], folder: Path) -> list[Picture]:
    """The same pictures, each reconstruction of a batch under the original that its score compares it with.

    As scores do (``attacks.scoring.metrics.optimal_assignment``), it pairs by the smallest sum of squared errors, here of 8 bits.
    The numbers of guesses become those of their images; a file that cannot be read keeps its number.
    """
    ordered = {kind.title for kind in kinds().values() if kind.paired}
    groups: dict[tuple[Any, ...], list[Picture]] = defaultdict(list)
    for picture in pictures:
        if picture.observation not in ordered:
            groups[picture.defense, picture.round, picture.observation, picture.target[:-1]].append(picture)
    numbers: dict[int, str] = {}
    for of in groups.values():
        originals = [one for one in of if one.kind == "original"]
        if len(originals) > 1:
            for attack in dict.fromkeys(one.guess for one in of if one.kind == "reconstruction"):
                mine = [one for one in of if one.kind == "reconstruction" and one.guess == attack]
                numbers |= _numbers(mine, originals, folder)
    return [replace(one, target=(*one.target[:-1], numbers.get(id(one), one.target[-1]))) for one in pictures]


def _numbers(guesses: Sequence[Picture], originals: Sequence[Picture], folder: Path) -> dict[int, str]:
    """Identity of a guess -> number of its image; guesses beyond the images get numbers behind all of them."""
    from scipy.optimize import linear_sum_assignment

    try:
        mine, truth = (np.stack([_read(folder / one.file) for one in of]) for of in (guesses, originals))
        costs = np.square(mine[:, None] - truth[None]).sum(-1)
    except (OSError, ValueError):
        return {}
    rows, columns = linear_sum_assignment(costs)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    found = {id(guesses[row]): originals[column].target[-1] for row, column in pairs}
    beyond = [one for one in guesses if id(one) not in found]
    return found | {id(one): str(len(originals) + at) for at, one in enumerate(beyond)}


def _read(path: Path) -> np.ndarray[Any, Any]:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image, dtype=np.float64).ravel()
