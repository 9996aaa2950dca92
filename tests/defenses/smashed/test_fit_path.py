"""The path of a fit: its states must be what shorter fits give, and its end the fit itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from defenses import DefenseError, DeltaAutoencoder, FeatureNoise, FeaturePCA, FitContext, Pipeline, parse
from defenses.fitting import FittedDefense, version_of
from defenses.random_draws import generator_for

AUTOENCODER = DeltaAutoencoder(delta="max", epochs=3, batch_size=8)
KEY = ("fit", 0)


def a_context() -> FitContext:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        server = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))
    images = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return FitContext(client, server, None, images, torch.arange(20) % 3, torch.zeros(1))


def path(defense: FittedDefense) -> list[tuple[int, FittedDefense]]:
    return list(defense.path(a_context(), generator_for(5)))


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_each_state_of_an_autoencoder_is_a_fit_of_so_many_epochs(epochs: int):
    """A shorter fit draws the same initial weights and orders; the initial weights are the fit of no epoch."""
    states = dict(path(AUTOENCODER))
    shorter = replace(AUTOENCODER, epochs=epochs).fit(a_context(), generator_for(5))
    assert version_of(states[epochs].state()) == version_of(shorter.state())


@pytest.mark.parametrize("components", [1, 2, 4, 6])
def test_each_state_of_components_is_a_fit_of_so_many(components: int):
    states = dict(path(FeaturePCA(components=6)))
    narrow = FeaturePCA(components=components).fit(a_context(), generator_for(5))
    assert (states[components], version_of(states[components].state())) == (narrow, version_of(narrow.state()))


@pytest.mark.parametrize(
    ("components", "expected"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_components_double_up_to_all(components: int, expected: tuple[int, ...]):
    assert FeaturePCA(components=components).path_positions == expected


@pytest.mark.parametrize("defense", [AUTOENCODER, FeaturePCA(components=6)], ids=repr)
def test_states_lie_where_they_were_said_to_and_differ(defense: FittedDefense):
    found = path(defense)
    assert tuple(at for at, _ in found) == defense.path_positions
    assert defense.path_axis
    assert len({version_of(state.state()) for _, state in found}) == len(found)


@pytest.mark.parametrize(
    "text",
    [
        "DeltaAutoencoder(delta='max', epochs=3, batch_size=8)",
        "FeatureNoise(std=0.1) | FeaturePCA(components=4)",
        "DeltaAutoencoder(delta='max', epochs=3, batch_size=8) | FeatureNoise(std=0.1)",
        "DeltaAutoencoder(delta='max', epochs=1, batch_size=8) | FeaturePCA(components=4)",
    ],
)
def test_a_chains_path_ends_in_its_fit_whoever_looks_on_the_way(text: str):
    """Looking draws from streams of its own, as whoever measures must."""
    chain, features = parse(text), torch.rand(2, 4, 8, 8)
    for at, state in chain.path(a_context(), KEY):
        assert state.fitted
        assert state.protect_features(features, ("look", at)).shape == features.shape
    assert at == chain.path_positions[-1]
    assert state.version == chain.fit(a_context(), KEY).version


def test_the_last_stage_that_learns_is_followed_behind_the_fitted_first():
    chain = parse("DeltaAutoencoder(delta='max', epochs=1, batch_size=8) | FeaturePCA(components=4)")
    first = {name: tensor for name, tensor in chain.fit(a_context(), KEY).state().items() if name.startswith("0.")}
    assert chain.path_axis == "components"
    for _, state in chain.path(a_context(), KEY):
        for name, tensor in first.items():
            assert torch.equal(state.state()[name], tensor)


def test_a_chain_that_learns_nothing_has_no_path():
    chain = Pipeline((FeatureNoise(std=0.1),))
    assert (chain.path_axis, chain.path_positions, list(chain.path(a_context(), KEY))) == ("", (), [])


def test_too_many_components_are_refused_before_the_first_state():
    with pytest.raises(DefenseError, match="at most 19, the rank"):
        next(iter(FeaturePCA(components=20).path(a_context(), generator_for(0))))
