"""The table and the picture of ``leak_map.py``, from its lines."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from studies import mean_and_reach, table

Line = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Sequence[Line]]
"""Network and column -> its lines, one for each seed."""
MISSING = "#e4e4e4"
SHOWN_GAIN = 12.0
"""dB at which the colours of gains end."""
LEAST_IMAGES = 32
"""Images of a cell below which its numbers stand in parentheses."""


def cells_of(lines: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    """The lines by cell, each with its seeds in order."""
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        found[line["network"], line["column"]].append(line)
    return dict(found)


def gains(line: Line) -> list[float]:
    """PSNR above that of the mean image, dB, for each image."""
    return [own - mean for own, mean in zip(line["psnr"], line["mean"], strict=True)]


def gain(lines: Sequence[Line]) -> tuple[float, float]:
    """Mean gain in dB over the images of all seeds, and half of its 95 % interval over images."""
    return mean_and_reach([value for line in lines for value in gains(line)])


def share(lines: Sequence[Line]) -> float:
    """Recovered images of all seeds, as a share."""
    hits = [hit for line in lines for hit in line["recognisable"]]
    return float(sum(hits)) / len(hits)


def printed(lines: Sequence[Line], rows: Sequence[str], columns: Sequence[str]) -> str:
    """Three Markdown tables: gains, differences from the first row on the same images, and counts of recognisable images."""
    cells = cells_of(lines)
    measured = measured_of(cells, columns)
    differences = {place: changed(some, cells.get((rows[0], place[1]), [])) for place, some in cells.items()}
    header = ["network", *map(heading, measured)]
    return "\n\n".join(
        (
            table(header, [[row, *(gain_text(cells.get((row, c))) for c in measured)] for row in rows]),
            table(header, [[row, *(difference_text(differences.get((row, c))) for c in measured)] for row in rows[1:]]),
            table(header, [[row, *(recognisable_text(cells.get((row, c))) for c in measured)] for row in rows]),
        )
    )


def changed(lines: Sequence[Line], base: Sequence[Line]) -> list[float]:
    """PSNR above that of the same images in the base network's cell, dB, over the seeds that both have."""
    known = {line["seed"]: line["psnr"] for line in base}
    pairs = [pair for line in lines for pair in zip(line["psnr"], known.get(line["seed"], []), strict=False)]
    return [own - other for own, other in pairs]


def difference_text(values: Sequence[float] | None) -> str:
    """Mean and half of its 95 % interval over images, dB."""
    return "{:+.1f} ± {:.1f}".format(*mean_and_reach(values)) if values else "-"


def measured_of(cells: Cells, columns: Sequence[str]) -> list[str]:
    """The columns of which there are lines."""
    return [column for column in columns if any(column == known for _, known in cells)]


def heading(column: str) -> str:
    """A column as tables name it: images of a client, and one step or a round."""
    return column.replace(" round", ", a round") if "round" in column else f"{column}, one step"


def gain_text(lines: Sequence[Line] | None) -> str:
    """Mean, half of its interval over images, and the mean of each seed; in dB."""
    if not lines:
        return "-"
    seeds = ", ".join(f"{gain([line])[0]:+.1f}" for line in lines)
    return "{:+.1f} ± {:.1f} ({})".format(*gain(lines), seeds)


def recognisable_text(lines: Sequence[Line] | None) -> str:
    """Recognisable and all images, and recognisable images of each seed."""
    if not lines:
        return "-"
    counts = [sum(map(int, line["recognisable"])) for line in lines]
    return f"{sum(counts)} of {sum(int(line['n']) for line in lines)} ({', '.join(map(str, counts))})"


def draw(lines: Sequence[Line], rows: Sequence[str], columns: Sequence[str], path: Path) -> None:
    """Save the map as PNG, 1,000 pixels wide: gains on the left, recognisable shares on the right, unmeasured cells in grey."""
    cells = cells_of(lines)
    measured = measured_of(cells, columns)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.0 + 0.27 * len(rows)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    values = [[cells.get((row, column)) for column in measured] for row in rows]
    few = [[some is not None and sum(int(line["n"]) for line in some) < LEAST_IMAGES for some in row] for row in values]
    _panel(left, [[gain(some)[0] if some else None for some in row] for row in values], few, "{:+.1f}", SHOWN_GAIN)
    left.set_title("Gain above the mean image, dB", fontsize=10)
    _panel(right, [[100 * share(some) if some else None for some in row] for row in values], few, "{:.0f}", 100)
    right.set_title("Recovered images, %", fontsize=10)
    for panel in (left, right):
        names = [column.replace(" ", "\n") if " " in column else f"{column}\nstep" for column in measured]
        panel.set_xticks(range(len(measured)), names, fontsize=8.5)
        panel.set_xlabel("images of the client, in one step or in a round", fontsize=9)
    left.set_yticks(range(len(rows)), rows, fontsize=9)
    figure.savefig(path, metadata={"Software": None})


def _panel(
    axes: Any, values: Sequence[Sequence[float | None]], few: Sequence[Sequence[bool]], shown: str, most: float
) -> None:
    """A heat map with its numbers written into the cells; colours end at ``most`` and its negative."""
    axes.set_facecolor(MISSING)
    numbers = [[float("nan") if value is None else value for value in row] for row in values]
    axes.imshow(numbers, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            # White on the dark ends of the colours.
            colour = "white" if value is not None and abs(value) > 0.65 * most else "black"
            label = "-" if value is None else shown.format(value)
            label = f"({label})" if few[y][x] else label
            axes.text(x, y, label, ha="center", va="center", fontsize=8.5, color=colour)
    axes.tick_params(length=0)
