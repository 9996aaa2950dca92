"""Networks of torchvision and timm for private training: random weights, no in-place layers, no BatchNorm."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clients.process.machine import memory_of_machine
from defenses.tensors import ImageShape

LIBRARIES = ("torchvision", "timm")

_MISFITS = (RuntimeError, AssertionError, ValueError, IndexError)
"""What networks raise when the image is too small or is not a multiple of their patch."""


class ModelError(ValueError):
    """A model that does not exist, or that cannot be built with these settings."""


class ImageSizeError(ModelError):
    """Images of a size that a model does not take."""


def group_norm(channels: int, eps: float = 1e-5, affine: bool = True) -> nn.GroupNorm:
    """GroupNorm with at most 32 groups of at least four channels each, as far as the number of channels divides.

    Wu and He (2018) use 32 groups. One channel per group is instance normalisation, which turns a 1x1 map into zeros;
    hence 16 channels get 4 groups here, where the fixer of Opacus makes 16.
    """
    groups = next(g for g in range(max(1, min(32, channels // 4)), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels, eps, affine)


class FreshOutput(nn.Module):
    """Copies its input, so that what follows may write to it.

    torchvision adds shortcuts with ``+=`` and rectifies in place; backward hooks, which Opacus sets on every layer that
    has parameters, forbid both on the output of that layer.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Maps a tensor to its copy."""
        return features.clone()


def replace_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm layer by GroupNorm, in place; scale and shift are kept, running statistics dropped.

    Fused layers of timm (normalisation, dropout and activation in one) keep their other parts. Returns ``model``, or the new
    layer when ``model`` is itself a BatchNorm.
    """
    if isinstance(model, _BatchNorm):
        norm = group_norm(model.num_features, model.eps, model.affine)
        if model.affine:
            norm.weight, norm.bias = model.weight, model.bias
        norm.train(model.training)
        # timm fuses normalisation, dropout and activation in subclasses of BatchNorm.
        return nn.Sequential(norm, *model.children(), FreshOutput())
    for name, child in model.named_children():
        setattr(model, name, replace_batch_norm(child))
    return model


def names_in(library: str) -> list[str]:
    """Names of the classifiers of a library."""
    if library == "torchvision":
        import torchvision  # type: ignore[import-untyped]

        return list(torchvision.models.list_models(module=torchvision.models))
    import timm

    return list(timm.list_models())


def library_of(name: str, libraries: Sequence[str]) -> str:
    """The first of ``libraries`` that has a classifier of that name, or ""."""
    for library in libraries:
        # A generator would import timm (seconds) even when torchvision has the model.
        if library == "timm":
            import timm

            if timm.is_model(name):
                return library
        elif name in names_in(library):
            return library
    return ""


def build_library_model(library: str, name: str, num_classes: int, input_shape: ImageShape) -> nn.Module:
    """Build a classifier and prove by one forward pass that images of ``input_shape`` fit; else ``ImageSizeError``."""
    build = _torchvision if library == "torchvision" else _timm
    try:
        model = build(name, num_classes, input_shape)
        _forward(model, input_shape, num_classes)
    except _MISFITS as error:
        channels, height, side = input_shape
        fits = _next_size(build, name, num_classes, channels, min(height, side))
        advice = f"the next size that fits is {fits}x{fits}" if fits else "no square size up to 512 fits"
        raise ImageSizeError(f"{library}:{name} does not take images of {height}x{side}; {advice} ({error})") from error
    return model


def _forward(model: nn.Module, input_shape: ImageShape, num_classes: int) -> None:
    training = model.training
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        logits = model.eval()(torch.zeros(1, *input_shape, device=device))
    model.train(training)
    if tuple(logits.shape) != (1, num_classes):
        raise ValueError(f"it answers with shape {tuple(logits.shape)} where (1, {num_classes}) is expected")


def _next_size(build: Callable[..., nn.Module], name: str, num_classes: int, channels: int, size: int) -> int:
    """The smallest square size above ``size`` that fits, or 0; tried on the meta device: shapes without arithmetic."""
    try:
        template: nn.Module | None = build(name, num_classes, (channels, 512, 512), fixed=False).to("meta")
    except _MISFITS:
        template = None
    # Networks that are built for one size have patches of an even number of pixels; the others are tried at every size.
    step = 1 if template is not None else 2
    for candidate in range(size // step * step + step, 513, step):
        try:
            shape = (channels, candidate, candidate)
            model = build(name, num_classes, shape).to("meta") if template is None else template
            _forward(model, shape, num_classes)
        except _MISFITS:
            continue
        return candidate
    return 0


def _torchvision(name: str, num_classes: int, input_shape: ImageShape, fixed: bool = True) -> nn.Module:
    import torchvision

    arguments: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if name in {"googlenet", "inception_v3"}:
        # Auxiliary heads would make the training output a tuple and need larger images.
        arguments |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        if not fixed or input_shape[1] != input_shape[2]:
            raise ValueError("it takes square images of one size")
        arguments["image_size"] = input_shape[1]
    if name.startswith("maxvit"):
        arguments["input_size"] = input_shape[1:]
    model: nn.Module = torchvision.models.get_model(name, **arguments)
    _adapt_first_convolution(model, input_shape[0])
    return without_in_place(model)


def _timm(name: str, num_classes: int, input_shape: ImageShape, fixed: bool = True) -> nn.Module:
    import timm

    arguments: dict[str, Any] = {"pretrained": False, "num_classes": num_classes, "in_chans": input_shape[0]}
    config = timm.get_pretrained_cfg(name)
    if config is not None and config.fixed_input_size:
        if not fixed:
            raise ValueError("it takes images of one size")
        arguments["img_size"] = input_shape[1:]
    model: nn.Module = timm.create_model(name, **arguments)
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if isinstance(patch, tuple) and any(s % p for s, p in zip(input_shape[1:], patch, strict=True)):
        # Some of timm's transformers accept this and never look at the rest of the image.
        raise ValueError(f"its patches of {'x'.join(map(str, patch))} pixels would leave a margin of the image unseen")
    return without_in_place(model)


def without_in_place(model: nn.Module) -> nn.Module:
    """Switches every in-place layer of ``model`` to its plain form: backward hooks and double backward forbid it."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]  # nn.Module types its attributes as tensors or modules
    return model


def _adapt_first_convolution(model: nn.Module, channels: int) -> None:
    """Gives the layer that sees the image ``channels`` inputs, and PyTorch's own initialisation."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    if first.in_channels != channels:
        first.in_channels = channels
        first.weight = nn.Parameter(torch.empty(first.out_channels, channels, *first.kernel_size))
        first.reset_parameters()


FLOAT_BYTES = 4
HELD = 3
"""A client that trains holds the weights it was sent, those it trains, and their gradients."""
USUAL_VALUES, USUAL_WIDTH, USUAL_DEPTH = 3 * 256 * 256, 1024, 24
"""Of an image's values, a model's width and its blocks: up to these any model of ours is built and tried within a gibibyte."""


class TooLargeError(ModelError):
    """A model, or a batch of images, that this machine cannot hold."""


def is_usual(shape: Sequence[int], width: int, depth: int = 0) -> bool:
    """Whether a model of these sizes needs no such check; the check makes torch load modules for seconds."""
    return math.prod(shape) <= USUAL_VALUES and width <= USUAL_WIDTH and depth <= USUAL_DEPTH


def require_fits(
    build: Callable[[], Sequence[nn.Module]], model: str, shape: ImageShape, image_size: int, batch_size: int, width: int,
    depth: int = 0,
) -> None:  # fmt: skip
    """Raise ``TooLargeError`` for a model, whose trained modules ``build`` makes, or a batch too large for this machine."""
    if is_usual(shape, width, depth):
        return
    try:
        with torch.device("meta"):
            parameters = sum(weight.numel() for module in build() for weight in module.parameters())
    except Exception:
        # Of models that read their own numbers while they are built, and of those that are refused elsewhere.
        parameters = 0
    batch = batch_size * math.prod(shape)
    needed, there = FLOAT_BYTES * (HELD * parameters + batch), memory_of_machine()
    if needed > there:
        raise TooLargeError(
            f"image-size is {image_size}, width is {width}, batch-size is {batch_size}: {model!r} has "
            f"{parameters:,} parameters on images of {shape[1]}x{shape[2]}, and to hold them and a batch takes "
            f"{needed / 2**30:.1f} GiB; this machine has {there / 2**30:.1f} GiB in all. Lower image-size, width or batch-size"
        )
