"""Client-level privacy, ours and that of Flower's mod: clipped vectors, noise of every entry, an account that composes exactly."""

import itertools
import json
import logging
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from defenses import DPSGD, ClientDP, Clip, FlowerLocalDP, GaussianNoise, Pruning
from defenses.neighbours import CLIENT_LEVEL, EXAMPLE_LEVEL, MEANING, level_of
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.spec import parse
from defenses.tensors import Update

DELTA = 1e-5
STD_OF_MOD = math.sqrt(2 * math.log(1.25e3))
"""Of a sensitivity of 1, an epsilon of 1 and a delta of 1e-3, by Flower's formula."""


def update_of(scale: float) -> Update:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 3, 3), "bias": (4,), "scale": (), "running_var": (4,), "none": (0,)}
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def flat(update: Update) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in update.values()])


def after(defense: Any, releases: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for _ in range(releases):
        state = defense.recorded(state)
    return state


def test_without_noise_it_is_clipping_of_the_whole_update() -> None:
    for scale in (1e-3, 1.0, 1e6, 1e30):
        found = ClientDP(max_norm=2.0, noise_multiplier=0.0).protect_update(update_of(scale), generator_for(0))
        torch.testing.assert_close(found, Clip(max_norm=2.0).protect_update(update_of(scale), generator_for(0)))
        assert flat(found).norm() <= 2.0 * (1 + 1e-6)
    far = {"w": torch.full((2,), 1e300, dtype=torch.float64)}  # a norm beyond double precision leaves zeros
    assert ClientDP(noise_multiplier=0.0).protect_update(far, generator_for(0))["w"].tolist() == [0.0, 0.0]
    for wrong in (math.nan, math.inf, -math.inf):  # cannot be seen
        update = {"w": torch.tensor([1.0, wrong]), "b": torch.tensor(wrong)}
        found = ClientDP(max_norm=1.0, noise_multiplier=0.0).protect_update(update, generator_for(0))
        assert flat(found).tolist() == [1.0, 0.0, 0.0]
        noisy = ClientDP(noise_multiplier=1.0).protect_update(update, generator_for(0))
        assert torch.isfinite(flat(noisy)).all()


@pytest.mark.numeric
def test_every_entry_gets_noise_of_the_stated_size_scalars_and_buffers_too_and_clipping_comes_first() -> None:
    update = update_of(30.0)
    clipped = flat(Clip(max_norm=0.5).protect_update(update, generator_for(0)))
    for defense, std, draws in (
        (ClientDP(max_norm=0.5, noise_multiplier=3.0), 1.5, 1000),
        (FlowerLocalDP(clipping_norm=0.5, sensitivity=1.0, epsilon=2.0, delta=1e-3), STD_OF_MOD / 2, 400),
    ):
        noise = torch.stack([flat(defense.protect_update(update, generator_for(seed))) for seed in range(draws)])
        noise -= clipped
        assert defense.std == pytest.approx(std)
        # A standard deviation of n draws has a relative error of 1 / sqrt(2 n): 5.4 of it in fewer than 1 of 10^6 entries.
        assert ((noise.std(0) / std - 1).abs() < 5.4 / math.sqrt(2 * draws)).all()
        assert (noise.mean(0).abs() < 5.5 * std / math.sqrt(draws)).all()
        correlation = np.corrcoef(noise.T.numpy())
        assert np.abs(correlation - np.eye(len(correlation))).max() < 5.7 / math.sqrt(draws)


def test_epsilon_is_the_hockey_stick_divergence_of_all_releases_together() -> None:
    """Two clients at both ends of the sphere: N(+C, z^2 C^2) against N(-C, z^2 C^2), T times, by the best test of the mean."""
    for multiplier, releases in ((0.5, 1), (4.0, 1), (4.0, 9), (30.0, 200)):
        defense = ClientDP(max_norm=7.0, noise_multiplier=multiplier)
        spent = defense.privacy(after(defense, releases))
        mu, epsilon = 2 * math.sqrt(releases) / multiplier, spent["epsilon"]
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        assert delta == pytest.approx(DELTA, rel=1e-6)
        assert spent["delta"] == DELTA
    spent_by_number = [defense.privacy(after(defense, count))["epsilon"] for count in range(6)]
    assert all(low < high for low, high in pairwise(spent_by_number))
    bare = ClientDP(noise_multiplier=0.0)
    assert bare.privacy(after(bare, 1))["epsilon"] == math.inf


def test_an_account_is_kept_in_order_survives_json_and_leaves_the_rest_of_a_state_alone() -> None:
    first, second = ClientDP(noise_multiplier=4.0), ClientDP(noise_multiplier=2.0)
    given = {"kept": [1]}
    state = second.recorded(first.recorded(first.recorded(given)))
    assert given == {"kept": [1]}
    assert state == {"kept": [1], "accountant": {"steps": [[2.0, 1.0, 2], [1.0, 1.0, 1]]}}
    assert json.loads(json.dumps(state)) == state
    assert first.privacy(state)["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2 / 4 + 1), DELTA))
    assert first.privacy(state, after(first, 2))["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2), DELTA))
    assert first.privacy() == first.privacy({}) == {"epsilon": 0.0, "delta": DELTA}


def test_a_target_is_spent_by_its_rounds_and_exceeded_by_one_more() -> None:
    for target, rounds in itertools.product((0.1, 2.0, 50.0), (1, 4, 50)):
        defense = ClientDP(target_epsilon=target, rounds=rounds)
        spent, more = (defense.privacy(after(defense, count))["epsilon"] for count in (rounds, rounds + 1))
        assert 0.999999 * target <= spent <= target * (1 + 1e-9)
        assert more > target * 1.005


def test_settings_without_a_meaning_are_refused_and_the_text_names_norm_and_noise() -> None:
    for arguments, message in (
        ({"target_epsilon": 2.0}, "target_epsilon is 2.0; allowed: a number beside rounds"),
        ({"rounds": 2}, "rounds is 2; allowed: None without a target_epsilon"),
        ({"noise_multiplier": 1.0, "target_epsilon": 2.0, "rounds": 1}, "target_epsilon is 2.0; allowed: None when"),
        ({"target_epsilon": 1e-9, "rounds": 1, "target_delta": 1e-12}, "target_epsilon is 1e-09; allowed: what"),
    ):
        with pytest.raises(ValueError, match=message):
            ClientDP(**arguments)
    assert repr(ClientDP(target_epsilon=2.0, rounds=3)) == "ClientDP(max_norm=1.0, target_epsilon=2.0, rounds=3)"


def test_a_claim_is_of_a_level_and_other_defences_of_the_same_client_may_stand_beside_it() -> None:
    pipeline = parse("InstaHide() | Clip(max_norm=1.0, per='step') | ClientDP() | Pruning(per='update')")
    assert pipeline.neighbours == "replace-client"
    state = pipeline.recorded(pipeline.recorded({}))
    assert pipeline.privacy(state)["epsilon"] == pytest.approx(gaussian_epsilon(2 * math.sqrt(2) / 4, DELTA))
    assert parse("Clip() | GaussianNoise(per='update')").privacy({}) == {}
    assert (Pruning().recorded({"a": 1}), GaussianNoise().privacy({})) == ({"a": 1}, {})
    assert level_of(ClientDP().neighbours) == CLIENT_LEVEL
    assert level_of(DPSGD().neighbours) == EXAMPLE_LEVEL
    assert level_of("") == level_of("unheard of") == ""
    assert "whole training set" in MEANING[ClientDP().neighbours]


@pytest.mark.numeric
def test_an_unchanged_model_and_entries_that_are_not_finite_get_the_same_noise_of_flowers_mod() -> None:
    defense = FlowerLocalDP(clipping_norm=0.5, sensitivity=1.0, epsilon=2.0, delta=1e-3)
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
        FlowerLocalDP().protect_update(update_of(1.0), generator_for(0))
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
