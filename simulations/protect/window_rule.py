"""Windows of VisualMixer that follow a picture's size, where a user gives no bounds.

The paper works its example at 224 pixels with windows of 8 (section IV-B, equation 12), 1/28 of the side. It prints no upper bound
at that size. With equation 17's own 15 all windows would have one size, so that VFE would decide nothing; 56, a quarter of the
side, gives the two sizes 8 and 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from defenses.checks import MOST_SIDE
from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_windows import PAPER_SIDE, power_of_two
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
    f"on, {PAPER_WINDOW} of {PAPER_SIDE} pixels as in the paper's example, and its upper bound is {RATIO} times as large."
)
"""As pages and the manifest state it."""


def bounds_for(side: int) -> tuple[int, int]:
    """Bounds of windows for a picture whose longer side has so many pixels: (8, 56) at 224, (2, 14) at 32.

    The smallest windows never cover less of the side than in the paper, and less than twice as much, down to ``LEAST`` pixels.
    """
    share = min(-(-side * PAPER_WINDOW // PAPER_SIDE), MOST_SIDE // (2 * RATIO))
    lower = max(LEAST, power_of_two(share, up=True))
    return lower, RATIO * lower


def follows_size(text: str) -> bool:
    """Whether a pipeline's text holds a ``VisualMixer`` without bounds."""
    return any(any(stages) for stages in parse_statements(text, DEFENSES, "defence", _unbounded))


def for_size(text: str, height: int, width: int) -> Pipeline:
    """The pipeline for pictures of this size: a ``VisualMixer`` without bounds gets those of ``bounds_for``."""

    def make(kind: Any, given: Mapping[str, Any]) -> Any:
        sized = dict(zip(BOUNDS, bounds_for(max(height, width)), strict=True)) if _unbounded(kind, given) else {}
        return kind(**given, **sized)

    return parse(text, make)


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


def _text(kind: Any, given: Mapping[str, Any]) -> str:
    made = kind.configured(**given)
    if not _unbounded(kind, given):
        return repr(made)
    own = ((spec.name, getattr(made, spec.name), spec.default) for spec in fields(made) if spec.init and spec.repr)
    shown = (f"{name}={value!r}" for name, value, default in own if name not in BOUNDS and value != default)
    return f"{kind.__name__}({', '.join(shown)})"
