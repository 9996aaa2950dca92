"""Update defences of a client that trains a part of its model."""

from __future__ import annotations

import torch
from torch import nn

from clients.training.sgd import protect_update
from defenses.spec import parse


def test_defences_do_not_touch_what_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    update = {name: torch.zeros_like(value) for name, value in tensors if value.is_floating_point()}
    pipeline = parse("GaussianNoise(std=1.0, per='update')")
    found = protect_update(pipeline, model, update, ("a key", 0))
    assert list(found) == list(update)
    still = [name for name, value in found.items() if not value.any()]
    assert still == ["0.weight", "0.bias"]


def test_without_frozen_parameters_it_is_the_pipeline_alone() -> None:
    model = nn.Linear(3, 2)
    update = {name: torch.ones_like(value) for name, value in model.named_parameters()}
    pipeline = parse("GaussianNoise(std=1.0, per='update')")
    found, expected = protect_update(pipeline, model, update, ("k",)), pipeline.protect_update(update, ("k",))
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
