"""Updates as a curious server observes them: the received tensors, and its knowledge of the client's training."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from defenses.tensors import ImageShape, Update

UNTRIED = NOT_APPLICABLE, NOT_NEEDED = "not-applicable", "not-needed"
"""Status of the row of an attack that has no place on a network or message, or nothing left to find."""


class Untried(str):
    """Why an attack was not tried, with the status of its row; any other text is the reason of one that was tried in vain."""

    status: str

    def __new__(cls, text: str, status: str = NOT_APPLICABLE) -> Self:
        """The text, with the status."""
        made = super().__new__(cls, text)
        made.status = status
        return made

    def __str__(self) -> str:
        return self  # with its status, where an error is raised anew


def untried(reason: str) -> str:
    """The status of an attack that was not tried for this reason; "" for one that was tried in vain."""
    return reason.status if isinstance(reason, Untried) else ""


class AttackError(ValueError):
    """An observation that cannot be attacked, or not with what the attack has learned; the message gives the reason.

    Any function that reads an observation may raise this error; ``Attack.attack_many`` turns it into a failed guess.
    """


class FoundNothingError(AttackError):
    """A search that ended without any image: a result, and no failure of the run."""


class NotApplicableError(AttackError):
    """A network or message on which the attack has no place: no failure of the run."""

    def __str__(self) -> str:
        return Untried(f"does not apply: {super().__str__()}")


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter that clients of this model train: those that require gradients, or all where none does.

    A copy for inference requires none, which says nothing about the clients.
    """
    named = dict(model.named_parameters())
    return {name: value for name, value in named.items() if value.requires_grad} or named


def require_trained(gradient: Update, what: str, *names: str) -> None:
    """Refuse an attack that needs the gradient of parameters that clients do not train.

    Raises:
        AttackError: When one of ``names`` is not in the gradient; the message names it, and whose it is by ``what``.
    """
    if frozen := [name for name in names if name not in gradient]:
        raise NotApplicableError(f"{what} is frozen: no gradient of {frozen[0]!r}")


@dataclass(frozen=True)
class ClientUpdate:
    """One client's update as the server receives it, with the further knowledge of an honest-but-curious server.

    Attributes:
        model: The global model that the client started from (not to be modified). Its BatchNorm buffers are those sent.
        update: Parameter name -> (local - global), after all defences.
        input_shape: (C, H, W) of one image.
        mean: Per-channel mean of the normalisation, C values for images in [0, 1].
        std: Per-channel standard deviation of the normalisation.
        num_examples: Examples that the update was computed on.
        batch_size: Examples per local step.
        local_steps: Optimizer steps between the global model and the update.
        learning_rate: Learning rate of plain local SGD; None if the server does not know it.
        weight_decay: L2 coefficient added to the gradient by the client's optimizer.
        labels: Classes (num_examples,), int64, if the server knows them; otherwise None.
        train_mode: The client computed its gradients with the model in train mode.
        momentum: Momentum of the client's SGD; without effect on one step, except for Nesterov momentum.
        nesterov: The client's SGD uses Nesterov momentum.
    """

    model: nn.Module
    update: Update
    input_shape: ImageShape
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

    @property
    def step_length(self) -> float:
        """Length of a first step in units of learning rate times gradient: 1, or 1 + momentum with Nesterov momentum."""
        return 1 + self.momentum if self.nesterov else 1.0

    def require_one_step(self) -> None:
        """Refuse an update of several local steps, for attacks that need the gradient of one step.

        Raises:
            AttackError: When the update has several local steps; the message names attacks on such updates.
        """
        if self.local_steps != 1:
            raise NotApplicableError(
                f"the update has {self.local_steps} local steps; allowed: 1 (SurrogateMatching and "
                "InvertingGradients attack whole rounds)"
            )

    def gradient(self, learning_rate: float | None = None) -> Update:
        """Mean gradient behind the update: -update / (learning_rate * step_length * local_steps) - weight_decay * w.

        Of the ``trained_parameters`` alone: what an update holds of a frozen one is no gradient. Exact for one step of SGD without
        a defence; the mean over several steps without momentum. ``learning_rate`` replaces the observation's rate, for example
        by an estimate if that is None.

        Raises:
            AttackError: When names, shapes or values of the update do not fit the model; when no learning rate is known.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        if rate is None:
            raise AttackError("the server does not know the learning rate; give an estimate (estimate_learning_rate)")
        if rate <= 0 or self.local_steps < 1:
            raise AttackError(f"learning rate {rate} and {self.local_steps} local steps give no gradient")
        parameters = trained_parameters(self.model)
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
    """The update of one step on a few images, which a curious server requests for the audit; training sends no such update."""


class TrainingUpdate(ClientUpdate):
    """The update of a whole local round."""


@dataclass(frozen=True)
class Aggregate(ClientUpdate):
    """Sum of several clients' one-step updates, as under secure aggregation, divided by the clients' number of examples.

    For one step of SGD the sum equals the update of a single client with all examples. BatchNorm in train mode is an exception: its
    statistics are those of each client's own batch. ``num_examples`` and ``batch_size`` count the examples of all clients.

    Attributes:
        num_clients: Number of clients in the sum; 1 is a plain probe.

    Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, "Practical Secure Aggregation for
    Privacy-Preserving Machine Learning", CCS 2017, section 2: the server learns the sum of the clients' vectors alone.
    """

    num_clients: int = 1


@dataclass(frozen=True)
class UpdateHistory:
    """The updates of one client in several rounds, oldest first, each with the global model of its round."""

    updates: tuple[ClientUpdate, ...]
