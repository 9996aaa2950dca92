"""Names of files of a measured search."""

from __future__ import annotations

from pathlib import Path

ABOUT = "measured.json"


def is_measured(path: Path) -> bool:
    """Whether a folder is that of a measured search."""
    return (path / ABOUT).is_file()


def is_by_scores(path: Path) -> bool:
    """Whether a folder is that of a search by the paper's scores (``simulations.search.folder``)."""
    return (path / "search.json").is_file()
