"""A network that learns to turn features of a query back into images, without looking into the client half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import AttackError, Knowledge, Reconstruction
from attacks.image_measures import psnr
from attacks.queries.base import Query, QueryAttack
from attacks.queries.training import (
    RETRAINED,
    TRAININGS,
    features_of,
    in_batches,
    query_sender_of,
    split_rows,
    train_network,
)
from defenses.checks import is_number, is_whole, require


class MapDecoder(nn.Module):
    """Features (B, Z, H', W') -> images (B, C, H, W) in [0, 1]: channels are standardised, then convolutions and doublings.

    Args:
        sample: Features (B, Z, H', W') that say how each channel is distributed.
        image_shape: (C, H, W), H at least H' and W at least W'.
        width: Channels of every hidden layer.
        generator: CPU generator of the initial weights: He et al. 2015, and biases 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, sample: Tensor, image_shape: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__()
        std = sample.std((0, 2, 3), correction=0)
        self.register_buffer("mean", sample.mean((0, 2, 3))[:, None, None])
        # A channel that hardly changes is no reason to blow up what little it does.
        self.register_buffer("std", std.clamp(min=max(1e-3 * float(std.max()), 1e-12))[:, None, None])
        channels, height, side = image_shape
        doublings = max(0, math.ceil(math.log2(max(height / sample.shape[2], side / sample.shape[3]))))
        self.sizes = [(-(-height // 2**left), -(-side // 2**left)) for left in range(doublings - 1, -1, -1)]
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, overwritten below, draws globally
            self.first = _block(sample.shape[1], width)
            self.stages = nn.ModuleList([_block(width, width) for _ in self.sizes])
            self.last = nn.Sequential(_block(width, width), nn.Conv2d(width, channels, 3, padding=1))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                draws = torch.randn(layer.weight.shape, generator=generator)
                layer.weight.data = draws * (2 / layer.weight[0].numel()) ** 0.5
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        maps: Tensor = self.first((features - self.mean) / self.std)
        for size, stage in zip(self.sizes, self.stages, strict=True):
            maps = stage(F.interpolate(maps, size))
        images: Tensor = torch.sigmoid(self.last(maps))
        return images


def _block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(1, out), nn.ReLU())


@dataclass(frozen=True)
class LearnedInverse:
    """What ``InverseNetwork.fit`` keeps.

    Attributes:
        network: Features (B, Z, H', W') -> images (B, C, H, W) in [0, 1]; in eval mode, on the CPU.
        shape: (Z, H', W').
        diagnostics: See ``InverseNetwork``.
    """

    network: nn.Module
    shape: tuple[int, ...]
    diagnostics: dict[str, float]


@dataclass(frozen=True, repr=False)
class InverseNetwork(QueryAttack[Reconstruction]):
    """A convolutional decoder trained on (features, clean image) pairs of auxiliary images, by squared error.

    "retrained" learns from features that the clients' own algorithm has protected, drawn afresh at every step: it undoes the
    defence, as far as that can be done, along with the client half, and input defences too. "static" learns from unprotected ones.

    One auxiliary image in eight is held out. Diagnostics: ``holdout_psnr``, the mean in dB over these, from features of the kind
    that it was trained on, and ``holdout_psnr_mean_image``, that of guessing the mean of the other seven for each. Where the first
    is not above the second, the network learned nothing and is no evidence about the defence.

    Attributes:
        training: "static" or "retrained".
        iterations: Steps of Adam; the learning rate falls to zero along a half cosine.
        width: Channels of the network.
        batch_size: Auxiliary images per step; also the group that a defence mixes.
        learning_rate: The largest.
        learned: Set by ``fit``.
    """

    source: ClassVar[str] = (
        "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019 (black box)"
    )
    threat: ClassVar[str] = (
        "features of queries; the client half as a black box; the defences' algorithm and what they have learned; auxiliary images "
        "like the clients'"
    )
    needs_auxiliary: ClassVar[bool] = True
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 12, "width": 8, "batch_size": 8}

    training: str = RETRAINED
    iterations: int = 1000
    width: int = 32
    batch_size: int = 16
    learning_rate: float = 2e-3
    learned: LearnedInverse | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.training in TRAININGS, self, "training", " | ".join(TRAININGS))
        for name in ("iterations", "width", "batch_size"):
            value = getattr(self, name)
            require(is_whole(value) and value >= 1, self, name, "a whole number >= 1")
        rate = is_number(self.learning_rate) and 0 < self.learning_rate < math.inf
        require(rate, self, "learning_rate", "a finite number above 0")

    @property
    def knows_defenses(self) -> bool:
        """Only where it is retrained."""
        return self.training == RETRAINED

    def card(self) -> dict[str, int | str]:
        """Steps of training."""
        return {"training_iterations": self.iterations}

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Trains the network.

        Raises:
            AttackError: With fewer than 16 auxiliary images, where clients send no features, or when the training diverges.
        """
        sender = query_sender_of(knowledge)
        kept, held = split_rows(knowledge, generator)
        images = knowledge.auxiliary.images

        def features(rows: Tensor) -> Tensor:
            return features_of(sender, self.training, images[rows], generator)

        sample = features(kept[: self.batch_size])
        network = MapDecoder(sample, tuple(images.shape[1:]), self.width, generator).to(sample.device)

        def loss(rows: Tensor) -> Tensor:
            return F.mse_loss(network(features(rows)), images[rows].to(sample.device))

        train_network(
            network, loss, kept, generator,
            iterations=self.iterations, batch_size=self.batch_size, learning_rate=self.learning_rate,
        )  # fmt: skip
        with torch.no_grad():
            guess = in_batches(lambda rows: network(features(rows)).cpu(), held)
        clean = images[held].cpu()
        scores = {
            "holdout_psnr": float(psnr(guess, clean).mean()),
            "holdout_psnr_mean_image": float(psnr(images[kept].mean(0).cpu().expand_as(clean), clean).mean()),
        }
        return replace(self, learned=LearnedInverse(network.cpu(), tuple(sample.shape[1:]), scores))

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Decodes the images of a query; nothing is random. Classes are those that the server half answers with.

        Raises:
            AttackError: Before ``fit``, or when the features have another shape than those of the auxiliary images.
        """
        if self.learned is None:
            raise AttackError(f"{self} must learn from auxiliary data: call fit first")
        features = observation.features.detach().cpu()
        if tuple(features.shape[1:]) != self.learned.shape:
            raise AttackError(f"features have shape {tuple(features.shape[1:])}, it was fitted to {self.learned.shape}")
        with torch.no_grad():
            images = self.learned.network(features)
            answers = observation.server_model(observation.features).argmax(1)
        return Reconstruction(images, answers.cpu(), dict(self.learned.diagnostics))
