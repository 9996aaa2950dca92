"""Families of scores; class representatives are separate from images of one person."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attacks.metrics.images import RECOGNITION
from attacks.metrics.metric import REPRESENTATIVES, Family
from attacks.metrics.registry import METRICS, metric_of
from simulations.run_folder.rows import Row

CLASS_METRICS = frozenset(one.name for one in METRICS.values() if one.family is REPRESENTATIVES)


def family(row: Row, drawn: Collection[str] = ()) -> Family | None:
    """The family of a row's score; one control decides for all rows of a family. None needs no control.

    Args:
        row: The row.
        drawn: Attacks that draw class representatives (``class_attacks``); their recognition is a kind of its own.
    """
    if row.metric == RECOGNITION.name and row.attack in drawn:
        return REPRESENTATIVES
    return metric_of(row.metric).family


def decides(row: Row, drawn: Collection[str] = ()) -> bool:
    """Whether the row's score decides the verdict on its family; ``drawn`` as in ``family``."""
    if row.metric == RECOGNITION.name:
        return row.attack in drawn
    found = family(row, drawn)
    return found is not None and (row.metric, row.reference) == found.decides


def class_attacks(rows: Iterable[Row]) -> frozenset[str]:
    """Texts of attacks that draw class representatives, not images of one person."""
    return frozenset(row.attack for row in rows if row.metric in CLASS_METRICS)
