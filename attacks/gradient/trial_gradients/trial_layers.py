"""A network with separate weights for each trial of a batch: as ``torch.func.vmap``, with the fused kernels of autograd."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attacks.gradient.costs import GradientFactors, Move
from attacks.observations import AttackError
from defenses.tensors import NamedTensors, Shape, Update

FEW_COLUMNS = 2**14
"""Up to so many values a convolution is faster as a product of matrices: its kernels cost more to call than to run."""


class TrialNetwork:
    """A copy of a model, called with weights (T, *shape) and images (T * b, C, H, W), b consecutive ones per trial.

    Weights that all trials share are given as ``weight.expand(T, *shape)``: they cost no memory, and their gradient is still
    one per trial.

    Args:
        model: In eval mode; left as it is. Its forward pass must not mix the images of a batch, other than in BatchNorm, whose
            batch statistics become those of each trial. That is not checked.

    Raises:
        AttackError: When a layer with weights is none of Linear, Conv2d, BatchNorm2d, GroupNorm and LayerNorm, or two layers share
            their weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model)
        self._layers: dict[str, _TrialLayer] = {}
        for name, module in list(self._model.named_modules()):
            mine = [f"{name}.{key}" if name else key for key, _ in module.named_parameters(recurse=False)]
            if not mine:
                continue
            kind = _KINDS.get(type(module))
            if kind is None or not name or getattr(module, "padding_mode", "zeros") != "zeros":
                raise AttackError(f"{type(module).__name__} has no form with one weight per trial")
            self._layers[name] = kind(module)
            parent, _, short = name.rpartition(".")
            setattr(self._model.get_submodule(parent), short, self._layers[name])
        if len(list(model.named_parameters(remove_duplicate=False))) != len(list(model.parameters())):
            raise AttackError("layers that share weights have no form with one weight per trial")

    @property
    def batch_norms(self) -> dict[nn.Module, str]:
        """BatchNorm layer -> its name in the model."""
        return {layer: name for name, layer in self._layers.items() if isinstance(layer, _TrialBatchNorm2d)}

    def normalise_by(self, known: Mapping[str, tuple[Tensor, ...]]) -> None:
        """Let BatchNorm layers that are named normalise by a mean and variance (T, C) of each trial; the others do as before."""
        for name, layer in self._layers.items():
            if isinstance(layer, _TrialBatchNorm2d):
                layer.known = known.get(name)

    def keep_factors(self, kept: bool) -> None:
        """Whether the next call keeps the gradients of large linear layers with shared weights as ``factors``."""
        for layer in self._layers.values():
            if isinstance(layer, _TrialLinear):
                layer.factored, layer.factors, layer.move = kept, None, None

    @property
    def factors(self) -> dict[str, GradientFactors]:
        """Name of each weight whose gradient is kept in factors -> these, of the last call."""
        layers = {name: layer for name, layer in self._layers.items() if isinstance(layer, _TrialLinear)}
        return {f"{name}.weight": layer.factors for name, layer in layers.items() if layer.factors is not None}

    def move(self, moves: Mapping[str, Move]) -> None:
        """Let the next call work with changed weights, by their names."""
        self.keep_factors(False)
        for name, change in moves.items():
            layer = self._layers[name.removesuffix(".weight")]
            assert isinstance(layer, _TrialLinear)
            layer.move = change

    def __call__(self, weights: NamedTensors, images: Tensor) -> Tensor:
        """Logits (T * b, K)."""
        for name, layer in self._layers.items():
            layer.weight, layer.bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        logits: Tensor = self._model(images)
        return logits


class _TrialLayer(nn.Module):
    """A layer whose weight and bias, (T, ...) each, are set before every call."""

    settings: Any
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: Any) -> None:
        super().__init__()
        # Plain attributes: as parameters they would have to be leaves, and the layer is no part of the network.
        self.weight, self.bias, self.__dict__["settings"] = None, None, layer

    def affine(self, features: Tensor) -> Tensor:
        """Features (T * b, C, ...) times weight plus bias, (T, C) each, where there are any."""
        if self.weight is None:
            return features
        rows = features.view(len(self.weight), -1, *features.shape[1:])
        weight, bias = (_beside(v, rows) if v is not None else None for v in (self.weight, self.bias))
        assert weight is not None
        return (rows * weight if bias is None else torch.addcmul(bias, rows, weight)).view(features.shape)


FEWER = 4
"""How many times as large as its factors a gradient must be to be kept in factors."""


class _TrialLinear(_TrialLayer):
    factors: GradientFactors | None = None
    """Of the gradient by the weight, in place of a gradient; set by calls in which the layer is ``factored``."""
    factored = False
    move: Move | None = None

    def forward(self, features: Tensor) -> Tensor:
        assert self.weight is not None
        rows = features.reshape(len(self.weight), -1, features.shape[-1])
        if self.move is not None:
            result = rows @ self.weight[0].T + self.move(rows)
        elif self.factored and _shared(self.weight) and self._is_smaller(rows):
            result = self._traced(rows, self.weight[0].detach())
        elif _shared(self.weight):
            result = _SharedProduct.apply(rows, self.weight)
        else:
            result = rows @ self.weight.transpose(1, 2)
        if self.bias is not None:
            result = result + self.bias[:, None]
        return result.view(*features.shape[:-1], -1)

    def _is_smaller(self, rows: Tensor) -> bool:
        """Whether factors are; of several calls the first one decides."""
        _, outputs, inputs = self.weight.shape if self.weight is not None else (0, 0, 0)
        self.factored = self.factors is not None or FEWER * rows.shape[1] * (inputs + outputs) <= inputs * outputs
        return self.factored

    def _traced(self, rows: Tensor, weight: Tensor) -> Tensor:
        result = rows @ weight.T
        before = self.factors
        self.factors = GradientFactors(
            rows.detach() if before is None else torch.cat([before.rows, rows.detach()], 1),
            [*(before.outputs if before else []), result],
        )
        # What follows may change its input in place, and the loss is differentiated by the output as it is.
        return result.clone() if self.bias is None else result


class _TrialConv2d(_TrialLayer):
    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer)
        self.geometry = _Geometry.of(layer)

    def forward(self, features: Tensor) -> Tensor:
        assert self.weight is not None
        if self.settings.groups == 1 and self.geometry.columns(features, self.weight) <= FEW_COLUMNS:
            result = self.geometry.multiply(features, self.weight)
        else:
            result = _Convolution.apply(features, self.weight, self.geometry, self.settings.groups)
        if self.bias is None:
            return result
        rows = result.view(len(self.bias), -1, *result.shape[1:])
        return (rows + _beside(self.bias, rows)).view(result.shape)


class _TrialBatchNorm2d(_TrialLayer):
    known: tuple[Tensor, ...] | None = None
    """Mean and variance (T, C) each by which a layer in train mode normalises in place of those of its batch."""

    def forward(self, features: Tensor) -> Tensor:
        layer = self.settings
        if self.known is not None:
            mean, variance = self.known
            rows = features.view(len(mean), -1, *features.shape[1:])
            scale = (variance + layer.eps).rsqrt()
            return self.affine(
                torch.addcmul(_beside(-mean * scale, rows), rows, _beside(scale, rows)).view(features.shape)
            )
        if layer.running_mean is not None:
            # In eval mode: constants of the model.
            return self.affine(F.batch_norm(features, layer.running_mean, layer.running_var, eps=layer.eps))
        assert self.weight is not None
        trials = len(self.weight)
        wide = F.batch_norm(_wide(features, trials), None, None, training=True, eps=layer.eps)
        return self.affine(_tall(wide, trials))


class _TrialGroupNorm(_TrialLayer):
    def forward(self, features: Tensor) -> Tensor:
        return self.affine(F.group_norm(features, self.settings.num_groups, eps=self.settings.eps))


class _TrialLayerNorm(_TrialLayer):
    def forward(self, features: Tensor) -> Tensor:
        layer = self.settings
        result = F.layer_norm(features, layer.normalized_shape, eps=layer.eps)
        if self.weight is None:
            return result
        weight = self.weight.flatten(1)
        rows = result.reshape(len(weight), -1, weight.shape[1]) * weight[:, None]
        rows = rows if self.bias is None else rows + self.bias.flatten(1)[:, None]
        return rows.view(result.shape)


_KINDS: dict[type[nn.Module], type[_TrialLayer]] = {
    nn.Linear: _TrialLinear,
    nn.Conv2d: _TrialConv2d,
    nn.BatchNorm2d: _TrialBatchNorm2d,
    nn.GroupNorm: _TrialGroupNorm,
    nn.LayerNorm: _TrialLayerNorm,
}


@dataclass(frozen=True)
class _Geometry:
    """How a kernel moves over the features."""

    stride: Shape
    padding: Shape
    dilation: Shape

    @classmethod
    def of(cls, layer: nn.Conv2d) -> _Geometry:
        padding = layer.padding
        if isinstance(padding, str):
            spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            if padding == "same" and any(span % 2 for span in spans):
                raise AttackError(
                    "a convolution padded by different amounts on its sides has no form with one weight per trial"
                )
            padding = tuple(span // 2 if padding == "same" else 0 for span in spans)
        return cls(tuple(layer.stride), tuple(padding), tuple(layer.dilation))

    def output_size(self, features: Tensor, weight: Tensor) -> list[int]:
        """Height and width of the result."""
        sizes = zip(features.shape[-2:], weight.shape[-2:], self.stride, self.padding, self.dilation, strict=True)
        return [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, dilation in sizes
        ]

    def columns(self, features: Tensor, weight: Tensor) -> int:
        """Values of one image written out as the patches that the kernel sees."""
        return math.prod(weight.shape[2:]) * math.prod(self.output_size(features, weight))

    def multiply(self, features: Tensor, weight: Tensor) -> Tensor:
        """The convolution (T * b, C, H, W) with (T, O, C, h, w) as a product of matrices."""
        columns = F.unfold(features, (weight.shape[-2], weight.shape[-1]), self.dilation, self.padding, self.stride)
        products = weight.flatten(2)[:, None] @ columns.view(len(weight), -1, *columns.shape[1:])
        return products.view(len(features), -1, *self.output_size(features, weight))

    def convolve(self, features: Tensor, weight: Tensor, groups: int) -> Tensor:
        return F.conv2d(features, weight, None, self.stride, self.padding, self.dilation, groups)

    def gradients(
        self, gradient: Tensor, features: Tensor, weight: Tensor, groups: int, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """By features and by weight, where they are wanted."""
        by_features, by_weight, _ = torch.ops.aten.convolution_backward(
            gradient,
            features,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            groups,
            (*wanted, False),
        )
        return by_features, by_weight


class _SharedProduct(torch.autograd.Function):
    """Rows (T, b, I) times weights (T, O, I) that all trials share: one product of matrices instead of one per trial."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return rows @ weight[0].T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        by_rows = gradient @ weight[0] if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return by_rows, None
        # For one row, a product of matrices costs several times the outer product.
        outer = gradient.transpose(1, 2) * rows if rows.shape[1] == 1 else gradient.transpose(1, 2) @ rows
        return by_rows, outer


class _Convolution(torch.autograd.Function):
    """Convolves (T * b, C, H, W) with (T, O, C / groups, h, w): a grouped convolution, or an ordinary one of shared weights."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, geometry: _Geometry, groups: int) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.geometry, ctx.groups = geometry, groups
        if _shared(weight):
            return geometry.convolve(features, weight[0], groups)
        trials = len(weight)
        return _tall(geometry.convolve(_wide(features, trials), weight.flatten(0, 1), groups * trials), trials)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        features, weight = ctx.saved_tensors
        trials, shared = len(weight), _shared(weight)
        by_features, by_weight = ctx.needs_input_grad[:2]
        first = second = None
        if by_features and shared:
            first, _ = ctx.geometry.gradients(gradient, features, weight[0], ctx.groups, (True, False))
        apart = by_features and not shared, by_weight
        if any(apart):
            # A gradient by the weights reads their shape only; shared ones need not be copied for that.
            weights = weight.new_empty(trials * weight.shape[1], *weight.shape[2:]) if shared else weight.flatten(0, 1)
            wide, second = ctx.geometry.gradients(
                _wide(gradient, trials), _wide(features, trials), weights, ctx.groups * trials, apart
            )
            first = first if wide is None else _tall(wide, trials)
            second = None if second is None else second.view(weight.shape)
        return first, second, None, None


def _shared(weight: Tensor) -> bool:
    """Whether ``weight`` is one tensor expanded over the trials."""
    return weight.stride(0) == 0 or len(weight) == 1


def _wide(features: Tensor, trials: int) -> Tensor:
    """(T * b, C, H, W) as (b, T * C, H, W)."""
    if len(features) == trials:
        return features.reshape(1, -1, *features.shape[2:])
    return features.view(trials, -1, *features.shape[1:]).transpose(0, 1).flatten(1, 2)


def _tall(features: Tensor, trials: int) -> Tensor:
    """The inverse of ``_wide``."""
    if len(features) == 1:
        return features.reshape(trials, -1, *features.shape[2:])
    return features.view(len(features), trials, -1, *features.shape[2:]).transpose(0, 1).flatten(0, 1)


def _beside(values: Tensor, rows: Tensor) -> Tensor:
    """(T, C) in a shape that broadcasts to (T, b, C, ...)."""
    return values.view(len(values), 1, -1, *[1] * (rows.dim() - 3))


def expanded(weights: Update, trials: int) -> Update:
    """Repeat weights that all trials share, in the form that ``TrialNetwork`` takes."""
    return {name: weight.expand(trials, *weight.shape) for name, weight in weights.items()}
