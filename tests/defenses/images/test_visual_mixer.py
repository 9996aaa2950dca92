"""VisualMixer against a slow Algorithm 1, the laws of uniform shuffles, and exact invariants."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare
from torch import Tensor

from defenses.base import Batch
from defenses.images import visual_mixer
from defenses.images.block_shuffle import BlockShuffle
from defenses.images.vfe import vfe_map, vfe_normalised
from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_bounds import shuffled_vfe_variance
from defenses.images.visual_mixer_windows import (
    levels_of,
    log10_keys,
    mixing_windows,
    power_of_two,
    window_sides,
    window_sizes,
)
from defenses.random_draws import generator_for
from defenses.spec import parse
from tests.defenses.images.visual_mixer_reference import (
    crop,
    random_images,
    reference_partition,
    reference_visual_mixer,
    same_values_per_window,
    window_ids,
)

SHAPES = [(28, 28), (32, 32), (31, 45), (5, 5), (1, 1), (1, 40), (64, 48), (7, 100)]
BOUNDS = [(2, 15), (1, 32), (3, 40), (16, 16), (1, 1)]


def counts_of(defense: VisualMixer, images: Tensor) -> dict[str, float]:
    totals = defense.totals(images, images)
    return {name: number for name, number in totals.items() if name.startswith("windows")}


def protect(defense: VisualMixer | BlockShuffle, images: Tensor, seed: int = 0) -> Tensor:
    return defense.protect_batch(Batch(images, torch.ones(len(images), 1)), generator_for(seed)).images


def ids_of(defense: VisualMixer, images: Tensor) -> Tensor:
    return window_ids(defense.partition(images), *images.shape[-2:])


def windows_of(ids: Tensor) -> list[tuple[int, int, int, int]]:
    """Bounding boxes (top, left, height, width) of the windows of one image, which must be full rectangles."""
    _, window, areas = ids.flatten().unique(return_inverse=True, return_counts=True)
    rows, columns = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, ids.shape), indexing="ij"))
    (top, bottom), (left, right) = (
        [torch.zeros_like(areas).scatter_reduce(0, window, axis, end, include_self=False) for end in ("amin", "amax")]
        for axis in (rows, columns)
    )
    height, width = bottom - top + 1, right - left + 1
    assert torch.equal(height * width, areas)
    return sorted(zip(*(values.tolist() for values in (top, left, height, width)), strict=True))


# Partition


def test_window_sizes_follow_lines_3_to_16_of_the_algorithm():
    assert window_sizes(224, 224, 2, 15) == [8, 4, 2]  # 224 -> 64 -> 32 -> 16 -> 8
    assert window_sizes(224, 224, 4, 15) == [8, 4]
    assert VisualMixer(6, 63).sizes(224, 224) == [32, 16, 8, 4]  # 6 is rounded down to 4 ...
    assert VisualMixer(6, 63, strict_lower=True).sizes(224, 224) == [32, 16, 8]  # ... or up to 8.
    assert window_sizes(32, 32, 8, 15) == [8]
    assert window_sizes(28, 28, 2, 28) == [28, 14]  # One region, which is its own median.
    assert window_sizes(28, 20, 30, 40) == [28, 16]  # Half of 28 would fall below 16 = 2^floor(log2 30).
    assert window_sizes(20, 17, 16, 16) == [16]  # Line 5 would give 8.
    assert window_sizes(5, 5, 8, 15) == [5]
    assert window_sizes(1, 1, 2, 15) == [1]


def test_first_regions_are_the_largest_power_of_two_within_the_bound_where_the_text_says_so():
    """Sec. IV-D against line 5: they differ on sides that are no power of two."""
    assert window_sizes(28, 28, 2, 16) == [8, 4, 2]
    assert window_sizes(28, 28, 2, 16, first_regions="nearest") == [16, 8, 4, 2]
    assert window_sizes(224, 224, 4, 100, first_regions="nearest") == [64, 32, 16, 8, 4]
    for bounds in BOUNDS:
        assert window_sizes(32, 32, *bounds) == window_sizes(32, 32, *bounds, first_regions="nearest")
        assert window_sizes(20, 9, 4, 30) == window_sizes(20, 9, 4, 30, first_regions="nearest")
    ids = ids_of(VisualMixer(2, 16, first_regions="nearest"), random_images(3, 1, 28, 28))
    assert {max(box[2:]) for image in ids for box in windows_of(image)} == {8, 4, 2}


@pytest.mark.parametrize(
    ("defense", "side", "uniform"),
    [
        (VisualMixer(4, 16), 28, True),
        (VisualMixer(4, 16), 32, False),
        (VisualMixer(2, 16), 28, False),
        (VisualMixer(4, 16, first_regions="nearest"), 28, False),
        (VisualMixer(4, 4), 32, True),
        (VisualMixer(2, 64), 32, True),
    ],
)
def test_bounds_that_give_one_size_everywhere_are_known_before_any_image(defense, side, uniform):
    """Against the sizes that occur among many images of all contrasts."""
    images = random_images(20, 1, side, side)
    found = set(window_sides(defense.partition(images), side, side).flatten().tolist())
    assert (len(defense.sizes(side, side)) < 3) == uniform == (len(found) == 1)


def test_windows_are_counted_where_something_moves():
    """Two regions of 8 hold noise and are cut, two are of one colour: no window of 4 changes anything."""
    image = torch.full((1, 3, 16, 16), 0.5)
    image[:, :, :8] = random_images(1, 3, 8, 16)
    defense = VisualMixer(2, 15)
    levels = defense.partition(image)
    assert set(window_sides(levels, 16, 16)[0, :8].flatten().tolist()) == {2}
    assert mixing_windows(image, levels) == {8: 0, 4: 0, 2: 32}
    assert counts_of(defense, image) == {"windows-of-4": 0, "windows-of-2": 32}
    assert counts_of(VisualMixer(4, 4), image) == {"windows-of-4": 8}


def test_orders_are_counted_as_the_paper_s_example_has_them():
    """224 x 224 pixels in windows of 8: (64!)^784 is about 2^232060; channels shuffled apart have that each."""
    image = random_images(1, 1, 224, 224)
    levels = VisualMixer(8, 8).partition(image)
    exact = 784 * sum(math.log10(number) for number in range(1, 65))
    assert log10_keys(image, levels) == pytest.approx(exact, rel=1e-12)
    assert round(log10_keys(image, levels) / math.log10(2)) == pytest.approx(232_060, abs=3)
    colours = random_images(2, 3, 16, 16)
    totals = [
        VisualMixer(8, 8, channels=how).totals(colours, colours)["log10-keys"] for how in ("spatial", "per-channel")
    ]
    assert totals == [pytest.approx(2 * 4 * math.log10(math.factorial(64))), pytest.approx(3 * totals[0])]


def test_a_channel_of_one_colour_has_no_orders_of_its_own():
    image = torch.full((1, 3, 8, 8), 0.3)
    image[:, 1] = random_images(1, 1, 8, 8)[:, 0]
    for how in ("spatial", "per-channel"):
        totals = VisualMixer(8, 8, channels=how).totals(image, image)
        assert totals["log10-keys"] == pytest.approx(math.log10(math.factorial(64)))


def test_windows_at_an_edge_have_fewer_orders_and_those_of_one_colour_none():
    image = random_images(1, 1, 5, 3)  # windows of 4: 4 x 3 and 1 x 3 pixels
    levels = VisualMixer(4, 4).partition(image)
    assert log10_keys(image, levels) == pytest.approx(math.log10(math.factorial(12) * math.factorial(3)))
    image[:, :, 4:] = 0.5
    assert log10_keys(image, levels) == pytest.approx(math.log10(math.factorial(12)))
    assert log10_keys(torch.full((1, 1, 8, 8), 0.3), VisualMixer(4, 4).partition(torch.full((1, 1, 8, 8), 0.3))) == 0


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3])
def test_nothing_moves_in_windows_of_one_grey_whose_mean_is_rounded(value: float):
    flat = torch.full((2, 1, 28, 28), value)
    for size in (2, 4, 8, 16):
        assert counts_of(VisualMixer(size, size), flat) == {f"windows-of-{size}": 0}


@pytest.mark.parametrize(
    ("defense", "side"), [(VisualMixer(2, 16), 28), (VisualMixer(4, 4), 12), (VisualMixer(3, 9), 21)]
)
def test_vfe_before_and_after_equals_a_loop_over_the_slow_windows(defense: VisualMixer, side: int):
    images = random_images(3, 2, side, side)
    images[0, 0, :8] = 0.25  # windows of which one channel is constant
    mixed = protect(defense, images)
    expected = {"before": 0.0, "after": 0.0}
    for at, numbers in enumerate(window_ids(defense.partition(images), side, side)):
        for (top, left, height, width), channel in itertools.product(windows_of(numbers), range(2)):
            for name, pixels in (("before", images), ("after", mixed)):
                region = pixels[at, channel, top : top + height, left : left + width].numpy()
                changes = (np.diff(region, axis=0) ** 2).sum() + (np.diff(region, axis=1) ** 2).sum()
                expected[name] += changes / (2 * region.var(ddof=1)) / 2 if np.ptp(region) else 0.0
    totals = defense.totals(images, mixed)
    assert totals["vfe-sum-before"] == pytest.approx(expected["before"])
    assert totals["vfe-sum-after"] == pytest.approx(expected["after"])
    assert expected["before"] != pytest.approx(expected["after"], rel=1e-3)


# Bounds that follow from other settings


def test_an_automatic_upper_bound_is_equation_17_and_does_as_that_bound_does():
    """15 is the default that the specification worked out; a tenth of the confidence, or a rougher estimate, moves it."""
    auto = VisualMixer(window_upper="auto")
    assert auto.upper == 15
    assert VisualMixer(window_upper="auto", estimator="sum").upper == 7
    assert VisualMixer(window_upper="auto", estimator="sum", strict_upper=True).upper == 5
    assert VisualMixer(window_upper="auto", estimator="sum", confidence=0.05).upper == 15
    assert VisualMixer(window_upper="auto", estimator="sum", max_change=4).upper == 5
    for side in (12, 28, 32):
        images = random_images(3, 1, side, side)
        assert torch.equal(protect(auto, images), protect(VisualMixer(), images))
        assert torch.equal(auto.window_sides(images), VisualMixer().window_sides(images))


@pytest.mark.parametrize("target", [0.5, 4, 23.9, 24, 24.1, 60, 112])
@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_the_smallest_windows_reach_the_target_and_half_of_them_would_not(target: float, margin: float):
    """Mean and deviation over shuffles of 4000 windows of normal pixels, each within 5 standard errors."""
    defense = VisualMixer(1, 64, target_vfe=target, vfe_margin=margin)
    size = defense.smallest
    assert defense.sizes(128, 128)[-1] == size
    for side, reaches in ((size, True), (size // 2, False)):
        pixels = torch.randn(4000, 1, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        vfe = vfe_normalised(protect(VisualMixer(side, side), pixels), side).flatten()
        reached, error = vfe.mean() - margin * vfe.std(), 5 * (1 + margin) * vfe.std() / 4000**0.5
        assert reached + error >= target if reaches else reached - error < target


def test_a_target_only_ever_raises_the_lower_bound():
    assert VisualMixer(8, 16, target_vfe=4).sizes(64, 64) == VisualMixer(8, 16).sizes(64, 64)
    assert VisualMixer(2, 16, target_vfe=60).sizes(64, 64) == VisualMixer(8, 16).sizes(64, 64)
    assert VisualMixer(6, 16).smallest == 4  # the paper's rounding of the bound that the target of 60 has


def test_a_target_that_images_cannot_reach_is_said():
    defense = VisualMixer(2, 15, target_vfe=60)
    assert "cannot reach its target in images of 4 x 40, whose smallest windows have a VFE of 52" in defense.idle(4, 40)
    assert defense.idle(64, 64) == VisualMixer(8, 15, target_vfe=60).idle(64, 64).replace("lower=8", "lower=2") != ""
    assert VisualMixer(2, 32, target_vfe=60).idle(64, 64) == ""


def test_sides_of_windows_say_which_windows_they_are():
    images = random_images(4, 1, 28, 32)
    levels = VisualMixer(2, 16).partition(images)
    again = levels_of(window_sides(levels, 28, 32))
    assert all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(levels[1:], again, strict=True))


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("density", visual_mixer.DENSITIES)
def test_partition_equals_the_slow_algorithm(height: int, width: int, lower: int, upper: int, density: str):
    images = random_images(2, 2, height, width)
    defense = VisualMixer(lower, upper, density)
    ids = ids_of(defense, images)
    for image, numbers in zip(images, ids, strict=True):
        assert windows_of(numbers) == sorted(w[:4] for w in reference_partition(image, lower, upper, density))


@pytest.mark.parametrize(("lower", "upper"), [(3, 40), (5, 8), (9, 33)])
def test_strict_lower_equals_the_slow_algorithm(lower: int, upper: int):
    images = random_images(2, 3, 45, 70)
    ids = ids_of(VisualMixer(lower, upper, strict_lower=True), images)
    for image, numbers in zip(images, ids, strict=True):
        expected = reference_partition(image, lower, upper, strict_lower=True)
        assert windows_of(numbers) == sorted(w[:4] for w in expected)
        assert min(w.size for w in expected) >= lower


def test_partition_uses_several_sizes_and_an_image_of_its_own_only():
    images = random_images(4, 3, 96, 96)
    defense = VisualMixer(2, 63)
    ids = ids_of(defense, images)
    assert {box[2] for box in windows_of(ids[0])} == {16, 8, 4, 2}
    for index in range(4):
        assert torch.equal(ids_of(defense, images[index : index + 1])[0], ids[index])


@pytest.mark.parametrize(("lower", "upper"), [(2, 16), (3, 40), (4, 64)])
def test_window_sides_are_powers_of_two_within_the_bounds_except_at_edges(lower: int, upper: int):
    images = random_images(2, 3, 90, 101)
    for ids in ids_of(VisualMixer(lower, upper), images):
        for top, left, height, width in windows_of(ids):
            side = max(height, width)
            if top + height < 90 and left + width < 101:
                assert height == width == power_of_two(side)
                assert power_of_two(lower) <= side <= power_of_two(upper) // 2
            assert side <= upper // 2


@pytest.mark.parametrize("density", ["normalised", "sum"])
def test_low_vfe_regions_get_windows_at_least_as_large_as_high_ones(density: str):
    """The first regions, of 32 pixels, are told apart by their own VFE, computed here by hand."""
    image = random_images(1, 3, 128, 128)
    ids = ids_of(VisualMixer(2, 63, density), image)[0]
    smallest: dict[bool, set[int]] = {True: set(), False: set()}
    regions = [(y, x) for y in range(0, 128, 32) for x in range(0, 128, 32)]
    vfe = torch.stack([vfe_map(image[0, :, y : y + 32, x : x + 32], 32).mean() for y, x in regions])
    for (y, x), low in zip(regions, (vfe <= vfe.quantile(0.5)).tolist(), strict=True):
        smallest[low] |= {box[2] for box in windows_of(ids[y : y + 32, x : x + 32])}
    assert smallest[True] == {16}
    assert max(smallest[False]) <= 16
    assert min(smallest[False]) < 16


def test_flat_half_gets_large_windows_and_noisy_half_small_ones():
    image = torch.zeros(1, 1, 64, 64)
    image[..., 32:] = torch.rand(1, 1, 64, 32, generator=torch.Generator().manual_seed(0))
    image[..., :32] += torch.linspace(0, 0.01, 64).view(1, 1, 64, 1)
    boxes = windows_of(ids_of(VisualMixer(1, 16), image)[0])
    assert {box[2] for box in boxes if box[1] < 32} == {8}
    # Noise of one strength: its parts have about its own VFE, and none reaches down to the flat half's median.
    assert {box[2] for box in boxes if box[1] >= 32} < {4, 2, 1}


# Shuffle


@pytest.mark.parametrize("channels", visual_mixer.CHANNELS)
@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("depth", [1, 3])
def test_each_window_keeps_its_values_channel_by_channel(height: int, width: int, depth: int, channels: str):
    images = random_images(3, depth, height, width)
    defense = VisualMixer(2, 16, channels=channels)
    before = images.clone()
    mixed = protect(defense, images)
    assert torch.equal(images, before)
    assert same_values_per_window(images, mixed, ids_of(defense, images))
    if height * width > 100:
        assert (mixed != images).double().mean() > 0.5


def test_slow_algorithm_keeps_the_same_windows():
    images = random_images(2, 3, 45, 31)
    mixed = reference_visual_mixer(images, torch.Generator().manual_seed(0), 2, 16)
    assert not torch.equal(mixed, images)
    assert same_values_per_window(images, mixed, ids_of(VisualMixer(2, 16), images))


@pytest.mark.parametrize("channels", visual_mixer.CHANNELS)
def test_every_pixel_is_a_uniform_draw_from_its_window_like_in_the_slow_algorithm(channels: str):
    image = random_images(1, 2, 22, 19)
    fast = protect(VisualMixer(2, 16, channels=channels), image.expand(1000, -1, -1, -1))
    slow = reference_visual_mixer(
        image.repeat(100, 1, 1, 1), torch.Generator().manual_seed(1), 2, 16, channels=channels
    )
    mean, variance = torch.empty_like(image[0]), torch.empty_like(image[0])
    for window in reference_partition(image[0], 2, 16):
        pixels = crop(image[0], window).flatten(1)
        crop(mean, window).copy_(pixels.mean(1)[:, None, None].expand_as(crop(mean, window)))
        crop(variance, window).copy_(pixels.var(1, unbiased=False)[:, None, None].expand_as(crop(variance, window)))
    for mixed in (fast, slow):
        z = (mixed.mean(0) - mean) / (variance / len(mixed)).sqrt()
        assert z.abs().max() < 4.5
        assert 0.8 < z.square().mean() < 1.2


@pytest.mark.parametrize(("height", "width"), [(2, 2), (2, 3), (1, 4)])
def test_all_permutations_of_a_tiny_window_are_equally_likely(height: int, width: int):
    count = height * width
    codes = {order: i for i, order in enumerate(itertools.permutations(range(count)))}
    repeats = 60 * len(codes)
    images = torch.arange(count).float().view(1, 1, height, width).expand(repeats, 1, -1, -1)
    mixed = protect(VisualMixer(4, 4), images).flatten(1).int().tolist()
    observed = torch.bincount(torch.tensor([codes[tuple(row)] for row in mixed]), minlength=len(codes))
    assert chisquare(observed.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("size", [4, 8])
def test_any_pixel_goes_anywhere_in_its_window_equally_often(size: int):
    """Checks all windows of a large image at once, so that no position in the image is special."""
    images = torch.arange(size * size).view(1, 1, size, size).repeat(8, 3, 16, 16).float()
    mixed = protect(VisualMixer(size, size), images).unfold(2, size, size).unfold(3, size, size)
    origin = mixed.reshape(-1, size * size).long()
    position = torch.arange(size * size).expand_as(origin)
    n = size * size
    observed = torch.bincount((origin * n + position).flatten(), minlength=n * n)
    # A sum of permutation matrices has fixed row and column sums, which leaves (n - 1)^2 degrees of freedom, and cells
    # of variance (1 - 1/n) / n, which makes Pearson's statistic n / (n - 1) times a chi-square one.
    statistic = chisquare(observed.numpy()).statistic * (n - 1) / n
    assert chi2.sf(statistic, (n - 1) ** 2) > 1e-3


def test_channels_are_shuffled_independently_or_together():
    images = torch.arange(4).float().view(1, 1, 2, 2).repeat(6000, 2, 2, 2)
    codes = {order: i for i, order in enumerate(itertools.permutations(range(4)))}

    def orders(channels: str) -> Tensor:
        tiles = protect(VisualMixer(2, 2, channels=channels), images).unfold(2, 2, 2).unfold(3, 2, 2)
        rows = tiles.permute(0, 2, 3, 1, 4, 5).reshape(-1, 4).int().tolist()
        return torch.tensor([codes[tuple(row)] for row in rows]).view(-1, 2)

    together = orders("spatial")
    assert torch.equal(together[:, 0], together[:, 1])
    assert len(together.unique()) == 24
    alone = orders("per-channel")
    observed = torch.bincount(alone[:, 0] * 24 + alone[:, 1], minlength=576)
    assert chisquare(observed.numpy()).pvalue > 1e-3


def test_windows_of_a_batch_are_shuffled_independently():
    """Neighbouring windows and images must not share a permutation."""
    images = torch.arange(4).float().view(1, 1, 2, 2).repeat(40, 3, 20, 20)
    rows = protect(VisualMixer(2, 2), images).unfold(2, 2, 2).unfold(3, 2, 2).reshape(-1, 4)
    equal = (rows[1:] == rows[:-1]).all(1).double()
    assert abs(equal.mean() - 1 / 24) < 4 * (equal.std() / len(equal) ** 0.5)


def test_shuffled_vfe_has_the_exact_mean_and_variance():
    size, repeats = 8, 3000
    region = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = protect(VisualMixer(size, size), region.expand(repeats, -1, -1, -1))
    normalised = vfe_normalised(mixed[:, 0], size)
    centred = region - region.mean()
    exact = shuffled_vfe_variance(size, kurtosis=float(centred.pow(4).mean() / centred.square().mean() ** 2))
    assert abs(normalised.mean() - 112) < 4 * (exact / repeats) ** 0.5
    assert abs(normalised.var() / exact - 1) < 4 * (2 / repeats) ** 0.5


def test_shuffling_raises_the_vfe_of_a_smooth_image_and_larger_windows_raise_it_more():
    ramp = (torch.arange(64)[:, None] + torch.arange(64)).float() / 126
    image = ramp.expand(1, 3, -1, -1)
    values = [float(vfe_map(protect(VisualMixer(size, size), image), 64).mean()) for size in (1, 2, 4, 8, 16)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(float(vfe_map(image, 64).mean()))
    assert values[-1] > 20 * values[0]


# The defence as others see it


def test_window_of_one_and_constant_images_stay():
    images = random_images(2, 3, 17, 12)
    assert torch.equal(protect(VisualMixer(1, 1), images), images)
    flat = torch.full((2, 3, 17, 12), 0.25)
    assert torch.equal(protect(VisualMixer(), flat), flat)


@pytest.mark.parametrize("defense", [VisualMixer(), VisualMixer(channels="spatial"), BlockShuffle()])
def test_same_generator_state_same_output_and_other_states_another(defense: VisualMixer | BlockShuffle):
    images = random_images(2, 3, 32, 32)
    assert torch.equal(protect(defense, images, seed=1), protect(defense, images, seed=1))
    assert not torch.equal(protect(defense, images, seed=1), protect(defense, images, seed=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("density", visual_mixer.DENSITIES)
def test_dtype_memory_layout_and_range_are_free(dtype: torch.dtype, density: str):
    images = (255 * random_images(2, 3, 30, 21)).round().to(dtype)
    defense = VisualMixer(2, 16, density)
    mixed = protect(defense, images)
    assert mixed.dtype == dtype
    assert torch.equal(mixed, protect(defense, images.to(memory_format=torch.channels_last)))
    assert same_values_per_window(images.double(), mixed.double(), ids_of(defense, images))
    assert torch.equal(ids_of(defense, images), ids_of(defense, images.double()))


@pytest.mark.parametrize("defense", [VisualMixer(), BlockShuffle()])
def test_empty_batch_and_targets(defense: VisualMixer | BlockShuffle):
    assert protect(defense, torch.zeros(0, 3, 16, 16)).shape == (0, 3, 16, 16)
    batch = Batch(
        torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.3, 0.7], [1, 0]])
    )
    assert torch.equal(defense.protect_batch(batch, generator_for(0)).targets, batch.targets)


@pytest.mark.parametrize(
    "text",
    [
        "VisualMixer(window_lower=2, window_upper=15)",
        "VisualMixer(window_lower=4, window_upper=8, channels='spatial')",
        "VisualMixer(window_lower=2, window_upper='auto')",
        "VisualMixer(window_lower=2, window_upper='auto', target_vfe=4.5, vfe_margin=0.5, confidence=0.4, estimator='sum')",
        "BlockShuffle(window=4, blocks=2)",
    ],
)
def test_configuration_text_and_pickle_round_trip(text: str):
    (defense,) = parse(text).defenses
    assert repr(defense) == text
    assert pickle.loads(pickle.dumps(defense)) == defense
    assert defense.at_inference
    assert not defense.resamples
    assert not defense.mixes_examples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_lower": 0}, "window_lower is 0"),
        ({"window_lower": 2.0}, "window_lower is 2.0"),
        ({"window_upper": 15.5}, "window_upper is 15.5; allowed: a whole number"),
        ({"window_lower": 16}, "window_upper is 15; allowed: 16 or more"),
        ({"window_lower": 9, "strict_lower": True}, "window_upper is 15; allowed: 16 or more"),
        ({"window_upper": "all"}, "window_upper is 'all'; allowed: a whole number up to 4096, or \"auto\""),
        ({"window_upper": "auto", "window_lower": 16}, "window_upper is 'auto'; allowed: 16 or more.*it is 15 here"),
        ({"window_upper": "auto", "max_change": 100}, "every sampled kernel"),
        ({"target_vfe": 113}, "target_vfe is 113; allowed: at most 112, which windows of 8 reach.*bound of 15"),
        ({"target_vfe": 1e12}, "target_vfe is 1000000000000.0; allowed: at most 112"),
        ({"target_vfe": 1e300}, "target_vfe is 1e\\+300; allowed: 0, or a number from 1e-12"),
        ({"target_vfe": 100, "vfe_margin": 3.0}, "target_vfe is 100; allowed: at most 79.95"),
        ({"target_vfe": -1}, "target_vfe is -1; allowed: 0, or a number from 1e-12"),
        ({"vfe_margin": float("inf")}, "vfe_margin is inf; allowed"),
        ({"max_change": 0}, "max_change is 0; allowed: a number from 1e-12"),
        ({"confidence": 1.0}, r"confidence is 1.0; allowed: a number in \(0, 1\)"),
        ({"estimator": "mean"}, "estimator is 'mean'; allowed: exact \\| sum \\| perm \\| pairs"),
        ({"strict_upper": 1}, "strict_upper is 1; allowed: True or False"),
        ({"density": "mean"}, "density is 'mean'; allowed: normalised \\| sum \\| sigma"),
        ({"channels": "both"}, "channels is 'both'; allowed: per-channel \\| spatial"),
    ],
)
def test_bad_parameters_are_named(arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        VisualMixer(**arguments)
