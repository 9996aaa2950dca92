"""Base class of attacks, which map observed messages to guesses; ``attacks.scoring`` scores the guesses in a later step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate, Probe
from attacks.sender import Sender
from defenses.base import Batch, call_text
from defenses.checks import check_fields
from defenses.pipeline import Pipeline

OWN_OBJECTIVE = "lowest own objective"
"""Entry "selection" of threat cards, for attacks that return the best iterate of their own search."""


@dataclass(frozen=True)
class Knowledge:
    """What the server knows besides its observations.

    Attributes:
        auxiliary: Public examples like the clients', disjoint from every client's; images (N, C, H, W) in [0, 1].
        pipeline: The clients' defences: their algorithms and parameters, never their random draws.
        mean: Per-channel mean of the normalisation, C values for images in [0, 1].
        std: Per-channel standard deviation of the normalisation.
        train: Trains a new model on a batch of auxiliary examples as a client does, defences included, and returns it in eval
            mode; the number is the seed of its weights and of its training.
        sender: If clients hold a half of the model, computes features of auxiliary images as a client does; otherwise None.
        sensitive: (N,) int64, a second attribute of each auxiliary example, from 0; None if the data have none.
        adversary: Builds a network that classifies features of queries, (B, C', H', W'): (architecture, number of
            values, seed) -> network in train mode. Architectures are those of ``attacks.queries.attributes``; None if clients
            send no features.
    """

    auxiliary: Batch
    pipeline: Pipeline
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Callable[[Batch, int], nn.Module]
    sender: Sender | None = None
    sensitive: Tensor | None = None
    adversary: Callable[[str, int, int], nn.Module] | None = None

    def require_sender(self) -> Sender:
        """Return ``sender``; raise ``AttackError`` if clients hold no half of the model."""
        if self.sender is None:
            raise AttackError("clients hold no half of the model; allowed: edge-cloud inference and split learning")
        return self.sender


def learned_field(before: Any = None) -> Any:
    """A field that ``fit`` fills, ``before`` until then: no part of an attack's text, nor of what makes two attacks equal."""
    return field(default=before, repr=False, compare=False)


Observation = TypeVar("Observation")
Guess = TypeVar("Guess")


@dataclass(frozen=True)
class Profile:
    """What an attack needs, when it applies and what it yields: read by ``auto``, checks, catalogue, threat cards and tests.

    An attack states what differs from its base as arguments of its class: ``class LiRA(LikelihoodAttack, needs_auxiliary=True)``.

    Attributes:
        observes: Type of the attacked observations: ``Probe``, ``TrainingUpdate``, ``SmashedData``, ... An attack on one of the
            first two also runs on the other.
        observes_history: Observations are ``UpdateHistory``, one for each client, not single updates.
        data: Examples that the attack applies to: "images", "tables" or both.
        needs_classes: The attack guesses or uses the single class of each example, and the data must have one.
        needs_step: The attack on smashed data also uses the update of a trained client half.
        needs_auxiliary: The attack must be fitted (``fit``) before use, on auxiliary data.
        guesses: What a guess is: "images", "labels", "attributes" (a sensitive one, no part of the task), "membership" (of records
            in the training) or "cells" (of a table).
        begins_chains: Guesses are images that a ``Refinement`` can improve.
        reads_steps: The attack uses the difference of two models, not only the model after the update.
        trains_shadows: For each pipeline, the server trains ``num_shadows`` new models as a client trains its own, for all rounds.
        effort: Budget of the search or training: field -> entry of the threat card, "iterations" (of the search for a guess, from
            each start), "restarts" (independent starts) or "training_iterations" (of ``fit``). If two fields have the same entry,
            the card shows the last one, unless ``card`` adds more.
        selection: Rule for choosing the returned iterate and start; "" if there is no choice.
        quick: Settings, field -> value, under which the attack ends within about a second on a small model, with any result:
            for tests that run every attack.
    """

    observes: type = Probe
    observes_history: bool = False
    data: tuple[str, ...] = ("images",)
    needs_classes: bool = False
    needs_step: bool = False
    needs_auxiliary: bool = False
    guesses: Literal["images", "labels", "attributes", "membership", "cells"] = "images"
    begins_chains: bool = False
    reads_steps: bool = False
    trains_shadows: bool = False
    effort: Mapping[str, str] = field(default_factory=dict)
    selection: str = ""
    quick: Mapping[str, Any] = field(default_factory=dict)


class Attack(Generic[Observation, Guess]):
    """Base of all attacks: a frozen dataclass whose ``repr`` is its configuration text.

    Attributes:
        source: The paper, with the number of the algorithm or equation.
        threat: Assumed knowledge of the server, in one line.
        profile: What the attack needs and yields. The arguments of a class change that of its base.
        learned: Result of ``fit``, if a subclass makes it a field; None before ``fit``.
    """

    source: ClassVar[str] = ""
    threat: ClassVar[str] = ""
    profile: ClassVar[Profile] = Profile()
    learned: Any = None

    def __init_subclass__(cls, **differs: Any) -> None:
        super().__init_subclass__()
        stated = {spec.name for spec in fields(Profile)} & vars(cls).keys()
        # Two of them also depend on settings: properties of every attack, which a class may override.
        if wrong := sorted(
            name for name in stated if not (hasattr(Attack, name) and isinstance(vars(cls)[name], property))
        ):
            raise TypeError(
                f"{cls.__name__} sets {wrong[0]} in its body; allowed: fields of attacks.base.Profile as arguments of the class, "
                f"such as class {cls.__name__}(..., needs_auxiliary=True)"
            )
        cls.profile = replace(cls.profile, **differs)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def upper_bound(self) -> str:
        """Description of input that no server of the run has; "" for an attack that this server can carry out.

        Rows, threat cards and reports mark an attack as an upper bound by this text alone; an upper bound never leads a ranking.
        """
        return ""

    @property
    def needs_auxiliary(self) -> bool:
        """Whether the attack must be fitted on auxiliary data before use; with some attacks the settings decide."""
        return self.profile.needs_auxiliary

    @property
    def lesson(self) -> str:
        """Name of what ``fit`` learns: of attacks with the same lesson one learns, and the others take its ``learned``."""
        return repr(self)

    @property
    def needs_learning_rate(self) -> bool:
        """Whether the attack compares lengths of gradients, so that it needs the client's learning rate or an estimate."""
        return False

    def card(self) -> dict[str, int | str]:
        """Entries of the attack on its threat card: ``Profile.effort`` and ``Profile.selection``."""
        spent = {entry: getattr(self, name) for name, entry in self.profile.effort.items()}
        if not self.profile.selection:
            return spent
        return ({"restarts": 1} if "iterations" in spent else {}) | spent | {"selection": self.profile.selection}

    @property
    def knows_defenses(self) -> bool:
        """Whether the attack takes the clients' defences into account; otherwise it is no evidence about adaptive attackers.

        The answer depends on the settings: a static adversary, or an inversion that ignores a plug-in, knows no defence. Threat
        cards show it.
        """
        return True

    @property
    def threat_class(self) -> str:
        """Letter of the required threat model, "A" to "H"; "" for attacks on other messages than updates.

        "C" is a server that knows how clients train, as in every run; "D" adds examples of its own. An attack that needs more, or
        manipulates the model sent to clients, overrides this property. See ``docs/threat_models.md``.

        Source: Carletti, Foggia, Mazzocca, Parrella, Vento, "SoK: Gradient Inversion Attacks in Federated Learning", USENIX
        Security 2025, threat models.
        """
        if not (self.profile.observes_history or issubclass(self.profile.observes, ClientUpdate)):
            return ""
        return "D" if self.needs_auxiliary else "C"

    @property
    def learns_from_defenses(self) -> bool:
        """Whether the result of ``fit`` depends on the pipeline; otherwise a run fits the attack once for all pipelines."""
        return self.knows_defenses

    def aware(self) -> Self:
        """The version of the attack that knows the clients' defences; the attack itself if there is no other version."""
        return self

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Return the attack after learning from the server's knowledge; most attacks learn nothing.

        Raises:
            AttackError: When the knowledge is insufficient, such as too few auxiliary examples.
        """
        return self

    def __call__(self, observation: Observation, generator: torch.Generator) -> Guess:
        """Attack one observation."""
        return self.attack_many([observation], [generator])[0]

    def check_fitted(self) -> None:
        """Raise ``AttackError`` if ``fit`` must be called first, that is, if the field ``learned`` is None."""
        if self.learned is None and any(spec.name == "learned" for spec in fields(self)):  # type: ignore[arg-type]
            what = "auxiliary data" if self.needs_auxiliary else "the defences' algorithm"
            raise AttackError(f"{self} needs {what}: call fit first")

    def attack_many(self, observations: Sequence[Observation], generators: Sequence[torch.Generator]) -> list[Guess]:
        """Attack independent observations of the same model, with one generator each; a guess depends on its own pair only.

        The default calls ``attack_one`` for each; an observation that cannot be attacked becomes a failed guess.

        Raises:
            AttackError: When the attack needs ``fit`` first.
        """
        self.check_fitted()
        return [self._attempt(*pair) for pair in zip(observations, generators, strict=True)]

    def _attempt(self, observation: Observation, generator: torch.Generator) -> Guess:
        try:
            return self.attack_one(observation, generator)
        except AttackError as error:
            return self.failed(observation, str(error))

    def attack_one(self, observation: Observation, generator: torch.Generator) -> Guess:
        """Attack one observation.

        Raises:
            AttackError: When the observation cannot be attacked.
        """
        raise NotImplementedError

    def failed(self, observation: Observation, reason: str) -> Guess:
        """A failed guess with as many examples as the observation, which no score counts as right; by default grey images."""
        seen: Any = observation
        return Reconstruction.grey(seen.num_examples, seen.input_shape, reason)  # type: ignore[return-value]

    def __repr__(self) -> str:
        return call_text(self)


AnyAttack = Attack[Any, Any]
"""An attack, whatever it observes and guesses."""
