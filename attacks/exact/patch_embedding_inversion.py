"""Pixels of a vision transformer's input, from the gradients of its patch projection and of its position embedding."""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.linear_layer import Read, one_step_gradient, random_images
from attacks.gradient.trial_gradients.matching import attackable
from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate, NotApplicableError, require_trained
from defenses.checks import algorithm
from defenses.module_calls import calls_of
from defenses.tensors import ImageShape, Numbers, Shape, Tensors

BATCH = 2
"""Number of images by which layers are found: a batch statistic of one 1 x 1 map is undefined."""
SAME = 1e-3
"""Largest difference between two gradients, in units of their length, at which they are the same up to rounding."""


@dataclass(frozen=True)
class PatchEmbedding:
    """A layer e_t = W x_t (+ b) of each patch x_t, to which row ``first`` + t of a trained parameter is added.

    The gradient by that row is then the gradient by e_t, whatever the network does with the sum.

    Attributes:
        name: Of the layer's module.
        module: It, an ``nn.Conv2d`` or an ``nn.Linear``.
        positions: Name of the parameter.
        first: Row of the first patch; rows before it belong to class tokens.
        columns: The parameter is (..., D, T) rather than (..., T, D); a convolution's map (D, h, w) is such a one.
        pixels: (T, P) int64, the pixel of the flattened image (C, H, W) that is at each place of each patch, from 1; 0: padding.
        count: C * H * W.
        width: D, the size of a token.
        output: Shape of the layer's output for one image: (1, D, h, w) or (1, T, D).
    """

    name: str
    module: nn.Module
    positions: str
    first: int
    columns: bool
    pixels: Tensor
    count: int
    width: int
    output: Shape

    @property
    def weight(self) -> str:
        """Name of W."""
        return f"{self.name}.weight".lstrip(".")

    def slopes(self, gradient: Tensor) -> Tensor:
        """dL/de_t (T, D) of the gradient by the position embedding, in double precision on the CPU."""
        return _rows(gradient.double().cpu(), self.width, self.columns)[self.first : self.first + len(self.pixels)]

    def signals(self, slopes: Tensor) -> Tensor:
        """dL/de_t (T, D) in the shape of the layer's output for one image."""
        return (slopes.T if len(self.output) == 4 else slopes).reshape(self.output)

    def image(self, patches: Tensor) -> Tensor:
        """The flattened image (1, C * H * W) of patches (T, P): the mean where patches overlap, 0 where none is."""
        places, size = self.pixels.flatten(), self.count + 1
        sums = patches.new_zeros(size).index_add(0, places, patches.flatten())
        counts = patches.new_zeros(size).index_add(0, places, torch.ones_like(patches).flatten())
        return (sums / counts.clamp_min(1))[None, 1:]


def patch_embedding(model: nn.Module, input_shape: ImageShape, like: Tensor) -> PatchEmbedding:
    """Find the patch embedding of a model from ``attackable``, which is left as it is; ``like`` has its device and dtype.

    A layer counts that sees pixels, patch by patch, and whose outputs have the same gradient as rows of one trained parameter.

    Raises:
        AttackError: When there is none; the message says what is missing.
    """
    probed = _with_slopes(model)
    layers = (nn.Conv2d, nn.Linear)
    names: dict[nn.Module, str] = {part: name for name, part in probed.named_modules() if isinstance(part, layers)}
    patches = _patches(probed, names, input_shape, like)
    if not patches:
        raise NotApplicableError(f"no layer of {type(model).__name__} sees patches of the image's pixels")
    trained = {name: value for name, value in probed.named_parameters() if value.requires_grad}
    with torch.enable_grad(), calls_of(part for part, name in names.items() if name in patches) as seen:
        logits = probed(random_images(input_shape, like)[:BATCH].requires_grad_())
        weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype, device=logits.device)
        wanted = [*(out for _, _, out in seen), *trained.values()]
        slopes = torch.autograd.grad((logits.flatten() * weights).sum(), wanted, allow_unused=True)
    of_parameters = dict(zip(trained, slopes[len(seen) :], strict=True))
    for (module, _, out), slope in zip(seen, slopes[: len(seen)], strict=True):
        weight: Any = module.weight
        name, width = names[module], int(weight.shape[0])
        if slope is None or len(patches[name]) * width != slope[0].numel():
            continue
        for positions, first, columns in _equal_rows(_rows(slope.sum(0), width, slope.dim() == 4), of_parameters):
            shape, count = (1, *out.shape[1:]), math.prod(input_shape)
            layer = model.get_submodule(name)
            return PatchEmbedding(name, layer, positions, first, columns, patches[name], count, width, shape)
    raise NotApplicableError(
        f"no trained position embedding of {type(model).__name__} is added to the output of "
        f"{' or '.join(map(repr, patches))}, which sees the pixels"
    )


def _with_slopes(model: nn.Module) -> nn.Module:
    """A copy without parameters that are all zero: behind a head or a scale of zeros every gradient would be zero."""
    probed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in probed.parameters():
            if value.is_floating_point() and not value.any():
                value.copy_(0.05 * torch.randn(value.shape, generator=generator))
    return probed


def _patches(model: nn.Module, names: Mapping[nn.Module, str], input_shape: ImageShape, like: Tensor) -> Tensors:
    """Layers that see pixels, and are called once: name -> ``PatchEmbedding.pixels``."""
    count = math.prod(input_shape)
    numbers = 1 + torch.arange(count, device=like.device, dtype=like.dtype)
    with torch.no_grad(), calls_of(names) as seen:
        model(numbers.view(1, *input_shape).repeat(BATCH, 1, 1, 1))
    calls = Counter(module for module, _, _ in seen)
    by_layer = {names[layer]: _pixels(layer, into[:1], count) for layer, into, _ in seen if calls[layer] == 1}
    return {name: pixels.cpu() for name, pixels in by_layer.items() if pixels is not None}


def _pixels(module: nn.Module, into: Tensor, count: int) -> Tensor | None:
    """The pixel (T, P) at each place of each patch, where an input (1, ...) holds numbers of ``count`` pixels; else None."""
    if isinstance(module, nn.Conv2d):
        padding = (0, 0) if module.padding == "valid" else module.padding
        if into.dim() != 4 or module.groups != 1 or module.padding_mode != "zeros" or isinstance(padding, str):
            return None
        # A convolution's input must be the image itself, in its order.
        if not torch.equal(into.flatten(), 1 + torch.arange(count, device=into.device, dtype=into.dtype)):
            return None
        sizes: Any = module.kernel_size, module.dilation, padding, module.stride
        return F.unfold(into.double(), *sizes)[0].T.round().long()
    if into.dim() != 3:
        return None
    numbers = into[0].double().round()
    if not torch.equal(numbers, into[0].double()) or numbers.min() < 0 or not 1 <= numbers.max() <= count:
        return None
    return numbers.long()


def _rows(gradient: Tensor, width: int, columns: bool) -> Tensor:
    """(R, D) of a tensor (..., D, R) or (..., R, D) with nothing but ones in front."""
    return gradient.reshape(width, -1).T if columns else gradient.reshape(-1, width)


def _equal_rows(slopes: Tensor, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[str, int, bool]]:
    """The parameters that have all of ``slopes`` (T, D) as consecutive rows: name, first row, and whether they are columns."""
    tokens, width = slopes.shape
    length = float(slopes.norm())
    for name, gradient in gradients.items():
        shape = [] if gradient is None else [size for size in gradient.shape if size != 1]
        for columns in (False, True):
            if gradient is None or not shape or shape[0 if columns else -1] != width:
                continue
            rows = _rows(gradient, width, columns)
            for first in range(len(rows) - tokens + 1):
                if float((rows[first : first + tokens] - slopes).norm()) < SAME * length:
                    yield name, first, columns


ROUNDING = 2.0**-24
"""Half the distance of single-precision numbers at 1: the least relative error of what a client computes."""


@algorithm
class PatchEmbeddingInversion(SolvingAttack):
    """Solve for all pixels of one image, from an update of a vision transformer with a trained position embedding.

    A token is e_t = W x_t + b + p_t, of patch x_t and position embedding p_t. So dL/dp_t = dL/de_t: the update holds the gradient
    of each token. The gradient of the patch projection, dL/dW = sum_t dL/de_t x_t^T, is then a linear system for the patches,

        G^T X = dL/dW,    G (T, D) with rows dL/dp_t,  X (T, P) with rows x_t,  dL/dW (D, P).

    It determines X if the rows of G are linearly independent, whatever follows the embedding (norm before or after attention, class
    token or mean of the tokens, any depth), and whether or not W has an inverse. A LayerNorm on the tokens leaves the rows of G
    orthogonal to the vector of ones, so that at most D - 1 patches are determined. For more patches, or under noise, X is the
    posterior mean for normalised pixels of variance 1 (ridge regression), with the error's variance from the part of dL/dW
    outside of the span of G.

    Exact for one example where ``rank`` equals ``tokens``, up to the rounding of weights, whose difference the update is, times
    ``condition``. ``gradient_distance`` near 0 shows that the image explains the whole update. For a batch G and dL/dW are sums
    over the examples, which have no exact solution: the attack returns one image, a mixture, and ``residual`` is far from 0. The
    mixture resembles an image whose gradient is much longer than the others'.

    Reports "does not apply" if no layer sees patches of pixels, if no trained position embedding is added to its outputs, and for
    an update of several steps. It also does so if the update leaves out one of the two, or if one of their gradients is zero:
    frozen parameters, or a head whose weights are still zero, as torchvision starts it.

    Diagnostics: ``tokens`` (T), ``rank`` (of G: below T pixels are missing) and ``condition`` (of G). ``residual`` is the length of
    dL/dW - G^T X over that of dL/dW. ``gradient_distance`` is 1 - cosine of the gradients of guess and update. ``outside_share``
    is that of pixels beyond [0, 1] by 0.01 or more.
    """

    source = (
        "Lu, Zhang, Zhao, He, Cheng, APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers, CVPR 2022: the gradient "
        "of the position embedding is that of the tokens, and gives a linear system for them. The paper solves it at the first "
        "attention, of networks whose tokens are its very inputs; to solve it at the patch projection, and the ridge, are ours"
    )

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        observation.require_one_step()
        model = attackable(observation.model, observation.train_mode)
        layer = patch_embedding(model, observation.input_shape, next(model.parameters()))
        pair = (("patch projection", layer.weight), ("position embedding", layer.positions))
        for what, name in pair:
            if name not in observation.update:
                raise NotApplicableError(f"the update leaves out the {what} {name!r}")
        gradient = one_step_gradient(observation)
        for what, name in pair:
            require_trained(gradient, f"the {what}", name)
        slopes, weight = layer.slopes(gradient[layer.positions]), gradient[layer.weight].double().cpu().flatten(1)
        for (what, name), value in zip(pair, (weight, slopes), strict=True):
            if not value.any():
                raise NotApplicableError(
                    f"the gradient of the {what} {name!r} is zero: it is frozen, or the weights of the head are "
                    "still zero"
                )
        patches = solved_patches(slopes, weight, numbers)
        several = observation.num_examples > 1
        failure = (
            f"one image is a mixture of {observation.num_examples}: a batch has no exact solution" if several else ""
        )
        image, signals = layer.image(patches), layer.signals(slopes)
        return recovered(observation, Read(model, gradient, []), layer.module, image, signals, numbers, failure)


def solved_patches(slopes: Tensor, weight: Tensor, numbers: Numbers) -> Tensor:
    """The posterior mean of X (T, P) for slopes^T X = weight + error, with entries of X of mean 0 and variance 1.

    ``slopes`` (T, D) and ``weight`` (D, P) are in double precision; ``numbers`` receives ``tokens``, ``rank``, ``condition`` and
    ``residual``.
    """
    tokens, width = slopes.shape
    left, values, right = torch.linalg.svd(slopes, full_matrices=False)
    rank = int((values > max(tokens, width) * ROUNDING * values[0]).sum())
    inside = right @ weight
    # What the span of the tokens' gradients leaves of dL/dW is error. Where it leaves nothing, rounding is all that is known.
    error = weight - right[:rank].T @ inside[:rank]
    variance = float(error.square().sum()) / (max(width - rank, 1) * weight.shape[1])
    variance = max(variance, float((ROUNDING * weight).square().mean()))
    patches: Tensor = left @ ((values / (values.square() + variance))[:, None] * inside)
    numbers |= {
        "tokens": float(tokens),
        "rank": float(rank),
        "condition": float(values[0] / values[rank - 1]),
        "residual": float((weight - slopes.T @ patches).norm() / weight.norm()),
    }
    return patches
