"""The offline adversary: its holdout counted by hand, one for each cut, and taken up again from a checkpoint without a step."""

import pytest
import torch
from torch import Tensor

from attacks.normalisation import normalise
from attacks.observations import AttackError
from clients.inference.plan import InferencePlan
from defenses.base import Batch
from strategies.inference.offline_adversary import OfflineAdversaries, OfflineAdversary
from tests.clients.inference.test_queries import PLAN


def examples(count: int = 64) -> tuple[Batch, Tensor]:
    """Bright images have the attribute, dark ones do not: anybody can learn it."""
    images = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0)) / 4
    hidden = torch.arange(count) % 2
    return Batch(images + 0.7 * hidden[:, None, None, None], torch.zeros(count, 10)), hidden


def trained(adversaries: OfflineAdversaries, cut: str, plan: InferencePlan = PLAN) -> OfflineAdversary:
    return adversaries.at(cut, plan, plan.build_cut(cut), *examples())


@pytest.fixture(scope="module")
def learned() -> OfflineAdversaries:
    found = OfflineAdversaries("split", 30)
    trained(found, "conv4")
    return found


def test_it_learns_what_can_be_learned_and_says_on_how_many_images(learned: OfflineAdversaries) -> None:
    found, (batch, hidden) = trained(learned, "conv4"), examples()
    with torch.no_grad():
        features = PLAN.build_cut("conv4").client(normalise(batch.images, PLAN.data_card()))
        answers = found.network(features).argmax(1)
    assert float((answers == hidden).float().mean()) > 0.95
    assert (found.held, round(found.accuracy * 8) / 8) == (8, found.accuracy)


def test_a_checkpoint_brings_back_the_very_same_one(learned: OfflineAdversaries) -> None:
    """With steps that would lead elsewhere, were they taken again."""
    kept = learned.tensors()
    later = OfflineAdversaries("split", 1)
    later.restore(kept)
    assert set(later.tensors()) == set(kept), "also before it is asked for"
    first, again = trained(learned, "conv4"), trained(later, "conv4")
    assert (again.accuracy, again.majority, again.held) == (first.accuracy, first.majority, first.held)
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    assert all(torch.equal(tensor, later.tensors()[name]) for name, tensor in kept.items())


def test_without_an_attribute_there_is_none() -> None:
    with pytest.raises(AttackError, match="no sensitive attribute"):
        OfflineAdversaries("split", 1).at("conv4", PLAN, PLAN.build_cut("conv4"), examples()[0], None)
