"""Split learning: clients hold the first part of a transformer and send smashed data, the server trains the rest."""

import math
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from attacks.sender import smash
from attacks.smashed.base import SmashedAttack
from clients.data.card import DataCard
from clients.models.library import ModelError
from clients.models.split.split_models import split_model_names
from clients.split.plan import SplitPlan
from clients.task.task import Plan
from defenses.base import Defense, DefenseError, InputDefense, SmashedDefense, TrainingDefense, UpdateDefense
from defenses.fitting import FittedDefense
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import NO_DEFENSE, Experiment
from simulations.experiment.scenario import KnownClients, Rounds
from simulations.settings.errors import ConfigError, require_known
from simulations.settings.scenarios import SplitSettings
from strategies.audit.auditor import Auditor
from strategies.split.observations import KINDS, SMASHED
from strategies.split.server import Holder
from strategies.split.split_fed import Schedule, SplitFed

MIN_EXAMPLES = 2
"""Training and test examples that a client needs: a batch of one has nothing to be shuffled with."""


class SplitExperiment(SplitSettings, Experiment):
    """Clients send the tokens of every image; the server sees these, and the updates of a trained client half."""

    name = "split"
    about = "clients hold the first part of a transformer and send tokens"
    kinds = KINDS
    label_holders = ("server", "client")
    reads_tables = True
    takes_many_labels = True

    def plan(self, pipeline: Pipeline = NO_DEFENSE, card: DataCard | None = None) -> SplitPlan:
        """Settings that the run fixes for the clients of a pipeline."""
        return SplitPlan.narrow(super().plan(pipeline, card))

    def check(self) -> None:
        """Refuse settings of whole models, and defences of data that are never sent."""
        require_known("split model", self.model, split_model_names())
        if self.weights:
            self._check_weights()
        if self.partition == "node" and self.who_holds_labels == "server":
            raise ConfigError(
                "labels is 'server', but with partition = 'node' the server has none; set labels = 'client'"
            )
        if self.nesterov and self.optimizer != "sgd":
            raise self.refusal("nesterov", "False", by="optimizer")

    def unsuited(self, pipeline: Pipeline, defense: Defense) -> str:
        """Defences of whole models, of what this run's clients do not send, and bounds that do not cover all that they send."""
        trained, here = self.plan(pipeline).trains_edge, f"with scenario = {self.scenario!r}"
        if isinstance(defense, TrainingDefense):
            return f"protects the training of whole models, not scenario = {self.scenario!r}"
        if isinstance(defense, FittedDefense):
            fitted = "is fitted to maps (B, C, H, W) of a trained network"
            return f"{fitted}, and {here} clients send tokens of one that is still trained"
        bounded = isinstance(defense, SmashedDefense) and math.isfinite(defense.privacy(1).get("epsilon", math.inf))
        if bounded and trained:
            why = "unset train-edge" if self.train_edge else "take away the defence that trains it"
            return (
                "bounds what smashed data tell, and a client half that is trained also sends updates, which its epsilon does not "
                f"cover: {why}, or use FeatureNoise, which claims none"
            )
        if defense.bounds_client:
            return (
                f"bounds what a client's updates tell, and {here} a client also sends smashed data, which its epsilon does not "
                "cover: use Clip | GaussianNoise, which claims none"
            )
        if isinstance(defense, UpdateDefense) and not trained:
            return "protects updates; a frozen client half sends none: set train-edge"
        mixes = isinstance(defense, InputDefense) and defense.mixes_examples and self.who_holds_labels == "server"
        return "mixes labels, which a server cannot do: set labels = 'client'" if mixes else ""

    def _check_weights(self) -> None:
        path = self.weights
        if self.model != "vit":
            raise ConfigError(
                f"weights is {path!r}; allowed with model = 'vit' only, not {self.model!r}: T2T-ViT's published checkpoints "
                "hold another performer attention than ours"
            )
        if not Path(path).expanduser().is_absolute():
            raise ConfigError(
                f"weights is {path!r}; expected an absolute path, because the folder of server and clients is not yours"
            )

    def check_data(self, pipeline: Pipeline, card: DataCard) -> None:
        """Build both halves; images, defences and messages must fit them."""
        try:
            edge, _ = self.plan(pipeline, card=card).build_halves()
        except (ModelError, DefenseError) as error:
            raise ConfigError(f"{pipeline or 'no defence'}: {error}".removeprefix(": ")) from error
        tokens = edge.num_tokens * edge.token_length * pipeline.widening
        self.check_message(self.batches_per_message, tokens, f" of {edge.num_tokens} tokens")

    def check_clients(self, clients: KnownClients) -> None:
        """Refuse clients that hold too few examples, besides the checks of ``check_data``."""
        for pipeline in self.pipelines:
            self.check_data(pipeline, clients.card)
        for partition, (train, test) in clients.sizes.items():
            if min(train, test) < MIN_EXAMPLES:
                raise ConfigError(
                    f"client {partition} holds {train} training and {test} test examples; a split run needs {MIN_EXAMPLES} of each"
                )

    def check_share(self, train: int, test: int) -> None:
        """Refuse probes of more images than a client has to show."""
        held = test if self.auxiliary_data == "private" else train
        self.check_probe_images(held)

    def training(self, plan: Plan, auditor: Auditor, clients: KnownClients, label: str) -> Rounds:
        """SplitFed by a curious server."""
        self.leave_cores_to_attacks()
        labels = clients.labels if self.who_holds_labels == "server" else {}
        return SplitFed(
            plan=SplitPlan.narrow(plan),
            auditor=auditor,
            holders={p: Holder(*sizes, labels.get(p)) for p, sizes in clients.sizes.items()},
            schedule=schedule_of(self),
            batches_per_message=self.batches_per_message,
            attacks=[one for one in self.attacks_on(plan.defenses, SMASHED) if isinstance(one, SmashedAttack)],
            attack_rounds=self.attacked_rounds,
            min_usable=self.min_usable,
            label=label,
        )

    def whole_model(self, plan: Plan) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
        """Both halves, with what a client does to its tokens between them."""
        split = SplitPlan.narrow(plan)
        edge, server = split.build_halves()
        edge.requires_grad_(split.trains_edge)
        key = (plan.seed, "dry-run")
        return [edge, server], lambda images: server(smash(edge, plan.defenses, images, plan.data_card(), key))


def schedule_of(experiment: SplitExperiment) -> Schedule:
    """The learning rates of a split run."""
    return Schedule(
        head=experiment.learning_rate,
        blocks=experiment.block_learning_rate or experiment.learning_rate,
        floor=experiment.learning_rate_floor,
        rounds=experiment.rounds,
    )


SCENARIO = SplitExperiment
