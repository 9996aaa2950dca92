"""Base of attacks by an active server, which manipulates the model sent to a client and attacks the client's update."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.exact.base import BEYOND, SolvingAttack
from attacks.exact.linear_layer import LinearLayer, Read, called, linear_layers, random_images
from attacks.gradient.labels import infer_observed_labels
from attacks.gradient.trial_gradients.matching import attackable
from attacks.guesses import Reconstruction
from attacks.normalisation import channel_statistics
from attacks.observations import AttackError, ClientUpdate, NotApplicableError
from defenses.tensors import ImageShape, Numbers


class ManipulatedProbe(ClientUpdate):
    """A client's one-step update of a manipulated model (``model``)."""


@dataclass(frozen=True)
class AgreedModel:
    """The model that an active server manipulates, and the server's knowledge of the training.

    Attributes:
        model: The global model of the round; never changed.
        input_shape: (C, H, W) of one image.
        mean: Per-channel mean of the normalisation, C values for images in [0, 1].
        std: Per-channel standard deviation of the normalisation.
    """

    model: nn.Module
    input_shape: ImageShape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixel_layer(self) -> LinearLayer:
        """The linear layer with a bias that sees the pixels, behind which stands a ReLU; of a copy of the model."""
        like = next(self.model.parameters()).detach()
        layers = linear_layers(attackable(self.model, train_mode=True), self.input_shape, like)
        seeing = [layer for layer in layers if layer.sees_pixels]
        name = type(self.model).__name__
        if not seeing:
            raise NotApplicableError(
                f"no linear layer of the agreed {name} sees the pixels, and clients may refuse another architecture"
            )
        if seeing[0].module.bias is None or not seeing[0].rectified:
            raise NotApplicableError(f"layer {seeing[0].name!r} of {name} lacks a bias, or a ReLU behind it")
        return seeing[0]

    def layer_behind(self, layer: LinearLayer) -> str:
        """Name of the linear layer that sees relu(Z), Z the values of ``layer`` (B, M), and nothing else."""
        _, calls = called_on_random(self.model, self.input_shape)
        behind = calls[layer.name][0][2].relu()
        same = [name for name, seen in calls.items() if len(seen) == 1 and torch.equal(seen[0][1], behind)]
        if not same:
            raise NotApplicableError(f"no linear layer sees what layer {layer.name!r} gives to its ReLU")
        return same[0]

    def for_pixels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (K, C * H * W) and biases (K,), double, on normalised pixels, of rows (K, C * H * W) meant for pixels in [0, 1].

        With x = std * x' + mean, w . x = (w * std) . x' + w . mean.
        """
        mean, std = (part.expand(self.input_shape).flatten() for part in channel_statistics(self, rows))
        return rows * std, rows @ mean


class ActiveAttack(SolvingAttack, observes=ManipulatedProbe):
    """Base of attacks by a server that sends a manipulated model of the agreed architecture and attacks the reply.

    The threat model is F, or G if the server learns the manipulation from its own examples (Carletti et al. 2025).
    """

    @property
    def threat_class(self) -> str:
        """Threat model of a server that manipulates the model sent to clients: "F" or "G"."""
        return "G" if self.needs_auxiliary else "F"

    @abstractmethod
    def manipulated(self, agreed: AgreedModel, generator: torch.Generator) -> nn.Module:
        """Make the model to be sent: the agreed architecture with other weights; buffers and mode stay unchanged.

        Raises:
            NotApplicableError: When the architecture has no place for it.
        """


def called_on_random(model: nn.Module, input_shape: ImageShape) -> tuple[Tensor, dict[str, list[Any]]]:
    """``called`` of a model as a client trains it, for ``random_images``."""
    with torch.no_grad():
        return called(attackable(model, train_mode=True), random_images(input_shape, next(model.parameters())))


def overwrite_linear(model: nn.Module, name: str, weight: Tensor, bias: Tensor | None = None) -> None:
    """Sets the weights of a linear layer of ``model``, in place; without ``bias`` that stays."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(weight.to(layer.weight))
        if bias is not None and layer.bias is not None:
            layer.bias.copy_(bias.to(layer.bias))


def pixel_gradient(observation: ClientUpdate, neurons: int = 1, lacks: str = "no bias") -> tuple[Tensor, Tensor]:
    """Gradients (K, C * H * W) and (K,) of the linear layer that sees the pixels; an error with ``lacks`` below ``neurons``."""
    read = Read.of(observation)
    layer = read.on_pixels()
    gradient = read.of_layer(layer)
    if gradient.bias is None or len(gradient.bias) < neurons:
        raise NotApplicableError(f"layer {layer.name!r} has {lacks}")
    return gradient.weight, gradient.bias


def share_outside(images: Tensor) -> Tensor:
    """(K,), the share of pixels of each of ``images`` (K, C, H, W) that lie beyond [0, 1] by 0.01 or more."""
    return ((images < -BEYOND) | (images > 1 + BEYOND)).flatten(1).double().mean(1)


def batch_guess(observation: ClientUpdate, images: Sequence[Tensor], numbers: Numbers) -> Reconstruction:
    """A guess of as many images as the update is of: what was read (C, H, W), the surest first, and grey for the rest.

    The classes are inferred, as a multiset.
    """
    count = observation.num_examples
    grey = torch.full((count, *observation.input_shape), 0.5)
    read = torch.stack([image.clamp(0, 1).float().cpu() for image in images[:count]]) if images else grey[:0]
    if observation.labels is not None:
        labels = observation.labels.cpu()
    else:
        try:
            labels = infer_observed_labels(observation, observation.gradient())[:count].cpu()
        except AttackError:
            labels = torch.full((count,), -1)
    return Reconstruction(torch.cat([read, grey[len(read) :]]), labels, numbers)
