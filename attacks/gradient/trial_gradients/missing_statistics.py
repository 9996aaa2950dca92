"""Batch statistics that stand in for those that a client did not send: the global model's, or those of auxiliary images."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from attacks.base import Knowledge
from attacks.gradient.trial_gradients.batch_statistics import (
    Statistics,
    batch_norms,
    call_with_statistics,
    values_per_channel,
)
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.base import Batch

NONE, RUNNING, PROXY = "none", "running", "proxy"
STAND_INS = (NONE, RUNNING, PROXY)
PROXY_BATCHES = 32
"""Most batches of auxiliary images whose statistics are averaged."""
MOST_PROXIES = 1024
"""Most auxiliary images that an attack keeps."""


def kept_layers(observation: ClientUpdate, sent: Collection[str]) -> list[str]:
    """BatchNorm layers with running averages that a client in train mode did not send, in the model's order.

    Over several local steps, layers without a momentum are left out: the weight of each step in their average is unknown.
    """
    if not observation.train_mode:
        return []
    weighed = observation.local_steps == 1
    return [
        name
        for name, layer in batch_norms(observation.model).items()
        if name not in sent and layer.running_mean is not None and (weighed or layer.momentum)
    ]


def arrived_layers(observation: ClientUpdate) -> set[str]:
    """BatchNorm layers with a running average that moved in the update, whether or not its statistics can be solved for."""
    moved = {name for name, value in observation.update.items() if bool(value.any())}
    return {
        name
        for name in batch_norms(observation.model)
        if moved & {f"{name}.{of}".lstrip(".") for of in ("running_mean", "running_var")}
    }


def running_statistics(observation: ClientUpdate, layers: Collection[str]) -> Statistics:
    """The running averages of the global model in some layers, as statistics of a batch of the client's size.

    torch averages unbiased variances. With n values per channel in a batch, (n - 1) / n of one is the biased variance that a batch
    of the same distribution has. Layers that hold NaN or infinite values, or still the initial averages (mean 0 and variance 1 in
    every channel), are left out. If all clients of a federation use SiloBN, the global model has initial averages in every layer.

    Source: Yin et al., "See through Gradients" (GradInversion), 2021, Eq. 9, with the global model's averages.
    """
    counts, found = values_per_channel(observation, batch_examples(observation)), Statistics()
    for name, layer in batch_norms(observation.model).items():
        mean, variance = layer.running_mean, layer.running_var
        if name not in layers or name not in counts or mean is None or variance is None:
            continue
        initial = not bool(mean.any()) and bool((variance == 1).all())
        if not initial and bool(mean.isfinite().all() and variance.isfinite().all()):
            found[name] = (mean.clone(), variance.clamp(min=0) * (counts[name] - 1) / counts[name])
    return found


def proxy_statistics(
    observation: ClientUpdate, model: nn.Module, images: torch.Tensor, layers: Collection[str]
) -> Statistics:
    """Mean over batches of auxiliary images of their statistics in some layers, at the global model in train mode.

    Args:
        observation: Whose batch size and normalisation the batches have.
        model: The global model, from ``attackable`` with ``train_mode``.
        images: (N, C, H, W) in [0, 1]. Up to ``PROXY_BATCHES`` batches are cut from them in order; the rest is not used.
        layers: Names of BatchNorm layers.

    Returns:
        Mean and biased variance, (C,) each, of every layer of ``layers`` that the images enter.

    Raises:
        AttackError: When there are fewer images than a batch has, or their shape is not that of the client's images.

    Source: the proxy statistics of LeakPro (https://github.com/aidotse/LeakPro, "GIA Estimate").
    """
    size = batch_examples(observation)
    if tuple(images.shape[1:]) != observation.input_shape:
        raise AttackError(
            f"auxiliary images have shape {tuple(images.shape[1:])}; allowed: {observation.input_shape}, as the client's"
        )
    if len(images) < size:
        raise AttackError(f"{len(images)} auxiliary images; statistics of a batch need at least {size}")
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    like, buffers = next(iter(parameters.values())), dict(model.named_buffers())
    batches = [part for part in torch.split(images[: PROXY_BATCHES * size], size) if len(part) == size]
    with torch.no_grad():
        each = [
            call_with_statistics(model, parameters, buffers, normalise(part.to(like), observation))[1]
            for part in batches
        ]
    return {
        name: (torch.stack([one[name][0] for one in each]).mean(0), torch.stack([one[name][1] for one in each]).mean(0))
        for name in each[0]
        if name in layers
    }


def batch_examples(observation: ClientUpdate) -> int:
    """Examples of one full batch of the client, at most all of its examples."""
    return min(observation.batch_size, observation.num_examples)


def proxy_images(knowledge: Knowledge, generator: torch.Generator) -> Batch:
    """At most ``MOST_PROXIES`` auxiliary examples in random order, as the clients' defences of images leave them.

    The defences draw with a key of the attacker's own, from ``generator``.
    """
    whole = knowledge.auxiliary
    rows = torch.randperm(len(whole), generator=generator)[:MOST_PROXIES].to(whole.images.device)
    key = ("proxies", int(torch.randint(1 << 62, (), generator=generator)))
    once = knowledge.pipeline.protect_once(Batch(whole.images[rows], whole.targets[rows]), key)
    return knowledge.pipeline.protect_batch(once, key)
