"""Outsourced training: clients upload protected images with their labels, the server trains on them."""

import math

from attacks.spec import stages_of
from attacks.uploads.joint_encodings import JointEncodingInversion
from clients.data.card import DataCard
from clients.outsourced.messages import OutsourcedPlan
from clients.task.task import Plan
from defenses.base import Defense, EdgeTrainingDefense, InputDefense, SmashedDefense, TrainingDefense
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import WholeModelExperiment
from simulations.experiment.scenario import KnownClients, Rounds
from simulations.settings.errors import ConfigError
from simulations.settings.scenarios import OutsourcedSettings
from strategies.audit.auditor import Auditor
from strategies.outsourced.observations import COLLECTION, KINDS, MODEL
from strategies.outsourced.server import OutsourcedServer


class OutsourcedExperiment(OutsourcedSettings, WholeModelExperiment):
    """Clients upload every training image, after their input defences; the server sees all uploads and the model."""

    name = "outsourced"
    about = "clients upload protected images with their labels, the server trains on them"
    kinds = KINDS
    label_holders = ("uploaded",)
    trains_on_server = True

    def check(self) -> None:
        """Refuse defences of data that are never sent, and views of training, as clients train nothing."""
        self.check_whole_model()
        self.check_training_by_server("an image is uploaded once")
        if self.attacks[MODEL] and self.attacked_rounds and max(self.attacked_rounds) == 1:
            raise ConfigError(
                f"attack-rounds is {self.attack_rounds!r}, when nothing is trained yet, and model-attacks is "
                f"{self.model_attacks!r}: add final to attack-rounds, or set model-attacks = ''"
            )
        joint = [one for one in self.attacks[COLLECTION] if isinstance(stages_of(one)[0], JointEncodingInversion)]
        if joint and self.upload_passes == 1:
            raise ConfigError(
                f"upload-passes is 1, and {joint[0]} in upload-attacks compares several encodings of an image; allowed "
                "with it: 2 or more (32 in simulations/configs/instahide_break.toml)"
            )

    def unsuited(self, pipeline: Pipeline, defense: Defense) -> str:
        """All but defences of images, and optimizers that the server can use."""
        optimizer = isinstance(defense, TrainingDefense) and defense.replaces_optimizer and not defense.bounds_examples
        if isinstance(defense, InputDefense) or optimizer:
            return ""
        if isinstance(defense, SmashedDefense | EdgeTrainingDefense):
            return f"protects tokens, which no client sends with scenario = {self.scenario!r}"
        return (
            f"protects what a client trains, and with scenario = {self.scenario!r} the server trains; "
            "allowed: defences of images, and optimizers such as STAdam, which the server then uses"
        )

    def check_data(self, pipeline: Pipeline, card: DataCard) -> None:
        """Build the model; messages must hold its images."""
        self.plan(pipeline, card=card).build_model()
        values = math.prod(card.input_shape)
        self.check_message(self.batches_per_message, values)

    def check_share(self, train: int, test: int) -> None:
        """Refuse to attack more batches of an upload than there are, or more images than a batch holds."""
        self.check_first_of_batches(train, "uploads", test=False)

    def training(self, plan: Plan, auditor: Auditor, clients: KnownClients, label: str) -> Rounds:
        """Training by a curious server."""
        self.leave_cores_to_attacks()
        pipeline = plan.defenses
        return OutsourcedServer(
            plan=OutsourcedPlan.narrow(plan),
            auditor=auditor,
            sizes={partition: train for partition, (train, _) in clients.sizes.items()},
            attacks={kind: self.attacks_on(pipeline, kind) for kind in KINDS},
            attack_rounds=self.attacked_rounds,
            min_usable=self.min_usable,
            batches_per_message=self.batches_per_message,
            label=label,
        )

    @property
    def needs_whole_share(self) -> str:
        """A trained model is scored against all images behind it."""
        return next((kind.setting for kind in (MODEL, COLLECTION) if self.attacks[kind]), "")


SCENARIO = OutsourcedExperiment
