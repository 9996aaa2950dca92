"""One colour and one marker per defence, used everywhere on the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from defenses.training.dp_sgd import DPSGD
from simulations.report.studies.stages import names_of
from simulations.report.text import short_names

MARKERS = {
    "circle": ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "●"),
    "square": ("M-3.6 -3.6h7.2v7.2h-7.2z", "■"),
    "diamond": ("M0 -5L5 0L0 5L-5 0z", "◆"),
    "up": ("M0 -4.8L4.4 3.4h-8.8z", "▲"),
    "down": ("M0 4.8L4.4 -3.4h-8.8z", "▼"),
    "star": ("M0 -5.2L1.3 -1.8L5 -1.6L2.1 .7L3.1 4.2L0 2.2L-3.1 4.2L-2.1 .7L-5 -1.6L-1.3 -1.8z", "★"),
}
"""Shape -> how SVG draws it around a point, and the character that stands for it in text."""


@dataclass(frozen=True)
class Look:
    """Look of one defence everywhere: its short name, a CSS colour, and a marker of ``MARKERS`` for readers without colour."""

    name: str
    color: str
    shape: str


Faces = Mapping[str, Look]
"""Defence, or what else a chart compares -> its look."""
COLORS = 5
"""Hues for defences besides "no defence" and DP-SGD, see ``templates/style.css.md``.

Hues and their lightness were chosen together, so that any two stay apart (CIE 1976 distance of 20 or more) in full
colour vision and as people with deuteranopia and protanopia see them (Machado et al. 2009). Markers differ as well.
"""
SHADES = 2
"""Shades of the DP-SGD hue."""


def is_dp_sgd(defense: str) -> bool:
    """Whether the pipeline is DP-SGD alone, one point of the baseline curve."""
    return names_of(defense) == (DPSGD.__name__,)


def looks(pipelines: Sequence[str]) -> dict[str, Look]:
    """One look per pipeline, by its place: DP-SGD in shades of one hue, others in different hues."""
    names, shapes = short_names(pipelines), list(MARKERS)
    faces, hue, shade = {}, 0, 0
    for text_ in pipelines:
        if text_ == "":
            faces[text_] = Look(names[text_], "var(--none)", "circle")
        elif is_dp_sgd(text_):
            faces[text_] = Look(names[text_], f"var(--dp{shade % SHADES})", shapes[1 + shade // SHADES % 5])
            shade += 1
        else:
            # The second time round the hues come back with another marker.
            faces[text_] = Look(names[text_], f"var(--d{hue % COLORS})", shapes[(1 + hue % COLORS + hue // COLORS) % 6])
            hue += 1
    return faces
