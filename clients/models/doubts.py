"""Properties of an own network that cause no error but change the meaning of a run's numbers."""

from __future__ import annotations

import copy
import random
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clients.models.classifiers import build_model
from clients.models.library import ModelError
from clients.models.own import disturb
from defenses.tensors import ImageShape

RANDOM, MIXES, MIXES_IN_TRAINING = "random", "mixes", "mixes in training"
COUNT = 8
"""Images of a trial batch. A shuffle of so many is the identity once in 40,320 times."""
ROUNDING = 1e-5
"""Share of the largest logit that two forward passes of one model may differ by."""
SEEDS = (0, 1)


def examine(
    name: str, num_classes: int, input_shape: list[int], width: int, norm: str, batch_size: int = COUNT
) -> list[str]:
    """Build a model, take a step (``ModelError`` when it fails), and return its doubtful properties: ``RANDOM`` and so on."""
    channels, height, side = input_shape
    shape = (channels, height, side)
    model = build_model(name, num_classes=num_classes, input_shape=shape, width=width, norm=norm)
    found = doubts(model, shape)
    images = torch.rand(max(batch_size, 2), *shape, generator=torch.Generator().manual_seed(0))
    try:
        # As training makes it: code may do otherwise on larger batches, or in train mode.
        model.train()(images).sum().backward()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"model {name!r} fails in train mode on a batch of {len(images)} images: {type(error).__name__}: {error}"
        ) from error
    return found


def doubts(model: nn.Module, input_shape: ImageShape) -> list[str]:
    """Whether a model is random in eval mode, and whether it mixes the images of a batch, in eval or in train mode.

    BatchNorm in train mode mixes them by its definition, and is left out. The caller's random states are changed.
    """
    images = torch.randn(COUNT, *input_shape, generator=torch.Generator().manual_seed(0))
    disturbed = copy.deepcopy(model)
    disturb(disturbed)  # A last layer of zeros would hide what stands before it.
    found = set[str]()
    for one in (copy.deepcopy(model), disturbed):
        with torch.no_grad(), suppress(Exception):  # Other trials report whatever fails here.
            one.eval()
            if not _equal(*(_answers(one, images, seed) for seed in SEEDS)):
                found.add(RANDOM)
            if _mixes(one, images):
                found.add(MIXES)
            one.train()
            for layer in one.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
            if _mixes(one, images):
                found.add(MIXES_IN_TRAINING)
    return sorted(found)


def _mixes(model: nn.Module, images: Tensor) -> bool:
    """Whether the logits of images change when the other half of their batch, or the batch before, does; with the same draws.

    Each answer is of a copy, so that a model that keeps something of a batch starts alike.
    """
    fixed = COUNT // 2
    other = torch.cat([images[:fixed], images[fixed:].flip(0).neg() + 1])
    for seed in SEEDS:
        first, again = copy.deepcopy(model), copy.deepcopy(model)
        before = _answers(first, images, seed)
        if not _equal(before, _answers(again, images, seed)):
            continue  # It draws from somewhere else, and nothing is proved.
        moved = copy.deepcopy(model)
        if not _equal(before[:fixed], _answers(moved, other, seed)[:fixed]):
            return True
        if not _equal(*(_answers(one, images, seed) for one in (first, moved))):
            return True  # A moving average, for example, carries a batch into the next.
    return False


def _answers(model: nn.Module, images: Tensor, seed: int) -> Tensor:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    answers: Tensor = model(images.clone())
    return answers


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0.0, atol=ROUNDING * float(one.abs().max()), equal_nan=True)
