"""The work of ``fedveil run`` once its plain values are checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from defenses.registry import RegistryError
from simulations.console.command_line import errors, fail
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.forecast.memory import check_run
from simulations.forecast.notices import summary
from simulations.forecast.preflight import claim_folder, preflight
from simulations.report.analysis.outcome import as_json
from simulations.run.hardware import CardShares, Hardware, hardware_at, shares_of, this_machine
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
    hardware: Hardware = field(default_factory=this_machine)

    def run(self, console: Terminal, experiment: Experiment) -> int:
        """Run an experiment whose checks are passed, and write it for TensorBoard if asked to; the exit code."""
        if self.in_process:
            code = run_in_process(console, experiment, self.cpus_per_client)
        else:
            code = run_locally(console, experiment, self._resources(experiment))
        return self._ended(console, experiment, code)

    def run_seeds(self, console: Terminal, experiment: Experiment, at_once: int) -> int:
        """Run the remaining seeds, this many at the same time; returns the exit code."""
        left = of_seeds(experiment, self.seeds)
        if at_once == 1:
            return finish_seeds(console, experiment, self.seeds, one_by_one(console, left, partial(self.run, console)))
        end_politely()
        cores = max((os.cpu_count() or 1) // at_once, self.cpus_per_client)
        runs = side_by_side(console, left, self._resources(experiment, cores), at_once, in_process=self.in_process)
        ended = ((one, self._ended(console, one, code)) for one, code in runs)
        try:
            return finish_seeds(console, experiment, self.seeds, ended)
        except KeyboardInterrupt:
            errors.say("\nstopped; the same command goes on with what is left")
            return EXIT_STOPPED

    def cores_busy(self, experiment: Experiment) -> int:
        """Cores that a run keeps busy: its clients, and the attacks beside them."""
        workers = 1 if self.in_process else self.hardware.workers(experiment.num_clients, self.cpus_per_client)
        return self.cpus_per_client * workers + (experiment.attack_workers if experiment.attacked_rounds else 0)

    def workers(self, experiment: Experiment) -> int:
        """Client processes on this machine at the same time; 0 in process."""
        return 0 if self.in_process else self.hardware.workers_on_one(experiment.num_clients, self.cpus_per_client)

    def _ended(self, console: Terminal, experiment: Experiment, code: int) -> int:
        """Print and send what a finished run found; the exit code."""
        if code not in (0, EXIT_ATTACKS_FAILED):
            return code
        out = Path(experiment.output_dir)
        if self.as_json and not self.seeds:
            print_run(out, experiment.seed)
        return (track_run(console, out) if self.tracked else 0) or code

    def _resources(self, experiment: Experiment, cores: int = 0) -> Resources:
        shares, hardware = self.shares(experiment), self.hardware
        about = [str(hardware)] * bool(hardware.ray_address) + [str(shares)] * bool(shares.cards)
        return Resources(
            experiment.num_clients,
            self.cpus_per_client,
            shares.client,
            cores,
            hardware.ray_address,
            shares.attack,
            "; ".join(about),
        )

    def shares(self, experiment: Experiment) -> CardShares:
        """What clients and attack workers get of the graphics cards; in process nothing is reserved."""
        if self.in_process:
            return CardShares(self.hardware.cards, 0.0, max(experiment.attack_gpus, 0.0))
        workers = self.hardware.workers(experiment.num_clients, self.cpus_per_client)
        return shares_of(experiment, workers, self.gpus_per_client, self.hardware.cards)


def _with_hardware(request: RunRequest) -> RunRequest:
    """The request with the machines that it may use; the environment may name a Ray cluster, too."""
    if request.in_process:
        return request
    return replace(request, hardware=hardware_at(os.environ.get("RAY_ADDRESS", "")))


def print_run(out: Path, seed: int) -> None:
    """Print what a run found as a line of JSON."""
    print_json({"directory": str(out.resolve()), "seed": seed, "outcomes": as_json(out)})


def begin(console: Terminal, request: RunRequest, *, dry_run: bool) -> int:
    """Check all, and run the experiment or, in a dry run, print what it would do; the exit code, or ``typer.Exit`` (2)."""
    say = console.say
    try:
        experiment = requested(
            request.config, request.settings, request.out, request.resume, request.clients, request.size
        )
        if request.resume and began_in_process(read_config(request.resume / "config.json", "--resume")):
            request = replace(request, in_process=True)
        request = _with_hardware(request)
        request.hardware.require(request.cpus_per_client, request.gpus_per_client or 0.0)
        left = of_seeds(experiment, request.seeds) if request.seeds else [experiment]
        require_jobs(request.jobs)
        for one in left[:1]:
            preflight(one, say)
        request.hardware.require_attack_cards(experiment.attack_gpus)
        if request.hardware.ray_address:
            say(str(request.hardware))
        say(f"cards: {request.shares(experiment)}")
        needed = check_run(experiment, request.workers(experiment))
        at_once = (
            runs_at_once(
                request.jobs,
                len(left),
                experiment,
                needed,
                busy=request.cores_busy(experiment),
                cards=request.hardware.cards,
            )
            if request.seeds
            else 1
        )
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
    with claim:
        return _run(console, request, experiment, at_once)


def _run(console: Terminal, request: RunRequest, experiment: Experiment, at_once: int) -> int:
    """Run an experiment, with one seed or several, whose folder this command has; the exit code."""
    if request.seeds:
        code = request.run_seeds(console, experiment, at_once)
        for seed in request.seeds if request.as_json else ():
            if (folder := Path(experiment.output_dir) / f"seed-{seed}" / "rows.jsonl").is_file():
                print_run(folder.parent, seed)
        return code
    return request.run(console, experiment)
