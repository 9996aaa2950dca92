"""Arrays of an app's messages under the names of its model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def named_as(state: Mapping[str, Tensor], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Arrays by their own names, or by the model's where both are strangers and the order fits.

    Apps that send lists of arrays have the names 0, 1, 2 there; every shape must agree then.

    Args:
        state: ``state_dict`` of the model.
        arrays: By the names of the message, in its order.
    """
    shapes = [[tuple(one.shape) for one in tensors.values()] for tensors in (state, arrays)]
    if state.keys() & arrays.keys() or shapes[0] != shapes[1]:
        return dict(arrays)
    return dict(zip(state, arrays.values(), strict=True))
