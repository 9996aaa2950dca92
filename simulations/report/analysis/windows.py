"""VisualMixer's windows of each size and their effect on VFE, as the clients counted over their images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attacks.metrics.training import COUNTED_IMAGES, KEYS, VFE_AFTER, VFE_BEFORE, WINDOWS
from simulations.report.studies.study import Study
from simulations.report.text import power_of_ten

NEARLY_ALL = 0.95
"""Share of the pixels that can move from which one window size is the only one in effect."""


@dataclass(frozen=True)
class WindowCounts:
    """Windows that hold at least two values, over the counted images of all clients, in one seed.

    Attributes:
        images: Counted images.
        windows: Side in pixels -> number of windows, largest size first.
        vfe: VFE / (2 sigma^2) of these windows before and after the shuffle, added up; None where it is unknown.
        log10_keys: Decimal logarithms of the images' possible orders, added up; None where they are unknown.
    """

    images: int
    windows: dict[int, int]
    vfe: tuple[float, float] | None = None
    log10_keys: float | None = None

    @property
    def shares(self) -> dict[int, float]:
        """Size -> share of the movable pixels, with windows cut by an edge counted as whole; empty where no pixel can move."""
        areas = {size: size * size * number for size, number in self.windows.items()}
        total = sum(areas.values())
        return {size: area / total for size, area in areas.items()} if total else {}

    @property
    def clauses(self) -> tuple[str, ...]:
        """Counts and shares, VFE and the number of orders in words, a clause each; what is unknown is left out."""
        sizes = [f"{self.windows[at]:,} of side {at} ({share:.0%} of the area)" for at, share in self.shares.items()]
        counts = f"windows in which pixels move, in {self.images:,} training images: {', '.join(sizes) or 'none'}"
        keys = ""
        if self.log10_keys is not None and self.images:
            keys = f"orders of an image, mean of the logarithms: {power_of_ten(self.log10_keys / self.images)}"
        return tuple(filter(None, (counts, self.vfe_text, keys)))

    @property
    def vfe_text(self) -> str:
        """Mean VFE of a window in words; "" where it is unknown or no pixel moves."""
        number = sum(self.windows.values())
        if self.vfe is None or not number:
            return ""
        before, after = (total / number for total in self.vfe)
        return (
            f"VFE of such a window over twice the variance of its pixels, mean: {before:.3g} before, {after:.3g} after"
        )

    @property
    def caveat(self) -> str:
        """Caveat for windows of a single size; else ""."""
        size, share = max(self.shares.items(), key=lambda item: item[1], default=(0, 0.0))
        if share < NEARLY_ALL:
            return ""
        return f"one window size: {share:.0%} of the area that can move lies in windows of side {size}, so VFE hardly decides"


def window_counts(study: Study, defense: str) -> WindowCounts | None:
    """Counts of a pipeline in the first seed that has any (they count the same data in every round)."""
    own = [row for row in study.rows if row.defense == defense and not row.attack]
    rows = [row for row in own if row.value is not None and math.isfinite(row.value)]
    counted = [row for row in rows if row.metric == COUNTED_IMAGES.name]
    if not counted:
        return None
    at = min(counted, key=lambda row: (row.seed, row.round))
    values = {row.metric: row.value or 0.0 for row in rows if (row.seed, row.round) == (at.seed, at.round)}
    found = {
        int(name.removeprefix(WINDOWS.name)): int(n) for name, n in values.items() if name.startswith(WINDOWS.name)
    }
    if not found:
        return None
    before, after = values.get(VFE_BEFORE.name), values.get(VFE_AFTER.name)
    vfe = None if before is None or after is None else (before, after)
    return WindowCounts(int(at.value or 0), dict(sorted(found.items(), reverse=True)), vfe, values.get(KEYS.name))
