"""Outsourced training: clients upload protected images with their labels, the server trains on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from attacks.spec import stages_of
from attacks.uploads.joint_encodings import JointEncodingInversion
from clients.data.card import DataCard
from clients.outsourced.plan import OutsourcedPlan
from clients.task.batches import chunks
from clients.task.task import FLOAT_BYTES, Plan
from defenses.base import EdgeTrainingDefense, InputDefense, SmashedDefense, TrainingDefense
from defenses.pipeline import Pipeline
from simulations.experiment.known_clients import KnownClients
from simulations.experiment.scenario import LARGEST_MESSAGE, Rounds, Scenario, leave_cores_to_attacks
from simulations.experiment.whole_models import WholeModelExperiment
from simulations.run_folder.checkpoints import Checkpoint
from simulations.settings.errors import ConfigError
from simulations.settings.outsourced import OutsourcedSettings
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind
from strategies.outsourced.observations import COLLECTION, KINDS, MODEL
from strategies.outsourced.server import OutsourcedServer


@dataclass(frozen=True)
class OutsourcedExperiment(OutsourcedSettings, WholeModelExperiment):
    """The settings of outsourced training."""


class OutsourcedRounds:
    """The server's training."""

    def __init__(self, server: OutsourcedServer) -> None:
        self._server = server

    def restore(self, done: Checkpoint) -> None:
        """Goes on from a checkpoint, which holds the uploads: nobody is asked for them again."""
        self._server.restore(done.weights | done.fixed, done.accuracy)

    def run_round(self, server_round: int) -> None:
        """Trains (unless it is round 0), then evaluates."""
        if server_round > 0:
            self._server.train_round(server_round)
        self._server.evaluate_round(server_round)

    def observe_final(self, server_round: int) -> None:
        """Attacks the final model."""
        self._server.observe_model(server_round)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """The model and its optimizer, and the uploads, which no round changes."""
        tensors = self._server.tensors()  # collects the uploads where none are there yet
        return Checkpoint(server_round, tensors, {}, self._server.accuracy, self._server.uploaded())


class Outsourced(Scenario[OutsourcedExperiment]):
    """Clients upload every training image, after their input defences; the server sees all uploads and the model."""

    name: ClassVar[str] = "outsourced"
    about: ClassVar[str] = "clients upload protected images with their labels, the server trains on them"
    settings: ClassVar[type[OutsourcedExperiment]] = OutsourcedExperiment
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    labels: ClassVar[tuple[str, ...]] = ("uploaded",)

    def check(self, experiment: OutsourcedExperiment) -> None:
        """Refuses defences of what is never sent, and training views that nobody makes."""
        experiment.check_whole_model()
        if experiment.local_steps:
            raise ConfigError(
                f"local-steps is {experiment.local_steps}; allowed with scenario = {self.name!r}: 0, as the server trains on "
                "whole passes"
            )
        if experiment.attacks[MODEL] and experiment.attacked_rounds and max(experiment.attacked_rounds) == 1:
            raise ConfigError(
                f"attack-rounds is {experiment.attack_rounds!r}, when nothing is trained yet, and model-attacks is "
                f"{experiment.model_attacks!r}: add final to attack-rounds, or set model-attacks = ''"
            )
        joint = [one for one in experiment.attacks[COLLECTION] if isinstance(stages_of(one)[0], JointEncodingInversion)]
        if joint and experiment.upload_passes == 1:
            raise ConfigError(
                f"upload-passes is 1, and {joint[0]} in collection-attacks compares several encodings of an image; allowed "
                "with it: 2 or more (32 in simulations/configs/instahide_break.toml)"
            )
        if experiment.crop_padding or experiment.horizontal_flip:
            raise ConfigError(
                f"crop-padding is {experiment.crop_padding} and horizontal-flip {experiment.horizontal_flip}; allowed with "
                f"scenario = {self.name!r}: 0 and False, as an image is uploaded once"
            )
        for pipeline in experiment.pipelines:
            for defense in pipeline.defenses:
                if isinstance(defense, InputDefense) or (
                    isinstance(defense, TrainingDefense) and defense.replaces_optimizer and not defense.bounds_examples
                ):
                    continue
                if isinstance(defense, SmashedDefense | EdgeTrainingDefense):
                    raise ConfigError(
                        f"defenses: {defense} protects tokens, which nobody sends with scenario = {self.name!r}"
                    )
                raise ConfigError(
                    f"defenses: {defense} protects what a client trains, and with scenario = {self.name!r} the server trains; "
                    "allowed: defences of images, and optimizers such as STAdam, which the server then uses"
                )

    def check_data(self, experiment: OutsourcedExperiment, pipeline: Pipeline, card: DataCard) -> None:
        """Builds the model.

        Raises:
            ConfigError: When a message would be too large.
        """
        experiment.plan(pipeline, card=card).build_model()
        size = FLOAT_BYTES * experiment.upload_batches * experiment.batch_size * math.prod(card.input_shape)
        if size > LARGEST_MESSAGE:
            raise ConfigError(
                f"upload-batches is {experiment.upload_batches}: with batches of {experiment.batch_size} images a message would "
                f"hold {size / 2**30:.1f} GiB, and 1 GiB is allowed; lower one of them"
            )

    def check_clients(self, experiment: OutsourcedExperiment, clients: KnownClients) -> None:
        """As ``check_data``; refuses clients that upload fewer batches than are attacked."""
        for pipeline in experiment.pipelines:
            self.check_data(experiment, pipeline, clients.card)
        for train, test in clients.sizes.values():
            self.check_share(experiment, train, test)

    def check_share(self, experiment: OutsourcedExperiment, train: int, test: int) -> None:
        """Refuses to attack more batches of an upload than there are, or more images than a batch holds."""
        batches = len(chunks(train, experiment.batch_size))
        if batches < experiment.probe_targets:
            raise ConfigError(
                f"probe-targets is {experiment.probe_targets}, and a client with {train} training examples uploads {batches} "
                f"batches of {experiment.batch_size}, of each of which the first images are attacked; lower one of the two"
            )
        if experiment.probe_images > min(experiment.batch_size, train):
            raise ConfigError(
                f"probe-images is {experiment.probe_images}; allowed: up to batch-size = {experiment.batch_size}, as the attacked "
                "images are the first of a batch"
            )

    def trains_on_server(self) -> bool:
        """It does."""
        return True

    def rounds(
        self, experiment: OutsourcedExperiment, plan: Plan, auditor: Auditor, clients: KnownClients, label: str
    ) -> Rounds:
        """Training by a curious server."""
        leave_cores_to_attacks(experiment.attack_workers)
        pipeline = plan.defenses()
        server = OutsourcedServer(
            plan=OutsourcedPlan.narrow(plan),
            auditor=auditor,
            sizes={partition: train for partition, (train, _) in clients.sizes.items()},
            attacks={kind: experiment.attacks_on(pipeline, kind) for kind in KINDS},
            attack_rounds=experiment.attacked_rounds,
            min_usable=experiment.min_usable,
            batches_per_message=experiment.upload_batches,
            label=label,
        )
        return OutsourcedRounds(server)

    def whole_model(self, plan: Plan) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
        """The model."""
        model = plan.build_model().train()
        return [model], model

    def needs_whole_share(self, experiment: OutsourcedExperiment) -> str:
        """A trained model is scored against all images behind it."""
        wanted = {"model-attacks": experiment.model_attacks, "collection-attacks": experiment.collection_attacks}
        return next((name for name, text in wanted.items() if text.strip()), "")


SCENARIO = Outsourced()
