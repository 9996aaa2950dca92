"""ClassGAN: train an image generator against one client's models and draw its classes."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack
from attacks.descent import step_down
from attacks.gradient.trial_gradients.matching import count_classes
from attacks.guesses import Representatives
from attacks.image_measures import total_variation
from attacks.local_model import local_model, usable
from attacks.networks.generator import ImageGenerator, random_shift
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate, TrainingUpdate, UpdateHistory
from defenses.checks import Examples, Several, Steps, Width, algorithm
from defenses.tensors import Numbers

LEARNING_RATE = 1e-3
"""Of Adam with betas (0.5, 0.999)."""
JITTER = 2
"""Largest random shift in pixels before a model classifies an image, against dependence on single pixels."""
Rounds = list[tuple[ClientUpdate, nn.Module]]
"""The usable updates of a client, oldest first, each with its ``local_model``."""


@algorithm
class ClassGAN(
    Attack[UpdateHistory, Representatives],
    observes=TrainingUpdate,
    observes_history=True,
    effort={"iterations": "iterations"},
    quick={"iterations": 20, "batch_size": 8, "latent": 8, "width": 4, "images_per_class": 1},
):
    """Train a generator of typical images for each class, which a client's received models classify as this class.

        min_G  E_{z, c} [ -log p_w(c | shift(G(z, c))) + TV(G(z, c)) ]

    with p_w the softmax of a received model, frozen: global model + update. The generator is trained against the models of all
    rounds in turn, oldest first. Classes of a batch are drawn uniformly; DCGAN's learning rate of 2e-4 needs
    several times the iterations. TV is the image prior, mean |dx| + mean |dy| of images in [0, 1].

    Differs from the paper: its attacker is a client that trains the shared model on generated images under a false label, so that
    the victim reveals more; ours is the server, and is passive. One conditional generator draws all classes. There is no class
    for generated images, so that only the network, the prior and the jitter, which are ours, favour *natural* images. Agreement
    with the received model is easily reached and means little; judge the images by an independent classifier.

    Attributes:
        iterations: Steps of the generator, divided evenly over the rounds.
        batch_size: Images per step, at least 2.
        latent: Numbers of noise per image.
        width: Channels of the generator.
        images_per_class: Images of each class in the guess.
    """

    source = "Hitaj 2017 (Deep Models Under the GAN), Algorithm 1, passive"
    threat = "global models and updates of one client over the rounds, normalisation; no auxiliary data"

    iterations: Steps = 200
    batch_size: Several = 32
    latent: Width = 100
    width: Width = 16
    images_per_class: Examples = 8

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> Representatives:
        """Draw ``images_per_class`` images of every class with a trained generator."""
        rounds = usable(observation.updates, lambda update: (update, local_model(update)))
        last, model = rounds[-1]
        count = _classes_of(last)
        network = ImageGenerator(self.latent, count, last.input_shape, self.width, generator)
        network.to(next(model.parameters()))
        self._train(network, rounds, generator)
        classes = self._wanted(count)
        images, agreement = _draw(network, classes, rounds[-1], generator)
        return Representatives(images, classes, agreement)

    def _train(self, network: ImageGenerator, rounds: Rounds, generator: torch.Generator) -> None:
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, betas=(0.5, 0.999))
        for step in range(self.iterations):
            observation, judge = rounds[step * len(rounds) // self.iterations]
            classes = torch.randint(network.num_classes, (self.batch_size,), generator=generator)
            images = network.draw(classes, generator)
            logits = judge(normalise(random_shift(images, JITTER, generator), observation))
            step_down(optimizer, F.cross_entropy(logits, classes.to(images.device)) + total_variation(images).mean())

    def failed(self, observation: UpdateHistory, reason: str) -> Representatives:
        """Grey images of all classes, or none if nothing was sent."""
        if not observation.updates:
            return Representatives(torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64), failure=reason)
        last = observation.updates[-1]
        classes = self._wanted(_classes_of(last))
        return Representatives(torch.full((len(classes), *last.input_shape), 0.5), classes, failure=reason)

    def _wanted(self, count: int) -> Tensor:
        return torch.arange(count).repeat_interleave(self.images_per_class)


def _classes_of(observation: ClientUpdate) -> int:
    model = copy.deepcopy(observation.model).eval()
    return count_classes(model, observation.input_shape, next(model.parameters()))


@torch.no_grad()
def _draw(
    network: ImageGenerator, classes: Tensor, judge: tuple[ClientUpdate, nn.Module], generator: torch.Generator
) -> tuple[Tensor, Numbers]:
    """Images of a trained generator, (N, C, H, W) in [0, 1] on the CPU, and what a client's model thinks of them."""
    observation, model = judge
    images = network.eval().draw(classes, generator)
    probabilities = model(normalise(images, observation)).softmax(1).cpu()
    if not torch.isfinite(images).all():
        raise AttackError("the generator diverged")
    agreement = {
        "agreement": (probabilities.argmax(1) == classes).float().mean().item(),
        "confidence": probabilities.gather(1, classes[:, None]).mean().item(),
    }
    return images.float().cpu(), agreement
