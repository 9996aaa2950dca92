"""Observations of the server of federated learning: updates of few steps that it requests, and updates of training."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attacks import choice
from attacks.active.base import ManipulatedProbe
from attacks.base import Profile
from attacks.observations import Aggregate, ClientUpdate, Probe, TrainingUpdate
from clients.federated.local_training import train_alone
from defenses.tensors import Update
from strategies.audit.kinds import Kind, Observed, Seen


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


def read_updates(observed: Observed, observation: type[ClientUpdate] = Probe) -> list[Any]:
    """What an attack gets to see of each update."""
    size, training = observed.task.plan.batch_size, observed.of_training()
    return [
        observation(
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


_of_training = functools.partial(read_updates, observation=TrainingUpdate)


def _of_steps(observed: Observed) -> list[Any]:
    """A step is on all images that the probe has for it."""
    return [replace(update, batch_size=observed.task.plan.probe_images) for update in _of_training(observed)]


def _of_sums(observed: Observed) -> list[Any]:
    """For each sum, the update of one step on the images of all its clients."""
    of = [seen.num_clients for seen in observed.seen if isinstance(seen, SeenAggregate)]
    pairs = zip(read_updates(observed, Aggregate), of, strict=True)
    return [replace(update, batch_size=update.num_examples, num_clients=clients) for update, clients in pairs]


def _of_active_server(profile: Profile) -> bool:
    """Attacks that send a model of their own read the answer to that only."""
    return issubclass(profile.observes, ManipulatedProbe)


def _of_members(profile: Profile) -> bool:
    """The server itself chose the probed images, so that it knows the members."""
    return profile.guesses == "membership" or _of_active_server(profile)


def _trains(observed: Observed) -> dict[str, Any]:
    """Training on the server's own examples, as a client trains on its."""
    return {"train": functools.partial(train_alone, observed.task.plan)}


_Updates = functools.partial(Kind, seen=SeenUpdate, accepts=ClientUpdate, refuses=_of_active_server, knows=_trains)
"""Updates of whole models; an attack on one kind of them can be run on the other."""

UPDATE = _Updates(
    "update", "training update", TrainingUpdate, _of_training, "training updates", chosen=False,
    auto=lambda: choice.ON_UPDATES,
)  # fmt: skip
PROBE = _Updates(
    "probe", "one-step probe", Probe, read_updates, "one-step probes", instead_of=UPDATE.title, refuses=_of_members,
    auto=lambda: choice.ON_PROBES,
)  # fmt: skip
"""Updates of one step on few images: the strongest setting of the papers."""
STEPS = _Updates(
    "steps", "probe of several steps", TrainingUpdate, _of_steps, "probes of several steps", instead_of=UPDATE.title,
    setting_of=UPDATE.name, refuses=lambda profile: profile.observes_history or _of_members(profile),
    auto=lambda: choice.ON_UPDATES,
)  # fmt: skip
"""Updates of several local steps, each on a few other images: between a one-step probe and a round."""
ACTIVE = _Updates(
    "active", "probe of a manipulated model", ManipulatedProbe, functools.partial(read_updates, observation=ManipulatedProbe),
    "probes of manipulated models", start="ImprintLayer()", accepts=None, refuses=lambda _: False,
)  # fmt: skip
"""One-step updates in reply to manipulated models; only an active server receives them."""
AGGREGATE = _Updates(
    "aggregate", "sum of clients' one-step probes", Aggregate, _of_sums, "sums of clients' one-step probes", seen=SeenAggregate,
    refuses=lambda profile: profile.observes_history or not profile.begins_chains or _of_active_server(profile), made_for=Probe,
    refined=True, chosen=False, pooled=True,
)  # fmt: skip
"""Sums of several clients' one-step updates: with secure aggregation, the server sees nothing else of them."""
KINDS = (PROBE, UPDATE, ACTIVE, AGGREGATE, STEPS)
