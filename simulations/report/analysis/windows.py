"""How many windows of each size VisualMixer shuffled, as the clients counted them over their images."""

from __future__ import annotations

from dataclasses import dataclass

from simulations.report.analysis.metrics import COUNTED_IMAGES, WINDOWS
from simulations.report.analysis.study import Study

NEARLY_ALL = 0.95
"""Share of the pixels that can move from which one window size is the only one in effect."""


@dataclass(frozen=True)
class WindowCounts:
    """Windows that hold at least two values, over the counted images of all clients, in one seed.

    Attributes:
        images: Counted images.
        windows: Size in pixels -> number of windows, largest size first.
    """

    images: int
    windows: dict[int, int]

    @property
    def shares(self) -> dict[int, float]:
        """Size -> share of the pixels that can move, windows cut by an edge taken for whole; empty where none can."""
        areas = {size: size * size * number for size, number in self.windows.items()}
        total = sum(areas.values())
        return {size: area / total for size, area in areas.items()} if total else {}

    @property
    def text(self) -> str:
        """Counts and shares in words."""
        sizes = (f"{self.windows[size]:,} of {size} ({share:.0%} of the area)" for size, share in self.shares.items())
        return f"windows in which pixels move, in {self.images:,} training images: {', '.join(sizes) or 'none'}"

    @property
    def caveat(self) -> str:
        """What a reader must know where one size does all the work; else ""."""
        size, share = max(self.shares.items(), key=lambda item: item[1], default=(0, 0.0))
        if share < NEARLY_ALL:
            return ""
        return f"one window size: {share:.0%} of the area that can move lies in windows of {size}, so VFE decides next to nothing"


def window_counts(study: Study, defense: str) -> WindowCounts | None:
    """Those of a pipeline in the first seed that has any (they count the same data in every round)."""
    rows = [row for row in study.rows if row.defense == defense and not row.attack and row.value is not None]
    counted = [row for row in rows if row.metric == COUNTED_IMAGES]
    if not counted:
        return None
    at = min(counted, key=lambda row: (row.seed, row.round))
    found = {
        int(row.metric.removeprefix(WINDOWS)): int(row.value or 0)
        for row in rows
        if row.metric.startswith(WINDOWS) and (row.seed, row.round) == (at.seed, at.round)
    }
    return WindowCounts(int(at.value or 0), dict(sorted(found.items(), reverse=True))) if found else None
