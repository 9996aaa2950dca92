"""A task: the server's request to a client in one round, sent with every message as JSON."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import ConfigDict
from torch import nn

from attacks.local_model import shared_tensors
from attacks.scoring.objective import Objective, objective_of
from clients.data.card import DataCard
from clients.data.datasets import load_dataset
from clients.data.images import IMAGE_MEMORY, ImageDataset
from clients.models.classifiers import build_model
from clients.models.library import require_fits
from clients.wire.schema import STRICT, parsed
from defenses.checks import (
    MOST_TEXT,
    BelowOne,
    Count,
    Decay,
    Examples,
    Gibibytes,
    Length,
    Norm,
    Padding,
    Rate,
    Rounds,
    Side,
    Steps,
    StepsOrNone,
    Text,
    WidthOrNone,
)
from defenses.pipeline import Pipeline
from defenses.spec import parse
from defenses.tensors import NamedTensors

FLOAT_BYTES = 4
"""Of one value of an image that enters a model."""
DECAY = 0.1
"""Factor of the learning rate after a milestone."""


class TaskError(ValueError):
    """A text that is no valid task."""


@dataclass(frozen=True)
class Plan:
    """Settings that all rounds of one pipeline share; types and ranges are checked on reading an experiment or a message.

    Most fields are settings of the same names (``simulations.settings``), and have their ranges. The text of a pipeline may be of
    any length: its parts are checked as it is read (``defenses.spec``). Scenarios whose clients must know more have a plan of their
    own (``clients.task.scenarios.ClientSide.plan``).

    Attributes:
        pipeline: The defences' text; "" for none.
        rounds: Rounds in which a client will train, for the privacy budget.
        auxiliary_data: Where the server's own examples come from: "held-out" (``auxiliary_fraction`` of the training examples, of
            which no client has any), "private" (the clients' own), or the name of another data set.
        owns_data: Everything in the client's data directory is its own; else the server names its examples.
        card: Shape and normalisation that all clients share; None only until the set-up is done.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    scenario: Text
    dataset: Text
    data_dir: Text
    download: bool
    image_size: Side
    train_limit: Count
    test_limit: Count
    model: Text
    width: WidthOrNone
    norm: Norm
    pipeline: str
    seed: Count
    rounds: Rounds
    local_epochs: Steps
    batch_size: Examples
    momentum: BelowOne
    weight_decay: Decay
    probe_targets: Examples
    probe_images: Examples
    local_steps: StepsOrNone = 0
    nesterov: bool = False
    crop_padding: Padding = 0
    horizontal_flip: bool = False
    auxiliary_fraction: BelowOne = 0.0
    auxiliary_data: Text = "held-out"
    auxiliary_limit: Count = 0
    image_memory: Gibibytes = IMAGE_MEMORY
    owns_data: bool = False
    card: DataCard | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Read the output of ``dataclasses.asdict``, also after JSON, which knows neither cards nor tuples.

        Raises:
            TaskError: Naming a value that is missing, unknown, of another type or out of its range.
        """
        return parsed(cls, json.dumps(values, ensure_ascii=False, separators=(",", ":")), TaskError)

    @classmethod
    def narrow(cls, plan: Plan) -> Self:
        """The plan as an instance of this class; ``TypeError`` when it is of another scenario."""
        if not isinstance(plan, cls):
            raise TypeError(f"a run of scenario {plan.scenario!r} has no {cls.__name__}")
        return plan

    @property
    def of_training(self) -> Self:
        """The plan without what may differ between messages of a run besides the pipeline; what is cached follows from it alone."""
        return self

    @property
    def augments(self) -> bool:
        """Whether local training sees crops or mirror images."""
        return self.crop_padding > 0 or self.horizontal_flip

    def at(self, server_round: int, learning_rate: float = 0.0) -> Task:
        """The task of a round."""
        return Task(self, server_round, learning_rate)

    def cut_at(self, server_round: int) -> str:
        """The model's cut in a round, which distinguishes rows; "" in scenarios that cut no model."""
        return ""

    def passes(self, num_examples: int, *, in_all_rounds: bool = False) -> int:
        """Passes over a client's examples in the training steps of one round, or of all; a begun pass is counted whole."""
        rounds = self.rounds if in_all_rounds else 1
        if not self.local_steps:
            return rounds * self.local_epochs
        steps_per_pass = max(1, math.ceil(num_examples / self.batch_size))
        return math.ceil(rounds * self.local_steps / steps_per_pass)

    def load_data(self) -> ImageDataset:
        """The data set, cached per process."""
        return load_dataset(
            self.dataset,
            data_dir=self.data_dir,
            download=self.download,
            image_size=self.image_size,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
            image_memory=self.image_memory,
        )

    @functools.cached_property
    def defenses(self) -> Pipeline:
        """The pipeline, which is parsed once."""
        return parse(self.pipeline)

    def data_card(self) -> DataCard:
        """The shared card, or that of the data set at hand."""
        return self.card or DataCard.of(self.load_data())

    @property
    def objective(self) -> Objective:
        """The training objective, and the rule for a right answer."""
        return objective_of(self.data_card().multi_label)

    def build_model(self) -> nn.Module:
        """Build the whole model: client and server get the same initial weights for the same seed.

        BatchNorm is replaced by GroupNorm when a defence needs per-example gradients; what a defence adds to the architecture is
        there (``TrainingDefense.extended``).

        Raises:
            TooLargeError: When this machine could not hold it.
        """
        card, defenses = self.data_card(), self.defenses
        build = functools.partial(
            build_model,
            self.model,
            num_classes=card.num_classes,
            input_shape=card.input_shape,
            width=self.width,
            norm="group" if defenses.needs_group_norm else self.norm,
            seed=self.seed,
        )
        require_fits(lambda: [build()], self.model, card.input_shape, self.image_size, self.batch_size, self.width)
        return defenses.extended(build(), self.seed)


@dataclass(frozen=True)
class WholeModelPlan(Plan):
    """A plan of scenarios in which whole models are trained by SGD with a step decay.

    The learning rate is multiplied by ``DECAY`` after each round of ``milestones``.
    """

    learning_rate: Rate = 0.1
    milestones: Annotated[tuple[int, ...], Length(MOST_TEXT)] = ()

    def at(self, server_round: int, learning_rate: float | None = None) -> Task:
        """Orders for a round, with the learning rate that MultiStepLR has in epoch ``server_round`` - 1 unless one is given."""
        decayed = self.learning_rate * DECAY ** sum(at < server_round for at in self.milestones)
        return Task(self, server_round, decayed if learning_rate is None else learning_rate)


@dataclass(frozen=True)
class Task:
    """A client's orders: the plan of the run, and the fields of one round.

    Attributes:
        plan: The same in all rounds of a pipeline.
        round: The server round, from 1. Behind ``plan.rounds`` no training follows: the final model is attacked in the next one, or
            served in several phases, one for each cut.
        learning_rate: Of what the client trains in this round.
    """

    plan: Plan
    round: int
    learning_rate: float

    def to_json(self) -> str:
        """The task as JSON text; ``clients.task.scenarios.read_task`` reads it."""
        return json.dumps(asdict(self))

    def but(self, **changes: Any) -> Task:
        """Copy the task with other values of its own fields or of its plan's."""
        own = {spec.name for spec in fields(self)}
        plan = {name: value for name, value in changes.items() if name not in own}
        mine = {name: value for name, value in changes.items() if name in own}
        return replace(self, **{"plan": replace(self.plan, **plan)} | mine)

    @property
    def cut(self) -> str:
        """The model's cut in this round; "" in scenarios that cut no model."""
        return self.plan.cut_at(self.round)

    @property
    def target_records(self) -> tuple[str, ...]:
        """Names of a reply's records about the audit's targets: updates of probes, or batches of smashed data."""
        return tuple(f"target-{at}" for at in range(self.plan.probe_targets))

    @property
    def is_final(self) -> bool:
        """Whether the task concerns the model after the last round, which is only attacked."""
        return self.round > self.plan.rounds


def load_weights(model: nn.Module, weights: NamedTensors) -> nn.Module:
    """Copies exchanged tensors into a model, in place; returns the model.

    Raises:
        TaskError: When one is missing, or of another shape; a single number would otherwise fill a whole layer.
    """
    with torch.no_grad():
        for name, tensor in shared_tensors(model).items():
            if name not in weights or weights[name].shape != tensor.shape:
                came = tuple(weights[name].shape) if name in weights else "missing"
                raise TaskError(f"weights: {name!r} is {came}, expected {tuple(tensor.shape)}")
            tensor.copy_(weights[name])
    return model
