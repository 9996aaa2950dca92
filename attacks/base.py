"""What an attack is: it sees observations of the wire and returns guesses; scoring them is another step, ``attacks.scoring``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from attacks.observations import AttackError, ClientUpdate, Probe
from attacks.sender import Sender
from defenses.base import Batch, Update, call_text
from defenses.checks import check_fields
from defenses.pipeline import Pipeline

OWN_OBJECTIVE = "lowest own objective"
"""What threat cards say under "selection" of an attack that keeps the best of what its own search met."""


@dataclass(frozen=True)
class Knowledge:
    """What the server holds besides its observations.

    Attributes:
        auxiliary: Public examples like the clients', disjoint from every client's; images (N, C, H, W) in [0, 1].
        pipeline: The defences that the clients run: their algorithm and parameters, never their randomness.
        mean: Per-channel mean of the normalisation, C values for images in [0, 1].
        std: Per-channel standard deviation of the normalisation.
        train: Trains a new model on a batch of auxiliary examples as a client would, defences included, and returns it in eval
            mode; the number is the seed of its weights and of its training.
        sender: Where clients hold a half of the model, what makes features of auxiliary images as a client would; else None.
        sensitive: (N,) int64, a second attribute of each auxiliary example, from 0; None where the data have none.
        adversary: Builds a network that classifies features of queries, (B, C', H', W') or (B, N, D): (architecture, number of
            values, seed) -> network in train mode. Architectures are those of ``attacks.attributes.inference``; None where clients
            send no features.
        probes: Where one-step probes are attacked, makes one-step updates of examples as a client would at the attacked global
            model, defences included: (examples, number of updates, seed) -> of each update the positions of its images, and the
            update; else None.
    """

    auxiliary: Batch
    pipeline: Pipeline
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Callable[[Batch, int], nn.Module]
    sender: Sender | None = None
    sensitive: Tensor | None = None
    adversary: Callable[[str, int, int], nn.Module] | None = None
    probes: Callable[[Batch, int, int], Iterator[tuple[Tensor, Update]]] | None = None

    def require_sender(self) -> Sender:
        """``sender``; raises ``AttackError`` where clients hold no half of the model."""
        if self.sender is None:
            raise AttackError("there is no client half to attack: this is for edge-cloud inference and split learning")
        return self.sender


Observation = TypeVar("Observation")
Guess = TypeVar("Guess")


class Attack(Generic[Observation, Guess]):
    """Base of all attacks: a frozen dataclass whose ``repr`` is its configuration text.

    Attributes:
        source: The paper, with the number of the algorithm or equation.
        threat: What the server is assumed to know, in one line.
        needs_auxiliary: The attack must be fitted (``fit``) before use, on auxiliary data.
        observes: The type of observation that it is meant for: ``Probe``, ``TrainingUpdate``, ``SmashedData``, ... What is meant
            for one of the first two can be run on the other.
        observes_history: Its observations are ``UpdateHistory``, one for each client, not single updates.
        begins_chains: Its guesses are images that a ``Refinement`` can go on from.
        learns_prior: What ``fit`` learns can paint plausible images from nothing. An audit then runs the attack on updates of noise
            too, and it counts only where it does better on the clients'.
        learns_from_model: What ``fit`` learns depends on the global model of the attacked round; it is fitted anew for each.
        reads_steps: It reads how an update moves the model, not only the model that it leads to.
        on_images: It attacks what is sent of images.
        on_tables: It attacks what is sent of rows of a table.
        needs_classes: It guesses, or works with, the one class of each example, and there must be one.
        infers_attributes: It guesses a sensitive attribute, which the task does not ask for, and nothing else.
        infers_membership: It guesses which records were part of the training, and nothing else.
        needs_one_step: It reads the gradient of one step, and does not apply to an update of several.
        reads_linear_layer: It solves for what a linear layer saw of the pixels; on a network without one it does not apply.
        effort: What its search or its training may spend: field -> entry of the threat card, "iterations" (of the search for a
            guess, from each start), "restarts" (independent starts) or "training_iterations" (of what ``fit`` trains). Of two
            fields with one entry the last stands there, unless ``card`` says more.
        selection: Which iterate and start become the guess; "" where it chooses among none.
        quick: Settings, field -> value, under which it ends within about a second on a small model, however little it then finds:
            for tests that run every attack.
        learned: What ``fit`` learned, where a subclass makes it a field; None before.
    """

    source: ClassVar[str] = ""
    threat: ClassVar[str] = ""
    needs_auxiliary: ClassVar[bool] = False
    observes: ClassVar[type] = Probe
    observes_history: ClassVar[bool] = False
    begins_chains: ClassVar[bool] = False
    learns_prior: ClassVar[bool] = False
    learns_from_model: ClassVar[bool] = False
    reads_steps: ClassVar[bool] = False
    on_images: ClassVar[bool] = True
    on_tables: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    infers_attributes: ClassVar[bool] = False
    infers_membership: ClassVar[bool] = False
    needs_one_step: ClassVar[bool] = False
    reads_linear_layer: ClassVar[bool] = False
    effort: ClassVar[Mapping[str, str]] = {}
    selection: ClassVar[str] = ""
    quick: ClassVar[Mapping[str, Any]] = {}
    learned: Any = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def upper_bound(self) -> str:
        """What it is given that no server of the run has, in words; "" for an attack that this server can carry out.

        The one flag by which rows, threat cards and reports tell upper bounds apart: they are shown as such and never lead.
        """
        return ""

    def card(self) -> dict[str, int | str]:
        """What the attack adds to its threat card: ``effort`` and ``selection``."""
        spent = {entry: getattr(self, field) for field, entry in self.effort.items()}
        if not self.selection:
            return spent
        return ({"restarts": 1} if "iterations" in spent else {}) | spent | {"selection": self.selection}

    @property
    def knows_defenses(self) -> bool:
        """Whether it goes by the clients' defences; one that does not is no evidence of what an adaptive attacker finds.

        A property of the settings: a static adversary, or an inversion around a plug-in, knows of no defence. Threat cards say so.
        """
        return True

    @property
    def threat_class(self) -> str:
        """Letter of the threat model that it needs, "A" to "H"; "" where it reads no updates, of which the letters are.

        What the server of a run knows anyway, which is how clients train, is "C"; examples of its own are "D". An attack that needs
        more, or manipulates what clients are sent, says so. See ``docs/threat_models.md``.

        Source: Carletti, Foggia, Mazzocca, Parrella, Vento, "SoK: Gradient Inversion Attacks in Federated Learning", USENIX
        Security 2025, threat models.
        """
        if not (self.observes_history or issubclass(self.observes, ClientUpdate)):
            return ""
        return "D" if self.needs_auxiliary else "C"

    @property
    def learns_from_defenses(self) -> bool:
        """Whether what ``fit`` learns depends on the pipeline; what does not is learned once for all pipelines of a run."""
        return self.knows_defenses

    def aware(self) -> Self:
        """What it becomes where it learns of the clients' defences; itself where it does already, or never can."""
        return self

    @property
    def reveals_windows(self) -> bool:
        """Whether it needs the sides of VisualMixer's windows (``ClientUpdate.window_sides``), as an upper bound."""
        return False

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """The same attack after it has learned from what the server holds; most attacks learn nothing.

        Raises:
            AttackError: When the knowledge is not enough, such as too few auxiliary examples.
        """
        return self

    def __call__(self, observation: Observation, generator: torch.Generator) -> Guess:
        """Attacks one observation."""
        return self.attack_many([observation], [generator])[0]

    def check_fitted(self) -> None:
        """Raises ``AttackError`` where ``fit`` must come first: where a field ``learned`` is still None."""
        if self.learned is None and any(one.name == "learned" for one in fields(self)):  # type: ignore[arg-type]
            what = "auxiliary data" if self.needs_auxiliary else "the defences' algorithm"
            raise AttackError(f"{self} needs {what}: call fit first")

    def attack_many(self, observations: Sequence[Observation], generators: Sequence[torch.Generator]) -> list[Guess]:
        """Attacks independent observations of the same model, one generator each; a guess depends on its own pair only.

        By default each with ``attack_one``; an observation that cannot be attacked becomes a failed guess.

        Raises:
            AttackError: Before ``fit``, where that is needed.
        """
        self.check_fitted()
        return [self._attempt(*pair) for pair in zip(observations, generators, strict=True)]

    def _attempt(self, observation: Observation, generator: torch.Generator) -> Guess:
        try:
            return self.attack_one(observation, generator)
        except AttackError as error:
            return self.failed(observation, str(error))

    def attack_one(self, observation: Observation, generator: torch.Generator) -> Guess:
        """Attacks one observation.

        Raises:
            AttackError: When it cannot be attacked.
        """
        raise NotImplementedError

    def failed(self, observation: Observation, reason: str) -> Guess:
        """The guess of an attack that failed, of as many examples as the observation is of; never right."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return call_text(self)
