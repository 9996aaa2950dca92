"""DP-SGD by Opacus, which takes seconds to import; its accountant lives as long as the client."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from defenses.base import DefenseError, Training, TrainingDefense
from defenses.checks import Limit, Multiplier, Probability, Scale, algorithm, require
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.random_draws import spawned
from defenses.tensors import Loss, Numbers, Shape
from defenses.training.accounting import (
    RDP,
    budget_terms,
    epsilon_by_accountant,
    epsilon_spent,
    least_epsilon,
    noise_for_budget,
    record_step,
    together,
)
from defenses.training.clipping_trial import WAY_OUT, clipping_fault
from defenses.training.example_gradients import GHOST, example_loss, example_optimizer, example_sums, ghost_loss
from defenses.training.poisson_steps import Sampling, poisson_loader, safe_for_empty_batches
from defenses.training.quiet_import import opacus_module
from defenses.training.watched_layers import attach_hooks, check_layers

LEAST_EPSILON = 1e-3
"""Of a target: less tells a reader nothing more, and takes noise beyond all use."""
LEAST_RATE = 1e-6
"""Of a sample: an epoch is then a million steps."""


@algorithm
class DPSGD(TrainingDefense):
    """Clip each example's gradient, add Gaussian noise to their sum, and track the privacy budget that is spent.

        g~ = (sum_i g_i min(1, C / ||g_i||_2) + N(0, (z C)^2 I)) / b

    over a Poisson sample, in which each of the client's n examples is with probability q. C is ``max_grad_norm`` and z the noise
    multiplier. The client's optimizer makes its step with g~. What the bound holds for, and what q and b are, depends on
    ``neighbours``:

    - "replace-one", the default: two data sets of n examples that differ in one. n is public, as clients of federated averaging
      report it: q = 1 / (steps per epoch) and b = q n follow from it. One example in place of another moves the sum by up to 2 C.
    - "add-or-remove": one data set has an example more. Nothing that a client sends may then follow from n: q is ``sample_rate``,
      an epoch is 1 / q steps, b is the batch size of the plan, and the client reports b / q examples, whatever it has, and no
      times. An example moves the sum by up to C. Choose q near b / n, or steps are too long or too short.

    The accountant "pld" takes the two mixtures of a replacement under Poisson sampling themselves, and of one example more or less
    the larger epsilon of the two directions. "rdp" takes a replacement as one example more or less at twice the norm: an upper
    bound, above the exact divergence of the two mixtures at every order of ``ORDERS``. Each step on a few examples (of a probe, see
    ``Training``) is accounted as a replacement with q = 1 under either: another example takes the place of one that was drawn.

    What a caller sees of the returned ``Training``:

    - ``model`` is the same object with the same parameter names. In train mode, its layers show ``loss`` what they see.
    - ``loader`` yields Poisson samples, which may be empty, (0, C, H, W). Such a step counts and adds noise: pass it to
      ``loss`` like any other, which returns a zero with a gradient and does not run the model.
    - ``loss`` must be called, differentiated and stepped exactly once per batch, with ``zero_grad`` before ``backward``.
    - ``state`` is a copy of the given state and is updated within each step: ``state["accountant"]`` holds every step of every
      round (JSON-serialisable; see ``epsilon_spent``), ``state["noise_multiplier"]`` the z that a target epsilon needs, computed
      once, from this training's sample rate and ``total_steps`` (or ``total_epochs``): hand in the real training first, and its
      state to probes, whose sample rate differs.

    Randomness comes from generators that are named by the one passed in (see ``spawned``). Limits of the bound: streams are not
    cryptographic, the noise is not exactly Gaussian, and a gradient may round differently in a batch of another size.

    Args:
        target_epsilon: What all epochs together may spend. 8 when neither this nor ``noise_multiplier`` is given.
        noise_multiplier: z; the standard deviation of the noise in units of ``max_grad_norm``.
        target_delta: Of the (epsilon, delta) that ``target_epsilon`` means.
        max_grad_norm: C, the largest L2 norm of one example's gradient.
        neighbours: "replace-one" or "add-or-remove"; see above.
        sample_rate: q of "add-or-remove", in (0, 1]: a public constant, never computed from n. None with "replace-one".
        accountant: Of the claimed epsilon and of ``target_epsilon``: "pld" or "rdp"; see ``epsilon_spent``. Both are upper bounds,
            and "pld" is the smaller one: the same noise has a smaller epsilon, and the same epsilon needs less noise.
        clipping: "per-example" keeps each example's gradient until the step, "ghost" what layers saw where that is less; see
            ``defenses.training.example_gradients``. Both make the same steps, up to rounding.
    """

    target_epsilon: Annotated[float, Limit(LEAST_EPSILON, 1e6)] | None = None
    noise_multiplier: Multiplier | None = None
    target_delta: Probability = 1e-5
    max_grad_norm: Scale = 1.0
    neighbours: Literal["replace-one", "add-or-remove"] = "replace-one"
    sample_rate: Annotated[float, Limit(LEAST_RATE, 1)] | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    clipping: Literal["per-example", "ghost"] = "per-example"

    adaptive_attacks = ("LossThreshold", "ShadowModels", "MatchedFilter")
    bounds_examples = True
    source = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016, Alg. 1; Opacus, arXiv 2109.12298"
    needs_group_norm = True
    replaces_optimizer = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier is None and self.target_epsilon is None:
            object.__setattr__(self, "target_epsilon", 8.0)
        exclusive = self.noise_multiplier is None or self.target_epsilon is None
        require(exclusive, self, "target_epsilon", "None when noise_multiplier is given")
        if self.target_epsilon is not None and self.accountant == RDP:
            least = least_epsilon(self.target_delta)
            reachable = f"above {least:.4g}, which no noise goes below at target_delta = {self.target_delta:g}"
            require(self.target_epsilon > least, self, "target_epsilon", reachable)
        rate = self.sample_rate
        if self.neighbours == REPLACE_ONE:
            allowed = f"None with neighbours={REPLACE_ONE!r}, where it follows from the number of examples"
            require(rate is None, self, "sample_rate", allowed)
            return
        allowed = f"a number from {LEAST_RATE:g} to 1 with neighbours={ADD_OR_REMOVE!r}: about batch size / examples per client"
        require(rate is not None, self, "sample_rate", allowed)

    def check_model(self, model: nn.Module, input_shape: Shape) -> None:
        """Refuse a model in which a step is not the sum of clipped gradients, before the run starts; see ``clipping_fault``."""
        check_layers(model, self)
        if why := clipping_fault(model, input_shape, self._sum_without_noise):
            raise DefenseError(f"{self}: {why}; {WAY_OUT}")

    def _sum_without_noise(
        self, model: nn.Module, images: Tensor, targets: Tensor, loss: Loss, norm: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See ``ClippedSum``."""
        plain = DPSGD(noise_multiplier=0.0, max_grad_norm=norm, clipping=self.clipping)
        loader = DataLoader(TensorDataset(images, targets), batch_size=len(images))
        given = Training(model, torch.optim.SGD(model.parameters()), loader, loss, 1, 1)
        training = plain.protect_training(given, torch.Generator())
        training.optimizer.zero_grad()
        training.loss(model, images, targets).backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        return example_sums(model, len(images))

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with DP-SGD; see the class.

        Raises:
            DefenseError: When the model has BatchNorm or another layer without per-example gradients, when there are no
                examples, or when the budget cannot be met.
        """
        if not len(training.loader.dataset):  # type: ignore[arg-type]
            raise DefenseError(f"{self}: the client has no examples")
        sampling, state = self._sampling(training), copy.deepcopy(training.state)
        steps, rate = sampling.steps, sampling.rate
        total = steps * training.total_epochs if training.total_steps is None else training.total_steps
        noise_multiplier = self._noise_multiplier(state, rate, total)
        watched = attach_hooks(training.model, self)
        by_steps = self.sample_rate is not None and not training.probe
        # Not through PrivacyEngine: it truncates n q to a whole number (0 for 49 batches of 1) and loses a step of 93
        # per epoch to the rounding of 1 / (1 / 93).
        ghost = self.clipping == GHOST
        kind = opacus_module("optimizers").DPOptimizerFastGradientClipping if ghost else example_optimizer()
        optimizer = kind(
            training.optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=sampling.divisor,
            loss_reduction="mean",
            generator=spawned(generator, next(training.model.parameters()).device),
        )
        watched.guard(optimizer, self)
        # A probe of several steps names the examples of each.
        drawn = not training.probe or len(training.loader) == 1
        loader = poisson_loader(training.loader, sampling, spawned(generator)) if drawn else training.loader
        loss = example_loss(training.loss, watched)
        if ghost:
            loss = ghost_loss(training.loss, watched, self.max_grad_norm, self)
        optimizer.attach_step_hook(lambda _: record_step(state, noise_multiplier / sampling.sensitivity, rate))
        return replace(
            training,
            optimizer=optimizer,
            loader=loader,
            loss=safe_for_empty_batches(loss, watched.begin),
            # The caller counted passes by the number of examples, which must not show: rounds that are counted in steps end by
            # themselves, after as many passes as that takes.
            epochs=training.total_steps if by_steps and training.total_steps else training.epochs,
            state=state,
        )

    def _sampling(self, training: Training) -> Sampling:
        """Sampling of the steps, and the divisor of their sums; see the class."""
        loader = training.loader
        if training.probe:
            return Sampling(1, 1.0, float(loader.batch_size or 1), SENSITIVITY[REPLACE_ONE])
        if self.sample_rate is None:
            steps = max(1, len(loader))
            return Sampling(steps, 1 / steps, len(loader.dataset) / steps, SENSITIVITY[REPLACE_ONE])  # type: ignore[arg-type]
        if not loader.batch_size:
            raise DefenseError(f"{self}: the loader has no batch size, by which the sum is divided")
        steps = max(1, round(1 / self.sample_rate))
        return Sampling(steps, self.sample_rate, float(loader.batch_size), SENSITIVITY[ADD_OR_REMOVE])

    def reported_examples(self, batch_size: int) -> int | None:
        """Number of examples to report: b / q under "add-or-remove", independent of the client's number of examples."""
        return None if self.sample_rate is None else max(1, round(batch_size / self.sample_rate))

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """The epsilon, at ``target_delta``, of all steps recorded in the states together, with its terms; ``inf`` without noise."""
        spent = epsilon_spent(together(states), self.target_delta, self.accountant, self.neighbours)
        terms = budget_terms(states, self.neighbours, self.max_grad_norm)
        return {"epsilon": spent, "delta": self.target_delta} | terms

    def privacy_by_accountant(self, *states: Mapping[str, Any]) -> Numbers:
        """Name of an accountant -> its epsilon of all recorded steps, where it is finite; see ``epsilon_by_accountant``."""
        epsilons = epsilon_by_accountant(together(states), self.target_delta, self.neighbours)
        return {name: epsilon for name, epsilon in epsilons.items() if math.isfinite(epsilon)}

    def _noise_multiplier(self, state: dict[str, Any], sample_rate: float, steps: int) -> float:
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        if "noise_multiplier" not in state:
            epsilon = self.target_epsilon
            assert epsilon is not None  # __post_init__ sets it
            of = (self.accountant, self.neighbours)
            noise = noise_for_budget(epsilon, self.target_delta, sample_rate, steps, *of)
            state["noise_multiplier"] = SENSITIVITY[self.neighbours] * noise
        return float(state["noise_multiplier"])
