"""Batch statistics that BatchNorm's running averages reveal, and those of dummy images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.gradient.trial_gradients.matching import (
    GradientMatching,
    MatchingProblem,
    PriorInput,
    attackable,
    guessed_order,
    unrolled_training,
)
from attacks.observations import AttackError, ClientUpdate, trained_parameters
from defenses.base import NamedTensors, Update
from defenses.module_calls import calls_of

Statistics = dict[str, tuple[Tensor, Tensor]]
"""Layer name -> (mean, variance) over a batch of what enters it, one value per channel; biased, as BatchNorm normalises."""


def sent_statistics(observation: ClientUpdate) -> Statistics:
    """Mean and variance of every BatchNorm layer's input in a client's local steps, exact for an undefended update.

    A step in train mode moves the running averages r to (1 - m) r + m s, where s is the batch's value and m the layer's momentum.
    After T steps on batches with the values s_1 .. s_T, r_T reveals a weighted mean of these, which is s_1 for one step:

        sum_t share_t s_t = (r_T - (1 - m)^T r_0) / (1 - (1 - m)^T),    share_t = m (1 - m)^(T - t) / (1 - (1 - m)^T)

    torch averages the unbiased variance and normalises by the biased one, so that variances are multiplied by (n - 1) / n, where n
    is the number of values per channel of a full batch.

    Returns:
        One entry per layer whose running averages were sent, in the model's order. A negative variance (from a defence) is 0.
        Running averages that did not move at all were not sent: no batch has exactly their values.

    Source: Yin et al., "See through Gradients" (GradInversion), 2021, section 3.3, assumes the statistics known; this is why they
    are, when buffers are sent (Huang et al., "Evaluating Gradient Inversion Attacks", 2021, section 3).
    """
    if not observation.train_mode:
        raise AttackError(
            "batch statistics can be read from steps in train mode; in eval mode no running average moves"
        )
    counts = values_per_channel(observation, min(observation.batch_size, observation.num_examples))
    buffers, found = dict(observation.model.named_buffers()), Statistics()
    for name, layer in batch_norms(observation.model).items():
        names = [f"{name}.running_{what}".lstrip(".") for what in ("mean", "var")]
        moved = [observation.update[key] for key in names if key in observation.update]
        if len(moved) < 2 or not any(bool(delta.any()) for delta in moved):
            continue
        if not layer.momentum:
            raise AttackError(f"{name!r} keeps a plain average of all its batches, whose number is not sent")
        weight = 1 - (1 - layer.momentum) ** observation.local_steps
        mean, variance = (_solve(buffers[key], delta, weight) for key, delta in zip(names, moved, strict=True))
        if not (mean.isfinite().all() and variance.isfinite().all()):
            raise AttackError(f"the running averages of {name!r} hold NaN or infinite values")
        found[name] = (mean, variance.clamp(min=0) * (counts[name] - 1) / counts[name])
    if not found:
        raise AttackError("the update holds no running averages of a BatchNorm layer")
    return found


def _solve(running: Tensor, delta: Tensor, weight: float) -> Tensor:
    if running.shape != delta.shape:
        raise AttackError(f"running averages have shape {tuple(delta.shape)}, the model {tuple(running.shape)}")
    return running + delta.to(running) / weight


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Name -> BatchNorm layer, in order of definition."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def call_with_statistics(
    model: nn.Module, parameters: NamedTensors, buffers: NamedTensors, images: Tensor
) -> tuple[Tensor, Statistics]:
    """Logits (B, K) of normalised images (B, C, H, W), and the batch statistics of every BatchNorm layer.

    Pure, and differentiable under ``torch.func.grad`` and ``vmap``, for a model from ``attackable`` with ``train_mode``, which
    normalises by the batch.
    """
    names: dict[nn.Module, str] = {layer: name for name, layer in batch_norms(model).items()}
    with calls_of(names) as calls:
        logits = functional_call(model, (dict(parameters), dict(buffers)), (images,))
    entered = {names[layer]: values.transpose(0, 1).flatten(1) for layer, values, _ in calls}  # (C, B * H * W)
    return logits, {name: (rows.mean(1), rows.var(1, unbiased=False)) for name, rows in entered.items()}


def plausible(statistics: Mapping[str, tuple[Tensor, Tensor]]) -> frozenset[str]:
    """Layers all of whose variances (..., C) are positive. Noise of std s on a running variance is one of s / momentum here.

    Normalising by a variance of 0 would multiply features by 1 / sqrt(eps), which is 316.
    """
    return frozenset(name for name, (_, variance) in statistics.items() if bool((variance > 0).all()))


def statistics_distance(observed: Statistics, dummy: Statistics) -> Tensor:
    """Mean over layers and channels of the squared differences, relative to the observed variance; a 0-d tensor.

        (m - m')^2 / (v + eps) + (v - v')^2 / (v + eps)^2,   eps = 1e-5 of BatchNorm

    A channel whose observed variance is 0 (or was sent below 0) adds 0: relative to eps it would outweigh all others.

    Differs from Yin et al. 2021, Eq. 9, sums of norms, which have no derivative at their minimum and follow the scale of features.
    """
    if missing := sorted(set(observed) - set(dummy)):
        raise AttackError(f"the dummy statistics lack {missing[:3]}")
    terms = []
    for name, (mean, variance) in observed.items():
        known = variance > 0
        scale = torch.where(known, variance + 1e-5, 1.0)
        off_mean, off_variance = dummy[name][0] - mean, dummy[name][1] - variance
        terms.append(known * (off_mean.square() / scale + (off_variance / scale).square()))
    return torch.cat(terms).mean()


@dataclass(frozen=True)
class StatisticsPrior:
    """``weight`` times ``statistics_distance`` of the dummy images, as one batch, to what was sent: of ``GradientMatching``.

    Attributes:
        model: From ``attackable`` with ``train_mode``.
        weight: Of the distance.
    """

    model: nn.Module
    weight: float

    def __call__(self, images: Tensor, observed: PriorInput) -> Tensor:
        """Its value, 0-d, for the normalised images (b, C, H, W) of one trial."""
        state = {name: p.detach() for name, p in self.model.named_parameters()}, dict(self.model.named_buffers())
        return self.of(call_with_statistics(self.model, *state, images)[1], observed)

    def of(self, dummy: Statistics, observed: PriorInput) -> Tensor:
        """``weight`` times the distance of the dummy images' statistics ``dummy`` (C,) each to those sent; 0-d."""
        return self.weight * statistics_distance(observed.statistics, dummy)


def values_per_channel(observation: ClientUpdate, examples: int) -> dict[str, int]:
    """Values per channel of every layer in a batch of so many examples: examples times positions of its feature map."""
    model = attackable(observation.model, train_mode=False)
    names: dict[nn.Module, str] = {layer: name for name, layer in batch_norms(model).items()}
    with torch.no_grad(), calls_of(names) as calls:
        model(next(model.parameters()).new_zeros(1, *observation.input_shape))
    return {names[layer]: examples * maps[0, 0].numel() for layer, maps, _ in calls}


@dataclass(frozen=True)
class AveragedSteps:
    """How the running averages of a client weigh the batches of its local steps.

    Attributes:
        order: Examples of each step's batch, guessed (``guessed_order``).
        shares: Layer -> what each step counts in the average, T numbers; they sum to 1.
        variance_shares: Layer -> what each step's biased variance counts, T numbers. They differ from ``shares`` where batches
            differ in size, as torch averages unbiased variances.
    """

    order: list[list[int]]
    shares: Mapping[str, list[float]]
    variance_shares: Mapping[str, list[float]]

    @classmethod
    def of(cls, observation: ClientUpdate) -> AveragedSteps:
        """That of a client whose BatchNorm layers have a momentum, which ``sent_statistics`` requires."""
        order = guessed_order(observation)
        full = values_per_channel(observation, len(order[0]))
        layers = {
            name: layer for name, layer in batch_norms(observation.model).items() if layer.momentum and name in full
        }
        shares = {name: averaging_shares(float(layer.momentum or 0), len(order)) for name, layer in layers.items()}

        def unbiased(name: str, examples: int) -> float:
            values = full[name] * examples // len(order[0])
            return values / (values - 1) * (full[name] - 1) / full[name] if values > 1 else 1.0

        return cls(
            order,
            shares,
            {
                name: [share * unbiased(name, len(batch)) for share, batch in zip(mine, order, strict=True)]
                for name, mine in shares.items()
            },
        )

    def average(self, steps: Sequence[Statistics]) -> Statistics:
        """The weighted mean of the statistics of all steps, as ``sent_statistics`` reads it of an update."""
        return {
            name: (_weighted(self.shares[name], [one[name][0] for one in steps]),
                   _weighted(self.variance_shares[name], [one[name][1] for one in steps]))
            for name in self.shares
        }  # fmt: skip


def averaging_shares(momentum: float, steps: int) -> list[float]:
    """Weights of each of so many steps in a running average, the initial value left out; they sum to 1."""
    rest = 1 - (1 - momentum) ** steps
    return [momentum * (1 - momentum) ** (steps - 1 - at) / rest for at in range(steps)]


def observed_statistics(observations: Sequence[ClientUpdate], statistics: Sequence[Statistics]) -> PriorInput:
    """Stack what the priors below read of targets: (T, C) for each statistic, (T, *shape) for each parameter's move."""
    found = {
        name: (torch.stack([one[name][0] for one in statistics]), torch.stack([one[name][1] for one in statistics]))
        for name in statistics[0]
    }
    if not found or observations[0].local_steps == 1:
        return PriorInput(found, {})
    weights = trained_parameters(observations[0].model)
    moves = {
        name: torch.stack([one.update[name].detach().to(weight) for one in observations])
        for name, weight in weights.items()
    }
    return PriorInput(found, moves)


def statistics_prior(
    model: nn.Module, observation: ClientUpdate, weight: float
) -> Callable[[Tensor, PriorInput], Tensor]:
    """A prior without unrolling: ``weight`` times ``statistics_distance`` of the dummy images' statistics to those sent.

    The statistics of step t belong to weights that the server does not know. They are taken on the line between the two models
    that it knows, at w_0 + (t - 1) / T (w_T - w_0). Several steps need a dummy image for every example.
    """
    if observation.local_steps == 1:
        return StatisticsPrior(model, weight)
    parameters, buffers = {name: p.detach() for name, p in model.named_parameters()}, dict(model.named_buffers())
    steps = AveragedSteps.of(observation)

    def prior(images: Tensor, observed: PriorInput) -> Tensor:
        found = []
        for at, batch in enumerate(steps.order):
            share = at / len(steps.order)
            between = {name: parameters[name] + share * move for name, move in observed.moves.items()}
            found.append(call_with_statistics(model, parameters | between, buffers, images[batch])[1])
        return weight * statistics_distance(observed.statistics, steps.average(found))

    return prior


class UnrolledMatching(GradientMatching):
    """The objective for local training that is unrolled, with the running averages that this training leaves behind.

    Args:
        problem: Whose ``client`` plays no part, because ``observation`` says how to train.
        observation: Whose training is unrolled.
        weight: Of ``statistics_distance``.
    """

    def __init__(self, problem: MatchingProblem, observation: ClientUpdate, weight: float) -> None:
        super().__init__(problem)
        self._weight, self._steps = weight, AveragedSteps.of(observation)
        self._training = unrolled_training(self._call, observation)

    def _call(self, weights: Update, images: Tensor) -> tuple[Tensor, Statistics]:
        return call_with_statistics(self.model, weights, self.buffers, images)

    def _loss(self, unknowns: Tensor, known: Tensor, target: Update, observed: PriorInput, smoothing: Tensor) -> Tensor:
        images, labels = self.read(unknowns, known)
        dummy, statistics = self._training(self.parameters, images, labels)
        distance = statistics_distance(observed.statistics, self._steps.average(statistics))
        return self.cost.distance(dummy, target) + self._weight * distance + self.priors(images, observed, smoothing)


def _weighted(shares: Sequence[float], values: Sequence[Tensor]) -> Tensor:
    total = shares[0] * values[0]
    for share, value in zip(shares[1:], values[1:], strict=True):
        total = total + share * value
    return total
