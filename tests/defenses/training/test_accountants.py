"""Epsilon by several accountants: against dp-accounting, closed forms, integrals, and each other."""

import math
from typing import Any

import numpy as np
import pytest
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from defenses.base import DefenseError
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.smashed.feature_noise import FeatureDP
from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from defenses.training import privacy_loss
from defenses.training.accounting import CLAIMING, EXACT, PRV, RDP, epsilon_by_accountant, epsilon_spent
from defenses.training.dp_sgd import DPSGD
from defenses.training.noise_search import noise_for_budget
from defenses.training.privacy_loss import ADDED, REMOVED, REPLACED, SampledPair, prv_epsilon
from defenses.updates.client_dp import ClientDP
from tests.defenses.training.test_dp_sgd import DELTA, renyi_epsilon, sampled_divergence, state_of

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
NEIGHBOURS = (ADD_OR_REMOVE, REPLACE_ONE)

# PLDAccountant of dp-accounting 0.6.0 at value_discretization_interval=1e-4: epsilon of ADD_OR_REMOVE_ONE and of REPLACE_ONE, where
# it takes the noise over the clipping norm, which is twice the noise over the sensitivity.
ORACLE = [
    ([(1.0, 0.01, 1000)], 1e-5, 1.8282, 1.2052), ([(0.8, 0.25, 12)], 1e-5, 9.4953, 4.8362),
    ([(1.5, 0.05, 200)], 1e-7, 3.0170, 2.3368), ([(0.4, 0.01, 50)], 1e-5, 10.2689, 1.3647),
    ([(1.0, 0.1, 50), (2.0, 0.3, 20), (3.0, 1.0, 2)], 1e-5, 6.5056, 4.7824),
]  # fmt: skip


def test_prv_lies_just_above_the_close_bound_of_dp_accounting() -> None:
    for steps, delta, *oracles in ORACLE:
        for neighbours, oracle in zip(NEIGHBOURS, oracles, strict=True):
            bound = epsilon_spent(state_of(*steps), delta, PRV, neighbours)
            assert oracle <= bound <= oracle + 0.025, (steps, neighbours)
            assert bound < epsilon_spent(state_of(*steps), delta, RDP, neighbours)
    own = PRVAccountant()
    own.history = [(1.0, 0.1, 50)]
    assert prv_epsilon(own.history, DELTA, ADD_OR_REMOVE) == pytest.approx(own.get_epsilon(DELTA), abs=1e-3)


def densities(pair: SampledPair, points: Any) -> tuple[Any, Any]:
    """P and Q of a pair at outputs, as the module's docstring has them."""
    std = pair.noise * (2 if pair.direction == REPLACED else 1)
    none, one, other = (norm.pdf(points, mean, std) for mean in (0, 1, -1))
    within, instead = (1 - pair.rate) * none + pair.rate * one, (1 - pair.rate) * none + pair.rate * other
    return {REMOVED: (within, none), ADDED: (none, within), REPLACED: (within, instead)}[pair.direction]


def test_the_distribution_of_a_steps_loss_is_that_of_an_integral() -> None:
    points = np.linspace(-20, 20, 400_001)
    for direction in (ADDED, REMOVED, REPLACED):
        for noise, rate in ((0.7, 0.2), (2.0, 0.01), (1.0, 1.0)):
            pair = SampledPair(noise, rate, direction)
            first, second = densities(pair, points)
            with np.errstate(divide="ignore", invalid="ignore"):
                losses = np.log(first) - np.log(second)
            for loss in (-1.5, -0.2, -0.004, 0.0005, 0.1, 1.0, 3.0):
                integral = first[losses <= loss].sum() * (points[1] - points[0])
                assert float(pair.cdf(np.array([loss]))[0]) == pytest.approx(integral, abs=1e-4), (pair, loss)


def test_of_steps_on_all_examples_the_claim_by_prv_is_exact() -> None:
    steps = [(4.0, 1.0, 5), (3.0, 1.0, 2)]
    for neighbours in NEIGHBOURS:
        bound = epsilon_spent(state_of(*steps), DELTA, PRV, neighbours)
        assert gaussian_delta(math.sqrt(5 / 16 + 2 / 9), bound) == pytest.approx(DELTA, rel=1e-9)
        assert epsilon_by_accountant(state_of(*steps), DELTA, neighbours)[EXACT] == bound
        # Its own numerical way to the same number, which is where the error of the grid shows.
        assert bound < (prv_epsilon(steps, DELTA, neighbours) or 0) < bound + 0.025


def test_the_grid_misses_the_loss_of_all_steps_or_of_any_step_with_its_part_of_the_error() -> None:
    """A quarter for all steps; an eighth for the single ones, which decides where large losses are rare. By whole orders."""
    error, orders = 1e-8, [order for order in privacy_loss._ORDERS if order == int(order)]
    for noise, rate, count, single in ((0.6, 1e-4, 50, True), (2.0, 0.5, 20, False)):
        of = {order: sampled_divergence(noise, rate, order) for order in orders}
        width, epsilon = privacy_loss._tails([(noise, rate, count)], DELTA, error)
        one = renyi_epsilon(of.__getitem__, 1, error / (8 * count), orders)
        every = renyi_epsilon(of.__getitem__, count, error / 4, orders)
        assert (one > 1.1 * every) == single
        assert width == pytest.approx(max(one, every), rel=1e-9)
        assert epsilon == pytest.approx(renyi_epsilon(of.__getitem__, count, DELTA, orders), rel=1e-9)


def test_beside_replaced_examples_stands_the_epsilon_of_one_more_or_less() -> None:
    """Of the same noise over the clipping norm, which is what an account for added or removed examples is given."""
    for steps, delta, added, replaced in ORACLE:
        halved = [(noise / SENSITIVITY[REPLACE_ONE], rate, count) for noise, rate, count in steps]
        found = epsilon_by_accountant(state_of(*halved), delta, REPLACE_ONE)
        assert added <= found[ADD_OR_REMOVE] <= added + 0.025, steps
        assert ADD_OR_REMOVE not in epsilon_by_accountant(state_of(*steps), delta, ADD_OR_REMOVE)
        other = epsilon_by_accountant(state_of(*steps), delta, REPLACE_ONE)
        assert replaced <= other.get(PRV, other.get(EXACT, 0.0)) <= replaced + 0.025, steps


def test_an_epsilon_names_what_it_follows_from() -> None:
    defense = DPSGD(noise_multiplier=1.5, max_grad_norm=0.5)
    found = defense.privacy(state_of((0.75, 0.25, 10), (0.75, 0.25, 6)))
    named = {"noise-multiplier": 1.5, "clipping-norm": 0.5, "sample-rate": 0.25, "steps": 16}
    assert {name: found[f"budget-{name}"] for name in named} == named
    assert set(defense.privacy({})) == {"epsilon", "delta"}
    assert ClientDP(noise_multiplier=3.0, max_norm=2.0).privacy(state_of((1.5, 1.0, 4)))["budget-noise-multiplier"] == 3
    assert FeatureDP(noise_multiplier=3.0, clip=2.0).privacy(7)["budget-steps"] == 7


def test_steps_are_counted_together_in_any_order_and_those_without_release_not() -> None:
    apart = [(1.0, 0.1, 20), (1.0, 1.0, 1), (1.0, 0.1, 30), (2.0, 0.5, 0), (0.0, 0.0, 5)]
    for accountant in CLAIMING:
        together = epsilon_spent(state_of((1.0, 0.1, 50), (1.0, 1.0, 1)), DELTA, accountant)
        assert epsilon_spent(state_of(*apart), DELTA, accountant) == together
        assert epsilon_spent({}, DELTA, accountant) == 0.0
        assert epsilon_spent(state_of((1.0, 0.5, 3), (0.0, 0.5, 1)), DELTA, accountant) == math.inf
        # Of a delta of 0.2 the conversion from Renyi divergence alone gives -0.22.
        private = DPSGD(noise_multiplier=100.0, target_delta=0.2, accountant=accountant)
        assert private.privacy(state_of((50.0, 0.1, 10)))["epsilon"] >= 0
    assert epsilon_by_accountant({}, DELTA) == {RDP: 0.0}
    assert DPSGD(noise_multiplier=0.0).privacy_by_accountant(state_of((0.0, 0.5, 1))) == {}
    # What is beyond the grid is claimed by Renyi divergences.
    beyond = state_of((0.01, 0.25, 12))
    assert set(epsilon_by_accountant(beyond, DELTA)) <= {RDP, ADD_OR_REMOVE}
    assert epsilon_spent(beyond, DELTA, PRV) == epsilon_spent(beyond, DELTA, RDP) > 1000
    for accountant in ("gdp", "exact", "PRV", ""):
        with pytest.raises(ValueError, match=r"accountant is .*; allowed: prv \| rdp"):
            epsilon_spent({}, DELTA, accountant)


def test_a_budget_by_prv_is_met_with_less_noise_or_refused() -> None:
    for target, rate, steps in ((1.0, 1.0, 10), (0.1, 0.05, 100)):
        noise = noise_for_budget(target, DELTA, rate, steps, PRV, REPLACE_ONE)
        assert 0.999 * target <= epsilon_spent(state_of((noise, rate, steps)), DELTA, PRV, REPLACE_ONE) <= target
        assert noise < noise_for_budget(target, DELTA, rate, steps, RDP)
        if rate == 1:
            assert gaussian_epsilon(math.sqrt(steps) / noise, DELTA) == pytest.approx(target, rel=2e-3)
    beyond = noise_for_budget(2e4, DELTA, 0.5, 2, PRV, REPLACE_ONE)  # of the grid
    assert epsilon_spent(state_of((beyond, 0.5, 2)), DELTA, PRV, REPLACE_ONE) <= 2e4
    with pytest.raises(DefenseError, match="no noise keeps 1000000 steps"):
        noise_for_budget(1e-6, 1e-12, 0.5, 10**6, PRV, REPLACE_ONE)


def test_a_defence_claims_and_aims_by_its_own_accountant_and_neighbours() -> None:
    steps = state_of((1.0, 0.1, 100))
    for more in ({}, {"neighbours": ADD_OR_REMOVE, "sample_rate": 0.1}):
        defense = DPSGD(noise_multiplier=2.0, accountant=PRV, **more)  # type: ignore[arg-type]
        found = defense.privacy_by_accountant(steps)
        assert defense.privacy(steps)["epsilon"] == found[PRV]
        assert found == epsilon_by_accountant(steps, DELTA, defense.neighbours)
        aimed = DPSGD(target_epsilon=4.0, accountant=PRV, **more)  # type: ignore[arg-type]
        z = aimed._noise_multiplier({}, 1.0, 10)
        needed = noise_for_budget(4.0, DELTA, 1.0, 10, PRV, defense.neighbours)
        assert z == SENSITIVITY[defense.neighbours] * needed
