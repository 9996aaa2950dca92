"""Outsourced training: clients upload protected images with their labels, the server trains on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from clients.data.card import DataCard
from clients.local_data import chunks
from clients.models.classifiers import model_names
from clients.task import FLOAT_BYTES, Plan, whole_model_plan
from defenses.base import InputDefense, TrainingDefense
from defenses.pipeline import Pipeline
from simulations.checkpoints import Checkpoint
from simulations.errors import ConfigError, require_known
from simulations.known_clients import KnownClients
from simulations.scenarios.base import Rounds, Scenario
from simulations.settings import at_least, setting
from simulations.whole_models import WholeModelExperiment
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind
from strategies.outsourced.observations import KINDS
from strategies.outsourced.server import OutsourcedServer

LARGEST_MESSAGE = 1 << 30
"""Bytes of images in one message: Flower keeps several copies of it on the way."""


@dataclass(frozen=True)
class OutsourcedExperiment(WholeModelExperiment):
    """The settings of outsourced training."""

    upload_attacks: str = setting(
        "AsUploaded()",
        "attacks on uploaded images, separated by ;, refinements behind |; with adaptive, those that know a defence are put behind "
        "AsUploaded()",
    )
    model_attacks: str = setting("LossThreshold()", "attacks on the model that the server trained, separated by ;")
    upload_batches: int = setting(4, "batches of uploaded images in a message", **at_least(1))


class OutsourcedRounds:
    """The server's training."""

    def __init__(self, server: OutsourcedServer) -> None:
        self._server = server

    def restore(self, done: Checkpoint) -> None:
        """Goes on from a checkpoint, and asks for the uploads again if a round is left: a simulation's are the same.

        Nodes with a secret of their own do not upload twice (their ``repeats``): such a round then ends with ``TooFewReplies``.
        """
        self._server.restore(done.weights, done.accuracy)

    def run_round(self, server_round: int) -> None:
        """Trains (unless it is round 0), then evaluates."""
        if server_round > 0:
            self._server.train_round(server_round)
        self._server.evaluate_round(server_round)

    def observe_final(self, server_round: int) -> None:
        """Attacks the final model."""
        self._server.observe_model(server_round)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """The model and its optimizer."""
        return Checkpoint(server_round, self._server.training.tensors(), {}, self._server.accuracy)


class Outsourced(Scenario[OutsourcedExperiment]):
    """Clients upload every training image once, after their input defences; the server sees all uploads and the model."""

    name: ClassVar[str] = "outsourced"
    about: ClassVar[str] = "clients upload protected images with their labels, the server trains on them"
    settings: ClassVar[type[OutsourcedExperiment]] = OutsourcedExperiment
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    labels: ClassVar[tuple[str, ...]] = ("uploaded",)

    def check(self, experiment: OutsourcedExperiment) -> None:
        """Refuses defences of what is never sent, and training views that nobody makes."""
        if ":" not in experiment.model:
            also = "or a torchvision or timm classifier, such as torchvision:resnet18"
            require_known("model", experiment.model, model_names(), also=also)
        if experiment.auxiliary_data != "held-out":
            raise ConfigError(
                f"auxiliary-data is {experiment.auxiliary_data!r}; allowed with scenario = {self.name!r}: 'held-out'"
            )
        if experiment.crop_padding or experiment.horizontal_flip:
            raise ConfigError(
                f"crop-padding is {experiment.crop_padding} and horizontal-flip {experiment.horizontal_flip}; allowed with "
                f"scenario = {self.name!r}: 0 and False, as an image is uploaded once"
            )
        for pipeline in experiment.pipelines():
            for defense in pipeline.defenses:
                if isinstance(defense, InputDefense) or (
                    isinstance(defense, TrainingDefense) and not defense.bounds_examples
                ):
                    continue
                raise ConfigError(
                    f"defenses: {defense} protects what a client trains, and with scenario = {self.name!r} the server trains; "
                    "allowed: defences of images, and optimizers such as STAdam, which the server then uses"
                )

    def check_data(self, experiment: OutsourcedExperiment, pipeline: Pipeline, card: DataCard) -> None:
        """Builds the model.

        Raises:
            ConfigError: When a message would be too large.
        """
        replace(experiment.plan(pipeline), card=card).build_model()
        size = FLOAT_BYTES * experiment.upload_batches * experiment.batch_size * math.prod(card.input_shape)
        if size > LARGEST_MESSAGE:
            raise ConfigError(
                f"upload-batches is {experiment.upload_batches}: with batches of {experiment.batch_size} images a message would "
                f"hold {size / 2**30:.1f} GiB, and 1 GiB is allowed; lower one of them"
            )

    def check_clients(self, experiment: OutsourcedExperiment, clients: KnownClients) -> None:
        """As ``check_data``; refuses clients that upload fewer batches than are attacked."""
        for pipeline in experiment.pipelines():
            self.check_data(experiment, pipeline, clients.card)
        for partition, (train, _) in clients.sizes.items():
            batches = len(chunks(train, experiment.batch_size))
            if batches < experiment.probe_targets:
                raise ConfigError(
                    f"probe-targets is {experiment.probe_targets}, and client {partition} uploads {batches} batches of "
                    f"{experiment.batch_size} images; the attacked images are the first of a batch: lower one of the two"
                )

    def rounds(
        self, experiment: OutsourcedExperiment, plan: Plan, auditor: Auditor, clients: KnownClients, label: str
    ) -> Rounds:
        """Training by a curious server."""
        pipeline = plan.defenses()
        server = OutsourcedServer(
            plan=whole_model_plan(plan),
            auditor=auditor,
            sizes={partition: train for partition, (train, _) in clients.sizes.items()},
            attacks={kind: experiment.attacks_on(pipeline, kind) for kind in KINDS},
            attack_rounds=experiment.attacked_rounds(),
            min_usable=experiment.min_usable,
            batches_per_message=experiment.upload_batches,
            label=label,
        )
        return OutsourcedRounds(server)

    def whole_model(self, plan: Plan) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
        """The model."""
        model = plan.build_model().train()
        return [model], model

    def count_messages(self, experiment: OutsourcedExperiment, plan: Plan, train: int, test: int) -> int:
        """One upload from each client, in several messages, and an evaluation behind every round."""
        uploads = math.ceil(len(chunks(train, experiment.batch_size)) / experiment.upload_batches)
        return experiment.num_clients * (uploads + experiment.rounds + 1)

    def needs_whole_share(self, experiment: OutsourcedExperiment) -> str:
        """A trained model is scored against all images behind it."""
        return "model-attacks" if experiment.model_attacks.strip() else ""


SCENARIO = Outsourced()
