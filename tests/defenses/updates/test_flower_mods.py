"""Flower's client mod as a defence: its code acts, what it leaves open is closed, and the account is exact."""

import logging
import math

import numpy as np
import pytest
import torch

from defenses import Clip, FlowerLocalDP
from defenses.neighbours import CLIENT_LEVEL, level_of
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.spec import parse
from defenses.tensors import Update
from tests.defenses.updates.test_client_dp import after


def an_update(scale: float = 1.0) -> Update:
    generator = generator_for("an update")
    shapes = {"w": (3, 2), "scale": (), "none": (0,)}
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def flat(update: Update) -> torch.Tensor:
    return torch.cat([update[name].flatten() for name in sorted(update)])


@pytest.mark.numeric
def test_the_noise_is_of_the_stated_size_for_every_entry_and_clipping_comes_first() -> None:
    defense = FlowerLocalDP(clipping_norm=0.5, sensitivity=1.0, epsilon=2.0, delta=1e-3)
    clipped = flat(Clip(max_norm=0.5).protect_update(an_update(30.0), generator_for(0)))
    noise = torch.stack([flat(defense.protect_update(an_update(30.0), generator_for(seed))) for seed in range(400)])
    noise -= clipped
    # 400 draws of an entry: its standard deviation is off by more than 18 % in fewer than 1 of 10^6 entries.
    assert ((noise.std(0) / defense.std - 1).abs() < 0.18).all()
    assert (noise.mean(0).abs() < 5.5 * defense.std / math.sqrt(400)).all()
    assert np.abs(np.corrcoef(noise.T.numpy()) - np.eye(7)).max() < 0.28
    # An unchanged model and entries that are not finite get the same noise.
    for value in (0.0, 1e-25, math.nan, math.inf):
        update = {"w": torch.full((100,), value)}
        noise = torch.stack([defense.protect_update(update, generator_for(seed))["w"] for seed in range(4)])
        assert abs(noise.std() / defense.std - 1) < 0.18


def test_numpys_generator_and_flowers_log_are_left_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("flwr")
    np.random.seed(3)
    expected = np.random.normal()
    np.random.seed(3)
    filters = list(log.filters)
    with caplog.at_level(logging.INFO):
        FlowerLocalDP().protect_update(an_update(), generator_for(0))
    assert np.random.normal() == expected
    assert log.filters == filters
    assert caplog.records == []


def test_the_account_is_exact_over_all_messages_whatever_flower_states() -> None:
    small, right = FlowerLocalDP(sensitivity=1.0), FlowerLocalDP(sensitivity=2.0)
    std = math.sqrt(2 * math.log(1.25e5))
    for releases in (1, 4, 30):
        expected = gaussian_epsilon(2 * math.sqrt(releases) / std, 1e-5)
        spent = small.privacy(after(small, releases))
        assert (spent["epsilon"], spent["delta"], spent["budget-steps"]) == (pytest.approx(expected), 1e-5, releases)
    assert right.privacy(after(right, 1))["epsilon"] < 1 < small.privacy(after(small, 1))["epsilon"]
    state = after(right, 2)
    assert right.privacy(state, state) == right.privacy(after(right, 4))
    bare = FlowerLocalDP(sensitivity=1e-6, epsilon=1e6)
    assert bare.privacy(after(bare, 1))["epsilon"] == math.inf
    assert level_of(parse("Clip(max_norm=2.0) | FlowerLocalDP()").neighbours) == CLIENT_LEVEL
