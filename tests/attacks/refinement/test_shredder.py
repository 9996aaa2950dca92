from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import pytest
import torch

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse, total_variation
from attacks.observations import AttackError
from attacks.refinement.jigsaw import _Puzzle, place_blocks, seam_costs
from attacks.refinement.shredder import Jigsaw, Shredder, _Annealer, _swap_groups
from attacks.refinement.unshuffle import WindowMean, Windows
from defenses import Batch, BlockShuffle, Blur, Clip, ImageNoise, Pipeline, VisualMixer
from defenses.images.visual_mixer_windows import window_sides
from tests.attacks.wire import MEAN, STD, generators, linear_net, observe, pictures
from tests.defenses.images.visual_mixer_reference import window_ids

ALL = (WindowMean(), Shredder(sweeps=3), Jigsaw())


def fit(attack, *defenses, auxiliary=None):
    images = pictures(2) if auxiliary is None else auxiliary
    auxiliary = Batch(images, torch.ones(len(images), 1))
    return attack.fit(
        Knowledge(auxiliary, Pipeline(defenses), MEAN, STD, lambda *_: pytest.fail("trains")), generators(1)[0]
    )


def protect(defense, images):
    return Pipeline((defense,)).protect_once(Batch(images, torch.ones(len(images), 1)), ("client", 1)).images


def guess(images):
    return Reconstruction(images, torch.zeros(len(images), dtype=torch.int64), {"cost": 1.0})


def refine(attack, images, seed=0):
    return attack.refine_many([None], [guess(images)], generators(1, seed))[0]


def smooth(count=3, channels=1, height=16, width=16):
    """Tilted parabolas: no two blocks look alike, and linear extrapolation across a seam is nearly right."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    a = torch.rand(count, channels, 4, 1, 1, generator=torch.Generator().manual_seed(2)) * 0.2 + 0.05
    return a[:, :, 0] * x + a[:, :, 1] * y + a[:, :, 2] * x * x + a[:, :, 3] * y * y


@pytest.mark.parametrize(("height", "width"), [(12, 12), (10, 7)])
def test_window_mean_is_the_mean_of_each_window(height, width):
    images = pictures(2, side=12, channels=3)[..., :height, :width]
    expected = images.clone()
    for row, column in itertools.product(range(0, height, 4), range(0, width, 4)):
        window = images[..., row : row + 4, column : column + 4]
        expected[..., row : row + 4, column : column + 4] = window.mean((-2, -1), keepdim=True)
    assert torch.allclose(refine(WindowMean(window=4), images).images, expected, atol=1e-6)


@pytest.mark.parametrize("defense", [VisualMixer(4, 8), VisualMixer(4, 8, channels="spatial"), BlockShuffle(4, 2)])
def test_window_means_do_not_see_the_shuffle(defense):
    """Where windows are known, the same picture comes out of the original and of any shuffle of it."""
    images = pictures(3, channels=3)
    shuffled = protect(defense, images)
    attack = replace(fit(WindowMean(), defense), window=4)
    assert torch.allclose(refine(attack, shuffled).images, refine(attack, images).images, atol=1e-6)
    assert mse(refine(attack, shuffled).images, images).mean() < mse(shuffled, images).mean()


@pytest.mark.long
def test_with_mixed_windows_each_keeps_its_values():
    """Nothing leaves the inferred windows, in any of the channels; they are valid without being told."""
    defense, clean = VisualMixer(window_lower=2, window_upper=16), pictures(2, side=32, channels=2)
    shuffled = protect(defense, clean)
    attack = fit(Shredder(sweeps=40), defense, auxiliary=pictures(24, side=32, channels=2, seed=1))
    result = refine(attack, shuffled)
    levels, share = attack.learned.inference(shuffled)
    assert sum(int(active.any()) for _, active in levels) > 1
    assert result.diagnostics["windows_expected"] == pytest.approx(float(share.mean()))
    ids = window_ids(levels, 32, 32)
    for image, after, windows in zip(shuffled, result.images, ids, strict=True):
        for number in windows.unique():
            inside = windows == number
            assert torch.equal(image[:, inside].sort(1).values, after[:, inside].sort(1).values)
    assert not torch.equal(result.images, shuffled)


@pytest.mark.long
@pytest.mark.parametrize("attack", [WindowMean(), Shredder(sweeps=3), Jigsaw()], ids=repr)
def test_bounds_that_follow_from_other_settings_are_found_as_the_client_finds_them(attack):
    """A target of 4 asks for windows of 2 and the automatic bound is 15: the same defence in other words, and the same guess."""
    derived = VisualMixer(window_lower=1, window_upper="auto", target_vfe=4)
    given = VisualMixer(window_lower=2, window_upper=15)
    shuffled = protect(derived, pictures(2, side=32))
    assert torch.equal(shuffled, protect(given, pictures(2, side=32)))
    known = pictures(16, side=32, seed=1)
    found = [refine(fit(attack, defense, auxiliary=known), shuffled).images for defense in (derived, given)]
    assert torch.equal(*found)
    other = refine(
        fit(attack, VisualMixer(window_lower=1, window_upper="auto", target_vfe=24), auxiliary=known), shuffled
    )
    assert not torch.equal(other.images, found[0])


def test_windows_are_learned_behind_and_before_the_other_defences():
    """The server mixes auxiliary images with the whole pipeline; a blur and noise around the shuffle do not hide its windows."""
    shuffle = VisualMixer(window_lower=2, window_upper=16)
    images = pictures(48, side=32, channels=3, seed=1)
    pipeline = Pipeline((Blur(std=0.5), shuffle, ImageNoise(std=0.02)))
    clean = pictures(24, side=32, channels=3, seed=2)
    blurred = Pipeline(pipeline.defenses[:1]).protect_once(Batch(clean, torch.ones(24, 1)), ("client",)).images
    true = window_sides(shuffle.partition(blurred), 32, 32)
    batch = pipeline.protect_once(Batch(clean, torch.ones(24, 1)), ("client",))
    seen = pipeline.protect_batch(batch, ("client",)).images
    attack = fit(WindowMean(), *pipeline.defenses, auxiliary=images)
    found = window_sides(attack.learned.inference(seen)[0], 32, 32)
    assert float((found == true).float().mean()) > 0.85


def test_told_windows_are_an_upper_bound_for_single_images():
    defense, clean = VisualMixer(window_lower=2, window_upper=16), pictures(1, side=32, channels=3)
    shuffled = protect(defense, clean)
    sides = window_sides(defense.partition(clean), 32, 32)
    attack = fit(WindowMean(partition="known"), defense)
    assert (attack.upper_bound, WindowMean().upper_bound) == ("knows the true windows", "")
    seen = replace(observe(linear_net(), pictures(1), torch.zeros(1, dtype=torch.int64)), window_sides=sides)
    told = attack.refine_many([seen], [guess(shuffled)], generators(1))[0]
    same = attack.refine_many([seen], [guess(clean)], generators(1))[0]
    assert not told.failure
    assert torch.allclose(told.images, same.images, atol=1e-6)
    for wrong, why in ((replace(seen, window_sides=None), "upper bound"), (None, "upper bound")):
        assert why in attack.refine_many([wrong], [guess(shuffled)], generators(1))[0].failure
    two = attack.refine_many([seen], [guess(shuffled.repeat(2, 1, 1, 1))], generators(1))[0]
    assert "one image" in two.failure


def test_images_of_another_size_than_those_learned_from_are_refused():
    attack = fit(WindowMean(), VisualMixer(2, 16), auxiliary=pictures(16, side=32))
    assert "sides" in refine(attack, pictures(1, side=28)).failure


@pytest.mark.parametrize(("height", "width"), [(12, 12), (10, 7)])
def test_shredder_undoes_more_than_the_shuffle_and_the_means(height, width):
    defense = VisualMixer(window_lower=2, window_upper=4)
    clean = smooth(4, 1, height, width)
    shuffled = protect(defense, clean)
    result = refine(fit(Shredder(window=2, sweeps=200, temperature=0.02), defense), shuffled)
    assert (total_variation(result.images) < total_variation(shuffled)).all()
    assert result.diagnostics["total_variation"] < result.diagnostics["total_variation_before"]
    means = refine(WindowMean(window=2), shuffled).images
    assert mse(result.images, clean).mean() < mse(means, clean).mean() < mse(shuffled, clean).mean()


@pytest.mark.parametrize("attack", [Shredder(sweeps=20), Jigsaw(), WindowMean()], ids=repr)
def test_guesses_of_a_group_are_solved_as_each_alone(attack):
    """Of other sizes, with other streams, and beside one that failed."""
    defense = VisualMixer(window_lower=2, window_upper=16)
    fitted = fit(attack, defense, auxiliary=pictures(24, side=32, channels=2, seed=1))
    guesses = [guess(protect(defense, pictures(n, side=32, channels=2, seed=n))) for n in (2, 1, 3)]
    guesses.insert(1, replace(guesses[0], failure="lost"))
    guesses.append(guess(pictures(1, side=28, channels=2)))  # windows were learned for another size
    together = fitted.refine_many([None] * 5, guesses, generators(5))
    for at, (one, stream) in enumerate(zip(guesses, generators(5), strict=True)):
        (alone,) = fitted.refine_many([None], [one], [stream])
        assert torch.equal(together[at].images, alone.images)
        assert together[at].diagnostics == alone.diagnostics
        assert together[at].failure == alone.failure
    assert [bool(one.failure) for one in together] == [False, True, False, False, True]


def test_shredder_moves_whole_pixels_where_the_defence_does():
    defense = VisualMixer(window_lower=4, window_upper=8, channels="spatial")
    shuffled = protect(defense, pictures(1, channels=3))
    found = refine(fit(Shredder(sweeps=30), defense), shuffled).images
    pixels = [sorted(map(tuple, image[0].flatten(1).T.tolist())) for image in (shuffled, found)]
    assert pixels[0] == pixels[1]
    assert not torch.equal(shuffled, found)


@pytest.mark.parametrize(("window", "blocks", "channels"), [(8, 2, 1), (8, 2, 3), (4, 2, 1), (6, 3, 1)])
def test_jigsaw_solves_blocks_of_a_smooth_image_exactly(window, blocks, channels):
    defense = BlockShuffle(window=window, blocks=blocks)
    clean = smooth(3, channels, 24, 24)
    shuffled = protect(defense, clean)
    assert not torch.equal(shuffled, clean)
    result = refine(fit(Jigsaw(), defense), shuffled)
    assert torch.equal(result.images, clean)
    assert result.diagnostics["seam_cost"] < result.diagnostics["seam_cost_before"]


def test_best_swap_of_a_large_window_is_the_best_of_all():
    """Costs of all swaps at once, against swapping and adding up every seam."""
    plane = torch.rand(1, 5, 6, generator=torch.Generator().manual_seed(5))
    puzzle = _Puzzle(seam_costs(plane.view(30, 1, 1, 1)), 5, 6)
    window = torch.arange(30).view(5, 6)[1:4, 1:5].flatten()
    current, (direction, a, b) = puzzle.block[window], puzzle._seams(window)[0]
    around = puzzle._outer(window)
    around.index_add_(0, a, puzzle.cost[direction[:, None], current[None], current[b, None]])
    around.index_add_(0, b, puzzle.cost[direction[:, None], current[a, None], current[None]])
    added, before = puzzle._swap_gains(around, current, (direction, a, b)), puzzle.total()
    for p, q in itertools.combinations(range(12), 2):
        puzzle.block[window[[p, q]]] = puzzle.block[window[[q, p]]]
        assert float(added[p, q]) == pytest.approx(puzzle.total() - before, abs=1e-4)
        puzzle.block[window[[p, q]]] = puzzle.block[window[[q, p]]]


def test_jigsaw_finds_the_best_order_of_one_window():
    """Against every one of the 24 orders, on noise, where no order is right."""
    plane = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(4))
    blocks = plane.unfold(1, 2, 2).unfold(2, 2, 2).permute(1, 2, 0, 3, 4).reshape(4, 1, 2, 2)
    right, down = seam_costs(blocks)
    costs = [
        float(right[a, b] + right[c, d] + down[a, c] + down[b, d]) for a, b, c, d in itertools.permutations(range(4))
    ]
    before, after = place_blocks(plane.clone(), 2, [torch.arange(4)], sweeps=2)
    assert before == pytest.approx(costs[0], rel=1e-5)
    assert after == pytest.approx(min(costs), rel=1e-5)


def test_a_window_that_cannot_have_changed_its_best_order_is_not_tried_again(monkeypatch):
    """Visit by visit the orders are those of a puzzle that forgets, and tries every window every time."""
    costs = seam_costs(pictures(1)[0, :1].flatten().view(-1, 1, 1, 1))
    side = pictures(1).shape[-1]
    position = torch.arange(side * side).view(side, side)
    windows = [piece.flatten() for rows in position.split(2) for piece in rows.split(4, 1)]
    quick, slow = _Puzzle(costs, side, side), _Puzzle(costs, side, side)
    start = torch.randperm(side * side, generator=torch.Generator().manual_seed(6))
    quick.block, slow.block = start.clone(), start.clone()
    tried, orders = [], _Puzzle._orders

    def counted(puzzle, *about):
        tried.append(puzzle)
        return orders(puzzle, *about)

    monkeypatch.setattr(_Puzzle, "_orders", counted)
    for sweep in range(10):
        for window in windows:
            slow.settled.clear()
            assert quick.improve(window, inside_only=sweep == 0) == slow.improve(window, inside_only=sweep == 0)
            assert torch.equal(quick.block, slow.block)
    assert tried.count(slow) == 10 * len(windows)
    assert len(windows) < tried.count(quick) < 0.8 * tried.count(slow)


def test_seam_cost_is_zero_for_a_straight_slope():
    slope = torch.arange(12.0).view(1, 2, 6) * 0.1
    left, right = slope[None, ..., :3, None].transpose(-1, -2), slope[None, ..., 3:, None].transpose(-1, -2)
    blocks = torch.cat([left.reshape(1, 1, 2, 3)[..., :2], right.reshape(1, 1, 2, 3)[..., :2]])
    expected = (blocks[0, 0, :, 1] * 2 - blocks[0, 0, :, 0] - blocks[1, 0, :, 0]).abs().sum()
    expected = expected + (blocks[1, 0, :, 0] * 2 - blocks[1, 0, :, 1] - blocks[0, 0, :, 1]).abs().sum()
    assert float(seam_costs(blocks)[0, 0, 1]) == pytest.approx(float(expected), abs=1e-6)
    ramp = torch.arange(4.0).expand(2, 4)
    assert float(seam_costs(torch.stack([ramp[None, :, :2], ramp[None, :, 2:]]))[0, 0, 1]) == 0


@pytest.mark.parametrize("attack", [Shredder(window=4, sweeps=30), Jigsaw(window=4)], ids=repr)
def test_noise_in_noise_out(attack):
    """Independent noise holds nothing of the truth: no better than the mean image."""
    clean = pictures(4)
    found = refine(attack, torch.rand(clean.shape, generator=torch.Generator().manual_seed(1))).images
    assert mse(found, clean).mean() > mse(clean.mean(0).expand_as(clean), clean).mean()


@pytest.mark.parametrize("attack", ALL, ids=repr)
def test_common_behaviour(attack):
    defense, images = BlockShuffle(4, 2), pictures(2)
    with pytest.raises(AttackError, match="auxiliary"):
        refine(attack, images)
    assert refine(fit(attack, Clip(max_norm=1.0)), images).diagnostics == {"cost": 1.0, "nothing_to_undo": 1.0}
    fitted, before = fit(attack, defense), images.clone()
    first = refine(fitted, images)
    assert torch.equal(refine(pickle.loads(pickle.dumps(fitted)), images).images, first.images)
    assert torch.equal(images, before)
    assert first.diagnostics["cost"] == 1.0
    assert fitted == attack
    assert repr(fitted) == repr(attack)
    failed = replace(guess(images), failure="before")
    results = fitted.refine_many([None] * 2, [failed, guess(images)], generators(2))
    assert results[0] is failed
    assert not results[1].failure


@pytest.mark.parametrize("attack", [Shredder(window=3, sweeps=3), Jigsaw(window=3), WindowMean(window=3)], ids=repr)
def test_windows_that_do_not_fit_the_image(attack):
    for shape in ((1, 1, 2, 2), (1, 3, 7, 5), (2, 1, 1, 1)):
        assert refine(attack, torch.rand(shape)).images.shape == shape


@pytest.mark.parametrize(
    ("cls", "change"),
    [
        (WindowMean, {"window": -1}),
        (Shredder, {"sweeps": 0}),
        (Shredder, {"temperature": -1.0}),
        (Jigsaw, {"sweeps": 0}),
        (WindowMean, {"partition": "guessed"}),
        (WindowMean, {"partition": "known", "window": 4}),
    ],
)
def test_refuses_bad_values(cls, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        cls(**change)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_cold_step_keeps_a_swap_exactly_when_it_lowers_the_variation(channels):
    """Against the variation of the whole picture with the two pixels exchanged; in windows of 2 most pairs touch."""
    state = _Annealer(torch.zeros(1, channels, 6, 6))
    groups, counts = _swap_groups([Windows([(2, torch.eye(3)[None] == 1)])], 1, 6, 6)
    assert counts == [3]
    group = next(group for group in groups if len(group.pixels) == 1)
    generator, kept = torch.Generator().manual_seed(4), 0
    for at in range(60):
        # Whole numbers, whose sums are exact.
        state.values.copy_(torch.randint(256, state.values.shape, generator=torch.Generator().manual_seed(at)))
        sweep = torch.rand(3, 3, generator=generator)
        draws = sweep[:, group.draws]
        first = (draws[0] * 4).long()
        second = (first + 1 + (draws[1] * 3).long()) % 4
        before, swapped = state.planes.clone(), state.planes.flatten(2)
        swapped[..., group.pixels[0, [first, second]]] = swapped[..., group.pixels[0, [second, first]]]
        swapped = swapped.view_as(before)
        lower = bool(_variation(swapped) <= _variation(before))
        state.step(group, sweep, 0.0)
        assert torch.equal(state.planes, swapped if lower else before)
        kept += lower
    assert 5 < kept < 55


def _variation(planes):
    return sum(planes.diff(dim=dim).abs().sum() for dim in (-2, -1))


def test_windows_of_one_group_do_not_touch() -> None:
    """Each of them is changed as if the others stood still."""
    size, side = 4, 16
    windows = Windows([(size, torch.ones(1, side // size, side // size, dtype=torch.bool))])
    groups, counts = _swap_groups([windows], 1, side, side)
    assert counts == [(side // size) ** 2]
    for group in groups:
        cells = [
            {divmod(int(p), side) for p in row[:count]} for row, count in zip(group.pixels, group.held, strict=True)
        ]
        for one, other in itertools.combinations(cells, 2):
            assert not any(
                (row + a, column + b) in other for row, column in one for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))
            )


def test_jigsaw_refuses_windows_of_too_many_pieces():
    """The time of an assignment grows with the cube of its pieces: a window of 40x40 pixels would take minutes."""
    with pytest.raises(AttackError, match="a window has 1,600 pieces; Jigsaw takes at most 1,024"):
        refine(Jigsaw(window=40), torch.rand(1, 1, 40, 40))
