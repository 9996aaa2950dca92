"""What a curious server sees of updates: messages as they crossed the wire, with what it knows of how they were made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from defenses.base import Update


class AttackError(ValueError):
    """What cannot be attacked, or not with what was learned: keys, shapes or values that do not fit; the message says why.

    Any function that reads an observation may raise it; ``Attack.attack_many`` makes a failed guess of it.
    """


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
        window_sides: Sides of the windows that VisualMixer shuffled each pixel of the images in, (B, H, W) int64; for upper
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

        Exact for one step of SGD without a defence; over several steps without momentum it is their mean. ``learning_rate`` stands
        in for the observation's, such as an estimate where that is None.

        Raises:
            AttackError: When names, shapes or values of the update do not fit the model; when no learning rate is known.
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

    For one step of SGD that is the update of a single client that holds the examples of all, but for BatchNorm in train mode,
    whose statistics are of each client's own batch. ``num_examples`` and ``batch_size`` count the examples of all.

    Attributes:
        num_clients: Clients behind the sum; of one it is the plain probe.

    Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, "Practical Secure Aggregation for
    Privacy-Preserving Machine Learning", CCS 2017, section 2: the server learns the sum of the clients' vectors alone.
    """

    num_clients: int = 1


@dataclass(frozen=True)
class UpdateHistory:
    """What one client sent in several rounds, oldest first; each update is of the global model of its round."""

    updates: tuple[ClientUpdate, ...]
