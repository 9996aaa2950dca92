"""Scripts of ``benchmarks/`` and its rooms import each other as siblings, as they do when one of them is run."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROOMS = (
    "", "dp_audit", "exact", "flower_apps", "inversion", "membership", "paper_tables",
    "released_code", "reliability",
)  # fmt: skip
sys.path[:0] = [str(BENCHMARKS / room) for room in ROOMS]
