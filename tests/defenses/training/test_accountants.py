"""Epsilon by several accountants: against Opacus' composition, one by convolution, closed forms, and each other."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm

from defenses.base import DefenseError
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.smashed.feature_noise import FeatureDP
from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from defenses.training.accounting import CLAIMING, PLD, RDP, epsilon_by_accountant, epsilon_spent, noise_for_budget
from defenses.training.dp_sgd import DPSGD
from defenses.updates.client_dp import ClientDP
from tests.defenses.training.test_dp_sgd import DELTA, state_of

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
NEIGHBOURS = (ADD_OR_REMOVE, REPLACE_ONE)

STEPS = [
    [(1.0, 0.01, 200)], [(0.8, 0.25, 12)], [(1.5, 0.05, 100)], [(0.4, 0.01, 50)], [(1.0, 0.1, 20), (2.0, 0.3, 20), (3.0, 1.0, 2)],
]  # fmt: skip


def by_convolution(steps: Any, delta: float, neighbours: str) -> float:
    """The epsilon of steps from the densities of their outputs: losses on a grid, convolved step by step."""
    width, mesh = 30.0, 2e-3
    grid = np.arange(-width, width + mesh / 2, mesh)
    largest = 0.0
    for direction in ("remove", "add") if neighbours == ADD_OR_REMOVE else ("replace",):
        total = np.where(np.abs(grid) < mesh / 2, 1.0, 0.0)
        for noise, rate, count in steps:
            std = SENSITIVITY[neighbours] * noise
            points = np.linspace(-12 * std - 1, 12 * std + 1, 400_001)
            none, one, other = (norm.pdf(points, mean, std) for mean in (0, 1, -1))
            within, instead = (1 - rate) * none + rate * one, (1 - rate) * none + rate * other
            first, second = {"remove": (within, none), "add": (none, within), "replace": (within, instead)}[direction]
            place = (np.log(first / second) + width) / mesh
            low = np.floor(place).astype(int)
            single = np.zeros_like(grid)
            for cell, weight in ((low, 1 - (place - low)), (low + 1, place - low)):
                np.add.at(single, np.clip(cell, 0, len(grid) - 1), weight * first * (points[1] - points[0]))
            for _ in range(count):
                total = fftconvolve(total, single, mode="same")
        low_end, high_end = 0.0, width
        for _ in range(50):
            middle = (low_end + high_end) / 2
            above = grid > middle
            excess = (np.maximum(total[above], 0) * -np.expm1(middle - grid[above])).sum()
            low_end, high_end = (middle, high_end) if excess > delta else (low_end, middle)
        largest = max(largest, high_end)
    return largest


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("steps", STEPS)
def test_a_claim_lies_just_above_the_epsilon_of_a_convolution(steps: Any, neighbours: str) -> None:
    bound = epsilon_spent(state_of(*steps), DELTA, PLD, neighbours)
    assert bound == pytest.approx(by_convolution(steps, DELTA, neighbours), abs=2e-3)
    assert bound < epsilon_spent(state_of(*steps), DELTA, RDP, neighbours)


def test_of_steps_on_all_examples_the_claim_is_the_closed_form() -> None:
    steps = [(4.0, 1.0, 5), (3.0, 1.0, 2)]
    for neighbours in NEIGHBOURS:
        bound = epsilon_spent(state_of(*steps), DELTA, PLD, neighbours)
        exact = gaussian_epsilon(math.sqrt(5 / 16 + 2 / 9), DELTA)
        assert exact <= bound <= exact + 1e-4
        assert gaussian_delta(math.sqrt(5 / 16 + 2 / 9), bound) == pytest.approx(DELTA, rel=2e-3)


def test_beside_replaced_examples_stands_the_epsilon_of_one_more_or_less() -> None:
    """Of the same noise over the clipping norm, which is what an account for added or removed examples is given."""
    for steps in STEPS:
        halved = [(noise / SENSITIVITY[REPLACE_ONE], rate, count) for noise, rate, count in steps]
        found = epsilon_by_accountant(state_of(*halved), DELTA, REPLACE_ONE)
        added = epsilon_spent(state_of(*steps), DELTA, PLD, ADD_OR_REMOVE)
        assert found[ADD_OR_REMOVE] == pytest.approx(added, rel=1e-9)
        assert set(found) == {RDP, PLD, ADD_OR_REMOVE}
        assert set(epsilon_by_accountant(state_of(*steps), DELTA, ADD_OR_REMOVE)) == {RDP, PLD}


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
    # An epsilon beyond all use is claimed by Renyi divergences.
    beyond = state_of((0.01, 0.25, 12))
    assert epsilon_spent(beyond, DELTA, PLD) == epsilon_spent(beyond, DELTA, RDP) > 1000
    for accountant in ("gdp", "exact", "PLD", ""):
        with pytest.raises(ValueError, match=r"accountant is .*; allowed: pld \| rdp"):
            epsilon_spent({}, DELTA, accountant)


@pytest.mark.parametrize("accountant", CLAIMING)
def test_a_budget_is_met_and_used_or_refused(accountant: str) -> None:
    for target, rate, steps in ((1.0, 1.0, 10), (0.1, 0.05, 100), (300.0, 0.3, 40)):
        noise = noise_for_budget(target, DELTA, rate, steps, accountant, REPLACE_ONE)
        spent = epsilon_spent(state_of((noise, rate, steps)), DELTA, accountant, REPLACE_ONE)
        assert 0.999 * target <= spent <= target
        assert noise <= noise_for_budget(target, DELTA, rate, steps, RDP)
        if rate == 1 and accountant == PLD:
            assert gaussian_epsilon(math.sqrt(steps) / noise, DELTA) == pytest.approx(target, rel=2e-3)
    beyond = noise_for_budget(2e4, DELTA, 0.5, 2, accountant, REPLACE_ONE)  # any grid
    assert 0.999 * 2e4 <= epsilon_spent(state_of((beyond, 0.5, 2)), DELTA, accountant, REPLACE_ONE) <= 2e4
    with pytest.raises(DefenseError, match=f"no noise keeps 1000000000 steps .* accountant '{accountant}' finds none"):
        noise_for_budget(1e-7, 1e-15, 1.0, 10**9, accountant, REPLACE_ONE)


def test_a_defence_claims_and_aims_by_its_own_accountant_and_neighbours() -> None:
    steps = state_of((1.0, 0.1, 100))
    for more in ({}, {"neighbours": ADD_OR_REMOVE, "sample_rate": 0.1}):
        defense = DPSGD(noise_multiplier=2.0, accountant=PLD, **more)  # type: ignore[arg-type]
        found = defense.privacy_by_accountant(steps)
        assert defense.privacy(steps)["epsilon"] == found[PLD]
        assert found == epsilon_by_accountant(steps, DELTA, defense.neighbours)
        aimed = DPSGD(target_epsilon=4.0, accountant=PLD, **more)  # type: ignore[arg-type]
        z = aimed._noise_multiplier({}, 1.0, 10)
        needed = noise_for_budget(4.0, DELTA, 1.0, 10, PLD, defense.neighbours)
        assert z == SENSITIVITY[defense.neighbours] * needed
