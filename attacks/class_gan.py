"""What the classes of a client look like, drawn by a GAN whose discriminator is the model that the client sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack, AttackError, ClientUpdate, Representatives, UpdateHistory
from attacks.generator_network import ImageGenerator, random_shift
from attacks.metrics import total_variation
from attacks.received_models import failed_representatives, received_rounds, wanted_classes
from defenses.checks import is_number, is_whole, require


@dataclass(frozen=True, repr=False)
class ClassGAN(Attack[UpdateHistory, Representatives]):
    """Trains a generator until the received models of a client see the wanted class in every image.

        min_G  E_{z, c} [ -log p_w(c | shift(G(z, c))) + total_variation * TV(G(z, c)) ]

    with p_w the softmax of a received model, frozen: global model + update. The models of all rounds take their turn, oldest first,
    and the generator goes on from round to round.

    Attributes:
        iterations: Steps of the generator, divided evenly over the rounds.
        batch_size: Images per step; their classes are drawn uniformly from the wanted ones.
        latent: Numbers of noise per image.
        width: Channels of the generator.
        learning_rate: Of Adam with betas (0.5, 0.999); DCGAN's 2e-4 wants several times the iterations.
        images_per_class: Images of each class in the guess.
        classes: The classes to draw; empty for all.
        total_variation: Weight of the image prior, mean |dx| + mean |dy| of images in [0, 1].
        jitter: Images are moved by up to so many pixels before the model sees them, so that they do not depend on single pixels.

    Source: Hitaj, Ateniese, Perez-Cruz, "Deep Models Under the GAN: Information Leakage from Collaborative Deep Learning", 2017,
    Algorithm 1 and section 5.

    Differs from the paper: its attacker is a client that trains the shared model on generated images under a false label, so that
    the victim reveals more; ours is the server, and only watches (the setting of the VisualMixer paper, section 4.7 of our notes).
    One conditional generator draws all classes. There is no class for generated images, and hence nothing that asks for *natural*
    images but the network, the prior and the jitter, which are ours: agreement with the received model is easily reached and says
    little; judge by an independent classifier.
    """

    observes: ClassVar[str] = "update"
    observes_history: ClassVar[bool] = True
    source: ClassVar[str] = "Hitaj 2017 (Deep Models Under the GAN), Algorithm 1, passive"
    threat: ClassVar[str] = "global models and updates of one client over the rounds, normalisation; no auxiliary data"

    iterations: int = 200
    batch_size: int = 32
    latent: int = 100
    width: int = 16
    learning_rate: float = 1e-3
    images_per_class: int = 8
    classes: tuple[int, ...] = ()
    total_variation: float = 1.0
    jitter: int = 2

    def __post_init__(self) -> None:
        check_generator_fields(self)
        require(is_number(self.total_variation) and self.total_variation >= 0, self, "total_variation", "0 or more")
        require(is_whole(self.jitter) and self.jitter >= 0, self, "jitter", "a whole number of at least 0")

    def attack_many(
        self, observations: Sequence[UpdateHistory], generators: Sequence[torch.Generator]
    ) -> list[Representatives]:
        """Draws ``images_per_class`` images of every class for each client; a client without a usable update gets grey ones."""
        guesses = []
        for history, generator in zip(observations, generators, strict=True):
            try:
                guesses.append(self._attack(history, generator))
            except AttackError as error:
                guesses.append(failed_representatives(history, self.classes, self.images_per_class, str(error)))
        return guesses

    def _attack(self, history: UpdateHistory, generator: torch.Generator) -> Representatives:
        rounds = received_rounds(history)
        last, model = rounds[-1]
        wanted, num_classes = wanted_classes(last, self.classes)
        network = ImageGenerator(self.latent, num_classes, last.input_shape, self.width, generator)
        network.to(next(model.parameters()))
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate, betas=(0.5, 0.999))
        for step in range(self.iterations):
            observation, judge = rounds[step * len(rounds) // self.iterations]
            classes = wanted[torch.randint(len(wanted), (self.batch_size,), generator=generator)]
            images = network.draw(classes, generator)
            loss = F.cross_entropy(
                judge(normalised(random_shift(images, self.jitter, generator), observation)), classes.to(images.device)
            )
            loss = loss + self.total_variation * total_variation(images).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return drawn(network, wanted.repeat_interleave(self.images_per_class), last, model, generator)


def normalised(images: Tensor, observation: ClientUpdate) -> Tensor:
    """(images - mean) / std per channel, as the client's model wants them."""
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (observation.mean, observation.std))
    return (images - mean) / std


def drawn(
    network: ImageGenerator, classes: Tensor, observation: ClientUpdate, model: nn.Module, generator: torch.Generator
) -> Representatives:
    """The guess of a trained generator, with what the received model thinks of it.

    Raises:
        AttackError: When training diverged.
    """
    network.eval()
    with torch.no_grad():
        images = network.draw(classes, generator)
        probabilities = model(normalised(images, observation)).softmax(1).cpu()
    if not torch.isfinite(images).all():
        raise AttackError("the generator diverged; try a smaller learning rate")
    diagnostics = {
        "agreement": (probabilities.argmax(1) == classes).float().mean().item(),
        "confidence": probabilities.gather(1, classes[:, None]).mean().item(),
    }
    return Representatives(images.float().cpu(), classes, diagnostics)


def check_generator_fields(attack: Any) -> None:
    """Ranges of the fields that the GAN attacks have in common."""
    for name in ("iterations", "batch_size", "latent", "width", "images_per_class"):
        value = getattr(attack, name)
        require(is_whole(value) and value >= 1, attack, name, "a whole number of at least 1")
    require(attack.batch_size >= 2, attack, "batch_size", "at least 2, for BatchNorm")
    rate, classes = attack.learning_rate, attack.classes
    require(is_number(rate) and 0 < rate < float("inf"), attack, "learning_rate", "a finite number above 0")
    fits = isinstance(classes, tuple) and all(is_whole(value) and value >= 0 for value in classes)
    require(fits and len(set(classes)) == len(classes), attack, "classes", "a tuple of different classes from 0")
