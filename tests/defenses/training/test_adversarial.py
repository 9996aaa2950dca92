"""Adversarial training: Eq. 9 with weights moved by hand, what its decoder can and cannot know, and the game on a toy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.random_draws import generator_for
from defenses.spec import parse
from defenses.training.adversarial import AdversarialTraining, PatchDecoder


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def small(weight: float = 1.0) -> AdversarialTraining:
    return AdversarialTraining(weight=weight, width=8, depth=1, heads=2)


def a_network(defense: AdversarialTraining, seed: int = 0) -> PatchDecoder:
    return defense.build_network(4, 3, 5, generator_for(seed))


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_the_penalty_is_minus_the_weighted_loss_of_the_network(weight: float) -> None:
    defense, features, patches = small(weight), noise(2, 4, 3), noise(2, 4, 5).sigmoid()
    network = a_network(defense)
    own, penalty = defense.losses(network, features, patches)
    expected = sum(
        float((p - q) ** 2) for p, q in zip(network(features).detach().flatten(), patches.flatten(), strict=True)
    )
    assert float(own.detach()) == pytest.approx(expected / 40, rel=1e-5)
    assert float(penalty.detach()) == pytest.approx(-weight * expected / 40, rel=1e-5)


def test_one_step_on_the_sum_descends_for_the_network_and_ascends_for_the_features() -> None:
    defense, patches = small(), noise(2, 4, 5).sigmoid()
    network, features = a_network(defense), noise(2, 4, 3).requires_grad_()
    before = F.mse_loss(network(features), patches).item()
    parameters = [features, *network.parameters()]
    gradients = torch.autograd.grad(sum(defense.losses(network, features, patches)), parameters)
    with torch.no_grad():
        moved = features - 0.1 * gradients[0]
        assert F.mse_loss(network(moved), patches).item() > before
        for parameter, gradient in zip(parameters[1:], gradients[1:], strict=True):
            parameter -= 0.01 * gradient
        assert F.mse_loss(network(features), patches).item() < before


def test_the_network_learns_to_invert_what_can_be_inverted() -> None:
    """Two patches whose tokens tell them apart; a network that saw no tokens could not get below the variance, 0.04."""
    defense, network = small(), a_network(small())
    kinds = torch.tensor([[0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 1, 1]])
    features, patches = noise(2, 3)[kinds], torch.tensor([0.3, 0.7])[kinds].unsqueeze(-1).expand(-1, -1, 5)
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        adam.zero_grad()
        sum(defense.losses(network, features, patches)).backward()
        adam.step()
    assert F.mse_loss(network(features), patches) < 0.004


def test_the_network_knows_slots_and_not_origins() -> None:
    """Tokens in another order are other observations; with the embedding of slots removed, the answer follows the tokens."""
    network, features, order = a_network(small()), noise(2, 4, 3), torch.tensor([2, 0, 3, 1])
    assert not torch.allclose(network(features[:, order]), network(features)[:, order], atol=1e-3)
    nn.init.zeros_(network.positions)
    torch.testing.assert_close(network(features[:, order]), network(features)[:, order])


def test_pixels_are_bounded_however_large_the_features_are() -> None:
    for scale in (1.0, 1e3, 1e6):
        patches = a_network(small())(scale * noise(2, 4, 3))
        assert patches.shape == (2, 4, 5)
        assert ((patches >= 0) & (patches <= 1)).all()


def test_sizes_are_as_asked() -> None:
    network = AdversarialTraining(width=12, depth=3, heads=3).build_network(4, 3, 5, generator_for(0))
    sizes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert sizes["embed.weight"] == (12, 3)
    assert sizes["positions"] == (1, 4, 12)
    assert sizes["head.weight"] == (5, 12)
    assert sizes["blocks.2.linear1.weight"] == (48, 12)
    assert not any(name.startswith("blocks.3") for name in sizes)


def test_training_or_evaluation_mode_makes_no_difference() -> None:
    network, features = a_network(small()), noise(2, 4, 3)
    torch.testing.assert_close(network.train()(features), network.eval()(features))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AdversarialTraining(weight=-1)", "weight is -1; allowed: 0, or a number from 1e-12"),
        ("AdversarialTraining(weight=1e999)", "weight is inf"),
        ("AdversarialTraining(depth=0)", "depth is 0; allowed: a whole number from 1 to 1000"),
        (
            "AdversarialTraining(width=64, heads=5)",
            "heads is 5; allowed: a whole number from 1 to 1000 that divides width = 64",
        ),
        ("AdversarialTraining(width=6)", "heads is 4; allowed: a whole number from 1 to 1000 that divides width = 6"),
    ],
)
def test_refuses_what_makes_no_network(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_its_text_shows_its_strength() -> None:
    assert repr(AdversarialTraining()) == "AdversarialTraining(weight=1.0)"
