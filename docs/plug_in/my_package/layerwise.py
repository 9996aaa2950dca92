"""Gradient inversion, each layer by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import GradientInversion
from attacks.gradient.costs import COSTS, Cost
from defenses.tensors import Update


def layerwise_cosine(dummy: Update, target: Update) -> Tensor:
    """Mean of the layers' cosine distances: a layer of few weights counts as much as one of many."""
    distances = [1 - F.cosine_similarity(dummy[name].flatten(), target[name].flatten(), 0) for name in dummy]
    return torch.stack(distances).mean()


@dataclass(frozen=True, repr=False)
class LayerwiseInversion(GradientInversion):
    """Signed Adam on the mean of the layers' cosine distances."""

    source: ClassVar[str] = "folklore: a cosine for each layer"
    costs: ClassVar[Mapping[str, Cost]] = {**COSTS, "layers": Cost(layerwise_cosine, scale_free=True)}

    cost: str = "layers"
