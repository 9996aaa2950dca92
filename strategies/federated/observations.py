"""Observations of the server of federated learning: updates of few steps that it requests, and updates of training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks import choice
from attacks.active.base import ManipulatedProbe
from attacks.base import AnyAttack, Knowledge
from attacks.observations import Aggregate, ClientUpdate, Probe, TrainingUpdate
from attacks.refinement.base import Refinement
from attacks.spec import stages_of
from clients.federated.local_training import probes_alone, train_alone
from clients.task.auxiliary import Auxiliary
from clients.task.task import Plan
from defenses.base import Batch
from defenses.tensors import Update
from strategies.audit.kinds import Kind, Observed, Seen, digest


@dataclass(frozen=True)
class SeenUpdate(Seen):
    """One update (local - global), and the server's knowledge of how it was made.

    Attributes:
        local_steps: Optimizer steps, as the client reports them.
        labels: Classes of the examples where clients publish them, else None.
        train_mode: The client's model was in train mode.
    """

    update: Update = field(default_factory=dict)
    local_steps: int = 1
    labels: Tensor | None = None
    train_mode: bool = True


@dataclass(frozen=True)
class SeenAggregate(SeenUpdate):
    """The sum of several clients' updates, weighted by their examples and divided by the number of these.

    Attributes:
        scorers: Partitions (k,), int64, of those of the ``num_clients`` that score guesses; ``partition`` is the first client's.
    """

    num_clients: int = 1
    scorers: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def judges(self) -> tuple[int, ...]:
        """Partitions of the clients in the sum."""
        return tuple(self.scorers.tolist())

    def scored(self, images: int) -> int:
        """Each client scores as many guesses as it has images, none twice."""
        return len(self.scorers) * min(images, self.num_examples // self.num_clients)


class _Updates(Kind):
    """Updates of whole models; an attack on one kind of them can be run on the other."""

    seen = SeenUpdate

    def suits(self, attack: AnyAttack) -> bool:
        """Whether it attacks updates, and guesses what is guessed of them; attacks that send a model read the answer to that
        only.
        """
        first = stages_of(attack)[0]
        if issubclass(ManipulatedProbe, self.observation) or issubclass(first.observes, ManipulatedProbe):
            return first.observes is self.observation
        return issubclass(first.observes, ClientUpdate) and first.infers_attributes == self.of_attributes

    def train(self, plan: Plan) -> Callable[[Batch, int], nn.Module]:
        """On the server's own examples, as a client trains on its."""
        return functools.partial(train_alone, plan)

    def observations(self, observed: Observed) -> list[Any]:
        """What an attack gets to see of each update."""
        size, training = observed.task.plan.batch_size, observed.of_training()
        return [
            self.observation(
                update=seen.update,
                num_examples=seen.num_examples,
                batch_size=min(size, seen.num_examples),
                local_steps=seen.local_steps,
                labels=seen.labels,
                train_mode=seen.train_mode,
                **training,
            )
            for seen in observed.seen
            if isinstance(seen, SeenUpdate)
        ]


class TrainingUpdates(_Updates):
    """Updates that training sends."""

    name = "update"
    title = "training update"
    plural = "training updates"
    observation = TrainingUpdate
    chosen = False

    def usual(self, dataset: str) -> list[AnyAttack]:
        """Attacks for the setting "auto"."""
        return list(choice.ON_UPDATES)


class Probes(_Updates):
    """Updates of one step on few images: the strongest setting of the papers."""

    name = "probe"
    title = "one-step probe"
    instead_of = TrainingUpdates.title
    plural = "one-step probes"
    observation = Probe

    def usual(self, dataset: str) -> list[AnyAttack]:
        """Attacks for the setting "auto"."""
        return list(choice.ON_PROBES)

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack fits probes; membership is excluded, because the server itself chose the probed images."""
        return super().suits(attack) and not stages_of(attack)[0].infers_membership

    def knowledge(self, observed: Observed) -> Knowledge:
        """The server's knowledge, with a function that makes one-step updates of the server's own images."""
        made = functools.partial(probes_alone, observed.task, observed.weights)
        return replace(super().knowledge(observed), probes=made)


class ProbesOfSteps(_Updates):
    """Updates of several local steps, each on a few other images: between a one-step probe and a round."""

    name = "steps"
    title = "probe of several steps"
    instead_of = TrainingUpdates.title
    plural = "probes of several steps"
    observation = TrainingUpdate

    @property
    def setting(self) -> str:
        """Its attacks are those on training updates that ``suits`` names."""
        return UPDATE.setting

    def usual(self, dataset: str) -> list[AnyAttack]:
        """Attacks for the setting "auto"."""
        return [attack for attack in choice.ON_UPDATES if self.suits(attack)]

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack reads one update of several steps, whose images the server chose."""
        first = stages_of(attack)[0]
        wrong = first.infers_membership or first.observes_history
        return super().suits(attack) and not wrong

    def meant(self, attack: AnyAttack) -> bool:
        """Not membership, of which the server knows the answer: it chose the images."""
        return super().meant(attack) and self.suits(attack)

    def observations(self, observed: Observed) -> list[Any]:
        """See ``_Updates``; a step is on all images that the probe has for it."""
        size = observed.task.plan.probe_images
        return [replace(one, batch_size=size) for one in super().observations(observed)]


class AttributesOfProbes(_Updates):
    """One-step updates; attacks guess one sensitive value for each."""

    name = "probe-attribute"
    title = "attributes of one-step probes"
    plural = "attributes of one-step probes"
    observation = Probe
    start = "PropertyInference()"
    chosen = False
    of_attributes = True

    def depends_on(self, observed: Observed) -> str:
        """The round and its global model, on which updates are computed."""
        return f"{observed.task.round} {digest(observed.weights)}"

    def undefended(self, observed: Observed) -> Observed:
        """Observations without defences, but with the attacked model's layers."""
        plain, defended = super().undefended(observed), observed.task.plan.defenses
        return replace(plain, task=plain.task.but(norm="group")) if defended.needs_group_norm else plain

    def knowledge(self, observed: Observed) -> Knowledge:
        """The server's knowledge, with one-step updates of its own images and their attribute."""
        return replace(PROBE.knowledge(observed), sensitive=Auxiliary(observed.task.plan).sensitive())


class AnswersToManipulatedModels(_Updates):
    """One-step updates in reply to manipulated models; only an active server receives them."""

    name = "active"
    title = "probe of a manipulated model"
    plural = "probes of manipulated models"
    observation = ManipulatedProbe
    start = "ImprintLayer()"


class Aggregates(_Updates):
    """Sums of several clients' one-step updates: with secure aggregation, the server sees nothing else of them."""

    name = "aggregate"
    title = "sum of clients' one-step probes"
    plural = "sums of clients' one-step probes"
    observation = Aggregate
    seen = SeenAggregate
    chosen = False
    pooled = True

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack guesses images of any single update; one that learns from one client's probes does not know sums."""
        first = stages_of(attack)[0]
        return super().suits(attack) and first.begins_chains and not (first.observes_history or first.learns_from_model)

    def meant(self, attack: AnyAttack) -> bool:
        """Whether the attack is made for one-step probes, or refines images that such an attack found."""
        if attack.observes is not Probe or attack.infers_attributes:
            return False
        return isinstance(attack, Refinement) or self.suits(attack)

    def observations(self, observed: Observed) -> list[Any]:
        """For each sum, the update of one step on the images of all its clients."""
        of = [one.num_clients for one in observed.seen if isinstance(one, SeenAggregate)]
        found = zip(super().observations(observed), of, strict=True)
        return [replace(one, batch_size=one.num_examples, num_clients=clients) for one, clients in found]


PROBE, UPDATE, PROBE_ATTRIBUTE = Probes(), TrainingUpdates(), AttributesOfProbes()
ACTIVE, AGGREGATE, STEPS = AnswersToManipulatedModels(), Aggregates(), ProbesOfSteps()
KINDS: tuple[Kind, ...] = (PROBE, UPDATE, PROBE_ATTRIBUTE, ACTIVE, AGGREGATE, STEPS)
