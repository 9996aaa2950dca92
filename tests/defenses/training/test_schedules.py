"""Noise and clipping norms that fall over epochs: the account of each step, budgets, and places in a schedule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.dp_audit.gradient_canaries import audit_dp_sgd
from defenses.base import DefenseError
from defenses.neighbours import REPLACE_ONE
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.training.accounting import PRV, RDP, epsilon_by_accountant, epsilon_spent
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from defenses.training.noise_search import MOST_LEVELS, noise_for_budget
from defenses.training.step_settings import NORM, SCHEDULE, DecaySchedule
from tests.defenses.training.test_dp_sgd import DELTA, PUBLIC, moves, no_gradient, protect, run, set_up

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")


def steps_of(defense: DPSGD, **training: Any) -> dict[str, Any]:
    protected = protect(defense, set_up(**training))
    list(run(protected))
    return dict(protected.state)


# ---- each step


@pytest.mark.numeric
def test_each_epoch_has_its_own_noise_norm_and_entry() -> None:
    for clipping in (PER_EXAMPLE, GHOST):
        defense = DPSGD(noise_multiplier=4.0, max_grad_norm=3.0, noise_decay=0.5, clip_decay=0.8, clipping=clipping)
        protected = protect(defense, replace(set_up(count=6, batch_size=3, epochs=3), loss=no_gradient))
        seen = [3 * moved for moved in moves(protected)]
        for epoch in range(3):
            noise = torch.cat(seen[2 * epoch : 2 * epoch + 2])
            # 968 draws: the standard error of a standard deviation is 2.3 %.
            assert float(noise.std()) == pytest.approx(4.0 * 0.5**epoch * 3.0 * 0.8**epoch, rel=0.12)
        assert protected.state["accountant"]["steps"] == [[2.0, 0.5, 2], [1.0, 0.5, 2], [0.5, 0.5, 2]]


def test_gradients_are_clipped_to_the_norm_of_their_epoch() -> None:
    for clipping in (PER_EXAMPLE, GHOST):
        defense = DPSGD(noise_multiplier=0.0, max_grad_norm=1e-3, clip_decay=0.5, clipping=clipping)
        lengths = [float(moved.norm()) for moved in moves(protect(defense, set_up(count=1, batch_size=1, epochs=4)))]
        assert lengths == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4], rel=1e-2)


def test_epsilon_of_full_batches_is_the_closed_form() -> None:
    state = steps_of(DPSGD(noise_multiplier=8.0, noise_decay=0.7), count=6, batch_size=6, epochs=4)
    mu = math.sqrt(sum((2 / (8.0 * 0.7**epoch)) ** 2 for epoch in range(4)))
    found = epsilon_by_accountant(state, DELTA, REPLACE_ONE)
    assert found["exact"] == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)


def test_without_decay_nothing_of_it_is_kept_and_an_adaptive_norm_goes_with_falling_noise() -> None:
    assert set(steps_of(DPSGD(noise_multiplier=1.0), epochs=2)) == {"accountant"}
    state = steps_of(DPSGD(noise_multiplier=4.0, noise_decay=0.5, target_quantile=0.5), epochs=2)
    assert state["accountant"]["steps"] == [[2.0, 0.25, 4], [1.0, 0.25, 4]]
    assert state[NORM] != 1.0


# ---- budgets


def met(target: float, decay: float, more: dict[str, Any], training: dict[str, Any]) -> None:
    defense = DPSGD(target_epsilon=target, noise_decay=decay, **more)
    protected = protect(defense, set_up(**training))
    total = training.get("total_steps") or sum(1 for _ in range(training["epochs"]) for _ in protected.loader)
    for number, _ in enumerate(run(protected), 1):
        if number == total:
            break
    steps = protected.state["accountant"]["steps"]
    assert sum(count for *_, count in steps) == total
    assert 0.99 * target <= defense.privacy(protected.state)["epsilon"] <= target
    assert [noise for noise, *_ in steps] == pytest.approx([steps[0][0] * decay**at for at in range(len(steps))])
    assert len(steps) > 1


def test_a_target_epsilon_is_met_and_used() -> None:
    met(40.0, 0.6, {}, {"count": 5, "batch_size": 5, "epochs": 4})
    met(3.0, 0.8, {"accountant": PRV}, {"count": 5, "batch_size": 5, "epochs": 4})
    met(2.0, 0.8, {}, {"count": 20, "batch_size": 5, "epochs": 2, "total_steps": 7, "total_epochs": 2})


@pytest.mark.long
def test_a_target_epsilon_is_met_and_used_by_small_samples() -> None:
    met(8.0, 0.8, {}, {"count": 20, "batch_size": 5, "epochs": 3})
    met(0.7, 0.5, {}, {"count": 20, "batch_size": 5, "epochs": 3})
    met(2.0, 0.9, PUBLIC | {"sample_rate": 0.25}, {"count": 20, "batch_size": 5, "epochs": 2})
    met(3.0, 0.8, {"accountant": PRV}, {"count": 20, "batch_size": 5, "epochs": 3})


@pytest.mark.long
def test_a_budget_of_rounds_is_met_when_rounds_end_within_an_epoch() -> None:
    defense, state = DPSGD(target_epsilon=2.0, noise_decay=0.8), {}
    for number in range(5):
        training = set_up(count=20, batch_size=5, epochs=1, total_epochs=4, total_steps=15, state=state)
        protected = protect(defense, training, number)
        for _, _step in zip(run(protected), range(2), strict=False):  # the third step is made before zip ends
            pass
        state = json.loads(json.dumps(protected.state))
    assert [count for *_, count in state["accountant"]["steps"]] == [4, 4, 4, 3]
    assert 0.99 * 2.0 <= epsilon_spent(state, DELTA, RDP) <= 2.0


def test_levels_of_noise_are_searched_up_to_a_number_and_one_is_the_search_without() -> None:
    one_level = noise_for_budget(3.0, DELTA, 1.0, 12, RDP, REPLACE_ONE, ((1.0, 12),))
    assert one_level == noise_for_budget(3.0, DELTA, 1.0, 12)
    training = set_up(count=5, batch_size=5, epochs=MOST_LEVELS + 1)
    with pytest.raises(DefenseError, match="noise that changes 64 times takes too long to account; allowed: up to 63"):
        protect(DPSGD(target_epsilon=8.0, noise_decay=0.99), training)
    assert len(list(run(protect(DPSGD(noise_multiplier=1.0, noise_decay=0.99), training)))) == MOST_LEVELS + 1
    with pytest.raises(DefenseError, match="no noise keeps"):
        noise_for_budget(1.0, DELTA, 1.0, 60, RDP, REPLACE_ONE, tuple((0.01**at, 1) for at in range(60)))


# ---- places


def test_rounds_go_on_in_the_schedule() -> None:
    defense, state = DPSGD(noise_multiplier=4.0, noise_decay=0.5), {}
    for number in range(3):
        protected = protect(defense, set_up(epochs=1, total_epochs=3, state=state), number)
        list(run(protected))
        state = json.loads(json.dumps(protected.state))
    assert state == steps_of(defense, epochs=3)
    # A server may hand a node more spent steps than there were: they must not lower its noise.
    spent = {"accountant": {"steps": [[1.0, 0.25, 10**9]]}}
    protected = protect(defense, set_up(state=spent, epochs=1, total_epochs=3))
    assert protected.optimizer.noise_multiplier == 4.0  # type: ignore[attr-defined]


def test_steps_beyond_the_training_have_the_last_noise() -> None:
    schedule = DecaySchedule(0.5, 1.0, epoch_steps=4, total_steps=10)
    assert [schedule.epoch(done) for done in (0, 3, 4, 8, 9, 10, 10**9)] == [0, 0, 1, 2, 2, 2, 2]
    assert schedule.levels() == ((1.0, 4), (0.5, 4), (0.25, 2))
    whole = DecaySchedule(0.5, 1.0, epoch_steps=4, total_steps=8)
    assert ([whole.epoch(done) for done in (7, 8)], whole.levels()) == ([1, 1], ((1.0, 4), (0.5, 4)))


def test_a_probe_has_the_noise_and_norm_of_the_next_step_and_moves_nothing() -> None:
    defense = DPSGD(noise_multiplier=4.0, noise_decay=0.5, clip_decay=0.5)
    state = {SCHEDULE: [9, 2]}
    protected = protect(defense, replace(set_up(count=4, batch_size=4), probe=True, state=state))
    optimizer: Any = protected.optimizer
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (1.0, 0.25)
    list(run(protected))
    assert protected.state == {SCHEDULE: [9, 2], "accountant": {"steps": [[0.5, 1.0, 1]]}}


def test_canaries_bound_falling_noise_below_its_claim() -> None:
    found = audit_dp_sgd(DPSGD(noise_multiplier=4.0, noise_decay=0.5), runs=2, rounds=2, seed=0)
    assert 0 < found.shown.epsilon <= found.claimed
    assert not found.refuted
