"""One pipeline's training in either scenario, as the loop over rounds sees it: run a round, keep it, take it up again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from flwr.app import ArrayRecord

from attacks.local_model import shared_tensors
from clients.records import to_record, to_tensors
from defenses.pipeline import Pipeline
from simulations.checkpoints import Checkpoint
from simulations.errors import ConfigError
from simulations.experiment import Experiment
from simulations.nodes import Clients
from simulations.run_directory import RunDirectory
from simulations.scenario_checks import check_halves
from strategies.audit.auditor import Auditor
from strategies.curious import CuriousFedAvg
from strategies.split.costs import record_costs
from strategies.split.server import Holder
from strategies.split.split_fed import Schedule, SplitFed

MIN_EXAMPLES = 2
"""Training and test examples that a client of a split run needs: a batch of one has nothing to be shuffled with."""


class Rounds(Protocol):
    """The training of one pipeline."""

    def restore(self, done: Checkpoint) -> None:
        """Goes on from a checkpoint."""

    def run_round(self, server_round: int) -> None:
        """Trains (unless it is round 0, the initial model), then evaluates."""

    def observe_final(self, server_round: int) -> None:
        """Attacks the model after the last round, as round ``server_round``; nothing is trained."""

    def checkpoint(self, server_round: int) -> Checkpoint:
        """What must be kept of the round that just ended."""


class FederatedRounds:
    """Federated averaging of whole models."""

    def __init__(self, run: RunDirectory, auditor: Auditor, pipeline: Pipeline, clients: Clients) -> None:
        experiment = run.experiment
        task = replace(experiment.task(pipeline), card=clients.card)
        self._strategy = CuriousFedAvg(
            task=task,
            auditor=auditor,
            probe_attacks=experiment.attacks_on(pipeline, "probe"),
            update_attacks=experiment.attacks_on(pipeline, "update"),
            attack_rounds=experiment.attacked_rounds(),
            known_labels=experiment.labels == "known",
            fraction_train=experiment.fraction_train,
            min_usable=experiment.min_usable,
            label=run.label(str(pipeline)),
        )
        self._arrays: ArrayRecord = to_record(shared_tensors(task.build_model()))

    def restore(self, done: Checkpoint) -> None:
        """Goes on from a checkpoint."""
        self._arrays = to_record(done.weights)
        self._strategy.ledgers, self._strategy.accuracy = dict(done.ledgers), done.accuracy

    def run_round(self, server_round: int) -> None:
        """Trains (unless it is round 0), then evaluates."""
        strategy, exchange = self._strategy, self._strategy.exchange
        if server_round > 0:
            replies = exchange("train", strategy.train_contents(server_round, self._arrays))
            arrays, _ = strategy.aggregate_train(server_round, replies.values())
            self._arrays = arrays if arrays is not None else self._arrays
        replies = exchange("evaluate", strategy.evaluate_contents(server_round, self._arrays))
        strategy.aggregate_evaluate(server_round, replies.values())

    def observe_final(self, server_round: int) -> None:
        """Probes the final model."""
        self._strategy.observe_model(server_round, self._arrays)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """The global model and the clients' ledgers."""
        strategy = self._strategy
        return Checkpoint(server_round, to_tensors(self._arrays), strategy.ledgers, strategy.accuracy)


class SplitRounds:
    """Split-federated training of a transformer in two halves."""

    def __init__(self, run: RunDirectory, auditor: Auditor, pipeline: Pipeline, clients: Clients) -> None:
        experiment = run.experiment
        self._task = replace(experiment.task(pipeline), card=clients.card)
        self._auditor = auditor
        # The server half trains beside the attacks. Threads that wait for a core spin, so they must not be more than there are.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) - experiment.attack_workers))
        self._strategy = SplitFed(
            task=self._task,
            auditor=auditor,
            holders={p: Holder(*sizes, clients.labels.get(p)) for p, sizes in clients.sizes.items()},
            schedule=schedule_of(experiment),
            batches_per_message=experiment.batches_per_message,
            attacks=experiment.attacks_on(pipeline, "smashed"),
            attack_rounds=experiment.attacked_rounds(),
            min_usable=experiment.min_usable,
            label=run.label(str(pipeline)),
        )

    def restore(self, done: Checkpoint) -> None:
        """Goes on from a checkpoint."""
        self._strategy.restore(done.weights, done.accuracy)

    def run_round(self, server_round: int) -> None:
        """Trains (unless it is round 0), then evaluates; before all, counts what the client half costs."""
        if server_round == 0:
            record_costs(self._task, self._auditor.recorder)
        else:
            self._strategy.train_round(server_round)
        self._strategy.evaluate_round(server_round)

    def observe_final(self, server_round: int) -> None:
        """Asks for audit batches of the final model."""
        self._strategy.observe_model(server_round)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """Both halves and the optimizer of the server's."""
        return Checkpoint(server_round, self._strategy.tensors(), {}, self._strategy.accuracy)


TRAININGS: dict[str, Callable[[RunDirectory, Auditor, Pipeline, Clients], Rounds]] = {
    "federated": FederatedRounds,
    "split": SplitRounds,
}
"""Scenario -> its training."""


def schedule_of(experiment: Experiment) -> Schedule:
    """The learning rates of a split run."""
    return Schedule(
        head=experiment.learning_rate,
        blocks=experiment.block_learning_rate or experiment.learning_rate,
        floor=experiment.learning_rate_floor,
        rounds=experiment.rounds,
    )


def check_split(experiment: Experiment, clients: Clients) -> None:
    """Whether a split run with these clients can work, before anything is trained.

    Raises:
        ConfigError: See ``check_halves``; also when a client holds too few examples.
    """
    check_halves(experiment, clients.card)
    for partition, (train, test) in clients.sizes.items():
        if min(train, test) < MIN_EXAMPLES:
            raise ConfigError(
                f"client {partition} holds {train} training and {test} test examples; a split run needs {MIN_EXAMPLES} of each"
            )
