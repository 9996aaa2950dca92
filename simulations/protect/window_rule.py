"""Windows of VisualMixer that follow a picture's size, where a user gives no bounds.

The paper works its example at 224 pixels with windows of 8 (section IV-B, equation 12), 1/28 of the side. It prints no upper bound,
and neither d nor alpha of equation 17. With this project's defaults for both, equation 17 gives 15. All windows would then have one
size, so that VFE would decide nothing. 56, a quarter of the side, gives the two sizes 8 and 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from defenses.checks import MOST_SIDE, is_number
from defenses.images.visual_mixer import ADVICE, VisualMixer
from defenses.images.visual_mixer_bounds import shuffled_vfe, window_lower_bound
from defenses.images.visual_mixer_windows import FIRST_REGIONS, PAPER_SIDE, power_of_two, window_sizes
from defenses.pipeline import Pipeline
from defenses.registry import DEFENSES
from defenses.spec import parse, parse_statements

PAPER_WINDOW = 8
"""Pixels; the window of the paper's example at ``PAPER_SIDE``."""
RATIO = 7
"""Upper over lower bound, 56 over 8. First regions are then 4 times as large as the lower bound: VFE decides between 2 sizes."""
LEAST = 2
"""Pixels; a window of a single pixel shuffles nothing."""
BOUNDS = ("window_lower", "window_upper")
RULE = (
    f"VisualMixer without bounds: its smallest windows are the power of two from 1/{PAPER_SIDE // PAPER_WINDOW} of the longer side "
    f"on, {PAPER_WINDOW} of {PAPER_SIDE} pixels as in the example of its paper (Li et al., NDSS 2024). Its upper bound is {RATIO} "
    "times as large. A target_vfe can raise both."
)
"""As pages and the manifest state it."""


TOO_SMALL = "the rule for VisualMixer without bounds has no second size of windows for pictures of this size"
"""In place of advice about bounds, which the user did not give."""


def bounds_for(side: int, needed: int = 0, first_regions: str = FIRST_REGIONS[0]) -> tuple[int, int]:
    """Bounds of windows for a picture whose longer side has so many pixels: (8, 56) at 224, (2, 14) at 32.

    The smallest windows never cover less of the side than in the paper, and less than twice as much, down to ``LEAST`` pixels.

    Args:
        side: Pixels.
        needed: Side of the windows that reach a target, in pixels, a power of two. Where it is larger than the rule's lower bound
            it takes its place if VFE then has two sizes to choose from, or if it does not fit under the rule's upper bound.
        first_regions: See ``VisualMixer``.
    """
    share = min(-(-side * PAPER_WINDOW // PAPER_SIDE), MOST_SIDE // (2 * RATIO))
    lower = max(LEAST, power_of_two(share, up=True))
    upper = RATIO * lower
    if needed > lower:
        raised = needed, min(RATIO * needed, MOST_SIDE)
        if needed > upper or len(window_sizes(side, side, *raised, first_regions)) > 2:
            return raised
    return lower, upper


def follows_size(text: str) -> bool:
    """Whether a pipeline's text holds a ``VisualMixer`` without bounds."""
    return any(any(stages) for stages in parse_statements(text, DEFENSES, "defence", _unbounded))


def for_size(text: str, height: int, width: int) -> Pipeline:
    """The pipeline for pictures of this size: a ``VisualMixer`` without bounds gets those of ``bounds_for``."""
    side = max(height, width)
    return parse(text, lambda kind, given: kind(**given, **_bounds(kind, given, side)))


class Sized(NamedTuple):
    """What a text of defences means for pictures of one size, for a line of the manifest; see ``Copy``."""

    idle: tuple[str, ...]
    windows: tuple[str, ...]
    defense: str


@cache
def sized(text: str, height: int, width: int) -> Sized:
    """Why the defences do less than they say at this size, their windows, and the defences where their bounds follow the size."""
    pipeline, follows = for_size(text, height, width), follows_size(text)
    idle = (why.replace(ADVICE, TOO_SMALL) if follows else why for why in pipeline.idle(height, width))
    return Sized(tuple(idle), tuple(pipeline.at_size(height, width)), str(pipeline) if follows else "")


def self_contained(text: str) -> str:
    """A user's text with the contents of named files in place of their names; bounds that it leaves out stay left out.

    Raises:
        SpecError: See ``defenses.spec.read_files``.
        DefenseError: When a defence cannot work with these settings.
    """
    statements = parse_statements(text, DEFENSES, "defence", _text)
    return "; ".join(" | ".join(stages) for stages in statements)


def _unbounded(kind: Any, given: Mapping[str, Any]) -> bool:
    return kind is VisualMixer and not any(name in given for name in BOUNDS)


def _bounds(kind: Any, given: Mapping[str, Any], side: int) -> dict[str, int]:
    """The arguments that the rule adds to those of a text: bounds of a ``VisualMixer`` without them, else none."""
    if not _unbounded(kind, given):
        return {}
    target, margin = given.get("target_vfe", 0), given.get("vfe_margin", 0)
    needed = 0
    if all(is_number(one) and one >= 0 for one in (target, margin)) and target > 0:
        most = power_of_two(MOST_SIDE)
        # A target out of reach would be searched for years; the defence refuses it.
        reachable = shuffled_vfe(most, margin) >= target
        needed = power_of_two(window_lower_bound(target, margin), up=True) if reachable else most
    return dict(zip(BOUNDS, bounds_for(side, needed, given.get("first_regions", FIRST_REGIONS[0])), strict=True))


def _text(kind: Any, given: Mapping[str, Any]) -> str:
    made = kind.configured(**given, **_bounds(kind, given, PAPER_SIDE))
    if not _unbounded(kind, given):
        return repr(made)
    own = ((spec.name, getattr(made, spec.name), spec.default) for spec in fields(made) if spec.init and spec.repr)
    shown = (f"{name}={value!r}" for name, value, default in own if name not in BOUNDS and value != default)
    return f"{kind.__name__}({', '.join(shown)})"
