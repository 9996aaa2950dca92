"""Search for larger windows of VisualMixer where copies are identified: every suggestion is measured first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from clients.data.images import DataError
from defenses.base import DefenseError
from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_windows import PAPER_SIDE, power_of_two
from defenses.pipeline import Pipeline
from simulations.protect.copies import Order, protect_image
from simulations.protect.identified import Compared, Identified, is_most, reduced, spaced
from simulations.protect.pictures import read
from simulations.protect.recovered import identified
from simulations.protect.window_rule import for_size

WINDOWS = ((8, 16), (8, 56), (16, 64))
"""Bounds of windows at ``PAPER_SIDE`` that are tried first, scaled to the longer side of the pictures."""
PROBED_PIXELS = 8_000_000
"""Of the pictures that each pair of bounds is tried on, together; but ``LEAST_PROBED`` pictures at least."""
LEAST_PROBED, MOST_PROBED = 5, 32


@dataclass(frozen=True)
class Suggestion:
    """Windows with which at most half of the probed copies are identified.

    Attributes:
        pipeline: The defences with these windows.
        found: How many copies were identified.
        probed: How many copies were made to measure that.
        size: For which pictures, as text.
    """

    pipeline: Pipeline
    found: int
    probed: int
    size: str

    @property
    def text(self) -> str:
        """The end of the warning."""
        left = f"{self.found} of {self.probed} are still identified"
        return f"larger windows hide more, e.g. {self.pipeline} for {self.size} pixels: {left}, and accuracy falls"


Progress = Callable[[int, int], object]
"""Called with the number of pictures that were tried, and how many there are at most."""


def _unshown(done: int, total: int) -> None:
    """Show no progress."""


def advice(order: Order, seen: Identified, progress: Progress = _unshown) -> str:
    """Advice where most copies still show their pictures; it names larger windows only where they help."""
    if found := suggest(order, seen, progress):
        return found.text
    if _mixes(order):
        return "no larger windows of VisualMixer that were tried change that"
    return "use stronger settings or another defence"


def suggest(order: Order, seen: Identified, progress: Progress = _unshown) -> Suggestion | None:
    """The smallest tried windows with at most half of the copies identified; None without such, or without VisualMixer."""
    if not _mixes(order):
        return None
    shapes = {one.shape[1:] for one in seen.compared}
    height, width = max(shapes, key=lambda shape: (max(shape), *shape))
    pipeline = for_size(order.pipeline, height, width)
    size = f"{'up to ' if len(shapes) > 1 else ''}{width} x {height}"
    names = spaced([one.name for one in seen.compared], probes(height * width))
    tried = list(_larger(pipeline, height, width))
    for at, larger in enumerate(tried):
        done, total = at * len(names), len(tried) * len(names)
        found = count_identified(order, larger, seen.compared, names, partial(_further, progress, done, total))
        if not is_most(found, len(names)):
            return Suggestion(larger, found, len(names), size)
    return None


def _mixes(order: Order) -> bool:
    """Whether one of the defences is a ``VisualMixer``."""
    return any(isinstance(one, VisualMixer) for one in for_size(order.pipeline, PAPER_SIDE, PAPER_SIDE).defenses)


def _further(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def probes(pixels: int) -> int:
    """Number of pictures of so many pixels to protect anew for each pair of bounds."""
    return min(max(PROBED_PIXELS // pixels, LEAST_PROBED), MOST_PROBED)


def bounds(side: int) -> Iterator[tuple[int, int]]:
    """Pairs of bounds for pictures of that longer side, increasing: ``WINDOWS`` scaled, then up to the whole picture."""
    scaled = [tuple(power_of_two(max(1, round(one * side / PAPER_SIDE))) for one in pair) for pair in WINDOWS]
    whole = power_of_two(side)
    large = [(part, 2 * part) for part in (whole // 4, whole // 2, whole, 2 * whole) if part]
    yield from dict.fromkeys((lower, upper) for lower, upper in (*scaled, *large))


def _larger(pipeline: Pipeline, height: int, width: int) -> Iterator[Pipeline]:
    """The pipeline with each pair of bounds that gives larger windows than its own."""
    own = [one.sizes(height, width) for one in pipeline.defenses if isinstance(one, VisualMixer)]
    tried = set()
    for lower, upper in bounds(max(height, width)):
        try:
            larger = Pipeline(
                tuple(
                    replace(one, window_lower=lower, window_upper=upper) if isinstance(one, VisualMixer) else one
                    for one in pipeline.defenses
                )
            )
        except DefenseError:  # bounds that are out of range, or miss a target of the defence
            continue
        sizes = [one.sizes(height, width) for one in larger.defenses if isinstance(one, VisualMixer)]
        if all(new[-1] > old[-1] for new, old in zip(sizes, own, strict=True)) and str(sizes) not in tried:
            tried.add(str(sizes))
            yield larger


def count_identified(
    order: Order, pipeline: Pipeline, compared: tuple[Compared, ...], names: list[str], progress: Progress = _unshown
) -> int:
    """How many pictures are identified from copies that this pipeline makes at the delivered size.

    It stops where more than half of ``names`` are identified, because these windows are then not suggested.
    """
    originals, found = torch.stack([one.original for one in compared]), 0
    place = {one.name: at for at, one in enumerate(compared)}
    for at, name in enumerate(names):
        progress(at, len(names))
        try:
            image = read(order.root / name, order.size).image
        except DataError:  # it has changed since its copy was made
            return len(names)
        made = reduced(protect_image(pipeline, image, order.secret)).unsqueeze(0)
        found += identified(made, originals, torch.tensor([place[name]]))[0]
        if is_most(found, len(names)):
            break
    return found
