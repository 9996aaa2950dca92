"""A network that maps features of a query back to images, with the client half as a black box."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.image_measures import holdout_scores
from attacks.networks.standardise import Standardise, raised
from attacks.networks.unet import draw_convolutions
from attacks.queries.base import Query, answers
from attacks.queries.training import LearnedNetwork, LearnedQueryAttack, Trained
from defenses.checks import Examples, Steps, Width, algorithm
from defenses.tensors import Shape


class MapDecoder(nn.Module):
    """Features (B, Z, H', W') -> images (B, C, H, W) in [0, 1]: channels are standardised, then convolutions and doublings.

    ``sample`` gives the distribution of each channel. Initial weights are those of He et al. 2015, biases 0.
    """

    def __init__(self, sample: Tensor, image_shape: Shape, width: int, generator: torch.Generator) -> None:
        super().__init__()
        std = raised(sample.std((0, 2, 3), correction=0))
        self.standardise = Standardise(sample.mean((0, 2, 3))[:, None, None], std[:, None, None])
        channels, height, side = image_shape
        doublings = max(0, math.ceil(math.log2(max(height / sample.shape[2], side / sample.shape[3]))))
        self.sizes = [(-(-height // 2**left), -(-side // 2**left)) for left in range(doublings - 1, -1, -1)]
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, overwritten below, draws globally
            self.first = _block(sample.shape[1], width)
            self.stages = nn.ModuleList([_block(width, width) for _ in self.sizes])
            self.last = nn.Sequential(_block(width, width), nn.Conv2d(width, channels, 3, padding=1))
        draw_convolutions(self, generator)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        maps: Tensor = self.first(self.standardise(features))
        for size, stage in zip(self.sizes, self.stages, strict=True):
            maps = stage(F.interpolate(maps, size))
        return torch.sigmoid(self.last(maps))


def _block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(1, out), nn.ReLU())


@algorithm
class InverseNetwork(LearnedQueryAttack[Reconstruction], quick={"iterations": 12, "width": 8, "batch_size": 8}):
    """Decode features to images by a convolutional network, trained on features of auxiliary images by squared error.

    "retrained" trains on features protected by the clients' own algorithm, with new draws at every step. The network then undoes
    the defence and input defences as far as possible, along with the client half. "static" trains on unprotected features.

    Diagnostics: ``holdout_psnr``, the mean in dB over held-out images, from features of the kind seen in training, and
    ``holdout_psnr_mean_image``, the value for guessing the mean of the other images. If the first is not above the second, the
    network is no evidence about the defence.

    Attributes:
        width: Channels of the network. The others as in ``LearnedQueryAttack``.
    """

    source = "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019 (black box)"
    threat = (
        "features of queries; the client half as a black box; the defences' algorithm and what they have learned; auxiliary images "
        "like the clients'"
    )

    learning_rate = 2e-3

    training: Trained = "retrained"
    iterations: Steps = 1000
    width: Width = 32
    batch_size: Examples = 16
    learned: LearnedNetwork = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the network."""
        images = knowledge.auxiliary.images

        def build(sample: Tensor) -> nn.Module:
            return MapDecoder(sample, tuple(images.shape[1:]), self.width, generator)

        return self.taught(
            knowledge,
            generator,
            truth=images,
            build=build,
            sample=self.batch_size,
            loss=F.mse_loss,
            judge=holdout_scores,
        )

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Decode the images of a query; deterministic. Classes are the server half's predictions."""
        images = self.learned(observation.features)
        return Reconstruction(images, answers(observation), dict(self.learned.diagnostics))
