"""The ROC functions against counting all pairs and thresholds, and intervals against the rates that they hold."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm, t, ttest_1samp

from attacks.scoring.intervals import binomial_interval, clustered_interval, mean_interval
from attacks.scoring.roc import auc, auc_interval, roc_curve, tpr_at_fpr

# Few distinct values, so that most draws hold ties; infinite scores are allowed.
SCORES = st.lists(st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=12).map(torch.tensor)


def gaussian(count: int, mean: float, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) + mean


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_area_counts_all_pairs_and_the_curve_has_one_point_per_threshold(members, nonmembers):
    pairs = [float(a > b) + 0.5 * float(a == b) for a, b in itertools.product(members, nonmembers)]
    area = auc(members, nonmembers)
    assert area == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert area == pytest.approx(1 - auc(nonmembers, members)), "swapping the groups mirrors the area"
    fpr, tpr = roc_curve(members, nonmembers)
    assert float(torch.trapezoid(tpr, fpr)) == pytest.approx(area, abs=1e-12)
    thresholds = sorted({*members.tolist(), *nonmembers.tolist()}, reverse=True)
    expected = [(0.0, 0.0)]
    expected += [tuple(float((one >= t).double().mean()) for one in (nonmembers, members)) for t in thresholds]
    np.testing.assert_allclose(torch.stack([fpr, tpr], 1), expected)


@given(SCORES, SCORES)
@settings(max_examples=30, deadline=None)
def test_the_interval_holds_the_area_and_is_mirrored_with_the_groups(members, nonmembers):
    low, high = auc_interval(members, nonmembers)
    assert (1 - high, 1 - low) == pytest.approx(auc_interval(nonmembers, members), abs=1e-9)
    assert 0 <= low <= auc(members, nonmembers) + 1e-12
    assert auc(members, nonmembers) - 1e-12 <= high <= 1


@pytest.mark.numeric
def test_interval_covers_the_true_area():
    """Gaussians ``shift`` apart have an area of Phi(shift / sqrt 2); 95 % of 400 intervals hold it, give or take 4 sd = 4.4 %."""
    for shift, count in ((0.0, 20), (2.0, 20), (3.0, 10)):
        true = float(torch.special.ndtr(torch.tensor(shift / 2**0.5)))
        intervals = [auc_interval(gaussian(count, shift, seed), gaussian(count, 0, 5000 + seed)) for seed in range(400)]
        assert sum(low <= true <= high for low, high in intervals) / 400 > 0.906


def test_interval_at_the_edges():
    apart = (torch.arange(10.0) + 100, torch.arange(20.0))
    # All of 10 disjoint pairs came out right: the lower end solves low**10 = 0.025.
    assert auc_interval(*apart) == pytest.approx((0.025**0.1, 1.0))
    assert auc_interval(apart[1], apart[0]) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert auc_interval(torch.zeros(5), torch.zeros(5)) == (0.5, 0.5)
    assert auc_interval(torch.ones(1), torch.zeros(5)) == (0.0, 1.0)


@given(SCORES, SCORES, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_no_allowed_threshold_does_better(members, nonmembers, fpr):
    thresholds = [torch.inf, *members.tolist(), *nonmembers.tolist()]
    allowed = [t for t in thresholds if float((nonmembers >= t).double().mean()) <= fpr]
    rates = [float((members >= t).double().mean()) for t in allowed]
    found = tpr_at_fpr(members, nonmembers, fpr)
    assert found.value == pytest.approx(max(rates))
    assert found.low <= found.value <= found.high
    # 29 of 100, though 0.29 * 100 < 29 in floating point.
    assert tpr_at_fpr(torch.tensor([71.0]), torch.arange(100.0), 0.29).value == 1


def test_binomial_interval_inverts_the_binomial_tails():
    for successes, trials in ((0, 10), (3, 10), (10, 10), (1, 300)):
        rate, low, high = binomial_interval(successes, trials)
        assert rate == successes / trials
        assert low == 0.0 if successes == 0 else binom.sf(successes - 1, trials, low) == pytest.approx(0.025)
        assert high == 1.0 if successes == trials else binom.cdf(successes, trials, high) == pytest.approx(0.025)


def test_what_has_no_order_and_rates_out_of_range_are_refused():
    good, shares = torch.ones(3), [0.5, 0.2, 0.1]
    cases = [(tpr_at_fpr, (good, good, 1.5), "fpr"), (binomial_interval, (4, 3), "4 successes")]
    for bad in (torch.tensor([]), torch.tensor([torch.nan, 1.0]), torch.zeros(2, 2)):
        for function in (roc_curve, auc, auc_interval, tpr_at_fpr):
            cases += [(function, (good, bad), "nonmembers"), (function, (bad, good), "members")]
    for given_ in (([], 0), ([0.5], 9), ([0.5, 1.5], 9), ([0.5, float("nan")], 9), (shares, 2)):
        cases.append((clustered_interval, given_, "two shares or more"))
    for function, given_, message in cases:
        with pytest.raises(ValueError, match=message):
            function(*given_)
    clustered_interval(shares, 3)


def test_the_interval_of_a_mean_is_students() -> None:
    for values in ([24.0, 19.5], [24.0, 19.5, 30.0, 21.0, 8.5]):
        low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert mean_interval(values) == pytest.approx((np.mean(values), low, high))


@pytest.mark.numeric
def test_cells_count_as_trials_where_they_are_independent_and_rows_where_cells_are_alike() -> None:
    """Against exact intervals: of 200 rows that are all right or all wrong, and of all 8000 cells, as a mean over draws."""
    found, exact = clustered_interval([1.0] * 130 + [0.0] * 70, 8000), binomial_interval(130, 200)
    assert found.value == pytest.approx(0.65)
    assert found[1:] == pytest.approx(exact[1:], abs=2e-3)
    # In between by the formula of Korn and Graubard.
    few = np.array([0.5, 0.1, 0.9, 0.6])
    mean, fewer = few.mean(), (t.ppf(0.975, 39) / t.ppf(0.975, 3)) ** 2
    trials = mean * (1 - mean) * 4 / few.var(ddof=1) * fewer
    ends = beta.ppf([0.025, 0.975], mean * trials + [0, 1], (1 - mean) * trials + [1, 0])
    assert trials < 40
    assert clustered_interval(few.tolist(), 40) == pytest.approx((mean, *ends))
    # Clusters that differ less than by chance tell no more than all of their trials.
    assert clustered_interval([0.4, 0.41, 0.39, 0.4], 40) == pytest.approx(binomial_interval(16, 40))
    generator, widths = np.random.default_rng(0), []
    for _ in range(50):
        hits = generator.binomial(40, 0.3, 200)
        found, exact = clustered_interval((hits / 40).tolist(), 8000), binomial_interval(int(hits.sum()), 8000)
        widths.append((found.high - found.low) / (exact.high - exact.low))
    assert np.mean(widths) == pytest.approx(1, abs=0.05)
    for share in (0.0, 1.0, 0.5):
        exact = binomial_interval(round(640 * share), 640)
        assert clustered_interval([share] * 16, 640) == pytest.approx(exact)


@pytest.mark.numeric
def test_the_interval_of_a_rate_holds_the_true_one_in_95_percent_of_draws():
    """Members are a mixture, as records differ in risk; the true rate is that of the non-members' own quantile."""
    generator = torch.Generator().manual_seed(0)
    for fpr in (0.01, 0.001):
        threshold = norm.isf(fpr)
        truth = 0.85 * norm.sf(threshold, loc=0.35) + 0.15 * norm.sf(threshold, loc=2.5)
        held = 0
        for _ in range(400):
            members = torch.where(torch.rand(792, generator=generator) < 0.85, 0.35, 2.5)
            members += torch.randn(792, generator=generator)
            found = tpr_at_fpr(members, torch.randn(1000, generator=generator), fpr)
            held += found.low <= truth <= found.high
        assert held >= 375  # of 380, 95 %; the interval is conservative
    members, others = torch.arange(900.0) + 1000, torch.arange(1000.0)
    assert tpr_at_fpr(members, others, 0.001).low == 0.0, "few non-members bound no small rate from below"
    assert tpr_at_fpr(members, others, 0.01).low > 0.9


@pytest.mark.numeric
def test_the_interval_of_a_rate_covers_tied_scores() -> None:
    """Half of the members share the highest score with some non-members; all other scores are uniform.

    With more than 1 % of the non-members there, no threshold of all non-members names one of these members.
    """
    generator, draws = torch.Generator().manual_seed(3), 200
    for tied_others, truth in ((0.0105, 0.0), (0.012, 0.0), (0.009, 0.5)):
        held = 0
        for _ in range(draws):
            members, others = torch.rand(1000, generator=generator), torch.rand(1000, generator=generator)
            members[torch.rand(1000, generator=generator) < 0.5] = 2.0
            others[torch.rand(1000, generator=generator) < tied_others] = 2.0
            found = tpr_at_fpr(members, others, 0.01)
            held += found.low <= truth <= found.high
        assert held >= 0.9 * draws
    # A model that gives one class to all images has few different losses: no threshold has 1 % false positives and finds anyone.
    for share in (0.1, 0.3):
        tied = torch.cat([torch.ones(int(1000 * share)), torch.linspace(-1, 0, 1000 - int(1000 * share))])
        found = tpr_at_fpr(tied, tied, 0.01)
        assert found.value == found.low == 0 < found.high < 0.01
