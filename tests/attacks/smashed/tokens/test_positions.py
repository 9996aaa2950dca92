from __future__ import annotations

from itertools import permutations

import pytest
import torch

from attacks.assignment import assigned
from attacks.observations import AttackError
from attacks.smashed.tokens.positions import Reading, from_patches, place, solve, to_patches
from attacks.smashed.tokens.training import Example, train_reader
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from tests.attacks.smashed_wire import PATCH, TOKENS, knowledge, seeded
from tests.attacks.wire import pictures


def trained(*defenses, iterations=100, seed=0, blocks=1):
    known = knowledge(*defenses, blocks=blocks)
    return train_reader(known.sender, known.auxiliary.images, seeded(seed), iterations=iterations)


@pytest.fixture(scope="module")
def reader():
    return trained(PatchShuffle())


def test_patches_are_cut_and_joined():
    images = pictures(2, channels=3)
    patches = to_patches(images, PATCH)
    assert patches.shape == (2, TOKENS, 3 * PATCH**2)
    # Patch 5 of a 3 x 3 grid is in row 1, column 2.
    assert torch.equal(patches[1, 5], images[1, :, 4:8, 8:12].flatten())
    assert torch.equal(from_patches(patches, PATCH, images.shape), images)


def test_the_assignment_is_the_best_bijection():
    scores = torch.randn(3, 5, 5, generator=seeded())
    order = assigned(-scores)
    every = torch.tensor(list(permutations(range(5))))
    for image, found in zip(scores, order, strict=True):
        assert sorted(found.tolist()) == list(range(5))
        best = image[torch.arange(5), every].sum(1).max()
        assert torch.isclose(image[torch.arange(5), found].sum(), best)


def test_placing_undoes_a_gather():
    values, order = (
        torch.randn(2, 6, 3, generator=seeded()),
        torch.stack([torch.randperm(6, generator=seeded(i)) for i in (1, 2)]),
    )
    slots = torch.stack([value[row] for value, row in zip(values, order, strict=True)])
    assert torch.equal(place(slots, order), values)


def puzzle(order, grid):
    """Neighbour scores that say the truth of tokens that were at positions ``order``."""
    rows, columns = grid
    count = len(order)
    neighbours = torch.full((1, 2, count, count), -6.0)
    for direction, step in ((0, 1), (1, columns)):
        for slot, where in enumerate(order.tolist()):
            exists = where % columns < columns - 1 if direction == 0 else where % (rows * columns) // columns < rows - 1
            if exists:
                neighbours[0, direction, slot, order.tolist().index(where + step)] = 0.0
    return neighbours.log_softmax(-1)


@pytest.mark.parametrize("images", [1, 2])
def test_neighbours_place_what_one_known_corner_starts(images):
    grid = (3, 4)
    order = torch.randperm(12 * images, generator=seeded(3))
    unary = torch.zeros(1, len(order), len(order))
    for corner in range(0, 12 * images, 12):
        unary[0, order.tolist().index(corner), corner] = 4.0
    found = assigned(-solve(unary.log_softmax(-1), puzzle(order, grid), grid))
    assert torch.equal(found[0], order)


def test_without_neighbours_positions_decide():
    scores = torch.randn(2, 9, 9, generator=seeded(1)).mul(8).log_softmax(-1)
    indifferent = torch.full((2, 2, 9, 9), 1 / 9).log()
    assert torch.equal(assigned(-solve(scores, indifferent, (3, 3))), assigned(-scores))


def test_pooling_makes_one_group():
    parts = [torch.randn(2, 3, size, generator=seeded()) for size in (3, 4, 4, 5)]
    assert [value.shape for value in vars(Reading(*parts).pooled()).values()] == [(1, 6, size) for size in (3, 4, 4, 5)]


@pytest.mark.long
def test_positions_are_learned(reader):
    assert reader.kept_share == 1
    assert reader.diagnostics["position_accuracy"] > 4 / TOKENS
    assert reader.diagnostics["order_accuracy"] > 6 / TOKENS
    assert reader.diagnostics["patch_mse"] < 1e-3


@pytest.mark.long
def test_the_found_order_is_a_bijection(reader):
    example = Example.of(knowledge(PatchShuffle()).sender, pictures(5, seed=70), seeded())
    order = reader.order(reader(example.features))
    assert torch.equal(order.sort(1).values, torch.arange(5 * TOKENS).view(5, TOKENS))
    assert (order == example.order).double().mean() > 6 / TOKENS


@pytest.mark.long
def test_noise_is_placed_by_chance(reader):
    features = torch.randn(60, TOKENS, 32, generator=seeded(2)) * reader.std + reader.mean
    found = assigned(-reader(features).positions)
    assert (found == torch.arange(TOKENS)).double().mean() < 2 / TOKENS


@pytest.mark.long
def test_a_batch_is_one_puzzle_where_tokens_change_rows():
    reader = trained(BatchShuffle(k=0.67), blocks=0)  # 6 of 9 tokens stay
    assert reader.kept_share == pytest.approx(6 / 9, abs=0.05)
    example = Example.of(knowledge(BatchShuffle(k=0.67), blocks=0).sender, pictures(4, seed=70), seeded())
    order = reader.order(reader(example.features))
    assert order.flatten().sort().values.tolist() == list(range(4 * TOKENS))
    # Chance is 1 / 36, and 1 / 9 for who knows the image alone.
    assert (order == example.order).double().mean() > 0.3


@pytest.mark.long
def test_an_untrusted_order_shows_the_mean_image(reader):
    example = Example.of(knowledge(PatchShuffle()).sender, pictures(3, seed=70), seeded())
    reading = reader(example.features)
    placed = reader.assemble(reading, example.order)
    assert torch.allclose(placed, to_patches(pictures(3, seed=70), PATCH), atol=0.1)
    doubting = trained(PatchShuffle(), iterations=1)
    doubting.trust = 0.0
    mean = doubting.assemble(doubting(example.features), example.order)
    assert torch.allclose(mean, mean[:1])


def test_training_repeats_and_leaves_the_random_state():
    before = torch.get_rng_state()
    one, same, other = (trained(PatchShuffle(), iterations=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.positions.weight, other.positions.weight)


def test_too_few_images():
    known = knowledge()
    with pytest.raises(AttackError, match="16"):
        train_reader(known.sender, known.auxiliary.images[:15], seeded(), iterations=1)


def test_another_shuffle_is_seen_as_another_share():
    shares = [
        Example.of(knowledge(d).sender, pictures(200, seed=6), seeded()).kept_share()
        for d in (BatchShuffle(k=0), BatchShuffle(k=0.5), PatchShuffle())
    ]
    assert shares == pytest.approx([0, 4 / 9, 1], abs=0.03)
