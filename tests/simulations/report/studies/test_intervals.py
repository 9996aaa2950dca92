"""Intervals and tests of shares: exact ones of single images, and those that let images of one message depend on each other."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from simulations.report.studies.intervals import LEVEL, in_messages, paired, unpaired


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (0, 5), (0, 6), (3, 9), (7, 7)])
def test_the_exact_test_is_the_binomial_of_discordant_pairs(gained: int, lost: int) -> None:
    n, k = gained + lost, min(gained, lost)
    two_sided = min(1.0, 2 * sum(comb(n, at) for at in range(k + 1)) / 2**n) if n else 1.0
    pairs = [(1, 0, 1)] * gained + [(0, 1, 1)] * lost + [(0, 0, 1)] * 3
    assert paired(pairs).p == pytest.approx(two_sided)


def test_the_paired_interval_covers_the_true_difference() -> None:
    rng = np.random.default_rng(0)
    for cells in ((0.6, 0.05, 0.25, 0.1), (0.9, 0.02, 0.05, 0.03), (0.1, 0.4, 0.4, 0.1)):
        counts, covered = rng.multinomial(48, cells, size=2000), 0
        for both, more, less, none in counts.tolist():
            found = paired([(0, 0, 1)] * (both + none) + [(1, 0, 1)] * more + [(0, 1, 1)] * less)
            covered += found.low <= cells[1] - cells[2] <= found.high
        assert covered / 2000 > 0.93
    assert paired([(0, 1, 1)] * 48).low >= -1


def wholes(rng: np.random.Generator, messages: int, share: float, size: int = 16) -> list[tuple[int, int]]:
    """Messages that an attack solves as a whole or not at all."""
    return [(size * int(rng.random() < share), size) for _ in range(messages)]


def test_one_message_of_four_decides_no_difference_and_all_four_do() -> None:
    one, every = ([(0, 16 if at < lost else 0, 16) for at in range(4)] for lost in (1, 4))
    # By image the binomial of 16 discordant pairs would call the one message a difference.
    assert 2 / 2**16 < LEVEL < paired(one).p
    assert paired(every).p < LEVEL / 4
    assert unpaired([(16, 16)] * 4, [(0, 16)] * 3 + [(0, 11)]).p < LEVEL / 4
    assert unpaired([(16, 16)] * 4, [(0, 16)] + [(16, 16)] * 3).p > LEVEL
    for few in ([(0, 16, 16)], [(0, 16, 16)] * 2):
        assert paired(few)[1:] == (-1, 1, 1), "two messages allow no test"


@pytest.mark.parametrize("messages", [3, 4, 12])
def test_attacks_that_solve_a_message_as_a_whole_are_told_apart_in_five_of_a_hundred_audits_at_most(
    messages: int,
) -> None:
    rng, audits = np.random.default_rng(messages), 1000
    called = np.zeros(3)
    for share in (0.5, 0.8):
        for _ in range(audits // 2):
            one, other = wholes(rng, messages, share), wholes(rng, messages, share)
            pairs = [(max(a - b, 0), max(b - a, 0), n) for (a, n), (b, _) in zip(one, other, strict=True)]
            gained, discordant = sum(a for a, _, _ in pairs), sum(a + b for a, b, _ in pairs)
            by_image = stats.binomtest(gained, discordant).pvalue if discordant else 1.0
            called += [found < LEVEL for found in (paired(pairs).p, unpaired(one, other).p, by_image)]
    assert (called[:2] / audits <= 0.05).all(), called
    assert called[2] / audits > 0.3, "images taken as independent tell apart what is alike"


def test_an_interval_of_few_messages_is_wider_than_that_of_as_many_images() -> None:
    def exact(hits: int, images: int) -> tuple[float, float]:
        low, high = stats.binomtest(hits, images).proportion_ci(0.95, "exact")
        return low, high

    assert in_messages([(1, 1)] * 40 + [(0, 1)] * 8)[1:] == pytest.approx(exact(40, 48))
    assert in_messages([(16, 16)])[1:] == (None, None)
    # All alike: n = 64 (t(63) / t(3))^2 images.
    n = 64 * (stats.t.ppf(0.975, 63) / stats.t.ppf(0.975, 3)) ** 2
    assert in_messages([(16, 16)] * 4) == pytest.approx((1, 0.025 ** (1 / n), 1))
    rng, covered = np.random.default_rng(0), 0
    for _ in range(500):
        share, low, high = in_messages(wholes(rng, 24, 0.7))
        assert low is not None
        assert high is not None
        covered += low <= 0.7 <= high
        narrow = exact(round(share * 384), 384)
        assert high - low > narrow[1] - narrow[0]
    assert covered / 500 > 0.93
