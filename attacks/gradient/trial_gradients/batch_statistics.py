"""Batch statistics that BatchNorm's running averages reveal, and those of dummy images."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.gradient.trial_gradients.matching import Statistics, attackable
from attacks.observations import AttackError, ClientUpdate
from defenses.module_calls import calls_of


def sent_statistics(observation: ClientUpdate) -> Statistics:
    """Mean and variance of every BatchNorm layer's input in a client's one step, exact for an undefended update.

    A step in train mode moves the running averages r to (1 - m) r + m s, where s is the batch's value and m the layer's momentum.
    torch averages the unbiased variance and normalises by the biased one, so that variances are multiplied by (n - 1) / n, where n
    is the number of values per channel of the batch.

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
    private = attackable(observation.model, train_mode=False)
    names_of: dict[nn.Module, str] = {layer: name for name, layer in batch_norms(private).items()}
    with torch.no_grad(), calls_of(names_of) as calls:
        private(next(private.parameters()).new_zeros(1, *observation.input_shape))
    # Values per channel: examples times positions of the feature map.
    examples = min(observation.batch_size, observation.num_examples)
    counts = {names_of[layer]: examples * maps[0, 0].numel() for layer, maps, _ in calls}
    buffers, statistics = dict(observation.model.named_buffers()), Statistics()
    for name, layer in batch_norms(observation.model).items():
        names = [f"{name}.running_{what}".lstrip(".") for what in ("mean", "var")]
        moved = [observation.update[key] for key in names if key in observation.update]
        if len(moved) < 2 or not any(bool(delta.any()) for delta in moved):
            continue
        if not layer.momentum:
            raise AttackError(f"{name!r} keeps a plain average of all its batches, whose number is not sent")
        weight = 1 - (1 - layer.momentum)
        mean, variance = (_solve(buffers[key], delta, weight) for key, delta in zip(names, moved, strict=True))
        if not (mean.isfinite().all() and variance.isfinite().all()):
            raise AttackError(f"the running averages of {name!r} hold NaN or infinite values")
        statistics[name] = (mean, variance.clamp(min=0) * (counts[name] - 1) / counts[name])
    if not statistics:
        raise AttackError("the update holds no running averages of a BatchNorm layer")
    return statistics


def _solve(running: Tensor, delta: Tensor, weight: float) -> Tensor:
    if running.shape != delta.shape:
        raise AttackError(f"running averages have shape {tuple(delta.shape)}, the model {tuple(running.shape)}")
    return running + delta.to(running) / weight


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Name -> BatchNorm layer, in order of definition."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


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

    ``model`` is from ``attackable`` with ``train_mode``.
    """

    model: nn.Module
    weight: float

    def __call__(self, images: Tensor, observed: Statistics) -> Tensor:
        """Its value, 0-d, for the normalised images (b, C, H, W) of one trial."""
        names: dict[nn.Module, str] = {layer: name for name, layer in batch_norms(self.model).items()}
        state = {name: p.detach() for name, p in self.model.named_parameters()}, dict(self.model.named_buffers())
        with calls_of(names) as calls:
            functional_call(self.model, state, (images,))
        entered = {names[layer]: values.transpose(0, 1).flatten(1) for layer, values, _ in calls}  # (C, B * H * W)
        statistics = {name: (rows.mean(1), rows.var(1, unbiased=False)) for name, rows in entered.items()}
        return self.of(statistics, observed)

    def of(self, dummy: Statistics, observed: Statistics) -> Tensor:
        """``weight`` times the distance of the dummy images' statistics ``dummy`` (C,) each to those sent; 0-d."""
        return self.weight * statistics_distance(observed, dummy)
