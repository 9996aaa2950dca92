"""One-step probes, which a curious server requests, separated from the updates of training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from attacks.metrics.metric import IMAGES
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.studies.cell import Cell
from strategies.audit.kinds import kinds
from strategies.audit.threat_card import Strength


@functools.cache
def stand_ins() -> dict[str, str]:
    """Title of a requested observation -> title of the training data that it stands in for."""
    return {kind.title: kind.instead_of for kind in kinds().values() if kind.instead_of}


def apart(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Cells of probes, and cells of real updates; cells of other observations belong to neither."""
    real = set(stand_ins().values())
    return [c for c in cells if c.observation in stand_ins()], [c for c in cells if c.observation in real]


def untested_on_updates(cells: Sequence[Cell], update: Cell | None, known: Any) -> list[str]:
    """Caveat that adaptive attacks on images ran on probes only, although the images of real updates were attacked.

    Args:
        cells: All attacks on one defence.
        update: The strongest on real updates.
        known: The defence's configuration, as in ``is_adaptive``.
    """

    def adapted(of: Sequence[Cell]) -> bool:
        return any(is_adaptive(cell, known) and cell.has_result and IMAGES.scored(cell.scores) for cell in of)

    probes, updates = apart([cell for cell in cells if not cell.is_upper_bound])
    if update is None or adapted(updates) or not adapted(probes):
        return []
    return ["no adaptive attack on images ran, only on probes"]


def once_per_update(cell: Cell) -> list[str]:
    """Caveat that the attacked probe was protected more strongly than one step of the training whose accuracy is shown."""
    if cell.card.defense_strength != Strength.ONE_STEP:
        return []
    # Text of a pipeline names the argument of every defence that has it; others act once per update whatever is set.
    advice = "compare training updates" + (", or choose per='step'" if "per='update'" in cell.defense else "")
    return [
        "not the strength of the accuracy beside it: the defence acts once per update, on a probe of one step as strongly as "
        f"on all steps of a round; {advice}"
    ]
