"""The report: self-contained HTML pages and a CSV, made from ``rows.jsonl``, pictures and the configuration only."""

import os
from pathlib import Path

from simulations.report.studies.control import validate
from simulations.report.studies.rows import read_rows, to_csv
from simulations.run_folder.rows import Row

__all__ = ["Row", "read_rows", "validate", "write_report"]


def write_report(directory: Path) -> Path:
    """Write ``report.html`` and ``rows.csv`` into a run directory, whatever part of the run exists.

    Reads ``rows.jsonl``, ``config.json`` and ``pictures/`` only, so that a report can be rebuilt, and made of merged
    rows. Each file appears whole or not at all. The same directory gives the same bytes. Returns the path of ``report.html``.
    """
    from simulations.report.page.page import build

    page, rows = build(directory)
    write_page(directory / "rows.csv", to_csv(rows))
    write_page(directory / "report.html", page)
    return directory / "report.html"


def write_page(path: Path, page: str | bytes) -> None:
    """Write a text, or the bytes of a page, whole or not at all."""
    # The process id keeps two writers apart; the last one to finish wins with a whole file.
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Surrogates come from damaged bytes in a row; they must not cost the whole report.
        partial.write_bytes(page if isinstance(page, bytes) else page.encode("utf-8", errors="replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
