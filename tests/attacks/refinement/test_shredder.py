"""Shuffled windows undone: inferred, averaged, annealed by swaps of pixels, and put together as jigsaws of blocks."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse, total_variation
from attacks.observations import AttackError
from attacks.refinement import shredder
from attacks.refinement.jigsaw import Planes, place_pixels, windows_of
from attacks.refinement.shredder import Jigsaw, Shredder, anneal
from attacks.refinement.unshuffle import WindowMean
from attacks.refinement.window_inference import (
    WindowInference,
    _at_least_half,
    _most_expected,
    learn_windows,
    region_features,
)
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses import Batch, Clip, Pipeline, VisualMixer
from defenses.images.visual_mixer import shuffle_windows
from tests.attacks.wire import MEAN, STD, generators, pictures
from tests.attacks.wire import stream as seeded
from tests.defenses.images.visual_mixer_reference import window_sides


def fit(attack, *defenses, auxiliary=None):
    images = pictures(2) if auxiliary is None else auxiliary
    train = lambda *_: pytest.fail("trains")  # noqa: E731
    known = Knowledge(Batch(images, torch.ones(len(images), 1)), Pipeline(defenses), MEAN, STD, train)
    return attack.fit(known, generators(1)[0])


def protect(defense, images):
    return Pipeline((defense,)).protect_once(Batch(images, torch.ones(len(images), 1)), ("client", 1)).images


def guess(images):
    return Reconstruction(images, torch.zeros(len(images), dtype=torch.int64), {"cost": 1.0})


def refine(attack, images, seen=None):
    return attack.refine_many([seen], [guess(images)], generators(1))[0]


def smooth(count=3, channels=1, height=16, width=16):
    """Tilted parabolas: no two blocks look alike, and linear extrapolation across a seam is nearly right."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    a = torch.rand(count, channels, 4, 1, 1, generator=torch.Generator().manual_seed(2)) * 0.2 + 0.05
    return a[:, :, 0] * x + a[:, :, 1] * y + a[:, :, 2] * x * x + a[:, :, 3] * y * y


def test_window_means_are_those_of_each_window_and_do_not_see_the_shuffle() -> None:
    for height, width in ((12, 12), (10, 7)):
        images = pictures(2, side=12, channels=3)[..., :height, :width]
        expected = images.clone()
        for row, column in itertools.product(range(0, height, 4), range(0, width, 4)):
            window = images[..., row : row + 4, column : column + 4]
            expected[..., row : row + 4, column : column + 4] = window.mean((-2, -1), keepdim=True)
        means = fit(WindowMean(), VisualMixer(4, 4), auxiliary=images)
        assert torch.allclose(refine(means, images).images, expected, atol=1e-6)
    images = pictures(3, channels=3)
    shuffled, attack = protect(VisualMixer(4, 4), images), fit(WindowMean(), VisualMixer(4, 4), auxiliary=images)
    assert torch.allclose(refine(attack, shuffled).images, refine(attack, images).images, atol=1e-6)
    assert mse(refine(attack, shuffled).images, images).mean() < mse(shuffled, images).mean()


@pytest.mark.numeric
def test_shredder_undoes_more_than_the_shuffle_and_the_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shredder, "TEMPERATURE", 0.02)  # for few sweeps
    defense = VisualMixer(window_lower=2, window_upper=2)
    for size in ((12, 12), (10, 7)):
        clean = smooth(4, 1, *size)
        shuffled = protect(defense, clean)
        result = refine(fit(Shredder(sweeps=200), defense, auxiliary=clean), shuffled)
        assert (total_variation(result.images) < total_variation(shuffled)).all()
        assert result.diagnostics["total_variation"] < result.diagnostics["total_variation_before"]
        means = refine(fit(WindowMean(), defense, auxiliary=clean), shuffled).images
        assert mse(result.images, clean).mean() < mse(means, clean).mean() < mse(shuffled, clean).mean(), size


def test_guesses_of_a_group_are_solved_as_each_alone() -> None:
    defense, known = VisualMixer(window_lower=1, window_upper=8), pictures(24, side=16, channels=2, seed=1)
    guesses = [guess(protect(defense, pictures(n, side=16, channels=2, seed=n))) for n in (2, 1, 3)]
    guesses.insert(1, replace(guesses[0], failure="lost"))
    guesses.append(guess(pictures(1, side=12, channels=2)))  # windows were learned for another size
    for attack in (Shredder(sweeps=10), WindowMean(), Jigsaw(sweeps=1)):
        fitted = fit(attack, defense, auxiliary=known)
        together = fitted.refine_many([None] * 5, guesses, generators(5))
        assert [one.failure for one in together[:4]] == ["", "lost", "", ""]
        assert "sides" in together[4].failure
        for one, stream, found in zip(guesses, generators(5), together, strict=True):
            (alone,) = fitted.refine_many([None], [one], [stream])
            assert torch.equal(found.images, alone.images), attack
            assert (found.diagnostics, found.failure) == (alone.diagnostics, alone.failure)


def test_jigsaw_finds_the_best_order_of_one_window() -> None:
    plane = torch.rand(2, 2, generator=torch.Generator().manual_seed(4))
    orders = itertools.permutations(plane.flatten().tolist())
    costs = [2 * (abs(a - b) + abs(c - d) + abs(a - c) + abs(b - d)) for a, b, c, d in orders]
    groups, _ = windows_of([[(2, torch.ones(1, 1, 1))]], 1, 2, 2)
    placed = place_pixels(plane[None], groups, sweeps=2)[0]
    with pytest.raises(AttackError, match="a window has 1,600 pieces; Jigsaw takes at most 1,024"):
        # The time of an assignment grows with the cube of its pieces: a window of 40x40 pixels would take minutes.
        refine(fit(Jigsaw(), VisualMixer(64, 64), auxiliary=torch.rand(1, 1, 40, 40)), torch.rand(1, 1, 40, 40))
    assert sorted(placed.flatten().tolist()) == sorted(plane.flatten().tolist())
    assert 2 * float(_variation(placed)) == pytest.approx(min(costs), rel=1e-5)


def test_every_refinement_takes_images_that_its_windows_do_not_fit() -> None:
    for attack in (WindowMean(), Shredder(sweeps=3), Jigsaw()):
        untouched = refine(fit(attack, Clip(max_norm=1.0)), pictures(2))
        assert untouched.diagnostics == {"cost": 1.0, "nothing_to_undo": 1.0}
        for shape in ((1, 1, 2, 2), (1, 3, 7, 5), (2, 1, 1, 1)):
            odd = fit(attack, VisualMixer(2, 2), auxiliary=torch.rand(shape))
            assert refine(odd, torch.rand(shape)).images.shape == shape


def _variation(planes):
    return sum(planes.diff(dim=dim).abs().sum() for dim in (-2, -1))


def test_a_cold_step_keeps_a_swap_exactly_when_it_lowers_the_variation() -> None:
    """Against the variation of the whole picture with the two pixels exchanged; in windows of 2 most pairs touch."""
    for count in (1, 3):
        state = Planes(torch.zeros(count, 6, 6))
        groups, counts = windows_of([[(2, torch.eye(3)[None] == 1)]], 1, 6, 6)
        assert counts == [3]
        group = next(group for group in groups if len(group.pixels) == 1)
        generator, kept = torch.Generator().manual_seed(4), 0
        for at in range(60):
            # Whole numbers, whose sums are exact.
            state.values.copy_(torch.randint(256, state.values.shape, generator=torch.Generator().manual_seed(at)))
            sweep = torch.rand(3, 3, generator=generator)
            draws = sweep[:, group.numbers]
            first = (draws[0] * 4).long()
            second = (first + 1 + (draws[1] * 3).long()) % 4
            before, swapped = state.planes.clone(), state.planes.flatten().clone()
            swapped[..., group.pixels[0, [first, second]]] = swapped[..., group.pixels[0, [second, first]]]
            swapped = swapped.view_as(before)
            lower = bool(_variation(swapped) <= _variation(before))
            anneal(state, group, sweep, 0.0)
            assert torch.equal(state.planes, swapped if lower else before)
            kept += lower
        assert 5 < kept < 55


@pytest.mark.parametrize("corners", [False, True])
def test_windows_of_one_group_have_no_neighbours_in_each_other(corners: bool) -> None:
    size, side = 4, 16
    windows = [(size, torch.ones(1, side // size, side // size, dtype=torch.bool))]
    groups, counts = windows_of([windows], 1, side, side, corners=corners)
    assert (counts, len(groups)) == ([(side // size) ** 2], 2 if corners else 4)
    for group in groups:
        held = zip(group.pixels, group.held, strict=True)
        cells = [torch.tensor([divmod(int(p), side) for p in row[:count]]) for row, count in held]
        for one, other in itertools.combinations(cells, 2):
            assert (one[:, None] - other[None]).abs().sum(-1).min() > 1


# ---- windows inferred from shuffled pictures, against the true ones


DIGITS = VisualMixer(window_lower=2, window_upper=16, first_regions="nearest")
COLOURS = VisualMixer(window_lower=2, window_upper=16)


def mix_of(defense: VisualMixer):
    def mix(images: Tensor, generator: torch.Generator):
        levels = defense.partition(images)
        return levels, shuffle_windows(images, levels, generator)

    return mix


def learned(defense: VisualMixer, images: Tensor, seed: int = 0):
    return learn_windows(defense.sizes(*images.shape[-2:]), images, mix_of(defense), seeded(seed))


def examples(dataset: str, part: str, count: int, seed: int) -> Tensor:
    data = getattr(load_dataset(dataset), part)
    return to_float(data.images[torch.randperm(len(data), generator=seeded(seed))[:count]])


def share_right(levels, true, images: Tensor) -> float:
    sides = (window_sides(one, *images.shape[-2:]) for one in (levels, true))
    return float(torch.eq(*sides).float().mean())


@pytest.mark.long
@pytest.mark.numeric
def test_windows_of_unseen_pictures_are_found_and_never_worse_than_one_size() -> None:
    """48 test images; over many seeds 97 % to 99 % are right, exact and under little noise, and a size alone has 50 %."""
    for dataset, defense in (("mnist-5k", DIGITS), ("photos", COLOURS)):
        inference, images = learned(defense, examples(dataset, "train", 200, 0)), examples(dataset, "test", 48, 0)
        true, shuffled = mix_of(defense)(images, seeded(10))
        fixed = max(float((window_sides(true, *images.shape[-2:]) == size).float().mean()) for size in (2, 4, 8))
        found, expected = inference(shuffled)
        right = share_right(found, true, images)
        assert right > 0.9 > max(fixed, share_right(defense.partition(shuffled), true, images)) + 0.2, dataset
        assert float(expected.mean()) == pytest.approx(right, abs=0.08)
        # From a good guess to pure noise, with a margin for chance.
        for std, least in ((0.05, 0.85), (0.2, fixed - 0.06), (0.6, fixed - 0.06), (2.0, fixed - 0.06)):
            noisy = (shuffled + std * torch.randn(shuffled.shape, generator=seeded(0))).clamp(0, 1)
            assert share_right(inference(noisy)[0], true, images) > least, (dataset, std)


def test_one_size_is_taken_where_nothing_can_be_told() -> None:
    """Judges that know only how often a region is cut: one size for all has more pixels right than a partition by chance."""
    judges = tuple(torch.nn.Linear(features, 1) for features in (24, 18))
    for parameter in (parameter for judge in judges for parameter in judge.parameters()):
        parameter.data.zero_()
    found, expected = WindowInference((16, 8, 4, 2), judges, (32, 32))(torch.rand(2, 3, 32, 32, generator=seeded(0)))
    assert set(window_sides(found, 32, 32).flatten().tolist()) == {8}
    assert expected.tolist() == [0.5, 0.5]
    # One size everywhere needs no learning.
    images = torch.rand(2, 1, 28, 28, generator=seeded(0))
    found, expected = learned(VisualMixer(4, 4), images)(images)
    assert set(window_sides(found, 28, 28).flatten().tolist()) == {4}
    assert expected.tolist() == [1.0, 1.0]


def test_the_best_partition_is_found_by_trying_all() -> None:
    """One image of 16 x 16 in regions of 8: which half of four regions is whole, what the others are cut to."""
    low = [torch.rand(1, 2, 2, generator=seeded(1)) * 0.9, torch.rand(1, 4, 4, generator=seeded(2))]
    levels, share = _most_expected(low, (8, 4, 2, 1), 16, 16)
    first, second = low[0].flatten(), F.max_pool2d(torch.maximum(low[1], 1 - low[1]), 1)
    parts = 16 * F.avg_pool2d(second, 2, divisor_override=1).flatten()
    halves = itertools.combinations(range(4), 2)
    probable = [half for half in halves if set(half) == set(first.topk(2).indices.tolist())]
    best = max(
        sum(float(64 * first[at] if at in half else (1 - first[at]) * parts[at]) for at in range(4)) / 256
        for half in probable
    )
    assert float(share) == pytest.approx(best, rel=1e-5)
    assert {size for size, active in levels if active.any()} <= {4, 2, 1}


def test_half_of_the_regions_lie_at_or_under_their_median() -> None:
    chance = torch.tensor([[[0.1, 0.2], [0.3, 0.4]], [[0.99, 0.98], [0.97, 0.4]]])
    assert _at_least_half(chance).tolist() == [[[False, False], [True, True]], [[True, True], [True, False]]]
    assert int(_at_least_half(torch.rand(1, 3, 3, generator=seeded(0)) * 0.9).sum()) == 5


def test_features_of_white_noise_are_equal_at_all_scales_and_of_pictures_rise() -> None:
    noise = 0.5 + 0.1 * torch.randn(400, 3, 32, 32, generator=seeded(0))
    whole, parts = region_features(noise, (16, 8, 4, 2))
    assert whole.shape == (400, 2, 2, 3 * 8)
    assert parts.shape == (400, 4, 4, 3 * 6)
    own, apart, mean = whole.chunk(3, -1)
    assert torch.equal(mean, own.mean((1, 2), keepdim=True).expand_as(own))
    assert torch.equal(apart, own - mean)
    variances, correlations = own[..., 0::2].exp().mean((0, 1, 2)), own[..., 1::2].mean((0, 1, 2))
    assert torch.allclose(variances, torch.full((4,), 0.01), rtol=0.1)
    assert correlations.abs().max() < 0.05
    smooth = F.interpolate(torch.rand(50, 1, 5, 5, generator=seeded(1)), (32, 32), mode="bicubic").expand(-1, 3, -1, -1)
    features = region_features(smooth, (16, 8, 4, 2))[0].mean((0, 1, 2))
    assert (features[0:8:2].diff() > 1).all()
    assert features[7] > 0.95
