"""Gradient inversion that does not match the gradients of a stochastic layer and of the layers after it."""

import torch
from torch import Tensor
from torch.func import functional_call, grad

from attacks.gradient.inversion import GradientInversion, Trials
from attacks.gradient.inversion_target import Victim
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, Statistics
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import algorithm
from defenses.module_calls import calls_of
from defenses.tensors import Update
from defenses.training.precode import find_bottleneck


@algorithm
class BottleneckInversion(GradientInversion):
    """Match only the gradients up to the encoder of a variational bottleneck, which do not depend on its random draw.

    Let h(x) = W r(x) + b be the encoder's output and d = dL/dh what arrives there. Of one example the gradients are

        dL/db = d,      dL/dW = d r(x)^T,      dL/dw = d . dh/dw for every earlier weight w,

    Only d depends on the draw, the later layers, the label and the divergence, and the client sends d as dL/db. The attack
    seeks images x whose gradients of <d, h(x)> by W and w are the observed ones; at the true image they agree exactly.
    With several examples, only the sum of their d is sent, and the attack does not apply. Without a bottleneck the attack is
    ``InvertingGradients``. Balunovic et al. recover the input of the first of several linear layers before the bottleneck
    exactly, by dL/dW over dL/db. Using d as a constant works for any network before the bottleneck and is ours.
    """

    source = "Balunovic 2022 (Bayesian framework for gradient leakage), section 5 (PRECODE)"
    threat = "as GradientInversion, and which layer is stochastic; one example"

    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True
    max_unrolled_steps: int = 0

    def observed_gradient(self, observation: ClientUpdate) -> Update:
        """As ``GradientInversion``."""
        if find_bottleneck(observation.model) and observation.num_examples > 1:
            raise AttackError(
                f"the update covers {observation.num_examples} examples; allowed: 1, whose gradient at the bottleneck is known"
            )
        return super().observed_gradient(observation)

    def _differences(self, trials: Trials, victim: Victim) -> bool:
        """Never of a part of a network."""
        return find_bottleneck(victim.model) is None and super()._differences(trials, victim)

    def _objective(self, trials: Trials, victim: Victim) -> GradientMatching:
        bottleneck = find_bottleneck(victim.model)
        if bottleneck is None:
            return super()._objective(trials, victim)
        return _EncoderMatching(self._problem(trials, victim), f"{bottleneck[0]}.encoder")


class _EncoderMatching(GradientMatching):
    """The objective with <d, h(x)> in place of the loss, and the weights that it depends on in place of all."""

    def __init__(self, problem: MatchingProblem, encoder: str) -> None:
        super().__init__(problem)
        self._encoder, self._bias = problem.model.get_submodule(encoder), f"{encoder}.bias"
        weights = {name: weight.detach().requires_grad_() for name, weight in self.parameters.items()}
        images = next(iter(weights.values())).new_zeros(self.batch_shape)
        slopes = torch.autograd.grad(self._arriving(weights, images, None), list(weights.values()), allow_unused=True)
        # The weights that the encoder's output depends on, but for its bias, whose gradient is d itself.
        depends = (name for name, slope in zip(weights, slopes, strict=True) if slope is not None)
        self._matched = [name for name in depends if name != self._bias]

    def _arriving(self, weights: Update, images: Tensor, direction: Tensor | None) -> Tensor:
        """<d, h(x)>, or the sum of h(x) where d is None."""
        with calls_of([self._encoder]) as seen:
            functional_call(self.model, (weights, self.buffers), (images,))
        encoded: Tensor = seen[-1][2]
        return (encoded if direction is None else encoded * direction).sum()

    def _loss(self, unknowns: Tensor, known: Tensor, target: Update, observed: Statistics, smoothing: Tensor) -> Tensor:
        images, _ = self.read(unknowns, known)
        dummy = grad(self._arriving)(self.parameters, images, target[self._bias])
        distance = self.cost.distance(*({name: update[name] for name in self._matched} for update in (dummy, target)))
        return distance + self.priors(images, observed, smoothing)
