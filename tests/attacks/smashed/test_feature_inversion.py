"""Known client halves inverted: by search, block by block, by the update of their weights, and by their spectra."""

import itertools
from dataclasses import replace

import pytest
import torch

from attacks.image_measures import mse, psnr
from attacks.normalisation import normalise
from attacks.observations import AttackError
from attacks.smashed.base import EdgeStep, ServerPrediction
from attacks.smashed.block_inversion import decoded, doubled, fixed_point
from attacks.smashed.edge_update_inversion import EdgeUpdateInversion
from attacks.smashed.feature_inversion import AssumedSender, FeatureInversion
from attacks.smashed.hermitian_pairing import HermitianPairing, pair_slots, pairing_costs, place_pairs
from attacks.smashed.tokens.positions import from_patches, patch_embedding, to_patches
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureDP, FeatureNoise
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle, spectrum, to_planes, to_tokens
from tests.attacks.smashed_wire import PATCH, SHAPE, Known, halves, knowledge, observe, seeded
from tests.attacks.wire import pictures

QUICK = FeatureInversion(iterations=150)
ORACLE = replace(QUICK, permutation="oracle")


def breaks(attack, *defenses, told=False, blocks=1):
    observation, clean, _ = observe(*defenses, told=told, blocks=blocks)
    guess = attack.fit(knowledge(*defenses, blocks=blocks), seeded(1))(observation, seeded(2))
    assert psnr(guess.images, clean).min() > 25, defenses
    return guess


@pytest.mark.numeric
def test_features_are_broken_where_the_order_is_known_or_told() -> None:
    guess = breaks(QUICK)
    assert guess.diagnostics["relative_loss"] < 1e-3
    assert guess.labels.tolist() == [-1, -1]
    breaks(QUICK, FeatureDP(clip=1.0, noise_multiplier=0.0))
    breaks(ORACLE, PatchShuffle(), told=True)
    breaks(ORACLE, SpectralShuffle(), told=True, blocks=0)


def test_only_the_upper_bound_reads_the_order() -> None:
    observation, _, orders = observe(PatchShuffle())
    for permutation in ("fixed", "resampled", "jigsaw"):
        attack = replace(QUICK, permutation=permutation, iterations=3, reader_iterations=2)
        assert attack.needs_auxiliary == (permutation == "jigsaw")
        attack = attack.fit(knowledge(PatchShuffle()), seeded())
        assert not attack.reveals_order
        without, told = (attack(replace(observation, orders=o), seeded(3)) for o in (None, orders.flip(-1)))
        assert not without.failure
        assert torch.equal(without.images, told.images)
    oracle = ORACLE.fit(knowledge(PatchShuffle()), seeded())
    assert oracle.reveals_order
    assert "was not given the true order" in oracle(observation, seeded()).failure


def test_the_assumed_sender_sends_what_the_client_sent() -> None:
    for defense in (PatchShuffle(), BatchShuffle(k=0.4)):
        observation, clean, orders = observe(defense, targets=6)
        assumed = AssumedSender(halves(Pipeline((defense,)))[0], Pipeline((defense,)), Known())
        assert torch.allclose(assumed.features(clean, orders[0]), observation.features[0], atol=1e-5), defense


# ---- block by block: exact where blocks contract, a search elsewhere, a prior where tokens are short


def shuffled_patches(clean, orders):
    return to_patches(clean, PATCH).flatten(0, 1)[orders[0, : len(clean)]]


def test_the_tokens_before_a_known_block_are_found_in_any_order() -> None:
    observation, clean, orders = observe(PatchShuffle(), targets=4)
    patches, numbers = decoded(observation.edge, SHAPE, Known, observation.features[0, :4], 0.0, 20)
    assert (patches - shuffled_patches(clean, orders)).abs().max() < 1e-4
    assert numbers["exact"] == 1
    assert numbers["block_residual"] < 1e-5


@pytest.mark.numeric
def test_blocks_that_add_more_than_a_token_holds_are_inverted_by_the_search() -> None:
    observation, clean, orders = observe(PatchShuffle(), targets=1)
    edge, truth = doubled(observation.edge).float(), shuffled_patches(clean, orders)
    with torch.no_grad():
        for weights in edge.blocks.parameters():
            if weights.dim() == 2:
                weights *= 12
        tokens = edge.embed((from_patches(truth, PATCH, SHAPE) - Known.mean[0]) / Known.std[0])
        received = edge.encode(tokens)
    assert fixed_point(doubled(edge).encode, received.double(), 40)[1] > 1e-3
    patches, numbers = decoded(edge, SHAPE, Known, received, 0.0, 60)
    assert numbers["exact"] == 0
    assert (patches - truth).square().mean().sqrt() < 0.02


@pytest.mark.numeric
def test_short_tokens_give_smooth_patches() -> None:
    edge, clean = halves(Pipeline(), 1, 12)[0], pictures(6, seed=90)
    patches, numbers = decoded(edge, SHAPE, Known, edge((clean - Known.mean[0]) / Known.std[0]), 0.0, 20)
    truth = to_patches(clean, PATCH)
    assert numbers["exact"] == 1, "12 numbers of a token are found, though not the 16 of its patch"
    assert mse(patches, truth).mean() < 0.5 * truth.var()


def test_a_fixed_point_is_exact_where_plain_steps_are_slow_and_separate_for_each_image() -> None:
    matrix = torch.eye(6, dtype=torch.float64) + 0.5 * torch.randn(6, 6, generator=seeded(1), dtype=torch.float64)
    tokens = torch.randn(3, 2, 6, generator=seeded(2), dtype=torch.float64)
    found, residual = fixed_point(lambda x: x @ matrix, tokens @ matrix, 60)
    assert (found - tokens).abs().max() < 1e-6  # 60 plain steps leave 8e-3
    assert residual.shape == (3,)
    alone, _ = fixed_point(lambda x: x @ matrix, tokens[:1] @ matrix, 60)
    assert (alone - found[:1]).abs().max() < 1e-6
    _, nothing = fixed_point(lambda x: x * float("inf"), tokens, 5)
    assert (nothing > 0.5).all()


# ---- what the update of the client half tells beside its smashed data


RATE, DECAY = 0.1, 5e-4
BY_UPDATE = EdgeUpdateInversion(iterations=80)
LOUD = FeatureNoise(std=2.0)


def stepped(*defenses, batch=2, blocks=1):
    """An observation with the client half's step, computed as PyTorch's own SGD takes it."""
    observation, clean, orders = observe(*defenses, batch=batch, targets=batch, blocks=blocks)
    edge = halves(Pipeline(defenses), blocks)[0]
    returned = torch.randn(observation.features.shape[1:], generator=seeded(8))
    before = {name: weight.detach().clone() for name, weight in edge.named_parameters()}
    optimizer = torch.optim.SGD(edge.parameters(), RATE, weight_decay=DECAY)
    pipeline, key = Pipeline(defenses), ("client", 0)
    tokens = pipeline.protect_tokens(edge.embed(normalise(clean, Known())), key)
    pipeline.protect_features(edge.encode(tokens), key).backward(returned)
    optimizer.step()
    update = {name: (weight.detach() - before[name]) for name, weight in edge.named_parameters()}
    edge.load_state_dict(before)
    optimizer.zero_grad()
    return replace(observation, step=EdgeStep(update, returned, RATE, DECAY)), clean, orders


def attacked(attack, observation, *defenses, blocks=1):
    return attack.fit(knowledge(*defenses, blocks=blocks), seeded())(observation, seeded())


def test_linear_equations_are_solved_exactly_whatever_the_noise() -> None:
    # 2 images of 9 tokens give 18 unknown rows, and there are 32 equations for each pixel.
    observation, clean, _ = stepped(FeatureNoise(std=100.0), blocks=0)
    guess = attacked(BY_UPDATE, observation, FeatureNoise(std=100.0), blocks=0)
    assert psnr(guess.images, clean).min() > 40
    assert guess.diagnostics["closed_form"] == 1
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-4
    # A shuffle stays a puzzle of the right patches.
    observation, clean, orders = stepped(PatchShuffle(), LOUD, blocks=0)
    guess = attacked(BY_UPDATE, observation, PatchShuffle(), LOUD, blocks=0)
    sent = to_patches(clean, PATCH).flatten(0, 1)[orders[0]]
    assert torch.allclose(to_patches(guess.images, PATCH), sent, atol=1e-2)


@pytest.mark.numeric
def test_a_client_half_with_blocks_is_searched_by_its_update_and_its_features() -> None:
    observation, clean, _ = stepped()
    guess = attacked(BY_UPDATE, observation)
    assert psnr(guess.images, clean).min() > 25
    assert guess.diagnostics["closed_form"] == 0
    assert guess.diagnostics["gradient_distance"] < 0.05


def test_what_is_no_plain_embedding_is_searched_and_what_cannot_be_says_why() -> None:
    quick = replace(BY_UPDATE, iterations=3)
    for defense in (SpectralShuffle(), FeatureDP(clip=1.0, noise_multiplier=0.0)):
        guess = attacked(quick, stepped(defense, blocks=0)[0], defense, blocks=0)
        assert not guess.failure
        assert guess.diagnostics["closed_form"] == 0
    observation, _, _ = stepped()
    step = observation.step
    for broken, why in (
        (replace(observation, step=None), "not trained"),
        (replace(observation, step=replace(step, update={})), "lacks"),
        (replace(observation, step=replace(step, gradient=step.gradient[:1])), "does not fit"),
    ):
        assert why in attacked(quick, broken).failure
    assert EdgeUpdateInversion().profile.needs_step


def test_a_server_that_knows_the_classes_tells_those_of_the_targets_and_says_how_sure_it_is() -> None:
    logits = 5 * torch.eye(5)[[3, 0, 4, 0, 1, 1]]
    observation, _, _ = observe(targets=4, server=lambda features: logits[: len(features)])
    guess = ServerPrediction()(observation, seeded())
    # Class i is that of image i: smashed data keep an image in its row.
    assert guess.classes.tolist() == [3, 0, 4, 0]
    assert guess.diagnostics["confidence"] > 0.9
    # An untrained server half is sure of nothing about noise.
    untrained, noise = observe(targets=2)[0], torch.randn(1, 400, 9, 32, generator=seeded(3))
    failed = ServerPrediction()(replace(untrained, features=noise * float("nan")), seeded())
    assert failed.classes.tolist() == [-1, -1]
    assert "NaN" in failed.failure
    guess = ServerPrediction()(replace(untrained, features=noise, num_targets=400), seeded())
    assert guess.diagnostics["confidence"] < 0.5
    # Predictions do not see a patch shuffle.
    plain, shuffled = observe(targets=6)[0], observe(PatchShuffle(), targets=6)[0]
    one, two = (ServerPrediction()(seen, seeded()) for seen in (plain, replace(shuffled, server=plain.server)))
    assert torch.equal(one.classes, two.classes)


# ---- spectra of real planes are symmetric: mirrored patches find each other


def spectral(grid, patch, count=4):
    return to_tokens(spectrum(torch.randn(count, 1, grid * patch, grid * patch, generator=seeded(1))), patch)


def test_mirrored_patches_are_paired_whatever_the_order() -> None:
    for grid, patch in ((3, 4), (3, 5), (4, 3), (4, 4), (5, 2), (6, 5)):
        tokens, count = spectral(grid, patch), grid**2
        mirrored = torch.arange(count - 1, -1, -1)
        assert pairing_costs(tokens, patch)[:, torch.arange(count), mirrored].max() < 1e-4
        order = torch.randperm(count, generator=seeded(3))
        for image in pairing_costs(tokens[:, order], patch):
            pairs = pair_slots(image, self_paired=count % 2)
            assert sorted(slot for pair in pairs for slot in set(pair)) == list(range(count))
            assert all(order[s] + order[t] == count - 1 for s, t in pairs), (grid, patch)


def test_pairing_costs_are_those_of_a_loop() -> None:
    tokens = spectral(4, 3, count=1)[:, torch.randperm(16, generator=seeded(5))]
    values = torch.complex(*to_planes(tokens, 3)[0].chunk(2, 0))[0]
    cell = lambda n: values[3 * (n // 4) : 3 * (n // 4) + 3, 3 * (n % 4) : 3 * (n % 4) + 3]  # noqa: E731
    for a, b in [(0, 1), (2, 9), (7, 7)]:
        # Of an even plane, entry r of a patch mirrors to entry p - r, and entry 0 to another patch.
        here, there = cell(a)[1:, 1:], cell(b)[1:, 1:].flip(0, 1).conj()
        expected = (here - there).abs().square().sum() / (here.abs().square().sum() + there.abs().square().sum())
        assert pairing_costs(tokens, 3)[0, a, b] == pytest.approx(float(expected), rel=1e-4)


def test_pairs_get_the_best_mirrored_positions() -> None:
    for count in (4, 5):
        scores = torch.randn(count, count, generator=seeded(count))
        pairs = [(0, 3), (1, 2)] + [(4, 4)] * (count == 5)
        partner = {a: b for s, t in pairs for a, b in ((s, t), (t, s))}
        every = [
            p
            for p in itertools.permutations(range(count))
            if all(p[s] + p[partner[s]] == count - 1 for s in range(count))
        ]
        found = tuple(place_pairs(scores, pairs).tolist())
        assert found in every
        assert found == max(every, key=lambda p: sum(float(scores[s, n]) for s, n in enumerate(p)))


@pytest.mark.long
@pytest.mark.numeric
def test_a_spectral_shuffle_is_undone() -> None:
    defense = SpectralShuffle()
    for reader in ("statistics", "network"):
        attack = HermitianPairing(iterations=80, reader=reader).fit(knowledge(defense, blocks=0), seeded(1))
        observation, clean, _ = observe(defense, blocks=0, targets=6)
        guess, mean = attack(observation, seeded()), pictures(256, seed=5).mean(0).expand_as(clean)
        assert mse(guess.images, clean).mean() < 0.5 * mse(mean, clean).mean(), reader
        assert psnr(guess.images, clean).max() > 40
        assert guess.diagnostics["pairing_cost"] < 1e-3
        noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
        lost = attack(replace(observation, features=noise), seeded())
        assert mse(lost.images, clean).mean() > mse(mean, clean).mean(), reader
        assert lost.diagnostics["pairing_cost"] > 0.1


def test_the_patch_embedding_is_found_by_probing_and_one_across_patches_is_refused() -> None:
    edge, overlapping = halves(Pipeline())[0], SplitShape(4, 32, 2, 2, 1)
    weight, offset = patch_embedding(edge, SHAPE)
    assert torch.allclose(weight, edge.embedding.proj.weight.detach().flatten(1).T, atol=1e-5)
    assert torch.allclose(offset, edge.embedding.proj.bias.detach(), atol=1e-6)
    other, _ = build_split_model("t2t", num_classes=5, input_shape=SHAPE, shape=overlapping, seed=0)
    with pytest.raises(AttackError, match="not an affine map of single patches"):
        patch_embedding(other.eval(), SHAPE)


def test_without_spectra_there_is_nothing_to_undo() -> None:
    observation, clean, _ = observe()
    guess = HermitianPairing(iterations=40).fit(knowledge(), seeded())(observation, seeded())
    assert guess.diagnostics["nothing_to_undo"] == 1
    assert mse(guess.images, clean).max() < 1e-3
