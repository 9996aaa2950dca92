"""Metrics against scikit-image, brute force and closed forms; the oracle and the scores of class representatives."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch.nn import functional as F

from attacks import null_baselines, score
from attacks.guesses import Labels, Reconstruction, Representatives
from attacks.image_measures import ms_ssim, mse, psnr, ssim, total_variation
from attacks.observations import AttackError
from attacks.scoring.metrics import blurred, optimal_assignment, retrieved, score_representatives, squared_errors
from attacks.scoring.oracle import train_oracle
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses.base import Batch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_ssim_and_psnr_equal_scikit_image():
    for shape in ((3, 1, 28, 28), (2, 3, 32, 32), (2, 3, 11, 17)):
        truth = noise(*shape)
        guess = (truth + 0.3 * noise(*shape, seed=1)).clamp(0, 1)
        for a, b, similarity, ratio in zip(guess, truth, ssim(guess, truth), psnr(guess, truth), strict=True):
            x, y = a.double().numpy(), b.double().numpy()
            settings = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
            expected = structural_similarity(x, y, data_range=1.0, channel_axis=0, **settings)
            assert similarity.item() == pytest.approx(expected, abs=1e-6)
            assert ratio.item() == pytest.approx(peak_signal_noise_ratio(y, x, data_range=1.0), abs=1e-4)


def test_ssim_of_small_images_shrinks_the_window_to_the_largest_odd_size():
    for height, width in ((7, 7), (8, 5), (10, 30), (1, 4)):
        x, y = noise(height, width).double().numpy(), noise(height, width, seed=1).double().numpy()
        rows, columns = (min(11, s if s % 2 else s - 1) for s in (height, width))
        at = [np.exp(-0.5 * ((np.arange(size) - size // 2) / 1.5) ** 2) for size in (rows, columns)]
        window = np.outer(*at) / np.outer(*at).sum()
        values = []
        for i, j in itertools.product(range(height - rows + 1), range(width - columns + 1)):
            a, b = x[i : i + rows, j : j + columns], y[i : i + rows, j : j + columns]
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            cov = (window * (a - ma) * (b - mb)).sum()
            values.append((2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
        ours = ssim(torch.from_numpy(x)[None, None], torch.from_numpy(y)[None, None])
        assert ours.item() == pytest.approx(np.mean(values), abs=1e-10)


def formula_images(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three colour images (3, 3, H, W): less contrast, added stripes, mirrored; and what they are of."""
    down, across = (torch.linspace(0, 1, side, dtype=torch.float64) for side in (height, width))
    y, x = torch.meshgrid(down, across, indexing="ij")
    waves = 0.5 + 0.5 * torch.sin(12 * x + 5 * y), 0.5 + 0.5 * torch.cos(30 * x * y)
    truth = torch.stack([*waves, ((8 * x).floor() + (8 * y).floor()) % 2])
    stripes = torch.sin(1e4 * (x + 2 * y + 0.1) ** 2)
    guesses = torch.stack([truth * 0.6 + 0.2, (truth + 0.3 * stripes).clamp(0, 1), truth.flip(-1)])
    return guesses, truth.expand(3, -1, -1, -1)


def test_ms_ssim_is_that_of_piq_and_of_one_scale_ssim_without_what_is_negative():
    """Computed once by ``multi_scale_ssim`` of piq 0.8.0, on these images in double precision."""
    for height, width, expected in (
        (176, 192, (0.8896059, 0.8156709, 0.0087843)),
        # Three scales: piq was given the first three weights, divided by their sum.
        (56, 56, (0.8829830, 0.9310646, 0.0)),
        (64, 48, (0.8830329, 0.9346019, 0.0040826)),
    ):
        assert ms_ssim(*formula_images(height, width)).tolist() == pytest.approx(expected, abs=2e-7)
    x, y = noise(4, 1, 21, 30), noise(4, 1, 21, 30, seed=1)
    assert ms_ssim(x, y).tolist() == pytest.approx(ssim(x, y).clamp_min(0).tolist())
    assert ms_ssim(x, 1 - x).tolist() == [0, 0, 0, 0]
    for side in (5, 22, 44, 88, 176):
        assert ms_ssim(x := noise(2, 3, side, side), x).tolist() == pytest.approx([1, 1])


def test_total_variation_of_known_pictures():
    ramp = torch.arange(5.0).repeat(3, 1)[None, None]
    assert total_variation(ramp).tolist() == [1]
    assert total_variation(ramp.mT).tolist() == [1]
    stripes = torch.tensor([0.0, 1.0]).repeat(4, 2)[None, None]
    assert total_variation(torch.cat([stripes, stripes.mT, 0 * stripes])).tolist() == [1, 1, 0]
    assert total_variation(torch.zeros(1, 1, 1, 1)).tolist() == [0]


def test_assignment_equals_brute_force():
    for guesses, truths in ((4, 4), (3, 5), (5, 3), (1, 1)):
        pairs = min(guesses, truths)
        for seed in range(3):
            guess, truth = noise(guesses, 1, 3, 3, seed=seed), noise(truths, 1, 3, 3, seed=seed + 100)
            rows, columns = optimal_assignment(guess, truth)
            chosen = itertools.combinations(range(guesses), pairs), itertools.permutations(range(truths), pairs)
            candidates = [sum(mse(guess[list(r)], truth[list(c)]).tolist()) for r, c in itertools.product(*chosen)]
            assert sum(mse(guess[rows], truth[columns]).tolist()) == pytest.approx(min(candidates), rel=1e-5)
            assert len(set(rows.tolist())) == len(set(columns.tolist())) == pairs
        # Equal guesses are paired with the true images nearest to them.
        equal = noise(1, 1, 3, 3, seed=1).expand(guesses, -1, -1, -1)
        rows, columns = optimal_assignment(equal, truth)
        nearest = mse(equal[:1].expand_as(truth), truth).sort()
        assert rows.tolist() == list(range(pairs))
        assert columns.tolist() == sorted(nearest.indices[:pairs].tolist())


def test_squared_errors_are_those_of_the_differences_down_to_the_best_score():
    truth = noise(6, 3, 8, 8).double()
    guess = torch.cat([truth[:2] + 1e-6, truth[2:4] + 1e-7, noise(2, 3, 8, 8, seed=1).double()])
    plain = (guess[:, None] - truth[None]).square().flatten(2).sum(2)
    torch.testing.assert_close(squared_errors(guess, truth), plain, rtol=1e-3, atol=1e-13 * guess[0].numel())
    assert int(squared_errors(guess, truth)[0].argmin()) == 0


def images(guess):
    return Reconstruction(guess, torch.zeros(len(guess)).long())


def test_every_metric_uses_the_same_optimal_pairs_and_a_broken_guess_takes_the_image_that_is_left():
    truth, order = noise(4, 1, 12, 12), torch.tensor([2, 0, 3, 1])
    guess = (truth[order] + 0.05 * noise(4, 1, 12, 12, seed=1)).clamp(0, 1)
    scores = score(images(guess), truth)
    for metric in (mse, psnr, ssim):
        assert scores[metric.__name__] == pytest.approx(metric(guess, truth[order]).tolist())
    for hole in (torch.nan, torch.inf):
        broken = guess.clone()
        broken[1, 0, 0, 0] = hole
        assert optimal_assignment(broken, truth)[1].tolist() == order.tolist()
        found = score(images(broken), truth)["mse"]
        assert not math.isfinite(found[1])
        assert [*found[:1], *found[2:]] == pytest.approx([*scores["mse"][:1], *scores["mse"][2:]])
    one_of_two = score(images(torch.zeros(2, 1, 4, 4)), torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)]))
    assert sorted(one_of_two["mse"]) == [0, 1], "one true image is not matched twice"


def test_label_accuracy_is_a_multiset_intersection():
    for guess, truth, accuracy in (
        ([0, 1, 2], [2, 1, 0], 1), ([0, 0, 0], [0, 1, 2], 1 / 3), ([0, 0, 1], [0, 0, 0], 2 / 3), ([-1], [3], 0),
        ([3], [3, 4], 0.5),
    ):  # fmt: skip
        assert score(Labels(torch.tensor(guess)), torch.tensor(truth)) == {"label-accuracy": pytest.approx(accuracy)}


def test_unknown_guesses_and_shapes_are_refused():
    with pytest.raises(TypeError, match="no score is defined for str"):
        score("picture", torch.zeros(1))
    with pytest.raises(ValueError, match="guessed images have shape"):
        score(images(torch.zeros(1, 1, 4, 4)), torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match="guess has shape"):
        psnr(torch.zeros(1, 1, 4, 4), torch.zeros(2, 1, 4, 4))


def test_null_baselines_are_grey_and_the_mean_image_that_was_given():
    truth, mean = noise(2, 3, 16, 16), noise(3, 16, 16, seed=1)
    found = null_baselines(truth, mean)
    assert {name: guess.labels.tolist() for name, guess in found.items()} == {"grey": [-1, -1], "mean": [-1, -1]}
    assert torch.equal(found["grey"].images, torch.full((2, 3, 16, 16), 0.5))
    assert torch.equal(found["mean"].images, torch.stack([mean, mean]))


def test_blur_is_the_gaussian_filter():
    sharp = noise(2, 3, 16, 16)
    expected = gaussian_filter(sharp.double().numpy(), (0, 0, 1.5, 1.5), mode="nearest", radius=(0, 0, 5, 5))
    assert np.abs(blurred(sharp, std=1.5).numpy() - expected).max() < 1e-6


def test_retrieval_agrees_with_a_slow_search():
    line_up = noise(40, 3, 6, 6)
    own = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:24]
    guess = 0.15 * line_up[own] + 0.85 * noise(24, 3, 6, 6, seed=2)
    expected = []
    for picture, at in zip(guess.double().numpy(), own.tolist(), strict=True):
        flat = [(image - image.mean((1, 2), keepdims=True)).ravel() for image in (picture, *line_up.double().numpy())]
        alike = [np.corrcoef(flat[0], image)[0, 1] for image in flat[1:]]
        expected.append(float(all(alike[at] > other for place, other in enumerate(alike) if place != at)))
    found = retrieved(guess, line_up, own)
    assert found == expected
    assert 0 < sum(found) < 24
    colour = torch.tensor([0.3, -0.2, 0.1]).view(3, 1, 1)
    assert retrieved(0.01 * guess + colour, line_up, own) == found, "neither mean colour nor contrast matters"
    assert sum(retrieved(colour.expand_as(guess) + guess.mean((2, 3), keepdim=True), line_up, own)) == 0
    # Ties and guesses that are not finite retrieve nothing.
    image, other = noise(2, 1, 8, 8)
    twins, own = torch.stack([image, image, other]), torch.tensor([0])
    assert retrieved(image[None], twins, own) == [0.0]
    assert retrieved(image[None], twins[1:], own) == [1.0]
    for hole in (torch.nan, torch.inf):
        assert retrieved(torch.full_like(image, hole)[None], twins[1:], own) == [0.0]


def test_a_blind_guess_retrieves_one_in_as_many_as_are_lined_up():
    """Chance, exactly: over all positions of the truth one of K guesses hits, whatever the guess is."""
    line_up, guess = noise(25, 3, 8, 8), noise(1, 3, 8, 8, seed=3).expand(25, -1, -1, -1)
    for blind in (guess, line_up.mean(0).expand_as(line_up)):
        assert sum(retrieved(blind, line_up, torch.arange(25))) == 1


# ---- class representatives


def batch(images, labels):
    return Batch(images, F.one_hot(labels, 10).float())


@pytest.mark.long
@pytest.mark.numeric
def test_reads_digits_that_it_never_saw_as_well_as_it_says():
    train = load_dataset("mnist-5k").train
    order = torch.randperm(len(train.images), generator=torch.Generator().manual_seed(0))[:1800]
    images, labels = to_float(train.images)[order], train.labels[order]
    oracle = train_oracle(batch(images[:800], labels[:800]), seed=0)
    unseen = (oracle.classify(images[800:]) == labels[800:]).float().mean().item()
    assert unseen >= 0.88
    # The hold-out has 100 images: four standard deviations of its estimate.
    assert abs(oracle.accuracy - unseen) < 4 * math.sqrt(unseen * (1 - unseen) / 100) + 0.01


def test_the_oracle_depends_on_its_arguments_alone_and_classifies_images_of_any_shape_one_by_one():
    for shape in ((3, 12, 9), (1, 5, 5)):
        few = batch(noise(32, *shape), torch.arange(32) % 10)
        judge, again, other = (train_oracle(few, seed=seed, epochs=1) for seed in (3, 3, 4))
        assert torch.equal(judge.network(few.images), again.network(few.images))
        assert not torch.equal(judge.network(few.images), other.network(few.images))
        answers = judge.classify(few.images)
        assert answers.dtype == torch.int64
        assert torch.equal(answers, torch.cat([judge.classify(image[None]) for image in few.images]))
        assert judge.classify(few.images[:0]).shape == (0,)
        with pytest.raises(ValueError, match="shape"):
            judge.classify(torch.rand(1, 1, 4, 4))
    with pytest.raises(AttackError, match="at least 16"):
        train_oracle(batch(torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)), seed=0)


def test_scores_by_hand():
    def flat(*values):
        return torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)

    guess = Representatives(flat(0.4, 0.3, 0.9, 0.5), torch.tensor([0, 0, 2, 1]))
    truth, classes = flat(0.2, 0.4, 0.9), torch.tensor([0, 0, 2])
    scores = score_representatives(guess, truth, classes, torch.tensor([0, 1, 2, 0]))
    assert scores["recognition"] == [1.0, 0.0, 1.0, 0.0]
    # Class 0 has the mean 0.3: the first is 0.1 off, MSE 0.01, 20 dB; the client has no class 1.
    psnr = scores["class-mean-psnr"]
    assert len(psnr) == len(scores["class-mean-ssim"]) == 3
    assert psnr[0] == pytest.approx(20, abs=1e-3)
    assert psnr[1:] == [100.0, 100.0], "the end of the metric's range"
    assert scores["class-mean-ssim"][2] == pytest.approx(1)
    # A client without the classes, and answers that do not fit.
    other = Representatives(flat(0.5, 0.5), torch.tensor([3, 4]))
    answers = torch.tensor([3, 3])
    scores = score_representatives(other, truth, classes, answers)
    assert scores == {"recognition": [1.0, 0.0], "class-mean-psnr": [], "class-mean-ssim": []}
    for labels, said, message in ((classes, answers[:1], "answers"), (classes[:1], answers, "classes of shape")):
        with pytest.raises(ValueError, match=message):
            score_representatives(other, truth, labels, said)
