"""Prints tables of finished runs that differ in their seeds alone: means over seeds, and differences with their intervals.

    for seed in 0 1; do fedveil run -s seed=$seed --out runs/seed$seed; done
    python benchmarks/audit_tables.py runs/seed*

The first table has a line for each kind and size of message of a defence: the verdict, images that are recognisable and identified
in the guesses of the strongest attack, the difference to no defence, accuracy as deployed after the last round, its difference
to no defence (to the same training defence alone, if that ran) with a 95 % interval (Student's t over seeds), its change in the
last quarter of the rounds, and the strongest attack. The second table has a line an
attack and attacked model, against the original and the transformed image, each beside the mean image's score; null baselines
follow. Marked are * not validated, + under-powered, ^ upper bounds. A model that is served at several cuts has these tables for
each cut. The report of a run has what is special about its scenario.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from studies import table

from attacks.metrics.names import BESIDE
from defenses.base import TrainingDefense
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.studies.cell import FOUND, SEEN, Cell
from simulations.report.studies.intervals import interval
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

FREE = {"seed", "output-dir", "resume", "experiment"}
"""Settings that may differ between the runs."""
MARKS = {"not-validated": "*", "under-powered": "+", "failed": " (failed)"}


def read(runs: Sequence[Path]) -> list[tuple[Study, Sequence[Finding]]]:
    """All runs as one, and its studies: several if a model is served at several cuts.

    Raises:
        SystemExit: If the runs differ in more than their seeds, or a part of one cannot be read.
    """
    found = [read_run(run) for run in runs]
    for path, run in zip(runs, found, strict=True):
        if run.notes:
            raise SystemExit(f"{path}: {'; '.join(run.notes)}")
        first, settings = _settings(found[0]), _settings(run)
        if different := sorted(key for key in first.keys() | settings.keys() if first.get(key) != settings.get(key)):
            raise SystemExit(
                f"{path} and {runs[0]} differ in {', '.join(different)}; they may differ in their seeds only"
            )
    merged = functools.reduce(ReadRun.beside, found)
    return [(one.study, one.findings) for one in merged.summaries]


def _settings(run: ReadRun) -> dict[str, object]:
    settings = {key: value for key, value in run.config["config"].items() if key not in FREE}
    return settings | {
        "defenses": run.config["pipelines"]
    }  # versions wrote the text of the same pipelines in other ways


def _named(defense: str) -> str:
    return f"`{defense}`" if defense else "none"


def _when(cell: Cell) -> str:
    return "final model" if cell.final else "initial model" if cell.round == 1 else f"round {cell.round}"


def _attack(cell: Cell) -> str:
    """Its name, with its mark."""
    mark = "^" if cell.is_upper_bound else MARKS.get(cell.status, "")
    return ", then ".join(f"`{stage}`" for stage in cell.attack.split(" | ")) + mark


def _number(cell: Cell, metric: str, reference: str, digits: int = 1) -> str:
    """A mean, with half its interval."""
    score = cell.scores.get((metric, reference))
    if score is None or score.mean is None:
        return "-"
    return f"{score.mean:.{digits}f}" + (f" ± {score.high - score.mean:.{digits}f}" if score.high is not None else "")


def _found(cell: Cell, of: tuple[str, str]) -> str:
    """How many images are ``SEEN`` or ``FOUND``, of how many, with the interval of that share."""
    counted, share = cell.count(of), cell.scores.get(of)
    return "-" if counted is None or share is None else f"{counted[0]} of {counted[1]}{_ends(share, 0, ' %')}"


def _ends(score: Score, digits: int, unit: str = "") -> str:
    if score.low is None or score.high is None:
        return ""
    return f" ({100 * score.low:.{digits}f} to {100 * score.high:.{digits}f}{unit})"


def _percent(score: Score | None) -> str:
    """A share with its interval."""
    return "-" if score is None or score.mean is None else f"{100 * score.mean:.1f}{_ends(score, 1)}"


def _difference(line: Finding, lines: Sequence[Finding]) -> str:
    """In points, to no defence or to the same training defence alone: the mean over shared seeds, and its interval."""
    stages = [stage for stage in parse(line.defense).defenses if isinstance(stage, TrainingDefense)]
    alone = str(Pipeline(tuple(stages)))
    plain = next((one for one in lines if one.defense == alone and one is not line), lines[0])
    own, base = (one.accuracy.deployed.by_seed if one.accuracy.deployed else {} for one in (line, plain))
    each = [100 * (own[seed] - base[seed]) for seed in sorted(own.keys() & base.keys())]
    if line is plain or not each:
        return "-"
    low, high = interval(each)
    ends = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
    return f"{sum(each) / len(each):+.1f}{ends}"


def _change(study: Study, line: Finding) -> str:
    """Points by which the mean accuracy changed in the last quarter of the rounds, and its range in that quarter."""
    reference = "transformed" if line.accuracy.protected else "original"
    scores = study.series(line.defense, "test-accuracy", reference)
    series = {at: score.mean for at, score in scores.items() if score.mean is not None}
    last = line.accuracy.round
    before = max((at for at in series if at <= round(0.75 * (last or 0))), default=None)
    if before is None or last not in series:
        return "-"
    late = [value for at, value in series.items() if at >= before]
    return f"{100 * (series[last] - series[before]):+.1f} (of {100 * (max(late) - min(late)):.1f})"


def defences(study: Study, lines: Sequence[Finding]) -> str:
    """The first table."""
    header = [
        "defence", "message", "verdict", "recognisable", "identified", "against no defence", "strongest attack", "PSNR, dB",
        "accuracy, %", "less plain, points", "last quarter, points", "AUC", "epsilon",
    ]  # fmt: skip
    found = []
    for line in lines:
        auc = line.membership.mean("membership-auc") if line.membership else None
        of_line = [
            _percent(line.accuracy.deployed), _difference(line, lines), _change(study, line), "-" if auc is None else f"{auc:.2f}",
            "-" if line.epsilon is None else f"{line.epsilon:.1f}",
        ]  # fmt: skip
        for one in line.messages or (None,):
            if one is None:
                found.append([_named(line.defense), *["-"] * 7, *of_line])
                continue
            best, difference = one.cell, one.difference
            of_best = [
                _found(best, SEEN), _found(best, FOUND), difference.text if difference else "-",
                f"{_attack(best)}, {_when(best)}", _number(best, "psnr", "original"),
            ]  # fmt: skip
            found.append([_named(line.defense), one.title, one.verdict, *of_best, *of_line])
            of_line = [""] * len(of_line)
    return table(header, found)


def attacks(study: Study) -> str:
    """The second table."""
    header = [
        "defence", "attack", "attacked", "n", "to the original, dB", "mean image, to the same", "to the transformed image, dB",
        "mean image, to the same", "recognisable", "identified",
    ]  # fmt: skip
    beside = study.compared([row for row in study.rows if row.role in BESIDE], ())
    blind = [cell for cell in beside if not cell.defense and ("psnr", "original") in cell.scores]
    last = blind[0].round if blind else None
    several = len({cell.observation for cell in blind if cell.round == last}) > 1
    found = []
    for cell in (*study.cells, *(cell for cell in blind if cell.round == last)):
        if score := cell.scores.get(("psnr", "original")):
            name = cell.attack + (f" ({cell.observation})" if several else "") if cell in blind else _attack(cell)
            measured = [
                text for reference in ("original", "transformed")
                for text in (_number(cell, "psnr", reference), _mean_image(cell, reference))
            ]  # fmt: skip
            counts = [_found(cell, SEEN), _found(cell, FOUND)]
            found.append([_named(cell.defense), name, _when(cell), str(score.n), *measured, *counts])
    return table(header, found)


def _mean_image(cell: Cell, reference: str) -> str:
    """The score of the mean image, which needs no attack."""
    known = cell.null_scores.get(("psnr", reference), {}).get("mean")
    return "-" if known is None else f"{known:.1f}"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs, alike but for the seed")
    for study, lines in read(parser.parse_args().runs):
        validated = sum(cell.status == "ok" for cell in study.cells)
        seeds = ", ".join(map(str, study.seeds))
        print(
            f"{' · '.join(study.words)}\n\nSeeds {seeds}; {validated} of {len(study.cells)} attacked cells are validated.\n"
        )
        print(defences(study, lines), attacks(study), sep="\n\n", end="\n\n")


if __name__ == "__main__":
    main()
