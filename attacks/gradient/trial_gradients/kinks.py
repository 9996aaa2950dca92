"""Networks with the kinks of their ReLUs and max poolings held fixed: smooth functions of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class RecordKinks(TorchFunctionMode):
    """Context that records the active side of every ReLU, and the position of every maximum.

    Values are those of the ordinary call. ``ReplayKinks`` then evaluates the same network as if nothing had moved across a kink,
    which makes it differentiable wherever its other layers are: a difference of its gradients tends to the derivative that
    automatic differentiation gives, instead of counting the kinks between two points.

    Attributes:
        noted: One tensor per call, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RELU:
            result = torch.relu(args[0])
            # 0 or 1 as a float: products with booleans are slow.
            self.noted.append(result.detach().sign())
            return result
        if func is F.leaky_relu:
            result = F.leaky_relu(args[0], *args[1:2], **_without(kwargs, "inplace"))
            negative = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
            self.noted.append(torch.where(result.detach() > 0, 1.0, negative).to(result))
            return result
        if func in _MAX_POOL:
            result, positions = F.max_pool2d_with_indices(*args, **_without(kwargs, "return_indices"))
            self.noted.append(positions)
            return result
        return func(*args, **kwargs)


class ReplayKinks(TorchFunctionMode):
    """Context in which every ReLU and maximum takes the side from ``RecordKinks``.

    Args:
        noted: By the same network on inputs of the same shape.
    """

    def __init__(self, noted: Sequence[Tensor]) -> None:
        super().__init__()
        self._noted = iter(noted)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _RELU or func is F.leaky_relu:
            return args[0] * next(self._noted)
        if func in _MAX_POOL:
            positions = next(self._noted)
            return args[0].flatten(2).gather(2, positions.flatten(2)).view(positions.shape)
        return func(*args, **(kwargs or {}))


_RELU = {F.relu, torch.relu, Tensor.relu}
_MAX_POOL = {F.max_pool2d, torch.max_pool2d}


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != name}
