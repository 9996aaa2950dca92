"""The update of a client's SGD as a pure function of its images: local training, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from defenses.base import Update

Call = Callable[[Update, Tensor], tuple[Tensor, Any]]
"""(weights, normalised images (b, C, H, W)) -> logits (b, K), and any dictionary or tuple of tensors beside them."""


def simulated_update(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    images: Tensor,
    soft_labels: Tensor,
    order: Sequence[Sequence[int]],
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Update:
    """The update w_T - w_0 of a client that trains on normalised images (n, C, H, W) with soft labels (n, K).

    With batches B_1 .. B_T, indices in ``order``, from the global weights w_0 = ``parameters``:

        g_t = grad_w mean_{i in B_t} cross-entropy(model_w(x_i), y_i) at w_{t-1} + weight_decay * w_{t-1}
        v_t = momentum * v_{t-1} + g_t,  v_1 = g_1,  w_t = w_{t-1} - learning_rate * v_t

    and with Nesterov's momentum w_t = w_{t-1} - learning_rate * (g_t + momentum * v_t), which is ``torch.optim.SGD`` (no
    dampening). Differentiable in images, labels and parameters, and free of side effects, for a model from ``attackable``:
    ``torch.func.grad`` and ``vmap`` (over images, labels, parameters) work on it. Memory grows with the number of steps.

    Source: McMahan et al., "Communication-Efficient Learning", 2017, Algorithm 1 (ClientUpdate); used for attacks as in Dimitrov et
    al., "Data Leakage in Federated Averaging", 2022, section 4.
    """

    def call(weights: Update, inputs: Tensor) -> tuple[Tensor, Any]:
        return functional_call(model, (weights, dict(buffers)), (inputs,)), {}

    return simulated_training(
        call, parameters, images, soft_labels, order, learning_rate, momentum, weight_decay, nesterov
    )[0]


def simulated_training(
    call: Call,
    parameters: Mapping[str, Tensor],
    images: Tensor,
    soft_labels: Tensor,
    order: Sequence[Sequence[int]],
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Update, list[Any]]:
    """The update of ``simulated_update`` for a network ``call``, and what ``call`` returned beside the logits in each step."""

    def loss(weights: Update, indices: Sequence[int]) -> tuple[Tensor, Any]:
        chosen = torch.tensor(list(indices), device=images.device)
        logits, beside = call(weights, images.index_select(0, chosen))
        return -(soft_labels.index_select(0, chosen) * F.log_softmax(logits, 1)).sum(1).mean(), beside

    weights, velocity, found = dict(parameters), dict[str, Tensor](), []
    for indices in order:
        gradient, beside = grad(loss, has_aux=True)(weights, indices)
        found.append(beside)
        moved = {}
        for name, weight in weights.items():
            step = gradient[name] + weight_decay * weight
            velocity[name] = momentum * velocity[name] + step if name in velocity else step
            direction = step + momentum * velocity[name] if nesterov else velocity[name]
            moved[name] = weight - learning_rate * direction
        weights = moved
    return {name: weight - parameters[name] for name, weight in weights.items()}, found


def weight_path(
    weight: float,
    impulse: float,
    local_steps: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> list[float]:
    """One weight after each step of ``torch.optim.SGD``, where the loss's gradient is ``impulse`` in the first step and 0 after it.

    With weight 1 and no impulse this is what weight decay alone does; with weight 0 and impulse 1 what a step's noise grows to.
    """
    velocity, path = 0.0, []
    for step in range(local_steps):
        gradient = (impulse if step == 0 else 0.0) + weight_decay * weight
        velocity = momentum * velocity + gradient
        weight -= learning_rate * (gradient + momentum * velocity if nesterov else velocity)
        path.append(weight)
    return path


def local_orders(num_examples: int, batch_size: int, local_steps: int, generator: torch.Generator) -> list[list[int]]:
    """A guess of the batches of a client that shuffles its examples before every epoch: indices, one list per step.

    The first epoch keeps the order 0, 1, 2 ...: dummy images can be exchanged, so that this loses nothing as long as their labels
    can be exchanged with them (with several fixed labels, their order is a guess too). Later epochs are drawn at random. The last
    batch of an epoch may be smaller, and the last epoch may be cut short.
    """
    steps: list[list[int]] = []
    epoch = list(range(num_examples))
    while len(steps) < local_steps:
        steps += [epoch[at : at + batch_size] for at in range(0, num_examples, batch_size)]
        epoch = torch.randperm(num_examples, generator=generator).tolist()
    return steps[:local_steps]
