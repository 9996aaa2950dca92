"""Prints the tables of a study from runs that differ in their seeds alone: means over seeds, and differences with their intervals.

    for seed in 0 1 2; do fedveil run simulations/configs/vm_optimizers.toml -s seed=$seed --out runs/optimizers-$seed; done
    python benchmarks/over_seeds.py runs/optimizers-*

The first table has a line a defence: accuracy as deployed after the last round; the difference to no defence (to the same training
defence alone, where that ran) with its 95 % interval (Student's t over the seeds, whose splits, models and images differ); how much
accuracy still changed in the last quarter of the rounds; the strongest attack, which recovers the largest share of the images of
all seeds, with that share and its PSNR. Where all attacks were told what no server has, the strongest of these stands there.
The second has a line an attack and attacked model, against the original and against the
transformed image, each beside what the mean image scores to it: policies make hard and easy targets. Null guesses follow.
Marked are * not validated and ^ upper bounds. A model that is served at several cuts has these tables for each of them.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from audit_tables import attack, number, picked, read_whole, recovered, table, when

from defenses.base import TrainingDefense
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import image_score, strength
from simulations.report.analysis.run import ReadRun
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, interval
from simulations.report.studies.study import Study

FREE = {"seed", "output-dir", "resume", "experiment"}
"""Settings that may differ between the runs."""


def read(runs: Sequence[Path]) -> list[tuple[Study, list[Line]]]:
    """All runs as one, and its studies: several where a model is served at several cuts.

    Raises:
        SystemExit: When they differ in more than their seeds, or a file has lines that are no rows.
    """
    found = [read_whole(run) for run in runs]
    first = _settings(found[0])
    for path, run in zip(runs[1:], found[1:], strict=True):
        settings = _settings(run)
        if different := sorted(key for key in first.keys() | settings.keys() if first.get(key) != settings.get(key)):
            raise SystemExit(
                f"{path} and {runs[0]} differ in {', '.join(different)}; they may differ in their seeds only"
            )
    merged = functools.reduce(ReadRun.beside, found)
    return [(study, merged.lines(study)) for study in merged.studies]


def _settings(run: ReadRun) -> dict[str, object]:
    settings = {key: value for key, value in run.config["config"].items() if key not in FREE}
    return settings | {
        "defenses": run.config["pipelines"]
    }  # versions wrote the text of the same pipelines in other ways


def percent(score: Score | None) -> str:
    """A share with its interval."""
    if score is None or score.mean is None:
        return "-"
    ends = (
        f" ({100 * score.low:.1f} to {100 * score.high:.1f})"
        if score.low is not None and score.high is not None
        else ""
    )
    return f"{100 * score.mean:.1f}{ends}"


def baseline(line: Line, lines: Sequence[Line]) -> Line:
    """What a defence is compared with: its own training defence alone where that ran (another optimizer is no merit), else none."""
    stages = [stage for stage in parse(line.defense).defenses if isinstance(stage, TrainingDefense)]
    alone = str(Pipeline(tuple(stages)))
    return next((one for one in lines if one.defense == alone and one is not line), lines[0])


def difference(line: Line, plain: Line) -> str:
    """In points: mean over the seeds that both have, and the interval of that mean."""
    own, base = (one.deployed.by_seed if one.deployed else {} for one in (line, plain))
    each = [100 * (own[seed] - base[seed]) for seed in sorted(own.keys() & base.keys())]
    if line is plain or not each:
        return "-"
    low, high = interval(each)
    ends = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
    return f"{sum(each) / len(each):+.1f}{ends}"


def change(study: Study, line: Line) -> str:
    """Points by which the mean accuracy changed in the last quarter of the rounds, and by which it swung in it."""
    reference = "transformed" if line.protected else "original"
    series = {
        at: s.mean for at, s in study.series(line.defense, "test-accuracy", reference).items() if s.mean is not None
    }
    if line.round is None or line.round not in series:
        return "-"
    before = max((at for at in series if at <= round(0.75 * line.round)), default=None)
    if before is None:
        return "-"
    late = [value for at, value in series.items() if at >= before]
    return f"{100 * (series[line.round] - series[before]):+.1f} (of {100 * (max(late) - min(late)):.1f})"


def leader(study: Study, line: Line) -> Cell | None:
    """The strongest attack; the strongest upper bound where there is nothing else, which its mark says."""
    bounds = (cell for cell in study.cells_of(line.defense) if image_score(cell) is not None)
    return line.strongest or max(bounds, key=strength, default=None)


def defences(study: Study, lines: Sequence[Line]) -> str:
    """The first table."""
    header = [
        "defence", "recovered", "accuracy, %", "less plain, points", "last quarter, points", "strongest attack", "PSNR, dB", "n",
        "AUC",
    ]  # fmt: skip
    found = []
    for line in lines:
        best, member = leader(study, line), line.membership
        psnr = best.psnr if best else None
        found.append([
            f"`{line.defense}`" if line.defense else "none", recovered(best) if best else "-",
            percent(line.deployed), difference(line, baseline(line, lines)),
            change(study, line),
            f"{attack([best])}, {when(best)}" if best else "-", number(best, "psnr", "original", 1) if best else "-",
            str(psnr.n) if psnr else "-",
            f"{member.mean('membership-auc'):.2f}" if member and member.mean("membership-auc") is not None else "-",
        ])  # fmt: skip
    return table(header, found)


def attacks(study: Study) -> str:
    """The second table."""
    header = [
        "defence", "attack", "attacked", "n", "to the original, dB", "mean image, to the same", "to the transformed image, dB",
        "mean image, to the same", "recovered", "identified",
    ]  # fmt: skip
    blind = [cell for cell in study.null_cells if not cell.defense and ("psnr", "original") in cell.scores]
    last = blind[0].round if blind else None
    seen = {cell.observation for cell in blind if cell.round == last}
    found = []
    for cell in (*study.cells, *(cell for cell in blind if cell.round == last)):
        if ("psnr", "original") not in cell.scores:
            continue
        name = cell.name + (f" ({cell.observation})" if len(seen) > 1 else "") if cell in blind else attack([cell])
        found.append([
            f"`{cell.defense}`" if cell.defense else "none", name, when(cell), str(cell.scores["psnr", "original"].n),
            number(cell, "psnr", "original", 1), mean_image(cell, "original"),
            number(cell, "psnr", "transformed", 1), mean_image(cell, "transformed"), recovered(cell), picked(cell),
        ])  # fmt: skip
    return table(header, found)


def mean_image(cell: Cell, reference: str) -> str:
    """What the mean image, which needs no attack, scores for the images that were attacked."""
    known = cell.null_scores.get(("psnr", reference), {}).get("mean")
    return "-" if known is None else f"{known:.1f}"


def about(study: Study, cells: Iterable[Cell]) -> str:
    """A line on what was run."""
    validated = sum(cell.status == "ok" for cell in cells)
    return f"seeds {', '.join(map(str, study.seeds))}; {validated} of {len(study.cells)} attacked cells are validated"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs, alike but for the seed")
    arguments = parser.parse_args()
    studies = read(arguments.runs)
    for study, lines in studies:
        if len(studies) > 1:
            print(f"### {' · '.join(study.words)}", end="\n\n")
        print(about(study, study.cells), end="\n\n")
        print(defences(study, lines), end="\n\n")
        print(attacks(study), end="\n\n" if len(studies) > 1 else "\n")


if __name__ == "__main__":
    main()
