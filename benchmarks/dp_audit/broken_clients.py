"""Client-level differential privacy with planted bugs: each keeps the account of the correct one, and protects less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from defenses.base import DEFENSES
from defenses.random_draws import generator_for
from defenses.tensors import Update
from defenses.updates.client_dp import ClientDP, multiplier_for
from defenses.updates.clipping import Clip


@dataclass(frozen=True, repr=False)
class HalfClientNoise(ClientDP):
    """Half of the noise that is accounted."""

    @property
    def std(self) -> float:
        """Standard deviation with the bug."""
        return super().std / 2


@dataclass(frozen=True, repr=False)
class BareTensor(ClientDP):
    """No noise on the last tensor, a bias."""

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Return the update with the bug."""
        last = list(update)[-1]
        clipped = Clip(max_norm=self.max_norm).protect_update(update, generator)
        return {**super().protect_update(update, generator), last: clipped[last]}


@dataclass(frozen=True, repr=False)
class TensorClip(ClientDP):
    """Each tensor is clipped to the norm of the whole update."""

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Return the update with the bug."""
        protect = super().protect_update
        return {name: protect({name: tensor}, generator)[name] for name, tensor in update.items()}


@dataclass(frozen=True, repr=False)
class SameClientNoise(ClientDP):
    """Every update gets the same noise, in all rounds and at all clients."""

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Return the update with the bug."""
        return super().protect_update(update, generator_for("same noise"))


@dataclass(frozen=True, repr=False)
class ShortClientAccount(ClientDP):
    """The first round is left out of the account, and of the rounds for which the noise is chosen."""

    @property
    def noise(self) -> float:
        """The noise multiplier of one round less."""
        if self.target_epsilon is None or self.rounds is None:
            return super().noise
        return multiplier_for(self.target_epsilon, self.target_delta, max(1, self.rounds - 1))

    def recorded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with one more release, unless it is the first."""
        return super().recorded(state) if "accountant" in state else {**state, "accountant": {"steps": []}}


BROKEN_CLIENTS = (HalfClientNoise, BareTensor, TensorClip, SameClientNoise, ShortClientAccount)


def register() -> None:
    """Make the broken defences known to configurations of this process; they are in no catalogue."""
    DEFENSES._own.update({kind.__name__: kind for kind in BROKEN_CLIENTS if kind.__name__ not in DEFENSES})
