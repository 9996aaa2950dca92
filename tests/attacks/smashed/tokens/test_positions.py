"""Where shuffled tokens belong: assignments against all permutations, readers of positions, and tokens that recur."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from attacks.assignment import assigned
from attacks.image_measures import mse
from attacks.observations import AttackError
from attacks.smashed.tokens import jigsaw
from attacks.smashed.tokens.jigsaw import RADIUS, TokenIntersection, TokenJigsaw
from attacks.smashed.tokens.positions import Reading, from_patches, place, solve, to_patches
from attacks.smashed.tokens.training import Example, kept_share, train_reader
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from tests.attacks.smashed_wire import PATCH, TOKENS, assert_reads_three_images_of_six, knowledge, observe, seeded
from tests.attacks.wire import pictures


def example(defense, count):
    return Example.of(knowledge(defense).sender, pictures(count, seed=70), seeded())


def test_patches_are_cut_and_joined_and_placing_undoes_a_gather() -> None:
    images = pictures(2, channels=3)
    patches = to_patches(images, PATCH)
    assert patches.shape == (2, TOKENS, 3 * PATCH**2)
    # Patch 5 of a 3 x 3 grid is in row 1, column 2.
    assert torch.equal(patches[1, 5], images[1, :, 4:8, 8:12].flatten())
    assert torch.equal(from_patches(patches, PATCH, images.shape), images)
    order = torch.stack([torch.randperm(TOKENS, generator=seeded(i)) for i in (1, 2)])
    slots = torch.stack([value[row] for value, row in zip(patches, order, strict=True)])
    assert torch.equal(place(slots, order), patches)
    parts = [torch.randn(2, 3, size, generator=seeded()) for size in (3, 4, 4, 5)]
    assert [value.shape for value in vars(Reading(*parts).pooled()).values()] == [(1, 6, size) for size in (3, 4, 4, 5)]


def puzzle(order, grid):
    (rows, columns), slots = grid, order.tolist()
    neighbours = torch.full((1, 2, len(order), len(order)), -6.0)
    for slot, where in enumerate(slots):
        if where % columns < columns - 1:
            neighbours[0, 0, slot, slots.index(where + 1)] = 0.0
        if where % (rows * columns) // columns < rows - 1:
            neighbours[0, 1, slot, slots.index(where + columns)] = 0.0
    return neighbours.log_softmax(-1)


def test_neighbours_place_what_one_known_corner_starts_and_without_neighbours_positions_decide() -> None:
    grid = (3, 4)
    for images in (1, 2):
        order = torch.randperm(12 * images, generator=seeded(3))
        unary = torch.zeros(1, len(order), len(order))
        for corner in range(0, 12 * images, 12):
            unary[0, order.tolist().index(corner), corner] = 4.0
        found = assigned(-solve(unary.log_softmax(-1), puzzle(order, grid), grid))
        assert torch.equal(found[0], order), images
    scores = torch.randn(2, 9, 9, generator=seeded(1)).mul(8).log_softmax(-1)
    indifferent = torch.full((2, 2, 9, 9), 1 / 9).log()
    assert torch.equal(assigned(-solve(scores, indifferent, (3, 3))), assigned(-scores))


@pytest.mark.long
@pytest.mark.numeric
def test_positions_are_learned_and_noise_is_placed_by_chance() -> None:
    known = knowledge(PatchShuffle())
    reader = train_reader(known.sender, known.auxiliary.images, seeded(), iterations=100)
    assert reader.kept_share == 1
    assert reader.diagnostics["position_accuracy"] > 4 / TOKENS
    assert reader.diagnostics["order_accuracy"] > 6 / TOKENS
    assert reader.diagnostics["patch_mse"] < 1e-3
    seen = example(PatchShuffle(), 5)
    order = reader.order(reader(seen.features))
    assert torch.equal(order.sort(1).values, torch.arange(5 * TOKENS).view(5, TOKENS))
    assert (order == seen.order).double().mean() > 6 / TOKENS
    noise = torch.randn(60, TOKENS, 32, generator=seeded(2)) * reader.std + reader.mean
    found = assigned(-reader(noise).positions)
    assert (found == torch.arange(TOKENS)).double().mean() < 2 / TOKENS
    # An order that is trusted shows the patches.
    placed = reader.assemble(reader(seen.features), seen.order)
    assert torch.allclose(placed, to_patches(pictures(5, seed=70), PATCH), atol=0.1)


def test_another_shuffle_is_seen_as_another_share() -> None:
    shares = [kept_share(example(d, 200).order) for d in (BatchShuffle(k=0), BatchShuffle(k=0.5), PatchShuffle())]
    assert shares == pytest.approx([0, 4 / 9, 1], abs=0.03)


JIGSAW = TokenJigsaw(iterations=100)


@pytest.mark.long
@pytest.mark.numeric
def test_a_patch_shuffle_is_undone_and_noise_tells_nothing() -> None:
    attack = JIGSAW.fit(knowledge(PatchShuffle()), seeded(1))
    observation, clean, _ = observe(PatchShuffle(), targets=6)
    guess, mean = attack(observation, seeded()), pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < 0.5 * mse(mean, clean).mean()
    assert guess.diagnostics["order_accuracy"] > 0.5
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    lost = attack(replace(observation, features=noise), seeded())
    assert mse(lost.images, clean).mean() > mse(mean, clean).mean()


def test_large_batches_are_cut_to_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacks.smashed.tokens.jigsaw.MOST_TOKENS", 27)
    attack = replace(JIGSAW, iterations=2).fit(knowledge(BatchShuffle(k=0.4)), seeded())
    assert_reads_three_images_of_six(attack)


BATCH = BatchShuffle(k=0.45)  # 4 of 9 tokens stay
QUICK = TokenIntersection(iterations=60, width=32, batch_size=16)


def recall(attack, observation, clean):
    """Share of the targets' patches that are among those that the attack calls their own; each answers for one."""
    readings = [attack.learned(one) for one in observation.features]
    hits = []
    for row, true in enumerate(to_patches(clean, PATCH)):
        own = attack.own_tokens(readings, row, RADIUS, attack.learned.kept_share)[0].patches[0]
        distance = torch.cdist(true, own) / PATCH
        hits.append(distance.numpy()[linear_sum_assignment(distance)] < 0.03)
    return sum(map(sum, hits)) / clean[:, 0].numel() * PATCH**2


@pytest.mark.long
@pytest.mark.numeric
def test_own_tokens_are_found_in_many_transmissions_of_one_image_alone() -> None:
    attack = QUICK.fit(knowledge(BATCH, blocks=0), seeded(1))
    observation, clean, _ = observe(BATCH, blocks=0, transmissions=30)
    assert recall(attack, observation, clean) == 1
    # One transmission holds 4 tokens that stayed, and returned ones: (4 + 5 / 6) / 9 = 0.54.
    assert recall(attack, replace(observation, features=observation.features[:1]), clean) < 0.8
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    assert recall(attack, replace(observation, features=noise), clean) == 0


def test_multiplicities_are_unbiased_and_the_most_recurrent_fill_all_positions() -> None:
    # Cluster 0 fills 6 of 9 positions of the image and 3 on average; cluster 1 fills 3 and 6.
    held, mean, kept = torch.tensor([6.0, 3.0]), torch.tensor([3.0, 6.0]), 4 / 9
    assert torch.allclose(jigsaw.multiplicities(kept * held + (1 - kept) * mean, mean, kept), held)
    chosen, gap = jigsaw.most_recurrent(torch.tensor([0.1, 3.2, 0.9]), 4)
    assert sorted(chosen.tolist()) == [1, 1, 1, 2]
    # The second, with 0.4, before the fourth copy of the first, with -0.3.
    assert gap == pytest.approx(0.4 + 0.3, abs=1e-6)
    with pytest.raises(AttackError, match="only 1"):
        jigsaw.most_recurrent(torch.tensor([1.0]), 4)
    # Clusters are as wide as the radius.
    points = torch.tensor([[0.0], [0.1], [-0.1], [5.0], [9.0], [9.1]])
    assert jigsaw.leaders(points, 0.15).tolist() == [0, 4, 3]
    assert jigsaw.assign_clusters(points, points[[0, 4]], 0.15).tolist() == [0, 0, 0, 2, 1, 1]


@pytest.mark.numeric
def test_a_patch_shuffle_is_read_as_well_and_nothing_recurs_where_nothing_stays() -> None:
    attack = replace(QUICK, transmissions=2).fit(knowledge(PatchShuffle(), blocks=0), seeded())
    observation, clean, _ = observe(PatchShuffle(), blocks=0, transmissions=2)
    assert not attack(observation, seeded()).failure
    assert recall(attack, observation, clean) == 1
    none = replace(QUICK, iterations=1).fit(knowledge(BatchShuffle(k=0)), seeded())
    observation, _, _ = observe(BatchShuffle(k=0), transmissions=30)
    assert "none recur" in none(observation, seeded()).failure
