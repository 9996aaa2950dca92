"""The models that a client sent: the global model of a round plus its update."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacks.base import AttackError, ClientUpdate, Representatives, UpdateHistory
from attacks.gradient_matching import count_classes


def received_model(observation: ClientUpdate) -> nn.Module:
    """The client's model after local training, w_global + update, as a private frozen copy in eval mode.

    BatchNorm buffers are those of the global model: an update holds parameters only.

    Raises:
        AttackError: When names, shapes or values of the update do not fit the model's parameters.
    """
    model = copy.deepcopy(observation.model).eval().requires_grad_(False)
    parameters = dict(model.named_parameters())
    if odd := sorted(set(parameters) ^ set(observation.update)):
        raise AttackError(f"the update and the model of {len(parameters)} parameters do not both have {odd[:3]}")
    for name, weight in parameters.items():
        delta = observation.update[name]
        if delta.shape != weight.shape:
            raise AttackError(f"update {name!r} has shape {tuple(delta.shape)}, the model {tuple(weight.shape)}")
        weight.add_(delta.detach().to(weight))
        if not torch.isfinite(weight).all():
            raise AttackError(f"the model with update {name!r} holds NaN or infinite values")
    return model


def received_rounds(history: UpdateHistory) -> list[tuple[ClientUpdate, nn.Module]]:
    """The rounds of a client that can be used, oldest first, each with its ``received_model``; broken ones are left out.

    Raises:
        AttackError: When there is none, with what is wrong with the last one.
    """
    rounds, problem = [], "the client sent no update"
    for observation in history.updates:
        try:
            rounds.append((observation, received_model(observation)))
        except AttackError as error:
            problem = str(error)
    if not rounds:
        raise AttackError(problem)
    return rounds


def wanted_classes(observation: ClientUpdate, classes: Sequence[int]) -> tuple[Tensor, int]:
    """The classes to draw, int64, all of them if none is named; and the number of classes of the model.

    Raises:
        AttackError: When the model does not have a named class.
    """
    model = copy.deepcopy(observation.model).eval()
    count = count_classes(model, observation.input_shape, next(model.parameters()))
    if classes and max(classes) >= count:
        raise AttackError(f"class {max(classes)} is to be drawn, the model has {count} classes")
    return torch.tensor(classes or range(count)), count


def failed_representatives(
    history: UpdateHistory, classes: Sequence[int], images_per_class: int, failure: str
) -> Representatives:
    """Grey images of the wanted classes; of all of them if the model lacks some, and none if nothing was sent."""
    if not history.updates:
        return Representatives(torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64), failure=failure)
    last = history.updates[-1]
    try:
        wanted = wanted_classes(last, classes)[0]
    except AttackError:
        wanted = wanted_classes(last, ())[0]
    wanted = wanted.repeat_interleave(images_per_class)
    return Representatives(torch.full((len(wanted), *last.input_shape), 0.5), wanted, failure=failure)
