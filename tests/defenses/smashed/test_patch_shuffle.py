"""Token shuffles against the laws that define them: uniform orders, native shares, kept multisets, enumerated outcomes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from defenses import BatchShuffle, DefenseError, PatchShuffle
from defenses.random_draws import generator_for
from defenses.smashed.patch_shuffle import gather_tokens

LEAST_P = 1e-4
"""Seeds are fixed; a correct shuffle fails for one seed in ten thousand."""


def tokens_of(num_images: int, num_tokens: int, dim: int = 3) -> Tensor:
    return torch.rand(num_images, num_tokens, dim, generator=torch.Generator().manual_seed(0))


def multiset(tokens: Tensor) -> list[tuple[float, ...]]:
    return sorted(map(tuple, tokens.reshape(-1, tokens.shape[-1]).tolist()))


def test_every_permutation_is_equally_likely_and_images_are_independent():
    repeats = 14_400
    positions = PatchShuffle().order(2 * repeats, 3, generator_for(0)) - 3 * torch.arange(2 * repeats)[:, None]
    pairs = Counter(tuple(row) for row in positions.view(repeats, 6).tolist())
    assert len(pairs) == 36
    assert chisquare(list(pairs.values())).pvalue > LEAST_P


def test_a_shuffle_keeps_each_images_tokens_and_its_order_says_where_they_are_from():
    tokens = tokens_of(5, 16)
    sent = PatchShuffle().protect_features(tokens, generator_for(1))
    order = PatchShuffle().order(5, 16, generator_for(1))
    for image, (before, after) in enumerate(zip(tokens, sent, strict=True)):
        assert multiset(before) == multiset(after)
        assert not torch.equal(before, after)
        for slot in range(16):
            assert torch.equal(after[slot], before[order[image, slot] - 16 * image])


def test_the_papers_sigma_is_the_inverse_of_the_gathering_order():
    """Figure 3: sigma = (1, 4, 8, 9, 7, 2, 3, 5, 6) sends patch 2 to slot 4; in slot 4 we write down patch 2."""
    sigma = torch.tensor([1, 4, 8, 9, 7, 2, 3, 5, 6]) - 1
    patches = torch.arange(9.0).view(1, 9, 1)
    scattered = torch.empty(9).scatter_(0, sigma, patches.flatten())
    gathered = gather_tokens(patches, sigma.argsort()[None])
    assert torch.equal(gathered.flatten(), scattered)
    assert gathered.flatten()[4 - 1] == 2 - 1


def test_gradients_return_to_the_tokens_they_came_from():
    tokens = tokens_of(3, 8).requires_grad_()
    weights = torch.rand(3, 8, 3, generator=torch.Generator().manual_seed(1))
    for defense in (PatchShuffle(), BatchShuffle(k=0.5)):
        (gradient,) = torch.autograd.grad((weights * defense.protect_features(tokens, generator_for(2))).sum(), tokens)
        order = defense.order(3, 8, generator_for(2))
        assert torch.equal(gather_tokens(gradient, order), weights)


# ---- batch shuffle


@pytest.mark.parametrize(
    ("k", "native"), [(0.4, 78), (0.75, 147), (0.15, 29), (0.25, 49), (0.5, 98), (0.0, 0), (1.0, 196)]
)
def test_native_tokens_of_the_papers_settings(k: float, native: int):
    assert BatchShuffle(k).num_native(196) == native


def test_a_share_that_floating_point_puts_just_below_a_whole_number_is_that_number():
    assert int(0.29 * 100) == 28
    assert BatchShuffle(k=0.29).num_native(100) == 29


def test_a_batch_shuffle_keeps_the_pooled_tokens():
    tokens = tokens_of(5, 16)
    sent = BatchShuffle().protect_features(tokens, generator_for(3))
    assert multiset(sent) == multiset(tokens)
    assert all(multiset(before) != multiset(after) for before, after in zip(tokens, sent, strict=True))


def own_tokens(order: Tensor) -> Tensor:
    """Which slots hold a token of their own image: (B, N), bool."""
    return order // order.shape[1] == torch.arange(len(order))[:, None]


@pytest.mark.parametrize(("k", "batch_size"), [(0.4, 2), (0.4, 10), (0.75, 4), (0.0, 5)])
def test_own_tokens_are_the_native_ones_and_a_share_of_returns(k: float, batch_size: int):
    num_tokens, repeats = 20, 2000 // batch_size
    defense, generator = BatchShuffle(k), generator_for(4)
    counts = torch.cat(
        [own_tokens(defense.order(batch_size, num_tokens, generator)).sum(1) for _ in range(repeats)]
    ).double()
    native = defense.num_native(num_tokens)
    assert counts.min() >= native
    expected = native + (num_tokens - native) / batch_size
    # Returns to the images of one batch depend on each other; batches do not.
    means = counts.view(repeats, batch_size).mean(1)
    assert abs(float(means.mean()) - expected) < 4 * float(means.std()) / repeats**0.5


def test_after_the_final_shuffle_own_tokens_are_in_every_slot_alike():
    """Own tokens of an image are then a uniform subset of m of N slots; their counts over images have the covariance
    m (N - m) / (N (N - 1)) (I - 1 1' / N), which gives a chi-square variable with N - 1 degrees of freedom.
    """
    num_tokens, repeats, generator = 16, 40, generator_for(5)
    own = torch.cat([own_tokens(BatchShuffle().order(50, num_tokens, generator)) for _ in range(repeats)]).double()
    sizes = own.sum(1)
    variance = float((sizes * (num_tokens - sizes)).sum()) / (num_tokens * (num_tokens - 1))
    deviations = own.sum(0) - own.sum() / num_tokens
    statistic = float(deviations.square().sum()) / variance
    # Mean 15, variance 30.
    assert abs(statistic - 15) < 4 * 30**0.5


def test_without_the_final_shuffle_the_first_slots_are_native():
    defense, generator = BatchShuffle(final_shuffle=False), generator_for(6)
    own = torch.cat([own_tokens(defense.order(50, 16, generator)) for _ in range(40)])
    assert own[:, :6].all()
    # The rest is own at chance, 1 / 50.
    assert float(own[:, 6:].double().mean()) == pytest.approx(1 / 50, abs=4 * (0.02 * 0.98 / 20_000) ** 0.5)
    shuffled = own_tokens(BatchShuffle().order(50, 16, generator))
    assert not shuffled[:, :6].all()


def algorithm_2(num_tokens: int, native: int) -> Counter[tuple[int, ...]]:
    """All equally likely runs of Algorithm 2 on a batch of two, by its own steps, as flat orders with multiplicity."""
    outcomes: Counter[tuple[int, ...]] = Counter()
    first, second = range(num_tokens), range(num_tokens, 2 * num_tokens)
    for one, two in itertools.product(itertools.permutations(first), itertools.permutations(second)):
        for pool in itertools.permutations(one[native:] + two[native:]):
            half = len(pool) // 2
            outcomes[(*one[:native], *pool[:half], *two[:native], *pool[half:])] += 1
    return outcomes


@pytest.mark.parametrize(("num_tokens", "k"), [(2, 0.5), (3, 0.7)])
def test_without_the_final_shuffle_the_law_is_algorithm_2(num_tokens: int, k: float):
    defense, generator, repeats = BatchShuffle(k, final_shuffle=False), generator_for(7), 6000
    expected = algorithm_2(num_tokens, defense.num_native(num_tokens))
    seen = Counter(tuple(defense.order(2, num_tokens, generator).flatten().tolist()) for _ in range(repeats))
    assert set(seen) <= set(expected)
    scale = repeats / sum(expected.values())
    pairs = [(seen[outcome], count * scale) for outcome, count in expected.items()]
    assert chisquare(*zip(*pairs, strict=True)).pvalue > LEAST_P


@pytest.mark.parametrize("final_shuffle", [True, False])
def test_with_all_tokens_native_it_is_a_patch_shuffle(final_shuffle: bool):
    defense, generator = BatchShuffle(k=1.0, final_shuffle=final_shuffle), generator_for(8)
    orders = defense.order(6000, 3, generator)
    assert own_tokens(orders).all()
    seen = Counter(map(tuple, (orders % 3).tolist()))
    assert len(seen) == 6
    assert chisquare(list(seen.values())).pvalue > LEAST_P
    assert defense.order(1, 3, generator).sort().values.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("k", "batch_size", "num_tokens", "reason"),
    [
        (0.4, 1, 16, "a batch of 1 has none to exchange with"),
        (0.0, 1, 16, "a batch of 1 has none to exchange with"),
        (0.05, 4, 16, "keep none of 16 tokens.*k must be 0 or at least 1/16"),
        (1 - 1e-12, 4, 16, "keep all 16 tokens.*k must be 1 or at most 1 - 1/16"),
    ],
)
def test_batches_on_which_it_would_be_another_defence_are_refused(
    k: float, batch_size: int, num_tokens: int, reason: str
):
    defense = BatchShuffle(k)
    with pytest.raises(DefenseError, match=reason):
        defense.check_batch(batch_size, num_tokens)
    with pytest.raises(DefenseError, match=reason):
        defense.protect_features(tokens_of(batch_size, num_tokens), generator_for(0))


@pytest.mark.parametrize(("k", "num_tokens"), [(1 / 16, 16), (15 / 16, 16), (1 / 196, 196), (195 / 196, 196)])
def test_the_limits_that_a_refusal_names_are_accepted(k: float, num_tokens: int):
    BatchShuffle(k).check_batch(2, num_tokens)
