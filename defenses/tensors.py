"""Tensors and numbers by name: what updates, weights, records and diagnostics are in all five packages."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

Numbers = dict[str, float]
"""Numbers by name, such as an attack's diagnostics, or a privacy budget."""
Shape = tuple[int, ...]
ImageShape = tuple[int, int, int]
"""(C, H, W) of one image."""
Tensors = dict[str, Tensor]
"""Tensors by name, such as the weights of a model."""
NamedTensors = Mapping[str, Tensor]
"""The same, only read."""
Update = Tensors
"""Parameter name -> (local weight - global weight); floating-point tensors only."""
TensorMap = Callable[[Tensor], Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, normalised images (B, C, H, W), soft targets (B, K)) -> scalar."""


def on_cpu(tensors: NamedTensors, prefix: str = "") -> Tensors:
    """Copies of the tensors on the CPU, detached, with ``prefix`` before their names."""
    return {prefix + name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def under(prefix: str, tensors: NamedTensors) -> Tensors:
    """The tensors with a prefix before their names, of which ``part_of`` is the inverse."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def part_of(tensors: NamedTensors, prefix: str) -> Tensors:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
