from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from attacks.image_measures import mse, psnr
from attacks.observations import AttackError
from attacks.smashed.hermitian_pairing import HermitianPairing, pair_slots, pairing_costs, place_pairs
from attacks.smashed.patch_embedding import images_of_patches, patch_embedding, patches_of_tokens
from attacks.smashed.tokens.positions import place
from clients.models.split.halves import EdgeHalf
from defenses.pipeline import Pipeline
from defenses.smashed.patch_shuffle import PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle, from_spectrum, patch_side, spectrum, to_planes, to_tokens
from tests.attacks.smashed_wire import SHAPE, Known, halves, knowledge, observe, seeded
from tests.attacks.wire import pictures

PIXEL, EMBEDDED = SpectralShuffle(fft_stage="pixel"), SpectralShuffle()


def spectral(grid, patch, count=4, noise=0.0):
    """Spectral patches of random real planes, in order: (count, grid^2, 2 * patch^2)."""
    planes = torch.randn(count, 1, grid * patch, grid * patch, generator=seeded(1))
    whole = spectrum(planes)
    return to_tokens(whole + noise * torch.randn(whole.shape, generator=seeded(2)), patch)


@pytest.mark.parametrize(("grid", "patch"), [(3, 4), (3, 5), (4, 3), (4, 4), (5, 2), (6, 5)])
def test_mirrored_patches_are_paired_whatever_the_order(grid, patch):
    tokens, count = spectral(grid, patch), grid**2
    costs = pairing_costs(tokens, patch)
    mirrored = torch.arange(count - 1, -1, -1)
    exact = costs[:, torch.arange(count), mirrored]
    assert exact.max() < 1e-4
    order = torch.randperm(count, generator=seeded(3))
    for image in pairing_costs(tokens[:, order], patch):
        pairs = pair_slots(image, self_paired=count % 2)
        assert sorted(slot for pair in pairs for slot in set(pair)) == list(range(count))
        assert all(order[s] + order[t] == count - 1 for s, t in pairs)


def test_pairing_costs_are_those_of_a_loop():
    tokens = spectral(4, 3, count=1)[:, torch.randperm(16, generator=seeded(5))]
    values = torch.complex(*to_planes(tokens, 3)[0].chunk(2, 0))[0]
    cell = lambda n: values[3 * (n // 4) : 3 * (n // 4) + 3, 3 * (n % 4) : 3 * (n % 4) + 3]  # noqa: E731
    for a, b in [(0, 1), (2, 9), (7, 7)]:
        # Of an even plane, entry r of a patch mirrors to entry p - r, and entry 0 to another patch.
        here, there = cell(a)[1:, 1:], cell(b)[1:, 1:].flip(0, 1).conj()
        expected = (here - there).abs().square().sum() / (here.abs().square().sum() + there.abs().square().sum())
        assert pairing_costs(tokens, 3)[0, a, b] == pytest.approx(float(expected), rel=1e-4)


def test_unrelated_patches_pair_by_chance():
    tokens = torch.randn(20, 16, 18, generator=seeded(6))
    right = [s + t == 15 for image in pairing_costs(tokens, 3) for s, t in pair_slots(image, 0)]
    assert sum(right) / len(right) < 0.2  # 1 / 15 on average


@pytest.mark.parametrize("count", [4, 5])
def test_pairs_get_the_best_mirrored_positions(count):
    scores = torch.randn(count, count, generator=seeded(count))
    pairs = [(0, 3), (1, 2)] + [(4, 4)] * (count == 5)
    partner = {a: b for s, t in pairs for a, b in ((s, t), (t, s))}
    every = [p for p in permutations(range(count)) if all(p[s] + p[partner[s]] == count - 1 for s in range(count))]
    best = max(sum(float(scores[s, n]) for s, n in enumerate(p)) for p in every)
    found = place_pairs(scores, pairs).tolist()
    assert tuple(found) in every
    assert sum(float(scores[s, n]) for s, n in enumerate(found)) == pytest.approx(best)


@pytest.mark.parametrize("defense", [PIXEL, EMBEDDED])
def test_with_the_true_order_the_image_is_exact(defense):
    observation, clean, orders = observe(defense, blocks=0)
    received = observation.features[0]
    patch = patch_side(received.shape[2] // 2)
    placed = place(received, orders[0] % received.shape[1])
    tokens = to_tokens(from_spectrum(to_planes(placed, patch)), patch)[:2]
    edge = observation.edge
    images = images_of_patches(patches_of_tokens(tokens, edge, SHAPE), edge, SHAPE, Known())
    assert torch.allclose(images, clean, atol=1e-4)


@pytest.mark.parametrize("reader", ["network", "statistics"])
@pytest.mark.parametrize("defense", [PIXEL, EMBEDDED])
def test_a_spectral_shuffle_is_undone(defense, reader):
    attack = HermitianPairing(iterations=80, reader=reader).fit(knowledge(defense, blocks=0), seeded(1))
    observation, clean, _ = observe(defense, blocks=0, targets=6)
    guess = attack(observation, seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < 0.5 * mse(mean, clean).mean()
    assert psnr(guess.images, clean).max() > 40
    assert guess.diagnostics["pairing_cost"] < 1e-3
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    lost = attack(replace(observation, features=noise), seeded())
    assert mse(lost.images, clean).mean() > mse(mean, clean).mean()
    assert lost.diagnostics["pairing_cost"] > 0.1
    again = attack(replace(observation, orders=torch.zeros(1, 6, 9, dtype=torch.int64)), seeded())
    assert torch.equal(again.images, guess.images)


def test_the_patch_embedding_is_found_by_probing():
    edge = halves(Pipeline())[0]
    weight, offset = patch_embedding(edge, SHAPE)
    assert torch.allclose(weight, edge.embedding.proj.weight.detach().flatten(1).T, atol=1e-5)
    assert torch.allclose(offset, edge.embedding.proj.bias.detach(), atol=1e-6)


def test_an_embedding_across_patches_is_refused():
    class Neighbours(EdgeHalf):
        def embed(self, images):
            tokens = super().embed(images)
            return tokens + tokens.roll(1, 1)

    edge = halves(Pipeline())[0]
    other = Neighbours(edge.embedding, [], torch.zeros(1, 1, 32), grid=edge.grid, patch_size=4, dim=32)
    with pytest.raises(AttackError, match="affine"):
        patch_embedding(other, SHAPE)


def test_failures_say_why():
    observation, _, _ = observe(EMBEDDED, blocks=0)
    with pytest.raises(AttackError, match="call fit"):
        HermitianPairing()(observation, seeded())


def test_without_spectra_there_is_nothing_to_undo():
    observation, clean, _ = observe()
    guess = HermitianPairing().fit(knowledge(), seeded())(observation, seeded())
    assert guess.diagnostics["nothing_to_undo"] == 1
    assert mse(guess.images, clean).max() < 1e-3
    shuffled, clean, _ = observe(PatchShuffle())
    assert (
        mse(HermitianPairing().fit(knowledge(PatchShuffle()), seeded())(shuffled, seeded()).images, clean).min() > 1e-3
    )


def test_configuration():
    assert repr(HermitianPairing()) == "HermitianPairing()"
    assert eval(repr(HermitianPairing(iterations=3))) == HermitianPairing(iterations=3)
    with pytest.raises(ValueError, match="iterations"):
        HermitianPairing(iterations=0)
