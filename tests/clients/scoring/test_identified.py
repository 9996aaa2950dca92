"""Which guesses identify their image: against a slow search, and by chance alone."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from attacks.metrics.images import IDENTIFIED, IDENTIFIED_CHANCE
from attacks.scoring.metrics import optimal_assignment
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.scoring.retrieval import CANDIDATES, Known, identified, identified_in_round

HITS, CHANCE = IDENTIFIED.of("original"), IDENTIFIED_CHANCE.of()


def digits(of: str, side: int) -> Known:
    """100 test or 400 training images of each class, reduced."""
    part = getattr(load_dataset("mnist-5k"), of)
    return Known(F.adaptive_avg_pool2d(to_float(part.images[:]), side), part.labels)


def class_means(known: Known) -> Tensor:
    return torch.stack([known.images[known.classes == digit].mean(0) for digit in range(10)])


def drawn(known: Known, count: int, each: int, generator: torch.Generator) -> tuple[Known, Known]:
    """Attacked images and ``each`` others of its class for every one, as ``other_images`` draws them."""
    order = torch.randperm(len(known.images), generator=generator)
    attacked, order = order[:count], order[count:]
    kinds = known.classes[attacked]
    others = [order[known.classes[order] == one][: each * int((kinds == one).sum())] for one in kinds.unique()]
    return tuple(Known(known.images[at], known.classes[at]) for at in (attacked, torch.cat(others)))  # type: ignore[return-value]


def alike(one: Tensor, other: Tensor) -> float:
    x, y = ((image - image.mean((1, 2), keepdim=True)).double().numpy().ravel() for image in (one, other))
    return float(np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y))


def test_hits_and_chances_are_those_of_a_slow_search() -> None:
    generator = torch.Generator().manual_seed(0)
    pool = Known(torch.rand(300, 3, 6, 6, generator=generator), torch.randint(3, (300,), generator=generator))
    own, others = drawn(pool, 6, 8, generator)
    others.images[0] = 0.5 * own.images[2] + 0.1  # a copy, but for its contrast
    others.classes[0] = own.classes[2]
    guess = 0.35 * own.images.flip(0) + 0.65 * torch.rand(6, 3, 6, 6, generator=generator)
    guess[1] = 0.5
    pairs = torch.arange(6), torch.arange(6).flip(0)
    found = identified(guess, pairs, own, others, paired=False)
    for row, column in zip(*(one.tolist() for one in pairs), strict=True):
        kind = own.classes[column]
        rivals = [image for at, image in enumerate(own.images) if at != column]
        rivals += [image for at, image in enumerate(others.images) if column != 2 or at]
        hit = row != 1 and alike(guess[row], own.images[column]) > max(alike(guess[row], one) for one in rivals)
        mine, rest = (own.classes == kind).sum(), (others.classes == kind).sum()
        assert found[HITS][row] == hit
        assert found[CHANCE][row] == pytest.approx(float((1 + (column == 2)) * mine / (mine + rest)))
    assert 0 < sum(found[HITS]) < 6
    # Where messages keep the rows, other attacked images are no candidates, and each image has others of its own class.
    images = own.images.clone()
    images[1] = others.images[others.classes == own.classes[1]][-1]
    one = identified(images, (pairs[0], pairs[0]), own, others, paired=True)
    assert one[HITS] == [1, 0, 1, 1, 1, 1]
    assert max(one[CHANCE]) == 2 / (1 + (others.classes == own.classes[2]).sum())
    twice = identified(torch.cat([guess, guess]), pairs, own, others, paired=False)
    assert twice[CHANCE] == pytest.approx([2 * chance for chance in found[CHANCE]]), "a sum has guesses to choose from"


@pytest.mark.numeric
def test_null_guesses_that_know_the_class_are_called_in_five_of_a_hundred_audits_at_most() -> None:
    """The best of six attacks on 16 or 48 digits: the mean of the class, of images that are no candidates, and noise on it."""
    pool, generator, audits, attacks = digits("test", 10), torch.Generator().manual_seed(0), 400, 6
    means, hits, trials, called = class_means(digits("train", 10)), 0, 0.0, 0
    for count in [16, 16, 16, 48] * (audits // 4):
        own, others = drawn(pool, count, CANDIDATES, generator)
        at = torch.arange(count).repeat(attacks)
        noise = torch.randn(len(at), *means.shape[1:], generator=generator)
        guess = (
            means[own.classes[at]]
            + torch.linspace(0, 0.3, attacks).repeat_interleave(count)[:, None, None, None] * noise
        )
        found = identified(guess, (torch.arange(len(at)), at), own, others, paired=True)
        each = torch.tensor(found[HITS]).view(attacks, count).sum(1)
        chance = float(np.mean(found[CHANCE]))
        called += attacks * stats.binom.sf(int(each.max()) - 1, count, chance) <= 0.05
        hits, trials = hits + int(each.sum()), trials + count * chance
    assert called / audits <= 0.05
    # Exchangeable images are found as often as the chance says: five standard deviations.
    assert abs(hits / attacks - trials) < 5 * trials**0.5


def test_a_round_in_which_no_null_guess_hits_has_a_chance_above_zero() -> None:
    generator, rows = torch.Generator().manual_seed(0), torch.arange(4)
    own, others = (
        Known(torch.rand(count, 1, 6, 6, generator=generator), torch.zeros(count, dtype=torch.int64))
        for count in (4, 9)
    )
    found = identified_in_round(own.images, (rows, rows), own, others)
    assert found[HITS] == [1.0] * 4
    assert found[CHANCE] == pytest.approx([1 / 10] * 4)


@pytest.mark.numeric
def test_null_guesses_of_few_messages_of_many_images_are_no_likelier_than_the_binomial_says() -> None:
    """Images of one message share their candidates, and still four messages of 16 need no wider test than 64 images."""
    pool, generator, audits, called = digits("test", 10), torch.Generator().manual_seed(2), 150, 0
    means = class_means(digits("train", 10))
    for _ in range(audits):
        hits, chances = list[float](), list[float]()
        for _ in range(4):
            own, others = drawn(pool, 16, 40, generator)
            guess = means[own.classes] + 0.05 * torch.randn(own.images.shape, generator=generator)
            found = identified(guess, optimal_assignment(guess, own.images), own, others, paired=False)
            hits, chances = hits + found[HITS], chances + found[CHANCE]
        called += stats.binom.sf(sum(hits) - 1, len(hits), np.mean(chances)) <= 0.05
    assert called / audits <= 0.08  # of 150 audits at 5 %, more than 12 are called in 4 of 100 repetitions
