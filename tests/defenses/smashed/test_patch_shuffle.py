"""Token shuffles against the laws that define them: uniform orders, native shares, kept multisets, enumerated outcomes."""

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from defenses import BatchShuffle, DefenseError, PatchShuffle
from defenses.random_draws import generator_for
from defenses.smashed.patch_shuffle import gather_tokens

LEAST_P = 1e-4
"""A correct shuffle fails for one seed in ten thousand."""


def tokens_of(num_images: int, num_tokens: int, dim: int = 3) -> Tensor:
    return torch.rand(num_images, num_tokens, dim, generator=torch.Generator().manual_seed(0))


def multiset(tokens: Tensor) -> list[tuple[float, ...]]:
    return sorted(map(tuple, tokens.reshape(-1, tokens.shape[-1]).tolist()))


@pytest.mark.numeric
def test_every_permutation_is_equally_likely_and_images_are_independent() -> None:
    repeats = 3600
    positions = PatchShuffle().order(2 * repeats, 3, generator_for(0)) - 3 * torch.arange(2 * repeats)[:, None]
    pairs = Counter(tuple(row) for row in positions.view(repeats, 6).tolist())
    assert len(pairs) == 36
    assert chisquare(list(pairs.values())).pvalue > LEAST_P
    orders = BatchShuffle(k=1.0).order(3000, 3, generator_for(8))  # with all tokens native a batch shuffle is one, too
    assert own_tokens(orders).all()
    seen = Counter(map(tuple, (orders % 3).tolist()))
    assert len(seen) == 6
    assert chisquare(list(seen.values())).pvalue > LEAST_P


def test_a_shuffle_keeps_tokens_and_its_order_says_where_they_and_their_gradients_are_from() -> None:
    tokens, weights = tokens_of(5, 16).requires_grad_(), tokens_of(5, 16).flip(0)
    for defense in (PatchShuffle(), BatchShuffle(k=0.5)):
        sent, order = defense.protect_features(tokens, generator_for(1)), defense.order(5, 16, generator_for(1))
        assert torch.equal(sent.flatten(0, 1), tokens.flatten(0, 1)[order.flatten()])
        assert multiset(sent) == multiset(tokens)
        kept = [multiset(before) == multiset(after) for before, after in zip(tokens, sent, strict=True)]
        assert kept == [type(defense) is PatchShuffle] * 5
        (gradient,) = torch.autograd.grad((weights * sent).sum(), tokens)
        assert torch.equal(gather_tokens(gradient, order), weights)
    # Figure 3: sigma = (1, 4, 8, 9, 7, 2, 3, 5, 6) sends patch 2 to slot 4; in slot 4 we write down patch 2.
    sigma = torch.tensor([1, 4, 8, 9, 7, 2, 3, 5, 6]) - 1
    patches = torch.arange(9.0).view(1, 9, 1)
    gathered = gather_tokens(patches, sigma.argsort()[None]).flatten()
    assert torch.equal(gathered, torch.empty(9).scatter_(0, sigma, patches.flatten()))
    assert gathered[4 - 1] == 2 - 1


def test_native_tokens_are_those_of_the_papers_settings() -> None:
    settings = {0.4: 78, 0.75: 147, 0.15: 29, 0.25: 49, 0.5: 98, 0.0: 0, 1.0: 196}
    assert {k: BatchShuffle(k).num_native(196) for k in settings} == settings
    assert int(0.29 * 100) == 28  # which floating point puts just below a whole number
    assert BatchShuffle(k=0.29).num_native(100) == 29


def own_tokens(order: Tensor) -> Tensor:
    """Which slots hold a token of their own image: (B, N), bool."""
    return order // order.shape[1] == torch.arange(len(order))[:, None]


@pytest.mark.numeric
def test_own_tokens_are_in_every_slot_alike() -> None:
    """Own tokens of an image are then a uniform subset of m of N slots; their counts over images have the covariance
    m (N - m) / (N (N - 1)) (I - 1 1' / N), which gives a chi-square variable with N - 1 degrees of freedom.
    """
    own = torch.cat([own_tokens(BatchShuffle().order(50, 16, generator_for(5, at))) for at in range(40)]).double()
    sizes = own.sum(1)
    variance = float((sizes * (16 - sizes)).sum()) / (16 * 15)
    statistic = float((own.sum(0) - own.sum() / 16).square().sum()) / variance
    assert abs(statistic - 15) < 5 * 30**0.5  # mean 15, variance 30
    native = 6  # the rest is own at chance, 1 / 50
    assert float(sizes.mean()) == pytest.approx(native + 10 / 50, abs=4.5 * (10 * 0.02 * 0.98 / 2_000) ** 0.5)


def test_batches_on_which_it_would_be_another_defence_are_refused_up_to_the_limits_that_a_refusal_names() -> None:
    for k, batch_size, reason in (
        (0.4, 1, "a batch of 1 has none to exchange with"),
        (0.0, 1, "a batch of 1 has none to exchange with"),
        (0.05, 4, "keep none of 16 tokens.*k must be 0 or at least 1/16"),
        (1 - 1e-12, 4, "keep all 16 tokens.*k must be 1 or at most 1 - 1/16"),
    ):
        defense = BatchShuffle(k)
        with pytest.raises(DefenseError, match=reason):
            defense.check_batch(batch_size, 16)
        with pytest.raises(DefenseError, match=reason):
            defense.protect_features(tokens_of(batch_size, 16), generator_for(0))
    for k, num_tokens in ((1 / 16, 16), (15 / 16, 16), (1 / 196, 196), (195 / 196, 196)):
        BatchShuffle(k).check_batch(2, num_tokens)


def counts(num_tokens: int, native: int, batch_size: int) -> tuple[float, float, float]:
    """log10 of all orders, of those that hold the target, and of their ratio."""
    found = BatchShuffle(k=native / num_tokens).hidden_orders(batch_size, num_tokens)
    every, share = found["log10-orders"], found["log10-target-share"]
    return every, every + share, share


def test_orders_are_counted_as_whole_numbers_are_and_as_the_paper_has_them() -> None:
    for arguments, known in {
        (4, 2, 2): (3.54, 1.38, -2.16), (9, 5, 3): (21.22, 12.96, -8.25), (196, 78, 50): (28239.73, 27624.25, -615.48),
        (196, 147, 50): (22387.62, 21918.84, -468.78), (196, 196, 50): (18285.29, 17919.59, -365.71),
    }.items():  # fmt: skip
        assert counts(*arguments) == pytest.approx(known, abs=0.006)
    for num_tokens, native, batch_size in ((4, 2, 2), (9, 5, 3), (1, 0, 1), (7, 7, 4), (5, 0, 6), (196, 78, 3)):

        def orders(images: int, n: int = num_tokens, k: int = native) -> int:
            return (math.comb(n, k) * math.factorial(k)) ** images * math.factorial(images * (n - k))

        expected = math.log10(orders(batch_size)), math.log10(orders(batch_size - 1))
        assert counts(num_tokens, native, batch_size)[:2] == pytest.approx(expected, abs=1e-9)
