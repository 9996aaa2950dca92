"""Adversarial training: Eq. 9 with weights moved by hand, what its decoder can and cannot know, and the game on a toy."""

import pytest
import torch
from torch import Tensor, nn

from defenses.random_draws import generator_for
from defenses.training.adversarial import AdversarialTraining, PatchDecoder


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def a_network(defense: AdversarialTraining, seed: int = 0) -> PatchDecoder:
    return defense.build_network(4, 3, 5, generator_for(seed))


def test_the_penalty_is_minus_the_weighted_loss_of_a_network_that_knows_slots_and_not_origins() -> None:
    for weight in (0.0, 1.0, 2.5):
        defense, features, patches = AdversarialTraining(weight), noise(2, 4, 3), noise(2, 4, 5).sigmoid()
        network = a_network(defense)
        own, penalty = (float(loss.detach()) for loss in defense.losses(network, features, patches))
        pairs = zip(network(features).detach().flatten(), patches.flatten(), strict=True)
        expected = sum(float((p - q) ** 2) for p, q in pairs) / 40
        assert (own, penalty) == pytest.approx((expected, -weight * expected), rel=1e-5)
    # Tokens in another order are other observations; with the embedding of slots removed, the answer follows the tokens.
    network, features, order = a_network(AdversarialTraining()), noise(2, 4, 3), torch.tensor([2, 0, 3, 1])
    assert not torch.allclose(network(features[:, order]), network(features)[:, order], atol=1e-3)
    nn.init.zeros_(network.positions)
    torch.testing.assert_close(network(features[:, order]), network(features)[:, order])


def test_pixels_are_bounded_and_modes_make_no_difference() -> None:
    network, features = a_network(AdversarialTraining()), noise(2, 4, 3)
    torch.testing.assert_close(network.train()(features), network.eval()(features))
    for scale in (1.0, 1e3, 1e6):
        patches = network(scale * features)
        assert patches.shape == (2, 4, 5)
        assert ((patches >= 0) & (patches <= 1)).all()
