"""Audits of correct DP-SGD: bounds below the claim and above 0, and scores that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attacks.dp_audit.gradient_canaries import ALL, NUMBER, audit_dp_sgd
from attacks.observations import AttackError
from defenses.base import Training
from defenses.training.dp_sgd import DPSGD

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
PUBLIC: dict[str, Any] = {"neighbours": "add-or-remove", "sample_rate": 0.5}


@pytest.mark.parametrize(("claim", "least", "least_gaussian"), [(1.0, 0.1, 0.25), (2.0, 0.4, 1.0), (8.0, 1.8, 5.0)])
def test_bounds_of_correct_dp_sgd_lie_between_0_and_the_claim(
    claim: float, least: float, least_gaussian: float
) -> None:
    # benchmarks/results/dp_audit.md: of 40 seeds each, no bound is above the claim or below these floors.
    found = audit_dp_sgd(DPSGD(target_epsilon=claim), runs=16)
    assert found.claimed == pytest.approx(claim, rel=2e-3)
    assert least < found.shown.epsilon < found.shown_gaussian.epsilon < claim
    assert least_gaussian < found.shown_gaussian.epsilon
    assert not found.refuted
    assert found.refuted_by == []
    assert "not refuted" in str(found)
    assert (found.shown.confidence, found.shown.delta) == (0.975, 1e-5)
    assert found.shown.assumption == ""
    assert "Gaussian" in found.shown_gaussian.assumption


def test_every_tensor_has_its_bounds_and_hidden_numbers_have_theirs() -> None:
    parts = {ALL, "0.weight", "0.bias", "2.weight", "2.bias"}
    assert set(audit_dp_sgd(DPSGD(), runs=1, rounds=1).by_part) == parts
    found = audit_dp_sgd(DPSGD(target_epsilon=2.0, **PUBLIC), runs=4, rounds=2, counted=40)
    assert set(found.by_part) == parts | {NUMBER}
    assert 0 < found.shown.epsilon < found.shown_gaussian.epsilon < found.claimed
    assert found.by_part[NUMBER][0].canaries == 40


def test_without_noise_nearly_every_coin_is_known() -> None:
    found = audit_dp_sgd(DPSGD(noise_multiplier=0.0), runs=4, rounds=2)
    assert found.claimed == math.inf
    assert not found.refuted
    shown = found.by_part["0.weight"][0]
    assert shown.correct / shown.guesses > 0.95  # ordinary examples have gradients, too
    assert found.shown.epsilon > 3


def test_noise_that_hides_everything_shows_next_to_nothing() -> None:
    found = audit_dp_sgd(DPSGD(noise_multiplier=1000.0), runs=4, rounds=1)
    assert found.shown.epsilon < 0.1
    assert found.shown_gaussian.epsilon < 0.1


def test_few_canaries_say_that_they_have_no_power() -> None:
    found = audit_dp_sgd(DPSGD(target_epsilon=2.0, **PUBLIC), runs=1, rounds=1, counted=8)
    assert found.by_part[NUMBER][0].powerless
    assert not found.shown.powerless


def test_a_seed_repeats_an_audit_and_another_changes_it() -> None:
    first, again, other = (audit_dp_sgd(DPSGD(), runs=1, rounds=1, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.shown != other.shown


def test_sampled_batches_are_audited_over_all_their_steps() -> None:
    found = audit_dp_sgd(DPSGD(target_epsilon=8.0), runs=8, rounds=2, steps=3)
    assert found.claimed == pytest.approx(8.0, rel=2e-3)
    assert 0.5 < found.shown.epsilon < found.claimed
    assert not found.refuted


@dataclass(frozen=True, repr=False)
class Unprotected(DPSGD):
    """Ordinary training under the name of DP-SGD."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        return training


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="'runs': 0"):
        audit_dp_sgd(DPSGD(), runs=0)
    with pytest.raises(ValueError, match="norm is 0"):
        audit_dp_sgd(DPSGD(), norm=0)
    with pytest.raises(AttackError, match="no gradients per example"):
        audit_dp_sgd(Unprotected(), runs=1)
