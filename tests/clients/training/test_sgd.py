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


def test_what_follows_the_data_without_a_gradient_is_protected() -> None:
    model = nn.Linear(3, 2)
    model.register_parameter("average", nn.Parameter(torch.zeros(3), requires_grad=False))
    update = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    update["average"] = torch.tensor([0.1, 0.2, 0.3])
    found = protect_update(parse("GaussianNoise(std=10.0, per='update')"), model, update, ("k",))
    assert (found["average"] - update["average"]).abs().min() > 0.1


def test_under_a_bound_for_the_client_every_entry_is_protected() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    update = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    found = protect_update(parse("ClientDP()"), model, update, ("k",))
    assert all(value.any() for value in found.values())
