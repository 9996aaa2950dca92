"""Gradients per example that an auditor sets in place of an example's own gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attacks.observations import AttackError

NO_CANARY, EMPTY = -1, -2
"""In place of the number of a weight: an example with its own gradient, and one whose gradient is set to zero."""


def set_gradients(model: nn.Module, weights: Tensor, values: Tensor) -> None:
    """Replace the gradients of canaries in a batch, between the backward pass and the step of DP-SGD.

    Args:
        model: Its parameters that are trained hold ``grad_sample`` (B, ...), the gradients per example that Opacus collects.
        weights: (B,) int64. Number of the only weight at which a canary's gradient is not 0, counted over the parameters that are
            trained, in their order; or ``NO_CANARY`` or ``EMPTY``.
        values: (B,) gradient at that weight; of other examples it is not read.

    Raises:
        AttackError: When the defence keeps no gradients per example.
    """
    canaries, first = weights != NO_CANARY, 0
    for parameter in (one for one in model.parameters() if one.requires_grad):
        held = getattr(parameter, "grad_sample", None)
        if not isinstance(held, Tensor):
            raise AttackError("the defence keeps no gradients per example, so that no canary can be set")
        held[canaries.to(held.device)] = 0
        own = ((weights >= first) & (weights < first + parameter.numel())).nonzero().flatten()
        inside = torch.unravel_index(weights[own] - first, parameter.shape)
        held[(own.to(held.device), *(one.to(held.device) for one in inside))] = values[own].to(held)
        first += parameter.numel()
