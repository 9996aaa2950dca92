"""What an attack is: it sees observations of the wire and returns guesses; it never sees the truth.

Scoring is a separate step (``attacks.scoring``), done by whoever holds the truth. Nothing else here takes private images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from attacks.queries.sender import QuerySender
from attacks.sender import Sender
from defenses.base import Batch, Update, call_text
from defenses.pipeline import Pipeline

OWN_OBJECTIVE = "lowest own objective"
"""What threat cards say under "selection" of an attack that keeps the best of what its own search met."""


class AttackError(ValueError):
    """An observation that cannot be attacked: keys, shapes or values that do not fit the model."""


@dataclass(frozen=True)
class ClientUpdate:
    """One client's update as it crossed the wire, with what an honest-but-curious server knows besides.

    Attributes:
        model: The global model that the client started from (not to be modified). Its BatchNorm buffers are those sent.
        update: Parameter name -> (local - global), after all defences.
        input_shape: (C, H, W) of one image.
        mean: Per-channel mean of the normalisation, C values for images in [0, 1].
        std: Per-channel standard deviation of the normalisation.
        num_examples: Examples that the update was computed on.
        batch_size: Examples per local step.
        local_steps: Optimizer steps between the global model and the update.
        learning_rate: Of plain local SGD; None where the server does not know it.
        weight_decay: L2 coefficient added to the gradient by the client's optimizer.
        labels: Classes (num_examples,), int64, when the server knows them; else None.
        train_mode: The client computed its gradients with the model in train mode.
        momentum: Of the client's SGD; makes no difference to one step, unless it is Nesterov's.
        nesterov: The client's SGD looks ahead by its momentum.
        window_sides: Sides of the windows that VisualMixer shuffled each pixel of the images in, (B, H, W) int64; told to upper
            bounds only.
    """

    model: nn.Module
    update: Update
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_examples: int
    batch_size: int
    local_steps: int
    learning_rate: float | None
    weight_decay: float = 0.0
    labels: Tensor | None = None
    train_mode: bool = True
    momentum: float = 0.0
    nesterov: bool = False
    window_sides: Tensor | None = None

    @property
    def step_length(self) -> float:
        """By how many learning rates a first step moves along its gradient: 1; with Nesterov's momentum 1 + momentum."""
        return 1 + self.momentum if self.nesterov else 1.0

    def require_one_step(self) -> None:
        """For attacks that read the gradient of one step, which an update of several does not hold.

        Raises:
            AttackError: When the update is of several local steps; it says which attacks are for such.
        """
        if self.local_steps != 1:
            raise AttackError(
                f"does not apply: the update is of {self.local_steps} local steps, and the gradient of one is solved for; "
                "SurrogateMatching and InvertingGradients attack whole rounds"
            )

    def gradient(self, learning_rate: float | None = None) -> Update:
        """The mean gradient that SGD would have needed: -update / (learning_rate * step_length * local_steps) - weight_decay * w.

        Exact for one step of SGD without a defence; over several steps without momentum it is their mean.

        Args:
            learning_rate: Instead of the observation's, such as an estimate where that is None.

        Raises:
            AttackError: When names, shapes or values of the update do not fit the model's parameters; when no learning rate is
                known or given.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        if rate is None:
            raise AttackError("the server does not know the learning rate; give an estimate (estimate_learning_rate)")
        if rate <= 0 or self.local_steps < 1:
            raise AttackError(f"learning rate {rate} and {self.local_steps} local steps give no gradient")
        parameters = dict(self.model.named_parameters())
        if missing := sorted(set(parameters) - set(self.update)):
            raise AttackError(f"the update lacks {missing[:3]} ({len(missing)} of {len(parameters)} parameters)")
        scale = -1.0 / (rate * self.step_length * self.local_steps)
        gradient = {}
        for name, weight in parameters.items():
            delta = self.update[name]
            if delta.shape != weight.shape:
                raise AttackError(f"update {name!r} has shape {tuple(delta.shape)}, the model {tuple(weight.shape)}")
            # Updates arrive on the CPU; the model may live elsewhere.
            gradient[name] = scale * delta.detach().to(weight) - self.weight_decay * weight.detach()
            if not torch.isfinite(gradient[name]).all():
                raise AttackError(f"update {name!r} holds NaN or infinite values")
        return gradient


class Probe(ClientUpdate):
    """The update of one step on few images, which no training sends: a curious server asks for it."""


class TrainingUpdate(ClientUpdate):
    """The update of a whole local round."""


@dataclass(frozen=True)
class Aggregate(ClientUpdate):
    """What secure aggregation leaves of one-step updates: the sum over clients, here divided by the number of their examples.

    For one step of SGD that is the update of a single client that holds everybody's examples, but for BatchNorm in train mode,
    whose statistics are of each client's own batch. ``num_examples`` and ``batch_size`` count the examples of all.

    Attributes:
        num_clients: Clients behind the sum; of one it is the plain probe.

    Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, "Practical Secure Aggregation for
    Privacy-Preserving Machine Learning", CCS 2017, section 2: the server learns the sum of the clients' vectors alone.
    """

    num_clients: int = 1


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
        sender: In split learning, what makes smashed data of auxiliary images as a client would; else None.
        query_sender: The same of features of test images that are sent to be answered; else None.
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
    query_sender: QuerySender | None = None
    sensitive: Tensor | None = None
    adversary: Callable[[str, int, int], nn.Module] | None = None
    probes: Callable[[Batch, int, int], Iterator[tuple[Tensor, Update]]] | None = None


@dataclass(frozen=True)
class UpdateHistory:
    """What one client sent in several rounds, oldest first; each update is of the global model of its round."""

    updates: tuple[ClientUpdate, ...]


@dataclass(frozen=True)
class Reconstruction:
    """Guessed images.

    Attributes:
        images: (B, C, H, W) in [0, 1]; uniform grey where the attack failed.
        labels: (B,) int64, the classes that the attack worked with; -1 where it failed before it had any.
        diagnostics: Numbers that say how the attack went (final cost, chosen restart, gradient norm).
        failure: Why the attack failed, or "".
    """

    images: Tensor
    labels: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    def failed(self, error: AttackError) -> Reconstruction:
        """The same guess, grey: what was to be made of it could not be made."""
        return replace(self, images=torch.full_like(self.images, 0.5), failure=str(error))


@dataclass(frozen=True)
class Labels:
    """Guessed classes of a batch: (B,) int64; -1 where the attack failed.

    Of an update they are a multiset, sorted: nothing says which example has which. Of smashed data, where an image keeps its row,
    class i is that of image i.

    ``failure`` says why the attack failed, or is "".
    """

    classes: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Cells:
    """Guessed rows of a table; row i is that of example i, as smashed data keep an example's row in the batch.

    Attributes:
        categories: (B, F) int64, the number of the category in every column; -1 where the attack failed.
        embeddings: (B, F, D), what the client half would make of them; zeros where the attack failed.
        diagnostics: Numbers that say how the attack went.
        failure: Why the attack failed, or "".
    """

    categories: Tensor
    embeddings: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Attributes:
    """Guessed values of a sensitive attribute; row i is of image i.

    Attributes:
        logits: (B, K), the largest for the most probable of K values; NaN where the attack failed.
        diagnostics: Numbers that say how the attack went.
        failure: Why the attack failed, or "".
    """

    logits: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def values(self) -> Tensor:
        """The most probable value of each image: (B,) int64; -1 where a logit is NaN."""
        return self.logits.argmax(1).masked_fill(self.logits.isnan().any(1), -1)


@dataclass(frozen=True)
class Representatives:
    """Pictures of what the classes of one client look like, as a generator drew them; none of them is a guess of one example.

    Attributes:
        images: (N, C, H, W) in [0, 1]; uniform grey where the attack failed.
        classes: (N,) int64, the class that each was drawn for.
        diagnostics: Numbers that say how the attack went.
        failure: Why the attack failed, or "".
    """

    images: Tensor
    classes: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


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
        reads_linear_layer: It solves for what a linear layer saw of the pixels; on a network without one it does not apply.
        quick: Settings, field -> value, under which it ends within about a second on a small model, however little it then finds:
            for tests that run every attack.
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
    reads_linear_layer: ClassVar[bool] = False
    quick: ClassVar[Mapping[str, Any]] = {}

    @property
    def upper_bound(self) -> str:
        """What it is given that no server of the run has, in words; "" for an attack that this server can carry out.

        The one flag by which rows, threat cards and reports tell upper bounds apart: they are shown as such and never lead.
        """
        return ""

    def card(self) -> dict[str, int | str]:
        """What the attack adds to its threat card: what its search may spend, and how it chooses among what it found.

        Returns:
            Those that it has of "iterations" (of the search for a guess, from each start), "restarts" (independent starts),
            "selection" (which iterate and start become the guess), and "training_iterations" (of what ``fit`` trains).
        """
        return {}

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
        """Whether it must be told the sides of VisualMixer's windows (``ClientUpdate.window_sides``), as an upper bound."""
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

    def attack_many(self, observations: Sequence[Observation], generators: Sequence[torch.Generator]) -> list[Guess]:
        """Attacks independent observations of the same model, one generator each; a guess depends on its own pair only."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return call_text(self)
