"""The work of ``fedveil run`` once its plain values are checked."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from defenses.registry import RegistryError
from simulations.console.command_line import errors, fail
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.preflight import check_run, claim_folder, preflight
from simulations.report.analysis.run import read_run
from simulations.report.text import count
from simulations.run.hardware import CardShares, Hardware, card_shares
from simulations.run.in_process import run_in_process
from simulations.run.requested import requested
from simulations.run_folder.folder_lock import is_there, require_new
from simulations.run_folder.run_config import began_in_process, check_same, read_config
from simulations.runtime.launch import Resources
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, run_locally
from simulations.settings.errors import ConfigError

COMPARISON = "comparison.html"
EXIT_STOPPED = 130


@dataclass(frozen=True)
class RunRequest:
    """A request on the command line; see ``fedveil run --help``."""

    config: Path | None
    settings: Mapping[str, Any]
    out: Path | None
    resume: Path | None
    clients: int | None
    seeds: list[int]
    cpus_per_client: int
    gpus_per_client: float | None
    in_process: bool
    size: str = ""
    as_json: bool = False


def begin(console: Terminal, request: RunRequest, *, dry_run: bool) -> int:
    """Check all, and run the experiment or, in a dry run, print what it would do; the exit code, or ``typer.Exit`` (2)."""
    say = console.say
    try:
        experiment = requested(
            request.config, request.settings, request.out, request.resume, request.clients, request.size
        )
        if request.resume and began_in_process(read_config(request.resume / "config.json", "--resume")):
            request = replace(request, in_process=True)
        left = of_seeds(experiment, request.seeds) if request.seeds else [experiment]
        resources = _resources(say, request, experiment, left)
        out = Path(experiment.output_dir)
        claim = None if dry_run else claim_folder(out)
    except (ConfigError, RegistryError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        errors.say("\nstopped; nothing was run")
        return EXIT_STOPPED
    if claim is None:
        for line in summary(experiment):
            say(line)
        if request.seeds:
            say(f"seeds: {len(left)} of {len(request.seeds)} are left to run, each as above")
        return 0
    with claim:
        code = _run(console, request, left, resources, out)
        folders = {seed: out / f"seed-{seed}" for seed in request.seeds}
        if not folders and code in (0, EXIT_ATTACKS_FAILED):
            folders = {experiment.seed: out}
        for seed, folder in folders.items():
            if (folder / "rows.jsonl").is_file() and request.as_json:
                print_json({"directory": str(folder.resolve()), "seed": seed, "outcomes": read_run(folder).to_json()})
    return code


def _resources(
    say: Callable[[str], None], request: RunRequest, experiment: Experiment, left: list[Experiment]
) -> Resources:
    """Check the experiment and the machine; the resources of a run."""
    clients, cpus = experiment.num_clients, request.cpus_per_client
    attack_gpus = experiment.attack_gpus
    if os.environ.get("RAY_ADDRESS") and not request.in_process:
        raise ConfigError(
            "RAY_ADDRESS is set, and a run uses the Ray of its own machine: unset it, or run --in-process"
        )
    hardware = Hardware.of_this_machine()
    hardware.require(cpus, request.gpus_per_client or 0.0)
    for first in left[:1]:
        preflight(first, say)
    hardware.require_cards("attack-gpus", max(attack_gpus, 0.0))
    if request.in_process:
        held, shares = 0, CardShares(hardware.cards, 0.0, max(attack_gpus, 0.0))
    else:
        held = hardware.workers(clients, cpus)
        shares = card_shares(hardware.cards, held, experiment.attackers, request.gpus_per_client, attack_gpus)
    say(f"cards: {shares}")
    check_run(experiment, held)
    return Resources(
        clients, cpus, shares.client, attack_share=shares.attack, machines=str(shares) if shares.cards else "",
        in_process=request.in_process,
    )  # fmt: skip


def _run(console: Terminal, request: RunRequest, left: list[Experiment], resources: Resources, out: Path) -> int:
    """Run an experiment, or the seeds that are left for a comparison in a folder; the exit code."""

    def run(experiment: Experiment) -> int:
        return (run_in_process if resources.in_process else run_locally)(console, experiment, resources)

    if not request.seeds:
        return run(left[0])
    try:
        return run_seeds(console, out, request.seeds, left, run)
    except KeyboardInterrupt:
        errors.say("\nstopped; the same command goes on with what is left")
        return EXIT_STOPPED


def of_seeds(experiment: Experiment, seeds: Sequence[int]) -> list[Experiment]:
    """The experiments left to run: finished ones are left out, begun ones are resumed if their settings are the same."""
    left, out = [], Path(experiment.output_dir)
    require_new(out, "output-dir", leftovers=(COMPARISON, "seed-*"))
    for seed in seeds:
        folder = out / f"seed-{seed}"
        seeded = experiment.but(seed=seed, output_dir=str(folder))
        config = folder / "config.json"
        if is_there(config, "output-dir"):
            kept = read_config(config, "--seeds")
            seeded = seeded.but(resume=True)
            check_same(seeded, kept)
            if kept.get("progress", {}).get("finished") is True:
                continue
        left.append(seeded)
    return left


def run_seeds(
    console: Terminal, out: Path, seeds: Sequence[int], left: Sequence[Experiment], run: Callable[[Experiment], int]
) -> int:
    """Run the experiments that are left one after the other, print which failed, and write the comparison; the exit code.

    The folder ``out`` has one for each of the ``seeds``. A run that fails, or ends without some of its attacks' scores, does not
    end the others; one that is stopped does. The same command again goes on with what is left.
    """
    from simulations.compare.groups import grouped, print_groups
    from simulations.compare.page import write_comparison

    worst, failed = 0, list[int]()
    for at, experiment in enumerate(left, 1):
        console.say(f"seed {experiment.seed}: run {at} of {len(left)}")
        code = run(experiment)
        if code == EXIT_STOPPED:
            console.say("all seeds: the same command goes on with what is left")
            return code
        if code not in (0, EXIT_ATTACKS_FAILED):
            failed.append(experiment.seed)
        worst = max(worst, code)
    if failed:
        which = f"failed, for the reasons above: seed {', '.join(map(str, failed))}"
        others = f"{len(seeds) - len(failed)} of {len(seeds)} seeds are finished"
        errors.say(f"{which}; {others}. The same command goes on with what is left")
        return 1
    done = [folder for seed in seeds if (folder := out / f"seed-{seed}").is_dir()]
    groups = grouped(done)
    write_comparison(groups, out / COMPARISON)
    if not console.quiet:
        print_groups(console, groups)
    console.say(f"all seeds: {out / COMPARISON}")
    return worst


def summary(experiment: Experiment) -> list[str]:
    """What a run whose settings passed their checks would do, line by line."""
    rounds, attacks = len(experiment.attacked_rounds), "; ".join(experiment.all_attacks)
    return [
        f"scenario:   {experiment.scenario}",
        f"pipelines:  {'; '.join(str(pipeline) or 'no defence' for pipeline in experiment.pipelines)}",
        f"attacks:    {attacks}; in {count(rounds, 'round')}" if attacks and rounds else "attacks:    none",
        f"clients:    {experiment.num_clients}",
        f"rounds:     {experiment.rounds} for each pipeline",
    ]
