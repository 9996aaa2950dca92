"""Prints the tables of benchmarks/results/inference.md from finished runs; runs that differ in their seeds are merged.

    fedveil run simulations/configs/adp_table4.toml --out runs/table4
    python benchmarks/inference_tables.py runs/table4

A line for each defence at each cut: right answers of the server (before its defence on the first line), right guesses of an
adversary that has seen unprotected features alone and of one that was trained on protected ones, both with exact 95 % intervals;
MS-SSIM of what each attack reconstructs, which is the paper's measure of it, with the share above 0.35; and the bytes of a query.
Whether Equation 1 is satisfied is told by both adversaries, as the report tells it: - where nobody inferred.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from audit_tables import table
from over_seeds import percent, read

from attacks.metrics.services import QUERY_BYTES
from simulations.report.sections.inference.cuts import Adversary, CutLine, CutReader
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

MEASURE = ("ms-ssim", "original")
SUCCESS = ("ms-ssim-success", "")


def main() -> None:
    """Reads the arguments and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    studies = [study for study, _ in read(parser.parse_args().runs)]
    print(f"Seeds: {', '.join(map(str, studies[0].seeds))}\n")
    print(table(*lines(studies)))


def lines(studies: Sequence[Study]) -> tuple[list[str], list[list[str]]]:
    """Header and lines; a study is a cut."""
    attacks = tuple(dict.fromkeys(cell.attack for study in studies for cell in study.cells if MEASURE in cell.scores))
    header = ["cut", "defence", "server", "static adversary", "retrained adversary", "Equation 1", "bytes"]
    found = [
        _line(study.cut, line, [_measured(study.cells_of(line.defense), attack) for attack in attacks])
        for study in studies
        for line in CutReader(study).cut().lines
    ]
    return [*header, *(f"MS-SSIM, `{attack}`" for attack in attacks)], found


def _line(cut: str, line: CutLine, measured: Sequence[str]) -> list[str]:
    told = [adversary.equation or "-" for adversary in (line.static, line.retrained) if adversary]
    return [
        cut,
        f"`{line.defense}`" if line.defense else "none",
        percent(line.server.after if line.defense else line.server.before),
        _guessed(line.static),
        _guessed(line.retrained),
        " / ".join(told) or "-",
        f"{line.numbers[QUERY_BYTES.name]:,.0f}" if QUERY_BYTES.name in line.numbers else "-",
        *measured,
    ]


def _guessed(adversary: Adversary | None) -> str:
    return percent(adversary.change.after) if adversary else "-"


def _measured(cells: Sequence[Cell], attack: str) -> str:
    found = [cell for cell in cells if cell.attack == attack and MEASURE in cell.scores]
    if not found:
        return "-"
    score, success = found[0].scores[MEASURE], found[0].scores.get(SUCCESS)
    return _mean(score) + (f"; {round((success.mean or 0.0) * success.n)} of {success.n}" if success else "")


def _mean(score: Score) -> str:
    half = f" ± {score.high - score.mean:.2f}" if score.high is not None and score.mean is not None else ""
    return f"{score.mean:.2f}{half}" if score.mean is not None else "-"


if __name__ == "__main__":
    main()
