"""All tables and figures of the four papers, and the runs that they need."""

from __future__ import annotations

import sys
from pathlib import Path

from entry import Entry, Run

sys.path.append(str(Path(__file__).resolve().parent / "claims"))
import adp_entries
import ats_entries
import mixer_entries
import shuffling_entries

ENTRIES: tuple[Entry, ...] = (
    *shuffling_entries.ENTRIES,
    *adp_entries.ENTRIES,
    *ats_entries.ENTRIES,
    *mixer_entries.ENTRIES,
)
BEYOND: tuple[Entry, ...] = ats_entries.BEYOND
"""Runs that belong to a paper's claims and are no table of it."""


def runs() -> list[Run]:
    """All runs, the cheapest first."""
    found = {run.name: run for entry in (*ENTRIES, *BEYOND) for run in entry.runs}
    return sorted(found.values(), key=lambda run: (run.seconds, run.name))
