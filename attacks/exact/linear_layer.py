"""Linear layers of a network and their gradients; layers are found by running the network, not by its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.gradient.trial_gradients.matching import attackable
from attacks.observations import AttackError, ClientUpdate, NotApplicableError, require_trained
from defenses.module_calls import calls_of
from defenses.tensors import ImageShape, Update

GAP = 20.0
"""Least ratio of the examples' smallest singular value to the next one, which is due to rounding or noise. Below it, directions of
noise would count as examples; updates in single precision have 1e3 and more."""
PROBES = 16
"""Number of random images by which layers are distinguished."""


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer Z = X W^T + bias with one input vector for each example.

    Attributes:
        name: Of the module.
        module: It.
        sees_pixels: Its input is the image and nothing else: X (B, C * H * W) are the pixels in order.
        is_head: Its outputs are the logits.
        rectified: A ReLU follows: the gradient by Z is exactly zero wherever Z <= 0, and as a rule elsewhere not.
    """

    name: str
    module: nn.Linear
    sees_pixels: bool
    is_head: bool
    rectified: bool

    def outputs(self, inputs: Tensor) -> Tensor:
        """Z (B, M) of inputs (B, N), in double precision on the CPU; of a layer with a bias."""
        weight, bias = (tensor.detach().double().cpu() for tensor in (self.module.weight, self.module.bias))
        return inputs @ weight.T + bias


@dataclass(frozen=True)
class LayerGradient:
    """The gradient of a linear layer in an update; double precision, on the CPU.

    Attributes:
        weight: (M, N), the sum over examples of dL/dz_i x_i^T.
        bias: (M,), the sum of dL/dz_i; None where the layer has none.
    """

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class LowRank:
    """``weight`` = left @ right by singular value decomposition, without the components of rounding and noise.

    Attributes:
        left: (M, R), orthonormal columns.
        right: (R, N).
        gap: The first singular value that is left out over the last that is not, below 1 / ``GAP`` unless less was asked for.
    """

    left: Tensor
    right: Tensor
    gap: float

    @property
    def rank(self) -> int:
        """Rank R of the factors."""
        return self.left.shape[1]


def linear_layers(model: nn.Module, input_shape: ImageShape, like: Tensor) -> list[LinearLayer]:
    """The ``nn.Linear`` layers called once, with one vector (N,) for each example, in the order of the calls.

    ``model`` is from ``attackable`` and left as it is; ``like`` has its device and dtype.
    """
    images = random_images(input_shape, like)
    with torch.enable_grad():
        # Only the layers' own outputs must be distinguished, so that parameters may or may not need gradients.
        logits, calls = called(model, images.clone().requires_grad_())
        layers = [(name, seen[0]) for name, seen in calls.items() if len(seen) == 1 and seen[0][1].dim() == 2]
        outputs = [out for _, (_, _, out) in layers]
        weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype, device=logits.device)
        slopes = torch.autograd.grad((logits.flatten() * weights).sum(), outputs, allow_unused=True) if outputs else []
    pixels = images.flatten(1)
    return [
        LinearLayer(
            name, module, torch.equal(into, pixels), torch.equal(out, logits), _is_rectified(out.detach(), slope)
        )
        for (name, (module, into, out)), slope in zip(layers, slopes, strict=True)
    ]


def random_images(input_shape: ImageShape, like: Tensor) -> Tensor:
    """Images (B, C, H, W) with pixels of both signs that distinguish layers; fixed, so that all runs find the same layer."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(PROBES, *input_shape, generator=generator, dtype=like.dtype).to(like.device)


def called(model: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, list[Any]]]:
    """Logits, and for each linear layer its calls by name: (module, input, output)."""
    names: dict[nn.Module, str] = {layer: name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    with calls_of(names) as seen:
        logits: Tensor = model(images)
    calls: dict[str, list[Any]] = {}
    for call in seen:
        calls.setdefault(names[call[0]], []).append(call)
    return logits, calls


def _is_rectified(out: Tensor, slope: Tensor | None) -> bool:
    """Whether a ReLU follows a layer of these outputs (B, M), by the gradient (B, M) of some function of the logits."""
    if slope is None:
        return False
    off = out <= 0
    # Units further up that are off can leave a gradient of zero elsewhere, too.
    return bool(off.any() and not slope[off].any() and (slope[~off] != 0).double().mean() > 0.5)


def one_step_gradient(observation: ClientUpdate) -> Update:
    """The mean gradient of an update of one step; where the learning rate is unknown, up to one factor for all parameters.

    Raises:
        AttackError: When the update fits neither the model nor an attack on one step.
    """
    if observation.num_examples < 1:
        raise AttackError(f"the update covers {observation.num_examples} examples; at least 1 is needed")
    observation.require_one_step()
    return unscaled_gradient(observation)


def unscaled_gradient(observation: ClientUpdate) -> Update:
    """The gradients behind an update, summed over its steps, up to one factor for all parameters unless there is one step.

    Raises:
        AttackError: When the update does not fit the model, or weight decay cannot be subtracted.
    """
    if observation.local_steps > 1 and observation.weight_decay:
        raise NotApplicableError("weight decay of several local steps cannot be subtracted")
    # Inputs do not depend on the length of the gradient: any learning rate serves, unless weight decay must be subtracted.
    if observation.learning_rate is None and observation.weight_decay:
        raise NotApplicableError("the learning rate is unknown, so weight decay cannot be subtracted")
    return observation.gradient(1.0 if observation.learning_rate is None else None)


@dataclass(frozen=True)
class Read:
    """An update, of one step unless stated otherwise, read for an attack on a linear layer.

    Attributes:
        model: The client's global model, from ``attackable``.
        gradient: Name -> mean gradient; where the learning rate is unknown, up to one factor for all.
        layers: ``linear_layers`` of the model.
    """

    model: nn.Module
    gradient: Update
    layers: list[LinearLayer]

    @classmethod
    def of(cls, observation: ClientUpdate, *, several_steps: bool = False) -> Read:
        """Raises: AttackError when the update fits neither the model nor the attack, as with several steps unless allowed."""
        gradient = unscaled_gradient(observation) if several_steps else one_step_gradient(observation)
        model = attackable(observation.model, observation.train_mode)
        return cls(model, gradient, linear_layers(model, observation.input_shape, next(iter(gradient.values()))))

    def of_layer(self, layer: LinearLayer) -> LayerGradient:
        """The layer's part of the gradient; ``AttackError`` where one of its parameters is frozen."""
        parts = ("weight",) if layer.module.bias is None else ("weight", "bias")
        names = [f"{layer.name}.{part}".lstrip(".") for part in parts]
        require_trained(self.gradient, f"the layer {layer.name!r}", *names)
        weight, bias = self.gradient[names[0]], self.gradient[names[1]] if len(names) == 2 else None
        return LayerGradient(weight.double().cpu(), None if bias is None else bias.double().cpu())

    def first_layer(self) -> LinearLayer:
        """The first trained linear layer with one vector for each example."""
        trained = [layer for layer in self.layers if f"{layer.name}.weight".lstrip(".") in self.gradient]
        if not trained:
            name, which = type(self.model).__name__, "no trained linear layer" if self.layers else "no linear layer"
            raise NotApplicableError(f"{which} of {name} sees one vector of each example")
        return trained[0]

    def on_pixels(self) -> LinearLayer:
        """The first linear layer whose inputs are the pixels."""
        seeing = [layer for layer in self.layers if layer.sees_pixels]
        if not seeing:
            raise NotApplicableError(
                f"no linear layer of {type(self.model).__name__} sees the pixels; HeadInversion attacks features "
                "after convolutions"
            )
        return seeing[0]


def low_rank(gradient: LayerGradient, num_examples: int, least_gap: float = GAP) -> LowRank:
    """Factors of a layer's gradient at its numerical rank R <= ``num_examples``: the examples' part.

    A mean over B examples has rank B at most: the next singular value is what rounding and noise made, and those that do not stand
    out from it by ``least_gap`` are left out, too. Equal examples, and such as the model is sure of, make R smaller than B.

    Source: Dimitrov et al. 2024 (SPEAR), Theorem 3.1.
    """
    rows, columns = gradient.weight.shape
    if not gradient.weight.any():
        raise NotApplicableError("the layer's gradient is zero")
    if num_examples >= min(rows, columns):
        raise NotApplicableError(
            f"a batch of {num_examples} fills the rank of a layer of {columns} inputs and {rows} outputs"
        )
    left, values, right = torch.linalg.svd(gradient.weight, full_matrices=False)
    floor = max(float(values[num_examples]), float(values[0]) * 1e-12)
    rank = int((values[:num_examples] > least_gap * floor).sum())
    if not rank:
        raise NotApplicableError(
            f"singular values {num_examples} and {num_examples + 1} of the layer's gradient are "
            f"{float(values[num_examples - 1]):.2g} and {float(values[num_examples]):.2g}; without a gap there, noise, pruning or "
            "several local steps hide the examples"
        )
    return LowRank(left[:, :rank], values[:rank, None] * right[:rank], float(values[rank] / values[rank - 1]))
