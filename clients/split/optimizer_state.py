"""The optimizers of both halves of a split model, and what they remember as tensors that can be kept and sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clients.split.plan import SplitPlan


def build_optimizer(plan: SplitPlan, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The experiment's optimizer over groups of parameters that carry their own learning rates."""
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(groups, weight_decay=plan.weight_decay)
    return torch.optim.SGD(
        groups, lr=0.0, momentum=plan.momentum, weight_decay=plan.weight_decay, nesterov=plan.nesterov
    )


def flat_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """What optimizers remember, as CPU tensors under "OPTIMIZER/PARAMETER/NAME"; empty before the first step."""
    return {
        f"{which}/{at}/{name}": value.detach().cpu().clone()
        for which, optimizer in enumerate(optimizers)
        for at, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_flat_state(optimizers: Sequence[torch.optim.Optimizer], flat: Mapping[str, Tensor]) -> None:
    """Gives optimizers back what ``flat_state`` took from them."""
    for which, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in flat.items():
            owner, at, name = path.split("/")
            if int(owner) == which:
                # An optimizer takes tensors as they are and steps them in place; what is given stays the caller's.
                state.setdefault(int(at), {})[name] = value.clone()
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
