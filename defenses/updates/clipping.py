"""Clipping of an update to a largest L2 norm."""

import math

import torch

from defenses.base import UpdateDefense
from defenses.checks import Bound, Per, algorithm
from defenses.functional import map_update
from defenses.tensors import Update


@algorithm
class Clip(UpdateDefense):
    """Scale an update down so that its L2 norm over all parameters is at most ``max_norm``.

    The clipping step of user-level DP-FedAvg. Clipping alone bounds the contribution of one client and hides nothing: it keeps
    the direction of the update, which reconstruction attacks match. With ``GaussianNoise`` after it, no epsilon is stated;
    ``ClientDP`` clips, adds noise and states one.

    Args:
        max_norm: Largest norm, in the unit of the update (of the gradient, per step); ``inf`` changes nothing.
        per: "update", or "step": the gradient of every step is clipped, that of a whole batch (of every example: ``DPSGD``).
    """

    max_norm: Bound = 1.0
    per: Per = "update"

    no_defense_at = {"max_norm": math.inf}
    always_shown = ("max_norm", "per")
    source = "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, Alg. 1"

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Multiply the update by min(1, max_norm / norm), with the norm accumulated in float64; deterministic."""
        norm = math.sqrt(sum(update[name].detach().double().square().sum().item() for name in sorted(update)))
        factor = 1.0 if norm <= self.max_norm else self.max_norm / norm
        return map_update(lambda tensor: tensor * factor, update)
