"""One drawing by matplotlib, as inline SVG that follows the page: its colours, its font, dark mode, and tooltips.

matplotlib is imported when something is drawn, not before: runs and ``--help`` do not wait for it.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from simulations.report.drawing.looks import MARKERS

SVG = "{http://www.w3.org/2000/svg}"
UNIT = 72.0
"""Points in an inch: one unit of a drawing is one pixel where it is shown at its own size."""
FONT = 11.0
ENTRY = 19.0
"""Height that an entry of the legend adds."""
_PAINTS: dict[str, str] = {}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that names may hold and XML may not."""


def paint(css: str) -> str:
    """A colour that matplotlib takes and that ``Canvas.svg`` turns back into ``css``, such as ``var(--ink)``."""
    return _PAINTS.setdefault(css, f"#{0x5A0000 + len(_PAINTS):06x}")


def ink(css: str) -> str:
    """The text colour beside a mark: its colour, a quarter nearer to the page's ink for contrast."""
    return paint(f"color-mix(in oklab, {css}, var(--ink) 25%)")


@contextmanager
def style(**more: Any) -> Iterator[None]:
    """The look of all charts, whatever a user has set; ``more`` are settings with _ for a dot."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings() | {key.replace("_", "."): value for key, value in more.items()})
        yield


def _settings() -> Any:
    soft = paint("var(--soft)")
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "fedveil",
        "font.family": "DejaVu Sans",  # comes with matplotlib: labels take the same room on every machine
        **dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize"), FONT),
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), soft),
        "grid.color": paint("var(--rule)"),
        "grid.linewidth": 1.0,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.linewidth": 1.0,
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "path.simplify"), False),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
        "lines.linewidth": 2.0,
        "lines.dotted_pattern": (2 / 1.5, 2),
        "ytick.major.size": 0,
        "text.parse_math": False,  # names are data: a dollar sign is a dollar sign
    }


@dataclass(frozen=True)
class Mark:
    """A point in a CSS colour, of one of the shapes ``looks.MARKERS``; ``hollow``: only its edge is drawn. "" means no tooltip."""

    x: float
    y: float
    shape: str
    color: str
    tip: str = ""
    hollow: bool = False
    size: float = 8.0


class Canvas:
    """A figure with one pair of axes, to be used inside ``style()``."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width / UNIT, height / UNIT), dpi=UNIT, layout="constrained")
        self.canvas = FigureCanvasSVG(self.figure)
        self.axes = self.figure.add_subplot()
        self._tips: list[str] = []

    def titles(self, across: str, up: str) -> None:
        """Set the axes' titles; the title of y stands on top, where a phone has room for it."""
        self.axes.set_xlabel(across)
        self.figure.suptitle(up, x=0.0, ha="left")

    def ticks(self, across: int | Sequence[float], up: int | Sequence[float], show_x: Any, show_y: Any) -> None:
        """Set about so many round tick values, or given ones, with functions that format a value."""
        from matplotlib.ticker import FixedLocator, FuncFormatter

        x, y = self.axes.xaxis, self.axes.yaxis
        for axis, wanted, show in ((x, across, show_x), (y, up, show_y)):
            axis.set_major_locator(round_values(wanted) if isinstance(wanted, int) else FixedLocator(list(wanted)))
            axis.set_major_formatter(FuncFormatter(lambda value, _, show=show: show(round(value, 12) + 0.0)))

    def marks(self, marks: Sequence[Mark]) -> None:
        """Draw points of one look on top."""
        for hollow in (False, True):
            if of := [mark for mark in marks if mark.hollow == hollow]:
                at = [mark.x for mark in of], [mark.y for mark in of]
                (drawn,) = self.axes.plot(*at, clip_on=False, zorder=3, **_marker(of[0]))
                drawn.set_gid(f"marks:{len(self._tips)}:{'mark hollow' if hollow else 'mark'}")
                self._tips += [mark.tip for mark in of]

    def legend(self, entries: Sequence[tuple[str, Mark]], note: str = "") -> None:
        """Draw names with their marks, one per line, below the axes; a soft ``note`` is the last line."""
        from matplotlib.lines import Line2D

        marks = [Line2D([], [], **_marker(mark)) for _, mark in entries]
        names = [name for name, _ in entries]
        if note:
            marks.append(Line2D([], [], linestyle="none"))
            names.append(note)
        legend = self.figure.legend(marks, names, loc="outside lower left", handlelength=1.0, prop={"weight": "bold"})
        for handle, text, (_, mark) in zip(legend.legend_handles, legend.get_texts(), entries, strict=False):
            if handle:
                handle.set_gid("class:entry hollow" if mark.hollow else "class:entry")
            text.set_color(ink(mark.color))
            text.set_gid("class:name")
        if note:
            legend.get_texts()[-1].set(weight="normal", fontsize=FONT - 1, gid="class:note")

    def line(
        self, places: Iterable[tuple[float, float]], kind: str, css: str, dashes: str = "-", width: float = 2.0
    ) -> None:
        """Draw a line through places (x, y); ``kind`` is its class, as "series" or "nullline"."""
        across, up = zip(*places, strict=True)
        (drawn,) = self.axes.plot(across, up, dashes, color=paint(css), linewidth=width)
        drawn.set_gid(f"class:{kind}")

    def bars(self, ends: Iterable[tuple[float, float, float, float]], color: str, width: float = 1.5) -> None:
        """Draw intervals from (x, y) to (x, y)."""
        from matplotlib.collections import LineCollection

        lines = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in ends]
        drawn = LineCollection(lines, colors=[paint(color)], linewidths=width, alpha=0.55)
        drawn.set_gid("class:whisker")
        self.axes.add_collection(drawn, autolim=False)

    def name(self, text: str, x: float, y: float, color: str = "", **more: Any) -> Any:
        """Write bold text in its subject's colour, or a soft note without one; readable over lines."""
        how = {"color": ink(color), "weight": "bold"} if color else {}
        drawn = self.axes.annotate(text, (x, y), annotation_clip=False, **({"va": "center"} | how | more))
        drawn.set_gid("class:name" if color else "class:note")
        return drawn

    def note(self, text: str) -> None:
        """Write a soft line below the drawing's right end."""
        drawn = self.figure.supxlabel(text, x=1.0, ha="right", fontsize=FONT - 1)
        drawn.set_gid("class:note")

    def svg(self, spoken: str) -> Markup:
        """The drawing, scaling with its container; ``spoken`` is its text alternative."""
        written = io.StringIO()
        # Not by savefig, which draws twice: first to find a layout.
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.canvas.print_svg(written, metadata=nothing)  # type: ignore[no-untyped-call]
        root = ElementTree.fromstring(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", written.getvalue()))
        paths = {f"#{one.get('id')}": one for one in root.iter(f"{SVG}path") if one.get("id")}
        _plain(root, paths, self._tips)
        box = str(root.get("viewBox"))
        root.attrib.clear()
        root.attrib |= {"class": "chart", "viewBox": box, "role": "img", "aria-label": spoken}
        for one in root.iter():  # inside of a page nothing has to name the namespace
            one.tag = one.tag.removeprefix(SVG)
        text = ElementTree.tostring(root, encoding="unicode")
        return Markup(re.sub(r"\s*\n\s*", "\n", text))


def _marker(mark: Mark) -> dict[str, Any]:
    color, card = paint(mark.color), paint("var(--card)")
    return {
        "linestyle": "none", "marker": MARKERS[mark.shape][0], "markersize": mark.size,
        "markerfacecolor": card if mark.hollow else color, "markeredgecolor": color if mark.hollow else card,
        "markeredgewidth": 1.6 if mark.hollow else 1.0,
    }  # fmt: skip


def round_values(most: int) -> Any:
    """Finds values 1, 2 or 5 times a power of ten apart, about ``most`` of them, no more than one beyond."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, steps=[1, 2, 5, 10], min_n_ticks=1)


def _plain(element: ElementTree.Element, paths: dict[str, ElementTree.Element], tips: list[str]) -> None:
    """Markers in place of references to them, so that no two drawings of a page share an id; classes, tooltips, colours."""
    kind, _, named = (element.attrib.pop("id", "") or "").partition(":")
    if kind in ("class", "marks"):
        element.set("class", named.rpartition(":")[2])
    mine = iter(tips[int(named.partition(":")[0]) :]) if kind == "marks" else iter(())
    for child in list(element.iter(f"{SVG}use")) if kind == "marks" else ():
        if tip := next(mine):
            ElementTree.SubElement(child, f"{SVG}title").text = tip
    for child in list(element):
        if child.tag in (f"{SVG}metadata", f"{SVG}defs"):
            element.remove(child)
        elif child.tag == f"{SVG}use":
            shape = paths[str(child.get("{http://www.w3.org/1999/xlink}href"))]
            child.tag = f"{SVG}path"
            at = f"translate({child.get('x')} {child.get('y')})"
            both = f"{shape.get('style') or ''}; {child.get('style') or ''}"
            child.attrib = {"d": str(shape.get("d")), "transform": at, "style": both.strip("; ")}
        _plain(child, paths, tips)
    element.attrib.pop("clip-path", None)
    if str(element.get("transform")).startswith("rotate(-0"):
        del element.attrib["transform"]
    if drawn := element.get("style"):
        drawn = re.sub(r"font(?:-family)?: [^;]*?('[^']*'|sans-serif)[^;]*;? ?", _size, drawn)
        element.set("style", re.sub(r"#5a[0-9a-f]{4}", _css, drawn))


def _size(font: re.Match[str]) -> str:
    """The page's own font in place of matplotlib's, at its weight and size."""
    found = re.search(r"font: (?:(bold|\d+) )?([\d.]+px)", font[0])
    if not found:
        return ""
    return (f"font-weight: {found[1]}; " if found[1] else "") + f"font-size: {found[2]}; "


def _css(color: re.Match[str]) -> str:
    place = int(color[0][1:], 16) - 0x5A0000
    return list(_PAINTS)[place]
