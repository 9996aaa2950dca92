from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from attacks.image_measures import mse
from attacks.observations import AttackError
from attacks.smashed.tokens.intersection import (
    TokenIntersection,
    assign_clusters,
    leaders,
    most_recurrent,
    multiplicities,
)
from attacks.smashed.tokens.positions import to_patches
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from tests.attacks.smashed_wire import PATCH, knowledge, observe, seeded
from tests.attacks.wire import pictures

BATCH = BatchShuffle(k=0.45)  # 4 of 9 tokens stay
QUICK = TokenIntersection(iterations=60, width=32, batch_size=16)
TRAINED = TokenIntersection(iterations=120)


def recall(attack, observation, clean):
    """Share of the targets' patches that are among those that the attack calls their own; each answers for one."""
    readings = [attack.learned(one) for one in observation.features]
    hits = []
    for row, true in enumerate(to_patches(clean, PATCH)):
        own = attack.own_tokens(readings, row, attack.radius, attack.learned.kept_share)[0].patches[0]
        distance = torch.cdist(true, own) / PATCH
        hits.append(distance.numpy()[linear_sum_assignment(distance)] < 0.03)
    return sum(map(sum, hits)) / clean[:, 0].numel() * PATCH**2


@pytest.fixture(scope="module")
def fitted():
    attacks = {0: QUICK, 1: TRAINED}
    return {blocks: attack.fit(knowledge(BATCH, blocks=blocks), seeded(1)) for blocks, attack in attacks.items()}


@pytest.mark.long
@pytest.mark.parametrize(("blocks", "least"), [(0, 1.0), (1, 0.9)])
def test_own_tokens_are_found(fitted, blocks, least):
    observation, clean, _ = observe(BATCH, blocks=blocks, transmissions=30)
    assert recall(fitted[blocks], observation, clean) >= least


@pytest.mark.long
def test_few_transmissions_find_fewer(fitted):
    # One transmission holds 4 tokens that stayed, and returned ones: (4 + 5 / 6) / 9 = 0.54.
    observation, clean, _ = observe(BATCH, blocks=0, transmissions=30)
    assert recall(fitted[0], replace(observation, features=observation.features[:1]), clean) < 0.8


@pytest.mark.long
def test_images_are_recovered_from_many_transmissions(fitted):
    observation, clean, _ = observe(BATCH, transmissions=30, targets=4)
    guess = fitted[1](observation, seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < 0.7 * mse(mean, clean).mean()
    assert guess.diagnostics["recurrence_gap"] > 0.1


@pytest.mark.long
def test_transmissions_of_other_images_tell_nothing(fitted):
    observation, clean, _ = observe(BATCH, blocks=0, transmissions=30)
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    assert recall(fitted[0], replace(observation, features=noise), clean) == 0


def test_multiplicities_are_unbiased():
    # Cluster 0 fills 6 of 9 positions of the image and 3 on average; cluster 1 fills 3 and 6.
    held, mean, kept = torch.tensor([6.0, 3.0]), torch.tensor([3.0, 6.0]), 4 / 9
    expected = kept * held + (1 - kept) * mean
    assert torch.allclose(multiplicities(expected, mean, kept), held)


def test_the_most_recurrent_fill_all_positions():
    chosen, gap = most_recurrent(torch.tensor([0.1, 3.2, 0.9]), 4)
    assert sorted(chosen.tolist()) == [1, 1, 1, 2]
    assert gap == pytest.approx(
        0.4 + 0.3, abs=1e-6
    )  # the second, with 0.4, before the fourth copy of the first, with -0.3
    with pytest.raises(AttackError, match="only 1"):
        most_recurrent(torch.tensor([1.0]), 4)


def test_clusters_are_as_wide_as_the_radius():
    points = torch.tensor([[0.0], [0.1], [-0.1], [5.0], [9.0], [9.1]])
    assert leaders(points, 0.15).tolist() == [0, 4, 3]
    assert assign_clusters(points, points[[0, 4]], 0.15).tolist() == [0, 0, 0, 2, 1, 1]


def test_nothing_recurs_where_nothing_stays():
    attack = replace(QUICK, iterations=1).fit(knowledge(BatchShuffle(k=0)), seeded())
    observation, _, _ = observe(BatchShuffle(k=0), transmissions=30)
    assert "none recur" in attack(observation, seeded()).failure


def test_a_patch_shuffle_is_read_as_well():
    attack = replace(QUICK, transmissions=2).fit(knowledge(PatchShuffle(), blocks=0), seeded())
    observation, clean, _ = observe(PatchShuffle(), blocks=0, transmissions=2)
    assert not attack(observation, seeded()).failure
    assert recall(attack, observation, clean) == 1


@pytest.mark.long
def test_repeats_and_never_reads_the_order(fitted):
    observation, _, orders = observe(BATCH, transmissions=30)
    one, two = (fitted[1](replace(observation, orders=o), seeded()) for o in (None, orders.flip(-1)))
    assert torch.equal(one.images, two.images)
    assert not fitted[1].reveals_order
    assert one.images.shape == (2, 1, 12, 12)


def test_configuration():
    assert TokenIntersection().transmissions == 30
    assert repr(TokenIntersection()) == "TokenIntersection()"
    assert eval(repr(replace(QUICK, transmissions=5))) == replace(QUICK, transmissions=5)
    for values in ({"transmissions": 0}, {"radius": 0}, {"iterations": 0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            TokenIntersection(**values)
