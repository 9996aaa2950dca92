"""BatchNorm's running averages stay at the client."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from defenses.base import DefenseError, UpdateDefense
from defenses.checks import algorithm
from defenses.functional import map_update
from defenses.tensors import Update

STATISTICS = ("running_mean", "running_var")
"""Last parts of the names of running averages, as torch names them."""


@algorithm
class SiloBN(UpdateDefense):
    """Keep BatchNorm's running averages at the client; scale and shift are sent and averaged.

    Running averages give away mean and variance of a client's batches (``sent_statistics``), which the strongest gradient
    inversions of networks with BatchNorm match. Under this defence their update is zero, which says no more than leaving them out.
    Nothing else changes: in train mode a network normalises by its batch, so that all other updates are as without it.

    In the paper each client also judges the model with averages of its own. Here a client recomputes them from its training images
    before each evaluation (``own_statistics``), where the paper keeps those of its local training. What the server publishes has
    the initial averages: a party without data of its own must compute averages before the model is of use.

    ``InstanceNorm`` with running averages is treated alike. A model that holds tensors of these names elsewhere is refused, because
    no client would recompute them.

    FedBN (Li et al., ICLR 2021) keeps scale and shift local as well, and is not implemented.

    It must be the last update defence of a pipeline, because noise that is added afterwards would send noise as running averages.
    Beside a defence that bounds examples or clients it is refused: loss and accuracy of the evaluation follow from the training
    images, and no budget counts them. A model without running averages is refused.

    ``InvertingGradients`` matches no averages if none came. Tests of membership read the published model, with initial averages,
    and show nothing (see the caveat of a report).
    """

    source = (
        "Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, MICCAI workshop DCL 2020, "
        "section 2"
    )
    keeps_statistics = True

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model without layers that keep running averages, or with running averages of another kind."""
        if not statistic_layers(model):
            raise DefenseError(
                f"{self}: the model has no BatchNorm layer with running averages, so nothing would be kept local"
            )
        known = {f"{name}.{of}".lstrip(".") for name in statistic_layers(model) for of in STATISTICS}
        named = (name for name, _ in (*model.named_parameters(), *model.named_buffers()))
        if other := [name for name in named if is_statistic(name) and name not in known]:
            raise DefenseError(
                f"{self}: {other[0]} belongs to no BatchNorm or InstanceNorm layer of torch, so no client could recompute it; "
                "rename it to have it sent"
            )

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Set the update of every running average to zero; deterministic."""
        # map_update also refuses what is no part of an update.
        zeros = map_update(torch.zeros_like, update)
        return {name: zeros[name] if is_statistic(name) else tensor.detach() for name, tensor in update.items()}


def statistic_layers(model: nn.Module) -> dict[str, _NormBase]:
    """Name -> layer of torch that keeps running averages: BatchNorm, or InstanceNorm with ``track_running_stats``."""
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, _NormBase)}
    return {name: layer for name, layer in norms.items() if layer.running_mean is not None}


def is_statistic(name: str) -> bool:
    """Whether a tensor of an update is a running average, by its name; ``check_model`` makes sure that it is of a known layer."""
    return name.rpartition(".")[2] in STATISTICS
