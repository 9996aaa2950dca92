"""Running averages that dummy images would leave behind, compared with those that a client sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.gradient.trial_gradients.batch_statistics import (
    Statistics,
    StatisticsPrior,
    batch_norms,
    call_with_statistics,
    statistics_distance,
    values_per_channel,
)
from attacks.gradient.trial_gradients.matching import (
    GradientMatching,
    MatchingProblem,
    PriorInput,
    guessed_order,
    unrolled_training,
)
from attacks.observations import ClientUpdate, trained_parameters
from defenses.base import Update


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
