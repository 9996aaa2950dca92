"""The networks of ``leak_map.py``: one small base network, and variants that differ from it in one property.

A network is a chain of 3 x 3 convolutions with padding, and a linear layer on all values of the last feature map. The first two
convolutions halve the sides of the map; further ones keep shape and width. A layer is convolution, normalisation, activation,
pooling, in this order: the normalisation stands before the activation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from clients.models.library import group_norm
from defenses.tensors import ImageShape

HALVED = 2
"""Convolutions that halve the sides of the feature map: the first ones."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}
POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "strided": nn.Identity,
    "max": lambda: nn.MaxPool2d(2),
    "average": lambda: nn.AvgPool2d(2),
    "none": nn.Identity,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda _: nn.Identity(),
    "batch": nn.BatchNorm2d,
    "group": group_norm,
    "layer": lambda channels: nn.GroupNorm(1, channels),
}
"""LayerNorm of a feature map is GroupNorm with a single group."""


@dataclass(frozen=True)
class Network:
    """An architecture, and how the client uses it.

    Attributes:
        width: Channels of every convolution.
        depth: Number of convolutions, at least 2.
        skip: Convolutions that keep the shape add their input to their output (identity shortcut).
        norm: A name in ``NORMS``.
        activation: A name in ``ACTIVATIONS``.
        pooling: How the first two convolutions halve the map: a name in ``POOLINGS``; "none" keeps 32 x 32.
        train_mode: The client trains in train mode, so that BatchNorm normalises by the batch.
        averages: The update carries the running averages of BatchNorm.
        measured: Before the round, BatchNorm's running averages are those of training images, not mean 0 and variance 1.
    """

    width: int = 16
    depth: int = 3
    skip: bool = False
    norm: str = "none"
    activation: str = "relu"
    pooling: str = "strided"
    train_mode: bool = True
    averages: bool = False
    measured: bool = False

    def build(self, input_shape: ImageShape, num_classes: int, seed: int) -> nn.Sequential:
        """The network with weights as torch initialises them, (B, C, H, W) -> logits (B, num_classes), in train mode."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            widths = [input_shape[0], *[self.width] * self.depth]
            layers = [self._layer(at, *pair) for at, pair in enumerate(itertools.pairwise(widths))]
            side = input_shape[1] // (1 if self.pooling == "none" else 2**HALVED)
            return nn.Sequential(*layers, nn.Flatten(), nn.Linear(self.width * side**2, num_classes))

    def _layer(self, at: int, channels: int, width: int) -> nn.Module:
        halves = at < HALVED
        stride = 2 if halves and self.pooling == "strided" else 1
        layer = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1),
            NORMS[self.norm](width),
            ACTIVATIONS[self.activation](),
            POOLINGS[self.pooling]() if halves else nn.Identity(),
        )
        return Skip(layer) if self.skip and not halves else layer


class Skip(nn.Module):
    """A layer whose input is added to its output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        """Values of the layer's input shape."""
        return values + self.layer(values)  # type: ignore[no-any-return]


BASE = Network()
BATCH = replace(BASE, norm="batch")
NETWORKS: dict[str, Network] = {
    "base": BASE,
    "width 8": replace(BASE, width=8),
    "width 32": replace(BASE, width=32),
    "width 64": replace(BASE, width=64),
    "depth 2": replace(BASE, depth=2),
    "depth 5": replace(BASE, depth=5),
    "depth 5, skips": replace(BASE, depth=5, skip=True),
    "depth 8": replace(BASE, depth=8),
    "depth 8, skips": replace(BASE, depth=8, skip=True),
    "BatchNorm, eval, initial": replace(BATCH, train_mode=False),
    "BatchNorm, eval, measured": replace(BATCH, train_mode=False, measured=True),
    "BatchNorm, train, sent": replace(BATCH, averages=True),
    "BatchNorm, train, not sent": BATCH,
    "GroupNorm": replace(BASE, norm="group"),
    "LayerNorm": replace(BASE, norm="layer"),
    "sigmoid": replace(BASE, activation="sigmoid"),
    "GELU": replace(BASE, activation="gelu"),
    "max pooling": replace(BASE, pooling="max"),
    "average pooling": replace(BASE, pooling="average"),
    "no pooling": replace(BASE, pooling="none"),
    "width 64, skips, BatchNorm, train, sent": replace(BATCH, width=64, skip=True, averages=True),
}
"""Row of the map -> network."""
