"""The work of ``fedveil run`` once its plain values are checked."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from defenses.registry import RegistryError
from simulations.console.command_line import errors, fail
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.preflight import check_run, claim_folder, preflight
from simulations.report.analysis.run import read_run
from simulations.report.text import count
from simulations.run.hardware import CardShares, Hardware, card_shares
from simulations.run.requested import requested
from simulations.run.seeds import (
    EXIT_STOPPED,
    finish_seeds,
    of_seeds,
    one_by_one,
    require_jobs,
    run_one,
    runs_at_once,
    side_by_side,
)
from simulations.run_folder.run_config import began_in_process, read_config
from simulations.runtime.launch import Resources, end_politely
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED
from simulations.settings.common import CHOSEN_SHARE
from simulations.settings.errors import ConfigError


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
    jobs: int = 0
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
        resources, at_once = _resources(say, request, experiment, left)
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
            say(f"seeds: {len(left)} of {len(request.seeds)} are left to run, each as above, {at_once} at a time")
        return 0
    if at_once > 1:
        say(f"seeds: {len(left)} to run, {at_once} at a time")
    with claim:
        code = _run(console, request, left, resources, at_once, out)
        folders = {seed: out / f"seed-{seed}" for seed in request.seeds}
        if not folders and code in (0, EXIT_ATTACKS_FAILED):
            folders = {experiment.seed: out}
        for seed, folder in folders.items():
            if (folder / "rows.jsonl").is_file() and request.as_json:
                print_json({"directory": str(folder.resolve()), "seed": seed, "outcomes": read_run(folder).to_json()})
    return code


def _resources(
    say: Callable[[str], None], request: RunRequest, experiment: Experiment, left: list[Experiment]
) -> tuple[Resources, int]:
    """Check the experiment and the machine; the resources of a run, and how many runs go on at the same time."""
    clients, cpus = experiment.num_clients, request.cpus_per_client
    attackers, attack_gpus = experiment.attackers, experiment.attack_gpus
    if os.environ.get("RAY_ADDRESS") and not request.in_process:
        raise ConfigError(
            "RAY_ADDRESS is set, and a run uses the Ray of its own machine: unset it, or run --in-process"
        )
    hardware = Hardware(os.cpu_count() or 1, torch.cuda.device_count())
    hardware.require(cpus, request.gpus_per_client or 0.0)
    require_jobs(request.jobs)
    for first in left[:1]:
        preflight(first, say)
    hardware.require_cards("attack-gpus", max(attack_gpus, 0.0))
    if request.in_process:
        workers, held, shares = 1, 0, CardShares(hardware.cards, 0.0, max(attack_gpus, 0.0))
    else:
        workers = held = hardware.workers(clients, cpus)
        shares = card_shares(hardware.cards, workers, attackers, request.gpus_per_client, attack_gpus)
    say(f"cards: {shares}")
    needed, at_once = check_run(experiment, held), 1
    if request.seeds:
        cards = hardware.cards if attack_gpus == CHOSEN_SHARE else attack_gpus
        at_once = runs_at_once(request.jobs, len(left), needed, busy=cpus * workers + attackers, cards=cards)
    return Resources(
        clients, cpus, shares.client, attack_share=shares.attack, machines=str(shares) if shares.cards else "",
        in_process=request.in_process,
    ), at_once  # fmt: skip


def _run(
    console: Terminal, request: RunRequest, left: list[Experiment], resources: Resources, at_once: int, out: Path
) -> int:
    """Run an experiment, or the seeds that are left, this many at the same time, for a comparison in a folder; the exit code."""
    if not request.seeds:
        return run_one(console, left[0], resources)
    if at_once == 1:
        ended = one_by_one(console, left, lambda experiment: run_one(console, experiment, resources))
    else:
        end_politely()
        shared = replace(resources, cores=max((os.cpu_count() or 1) // at_once, resources.cpus_per_client))
        ended = side_by_side(console, left, shared, at_once)
    try:
        return finish_seeds(console, out, request.seeds, ended)
    except KeyboardInterrupt:
        errors.say("\nstopped; the same command goes on with what is left")
        return EXIT_STOPPED


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
