"""BatchNorm's running averages stay at the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError, Update, UpdateDefense
from defenses.functional import map_update

STATISTICS = ("running_mean", "running_var")
"""Last parts of the names of BatchNorm's running averages, as torch names them."""


@dataclass(frozen=True, repr=False)
class SiloBN(UpdateDefense):
    """Keep BatchNorm's running averages at the client; scale and shift are sent and averaged.

    Running averages give away mean and variance of a client's batches (``sent_statistics``), which the strongest gradient
    inversions of networks with BatchNorm match. Under this defence their update is zero, which says no more than leaving them out.
    Nothing else changes: in train mode a network normalises by its batch, so that all other updates are as without it.

    In the paper each client also judges the model with averages of its own. Here a client recomputes them from its training images
    before each evaluation (``own_statistics``), where the paper keeps those of its local training. What the server publishes has
    the initial averages: a party without data of its own must compute averages before the model is of use.

    FedBN (Li et al., ICLR 2021) keeps scale and shift local as well, and is not implemented.

    It must be the last update defence of a pipeline, because noise that is added afterwards would send noise as running averages. A
    model without running averages is refused.

    ``InvertingGradients`` matches no averages if none came. With ``missing_statistics="proxy"`` it estimates the batch statistics
    from auxiliary images. Tests of membership read the published model, with initial averages, and show nothing (see the caveat
    of a report).
    """

    source: ClassVar[str] = (
        "Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, MICCAI workshop DCL 2020, section 2"
    )
    keeps_statistics: ClassVar[bool] = True

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model without BatchNorm layers that keep running averages."""
        layers = [one for one in model.modules() if isinstance(one, _BatchNorm)]
        if not any(layer.running_mean is not None for layer in layers):
            raise DefenseError(
                f"{self}: the model has no BatchNorm layer with running averages, so nothing would be kept local"
            )

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Set the update of every running average to zero; deterministic."""
        # map_update also refuses what is no part of an update.
        zeros = map_update(torch.zeros_like, update)
        return {name: zeros[name] if is_statistic(name) else tensor.detach() for name, tensor in update.items()}


def is_statistic(name: str) -> bool:
    """Whether a tensor of an update is a running average of BatchNorm, by its name."""
    return name.rpartition(".")[2] in STATISTICS
