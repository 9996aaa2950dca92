"""Prints README's table and the tables of benchmarks/results/federated.md from finished runs, seeds side by side.

    fedveil run --out runs/seed0
    fedveil run -s seed=1 --out runs/seed1
    python benchmarks/audit_tables.py runs/seed0 runs/seed1

The first table has the strongest attack on each defence, as the report leads with it: the one that recovers the largest share
of the images. All its columns are of that attack and round but the last of a seed: the best-recovered image of all attacks, and by
how much it lies above the best null baseline for it. The second table has every attack in every attacked round. PSNR and SSIM are
means over the images against the original. "Identified" counts the images that were nearest to their guess among the candidates,
"above own colour" the recovered images that lie above the flat image of their own mean colour, where these are fewer. Marked are
* not validated, + under-powered, ^ upper bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from simulations.report.analysis.line import Line
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study

SPENT = ("epsilon", "epsilon_with_probes")
MARKS = {"not-validated": "*", "under-powered": "+", "failed": " (failed)"}


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; chains of defences have bars of their own, which are no borders of cells."""
    rows = ([cell.replace("|", "\\|") for cell in cells] for cells in (header, ["---"] * len(header), *lines))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def read_whole(run: Path) -> ReadRun:
    """A finished run.

    Raises:
        SystemExit: When anything of it cannot be read.
    """
    found = read_run(run)
    if found.notes:
        raise SystemExit(f"{run}: {'; '.join(found.notes)}")
    return found


def study_of(run: Path) -> tuple[Study, list[Line]]:
    """The one study of a run directory, and its summary.

    Raises:
        SystemExit: When anything of it cannot be read, or there are several: a model served at several cuts has one for each.
    """
    found = read_whole(run)
    if len(found.studies) != 1:
        raise SystemExit(
            f"{run} holds {len(found.studies)} studies, not one; see over_seeds.py and inference_tables.py"
        )
    return found.studies[0], found.lines(found.studies[0])


def when(cell: Cell) -> str:
    """What was attacked."""
    return "final model" if cell.final else "initial model" if cell.round == 1 else f"round {cell.round}"


def attack(cells: Sequence[Cell]) -> str:
    """Its name, and every mark that it has in any run."""
    marks = {"^" if cell.is_upper_bound else MARKS.get(cell.status, "") for cell in cells}
    return ", then ".join(f"`{stage}`" for stage in cells[0].attack.split(" | ")) + "".join(sorted(marks))


def number(cell: Cell, metric: str, reference: str, digits: int, *, worst: bool = False) -> str:
    """A mean, with half its interval or its worst image."""
    score = cell.scores.get((metric, reference))
    if score is None or score.mean is None:
        return "-"
    text = f"{score.mean:.{digits}f}"
    if worst:
        return text + (f" ({score.worst:.{digits}f})" if score.worst is not None else "")
    return text + (f" ± {score.high - score.mean:.{digits}f}" if score.high is not None else "")


def share(cell: Cell, metric: str) -> str:
    """How many images of how many, of a score that is 0 or 1 for each."""
    score = cell.scores.get((metric, ""))
    return f"{round(score.mean * score.n)} of {score.n}" if score is not None and score.mean is not None else "-"


def picked(cell: Cell) -> str:
    """How many were identified, of how many."""
    return f"{cell.picked[0]} of {cell.picked[1]}" if cell.picked else "-"


def recovered(cell: Cell) -> str:
    """How many were recovered, of how many, with the interval of that share."""
    if cell.recovered is None or cell.share is None:
        return "-"
    share = cell.share
    ends = (
        f" ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
        if share.low is not None and share.high is not None
        else ""
    )
    own = cell.detailed is not None and cell.detailed < cell.recovered[0]
    return f"{cell.recovered[0]} of {cell.recovered[1]}{ends}{f', {cell.detailed} above own colour' if own else ''}"


def best_image(line: Line, lead: Cell) -> str:
    """The best-recovered image of all attacks; whose it is where it is not the strongest attack's."""
    of = line.best_image
    if of is None or of.best is None:
        return "-"
    same = lead.best is not None and lead.best.gain >= of.best.gain
    whose = "" if same else f", by {attack([of])}, {when(of)}"
    return f"+{of.best.gain:.1f} ({of.best.psnr:.1f}){whose}"


def headline(runs: Sequence[tuple[Study, list[Line]]]) -> str:
    """One line a defence, a group of columns a seed."""
    per_run = (
        "recovered", "accuracy (change)", "strongest attack", "PSNR, dB", "SSIM", "best of all attacks, dB over null (PSNR)",
    )  # fmt: skip
    seeds = [study.seeds[0] for study, _ in runs]
    header = ["defence", *(f"{name}, seed {seed}" for seed in seeds for name in per_run), "epsilon"]
    lines = []
    for at, first in enumerate(runs[0][1]):
        cells = [f"`{first.defense}`" if first.defense else "none"]
        for _, summary in runs:
            line = summary[at]
            best = line.strongest
            accuracy = line.deployed
            cells.append(recovered(best) if best else "-")
            moved = line.change.mean if line.change else None
            change = f" ({round(100 * moved, 1) + 0.0:+.1f})" if moved is not None else ""
            cells.append(f"{100 * accuracy.mean:.1f} %{change}" if accuracy and accuracy.mean is not None else "-")
            cells += (
                [f"{attack([best])}, {when(best)}", number(best, "psnr", "original", 1), number(best, "ssim", "original", 2),
                 best_image(line, best)]
                if best else ["-"] * 4
            )  # fmt: skip
        budgets = [[getattr(summary[at], name) for _, summary in runs] for name in SPENT]
        spent = [max(e for e in found if e is not None) for found in budgets if any(e is not None for e in found)]
        cells.append(" (with probes ".join(f"{epsilon:.1f}" for epsilon in spent) + (")" if len(spent) > 1 else ""))
        lines.append(cells)
    return table(header, lines)


def everything(runs: Sequence[tuple[Study, list[Line]]], reference: str) -> str:
    """One line a defence, attack and attacked round; null baselines below."""
    names = ("PSNR, dB", "recovered", "identified", "recognised")
    seeds = [study.seeds[0] for study, _ in runs]
    header = ["defence", "attack", "attacked", "n", *(f"{name}, seed {seed}" for seed in seeds for name in names)]
    found: dict[tuple[str, str, int], dict[int, Cell]] = {}
    for at, (study, _) in enumerate(runs):
        # Clients hold the same images under every defence, and in every round.
        blind = [cell for cell in study.null_cells if not cell.defense and cell.observation != "training update"]
        for cell in (*study.cells, *(cell for cell in blind if cell.round == blind[0].round)):
            if ("psnr", reference) in cell.scores:
                found.setdefault((cell.defense, cell.attack, cell.round), {})[at] = cell
    lines = []
    for of in found.values():
        cells = list(of.values())
        blind_guess = cells[0].attack.rpartition(":")[2] if ":" in cells[0].attack else ""
        counts = sorted({cell.scores["psnr", reference].n for cell in cells})
        line = [
            f"`{cells[0].defense}`" if cells[0].defense else "none", blind_guess or attack(cells),
            "no attack" if blind_guess else when(cells[0]), " or ".join(map(str, counts)),
        ]  # fmt: skip
        for at in range(len(runs)):
            cell = of.get(at)
            numbers = (
                [number(cell, "psnr", reference, 1), recovered(cell), picked(cell), share(cell, "recognition")]
                if cell
                else []
            )
            line += numbers or ["-"] * len(names)
        lines.append(line)
    return table(header, lines)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs, alike but for the seed")
    parser.add_argument("--reference", choices=("original", "transformed"), default="original")
    arguments = parser.parse_args()
    runs = [study_of(run) for run in arguments.runs]
    print(headline(runs), end="\n\n")
    print(everything(runs, arguments.reference))


if __name__ == "__main__":
    main()
