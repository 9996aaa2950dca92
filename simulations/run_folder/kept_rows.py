"""Rows and index of pictures that a resumed run finds in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.run_folder.line_files import kept_lines
from simulations.run_folder.rows import Row

PLACE = ("defense", "round", "attack", "observation")
"""Keys of an index line that identify the picture's cell."""


def kept(path: Path) -> tuple[list[Row], list[dict[str, Any]], list[str]]:
    """Rows and the pictures' index of a run's folder, and the loss by a cut-off last line of each (``kept_lines``)."""
    rows, rows_lost = kept_lines(path / "rows.jsonl", Row.from_json)
    pictures, pictures_lost = kept_lines(path / "pictures" / "index.jsonl", _placed)
    return rows, pictures, [lost for lost in (rows_lost, pictures_lost) if lost]


def _placed(entry: Any) -> dict[str, Any]:
    """Check that a line of the index identifies its picture's cell."""
    missing = [key for key in (*PLACE, "file") if key not in entry]
    if missing or not isinstance(entry, dict):
        raise ValueError(f"expected an object with {', '.join(PLACE)} and file")
    return entry
