"""Ranges of axes, and positions of labels beside an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LARGEST = 1e12
"""Numbers beyond this (a diverged loss, the PSNR of an exact copy) do not stretch an axis."""


def bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """A domain that holds all finite values, with some margin, never narrower than ``least``."""
    finite = [value for value in values if value is not None and abs(value) < LARGEST]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    air = max(pad * (high - low), (least - (high - low)) / 2)
    return low - air, high + air


def share_bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """``bounds`` of shares, within [0, 1]."""
    low, high = bounds(values, pad, least)
    return max(low, 0.0), min(high, 1.0)


def inside(value: float, domain: tuple[float, float]) -> float:
    """``value``, or the end of the domain beyond which it lies: infinite values are drawn at the edge."""
    return min(max(value, domain[0]), domain[1])


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label positions nearer than ``gap`` apart, in order and inside [low, high].

    Too many labels for the space share it evenly.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    placed = [0.0] * len(wanted)
    floor = low
    for index in order:
        placed[index] = max(wanted[index], floor)
        floor = placed[index] + gap
    ceiling = high
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed
