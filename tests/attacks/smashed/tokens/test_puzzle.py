"""Shuffled tokens as puzzles of patches, solved without any image of the attacker's own."""

from dataclasses import replace

import pytest
import torch

from attacks.base import Knowledge
from attacks.image_measures import mse, psnr
from attacks.sender import Sender
from attacks.smashed.base import SmashedData
from attacks.smashed.token_puzzle import TokenPuzzle
from attacks.smashed.tokens.positions import to_patches
from attacks.smashed.tokens.puzzle import border_costs, filled, improved, joined_parts, ratios_of, solved, total
from clients.data.packaged import photograph
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureNoise
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from tests.attacks.smashed_wire import assert_reads_three_images_of_six, knowledge, observe, seeded

GRID = (6, 6)


def square(name: str, top: int, left: int, size: int = 16) -> torch.Tensor:
    side = GRID[0] * size
    pixels = torch.from_numpy(photograph(name).copy()).permute(2, 0, 1).float() / 255
    return pixels[None, :, top : top + side, left : left + side]


def shuffled(patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    return patches[order], order


@pytest.mark.numeric
def test_photographs_are_put_together_and_told_apart() -> None:
    for name, top, left in (("astronaut", 0, 150), ("coffee", 100, 200), ("cat", 60, 120)):
        patches, order = shuffled(to_patches(square(name, top, left), 16)[0])
        board = solved(border_costs(patches, 16), GRID)
        assert board.shape == (1, *GRID)
        assert (order[board.flatten()] == torch.arange(36)).sum() >= 30, name
    whole = torch.cat([to_patches(square("astronaut", 0, 150), 16)[0], to_patches(square("coffee", 100, 200), 16)[0]])
    patches, order = shuffled(whole)
    boards = solved(border_costs(patches, 16), GRID, images=2)
    assert sorted(boards.flatten().tolist()) == list(range(72))
    assert all((order[board.flatten()] // 36).bincount(minlength=2).max() >= 33 for board in boards)
    # Single patches are no exception.
    assert solved(border_costs(torch.rand(1, 12), 2), (1, 1)).tolist() == [[[0]]]
    assert sorted(solved(border_costs(torch.rand(6, 1), 1), (2, 3)).flatten().tolist()) == list(range(6))


def test_costs_of_pairs_are_those_of_the_formula() -> None:
    patches = torch.rand(5, 3 * 16, generator=torch.Generator().manual_seed(2))
    costs = border_costs(patches, 4)
    cells = patches.view(5, 3, 4, 4).double() * 255
    eye = torch.eye(3, dtype=torch.float64)

    def one_way(last, before, first):
        steps = (last - before).T
        centred = torch.cat([steps, eye, -eye, torch.zeros(1, 3, dtype=torch.float64)])
        across = (first - last).T - steps.mean(0)
        return (across @ torch.linalg.inv(centred.T.cov() + 1e-3 * eye) * across).sum()

    a, b = cells[1], cells[3]
    beside = one_way(a[:, :, -1], a[:, :, -2], b[:, :, 0]) + one_way(b[:, :, 0], b[:, :, 1], a[:, :, -1])
    below = one_way(a[:, -1], a[:, -2], b[:, 0]) + one_way(b[:, 0], b[:, 1], a[:, -1])
    assert costs[0, 1, 3] == pytest.approx(float(beside.sqrt()))
    assert costs[1, 1, 3] == pytest.approx(float(below.sqrt()))


def test_free_cells_and_wrong_cells_are_put_right() -> None:
    true, ratios = torch.arange(36).view(1, *GRID), torch.ones(2, 36, 36, dtype=torch.float64)
    ratios[0][true[0, :, :-1], true[0, :, 1:]] = 0.1
    ratios[1][true[0, :-1], true[0, 1:]] = 0.1
    holes, wrong = true.clone(), true.clone()
    holes[0, 1:5, 1:5], holes[0, 5, 5] = -1, -1
    assert torch.equal(filled(holes, ratios), true)
    wrong[0, 0, 0], wrong[0, 3, 3], wrong[0, 1, 2], wrong[0, 4, 5] = 21, 0, 29, 8  # two swaps, one of each colour
    assert total(wrong, ratios) > total(true, ratios)
    assert torch.equal(improved(wrong, ratios), true)
    assert torch.equal(improved(true.roll(2, 2), ratios), true)
    # Parts that are too large for the frame stay apart.
    parts = joined_parts(ratios_of(ratios), (3, 6))
    assert sorted(patch for part in parts for patch in part) == list(range(36))
    rows = [[row for row, _ in part.values()] for part in parts]
    assert all(max(part) - min(part) < 3 for part in rows)
    assert max(map(len, parts)) > 1


# ---- the attack on smashed data


SIDE, PATCH = 48, 8


def photographs(*defenses, transmissions: int = 1) -> tuple[SmashedData, torch.Tensor, Knowledge]:
    """Squares of four photographs as a client sends them in a batch, 36 tokens each, and what the server knows: no image."""
    cuts = {"astronaut": (20, 180), "coffee": (100, 200), "cat": (60, 120), "rocket": (200, 300)}
    clean = torch.stack([
        torch.from_numpy(photograph(name)[top : top + SIDE, left : left + SIDE].copy()).permute(2, 0, 1).float() / 255
        for name, (top, left) in cuts.items()
    ])  # fmt: skip
    pipeline, statistics = Pipeline(defenses), ((0.5, 0.4, 0.6), (0.3, 0.25, 0.2))
    edge, server = build_split_model(
        "vit", num_classes=4, input_shape=(3, SIDE, SIDE), shape=SplitShape(PATCH, 192, 2, 2, 1), seed=0
    )
    sender = Sender(edge.eval().requires_grad_(False), pipeline, *statistics)
    features = torch.stack([sender.send(clean, seeded(number)) for number in range(transmissions)])
    seen = SmashedData(features, 4, edge, server, (3, SIDE, SIDE), *statistics)
    nothing = Batch(torch.zeros(0, 3, SIDE, SIDE), torch.zeros(0, 4))
    return seen, clean, Knowledge(nothing, pipeline, *statistics, train=lambda *_: server, sender=sender)


def guess_of(attack: TokenPuzzle, *defenses, **more):
    seen, clean, known = photographs(*defenses, **more)
    guess = attack.fit(known, seeded())(seen, seeded())
    assert not guess.failure
    return guess, clean, mse(guess.images, clean) / mse(torch.full_like(clean, 0.5), clean)


@pytest.mark.numeric
def test_shuffles_of_photographs_are_undone_without_any_image() -> None:
    guess, clean, _ = guess_of(TokenPuzzle(), PatchShuffle())
    assert (psnr(guess.images, clean) > 40).sum() >= 3
    assert (guess.diagnostics["exact"], guess.diagnostics["kept_share"]) == (1, 1)
    assert guess.labels.tolist() == [-1] * 4
    # Images of a batch shuffle come from one transmission.
    guess, _, errors = guess_of(TokenPuzzle(), BatchShuffle(k=0.4))
    assert guess.diagnostics["kept_share"] == pytest.approx(0.4, abs=0.05)
    assert (errors < 0.2).sum() >= 2


@pytest.mark.numeric
def test_noise_is_measured_and_allowed_for_and_other_defences_than_shuffles_are_named() -> None:
    guess, _, errors = guess_of(TokenPuzzle(evaluations=10), FeatureNoise(std=0.02))
    assert guess.diagnostics["noise"] == pytest.approx(0.02, rel=0.2)
    assert guess.diagnostics["exact"] == 0
    assert errors.min() < 0.5
    for defense, blocks in ((SpectralShuffle(), 0), (FeatureNoise(std=50.0), 1)):
        observation, _, _ = observe(defense, targets=2, blocks=blocks)
        guess = TokenPuzzle().fit(knowledge(defense, blocks=blocks), seeded())(observation, seeded())
        assert guess.failure.startswith("does not apply: "), defense


def test_patches_are_exact_even_where_the_puzzle_is_not_solved_and_the_order_is_never_read() -> None:
    observation, clean, orders = observe(PatchShuffle(), targets=6)
    attack = TokenPuzzle().fit(knowledge(PatchShuffle()), seeded())
    one, two = (attack(replace(observation, orders=order), seeded()) for order in (None, orders.flip(-1)))
    assert torch.equal(one.images, two.images)
    found, true = to_patches(one.images, 4), to_patches(clean, 4)
    assert torch.cdist(found, true, compute_mode="donot_use_mm_for_euclid_dist").amin(2).max() < 1e-3


def test_large_batches_are_cut_to_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacks.smashed.token_puzzle.MOST_TOKENS", 27)
    attack = TokenPuzzle(transmissions=1).fit(knowledge(BatchShuffle(k=0.4)), seeded())
    assert_reads_three_images_of_six(attack)
