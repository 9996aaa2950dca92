"""Federated learning: clients train whole models, updates cross the wire, the server averages them."""

import copy

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import nn

from attacks.base import AnyAttack
from attacks.dp_audit.canary_clients import client_defense
from attacks.dp_audit.placed_canaries import audited_defense
from clients.data.card import DataCard
from clients.federated.canaries import trained_sizes
from clients.federated.plan import FederatedPlan
from clients.task.task import Plan
from clients.wire.records import to_record, to_tensors
from defenses.base import Defense, EdgeTrainingDefense, SmashedDefense
from defenses.pipeline import Pipeline
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from defenses.updates.client_dp import ClientDP
from simulations.experiment.experiment import WholeModelExperiment
from simulations.experiment.scenario import KnownClients, Rounds
from simulations.settings.errors import ConfigError, naming
from simulations.settings.scenarios import FederatedSettings
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind
from strategies.federated.curious import CuriousFedAvg
from strategies.federated.observations import KINDS, PROBE, STEPS
from strategies.training.checkpoint import Checkpoint


class FederatedExperiment(FederatedSettings, WholeModelExperiment):
    """Clients train whole models; the server sees their updates, and asks for one-step probes."""

    name = "federated"
    about = "clients train whole models and send updates"
    kinds = KINDS
    label_holders = ("unknown", "known")
    probes_in_sizes = True

    def _read_attacks(self, kind: Kind) -> list[AnyAttack]:
        none = kind is STEPS and all(rung.steps == 1 for rung in self.rungs)
        return [] if none else super()._read_attacks(kind)

    def check(self) -> None:
        """Refuse defences of data that are never sent, and auxiliary data of other kinds."""
        self.check_whole_model()
        self.check_groups(self.num_clients)
        if self.dp_canaries and not any(map(audited_defense, self.pipelines)) | any(
            map(client_defense, self.pipelines)
        ):
            raise ConfigError(
                f"dp-canaries is {self.dp_canaries}, and no pipeline has DPSGD, ClientDP or FlowerLocalDP, whose epsilon "
                "canaries test; allowed: 0"
            )

    def unsuited(self, pipeline: Pipeline, defense: Defense) -> str:
        """Defences of smashed data, DP-SGD that cannot hold canaries, and noise for fewer rounds."""
        if self.dp_canaries and isinstance(defense, DPSGD) and defense.clipping == GHOST:
            return (
                f"keeps no gradients per example, which the canaries of dp-canaries = {self.dp_canaries} need; allowed: "
                f"clipping={PER_EXAMPLE!r} in the defence, or dp-canaries = 0"
            )
        if isinstance(defense, ClientDP) and defense.rounds is not None and defense.rounds < self.rounds:
            return (
                f"has noise for a target_epsilon over {defense.rounds} rounds, not {self.rounds}; "
                f"allowed: rounds={self.rounds} or more in the defence"
            )
        sent = not isinstance(defense, SmashedDefense | EdgeTrainingDefense)
        return "" if sent else f"protects smashed data, which clients of scenario = {self.scenario!r} do not send"

    def check_data(self, pipeline: Pipeline, card: DataCard) -> None:
        """Build the model, and check that the training defences can protect it."""
        model = self.plan(pipeline, card=card).build_model()
        if self.probe_mode == "train" and self.attacks[PROBE] and self.attacked_rounds:
            _try_probe(model, min(rung.images for rung in self.rungs), card)
        with naming("defenses"):
            pipeline.check_model(model, tuple(card.input_shape))
        if (weights := sum(trained_sizes(model).values())) < self.dp_canaries:
            raise ConfigError(
                f"dp-canaries is {self.dp_canaries}, more than the {weights} weights of the model, each of which "
                "holds one canary"
            )

    def check_clients(self, clients: KnownClients) -> None:
        """Refuses sums over more clients than there are."""
        self.check_groups(len(clients.sizes))

    def check_share(self, train: int, test: int) -> None:
        """Refuses probes of more images than a client trains on."""
        self.check_probe_images(train)

    def training(self, plan: Plan, auditor: Auditor, clients: KnownClients, label: str) -> Rounds:
        """Federated averaging by a curious server."""
        strategy = CuriousFedAvg(
            plan=FederatedPlan.narrow(plan),
            auditor=auditor,
            attacks={kind: self.attacks_on(plan.defenses, kind) for kind in KINDS},
            aggregate_clients=self.group_sizes,
            rungs=self.rungs[1:],
            attack_rounds=self.attacked_rounds,
            known_labels=self.labels == "known",
            min_usable=self.min_usable,
            label=label,
            needless={kind: self.needless(plan.defenses, kind) for kind in KINDS},
        )
        return FederatedRounds(strategy)

    @property
    def needs_whole_share(self) -> str:
        """A training update is scored against all images behind it."""
        return "update-attacks" if self.update_attacks.strip() else ""


class FederatedRounds:
    """Federated averaging of whole models, by the hooks of Flower's own loop; unlike that loop, it can be resumed."""

    def __init__(self, strategy: CuriousFedAvg) -> None:
        self._strategy = strategy
        self._arrays: ArrayRecord = strategy.initial_arrays()

    def restore(self, done: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self._arrays = to_record(done.weights)
        self._strategy.ledgers, self._strategy.accuracy = dict(done.ledgers), done.accuracy
        self._strategy.canaries.restore(done.sums)

    def train_round(self, server_round: int) -> None:
        """Request updates, and add their mean."""
        strategy, exchange = self._strategy, self._strategy.exchange
        messages = strategy.configure_train(server_round, self._arrays, ConfigRecord(), exchange.grid)
        arrays, _ = strategy.aggregate_train(server_round, exchange.send_and_receive(messages))
        self._arrays = arrays if arrays is not None else self._arrays

    def evaluate_round(self, server_round: int) -> None:
        """Request the accuracy of the model from all clients."""
        strategy, exchange = self._strategy, self._strategy.exchange
        messages = strategy.configure_evaluate(server_round, self._arrays, ConfigRecord(), exchange.grid)
        strategy.aggregate_evaluate(server_round, exchange.send_and_receive(messages))

    def observe_model(self, server_round: int) -> None:
        """Probe the final model."""
        self._strategy.observe_model(server_round, self._arrays)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """The global model and the clients' ledgers."""
        strategy = self._strategy
        sums = strategy.canaries.state()
        return Checkpoint(server_round, to_tensors(self._arrays), strategy.ledgers, strategy.accuracy, sums=sums)


def _try_probe(model: nn.Module, images: int, card: DataCard) -> None:
    """Refuses probes of fewer images than a model can be trained on: BatchNorm behind a linear layer needs two."""
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(torch.zeros(images, *card.input_shape))
    except ValueError as error:
        raise ConfigError(
            f"probe-images is {images}, and the model cannot be trained on so few: {error}; raise it, or set probe-mode = 'eval'"
        ) from error


SCENARIO = FederatedExperiment
