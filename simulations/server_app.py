"""The Flower ServerApp: one run loops over the pipelines, trains, attacks, audits and reports."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from clients.wire.texts import log_plainly
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import KnownClients
from simulations.preflight import too_few_images
from simulations.report import validate, write_report
from simulations.report.analysis.failures import failed_attacks
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.nodes import CLIENTS_READY, PAGE_WRITTEN, find_nodes, set_up
from simulations.settings.common import attack_share
from strategies.audit.auditor import Auditor
from strategies.audit.pool import AttackPool
from strategies.exchange.exchange import Exchange

log = logging.getLogger("flwr")

app = ServerApp()

SHARE = 0.02
"""Of a run's time that its report may take, besides the first and the last one."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Read the run config and run the experiment."""
    experiment = Experiment.from_mapping(context.run_config)
    if not experiment.output_dir:
        experiment = experiment.but(output_dir=str(Path.home() / "fedveil-runs" / f"run-{context.run_id}"))
    run_experiment(grid, experiment)


def run_experiment(grid: Grid, experiment: Experiment, *, in_process: bool = False) -> Path:
    """Run all pipelines of an experiment on the nodes of a grid; returns the path of the report.

    ``RuntimeError``: nodes are missing, cannot be set up, or too few of them send usable updates.
    """
    log_plainly()
    run = RunDirectory.open(Path(experiment.output_dir), experiment, in_process=in_process)
    log.info("fedveil: results go to %s", run.path)
    try:
        return _run(grid, run)
    except Exception as error:
        # Flower reports a failed ServerApp late and briefly; the run's folder keeps the reason.
        try:
            run.write_failure(f"{type(error).__name__}: {error}")
        except OSError as unwritten:  # where the disk is full, the folder keeps what it had
            log.warning("fedveil: %s does not say why the run ended: %s", run.path, unwritten)
        with suppress(OSError):  # the rounds since the last report, and why the run ended
            write_report(run.path)
        raise
    finally:
        run.close()


def _run(grid: Grid, run: RunDirectory[Experiment]) -> Path:
    with auditing(grid, run) as (auditor, clients):
        for job in run.open_jobs():
            auditor.submit(job)
        throttle = Throttle()
        for at, pipeline in enumerate(run.experiment.pipelines):
            run_pipeline(run, auditor, pipeline, at, clients, throttle)
        run.write_progress(progress_at(run.experiment, at, last_step(run.experiment)), throttle)
        auditor.collect(wait=True)
    return finish(run)


@contextmanager
def auditing(grid: Grid, run: RunDirectory[Experiment]) -> Iterator[tuple[Auditor, KnownClients]]:
    """Context that sets up the nodes of a grid and runs attacks beside the work within; the attackers end with it.

    Yields the auditor, and what is known of the clients; ``ConfigError`` where the experiment cannot be run with these.
    """
    experiment = run.experiment
    exchange = Exchange(grid, find_nodes(grid, experiment.num_clients), experiment.client_timeout)
    clients = set_up(exchange, experiment.plan(), experiment.partition)
    exchange = replace(exchange, dealt=clients.sizes)
    log.info("fedveil: %s", CLIENTS_READY)
    if warning := too_few_images(experiment, len(exchange.nodes)):
        log.warning("fedveil: %s", warning)
    experiment.check_images(clients.card.input_shape)
    run.image_size = clients.card.input_shape[1:]
    experiment.check_clients(clients)
    for why in experiment.idle_defenses(*clients.card.input_shape[1:]):
        log.warning("fedveil: %s", why)
    pool = AttackPool(experiment.attack_workers, attack_share(experiment.attack_gpus))
    try:
        yield Auditor(exchange, pool, run, share_images=experiment.share_images, randomness=clients.randomness), clients
    finally:
        pool.close()


def finish(run: RunDirectory[Experiment]) -> Path:
    """Judge the rows of a finished run, and write its results; returns the path of the report."""
    run.judge(validate)
    run.flush()
    last = progress_at(run.experiment, len(run.experiment.pipelines) - 1, last_step(run.experiment))
    run.write_progress(last | {"finished": True})
    report = write_report(run.path)
    for failure in failed_attacks(run.path):
        log.warning("fedveil: attack without a score: %s", failure)
    log.info("fedveil: %s %s", PAGE_WRITTEN, report)
    return report


def run_pipeline(
    run: RunDirectory[Experiment],
    auditor: Auditor,
    pipeline: Pipeline,
    at: int,
    clients: KnownClients,
    report: Throttle,
) -> None:
    """Train one pipeline from its last complete round to the end, with attacks and reports on the way."""
    experiment = run.experiment
    plan = experiment.plan(pipeline, card=clients.card)
    training = experiment.training(plan, auditor, clients, run.label(str(pipeline)))
    if pipeline.needs_group_norm and experiment.norm == "batch":
        log.warning("fedveil: %s needs gradients per example: BatchNorm is replaced by GroupNorm", pipeline)
    done = run.checkpoint(pipeline)
    if done:
        training.restore(done)
    last = last_step(experiment)
    phases = last - experiment.rounds
    for server_round in range(done.round + 1 if done else 0, last + 1):
        run.begin_round()
        if server_round <= experiment.rounds:
            if server_round > 0:
                training.train_round(server_round)
            training.evaluate_round(server_round)
        else:
            training.observe_model(server_round)
        checkpoint = training.checkpoint(server_round)
        run.complete_round(pipeline, checkpoint)
        run.write_progress(
            progress_at(experiment, at, server_round) | {"accuracy": checkpoint.accuracy}, on_change=report
        )
        behind = server_round - experiment.rounds
        part = f", part {behind} of {phases}" if phases > 1 else ""
        now = f"final model{part}, after round" if behind > 0 else f"round {server_round} of"
        log.info(
            "fedveil: %s | %s %d | test accuracy %s | %d attacks open",
            str(pipeline) or "no defence", now, experiment.rounds,
            "unknown" if checkpoint.accuracy is None else f"{checkpoint.accuracy:.3f}", len(auditor.pool),
        )  # fmt: skip


def last_step(experiment: Experiment) -> int:
    """The number of the last round of a pipeline, counting the phases behind training as rounds; the first is 0."""
    return experiment.rounds + experiment.phases_behind


def progress_at(experiment: Experiment, at: int, server_round: int) -> dict[str, Any]:
    """The progress of a run after a round of the pipeline at a position."""
    rounds, pipelines, each = experiment.rounds, len(experiment.pipelines), last_step(experiment) + 1
    return {
        "pipeline": at + 1, "of": pipelines, "round": min(server_round, rounds), "rounds": rounds, "finished": False,
        "step": at * each + server_round + 1, "steps": pipelines * each,
    }  # fmt: skip


class Throttle:
    """Updates of the report during a run, unless reports would take more than ``SHARE`` of the time."""

    _next = float("-inf")

    def __call__(self, directory: Path) -> None:
        """Writes the report of a run directory, or not."""
        started = time.monotonic()
        if started < self._next:
            return
        write_report(directory)
        ended = time.monotonic()
        self._next = ended + (ended - started) * (1 - SHARE) / SHARE
