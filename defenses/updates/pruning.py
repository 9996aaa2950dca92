"""Pruning of the smallest entries of a gradient or an update."""

import math

import torch
from torch import Tensor

from defenses.base import UpdateDefense
from defenses.checks import Per, ShareOrNone, algorithm
from defenses.functional import map_update
from defenses.tensors import Update


def prune_smallest(tensor: Tensor, fraction: float) -> Tensor:
    """Sets the floor(fraction * numel) entries with the smallest magnitude to zero.

    Among equal magnitudes the first in row-major order go first, so exactly numel - floor(fraction * numel) entries
    stay.
    """
    # The guard keeps a fraction such as 0.29 of 100 entries, 28.999999999999996 in floating point, at 29.
    num_pruned = math.floor(fraction * tensor.numel() + 1e-9)
    flat = tensor.detach().flatten()
    smallest = flat.abs().argsort(stable=True)[:num_pruned]
    return flat.index_fill(0, smallest, 0.0).view(tensor.shape)


@algorithm
class Pruning(UpdateDefense):
    """Zero the ``fraction`` of entries with the smallest magnitude in each tensor of a gradient or update.

    Gradient compression used as a defence; the ATS paper's baseline prunes 0.7, 0.95 and 0.99 of each tensor's
    gradient, in every step. Per step, the optimizer adds weight decay after pruning, so that a pruned weight still decays. Each
    of several steps prunes other entries, so that an update may have few zeros.

    Args:
        fraction: Part of each tensor's entries that is set to zero, in [0, 1]; 0 changes nothing.
        per: "step": of the gradient of every step; "update": of what is sent. See ``UpdateDefense``.
    """

    fraction: ShareOrNone = 0.7
    per: Per = "step"

    no_defense_at = {"fraction": 0}
    always_shown = ("fraction", "per")
    adaptive_attacks = ("MaskedInversion",)
    source = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, 5.2; Gao et al., CVPR 2021, Table 3"

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Prune each tensor separately; deterministic."""
        return map_update(lambda tensor: prune_smallest(tensor, self.fraction), update)
