"""``fedveil run --seeds 0..4``: the same experiment with several seeds, a folder each, and the page that puts them together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from simulations.experiment import Experiment
from simulations.local_run import EXIT_ATTACKS_FAILED
from simulations.run_config import check_same
from simulations.trackers import EXIT_NOT_TRACKED


def of_seeds(experiment: Experiment, seeds: Sequence[int]) -> list[Experiment]:
    """The experiments that are left to run: those that are finished are left out, those that were begun are resumed.

    Raises:
        ConfigError: When a folder holds a run with other settings.
    """
    left = []
    for seed in seeds:
        folder = Path(experiment.output_dir) / f"seed-{seed}"
        one = replace(experiment, seed=seed, output_dir=str(folder))
        config = folder / "config.json"
        if config.is_file():
            kept = json.loads(config.read_text())
            one = replace(one, resume=True)
            check_same(one, kept)
            if kept.get("progress", {}).get("finished") is True:
                continue
        left.append(one)
    return left


def run_seeds(console: Console, experiment: Experiment, seeds: Sequence[int], run: Callable[[Experiment], int]) -> int:
    """Runs them one after the other, and writes the comparison when all are there; the exit code.

    A run that fails ends the command: the same command again goes on from there. One that ends without some of its attacks' scores
    does not.

    Args:
        console: For what is said.
        experiment: Its folder gets a folder for each seed.
        seeds: At least one.
        run: Runs one and returns its exit code.
    """
    from simulations.compare.groups import grouped
    from simulations.compare.page import write_comparison

    out, worst = Path(experiment.output_dir), 0
    for at, one in enumerate(left := of_seeds(experiment, seeds), 1):
        console.print(f"seed {one.seed}: run {at} of {len(left)}", markup=False)
        code = run(one)
        if code not in (0, EXIT_ATTACKS_FAILED, EXIT_NOT_TRACKED):
            console.print("the same command goes on with what is left", markup=False)
            return code
        worst = max(worst, code)
    done = [folder for seed in seeds if (folder := out / f"seed-{seed}").is_dir()]
    write_comparison(grouped(done), out / "comparison.html")
    console.print(f"all seeds: {out / 'comparison.html'}", markup=False, soft_wrap=True)
    return worst
