"""VisualMixer against a slow Algorithm 1, the laws of uniform shuffles, and exact invariants; its entropy against slow loops."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare
from torch import Tensor

from defenses.base import Batch
from defenses.images.vfe import (
    pair_count,
    vfe_map,
    vfe_normalised,
    window_fill,
    window_pairs,
    window_sum,
    window_variance,
)
from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_windows import (
    log10_keys,
    mixing_windows,
    window_lower_bound,
    window_sizes,
    windows_in_words,
)
from defenses.random_draws import generator_for
from defenses.spec import parse
from tests.defenses.images.test_blur import random
from tests.defenses.images.visual_mixer_reference import (
    Region,
    crop,
    divide,
    random_images,
    reference_partition,
    region_vfe,
    same_values_per_window,
    window_ids,
    window_sides,
)

SHAPES = [(28, 28), (31, 45), (5, 5), (1, 1), (1, 40), (64, 48), (7, 100)]
BOUNDS = [(2, 15), (1, 32), (3, 40), (16, 16), (1, 1)]


def counts_of(defense: VisualMixer, images: Tensor) -> dict[str, float]:
    totals = defense.totals(images, images)
    return {name: number for name, number in totals.items() if name.startswith("windows")}


def protect(defense: VisualMixer, images: Tensor, seed: int = 0) -> Tensor:
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


def orders_of(tiles: Tensor, count: int) -> Tensor:
    """Which permutation of its ``count`` numbers each row of (..., count) is, in lexical order."""
    codes = {order: i for i, order in enumerate(itertools.permutations(range(count)))}
    return torch.tensor([codes[tuple(row)] for row in tiles.reshape(-1, count).int().tolist()])


def test_window_sizes_follow_lines_3_to_16_of_the_algorithm() -> None:
    for arguments, sizes in (
        ((224, 224, 2, 15), [8, 4, 2]),  # 224 -> 64 -> 32 -> 16 -> 8
        ((224, 224, 4, 15), [8, 4]),
        ((32, 32, 8, 15), [8]),
        ((28, 28, 2, 28), [28, 14]),  # one region, which is its own median
        ((28, 20, 30, 40), [28, 16]),  # half of 28 would fall below 16 = 2^floor(log2 30)
        ((20, 17, 16, 16), [16]),  # line 5 would give 8
        ((5, 5, 8, 15), [5]),
        ((1, 1, 2, 15), [1]),
        ((28, 28, 2, 16), [8, 4, 2]),
        # Sec. IV-D: the largest power of two within the bound, another one than line 5 has on sides that are no power of two.
        ((28, 28, 2, 16, "nearest"), [16, 8, 4, 2]),
        ((224, 224, 4, 100, "nearest"), [64, 32, 16, 8, 4]),
    ):
        assert window_sizes(*arguments) == sizes, arguments
    for bounds in BOUNDS:
        assert window_sizes(32, 32, *bounds) == window_sizes(32, 32, *bounds, first_regions="nearest")
    assert VisualMixer(6, 63).sizes(224, 224) == [32, 16, 8, 4]  # 6 is rounded down to 4
    ids = ids_of(VisualMixer(2, 16, first_regions="nearest"), random_images(3, 1, 28, 28))
    assert {max(box[2:]) for image in ids for box in windows_of(image)} == {8, 4, 2}


def test_partition_equals_the_slow_algorithm() -> None:
    for (height, width), (lower, upper) in itertools.product(SHAPES, BOUNDS):
        images = random_images(2, 2, height, width)
        ids = ids_of(VisualMixer(lower, upper), images)
        for image, numbers in zip(images, ids, strict=True):
            expected = reference_partition(image, lower, upper)
            case = f"{height} x {width}, {lower} to {upper}"
            assert windows_of(numbers) == sorted(window[:4] for window in expected), case
    images = random_images(4, 3, 96, 96)
    ids = ids_of(VisualMixer(2, 63), images)
    assert {box[2] for box in windows_of(ids[0])} == {16, 8, 4, 2}
    for index in range(4):
        assert torch.equal(ids_of(VisualMixer(2, 63), images[index : index + 1])[0], ids[index])


def test_windows_are_counted_where_something_moves() -> None:
    """Two regions of 8 hold noise and are cut, two are of one colour: no window of 4 changes anything."""
    image = torch.full((1, 3, 16, 16), 0.5)
    image[:, :, :8] = random_images(1, 3, 8, 16)
    defense = VisualMixer(2, 15)
    levels = defense.partition(image)
    assert set(window_sides(levels, 16, 16)[0, :8].flatten().tolist()) == {2}
    assert mixing_windows(image, levels) == {8: 0, 4: 0, 2: 32}
    assert counts_of(defense, image) == {"windows-of-4": 0, "windows-of-2": 32}
    assert counts_of(VisualMixer(4, 4), image) == {"windows-of-4": 8}
    for value, size in itertools.product((0.1, 0.3, 0.7, 1 / 3), (2, 4, 8, 16)):  # greys whose mean is rounded
        assert counts_of(VisualMixer(size, size), torch.full((2, 1, 28, 28), value)) == {f"windows-of-{size}": 0}


def factorial(number: int) -> float:
    return math.log10(math.factorial(number))


def test_orders_are_counted_as_the_paper_s_example_has_them() -> None:
    """224 x 224 pixels in windows of 8: (64!)^784 is about 2^232060; channels shuffled apart have that each."""
    image = random_images(1, 1, 224, 224)
    found = log10_keys(image, VisualMixer(8, 8).partition(image))
    assert found == pytest.approx(784 * factorial(64), rel=1e-12)
    assert round(found / math.log10(2)) == pytest.approx(232_060, abs=3)
    colours, one = random_images(2, 3, 16, 16), torch.full((1, 3, 8, 8), 0.3)
    one[:, 1] = random_images(1, 1, 8, 8)[:, 0]  # a channel of one colour has no orders of its own
    mixer = VisualMixer(8, 8)
    assert mixer.totals(colours, colours)["log10-keys"] == pytest.approx(3 * 2 * 4 * factorial(64))
    assert mixer.totals(one, one)["log10-keys"] == pytest.approx(factorial(64))
    edge = random_images(1, 1, 5, 3)  # windows of 4: 4 x 3 and 1 x 3 pixels
    levels = VisualMixer(4, 4).partition(edge)
    assert log10_keys(edge, levels) == pytest.approx(factorial(12) + factorial(3))
    edge[:, :, 4:] = 0.5
    assert log10_keys(edge, levels) == pytest.approx(factorial(12))


def test_vfe_before_and_after_equals_a_loop_over_the_slow_windows() -> None:
    for defense, side in ((VisualMixer(2, 16), 28), (VisualMixer(4, 4), 12), (VisualMixer(3, 9), 21)):
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


def test_windows_are_described_beside_those_of_the_paper() -> None:
    mixer, paper = VisualMixer(window_lower=2, window_upper=16), "of 224 in VisualMixer's paper"
    words = f"windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 {paper}"
    assert parse(f"Blur() | {mixer} | GaussianNoise()").at_size(20, 32) == [words]
    assert mixer.at_size(7, 32) == f"{words}; the shorter side has only 7 pixels and cuts them"
    assert windows_in_words([32, 16, 8], 224) == "windows of 8 to 16 of 224 pixels (4 to 7 % of the side)"


def test_the_bound_of_a_target_is_the_smallest_window_that_reaches_it() -> None:
    for target, window in ((0, 1), (4, 2), (60, 6), (112, 8), (112.01, 9), (200, 11)):
        assert window_lower_bound(target) == window == math.ceil((1 + math.sqrt(1 + 2 * target)) / 2)


def test_a_target_only_ever_raises_the_lower_bound_and_one_out_of_reach_is_reported() -> None:
    assert VisualMixer(8, 16, target_vfe=4).sizes(64, 64) == VisualMixer(8, 16).sizes(64, 64)
    assert VisualMixer(2, 16, target_vfe=60).sizes(64, 64) == VisualMixer(8, 16).sizes(64, 64)
    assert VisualMixer(6, 16).smallest == 4  # the paper's rounding of the bound that the target of 60 has
    defense = VisualMixer(2, 15, target_vfe=60)
    assert "cannot reach its target in images of 4 x 40, whose smallest windows have a VFE of 52" in defense.idle(4, 40)
    assert defense.idle(64, 64) == VisualMixer(8, 15, target_vfe=60).idle(64, 64).replace("lower=8", "lower=2") != ""
    assert VisualMixer(2, 32, target_vfe=60).idle(64, 64) == ""
    # Windows of 4 have 24 pairs; those that the lower edge cuts to 2 x 4 have 10.
    assert "misses its target in 7% of images of 30 x 32" in VisualMixer(2, 16, target_vfe=24).idle(30, 32)


def test_each_window_keeps_its_values_channel_by_channel() -> None:
    defense = VisualMixer(2, 16)
    for (height, width), depth in itertools.product(SHAPES, (1, 3)):
        images = random_images(3, depth, height, width)
        mixed = protect(defense, images)
        assert same_values_per_window(images, mixed, ids_of(defense, images)), (height, width, depth)
        assert height * width < 100 or (mixed != images).double().mean() > 0.5
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        images = (255 * random_images(2, 3, 30, 21)).round().to(dtype)
        mixed = protect(defense, images)
        assert mixed.dtype == dtype
        assert torch.equal(mixed, protect(defense, images.to(memory_format=torch.channels_last)))
        assert same_values_per_window(images.double(), mixed.double(), ids_of(defense, images.double()))


@pytest.mark.numeric
def test_all_permutations_are_equally_likely_and_any_pixel_goes_anywhere() -> None:
    for height, width in ((2, 2), (2, 3), (1, 4)):
        count = height * width
        repeats = 60 * math.factorial(count)
        images = torch.arange(count).float().view(1, 1, height, width).expand(repeats, 1, -1, -1)
        observed = torch.bincount(orders_of(protect(VisualMixer(4, 4), images), count), minlength=math.factorial(count))
        assert chisquare(observed.numpy()).pvalue > 1e-4
    for size in (4, 8):  # all windows of a large image at once, so that no position in the image is special
        images = torch.arange(size * size).view(1, 1, size, size).repeat(8, 3, 16, 16).float()
        mixed = protect(VisualMixer(size, size), images).unfold(2, size, size).unfold(3, size, size)
        origin = mixed.reshape(-1, size * size).long()
        n = size * size
        observed = torch.bincount((origin * n + torch.arange(n).expand_as(origin)).flatten(), minlength=n * n)
        # A sum of permutation matrices has fixed row and column sums, which leaves (n - 1)^2 degrees of freedom, and cells
        # of variance (1 - 1/n) / n, which makes Pearson's statistic n / (n - 1) times a chi-square one.
        statistic = chisquare(observed.numpy()).statistic * (n - 1) / n
        assert chi2.sf(statistic, (n - 1) ** 2) > 1e-4


@pytest.mark.numeric
def test_channels_and_windows_are_shuffled_independently() -> None:
    images = torch.arange(4).float().view(1, 1, 2, 2).repeat(6000, 2, 2, 2)
    tiles = protect(VisualMixer(2, 2), images).unfold(2, 2, 2).unfold(3, 2, 2)
    alone = orders_of(tiles.permute(0, 2, 3, 1, 4, 5), 4).view(-1, 2)
    observed = torch.bincount(alone[:, 0] * 24 + alone[:, 1], minlength=576)
    assert chisquare(observed.numpy()).pvalue > 1e-4
    equal = (alone[1:, 0] == alone[:-1, 0]).double()  # neighbouring windows and images
    assert abs(equal.mean() - 1 / 24) < 4.5 * (equal.std() / len(equal) ** 0.5)


def test_bounds_that_fit_nothing_are_refused() -> None:
    for arguments, message in (
        ({"window_lower": 16}, "window_upper is 15; allowed: 16 or more"),
        ({"target_vfe": 113}, "target_vfe is 113; allowed: at most 112, which windows of 8 reach.*bound of 15"),
    ):
        with pytest.raises(ValueError, match=message):
            VisualMixer(**arguments)
    VisualMixer(window_lower=15, target_vfe=112)


CUT_SHAPES = [(16, 16, 8), (17, 24, 7), (5, 5, 3), (1, 1, 4), (1, 9, 2), (16, 16, 16), (6, 6, 1)]


def whole(measure: Callable[[Tensor, int], Tensor], region: Tensor) -> Tensor:
    """A measure of windows, of (..., h, w) regions that each are one window: (...)."""
    return measure(region, max(region.shape[-2:]))[..., 0, 0]


def test_low_precision_is_widened() -> None:
    region = torch.tensor([[0.0, 300.0], [0.0, 300.0]], dtype=torch.float16)  # 300^2 overflows float16
    assert whole(vfe_map, region) == 180_000
    window = torch.tensor([[0, 1], [2, 4]])
    assert whole(vfe_map, window.double()).dtype == torch.float64
    assert whole(vfe_map, window.to(torch.uint8)) == 18  # an unsigned difference would wrap around
    for same in (vfe_map, vfe_normalised):  # of one colour
        assert whole(same, torch.full((8, 8), 0.3)) == 0
    images = 1000 + random(4, 4).float()
    assert window_variance(images, 4).item() == pytest.approx(float(images.double().var()), rel=1e-3)


def test_maps_equal_the_loop_over_windows() -> None:
    for height, width, window in CUT_SHAPES:
        images, regions = random(2, 2, height, width), divide(Region(0, 0, height, width, window), window)
        vfe, total, variance = vfe_map(images, window), window_sum(images, window), window_variance(images, window)
        filled = window_fill(total, window, height, width)
        normalised, pairs = vfe_normalised(images, window), window_pairs(height, width, window)
        assert vfe.flatten(2).shape[2] == pairs.numel() == len(regions)
        for at, (image, channel) in itertools.product(range(len(regions)), itertools.product(range(2), range(2))):
            region, plane = regions[at], images[image, channel, None]
            number = pair_count(region.height, region.width)
            pixels, slow = crop(plane, region), max(number, 1) * region_vfe(plane, region)
            spread = float(pixels.var()) if pixels.numel() > 1 else 0.0
            found = [float(one.flatten(2)[image, channel, at]) for one in (vfe, total, variance, normalised)]
            assert found == pytest.approx([slow, float(pixels.sum()), spread, slow / (2 * spread or 1)])
            assert (crop(filled[image, channel, None], region) == total.flatten(2)[image, channel, at]).all()
            board = ((torch.arange(region.height)[:, None] + torch.arange(region.width)) % 2)[None].double()
            of_board = number * region_vfe(board, Region(0, 0, region.height, region.width, window))
            assert pairs.flatten()[at] == of_board == number
