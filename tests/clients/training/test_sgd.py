"""Update defences of a client that trains a part of its model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attacks.local_model import shared_tensors
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


class Averaging(nn.Module):
    """A frozen parameter, a buffer and whole numbers that nothing differentiates, beside a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.average = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.codes = nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))
        self.last = nn.Linear(3, 2)


def moved(model: nn.Module) -> dict[str, torch.Tensor]:
    """An update of every floating-point tensor, as a client hands it to its defences."""
    return {name: torch.full_like(value, 0.5) for name, value in shared_tensors(model).items()}


BOUNDS = (
    "ClientDP()",
    "FlowerLocalDP()",
    "Clip() | ClientDP(noise_multiplier=0.5)",
    "DPSGD() | GaussianNoise(per='update')",
)


@pytest.mark.parametrize("text", [*BOUNDS, "DPSGD()", "GaussianNoise(per='step')"])
def test_nothing_is_sent_of_a_frozen_parameter_that_a_defence_would_not_cover(text: str) -> None:
    model = Averaging()
    found = protect_update(parse(text), model, moved(model), ("k",))
    assert list(found) == list(moved(model)), "the names of whole numbers are not among them"
    assert not found["average"].any()
    assert found["last.weight"].any()
    assert bool(found["seen"].any()) == ("DPSGD" not in text), "a bound for examples covers gradients alone"


@pytest.mark.parametrize("text", ["ClientDP(noise_multiplier=0.0)", "FlowerLocalDP(epsilon=1e6)"])
def test_a_frozen_parameter_takes_nothing_of_the_clipping_norm(text: str) -> None:
    """Both clip to length 1; what is frozen would be nearly all of the length."""
    model = Averaging()
    update = moved(model) | {"average": torch.full((3,), 1000.0)}
    found = protect_update(parse(text), model, update, ("k",))
    rest = [value for name, value in found.items() if name != "average"]
    assert sum(float(value.square().sum()) for value in rest) == pytest.approx(1.0, abs=1e-3)


def test_what_is_not_finite_in_a_frozen_parameter_is_not_sent() -> None:
    model = Averaging()
    found = protect_update(parse("ClientDP()"), model, moved(model) | {"average": torch.full((3,), torch.nan)}, ("k",))
    assert found["average"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["", "Clip()", "GaussianNoise(per='update')"])
def test_frozen_whole_numbers_are_no_part_of_an_update(text: str) -> None:
    model = Averaging()
    assert "codes" not in protect_update(parse(text), model, moved(model), ("k",))
