"""Convolutional classifiers cut in two: the client half sends feature maps (B, C, H, W), the server half classifies them.

A cut is named after the last unit of the client half and counts from 1, as published: ``conv4`` lies behind the ReLU of the fourth
convolution, ``bottleneck8`` behind the eighth bottleneck. Adversaries are networks that classify a second attribute from the
features of a cut, for the attacker and for defences against it.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from clients.models.classifiers import Layers, ResidualBlock, build_model
from clients.models.library import ModelError
from defenses.tensors import ImageShape, NamedTensors

CUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vgg16": ("conv4", "conv8", "conv12"),
        "resnet50": ("bottleneck4", "bottleneck8", "bottleneck12"),
        "efficientnet_lite0": ("stage2", "stage3", "stage5"),
        "vgg_small": ("conv2", "conv4", "conv6"),
        "resnet20": ("block2", "block5", "block8"),
    }
)
"""Model -> its cuts, shallowest first. ``vgg16`` and ``resnet50`` have those of ADP, Tables 1 to 6. Counted from zero, as its
text can also be read, the features at ``bottleneck4`` have the same shape."""


def halves(model: nn.Module, name: str, cut: str) -> tuple[nn.Sequential, nn.Sequential]:
    """Cut a classifier ``name`` in two, of which ``server(client(images))`` equals ``model(images)`` bit for bit.

    Both halves hold the very submodules of the model: training one trains the model, and moving one moves the model's layers.

    Returns the client half, images (B, C, H, W) -> features (B, Z, H', W'), and the server half, features -> logits. ``ModelError``
    when the model or the cut is unknown, or ``model`` is not what ``build_model`` gives for ``name``.
    """
    match = re.fullmatch(r"([a-z]+)(\d+)", checked_cut(name, cut))
    assert match is not None  # Every name in CUTS is a word and a number.
    layers = list(_layers(model, name))
    position = _UNITS[match[1]](layers, int(match[2]))
    client, server = nn.Sequential(*layers[:position]), nn.Sequential(*layers[position:])
    # A new container is in train mode whatever its layers are in; calling train() would change theirs.
    client.training = server.training = model.training
    return client, server


def checked_cut(name: str, cut: str) -> str:
    """Return ``cut``, when model ``name`` has it; raise ``ModelError`` with the cuts that there are when it does not."""
    if name not in CUTS:
        raise ModelError(f"model {name!r} cannot be cut between feature maps; these can: {', '.join(CUTS)}")
    if cut not in CUTS[name]:
        raise ModelError(f"cut is {cut!r}; {name} can be cut at {', '.join(CUTS[name])}")
    return cut


def _layers(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """The layers of a classifier in the order in which its ``forward`` calls them, as far as cuts need them apart."""
    try:
        yield from _CHAINS[name](model)
    except (AttributeError, TypeError) as error:
        raise ModelError(f"{type(model).__name__} is not the model {name!r} that build_model makes") from error


def _sequential(model: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(model, nn.Sequential):
        raise TypeError(type(model).__name__)
    yield from model


def _vgg(model: nn.Module) -> Iterator[nn.Module]:
    yield from model.features  # type: ignore[misc]  # nn.Module types attributes as tensors or modules
    yield from (model.avgpool, nn.Flatten())  # type: ignore[misc]
    yield from model.classifier  # type: ignore[misc]


def _resnet(model: nn.Module) -> Iterator[nn.Module]:
    yield from (model.conv1, model.bn1, model.relu, model.maxpool)  # type: ignore[misc]
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        yield from stage  # type: ignore[misc]
    yield from (model.avgpool, nn.Flatten(), model.fc)  # type: ignore[misc]


_CHAINS: Mapping[str, Callable[[nn.Module], Iterator[nn.Module]]] = {
    "vgg16": _vgg,
    "resnet50": _resnet,
    "efficientnet_lite0": lambda model: iter(model.as_sequential()),  # type: ignore[operator]
    "vgg_small": _sequential,
    "resnet20": _sequential,
}


def _behind_relu_of_convolution(layers: Layers, number: int) -> int:
    convolutions = [place for place, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    first = convolutions[number - 1]
    return next(place for place in range(first, len(layers)) if isinstance(layers[place], nn.ReLU)) + 1


def _behind_block(layers: Layers, number: int) -> int:
    from torchvision.models.resnet import Bottleneck  # type: ignore[import-untyped]

    return [place for place, layer in enumerate(layers) if isinstance(layer, (Bottleneck, ResidualBlock))][
        number - 1
    ] + 1


_UNITS: Mapping[str, Callable[[Layers, int], int]] = {
    "conv": _behind_relu_of_convolution,
    "bottleneck": _behind_block,
    "block": _behind_block,
    # The stem and its normalisation come first, then the stages.
    "stage": lambda _, number: 2 + number,
}

SMALLEST: Mapping[str, int] = {"vgg16": 32, "vgg_small": 8}
"""Side in pixels of the smallest images that a model takes; those that are not named take any."""


@dataclass(frozen=True)
class AdversaryBuilder:
    """Builds adversaries of a classifier that is cut between feature maps (B, Z, H', W'), in that classifier's architecture.

    "split" is the server half with new weights. "tuned" is the same with the weights of the attacked model, except for its last
    layer. "full" is a whole model that takes the features in place of images. Where the features are too small for it, each value
    is first repeated over a square of the smallest side that makes them fit.

    Attributes:
        name: A key of ``CUTS``; ``cut`` is one of ``CUTS[name]``. The other fields are as of ``build_model``.
        weights: State dict of the whole attacked model; needed for "tuned" alone.

    Source: ADP's adversaries, "split" and "full". Which initial weights they have is not stated; ImageNet's in all but "full"
    explain its accuracies.
    """

    name: str
    cut: str
    input_shape: ImageShape
    width: int = 0
    norm: str = "group"
    weights: NamedTensors | None = None

    def __call__(self, architecture: str, num_values: int, seed: int) -> nn.Module:
        """A network, features (B, ...) -> logits (B, num_values), in train mode on the CPU; ``seed`` alone decides its new
        weights.

        Raises:
            ModelError: When the architecture is unknown, the cut is, or "tuned" has no weights to start from.
        """
        if architecture == "full":
            return self._full(num_values, seed)
        if architecture not in ("split", "tuned"):
            raise ModelError(f"architecture is {architecture!r}; allowed: 'split', 'tuned', 'full'")
        model = self._build(num_values, self.input_shape, seed)
        if architecture == "tuned":
            if self.weights is None:
                raise ModelError(
                    "architecture is 'tuned', but there are no weights of the attacked model to start from"
                )
            last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
            kept = {name: tensor for name, tensor in self.weights.items() if not name.startswith(f"{last}.")}
            model.load_state_dict(model.state_dict() | kept)
        return halves(model, self.name, self.cut)[1]

    def _build(self, num_values: int, shape: ImageShape, seed: int) -> nn.Module:
        return build_model(
            self.name, num_classes=num_values, input_shape=shape, width=self.width, norm=self.norm, seed=seed
        )

    def _full(self, num_values: int, seed: int) -> nn.Module:
        client, _ = halves(self._build(num_values, self.input_shape, seed), self.name, self.cut)
        with torch.no_grad():
            features = client.eval()(torch.zeros(1, *self.input_shape))
        _, channels, height, width = features.shape
        factor = math.ceil(SMALLEST.get(self.name, 1) / min(height, width))
        whole = self._build(num_values, (channels, factor * height, factor * width), seed)
        return whole if factor == 1 else nn.Sequential(nn.Upsample(scale_factor=factor), whole)
