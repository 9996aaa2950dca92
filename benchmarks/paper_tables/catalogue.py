"""All tables and figures of the four papers, and the runs that they need."""

from __future__ import annotations

import sys
from pathlib import Path

from entry import Entry, Run
from promises import PROMISES, Promise

sys.path.append(str(Path(__file__).resolve().parent / "claims"))
import adp_claims
import adp_entries
import ats_claims
import ats_entries
import mixer_claims
import mixer_entries
import shuffling_claims
import shuffling_entries

ENTRIES: tuple[Entry, ...] = (
    *shuffling_entries.ENTRIES,
    *adp_entries.ENTRIES,
    *ats_entries.ENTRIES,
    *mixer_entries.ENTRIES,
)
BEYOND: tuple[Entry, ...] = ats_entries.BEYOND
"""Runs that belong to a paper's claims and are no table of it."""

_BY_TITLE = {entry.title: entry for entry in ENTRIES}
MAIN: tuple[tuple[Entry, Promise], ...] = tuple((_BY_TITLE[one.title], one) for one in PROMISES)
"""What the four papers promise above all, each with the table or figure that shows it."""
AUDIT = "[split audit](split.md#the-split-audit)"
DELTA = "[delta protection](inference.md#delta-protection-adp)"
STRONGER: tuple[tuple[str, str], ...] = (
    (shuffling_claims.BROKEN, AUDIT),
    (shuffling_claims.INTERSECTION, AUDIT),
    (shuffling_claims.FIELDS, "[census](split.md#table-iii-of-the-shuffling-paper-on-the-census)"),
    (adp_claims.RETRAIN, DELTA),
    (adp_claims.INVERSE, DELTA),
    (ats_claims.KNOWN, "[default audit](federated.md#the-default-audit)"),
    (mixer_claims.READABLE, "[uploads](outsourced.md)"),
)
"""Remark of an entry about an attack that breaks its defence -> link to that result, for the entry's line."""


def runs() -> list[Run]:
    """All runs, the cheapest first."""
    found = {run.name: run for entry in (*ENTRIES, *BEYOND) for run in entry.runs}
    return sorted(found.values(), key=lambda run: (run.seconds, run.name))
