"""All tables and figures of the four papers, and the runs that they need."""

from __future__ import annotations

import sys
from pathlib import Path

from entry import Entry, Run

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
MAIN: tuple[tuple[Entry, str], ...] = tuple(
    (_BY_TITLE[title], promise)
    for title, promise in (
        ("PatchShuffling, Table 1", "Shuffled tokens keep accuracy and hide faces from a trained decoder."),
        (
            "PatchShuffling, Table 4",
            "An attacker that knows the model cannot invert shuffled tokens, also with a jigsaw solver.",
        ),
        ("ADP, Table 3", "Images cannot be reconstructed from the features that an autoencoder sends."),
        ("ADP, Figure 5", "The server keeps its accuracy and the adversary falls to chance (Equation 1)."),
        ("ATS, Table 1", "Searched policies hide images from gradient inversion and cost no accuracy."),
        ("ATS, Figure 2", "The score of the search, S_pri, predicts what an attack recovers."),
        ("VisualMixer, Table 2", "Training on mixed images costs little accuracy."),
        ("VisualMixer, Figure 8", "Attacks that reassemble images do not restore mixed ones."),
        ("VisualMixer, Figure 10", "Membership is hardly inferred from a model of mixed images."),
    )
)
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
