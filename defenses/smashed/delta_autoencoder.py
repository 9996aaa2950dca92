"""Delta protection (ADP): an autoencoder between the halves of a network, trained to remove masked parts of images."""

import math
from collections.abc import Mapping
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from defenses.base import DefenseError
from defenses.checks import Examples, Scale, StepsOrNone, algorithm
from defenses.fitting import (
    SHAPE,
    FitContext,
    FittedDefense,
    features_by_row,
    features_in_batches,
    in_eval_mode,
    placed,
)
from defenses.smashed.delta_masks import DeltaMasks
from defenses.tensors import NamedTensors, Shape, Tensors

VARIANTS: Mapping[str, int] = {"decreasing": 1, "deep": 2, "extra_deep": 3}
"""Name -> convolutions of the encoder, each of which halves the channels."""
_RECTIFIED = "rectified"


@algorithm
class DeltaAutoencoder(FittedDefense):
    """Remove sensitive parts from the features by a small autoencoder, trained to output the features of masked images.

        min over e, d of  mean ||d(e(F(I))) - F(I~)||^2,    F: the client half, I: public images, I~: masked (``DeltaMasks``)

    Both halves of the network stay unchanged. The client runs F and e and sends e(F(x)): ``channels >> depth`` maps instead of
    ``channels``. The server runs d and its half. A sent image is not masked, so that no message depends on a label.
    The paper states that its adversary was trained on unprotected features only. Later stages act on the latent:
    ``DeltaAutoencoder() | FeatureNoise(std=0.1)`` adds noise to e(F(x)), which d decodes.

    Where the paper is silent: 3 x 3 convolutions with padding 1, mirrored by transposed ones, ReLU between, and at the end where no
    feature of the fit is negative (a cut behind a ReLU); squared error; Adam.

    Args:
        variant: "decreasing": channels C -> C/2 -> C; "deep": by C/4; "extra_deep": by C/8, one convolution per halving.
        delta: "min" masks the regions that the adversary uses and the server half does not; "max" masks all regions that the
            server half does not use.
        fill: Replacement of masked pixels: "blur" or "black".
        epochs: Passes over the public images; 120 (VGG16) and 60 (ResNet50) in the paper. 0 leaves the initial weights.
        learning_rate: Learning rate of Adam.
        batch_size: Images per step.
    """

    variant: Literal["decreasing", "deep", "extra_deep"] = "decreasing"
    delta: Literal["min", "max"] = "min"
    fill: Literal["blur", "black"] = "blur"
    epochs: StepsOrNone = 120
    learning_rate: Scale = 1e-3
    batch_size: Examples = 32

    quick = {"epochs": 3}
    adaptive_attacks = ("AttributeInference", "InverseNetwork")
    always_shown = ("variant", "delta", "fill")
    source = "Higgins et al., Towards Privacy-Preserving Split Learning (ADP), Algorithms 1 and 2"

    @property
    def masks(self) -> DeltaMasks:
        """Settings of the masks for the images of the fit, with the paper's number of passes."""
        return DeltaMasks(self.delta, self.fill, iterations=1 + (self.delta == "min"))

    @property
    def needs_adversary(self) -> bool:
        """True for "min", whose masks depend on the adversary."""
        return self.delta == "min"

    def shapes(self, channels: int, height: int, width: int) -> dict[str, Shape]:
        """Weights and biases of encoder and decoder, and whether the last layer is rectified."""
        depth = VARIANTS[self.variant]
        if channels % 2**depth:
            raise DefenseError(
                f"{self} halves the channels {depth} times, and {channels} cannot be divided by {2**depth}: "
                "cut the network elsewhere or take another variant"
            )
        sizes: dict[str, Shape] = {_RECTIFIED: ()}
        for at in range(depth):
            wide, narrow = channels >> at, channels >> (at + 1)
            sizes |= {f"encoder.{at}.weight": (narrow, wide, 3, 3), f"encoder.{at}.bias": (narrow,)}
            # A transposed convolution's weights have its inputs first: the decoder's stage ``at`` undoes the encoder's.
            sizes |= {f"decoder.{at}.weight": (narrow, wide, 3, 3), f"decoder.{at}.bias": (wide,)}
        return sizes

    def latent_shape(self, channels: int, height: int, width: int) -> Shape:
        """(C / 2^depth, H, W); see the base class."""
        self.shapes(channels, height, width)
        return channels >> VARIANTS[self.variant], height, width

    def fit(self, context: FitContext, generator: torch.Generator) -> Self:
        """Trains the autoencoder on masked copies of ``context.images``; see ``features_by_row`` for which features are kept."""
        images = context.images
        with in_eval_mode(context.client), torch.no_grad():
            sample = context.client(placed(images[:1], context.client))
        if sample.dim() != 4:
            raise DefenseError(
                f"{self}: the client half returns features {tuple(sample.shape)}; allowed: maps (B, C, H, W)"
            )
        shapes = self.shapes(*sample.shape[1:])
        masked = torch.cat(
            [
                self.masks.apply(placed(batch, context.client), context)[0].to(images.device)
                for batch in torch.split(images, self.batch_size)
            ]
        )
        weights = {n: t.to(sample.device).requires_grad_() for n, t in _initial(shapes, generator).items()}
        positive = torch.stack([maps.min() >= 0 for maps in features_in_batches(context.client, images)]).all()
        fixed = {SHAPE: torch.tensor(sample.shape[1:]), _RECTIFIED: positive}
        optimizer = torch.optim.Adam(weights.values(), self.learning_rate)
        features, wanted = (features_by_row(context.client, some) for some in (images, masked))
        for _ in range(self.epochs):
            for chosen in torch.split(torch.randperm(len(images), generator=generator), self.batch_size):
                self._step(features(chosen), wanted(chosen), weights | fixed, optimizer)
        return self.with_state(weights | fixed)

    def _step(self, features: Tensor, wanted: Tensor, tensors: Tensors, optimizer: torch.optim.Adam) -> None:
        with torch.enable_grad():
            loss = F.mse_loss(self._decoded(self._encoded(features, tensors), tensors), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def encode(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, *``latent_shape``); see the base class."""
        self._require(features)
        return self._encoded(features, self._tensors(features))

    def decode(self, latent: Tensor) -> Tensor:
        """(B, *``latent_shape``) -> (B, C, H, W); see the base class."""
        self._require(latent, latent=True)
        return self._decoded(latent, self._tensors(latent))

    def _encoded(self, maps: Tensor, tensors: NamedTensors) -> Tensor:
        for at in range(VARIANTS[self.variant]):
            weight, bias = tensors[f"encoder.{at}.weight"], tensors[f"encoder.{at}.bias"]
            maps = F.conv2d(maps, weight, bias, padding=1).relu()
        return maps

    def _decoded(self, maps: Tensor, tensors: NamedTensors) -> Tensor:
        for at in reversed(range(VARIANTS[self.variant])):
            weight, bias = tensors[f"decoder.{at}.weight"], tensors[f"decoder.{at}.bias"]
            maps = F.conv_transpose2d(maps, weight, bias, padding=1)
            maps = maps.relu() if at > 0 or tensors[_RECTIFIED] else maps
        return maps


def _initial(shapes: Mapping[str, Shape], generator: torch.Generator) -> Tensors:
    """Weights by He et al. 2015 (uniform, ReLU), biases 0, of all layers in ``shapes``."""
    weights = {}
    for name, shape in shapes.items():
        if name != _RECTIFIED:
            tensor = torch.zeros(shape)
            if name.endswith("weight"):
                # Inputs of a unit: axis 1 of a convolution's weights, axis 0 of a transposed one's.
                fan_in = shape[1 if name.startswith("encoder") else 0] * 9
                bound = math.sqrt(6 / fan_in)
                tensor.uniform_(-bound, bound, generator=generator)
            weights[name] = tensor
    return weights
