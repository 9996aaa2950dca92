"""Scripts of ``benchmarks/`` and its rooms import each other as siblings, as they do when one of them is run."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [
    str(BENCHMARKS / room)
    for room in (
        "",
        "dp_audit",
        "exact",
        "inversion",
        "membership",
        "mixer",
        "paper_tables",
        "paper_tables/claims",
        "released_code",
        "reliability",
        "tokens",
    )
]
