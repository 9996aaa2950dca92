"""What scripts of all rooms share: tables, means with intervals, and files of lines from which a stopped study goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; chains of defences have bars of their own, which are no borders of cells."""
    rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (header, ["---"] * len(header), *lines))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def mean_and_reach(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval (t)."""
    tensor = torch.tensor(values, dtype=torch.float64)
    reach = stats.t.ppf(0.975, len(values) - 1) * tensor.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    return tensor.mean().item(), reach


def spread(values: Sequence[float]) -> str:
    """Mean, and smallest to largest."""
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of results, none where it does not exist; a line that was cut off is left out."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def add_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append lines to a file of results."""
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
