"""The update of a client's SGD as a pure function of its images: local training, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from attacks.observations import ClientUpdate
from defenses.tensors import NamedTensors, Tensors, Update

Call = Callable[[Update, Tensor], Tensor]
"""(weights, normalised images (b, C, H, W)) -> logits (b, K)."""
Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class LocalSGD:
    """How a client's ``torch.optim.SGD`` steps, without dampening.

    With s_t the loss's gradient at w_{t-1}, a step is

        g_t = s_t + weight_decay * w_{t-1},   v_t = momentum * v_{t-1} + g_t,  v_1 = g_1,   w_t = w_{t-1} - learning_rate * v_t

    and with Nesterov's momentum w_t = w_{t-1} - learning_rate * (g_t + momentum * v_t).
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @classmethod
    def of(cls, observation: ClientUpdate) -> LocalSGD:
        """That of a client whose learning rate the server knows."""
        assert observation.learning_rate is not None
        return cls(
            observation.learning_rate, observation.momentum, observation.weight_decay, nesterov=observation.nesterov
        )

    def step(self, weight: Number, slope: Number, velocity: Number | None) -> tuple[Number, Number]:
        """The weight w_t and the velocity v_t from w_{t-1}, s_t and v_{t-1}, which is None before the first step."""
        gradient = slope + self.weight_decay * weight
        velocity = gradient if velocity is None else self.momentum * velocity + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return weight - self.learning_rate * direction, velocity


def logits_of(model: nn.Module, buffers: NamedTensors) -> Call:
    """The network of a model from ``attackable`` with these buffers."""
    return lambda weights, images: functional_call(model, (weights, dict(buffers)), (images,))


def simulated_training(
    call: Call,
    parameters: NamedTensors,
    images: Tensor,
    soft_labels: Tensor,
    order: Sequence[Sequence[int]],
    sgd: LocalSGD,
) -> Update:
    """The update w_T - w_0 of a client's local training.

    The client starts from the global weights w_0 = ``parameters`` and takes T steps of ``sgd``. The loss of step t is the mean
    cross-entropy over its batch. Differentiable in images, labels and parameters, and free of side effects: ``torch.func.grad``
    and ``vmap`` (over images, labels, parameters) work on it. Memory grows with the number of steps.

    Images (n, C, H, W) are normalised, ``soft_labels`` are (n, K), and ``order`` holds T batches of indices into the images.

    Source: McMahan et al., "Communication-Efficient Learning", 2017, Algorithm 1 (ClientUpdate); used for attacks as in Dimitrov et
    al., "Data Leakage in Federated Averaging", 2022, section 4.
    """

    def loss(weights: Update, indices: Sequence[int]) -> Tensor:
        chosen = torch.tensor(list(indices), device=images.device)
        logits = call(weights, images.index_select(0, chosen))
        return -(soft_labels.index_select(0, chosen) * F.log_softmax(logits, 1)).sum(1).mean()

    weights, velocity = dict(parameters), Tensors()
    for indices in order:
        slopes = grad(loss)(weights, indices)
        steps = {name: sgd.step(weight, slopes[name], velocity.get(name)) for name, weight in weights.items()}
        weights = {name: weight for name, (weight, _) in steps.items()}
        velocity = {name: moving for name, (_, moving) in steps.items()}
    return {name: weight - parameters[name] for name, weight in weights.items()}


def weight_path(weight: float, impulse: float, local_steps: int, sgd: LocalSGD) -> list[float]:
    """One weight after each step, where the loss's gradient is ``impulse`` in the first step and 0 after it.

    With weight 1 and no impulse this is what weight decay alone does; with weight 0 and impulse 1 what a step's noise grows to.
    """
    velocity, path = None, []
    for step in range(local_steps):
        weight, velocity = sgd.step(weight, impulse if step == 0 else 0.0, velocity)
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
