"""What attacks share that train an image generator against the models of one client and draw its classes with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.gradient.trial_gradients.matching import count_classes
from attacks.guesses import Representatives
from attacks.local_model import local_model
from attacks.networks.generator import ImageGenerator
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate, TrainingUpdate, UpdateHistory
from defenses.checks import MOST_EXAMPLES, examples_field, scale_field, steps_field, whole_field, width_field

Rounds = list[tuple[ClientUpdate, nn.Module]]
"""The usable updates of a client, oldest first, each with its ``local_model``."""

Training = Callable[[ImageGenerator, Rounds, int, torch.Generator], dict[str, float]]
"""(network, rounds, number of classes, randomness) -> diagnostics; trains the network in place."""


@dataclass(frozen=True, repr=False)
class RepresentativeAttack(Attack[UpdateHistory, Representatives]):
    """An attack that draws what the classes of a client look like; subclasses say how the generator learns it.

    Attributes:
        iterations: Steps of the generator, divided evenly over the rounds.
        batch_size: Images per step, at least 2.
        latent: Numbers of noise per image.
        width: Channels of the generator.
        learning_rate: Of Adam with betas (0.5, 0.999).
        images_per_class: Images of each class in the guess.
    """

    observes = TrainingUpdate
    observes_history = True
    effort = {"iterations": "iterations"}
    quick = {
        "iterations": 20,
        "batch_size": 8,
        "latent": 8,
        "width": 4,
        "images_per_class": 1,
    }

    iterations: int = steps_field(200)
    batch_size: int = whole_field(32, 2, MOST_EXAMPLES, ", for BatchNorm")
    latent: int = width_field(100)
    width: int = width_field(16)
    learning_rate: float = scale_field(1e-3)
    images_per_class: int = examples_field(8)

    def _represent(self, history: UpdateHistory, generator: torch.Generator, train: Training) -> Representatives:
        """Draws ``images_per_class`` images of every class with a trained generator."""
        rounds = usable_rounds(history)
        last, model = rounds[-1]
        count = _classes_of(last)
        network = ImageGenerator(self.latent, count, last.input_shape, self.width, generator)
        notes = train(network.to(next(model.parameters())), rounds, count, generator)
        classes = self._wanted(count)
        images, agreement = _draw(network, classes, rounds[-1], generator)
        return Representatives(images, classes, agreement | notes)

    def failed(self, observation: UpdateHistory, reason: str) -> Representatives:
        """Grey images of all classes, or none if nothing was sent."""
        if not observation.updates:
            return Representatives(torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64), failure=reason)
        last = observation.updates[-1]
        classes = self._wanted(_classes_of(last))
        return Representatives(torch.full((len(classes), *last.input_shape), 0.5), classes, failure=reason)

    def _wanted(self, count: int) -> Tensor:
        return torch.arange(count).repeat_interleave(self.images_per_class)


def usable_rounds(history: UpdateHistory) -> Rounds:
    """The rounds of a client whose update fits its model; the others are left out."""
    rounds, problem = [], "the client sent no update"
    for observation in history.updates:
        try:
            rounds.append((observation, local_model(observation)))
        except AttackError as error:
            problem = str(error)
    if not rounds:
        raise AttackError(problem)
    return rounds


def _classes_of(observation: ClientUpdate) -> int:
    """Number of classes of the model."""
    model = copy.deepcopy(observation.model).eval()
    return count_classes(model, observation.input_shape, next(model.parameters()))


@torch.no_grad()
def _draw(
    network: ImageGenerator, classes: Tensor, judge: tuple[ClientUpdate, nn.Module], generator: torch.Generator
) -> tuple[Tensor, dict[str, float]]:
    """Images of a trained generator, (N, C, H, W) in [0, 1] on the CPU, and what a client's model thinks of them."""
    observation, model = judge
    images = network.eval().draw(classes, generator)
    probabilities = model(normalise(images, observation)).softmax(1).cpu()
    if not torch.isfinite(images).all():
        raise AttackError("the generator diverged; try a smaller learning rate")
    agreement = {
        "agreement": (probabilities.argmax(1) == classes).float().mean().item(),
        "confidence": probabilities.gather(1, classes[:, None]).mean().item(),
    }
    return images.float().cpu(), agreement
