"""Prints what each attack found in real rounds of different length, one column a run, such as those of Guo et al. 2026.

    fedveil run simulations/configs/guo_table.toml --out runs/e2b16
    python benchmarks/round_tables.py runs/e1b1 runs/e2b16 runs/e5b16

A column is named E and B after its local epochs and its batch, with the steps that this took. A cell holds the mean PSNR against
the original with its 95 % interval, SSIM, and n; the last line is the mean image, which needs no attack. A dash: not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from audit_tables import table

from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.studies.cell import Cell

MEAN = "mean"


def main() -> None:
    """Reads the arguments and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    print(table(*lines([read_run(path) for path in parser.parse_args().runs])))


def lines(runs: Sequence[ReadRun]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: every defence and attack that any of the runs has, in order of appearance."""
    columns = [_cells(run) for run in runs]
    wanted = list(dict.fromkeys(key for column in columns for key in column))
    body = [
        [
            f"`{defense}`" if defense else "none",
            f"`{attack}`",
            *(_shown(column.get((defense, attack))) for column in columns),
        ]
        for defense, attack in wanted
    ]
    means = [_mean_image(list(column.values())) for column in columns]
    names = [_name(run, list(column.values())) for run, column in zip(runs, columns, strict=True)]
    return ["defence", "attack", *names], [*body, ["", "mean image", *means]]


def _cells(run: ReadRun) -> dict[tuple[str, str], Cell]:
    """(Defence, attack) -> its cell in the first attacked round, of attacks that were scored on images."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in (cell for study in run.studies for cell in study.cells if cell.psnr):
        found.setdefault((cell.defense, cell.attack), cell)
    return found


def _name(run: ReadRun, cells: Sequence[Cell]) -> str:
    config = run.config.get("config", {})
    steps = {cell.card.local_steps for cell in cells} - {None}
    taken = f" ({', '.join(map(str, sorted(filter(None, steps))))} steps)" if steps else ""
    return f"E{config.get('local-epochs', '?')}B{config.get('batch-size', '?')}{taken}"


def _shown(cell: Cell | None) -> str:
    if cell is None or cell.psnr is None or cell.psnr.mean is None:
        return "-"
    score, ssim = cell.psnr, cell.mean("ssim", "original")
    ends = f" ({score.low:.1f} to {score.high:.1f})" if score.low is not None and score.high is not None else ""
    failed = f", {score.failures} failed" if score.failures else ""
    return f"{score.mean:.1f}{ends}{'' if ssim is None else f', SSIM {ssim:.2f}'}, n = {score.n}{failed}"


def _mean_image(cells: Sequence[Cell]) -> str:
    values = [cell.nulls[MEAN] for cell in cells if MEAN in cell.nulls]
    return f"{sum(values) / len(values):.1f}" if values else "-"


if __name__ == "__main__":
    main()
