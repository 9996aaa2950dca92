"""``fedveil run --seeds 0..4``: the same experiment with several seeds, a folder each, and a page that compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.run_folder.places import is_there
from simulations.run_folder.run_config import check_same, read_config
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED
from simulations.trackers import EXIT_NOT_TRACKED

EXIT_STOPPED = 130
Ended = Iterable[tuple[Experiment, int]]
"""Experiments with the exit codes of their runs, in the order in which they ended."""


def of_seeds(experiment: Experiment, seeds: Sequence[int]) -> list[Experiment]:
    """The experiments left to run: finished ones are left out, begun ones are resumed if their settings are the same."""
    left = []
    for seed in seeds:
        folder = Path(experiment.output_dir) / f"seed-{seed}"
        one = experiment.but(seed=seed, output_dir=str(folder))
        config = folder / "config.json"
        if is_there(config, "output-dir"):
            kept = read_config(config, "--seeds")
            one = one.but(resume=True)
            check_same(one, kept)
            if kept.get("progress", {}).get("finished") is True:
                continue
        left.append(one)
    return left


def one_by_one(
    console: Terminal, experiments: Sequence[Experiment], run: Callable[[Experiment], int]
) -> Iterator[tuple[Experiment, int]]:
    """Run the experiments one after the other."""
    for at, one in enumerate(experiments, 1):
        console.say(f"seed {one.seed}: run {at} of {len(experiments)}")
        yield one, run(one)


def finish_seeds(console: Terminal, experiment: Experiment, seeds: Sequence[int], ended: Ended) -> int:
    """Wait for all runs, print which failed, and write the comparison when all are there; the exit code.

    The experiment's folder has one for each seed; ``ended`` are the runs that were left. A run that fails, or ends without some of
    its attacks' scores, does not end the others; one that is stopped does. The same command again goes on with what is left.
    """
    from simulations.compare.findings import print_groups
    from simulations.compare.groups import grouped
    from simulations.compare.page import write_comparison

    out, worst, failed = Path(experiment.output_dir), 0, list[int]()
    for one, code in ended:
        if code == EXIT_STOPPED:
            console.say("all seeds: the same command goes on with what is left")
            return code
        if code not in (0, EXIT_ATTACKS_FAILED, EXIT_NOT_TRACKED):
            failed.append(one.seed)
        worst = max(worst, code)
    if failed:
        which = (
            f"failed, for the reasons above: seed {', '.join(map(str, sorted(failed)))}; {len(seeds) - len(failed)} of "
        )
        errors.say(f"{which}{len(seeds)} seeds are finished. The same command goes on with what is left")
        return 1
    done = [folder for seed in seeds if (folder := out / f"seed-{seed}").is_dir()]
    groups = grouped(done)
    write_comparison(groups, out / "comparison.html")
    if not console.quiet:
        print_groups(console, groups)
    console.say(f"all seeds: {out / 'comparison.html'}")
    return worst
