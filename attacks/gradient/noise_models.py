"""Gradient inversion that models the effect of an update defence: its noise, its mask, or the layer that it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from attacks.base import Knowledge, learned_field
from attacks.gradient.costs import squared_by_products
from attacks.gradient.inversion import GradientInversion, Minimiser, Trials
from attacks.gradient.inversion_loop import Stage, step_decay_stages
from attacks.gradient.inversion_target import Victim
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching
from attacks.gradient.trial_gradients.local_steps import LocalSGD, weight_path
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate, trained_parameters
from defenses.base import UpdateDefense
from defenses.checks import StepsOrNone, algorithm
from defenses.tensors import Update
from defenses.updates.client_dp import ClientDP
from defenses.updates.flower_mods import FlowerLocalDP
from defenses.updates.noise import GaussianNoise, LaplaceNoise
from defenses.updates.pruning import Pruning, prune_smallest
from defenses.updates.soteria import Soteria

PIXEL_SCALE = 0.3
"""Typical |difference| of neighbouring pixels, in normalised units: the scale of the Laplace prior behind total variation."""


GUIDE = 0.1
"""Least weight of the prior at the start of the second search, in units of the distance between the gradient and zero."""
ADAM_RATE = 0.1
"""Step size of signed Adam in normalised pixels."""
LEAST_ZERO = 0.5
"""Share of zero columns from which a layer counts as defended."""
GAUSSIAN = GaussianNoise | ClientDP | FlowerLocalDP
"""Defences that add normal noise."""


@algorithm
class NoiseModelInversion(
    GradientInversion,
    effort={"adam_iterations": "iterations", **GradientInversion.profile.effort},
    quick={"iterations": 40, "adam_iterations": 40},
):
    """Find the most probable images for an update with additive noise of known distribution.

        argmin_x  |g(x) - g|^2 / (2 s^2) + sum |dx| / PIXEL_SCALE        for N(0, s^2) on every entry of the gradient,
        argmin_x  |g(x) - g|_1 / s       + sum |dx| / PIXEL_SCALE        for Laplace(0, s),

    multiplied by 2 s^2 or s, so that without noise it is plain matching. The weight of the prior grows with the noise, and entries
    of the gradient below the noise count little; cosine matching with a fixed prior does neither.

    The search runs twice from each start: by L-BFGS with a line search, near exact on smooth networks, and by signed Adam, which
    ReLU networks need. Adam begins with a stronger prior, which shrinks with the step size. For each observation, the result with
    the lower objective is kept. s is the noise in the gradient computed from the update (``gradient_noise``). Details are ours.

    Attributes:
        noise_std: Standard deviation of the noise on the *update*, as in the defence (for Laplace: its scale); 0 without noise.
            ``fit`` sets this field, the next one and the cost from the pipeline; several stages of noise add up in variance.
        step_noise_std: Standard deviation of the noise on the *gradient* of every local step.
        adam_iterations: Iterations of the second search, at ``ADAM_RATE`` with step decay; 0 omits it.
    """

    source = "Balunovic 2022 (Bayesian framework for gradient leakage), section 3"
    threat = "as GradientInversion, and the law and strength of the noise"

    cost: str = "l2"
    optimizer: Minimiser = "lbfgs"
    signed: bool = False
    learning_rate: float = 1.0
    iterations: int = 400
    total_variation: float = 0.0
    step_decay: bool = False
    line_search: bool = True
    noise_std: float = learned_field(0.0)
    step_noise_std: float = learned_field(0.0)
    adam_iterations: StepsOrNone = 400

    def card(self) -> dict[str, int | str]:
        """As ``GradientInversion``, of both searches."""
        facts = super().card()
        also = (
            {"iterations": f"{facts['iterations']}, and {self.adam_iterations} of Adam"} if self.adam_iterations else {}
        )
        return facts | also

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> NoiseModelInversion:
        """The attack for the pipeline's noise."""
        stages = knowledge.pipeline.update_defenses
        laplace_only = not any(isinstance(stage, GAUSSIAN) and stage.std for stage in stages)
        noisy = any(isinstance(stage, LaplaceNoise) and stage.scale for stage in stages)
        strength = {
            per: _strength([stage for stage in stages if stage.per == per], laplace_only) for per in ("update", "step")
        }
        cost = "l1" if laplace_only and noisy else self.cost
        return replace(self, cost=cost, noise_std=strength["update"], step_noise_std=strength["step"])

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """As ``GradientInversion``, each observation with the prior that its noise asks for, by whichever search got lower."""
        groups: dict[float, list[int]] = {}
        for at, observation in enumerate(observations):
            groups.setdefault(self._prior(observation), []).append(at)
        guesses: list[list[Reconstruction]] = [[] for _ in observations]
        for prior, members in groups.items():
            some = [observations[at] for at in members]
            states = [generators[at].get_state() for at in members]
            for chosen in self._searches(prior):
                for at, state in zip(members, states, strict=True):  # both from the same starts
                    generators[at].set_state(state)
                attempts = GradientInversion.attack_many(chosen, some, [generators[at] for at in members])
                for at, guess in zip(members, attempts, strict=True):
                    guesses[at].append(guess)
        # A failed search counts only where both failed.
        return [
            min(both, key=lambda one: (bool(one.failure), one.diagnostics.get("objective", 0.0))) for both in guesses
        ]

    def _searches(self, prior: float) -> list[NoiseModelInversion]:
        first = replace(self, total_variation=prior)
        if not self.adam_iterations:
            return [first]
        second = replace(
            first, optimizer="adam", signed=True, learning_rate=ADAM_RATE, iterations=self.adam_iterations,
            step_decay=True, line_search=False,
        )  # fmt: skip
        return [first, second]

    def _stages(self, objective: GradientMatching | DifferencedMatching) -> list[Stage]:
        if not self.step_decay:
            return super()._stages(objective)
        first = GUIDE * objective.from_zero()
        weights = [(first * 0.1**at).clamp_min(self.total_variation) for at in range(4)]
        return step_decay_stages([objective.with_prior(tv) for tv in weights], self.learning_rate, self.iterations)

    def _problem(self, trials: Trials, victim: Victim) -> MatchingProblem:
        problem = super()._problem(trials, victim)
        if self.cost != "l2" or not self.total_variation:
            return problem
        # The noise keeps the gradients apart, by far more than what is lost where they are not formed.
        return replace(problem, cost=replace(problem.cost, by_products=squared_by_products, squared=True))

    def _prior(self, observation: ClientUpdate) -> float:
        """Weight of the mean total variation; see the class."""
        noise = gradient_noise(observation, self.noise_std, self.step_noise_std)
        if not noise:
            return self.total_variation
        scale = noise if self.cost == "l1" else 2 * noise**2
        count = min(observation.num_examples, self.max_images)
        return scale * count * torch.Size(observation.input_shape).numel() / PIXEL_SCALE


def gradient_noise(observation: ClientUpdate, noise_std: float, step_noise_std: float) -> float:
    """Standard deviation of the noise in ``observation.gradient()``; 0 where the learning rate is not known.

    With T steps of SGD, and c_t by how many learning rates noise in the gradient of step t has moved the weights at the end (1
    without momentum and weight decay), the variance is

        (noise_std^2 / rate^2 + step_noise_std^2 sum_t c_t^2) / (step_length T)^2.

    How noise in one step changes the gradients of later ones is left out.
    """
    rate, steps = observation.learning_rate, observation.local_steps
    if rate is None or rate <= 0 or steps < 1:
        return 0.0
    path = weight_path(0.0, 1.0, steps, LocalSGD.of(observation))
    moved = sum((end / rate) ** 2 for end in path) if step_noise_std else 0.0
    variance = (noise_std / rate) ** 2 + step_noise_std**2 * moved
    return float(variance**0.5 / (observation.step_length * steps))


def _strength(stages: Sequence[UpdateDefense], laplace_only: bool) -> float:
    """Of the sum of these noises: its standard deviation; of Laplace noise alone, the scale."""
    variance = sum(stage.std**2 for stage in stages if isinstance(stage, GAUSSIAN))
    scales = [stage.scale for stage in stages if isinstance(stage, LaplaceNoise)]
    # The variance of Laplace(0, s) is 2 s^2.
    laplace = sum(scale**2 for scale in scales)
    return float(laplace**0.5 if laplace_only else (variance + 2 * laplace) ** 0.5)


@algorithm
class MaskedInversion(GradientInversion):
    """Match only the entries of the gradient that pruning kept; pruned entries are unknown, not small.

    An entry counts as pruned if it was sent as exactly zero (pruning per update), or if weight decay alone explains the change of
    its weight, within rounding (pruning per step). Over several steps, only entries pruned in all of them can be seen. Noise
    after the pruning erases the mask. The smallest entries of each tensor, as many as the pipeline prunes, then count as pruned;
    this is right if the noise is smaller than the kept entries. Without pruning the attack is ``InvertingGradients``.

    Attributes:
        pruned_fraction: Pruned share of every tensor if the mask must be guessed by size; 0 if the mask can be seen. ``fit`` sets
            it from the pipeline.
    """

    source = "Huang 2021 (evaluating gradient inversion), section 3.1; Geiping 2020, Eq. 4"
    threat = "as GradientInversion, and that entries were pruned, and how many"

    cost: str = "masked-cosine"
    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True
    pruned_fraction: float = learned_field(0.0)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """The attack for the pipeline's pruning and what follows it."""
        fraction, erased = 0.0, False
        for stage in knowledge.pipeline.update_defenses:
            if isinstance(stage, Pruning):
                fraction, erased = stage.fraction, False
            elif isinstance(stage, GAUSSIAN | LaplaceNoise):
                erased = erased or bool(stage.scale if isinstance(stage, LaplaceNoise) else stage.std)
        return replace(self, pruned_fraction=float(fraction) if erased else 0.0)

    def observed_gradient(self, observation: ClientUpdate) -> Update:
        """The gradient with zeros where an entry is missing."""
        gradient, missing = observation.gradient(), self.missing(observation)
        return {name: value.masked_fill(missing[name].to(value.device), 0) for name, value in gradient.items()}

    def missing(self, observation: ClientUpdate) -> Update:
        """Name -> whether an entry is missing."""
        if not self.pruned_fraction:
            return _untouched(observation)
        return {name: prune_smallest(sent, self.pruned_fraction) == 0 for name, sent in observation.update.items()}


def _untouched(observation: ClientUpdate) -> Update:
    """Name -> whether nothing but weight decay can have moved a weight."""
    steps, drift = observation.local_steps, 0.0
    if observation.weight_decay and observation.learning_rate is not None:
        drift = weight_path(1.0, 0.0, steps, LocalSGD.of(observation))[-1] - 1
    missing = {}
    for name, weight in trained_parameters(observation.model).items():
        sent, held = observation.update[name].detach(), weight.detach().to(observation.update[name])
        # Each step rounds the weight by half a unit in its last place, and so may be off by as much.
        rounding = 2 * steps * torch.finfo(sent.dtype).eps * held.abs() if drift else torch.zeros_like(held)
        missing[name] = (sent == 0) | ((sent - drift * held).abs() <= rounding)
    return missing


@algorithm
class OmittedLayerInversion(MaskedInversion):
    """Match all gradients except the weight gradients of layers that a defence changed.

    ``fit`` takes the layer from the pipeline's ``Soteria``. Otherwise each update is searched: a fully connected layer counts as
    defended if at least ``LEAST_ZERO`` of the columns of its weight gradient were sent as zero. Soteria zeroes 80 %. A layer
    after smooth activations has no zero columns; after a ReLU, an entry that is zero for every image has one anyway, and omitting
    that layer loses little. Biases are matched, and zeros of other layers are matched as zeros.

    Raises:
        AttackError: When nothing would be left to match.
    """

    source = "Balunovic 2022 (Bayesian framework for gradient leakage), section 5 (Soteria)"
    threat = "as GradientInversion, and that some layer's gradient was pruned by columns"

    learned: Soteria | None = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """The attack for the layer that the pipeline defends: over several steps hardly a column is zero in all of them."""
        stage = next((defense for defense in knowledge.pipeline.defenses if isinstance(defense, Soteria)), None)
        return replace(super().fit(knowledge, generator), learned=stage)

    def observed_gradient(self, observation: ClientUpdate) -> Update:
        """The gradient with zeros, which the cost leaves out, for the weights of defended layers."""
        gradient, omitted = observation.gradient(), self.defended(observation)
        if set(omitted) == set(gradient):
            raise AttackError(f"every gradient has zero columns ({', '.join(omitted)}); nothing is left to match")
        # Zeros that were observed are to be matched: the smallest number is no zero to the cost, and adds nothing.
        return {
            name: torch.zeros_like(value)
            if name in omitted
            else torch.where(value == 0, torch.finfo(value.dtype).tiny, value)
            for name, value in gradient.items()
        }

    def defended(self, observation: ClientUpdate) -> list[str]:
        """Names of the weights that are left out."""
        if self.learned is not None:
            return [f"{self.learned.defended(observation.model)[0]}.weight".lstrip(".")]
        missing = self.missing(observation)
        layers = [name for name, module in observation.model.named_modules() if isinstance(module, nn.Linear)]
        names = [f"{name}.weight".lstrip(".") for name in layers]
        return [name for name in names if name in missing and float(missing[name].all(0).double().mean()) >= LEAST_ZERO]
