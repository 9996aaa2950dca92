"""The work of ``fedveil run`` once its plain values are checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from defenses.registry import RegistryError
from simulations.console.command_line import errors, fail
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.forecast.memory import check_run
from simulations.forecast.preflight import claim_folder, preflight
from simulations.report.analysis.outcome import as_json
from simulations.report.text import count
from simulations.run.hardware import CardShares, card_shares, hardware_at
from simulations.run.in_process import run_in_process
from simulations.run.requested import requested
from simulations.run.seeds import (
    EXIT_STOPPED,
    finish_seeds,
    of_seeds,
    one_by_one,
    require_jobs,
    runs_at_once,
    side_by_side,
)
from simulations.run_folder.run_config import began_in_process, read_config
from simulations.runtime.launch import Resources, end_politely
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, run_locally
from simulations.settings.common import CHOSEN_SHARE
from simulations.settings.errors import ConfigError
from simulations.trackers import track_run


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
    tracked: bool = False
    jobs: int = 0
    size: str = ""
    as_json: bool = False


@dataclass(frozen=True)
class _Runs:
    """The runs of a request, whose folder this command has."""

    console: Terminal
    request: RunRequest
    resources: Resources

    def one(self, experiment: Experiment) -> int:
        """Run an experiment whose checks are passed, and write it for TensorBoard if asked to; the exit code."""
        if self.request.in_process:
            code = run_in_process(self.console, experiment, self.request.cpus_per_client)
        else:
            code = run_locally(self.console, experiment, self.resources)
        return self._ended(experiment, code)

    def several(self, out: Path, left: list[Experiment], at_once: int) -> int:
        """Run the seeds that are left, this many at the same time, for a comparison in a folder; the exit code."""
        if at_once == 1:
            ended = one_by_one(self.console, left, self.one)
        else:
            end_politely()
            resources = replace(
                self.resources, cores=max((os.cpu_count() or 1) // at_once, self.request.cpus_per_client)
            )
            runs = side_by_side(self.console, left, resources, at_once, in_process=self.request.in_process)
            ended = ((one, self._ended(one, code)) for one, code in runs)
        try:
            code = finish_seeds(self.console, out, self.request.seeds, ended)
        except KeyboardInterrupt:
            errors.say("\nstopped; the same command goes on with what is left")
            code = EXIT_STOPPED
        for seed in self.request.seeds if self.request.as_json else ():
            if (out / f"seed-{seed}" / "rows.jsonl").is_file():
                _print_run(out / f"seed-{seed}", seed)
        return code

    def _ended(self, experiment: Experiment, code: int) -> int:
        """Print and send what a finished run found; the exit code."""
        if code not in (0, EXIT_ATTACKS_FAILED):
            return code
        out = Path(experiment.output_dir)
        if self.request.as_json and not self.request.seeds:
            _print_run(out, experiment.seed)
        return (track_run(self.console, out) if self.request.tracked else 0) or code


def _print_run(out: Path, seed: int) -> None:
    print_json({"directory": str(out.resolve()), "seed": seed, "outcomes": as_json(out)})


def begin(console: Terminal, request: RunRequest, *, dry_run: bool) -> int:
    """Check all, and run the experiment or, in a dry run, print what it would do; the exit code, or ``typer.Exit`` (2)."""
    say, cpus = console.say, request.cpus_per_client
    try:
        experiment = requested(
            request.config, request.settings, request.out, request.resume, request.clients, request.size
        )
        if request.resume and began_in_process(read_config(request.resume / "config.json", "--resume")):
            request = replace(request, in_process=True)
        hardware = hardware_at("" if request.in_process else os.environ.get("RAY_ADDRESS", ""))
        hardware.require(cpus, request.gpus_per_client or 0.0)
        left = of_seeds(experiment, request.seeds) if request.seeds else [experiment]
        require_jobs(request.jobs)
        for one in left[:1]:
            preflight(one, say)
        hardware.require_attack_cards(experiment.attack_gpus)
        if hardware.ray_address:
            say(str(hardware))
        clients, attackers, attack_gpus = experiment.num_clients, experiment.attackers, experiment.attack_gpus
        if request.in_process:
            workers, held, shares = 1, 0, CardShares(hardware.cards, 0.0, max(attack_gpus, 0.0))
        else:
            workers, held = hardware.workers(clients, cpus), hardware.workers_on_one(clients, cpus)
            shares = card_shares(hardware.cards, workers, attackers, request.gpus_per_client, attack_gpus)
        say(f"cards: {shares}")
        needed, at_once = check_run(experiment, held), 1
        if request.seeds:
            cards = hardware.cards if attack_gpus == CHOSEN_SHARE else attack_gpus
            at_once = runs_at_once(request.jobs, len(left), needed, busy=cpus * workers + attackers, cards=cards)
        claim = None if dry_run else claim_folder(Path(experiment.output_dir))
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
    about = [str(hardware)] * bool(hardware.ray_address) + [str(shares)] * bool(shares.cards)
    resources = Resources(clients, cpus, shares.client, 0, hardware.ray_address, shares.attack, "; ".join(about))
    runs = _Runs(console, request, resources)
    with claim:
        return runs.several(Path(experiment.output_dir), left, at_once) if request.seeds else runs.one(experiment)


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
