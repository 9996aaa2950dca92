"""DP-SGD by Opacus, which takes seconds to import; its accountant lives as long as the client."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from defenses.base import DefenseError, Loss, Training, TrainingDefense
from defenses.checks import (
    LARGEST_NOISE,
    LEAST_MULTIPLIER,
    checked_field,
    choice_field,
    is_number,
    require,
    require_scale,
    scale_field,
)
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.random_draws import spawned
from defenses.training.accounting import epsilon_spent, least_epsilon, noise_for_budget, recorded_steps
from defenses.training.quiet_import import opacus_module

LEAST_RATE = 1e-6
"""Of a sample: an epoch is then a million steps."""

HOOK_WARNING = "Full backward hook is firing when gradients are computed with respect to module outputs"
"""How a warning of torch begins that every first layer under Opacus would cause."""

_LEFT_BY_HOOKS = (
    *("activations", "max_batch_len", "ft_compute_sample_grad"),  # on layers
    *("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample"),  # on parameters
)


@dataclass(frozen=True)
class _Sampling:
    """Sampling of an epoch: steps, probability of an example per step, divisor of the sum, sensitivity in clipping norms."""

    steps: int
    rate: float
    divisor: float
    sensitivity: int


def remove_hooks(model: nn.Module) -> None:
    """Remove the hooks of an earlier ``DPSGD`` from a model, so that the model can be used alone or protected again."""
    for hook in getattr(model, "autograd_grad_sample_hooks", []):
        hook.remove()
    if hasattr(model, "autograd_grad_sample_hooks"):
        del model.autograd_grad_sample_hooks
    for owner in (*model.modules(), *model.parameters()):
        for name in _LEFT_BY_HOOKS:
            if hasattr(owner, name):
                delattr(owner, name)


@dataclass(frozen=True, repr=False)
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

    The accountant takes a replacement under Poisson sampling as one example more or less at twice the norm: an upper bound, above
    the exact divergence of the two mixtures at every order of ``ORDERS``. One step on a few examples (a probe, see ``Training``) is
    accounted as a replacement with q = 1 under either: another example takes the place of one that was drawn.

    What a caller sees of the returned ``Training``:

    - ``model`` is the same object with the same parameter names. Hooks collect per-example gradients in train mode.
    - ``loader`` yields Poisson samples, which may be empty, (0, C, H, W). Such a step counts and adds noise: pass it to
      ``loss`` like any other, which returns a zero with a gradient and does not run the model.
    - ``loss`` must be called, differentiated and stepped exactly once per batch, with ``zero_grad`` before ``backward``.
    - ``state`` is a copy of the given state and is updated within each step: ``state["accountant"]`` holds every step of every
      round (JSON-serialisable; see ``epsilon_spent``), ``state["noise_multiplier"]`` the z that a target epsilon needs, computed
      once, from this training's sample rate and ``total_steps`` (or ``total_epochs``): hand in the real training first, and its
      state to probes, whose sample rate differs.

    Randomness comes from generators that are named by the one passed in (see ``spawned``). Their streams are pseudo-random but not
    cryptographic, and floating-point noise is not exactly Gaussian: the bound holds up to both.

    Args:
        target_epsilon: What all epochs together may spend. 8 when neither this nor ``noise_multiplier`` is given.
        noise_multiplier: z; the standard deviation of the noise in units of ``max_grad_norm``.
        target_delta: Of the (epsilon, delta) that ``target_epsilon`` means.
        max_grad_norm: C, the largest L2 norm of one example's gradient.
        neighbours: "replace-one" or "add-or-remove"; see above.
        sample_rate: q of "add-or-remove", in (0, 1]: a public constant, never computed from n. None with "replace-one".
    """

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float = checked_field(1e-5, lambda value: is_number(value) and 0 < value < 1, "a number in (0, 1)")
    max_grad_norm: float = scale_field(1.0)
    neighbours: str = choice_field(REPLACE_ONE, (REPLACE_ONE, ADD_OR_REMOVE))
    sample_rate: float | None = None

    adaptive_attacks: ClassVar[tuple[str, ...]] = ("LossThreshold", "ShadowModels")
    bounds_examples: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Abadi et al., Deep Learning with Differential Privacy, CCS 2016, Alg. 1; Opacus, arXiv 2109.12298"
    )
    needs_group_norm: ClassVar[bool] = True
    replaces_optimizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier is None and self.target_epsilon is None:
            object.__setattr__(self, "target_epsilon", 8.0)
        if self.noise_multiplier is not None:
            require_scale(self, "noise_multiplier", zero=True, least=LEAST_MULTIPLIER, most=LARGEST_NOISE)
            require(self.target_epsilon is None, self, "target_epsilon", "None when noise_multiplier is given")
        else:
            budget = (
                is_number(self.target_epsilon) and self.target_epsilon is not None and 0 < self.target_epsilon <= 1e6
            )
            require(budget, self, "target_epsilon", "a number above 0 and up to 1e6, or None with a noise_multiplier")
        if self.target_epsilon is not None:
            least = least_epsilon(self.target_delta)
            reachable = f"above {least:.4g}, which no noise goes below at target_delta = {self.target_delta:g}"
            require(self.target_epsilon > least, self, "target_epsilon", reachable)
        self._check_neighbours()

    def _check_neighbours(self) -> None:
        rate = self.sample_rate
        if self.neighbours == REPLACE_ONE:
            allowed = f"None with neighbours={REPLACE_ONE!r}, where it follows from the number of examples"
            require(rate is None, self, "sample_rate", allowed)
            return
        public = is_number(rate) and rate is not None and LEAST_RATE <= rate <= 1
        allowed = f"a number from {LEAST_RATE:g} to 1 with neighbours={ADD_OR_REMOVE!r}: about batch size / examples per client"
        require(public, self, "sample_rate", allowed)

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
        _attach_hooks(training.model, self)
        by_steps = self.sample_rate is not None and not training.probe
        # Not through PrivacyEngine: it truncates n q to a whole number (0 for 49 batches of 1) and loses a step of 93
        # per epoch to the rounding of 1 / (1 / 93).
        optimizer = opacus_module("optimizers").DPOptimizer(
            training.optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=sampling.divisor,
            loss_reduction="mean",
            generator=spawned(generator, next(training.model.parameters()).device),
        )
        optimizer.attach_step_hook(lambda _: _record(state, noise_multiplier / sampling.sensitivity, rate))
        return replace(
            training,
            optimizer=optimizer,
            loader=_poisson_loader(training.loader, sampling, spawned(generator)),
            loss=_safe_for_empty_batches(training.loss),
            # The caller counted passes by the number of examples, which must not show: rounds that are counted in steps end by
            # themselves, after as many passes as that takes.
            epochs=training.total_steps if by_steps and training.total_steps else training.epochs,
            state=state,
        )

    def _sampling(self, training: Training) -> _Sampling:
        """Sampling of the steps, and the divisor of their sums; see the class."""
        loader = training.loader
        if training.probe:
            return _Sampling(1, 1.0, float(loader.batch_size or 1), SENSITIVITY[REPLACE_ONE])
        if self.sample_rate is None:
            steps = max(1, len(loader))
            return _Sampling(steps, 1 / steps, len(loader.dataset) / steps, SENSITIVITY[REPLACE_ONE])  # type: ignore[arg-type]
        if not loader.batch_size:
            raise DefenseError(f"{self}: the loader has no batch size, by which the sum is divided")
        steps = max(1, round(1 / self.sample_rate))
        return _Sampling(steps, self.sample_rate, float(loader.batch_size), SENSITIVITY[ADD_OR_REMOVE])

    def reported_examples(self, batch_size: int) -> int | None:
        """Number of examples to report: b / q under "add-or-remove", independent of the client's number of examples."""
        return None if self.sample_rate is None else max(1, round(batch_size / self.sample_rate))

    def privacy(self, *states: Mapping[str, Any]) -> dict[str, float]:
        """The epsilon, at ``target_delta``, of all steps recorded in the states together; ``inf`` without noise."""
        steps = [entry for state in states for entry in recorded_steps(state)]
        spent = epsilon_spent({"accountant": {"steps": steps}}, self.target_delta)
        return {"epsilon": spent, "delta": self.target_delta}

    def _noise_multiplier(self, state: dict[str, Any], sample_rate: float, steps: int) -> float:
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        if "noise_multiplier" not in state:
            epsilon = self.target_epsilon
            assert epsilon is not None  # __post_init__ sets it
            noise = noise_for_budget(epsilon, self.target_delta, sample_rate, steps)
            state["noise_multiplier"] = SENSITIVITY[self.neighbours] * noise
        return float(state["noise_multiplier"])


def _attach_hooks(model: nn.Module, owner: DPSGD) -> None:
    # Opacus watches layers that see the images themselves, of which no gradient is computed. This warning of torch is about that.
    warnings.filterwarnings("ignore", HOOK_WARNING, UserWarning)
    if layers := [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]:
        raise DefenseError(
            f"{owner}: BatchNorm ({', '.join(layers[:3])}) mixes examples, so that no bound per example holds; "
            "use GroupNorm"
        )
    remove_hooks(model)
    for module in model.modules():
        # Backward hooks cannot watch a layer that overwrites its input; the function computed is the same.
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    try:
        opacus_module("validators").ModuleValidator.validate(model, strict=True)
        per_example = opacus_module("grad_sample").GradSampleModule
        per_example(model, batch_first=True, loss_reduction="mean").forbid_grad_accumulation()
    except (NotImplementedError, ValueError) as error:
        raise DefenseError(f"{owner}: the model has no gradients per example: {error}") from error


def _record(state: dict[str, Any], noise_multiplier: float, sample_rate: float) -> None:
    """Adds one step to the recorded ones, [[noise over sensitivity, sample rate, number of steps], ...]."""
    accountant = state.setdefault("accountant", {})
    steps = accountant.setdefault("steps", [])
    if steps and steps[-1][:2] == [noise_multiplier, sample_rate]:
        steps[-1][2] += 1
    else:
        steps.append([noise_multiplier, sample_rate, 1])


def _poisson_loader(loader: DataLoader[Any], sampling: _Sampling, generator: torch.Generator) -> DataLoader[Any]:
    """Batches of an epoch, each example in each of them with the probability of ``sampling``."""
    dataset = loader.dataset
    sampler = opacus_module("utils.uniform_sampler").UniformWithReplacementSampler(
        num_samples=len(dataset),  # type: ignore[arg-type]
        sample_rate=sampling.rate,
        generator=generator,
        steps=sampling.steps,
    )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=functools.partial(_collate_or_empty, loader.collate_fn, dataset[0]),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        generator=generator,
    )


def _collate_or_empty(collate: Callable[[list[Any]], Any], example: Any, examples: list[Any]) -> Any:
    return collate(examples) if examples else [part[:0] for part in collate([example])]


def _safe_for_empty_batches(loss: Loss) -> Loss:
    """The same loss, and zero for no examples, whose mean is NaN; its gradient has no per-example parts to add."""

    def safe(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        if len(images):
            return loss(model, images, targets)
        zero = torch.zeros((), device=images.device, requires_grad=True)
        # At the time of backward, because zero_grad may come between the loss and it.
        zero.register_hook(lambda _: _set_no_examples(model))  # type: ignore[no-untyped-call]
        return zero

    return safe


def _set_no_examples(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
