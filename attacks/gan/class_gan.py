"""Typical images of a client's classes, drawn by a GAN whose discriminator is the client's model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from attacks.descent import step_down
from attacks.gan.representative_attack import RepresentativeAttack, Rounds
from attacks.guesses import Representatives
from attacks.image_measures import total_variation
from attacks.networks.generator import ImageGenerator, random_shift
from attacks.normalisation import normalise
from attacks.observations import UpdateHistory
from defenses.checks import MOST_SIDE, scale_field, whole_field


@dataclass(frozen=True, repr=False)
class ClassGAN(RepresentativeAttack):
    """Train a generator of typical images for each class, which a client's received models classify as this class.

        min_G  E_{z, c} [ -log p_w(c | shift(G(z, c))) + total_variation * TV(G(z, c)) ]

    with p_w the softmax of a received model, frozen: global model + update. The generator is trained against the models of all
    rounds in turn, oldest first. Classes of a batch are drawn uniformly; DCGAN's learning rate of 2e-4 needs
    several times the iterations.

    Differs from the paper: its attacker is a client that trains the shared model on generated images under a false label, so that
    the victim reveals more; ours is the server, and is passive. One conditional generator draws all classes. There is no class
    for generated images, so that only the network, the prior and the jitter, which are ours, favour *natural* images. Agreement
    with the received model is easily reached and means little; judge the images by an independent classifier.

    Attributes:
        total_variation: Weight of the image prior, mean |dx| + mean |dy| of images in [0, 1].
        jitter: Largest random shift in pixels before the model classifies an image, against dependence on single pixels.
    """

    source = "Hitaj 2017 (Deep Models Under the GAN), Algorithm 1, passive"
    threat = "global models and updates of one client over the rounds, normalisation; no auxiliary data"

    total_variation: float = scale_field(1.0, zero=True)
    jitter: int = whole_field(2, 0, MOST_SIDE)

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> Representatives:
        """Draw ``images_per_class`` images of every class."""
        return self._represent(observation, generator, self._train)

    def _train(
        self, network: ImageGenerator, rounds: Rounds, count: int, generator: torch.Generator
    ) -> dict[str, float]:
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate, betas=(0.5, 0.999))
        for step in range(self.iterations):
            observation, judge = rounds[step * len(rounds) // self.iterations]
            classes = torch.randint(count, (self.batch_size,), generator=generator)
            images = network.draw(classes, generator)
            logits = judge(normalise(random_shift(images, self.jitter, generator), observation))
            loss = F.cross_entropy(logits, classes.to(images.device))
            loss = loss + self.total_variation * total_variation(images).mean()
            step_down(optimizer, loss)
        return {}
