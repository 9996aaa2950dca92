"""Prints the tables of benchmarks/results/split.md from finished runs.

    fedveil run simulations/configs/split_table1.toml --out runs/table1
    python benchmarks/split_tables.py runs/table1

One line per defence and attack: accuracy of the last round, and means over the attacked images of the last attacked round (all
attacked rounds with --every-round). "PSNR paper" is in the convention of the shuffling paper.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from audit_tables import table

from simulations.report.analysis.run import read_run
from simulations.run_folder.rows import Row, shown_name

SCORES = (
    ("psnr", "original", "PSNR", 1),
    ("ssim", "original", "SSIM", 2),
    ("mse", "original", "MSE", 3),
    ("psnr-paper", "", "PSNR paper", 1),
    ("feature-similarity", "", "F-SIM", 2),
    ("identification", "", "identified", 2),
    ("recognition", "", "recognised", 2),
)
COSTS = (
    "edge-parameters",
    "edge-macs",
    "edge-training-macs",
    "edge-peak-bytes",
    "bytes-per-sample",
    "log10-target-share",
)


def shown(rows: list[Row], digits: int) -> str:
    """Mean with half the width of its interval, and a star where the attack is not validated."""
    if not rows or rows[0].value is None:
        return "-"
    row = rows[0]
    half = "" if row.ci_high is None or row.value is None else f" ±{row.ci_high - row.value:.{digits}f}"
    return f"{row.value:.{digits}f}{half}" + ("*" if row.status == "not-validated" else "")


def attack_lines(rows: list[Row], *, every_round: bool) -> list[list[str]]:
    """One line per defence, attack and round."""
    lines = []
    attacked = [row for row in rows if row.metric == "psnr" and row.reference == "original"]
    last = max((row.round for row in attacked), default=0)
    for one in attacked:
        if one.round != last and not every_round:
            continue
        same = [
            r for r in rows if (r.defense, r.role, r.attack, r.round) == (one.defense, one.role, one.attack, one.round)
        ]
        cells = [shown([r for r in same if (r.metric, r.reference) == (m, ref)], d) for m, ref, _, d in SCORES]
        name = shown_name(one.role, one.attack)
        where = [str(one.round)] if every_round else []
        lines.append([f"`{one.defense or 'none'}`", f"`{name}`", *where, *cells, str(one.n)])
    return lines


def defence_lines(rows: list[Row]) -> list[list[str]]:
    """One line per defence: accuracy, correlation, costs."""
    lines = []
    for defense in dict.fromkeys(row.defense for row in rows):
        mine = [row for row in rows if row.defense == defense and not row.attack]
        last = max(row.round for row in mine)
        cells = []
        for metric, at in (("test-accuracy", last), ("mcc-micro", last), ("mcc-macro", last)):
            found = [r for r in mine if (r.metric, r.reference, r.round) == (metric, "transformed", at)]
            cells.append(shown(found, 3))
        for metric in COSTS:
            found = [row.value for row in mine if row.metric == metric and row.value is not None]
            cells.append(f"{found[-1]:,.0f}" if found else "-")
        lines.append([f"`{defense or 'none'}`", *cells])
    return lines


def main() -> None:
    """Prints both tables of every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--every-round", action="store_true")
    arguments = parser.parse_args()
    for run in arguments.runs:
        found = read_run(run)
        rows, notes = list(found.rows), found.row_notes
        print(f"\n### {run.name}\n" + "".join(f"\n{note}" for note in notes))
        print(table(["defence", "accuracy", "MCC micro", "MCC macro", *COSTS], defence_lines(rows)))
        where = ["round"] if arguments.every_round else []
        header = ["defence", "attack", *where, *(title for _, _, title, _ in SCORES), "n"]
        if lines := attack_lines(rows, every_round=arguments.every_round):
            print("\n" + table(header, lines))


if __name__ == "__main__":
    main()
