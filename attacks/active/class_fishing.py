"""Class fishing: a head that silences all classes but one, so that a large batch gives the gradient of few images."""

import copy
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn

from attacks.active.base import ActiveAttack, AgreedModel, batch_guess, called_on_random, overwrite_linear
from attacks.base import OWN_OBJECTIVE
from attacks.gradient.presets import InvertingGradients
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate, NotApplicableError, require_trained
from defenses.checks import MOST_CLASSES, Limit, Steps, algorithm
from defenses.tensors import ImageShape, Numbers, Update

BIAS = 50.0
"""Difference of the other classes' logits to that of c, which leaves p_c = 2e-22."""


@algorithm
class ClassFishing(
    ActiveAttack,
    needs_classes=True,
    effort={"iterations": "iterations"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 40},
):
    """Manipulate the head so that only examples of one class have a gradient, and invert that gradient.

    In the last linear layer the rows of all classes but c become zero, and their biases ``BIAS`` above that of c. An example of
    another class then has p_c = 0: its loss does not depend on its features, so that its gradient in the layers below is zero. An
    example of class c has p_c = 0 too, with target 1, and its gradient passes in full. The mean gradient is therefore the sum over
    the examples of class c, divided by B.

    Their number is exact: dL/db_c = -n_c / B. With (dL/dW)_c = -1/B times the sum of their features, the head's gradient of these
    examples alone follows, as their p_j is 1/(K - 1) for all others. ``InvertingGradients`` gets the gradient of a batch of n_c
    with known labels. Guesses beyond n_c are grey.

    Reports "does not apply" for a model that does not end in a linear layer with a bias, an update of several steps, or one without
    an example of class c. Under noise, n_c is rounded. Feature fishing, which separates several examples of a class, is not
    implemented, and BatchNorm in train mode still mixes in the other examples. The released code keeps class c's bias, writes
    0.5 into its row and raises the other biases to 1000.

    Diagnostics: ``fished``, n_c; ``count_error``, its distance from a whole number; and those of the inversion.

    Attributes:
        target: c, the attacked class.
        iterations: Iterations of ``InvertingGradients``.
    """

    source = (
        "Wen, Geiping, Fowl, Goldblum, Goldstein, Fishing for User Data in Large-Batch Federated Learning via Gradient "
        "Magnification, ICML 2022, class fishing"
    )
    threat = (
        "sends a model of its own making, of the agreed architecture; knows one update of one step, its number of examples and "
        "learning rate; no auxiliary data"
    )

    target: Annotated[int, Limit(0, MOST_CLASSES - 1)] = 0
    iterations: Steps = 600

    def manipulated(self, agreed: AgreedModel, generator: torch.Generator) -> nn.Module:
        """The agreed model with a head for one class; nothing is random."""
        model = copy.deepcopy(agreed.model)
        name = head_of(agreed.model, agreed.input_shape)
        head = model.get_submodule(name)
        assert isinstance(head, nn.Linear)
        if self.target >= head.out_features:
            raise NotApplicableError(
                f"target is {self.target}; allowed: a class of the model, 0 to {head.out_features - 1}"
            )
        weight, bias = torch.zeros_like(head.weight), torch.full_like(head.bias, BIAS)
        weight[self.target], bias[self.target] = head.weight.detach()[self.target], 0.0
        overwrite_linear(model, name, weight, bias)
        return model

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        guess = InvertingGradients(iterations=self.iterations)(self.fished(observation, numbers), generator)
        numbers |= guess.diagnostics
        if guess.failure:
            raise AttackError(guess.failure)
        batch = batch_guess(observation, list(guess.images), numbers)
        others = torch.full((max(observation.num_examples - len(guess.labels), 0),), -1)
        return replace(batch, labels=torch.cat([guess.labels.cpu(), others]))

    def fished(self, observation: ClientUpdate, numbers: Numbers) -> ClientUpdate:
        """The update of the examples of class c alone."""
        if observation.local_steps != 1:
            raise NotApplicableError(
                f"the update has {observation.local_steps} local steps; allowed: 1, as later steps change the head"
            )
        name, gradient = head_of(observation.model, observation.input_shape), observation.gradient()
        weight, bias = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")
        require_trained(gradient, "the head", weight, bias)
        share = -float(gradient[bias][self.target])
        count = round(share * observation.num_examples)
        numbers |= {"fished": float(count), "count_error": abs(share * observation.num_examples - count)}
        if count < 1:
            raise NotApplicableError(f"no example of class {self.target} is in the batch")
        count = min(count, observation.num_examples)
        own = {key: value * (observation.num_examples / count) for key, value in gradient.items()}
        own[weight], own[bias] = self._head(own[weight], own[bias])
        rate = (observation.learning_rate or 1.0) * observation.step_length
        decayed = dict(observation.model.named_parameters())
        update: Update = {
            key: -rate * (value + observation.weight_decay * decayed[key].detach()) for key, value in own.items()
        }
        labels = torch.full((count,), self.target)
        return replace(observation, update=update, num_examples=count, batch_size=count, labels=labels)

    def _head(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The head's gradient of the examples of class c alone, of that of all: weights (K, N) and biases (K,)."""
        others = len(bias) - 1
        spread = (-weight[self.target] / others).expand_as(weight).clone()
        spread[self.target] = weight[self.target]
        shares = bias.new_full((len(bias),), 1.0 / others)
        shares[self.target] = -1.0
        return spread, shares


def head_of(model: nn.Module, input_shape: ImageShape) -> str:
    """Name of the linear layer with a bias whose values are the logits."""
    logits, calls = called_on_random(model, input_shape)
    for name, seen in calls.items():
        module, _, out = seen[-1]
        if module.bias is not None and torch.equal(out, logits):
            return name
    raise NotApplicableError(f"{type(model).__name__} does not end in a linear layer with a bias")
