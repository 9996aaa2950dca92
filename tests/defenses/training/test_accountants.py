"""Epsilon by several accountants: against dp-accounting, closed forms, integrals, and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from opacus.accountants import GaussianAccountant, PRVAccountant
from scipy.stats import norm

from defenses.base import DefenseError
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from defenses.training.accounting import (
    CLAIMING,
    EXACT,
    GDP,
    MEANING,
    PRV,
    RDP,
    epsilon_by_accountant,
    epsilon_spent,
    gdp_epsilon,
)
from defenses.training.dp_sgd import DPSGD
from defenses.training.noise_search import noise_for_budget
from defenses.training.privacy_loss import ADDED, REMOVED, REPLACED, SampledPair, prv_epsilon

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the", "ignore:GDP accounting is experimental")
DELTA = 1e-5
Steps = list[tuple[float, float, int]]


def state_of(steps: Steps) -> dict[str, Any]:
    return {"accountant": {"steps": [list(entry) for entry in steps]}}


# PLDAccountant of dp-accounting 0.6.0 at value_discretization_interval=1e-4: epsilon of ADD_OR_REMOVE_ONE and of REPLACE_ONE, where
# it takes the noise over the clipping norm, which is twice the noise over the sensitivity.
ORACLE = [
    ([(1.0, 0.01, 1000)], 1e-5, 1.8282, 1.2052),
    ([(0.8, 0.25, 12)], 1e-5, 9.4953, 4.8362),
    ([(1.0, 0.1, 50), (2.0, 0.3, 20), (3.0, 1.0, 2)], 1e-5, 6.5056, 4.7824),
    ([(1.5, 0.05, 200)], 1e-7, 3.0170, 2.3368),
    ([(0.4, 0.01, 50)], 1e-5, 10.2689, 1.3647),
]


@pytest.mark.parametrize(("steps", "delta", "added", "replaced"), ORACLE)
def test_prv_lies_just_above_the_close_bound_of_dp_accounting(
    steps: Steps, delta: float, added: float, replaced: float
) -> None:
    for neighbours, oracle in ((ADD_OR_REMOVE, added), (REPLACE_ONE, replaced)):
        bound = epsilon_spent(state_of(steps), delta, PRV, neighbours)
        assert oracle <= bound <= oracle + 0.025, neighbours
        assert bound < epsilon_spent(state_of(steps), delta, RDP, neighbours)


def test_of_one_example_more_prv_is_that_of_opacus() -> None:
    own = PRVAccountant()
    own.history = [(1.0, 0.1, 50)]
    assert prv_epsilon(own.history, DELTA, ADD_OR_REMOVE) == pytest.approx(own.get_epsilon(DELTA), abs=1e-3)


def densities(pair: SampledPair, points: Any) -> tuple[Any, Any]:
    """P and Q of a pair at outputs, as the module's docstring has them."""
    std = pair.noise * (2 if pair.direction == REPLACED else 1)
    none, one, other = (norm.pdf(points, mean, std) for mean in (0, 1, -1))
    within, instead = (1 - pair.rate) * none + pair.rate * one, (1 - pair.rate) * none + pair.rate * other
    return {REMOVED: (within, none), ADDED: (none, within), REPLACED: (within, instead)}[pair.direction]


@pytest.mark.parametrize("direction", [ADDED, REMOVED, REPLACED])
@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.2), (2.0, 0.01), (1.0, 1.0)])
def test_the_distribution_of_a_steps_loss_is_that_of_an_integral(direction: str, noise: float, rate: float) -> None:
    pair = SampledPair(noise, rate, direction)
    points = np.linspace(-25, 25, 2_000_001)
    first, second = densities(pair, points)
    losses = np.log(first) - np.log(second)
    for loss in (-1.5, -0.2, -0.004, 0.0005, 0.1, 1.0, 3.0):
        integral = first[losses <= loss].sum() * (points[1] - points[0])
        assert float(pair.cdf(np.array([loss]))[0]) == pytest.approx(integral, abs=3e-5)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.2), (1.0, 0.02)])
@pytest.mark.parametrize("neighbours", [ADD_OR_REMOVE, REPLACE_ONE])
def test_of_one_step_prv_bounds_the_integral_of_both_directions(noise: float, rate: float, neighbours: str) -> None:
    """delta(epsilon) is the integral of max(0, P - e^epsilon Q), of whichever data set is the first."""
    bound = epsilon_spent(state_of([(noise, rate, 1)]), DELTA, PRV, neighbours)
    pair = SampledPair(noise, rate, REPLACED if neighbours == REPLACE_ONE else REMOVED)
    points = np.linspace(-30, 30, 1_000_001)
    first, second = densities(pair, points)

    def delta(epsilon: float) -> float:
        both = (np.maximum(0, a - math.exp(epsilon) * b).sum() for a, b in ((first, second), (second, first)))
        return float(max(both) * (points[1] - points[0]))

    assert delta(bound) <= DELTA < delta(bound - 0.04)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0, 1.2, 3.0])
def test_no_pair_of_clipped_gradients_is_further_apart_than_the_pair_of_a_replacement(share: float) -> None:
    """Also for e^epsilon below 1, on which composition depends: the pair dominates at every ``share``."""
    rate, std = 0.3, 1.1
    axis = np.linspace(-9, 9, 361)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)

    def mixture(mean: tuple[float, float]) -> Any:
        parts = [np.exp(-((grid - np.array(at)) ** 2).sum(-1) / (2 * std**2)) for at in ((0.0, 0.0), mean)]
        return ((1 - rate) * parts[0] + rate * parts[1]) / (2 * math.pi * std**2)

    def apart(first: tuple[float, float], second: tuple[float, float]) -> float:
        return float(np.maximum(0, mixture(first) - share * mixture(second)).sum() * (axis[1] - axis[0]) ** 2)

    worst = apart((1.0, 0.0), (-1.0, 0.0))
    for angle in (0.0, 0.3, 0.6, 0.9):
        for length in (0.0, 0.5, 1.0):
            turned = (length * math.cos(math.pi * angle), length * math.sin(math.pi * angle))
            assert apart((1.0, 0.0), turned) <= worst + 1e-4
            assert apart(turned, (0.5, 0.0)) <= worst + 1e-4


@pytest.mark.parametrize("neighbours", [ADD_OR_REMOVE, REPLACE_ONE])
def test_of_steps_on_all_examples_the_claim_by_prv_is_exact(neighbours: str) -> None:
    steps = [(4.0, 1.0, 5), (3.0, 1.0, 2)]
    ratio = math.sqrt(5 / 16 + 2 / 9)
    bound = epsilon_spent(state_of(steps), DELTA, PRV, neighbours)
    assert gaussian_delta(ratio, bound) == pytest.approx(DELTA, rel=1e-9)
    assert epsilon_by_accountant(state_of(steps), DELTA, neighbours)[EXACT] == bound
    # Its own numerical way to the same number, which is where the error of the grid shows.
    assert bound < (prv_epsilon(steps, DELTA, neighbours) or 0) < bound + 0.025


def test_the_approximation_by_a_central_limit_can_be_below_the_truth() -> None:
    """10 % of the examples in 100 steps of noise 1: dp-accounting 0.6.0 has 7.0466, and no mechanism is below its exact epsilon."""
    found = epsilon_by_accountant(state_of([(1.0, 0.1, 100)]), DELTA, ADD_OR_REMOVE)
    assert found[GDP] == pytest.approx(6.02, abs=0.1)
    assert found[GDP] < 7.0 < found[PRV] < found[RDP]
    assert GDP not in CLAIMING
    assert "no bound" in MEANING[GDP]


def test_the_central_limit_is_that_of_opacus_and_near_the_truth_after_many_small_steps() -> None:
    own = GaussianAccountant()
    own.history = [(3.0, 0.01, 5000)]
    assert gdp_epsilon(tuple(own.history), DELTA, ADD_OR_REMOVE) == pytest.approx(own.get_epsilon(DELTA), rel=1e-6)
    for neighbours in (ADD_OR_REMOVE, REPLACE_ONE):
        found = epsilon_by_accountant(state_of(own.history), DELTA, neighbours)
        assert found[GDP] == pytest.approx(found[PRV], rel=0.03), neighbours


def test_equal_steps_of_several_states_are_counted_together_in_any_order() -> None:
    apart = [(1.0, 0.1, 20), (1.0, 1.0, 1), (1.0, 0.1, 30), (2.0, 0.5, 0), (0.0, 0.0, 5)]
    for accountant in CLAIMING:
        together = epsilon_spent(state_of([(1.0, 0.1, 50), (1.0, 1.0, 1)]), DELTA, accountant)
        assert epsilon_spent(state_of(apart), DELTA, accountant) == together


def test_what_is_beyond_the_grid_is_claimed_by_renyi_divergences() -> None:
    steps = [(0.01, 0.25, 12)]
    assert set(epsilon_by_accountant(state_of(steps), DELTA)) <= {RDP, GDP}
    assert epsilon_spent(state_of(steps), DELTA, PRV) == epsilon_spent(state_of(steps), DELTA, RDP) > 1000


def test_without_steps_nothing_is_spent_and_without_noise_there_is_no_bound() -> None:
    for accountant in CLAIMING:
        assert epsilon_spent({}, DELTA, accountant) == 0.0
        assert epsilon_spent(state_of([(1.0, 0.5, 3), (0.0, 0.5, 1)]), DELTA, accountant) == math.inf
    assert epsilon_by_accountant({}, DELTA) == {RDP: 0.0}
    assert DPSGD(noise_multiplier=0.0).privacy_by_accountant(state_of([(0.0, 0.5, 1)])) == {}


@pytest.mark.parametrize("accountant", ["gdp", "exact", "PRV", ""])
def test_no_claim_is_made_by_an_approximation(accountant: str) -> None:
    with pytest.raises(ValueError, match=r"accountant is .*; allowed: rdp \| prv"):
        DPSGD(accountant=accountant)
    with pytest.raises(ValueError, match=r"accountant is .*; allowed: rdp \| prv"):
        epsilon_spent({}, DELTA, accountant)


@pytest.mark.parametrize(("target", "rate", "steps"), [(8.0, 0.1, 100), (0.1, 0.05, 100), (1.0, 1.0, 10)])
def test_a_budget_by_prv_is_met_with_less_noise(target: float, rate: float, steps: int) -> None:
    noise = noise_for_budget(target, DELTA, rate, steps, PRV, REPLACE_ONE)
    assert 0.999 * target <= epsilon_spent(state_of([(noise, rate, steps)]), DELTA, PRV, REPLACE_ONE) <= target
    assert noise < noise_for_budget(target, DELTA, rate, steps)
    if rate == 1:
        assert gaussian_epsilon(math.sqrt(steps) / noise, DELTA) == pytest.approx(target, rel=2e-3)


def test_a_budget_beyond_the_grid_is_kept_too() -> None:
    noise = noise_for_budget(2e4, DELTA, 0.5, 2, PRV, REPLACE_ONE)
    assert epsilon_spent(state_of([(noise, 0.5, 2)]), DELTA, PRV, REPLACE_ONE) <= 2e4


def test_a_budget_that_no_noise_meets_is_refused_by_prv() -> None:
    with pytest.raises(DefenseError, match="no noise keeps 1000000 steps"):
        noise_for_budget(1e-6, 1e-12, 0.5, 10**6, PRV, REPLACE_ONE)


def test_a_defence_claims_and_aims_by_its_own_accountant_and_neighbours() -> None:
    steps = state_of([(1.0, 0.1, 100)])
    for more in ({}, {"neighbours": ADD_OR_REMOVE, "sample_rate": 0.1}):
        defense = DPSGD(noise_multiplier=2.0, accountant=PRV, **more)  # type: ignore[arg-type]
        found = defense.privacy_by_accountant(steps)
        assert defense.privacy(steps)["epsilon"] == found[PRV]
        assert found == epsilon_by_accountant(steps, DELTA, defense.neighbours)
        aimed = DPSGD(target_epsilon=4.0, accountant=PRV, **more)  # type: ignore[arg-type]
        z = aimed._noise_multiplier({}, 0.1, 100)
        needed = noise_for_budget(4.0, DELTA, 0.1, 100, PRV, defense.neighbours)
        assert z == SENSITIVITY[defense.neighbours] * needed


@pytest.mark.parametrize("accountant", [RDP, PRV])
def test_a_claim_is_not_negative(accountant: str) -> None:
    """Of a delta of 0.2 the conversion from Renyi divergence alone gives -0.22."""
    private = DPSGD(noise_multiplier=100.0, target_delta=0.2, accountant=accountant)
    assert private.privacy(state_of([(50.0, 0.1, 10)]))["epsilon"] >= 0
