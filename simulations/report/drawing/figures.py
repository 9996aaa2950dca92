"""The report's charts: the strip beside each headline, the privacy/accuracy plane, and curves over rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from simulations.report.drawing.charts import (
    TEXT_WIDTH,
    Box,
    Scale,
    bounds,
    freest,
    label_box,
    line,
    marker,
    path,
    place_label,
    spread,
    svg,
    tag,
    text,
    ticks,
)
from simulations.report.drawing.looks import Look
from simulations.report.text import decibel, plain, two, within
from simulations.rows import null_name


@dataclass(frozen=True)
class Point:
    """A mean with its 95 % interval.

    Attributes:
        x: Round or accuracy.
        y: Mean; infinite means are drawn at the edge.
        low: Lower end of the interval of y.
        high: Upper end of the interval of y.
        x_low: Lower end of the interval of x.
        x_high: Upper end of the interval of x.
        hollow: The score is not validated.
        tip: Tooltip.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None
    hollow: bool = False
    tip: str = ""


def strip(point: Point, worst: float | None, nulls: Sequence[float], domain: tuple[float, float], look: Look) -> Markup:
    """A dB axis: grey band of the null baselines, mark and interval of the mean, ring of the worst image."""
    width, height, middle = 300.0, 40.0, 14.0
    x = Scale(*domain, 8, width - 8)
    drawn = [line(8, middle, width - 8, middle, "grid")]
    if nulls:
        left, right = x(min(nulls)), x(max(nulls))
        drawn.append(tag("rect", "", x=left - 1, y=middle - 10, width=right - left + 2, height=20.0, class_="null"))
    for value in ticks(*domain, 5):
        drawn.append(line(x(value), middle + 11, x(value), middle + 14, "axis"))
        drawn.append(text(x(value), height - 2, plain(value), "tick", "middle"))
    if point.low is not None and point.high is not None:
        drawn.append(line(x(point.low), middle, x(point.high), middle, "bar", style=f"--c:{look.color}"))
    if worst is not None:
        drawn.append(marker(x(worst), middle, "circle", look.color, f"worst image {decibel(worst)} dB", True, 4.0))
    drawn.append(marker(x(point.y), middle, look.shape, look.color, f"mean {decibel(point.y)} dB", size=5.0))
    spoken = f"{look.name}: mean {decibel(point.y)} dB, worst image {decibel(worst)} dB"
    if interval := within(point.low, point.high, decibel):
        spoken += f", interval {interval} dB"
    return svg(width, height, spoken, drawn)


@dataclass(frozen=True)
class Frame:
    """Axes of a chart in a ``width`` x ``height`` drawing."""

    width: float
    height: float
    x: Scale
    y: Scale
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]
    x_ticks: Sequence[float]

    def axes(self, x_title: str, y_title: str) -> list[Markup]:
        """Grid lines, tick labels and axis titles."""
        left, right, top, bottom = self.x.start, self.x.end, self.y.end, self.y.start
        drawn = [text(0, 12, y_title, "title")]
        for value in ticks(self.y.low, self.y.high, 6 if self.height > 260 else 5):
            drawn.append(line(left, self.y(value), right, self.y(value), "grid"))
            drawn.append(text(left - 7, self.y(value) + 4, self.show_y(value), "tick", "end"))
        drawn.append(line(left, bottom, right, bottom, "axis"))
        for value in self.x_ticks:
            drawn.append(line(self.x(value), bottom, self.x(value), bottom + 4, "axis"))
            drawn.append(text(self.x(value), bottom + 17, self.show_x(value), "tick", "middle"))
        drawn.append(text((left + right) / 2, self.height - 4, x_title, "title", "middle"))
        return [*drawn, line(left, top, left, bottom, "axis")]

    def error_bars(self, point: Point, color: str) -> list[Markup]:
        """The intervals of a point."""
        x, y, style = self.x(point.x), self.y(point.y), f"--c:{color}"
        drawn = []
        if point.low is not None and point.high is not None:
            drawn.append(line(x, self.y(point.low), x, self.y(point.high), "whisker", style=style))
        if point.x_low is not None and point.x_high is not None:
            drawn.append(line(self.x(point.x_low), y, self.x(point.x_high), y, "whisker", style=style))
        return drawn

    def covered(self, point: Point) -> list[Box]:
        """Where a point and its intervals lie; labels should keep clear of it."""
        x, y = self.x(point.x), self.y(point.y)
        boxes = [Box(x - 7, y - 7, x + 7, y + 7)]
        if point.low is not None and point.high is not None:
            boxes.append(Box(x - 2, self.y(point.high), x + 2, self.y(point.low)))
        if point.x_low is not None and point.x_high is not None:
            boxes.append(Box(self.x(point.x_low), y - 2, self.x(point.x_high), y + 2))
        return boxes


def plane(
    points: Mapping[str, Point],
    spent: Mapping[str, float],
    nulls: Mapping[str, float],
    faces: Mapping[str, Look],
    width: float,
) -> Markup:
    """Accuracy against what the strongest attack recovered; bottom right is better.

    Args:
        points: Defence -> (accuracy in [0, 1], PSNR in dB).
        spent: DP-SGD defence -> epsilon; these points are joined in order of epsilon.
        nulls: Null baseline -> PSNR, drawn as a band.
        faces: Defence -> look.
        width: Width of the drawing.
    """
    frame = _plane_frame(points, nulls, width)
    x, y = frame.x, frame.y
    inside = Box(x.start, y.end, x.end, y.start)
    taken = [box for point in points.values() for box in frame.covered(point)]
    drawn, label = _band(nulls, frame, taken, inside)
    drawn += frame.axes(
        "Test accuracy as deployed (higher is better →)", "PSNR of the strongest attack, dB (lower is better ↓)"
    )
    drawn += label
    joined = [(x(points[one].x), y(points[one].y)) for one in sorted(spent, key=lambda one: spent[one])]
    if len(joined) > 1:
        drawn.append(path(joined, "curve", style="--c:var(--dp1)"))
    for one, point in points.items():
        drawn += frame.error_bars(point, faces[one].color)
    for one, point in points.items():
        name = faces[one].name + (f", ε = {two(spent[one])}" if one in spent else "")
        left, base, anchor = place_label(x(point.x), y(point.y), name, taken, inside)
        taken.append(label_box(left, base, name, anchor))
        drawn.append(marker(x(point.x), y(point.y), faces[one].shape, faces[one].color, point.tip, point.hollow, 5.5))
        drawn.append(text(left, base, name, "name", anchor, style=f"--c:{faces[one].color}"))
    return svg(width, frame.height, "Test accuracy against PSNR of the strongest attack, one point per defence", drawn)


def _plane_frame(points: Mapping[str, Point], nulls: Mapping[str, float], width: float) -> Frame:
    height = 460.0 if width > 500 else 420.0
    low, high = bounds([end for p in points.values() for end in (p.x, p.x_low, p.x_high)], 0.14, 0.05)
    heights = [end for p in points.values() for end in (p.y, p.low, p.high)]
    x = Scale(max(low, 0.0), min(high, 1.0), 44, width - 12)
    y = Scale(*bounds([*heights, *nulls.values()], 0.1, 4.0), height - 46, 26)
    across = ticks(x.low, x.high, 8 if width > 500 else 5)
    return Frame(width, height, x, y, lambda value: f"{plain(100 * value)} %", plain, across)


def _band(nulls: Mapping[str, float], frame: Frame, taken: list[Box], inside: Box) -> tuple[list[Markup], list[Markup]]:
    """The band of the null baselines, and its label at an end above or below it; where that lies becomes ``taken``."""
    if not nulls:
        return [], []
    name = "null baselines"
    if frame.width > 500:
        ordered = sorted(nulls.items(), key=lambda item: item[1])
        name += ": " + ", ".join(f"{null_name(key)} {decibel(value)}" for key, value in ordered)
    top, bottom = frame.y(max(nulls.values())), frame.y(min(nulls.values()))
    left, right = frame.x.start, frame.x.end
    band = tag("rect", "", x=left, y=top - 1, width=right - left, height=bottom - top + 2, class_="null")
    ends = [
        (at, base, anchor) for base in (top - 6, bottom + 15) for at, anchor in ((left + 6, "start"), (right, "end"))
    ]
    at, base, anchor = freest(ends, name, taken, inside)
    taken.append(label_box(at, base, name, anchor))
    return [band], [text(at, base, name, "note", anchor)]


@dataclass(frozen=True)
class Across:
    """The horizontal axis of curves.

    Attributes:
        title: What x is.
        show: Tick label of a value of x.
        spoken: What is drawn, behind "TITLE OF Y ".
        null: Name of the dotted line.
    """

    title: str = "Round"
    show: Callable[[float], str] = plain
    spoken: str = "over rounds, one line per defence"
    null: str = "best null"


ROUNDS = Across()


def curves(
    series: Mapping[str, Sequence[Point]],
    faces: Mapping[str, Look],
    width: float,
    y_title: str,
    show_y: Callable[[float], str],
    null: Sequence[Point],
    domain: tuple[float, float],
    finals: Collection[int] = (),
    across: Across = ROUNDS,
) -> Markup:
    """Lines over rounds, or another axis, named at their right end.

    Args:
        series: Defence -> points, x is the round.
        faces: Defence -> look.
        width: Width of the drawing.
        y_title: What y is.
        show_y: Tick label of a y value.
        null: The best null baseline over rounds, dotted; may be empty.
        domain: Lower and upper end of y, so that several charts can share one axis.
        finals: Values of x that stand for the model after the last round.
        across: The horizontal axis.
    """
    names = {one: faces[one].name for one in series} | ({"best null": across.null} if null else {})
    margin = min(TEXT_WIDTH * max(map(len, names.values())) + 18, 0.42 * width)
    frame = _curve_frame(
        [p.x for of in (*series.values(), null) for p in of], width, margin, show_y, domain, finals, across
    )
    drawn = frame.axes(across.title, y_title)
    if null:
        places = [(frame.x(p.x), frame.y(p.y)) for p in null]
        if len(places) == 1:  # a path of one point cannot be seen
            places = [(frame.x.start, places[0][1]), (frame.x.end, places[0][1])]
        drawn.append(path(places, "nullline"))
    for one, of in series.items():
        drawn += _line(of, frame, faces[one])
    ends = [frame.y(of[-1].y) for of in (*series.values(), *([null] if null else []))]
    room = int((margin - 14) / TEXT_WIDTH)
    for one, at in zip(names, spread(ends, 14, frame.y.end, frame.y.start), strict=True):
        name = names[one] if len(names[one]) <= room else names[one][: room - 1] + "…"
        style = f"--c:{faces[one].color}" if one in series else None
        drawn.append(text(frame.x.end + 12, at + 4, name, "name" if one in series else "note", style=style))
    return svg(width, frame.height, f"{y_title} {across.spoken}", drawn)


def _curve_frame(
    at: Sequence[float],
    width: float,
    margin: float,
    show_y: Callable[[float], str],
    domain: tuple[float, float],
    finals: Collection[int],
    across: Across,
) -> Frame:
    height = 320.0 if width > 500 else 260.0
    rounds = sorted(set(at))
    low, high = (rounds[0], rounds[-1]) if len(rounds) > 1 else (rounds[0] - 1, rounds[0] + 1)
    x = Scale(low, high, 46, width - margin)
    most = max(2, int((x.end - x.start) / 34))
    shown = rounds if len(rounds) <= most else [value for value in ticks(low, high, most) if value == int(value)]
    last = [value for value in rounds if value in finals]
    near = (x.high - x.low) / most
    shown = [value for value in shown if value not in last and all(end - value >= near for end in last)] + last
    return Frame(
        width, height, x, Scale(*domain, height - 42, 28),
        lambda value: "final" if value in finals else across.show(value), show_y, shown,
    )  # fmt: skip


def _line(points: Sequence[Point], frame: Frame, look: Look) -> list[Markup]:
    drawn = [bar for point in points for bar in frame.error_bars(point, look.color)]
    places = [(frame.x(point.x), frame.y(point.y)) for point in points]
    if len(points) > 1:
        drawn.append(path(places, "series", style=f"--c:{look.color}"))
    for (x, y), point in zip(places, points, strict=True):
        # In a long run marks on every round would hide the line.
        if len(points) <= 24 or point.hollow or point is points[-1]:
            drawn.append(marker(x, y, look.shape, look.color, point.tip, point.hollow, 3.5))
    return drawn
