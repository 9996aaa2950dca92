"""Classifiers by name: the papers' own small networks, and any torchvision or timm classifier, never pretrained.

Every network is initialised from a seed alone, holds no in-place layer (Opacus hooks forbid it), and either keeps
BatchNorm or has GroupNorm in its place, which DP-SGD needs because BatchNorm mixes examples.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clients.models.library import (
    LIBRARIES,
    ImageSizeError,
    ModelError,
    build_library_model,
    group_norm,
    library_of,
    names_in,
    replace_batch_norm,
)
from clients.models.own import build_own_model, offered_models, own_factory
from clients.models.vision_transformer import vit_lite
from defenses.registry import RegistryError
from defenses.spec import nearest
from defenses.tensors import ImageShape

__all__ = ["ModelError", "build_model", "model_names", "replace_batch_norm"]

Norm = Callable[[int], nn.Module]
"""Channels -> a normalisation layer."""
Layers = list[nn.Module]
_NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": group_norm}


def build_model(
    name: str, *, num_classes: int, input_shape: ImageShape, width: int = 0, norm: str = "group", seed: int = 0
) -> nn.Module:
    """A randomly initialised classifier (B, C, H, W) -> logits (B, num_classes), in train mode, on the CPU.

    Args:
        name: ``mlp``, ``cnn``, ``lenet``, ``convnet``, ``resnet20``, ``vgg_small``, ``vit_lite``, ``efficientnet_lite0``,
            ``torchvision:NAME``, ``timm:NAME``, or a bare NAME, which is looked up in torchvision first and then in timm.
            Nothing is ever downloaded. Or ``path/file.py:NAME`` or ``package.module:NAME``: the user's own class or function
            (``clients.models.own``). Or the name under which another package offers one (entry points ``fedveil.models``).
        num_classes: Number of logits, at least 2.
        input_shape: (C, H, W) of one image; the first convolution is made for C channels.
        width: ``mlp``: neurons of a hidden layer, 1 to 4096 (0: 200). ``convnet``: channels of the first layer, 1 to 1024 (0:
            64). ``resnet20``: factor on 16, 32 and 64 channels, 1 to 16 (0: 1). ``vgg_small``: channels of the first layer, 1
            to 512 (0: 16). ``vit_lite``: size of a token, a multiple of 4 up to 1024 (0: 256). Other models take 0 only.
        norm: "batch" or "group"; ``mlp``, ``cnn`` and ``lenet`` have no normalisation layer, ``vit_lite`` has LayerNorm.
        seed: The weights depend on it alone. The caller's random state is left as it was.

    Raises:
        ModelError: When the name is unknown (with the closest names), or the classes, norm, width or input size do not fit.
        RegistryError: When another package offers a model under a name that is taken.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ModelError(f"input_shape is {tuple(input_shape)}; expected (channels, height, width), each at least 1")
    if num_classes < 2:
        raise ModelError(f"num_classes is {num_classes}; a classifier needs at least 2")
    if norm not in _NORMS:
        raise ModelError(f"norm is {norm!r}; allowed: {', '.join(map(repr, _NORMS))}")
    factory = own_factory(name)
    ours = name in _OWN or name in _LIBRARY_NAMES
    if factory and ":" not in name and (ours or library_of(name, LIBRARIES)):
        raise RegistryError(f"model {name!r}: another package offers one of this name; it must be renamed there")
    with torch.random.fork_rng(devices=[]):
        # Seeding the CPU generator alone: torch.manual_seed would also reset the caller's accelerator streams.
        torch.default_generator.manual_seed(seed)
        library, short = ("", name) if factory or name in _OWN else _locate(_LIBRARY_NAMES.get(name, name))
        if width and name not in _OF_MANY_WIDTHS:
            raise ModelError(
                f"width is {width}, but {f'{library}:{short}' if library else name} comes in one width; leave it 0"
            )
        if name in _OWN:
            return _OWN[name](num_classes, input_shape, width, _NORMS[norm])
        if factory:
            model = build_own_model(name, factory, num_classes, input_shape)
        else:
            model = build_library_model(library, short, num_classes, input_shape)
    return replace_batch_norm(model) if norm == "group" else model


def model_names() -> dict[str, str]:
    """Name -> one line with its source, for listings; libraries appear as a pattern."""
    return {
        "mlp": "two hidden layers of 200 neurons with ReLUs, width 200: the 2NN of FedAvg (McMahan et al. 2017)",
        "cnn": "two convolutions, three linear layers and ReLUs, of Flower's PyTorch quickstart (after LeCun et al. 1998)",
        "lenet": "sigmoid network of three convolutions of DLG (Zhu et al. 2019), weights uniform in [-0.5, 0.5]",
        "convnet": "8 convolutions, width 64 (Geiping et al. 2020; ATS, Gao et al. 2021, section 5.1)",
        "resnet20": "CIFAR ResNet-20, width 1 (He et al. 2016); width 4 is the ResNet20-4 of ATS (Gao et al. 2021)",
        "vgg_small": "6 convolutions in three stages of width 16, 32 and 64, after Simonyan and Zisserman 2015, for small images",
        "vit_lite": "ViT-Lite-7/4, patches of 4, width 256 (Hassani et al. 2021): vision transformer for small images",
        "efficientnet_lite0": "EfficientNet-Lite0 (timm:tf_efficientnet_lite0), whose ImageNet weights a package brings",
        "vgg16": "VGG16 (torchvision:vgg16; Simonyan and Zisserman 2015), which ADP cuts in two",
        "resnet50": "ResNet-50 (torchvision:resnet50; He et al. 2016), which ADP cuts in two",
        "torchvision:NAME": "any torchvision classifier, such as torchvision:resnet18, without pretrained weights",
        "timm:NAME": "any timm classifier, such as timm:vit_tiny_patch16_224, without pretrained weights",
        "FILE.py:NAME": "a class or function of your own, called with num_classes and input_shape where it takes them",
        "PACKAGE.MODULE:NAME": "the same of an installed package",
    } | offered_models()


def mlp(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """Two hidden layers of ``width`` neurons, a ReLU behind each, and a linear layer of ``num_classes`` values.

    Its first layer sees the pixels, which the gradient of that layer gives away (``attacks.exact``). Weights as torch initialises
    them.

    Source: McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data, section 3 ("2NN").
    """
    del norm
    width = _checked_width("mlp", width or 200, 4096)
    layers: Layers = [nn.Flatten()]
    for into, out in itertools.pairwise((math.prod(input_shape), width, width)):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def cnn(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """The network that most users of Flower meet first.

    5x5 convolutions of 6 and 16 channels, a ReLU and 2x2 max pooling after each, and linear layers of 120, 84 and ``num_classes``
    values with ReLUs between. The first linear layer sees 16 * 5 * 5 features at 32x32, as in the source, and as many as there are
    at other sizes. Weights as torch initialises them.

    Source: ``Net`` of Flower's quickstart-pytorch example and of its app template for PyTorch, after PyTorch's tutorial "Training a
    classifier"; the shape is that of LeNet-5 (LeCun et al. 1998, Gradient-based learning applied to document recognition).
    """
    del width, norm
    channels, height, side = input_shape
    if min(height, side) < 16:
        raise ImageSizeError(
            f"cnn halves images twice, so images of {height}x{side} vanish; the smallest size that fits is 16x16"
        )
    rows, columns = (((length - 4) // 2 - 4) // 2 for length in (height, side))
    layers: Layers = []
    for into, out in itertools.pairwise((channels, 6, 16)):
        layers += [nn.Conv2d(into, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for into, out in itertools.pairwise((16 * rows * columns, 120, 84)):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(84, num_classes))


def lenet(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """The network that gradient inversion was first shown on: smooth activations, so that its gradient can be matched.

    Three 5x5 convolutions of 12 channels (strides 2, 2, 1), a sigmoid after each, and one linear layer. All weights and
    biases are uniform in [-0.5, 0.5].

    Source: Zhu et al. 2019, Deep Leakage from Gradients, section 4.1 and its released code.
    """
    del width, norm
    channels, height, side = input_shape
    layers: Layers = []
    for into, stride in ((channels, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(into, 12, 5, stride, padding=2), nn.Sigmoid()]
    # A 5x5 convolution with padding 2 and stride 2 maps H to ceil(H / 2).
    positions = -(-height // 4) * -(-side // 4)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * positions, num_classes))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def convnet(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """Eight 3x3 convolutions of w, 2w, 2w, 4w, 4w, 4w | 4w, 4w channels, each group followed by 3x3 max pooling.

    Each convolution is followed by a normalisation and a ReLU. The linear layer on top sees 36w features at 32x32, as
    in the paper, and as many as there are at other sizes.

    Source: Gao et al. 2021, Privacy-preserving Collaborative Learning with Automatic Transformation Search, section 5.1
    ("ConvNet"), after Geiping et al. 2020. GroupNorm in place of BatchNorm is ours.
    """
    channels, height, side = input_shape
    width = _checked_width("convnet", width or 64, 1024)
    if min(height, side) < 9:
        raise ImageSizeError(
            f"convnet pools by 3 twice, so images of {height}x{side} vanish; the smallest size that fits is 9x9"
        )
    layers: Layers = []
    for into, out in itertools.pairwise((channels, *(factor * width for factor in (1, 2, 2, 4, 4, 4)))):
        layers += _unit(into, out, norm)
    layers.append(nn.MaxPool2d(3))
    for into, out in itertools.pairwise([4 * width] * 3):
        layers += _unit(into, out, norm)
    layers += [nn.MaxPool2d(3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * width * (height // 9) * (side // 9), num_classes))


def _unit(into: int, out: int, norm: Norm) -> Layers:
    return [nn.Conv2d(into, out, 3, padding=1), norm(out), nn.ReLU()]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut: a 1x1 convolution where the shape changes (He et al. 2016, option B)."""

    def __init__(self, into: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, padding=1, bias=False),
            norm(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            norm(out),
        )
        changes = stride != 1 or into != out
        self.shortcut = (
            nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), norm(out)) if changes else nn.Identity()
        )
        self.activation = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Maps (B, into, H, W) to (B, out, H / stride, W / stride)."""
        result: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return result


def resnet20(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """The CIFAR ResNet with three stages of three blocks of 16w, 32w and 64w channels, and a 3x3 stem.

    Convolutions are drawn normal with variance 2 / fan-out.

    Source: He et al. 2016, Deep Residual Learning, section 4.2, with projection shortcuts (option B) where the shape
    changes; width 4 is the ResNet20-4 of Gao et al. 2021.
    """
    base = 16 * _checked_width("resnet20", width or 1, 16)
    layers: Layers = [nn.Conv2d(input_shape[0], base, 3, padding=1, bias=False), norm(base), nn.ReLU()]
    for into, out in itertools.pairwise((base, base, 2 * base, 4 * base)):
        layers += [
            ResidualBlock(into, out, 1 if into == out else 2, norm),
            ResidualBlock(out, out, 1, norm),
            ResidualBlock(out, out, 1, norm),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * base, num_classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def vgg_small(num_classes: int, input_shape: ImageShape, width: int, norm: Norm) -> nn.Sequential:
    """VGG's pattern for small images: three stages of two 3x3 convolutions of w, 2w and 4w channels, each ending in 2x2 pooling.

    Each convolution is followed by a normalisation and a ReLU. Two linear layers on top, with 8w values and a ReLU between, see
    4w(H // 8)(W // 8) features. Convolutions are drawn normal with variance 2 / fan-out, biases are 0.

    Source: Simonyan and Zisserman 2015, Very Deep Convolutional Networks, section 2.1. The size, the normalisation (as in
    torchvision's vgg16_bn) and the smaller linear layers are ours.
    """
    channels, height, side = input_shape
    width = _checked_width("vgg_small", width or 16, 512)
    if min(height, side) < 8:
        raise ImageSizeError(
            f"vgg_small halves images three times, so images of {height}x{side} vanish; the smallest size that fits is 8x8"
        )
    layers: Layers = []
    for into, out in itertools.pairwise((channels, width, 2 * width, 4 * width)):
        for first in (into, out):
            layers += _unit(first, out, norm)
        layers.append(nn.MaxPool2d(2))
    positions = (height // 8) * (side // 8)
    layers += [nn.Flatten(), nn.Linear(4 * width * positions, 8 * width), nn.ReLU(), nn.Linear(8 * width, num_classes)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


_OWN: dict[str, Callable[[int, ImageShape, int, Norm], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "convnet": convnet,
    "resnet20": resnet20,
    "vgg_small": vgg_small,
    "vit_lite": vit_lite,
}
_OF_MANY_WIDTHS = _OWN.keys() - {"cnn", "lenet"}
_LIBRARY_NAMES = {"efficientnet_lite0": "timm:tf_efficientnet_lite0"}
"""Short names of networks of a library. timm's own ``efficientnet_lite0`` pads otherwise: the packaged weights are not for it."""


def _checked_width(name: str, width: int, most: int) -> int:
    if not 1 <= width <= most:
        raise ModelError(f"width is {width}; {name} takes 1 to {most}, or 0 for its default")
    return width


def _locate(name: str) -> tuple[str, str]:
    prefix, _, short = name.rpartition(":")
    owner = library_of(short, [prefix] if prefix else list(LIBRARIES)) if not prefix or prefix in LIBRARIES else ""
    if owner:
        return owner, short
    known = [*_OWN, *(f"{library}:{model}" for library in LIBRARIES for model in names_in(library))]
    shown = {k.rpartition(":")[2]: k for k in reversed(known)}
    close = [shown[match] for match in nearest(short, shown, 3)]
    hint = f", did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ModelError(f"unknown model {name!r}{hint}; known: {', '.join(model_names())}")
