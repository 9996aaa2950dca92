"""The state of optimizers as tensors that can be kept and sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def flat_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """State of optimizers, as CPU tensors under "OPTIMIZER/PARAMETER/NAME"; empty before the first step."""
    return {
        f"{which}/{at}/{name}": value.detach().cpu().clone()
        for which, optimizer in enumerate(optimizers)
        for at, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_flat_state(optimizers: Sequence[torch.optim.Optimizer], flat: Mapping[str, Tensor]) -> None:
    """Restore optimizers from the result of ``flat_state``."""
    for which, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in flat.items():
            owner, at, name = path.split("/")
            if int(owner) == which:
                # An optimizer takes tensors as they are and steps them in place; what is given stays the caller's.
                state.setdefault(int(at), {})[name] = value.clone()
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
