"""VisualMixer's windows of each size and their effect on VFE, as the clients counted over their images."""

import math
from dataclasses import dataclass

from attacks.metrics.training import COUNTED_IMAGES, KEYS, VFE_AFTER, VFE_BEFORE, WINDOWS
from simulations.report.studies.rows import grouped
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
        """Counts and shares, mean VFE of a window, and mean number of orders, in words: a clause each."""
        sizes = [f"{self.windows[at]:,} of side {at} ({share:.0%} of the area)" for at, share in self.shares.items()]
        said = [f"windows in which pixels move, in {self.images:,} training images: {', '.join(sizes) or 'none'}"]
        if self.vfe and (number := sum(self.windows.values())):
            before, after = (f"{total / number:.3g}" for total in self.vfe)
            said.append(
                f"VFE of such a window over twice the variance of its pixels, mean: {before} before, {after} after"
            )
        if self.log10_keys is not None and self.images:
            said.append(f"orders of an image, mean of the logarithms: {power_of_ten(self.log10_keys / self.images)}")
        return tuple(said)

    @property
    def caveat(self) -> str:
        """Caveat for windows of a single size; else ""."""
        size, share = max(self.shares.items(), key=lambda item: item[1], default=(0, 0.0))
        said = f"one window size: {share:.0%} of the area that can move lies in windows of side {size}, so VFE hardly decides"
        return said if share >= NEARLY_ALL else ""


def window_counts(study: Study, defense: str) -> WindowCounts | None:
    """Counts of a pipeline in the first seed that has any (they count the same data in every round)."""
    own = [row for row in study.rows if row.defense == defense and not row.attack]
    rows = grouped(
        (row for row in own if row.value is not None and math.isfinite(row.value)), lambda r: (r.seed, r.round)
    )
    told = ({row.metric: row.value or 0.0 for row in rows[at]} for at in sorted(rows))
    values = next((counts for counts in told if COUNTED_IMAGES.name in counts), {})
    sizes = {
        int(name.removeprefix(WINDOWS.name)): int(n) for name, n in values.items() if name.startswith(WINDOWS.name)
    }
    if not sizes:
        return None
    before, after = values.get(VFE_BEFORE.name), values.get(VFE_AFTER.name)
    vfe = None if before is None or after is None else (before, after)
    images = int(values[COUNTED_IMAGES.name])
    return WindowCounts(images, dict(sorted(sizes.items(), reverse=True)), vfe, values.get(KEYS.name))
