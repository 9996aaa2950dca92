"""The model that a client ended its local training with, as its update gives it away."""

import copy
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from attacks.observations import AttackError, ClientUpdate, trained_parameters
from defenses.tensors import NamedTensors, Tensors

Module = TypeVar("Module", bound=nn.Module)
Seen = TypeVar("Seen")


def local_model(observation: ClientUpdate) -> nn.Module:
    """The client's model after its local training, w_global + update: a private, frozen copy in eval mode.

    What the update does not hold (frozen parameters, integer counters, statistics that stayed at home) keeps the global model's
    values.

    Raises:
        AttackError: When names, shapes or values of the update do not fit the model.
    """
    model, update = copy.deepcopy(observation.model), observation.update
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    trained = trained_parameters(model)
    if missing := sorted(set(trained) - set(update)):
        raise AttackError(f"the update lacks {missing[:3]} ({len(missing)} of {len(trained)} parameters)")
    if unknown := sorted(set(update) - set(parameters) - set(buffers)):
        raise AttackError(f"the update holds {unknown[:3]} ({len(unknown)} names), which the model does not have")
    state = shared_tensors(model)
    moved = {n: state[n] + _fitting(n, update[n], state[n]) for n in state if n in update}
    # Noise can push a variance below zero, where BatchNorm gives NaN; the server's own average clamps it as well.
    return overwrite(
        model, {n: value.clamp(min=0) if n.endswith("running_var") else value for n, value in moved.items()}
    )


def usable(updates: Iterable[ClientUpdate], read: Callable[[ClientUpdate], Seen]) -> list[Seen]:
    """What ``read`` makes of a client's updates, without those for which it raises ``AttackError``; raise it if none is left."""
    seen, problem = list[Seen](), "the client sent no update"
    for update in updates:
        try:
            seen.append(read(update))
        except AttackError as error:
            problem = str(error)
    if not seen:
        raise AttackError(problem)
    return seen


def shared_tensors(model: nn.Module) -> Tensors:
    """What clients and server exchange: parameters and floating-point buffers, by name, detached.

    Integer buffers (BatchNorm's batch counter) stay at home: they carry nothing that a model needs and cannot be averaged. So do
    buffers with ``persistent=False``, which are no state: every build of the model has its own.
    """
    state = model.state_dict()
    named = [*model.named_parameters(), *(pair for pair in model.named_buffers() if pair[0] in state)]
    return {name: tensor.detach() for name, tensor in named if tensor.is_floating_point()}


def overwrite(module: Module, values: NamedTensors) -> Module:
    """Sets what ``values`` names among ``shared_tensors``, in place; the module ends in eval mode and asks for no gradients.

    Raises:
        AttackError: When a shape does not fit, or a value is NaN or infinite.
    """
    state = shared_tensors(module)
    with torch.no_grad():
        for name, value in values.items():
            state[name].copy_(_fitting(name, value, state[name]))
    return module.eval().requires_grad_(False)


def _fitting(name: str, value: Tensor, like: Tensor) -> Tensor:
    """``value`` on the device and in the dtype of ``like``."""
    if value.shape != like.shape:
        raise AttackError(f"{name!r} has shape {tuple(value.shape)}, the model {tuple(like.shape)}")
    if not torch.isfinite(value).all():
        raise AttackError(f"{name!r} holds NaN or infinite values")
    return value.detach().to(like)
