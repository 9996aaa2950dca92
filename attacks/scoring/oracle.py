"""The oracle: a classifier of clean images that judges whether others would still recognise what an attack recovered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.descent import step_down
from attacks.metrics.images import FEATURE_SIMILARITY, IDENTIFICATION
from attacks.networks.generator import random_shift
from attacks.networks.standardise import Standardise
from attacks.observations import AttackError
from attacks.scoring.objective import ONE_CLASS, Objective
from defenses.base import Batch
from defenses.tensors import ImageShape, NamedTensors, Tensors

MIN_EXAMPLES = 16
CHUNK = 512
WIDTH = 8
"""Channels of the first layer."""
BATCH_SIZE = 32
"""Images per step."""


@dataclass(frozen=True)
class Oracle:
    """A trained judge.

    Attributes:
        network: Images (B, C, H, W) in [0, 1] -> logits (B, K); in eval mode, where it was trained.
        image_shape: (C, H, W) of the images it was trained on.
        accuracy: On the held-out auxiliary images, 0 to 1. Scores of a classifier with a low accuracy mean little.
    """

    network: nn.Sequential
    image_shape: ImageShape
    accuracy: float

    def classify(self, images: Tensor) -> Tensor:
        """The class that it sees in each image (B, C, H, W) in [0, 1]: (B,) int64 on the CPU. Errors as ``features``."""
        return self.logits(images).argmax(1)

    def logits(self, images: Tensor) -> Tensor:
        """Its answers to images (B, C, H, W) in [0, 1]: (B, K) on the CPU. Errors as ``features``."""
        with torch.no_grad():
            logits: Tensor = self.network[-1](self.features(images))
        return logits.cpu()

    def features(self, images: Tensor) -> Tensor:
        """What it sees in each image (B, C, H, W) in [0, 1] before it names a class: (B, F), where the network is.

        Raises:
            ValueError: When the images are of another shape than those it was trained on.
        """
        if tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(f"the oracle judges images of shape {self.image_shape}, not {tuple(images.shape[1:])}")
        with torch.no_grad():
            like = next(self.network.parameters())
            parts = [self.network[:-1](part.to(like)) for part in torch.split(images.detach(), CHUNK)]
        return torch.cat(parts)

    def compare(self, guess: Tensor, truth: Tensor) -> dict[str, list[float]]:
        """Whether guesses look like the images that they are guesses of, to the oracle.

        Args:
            guess: (M, C, H, W) in [0, 1]; guess i is of image i.
            truth: (N, C, H, W) in [0, 1], N >= M; the images behind the guesses first.

        Returns:
            Per guess "feature-similarity", the |cosine| of its features and those of its image (F-SIM of Yao et al., ICDM 2022,
            with this oracle in place of FaceNet), and "identification": 1 where no other true image is more similar, else 0.
            Guessing at random identifies one in N; of a single image nothing is identified.
        """
        seen, known = (F.normalize(self.features(images).cpu(), dim=1) for images in (guess, truth))
        cosines = (seen @ known.T).abs()
        own = cosines.diagonal()
        scores = {FEATURE_SIMILARITY.name: FEATURE_SIMILARITY.cut(own.tolist())}
        # A single image has no others to be identified among.
        return scores | ({IDENTIFICATION.name: (own >= cosines.amax(1)).float().tolist()} if len(truth) > 1 else {})

    def to_tensors(self) -> Tensors:
        """The network's weights, for a message to the clients, which hold the truth; ``from_tensors`` reads them."""
        return {name: tensor.detach().cpu() for name, tensor in self.network.state_dict().items()}

    @classmethod
    def from_tensors(cls, tensors: NamedTensors, image_shape: ImageShape) -> Oracle:
        """The oracle that ``to_tensors`` described, without its accuracy."""
        last = max(int(name.partition(".")[0]) for name in tensors)
        network = _network(torch.zeros(2, *image_shape), len(tensors[f"{last}.bias"]), 0)
        network.load_state_dict(dict(tensors))
        return cls(network.eval().requires_grad_(False), image_shape, math.nan)


def train_oracle(auxiliary: Batch, seed: int, epochs: int = 12, objective: Objective = ONE_CLASS) -> Oracle:
    """Trains a small convolutional network on clean auxiliary images; a random eighth of them is held out for ``accuracy``.

    Adam with a one-cycle learning rate and shifts of up to two pixels. The result depends on the arguments alone: at least 16
    images (N, C, H, W) in [0, 1] with class probabilities or label vectors (N, K), and the seed of the weights, the split and the
    order.

    Raises:
        AttackError: When there are too few images.
    """
    if len(auxiliary) < MIN_EXAMPLES:
        raise AttackError(f"an oracle needs at least {MIN_EXAMPLES} auxiliary images, there are {len(auxiliary)}")
    generator = torch.Generator().manual_seed(seed)
    images, targets = auxiliary.images.detach().float(), auxiliary.targets.detach().float()
    order = torch.randperm(len(images), generator=generator)
    held, kept = order[: len(order) // 8], order[len(order) // 8 :]
    network = _network(images[kept], targets.shape[1], seed)
    _train(network, images[kept], targets[kept], epochs, generator, objective)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    logits = Oracle(network.eval().requires_grad_(False), shape, 0.0).logits(images[held])
    return Oracle(network, shape, objective.hits(logits, targets[held].cpu()).mean().item())


def _network(images: Tensor, num_classes: int, seed: int) -> nn.Sequential:
    channels = images.shape[1]
    mean, std = images.mean((0, 2, 3))[:, None, None], images.std((0, 2, 3)).clamp(min=1e-3)[:, None, None]
    layers: list[nn.Module] = [Standardise(mean, std)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for into, out in ((channels, WIDTH), (WIDTH, 2 * WIDTH)):
            layers += [
                nn.Conv2d(into, out, 3, padding=1),
                nn.BatchNorm2d(out),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            ]
        layers += [nn.Conv2d(2 * WIDTH, 4 * WIDTH, 3, padding=1), nn.BatchNorm2d(4 * WIDTH), nn.ReLU()]
        # A grid of 4 x 4 whatever the image's size: classes differ in where things are.
        layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(4 * WIDTH * 16, num_classes)]
    return nn.Sequential(*layers).to(images.device)


def _train(
    network: nn.Module, images: Tensor, targets: Tensor, epochs: int, generator: torch.Generator, objective: Objective
) -> None:
    network.train()
    batches = max(len(images) // BATCH_SIZE, 1)  # The rest of an epoch is left out: BatchNorm dislikes tiny batches.
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator)[: batches * BATCH_SIZE].chunk(batches):
            loss = objective.loss(network(random_shift(images[batch], 2, generator)), targets[batch])
            step_down(optimizer, loss, schedule)
