"""What the server of federated learning observes: updates of one step that it asks for, and those of training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from attacks.active.base import ManipulatedProbe
from attacks.base import Attack, ClientUpdate, Knowledge, Probe, TrainingUpdate
from attacks.spec import stages_of
from clients.auxiliary import Auxiliary
from clients.federated.lone_training import probes_alone, train_alone
from clients.task import Plan
from defenses.base import Batch, Update
from strategies.audit.kinds import Kind, Observed, Seen, digest


@dataclass(frozen=True)
class SeenUpdate(Seen):
    """One update, and what the server knows of its making.

    Attributes:
        update: Name -> (local - global).
        local_steps: Optimizer steps, as the client said.
        labels: Classes of the examples where clients publish them, else None.
        windows: Sides of the windows that VisualMixer shuffled the images in, (B, H, W), for upper bounds only.
        train_mode: The client's model was in train mode.
    """

    update: Update = field(default_factory=dict)
    local_steps: int = 1
    labels: Tensor | None = None
    windows: Tensor | None = None
    train_mode: bool = True


class _Updates(Kind):
    """Updates of whole models; an attack on one kind of them can be run on the other."""

    seen: ClassVar[type[Seen]] = SeenUpdate

    def suits(self, attack: Attack[Any, Any]) -> bool:
        """Whether it attacks updates, and guesses what is guessed of them; who sends a model reads the answer to that only."""
        first = stages_of(attack)[0]
        if issubclass(ManipulatedProbe, self.observation) or issubclass(first.observes, ManipulatedProbe):
            return first.observes is self.observation
        return issubclass(first.observes, ClientUpdate) and first.infers_attributes == self.of_attributes

    def train(self, plan: Plan) -> Callable[[Batch, int], nn.Module]:
        """On the server's own examples, as a client trains on its."""
        return functools.partial(train_alone, plan)

    def observations(self, observed: Observed) -> list[Any]:
        """What an attack gets to see of each update."""
        task, card, model = observed.task, observed.task.plan.data_card(), observed.model()
        return [
            self.observation(
                model=model,
                update=seen.update,
                input_shape=card.input_shape,
                mean=card.mean,
                std=card.std,
                num_examples=seen.num_examples,
                batch_size=min(task.plan.batch_size, seen.num_examples),
                local_steps=seen.local_steps,
                learning_rate=task.learning_rate,
                weight_decay=task.plan.weight_decay,
                labels=seen.labels,
                train_mode=seen.train_mode,
                momentum=task.plan.momentum,
                nesterov=task.plan.nesterov,
                window_sides=seen.windows,
            )
            for seen in observed.seen
            if isinstance(seen, SeenUpdate)
        ]


class TrainingUpdates(_Updates):
    """What training sends."""

    name: ClassVar[str] = "update"
    title: ClassVar[str] = "training update"
    plural: ClassVar[str] = "training updates"
    observation: ClassVar[type] = TrainingUpdate
    chosen: ClassVar[bool] = False


class Probes(_Updates):
    """Updates of one step on few images: the strongest setting of the papers."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "one-step probe"
    asked: ClassVar[bool] = True
    instead_of: ClassVar[str] = TrainingUpdates.title
    plural: ClassVar[str] = "one-step probes"
    observation: ClassVar[type] = Probe

    def knowledge(self, observed: Observed) -> Knowledge:
        """With what makes one-step updates of the server's own images."""
        made = functools.partial(probes_alone, observed.task, observed.weights)
        return replace(super().knowledge(observed), probes=made)


class AttributesOfProbes(_Updates):
    """One-step updates, from each of which one value of a sensitive attribute is guessed."""

    name: ClassVar[str] = "probe-attribute"
    title: ClassVar[str] = "attributes of one-step probes"
    asked: ClassVar[bool] = True
    plural: ClassVar[str] = "attributes of one-step probes"
    observation: ClassVar[type] = Probe
    start: ClassVar[str] = "PropertyInference()"
    chosen: ClassVar[bool] = False
    of_attributes: ClassVar[bool] = True

    def depends_on(self, observed: Observed) -> str:
        """The round and its global model, at which updates are made."""
        return f"{observed.task.round} {digest(observed.weights)}"

    def undefended(self, observed: Observed) -> Observed:
        """With the layers that the attacked model has."""
        plain, defended = super().undefended(observed), observed.task.plan.defenses()
        return replace(plain, task=plain.task.but(norm="group")) if defended.needs_group_norm else plain

    def knowledge(self, observed: Observed) -> Knowledge:
        """With what makes one-step updates of the server's own images, and their attribute."""
        return replace(
            super().knowledge(observed),
            sensitive=Auxiliary(observed.task.plan).sensitive(),
            probes=functools.partial(probes_alone, observed.task, observed.weights),
        )


class AnswersToManipulatedModels(_Updates):
    """One-step updates that answer models of the server's own making: what an active server gets, and no other."""

    name: ClassVar[str] = "active"
    title: ClassVar[str] = "probe of a manipulated model"
    asked: ClassVar[bool] = True
    plural: ClassVar[str] = "probes of manipulated models"
    observation: ClassVar[type] = ManipulatedProbe
    start: ClassVar[str] = "ImprintLayer()"


PROBE, UPDATE, PROBE_ATTRIBUTE = Probes(), TrainingUpdates(), AttributesOfProbes()
ACTIVE = AnswersToManipulatedModels()
KINDS = (PROBE, UPDATE, PROBE_ATTRIBUTE, ACTIVE)
