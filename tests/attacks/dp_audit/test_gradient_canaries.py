"""Audits of correct DP-SGD: bounds below the claim and above 0, and scores that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attacks.dp_audit.gradient_canaries import ALL, NUMBER, _Run, audit_dp_sgd
from attacks.observations import AttackError
from defenses.base import Training
from defenses.training.dp_sgd import DPSGD

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
PUBLIC: dict[str, Any] = {"neighbours": "add-or-remove", "sample_rate": 0.5}
PARTS = {ALL, "0.weight", "0.bias", "2.weight", "2.bias"}


def test_without_noise_a_score_is_the_clipped_gradient_times_the_steps_that_have_it() -> None:
    """Medians: ordinary examples have gradients, too, which are small at most weights."""
    for defense, rounds, steps, norm, expected in (
        (DPSGD(noise_multiplier=0.0), 3, 1, 10.0, 3.0),
        (DPSGD(noise_multiplier=0.0), 2, 1, 0.5, 1.0),
        (DPSGD(noise_multiplier=0.0), 2, 3, 10.0, 2.0),  # in a third of three times two steps
        # Half the steps have a canary; 0 is in the middle between both coins.
        (DPSGD(noise_multiplier=0.0, **PUBLIC), 3, 1, 10.0, 1.5),
        (DPSGD(noise_multiplier=0.0, **PUBLIC), 3, 1, 0.5, 0.75),
    ):
        drawn = _Run(defense, rounds, steps, norm, ("by hand",)).canaries()
        scores, coins = (torch.cat(part) for part in zip(*drawn.values(), strict=True))
        assert float(scores[coins].median()) == pytest.approx(expected, abs=0.02)
        assert float(scores[~coins].median()) == pytest.approx(-expected, abs=0.02)


@pytest.mark.numeric
def test_bounds_of_correct_dp_sgd_lie_between_0_and_the_claim() -> None:
    """benchmarks/results/dp_audit.md: of 40 seeds each, no bound is above the claim or below these floors."""
    for claim, least, least_gaussian in ((1.0, 0.1, 0.25), (8.0, 1.8, 5.0)):
        found = audit_dp_sgd(DPSGD(target_epsilon=claim), runs=16)
        assert found.claimed == pytest.approx(claim, rel=2e-3)
        assert least < found.shown.epsilon < found.shown_gaussian.epsilon < claim
        assert least_gaussian < found.shown_gaussian.epsilon
        assert not found.refuted
        assert (found.shown.confidence, found.shown.delta, found.shown.assumption) == (0.975, 1e-5, "")
        assert "Gaussian" in found.shown_gaussian.assumption
        assert set(found.by_part) == PARTS


@pytest.mark.long
@pytest.mark.numeric
def test_sampled_batches_are_audited_over_all_their_steps_and_hidden_numbers_of_examples_too() -> None:
    found = audit_dp_sgd(DPSGD(target_epsilon=8.0), runs=8, rounds=2, steps=3)
    assert found.claimed == pytest.approx(8.0, rel=2e-3)
    assert 0.5 < found.shown.epsilon < found.claimed
    assert not found.refuted
    found = audit_dp_sgd(DPSGD(target_epsilon=2.0, **PUBLIC), runs=4, rounds=2, counted=8)
    assert set(found.by_part) == PARTS | {NUMBER}
    assert 0 < found.shown.epsilon < found.shown_gaussian.epsilon < found.claimed
    assert found.by_part[NUMBER][0].canaries == 8
    assert found.by_part[NUMBER][0].powerless
    assert not found.shown.powerless


@pytest.mark.numeric
def test_without_noise_nearly_every_coin_is_known_and_noise_that_hides_everything_shows_next_to_nothing() -> None:
    found = audit_dp_sgd(DPSGD(noise_multiplier=0.0), runs=4, rounds=2)
    assert found.claimed == math.inf
    assert not found.refuted
    shown = found.by_part["0.weight"][0]
    assert shown.correct / shown.guesses > 0.95  # ordinary examples have gradients, too
    assert found.shown.epsilon > 3
    hidden = audit_dp_sgd(DPSGD(noise_multiplier=1000.0), runs=4, rounds=1)
    assert hidden.shown.epsilon < 0.1
    assert hidden.shown_gaussian.epsilon < 0.15


@dataclass(frozen=True, repr=False)
class Unprotected(DPSGD):
    """Ordinary training under the name of DP-SGD."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        return training


def test_a_seed_repeats_an_audit_and_bad_values_are_refused() -> None:
    first, again, other = (audit_dp_sgd(DPSGD(), runs=1, rounds=1, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.shown != other.shown
    for defense, changes, error, message in (
        (DPSGD(), {"runs": 0}, ValueError, "'runs': 0"),
        (DPSGD(), {"norm": 0}, ValueError, "norm is 0"),
        (Unprotected(), {"runs": 1}, AttackError, "no gradients per example"),
    ):
        with pytest.raises(error, match=message):
            audit_dp_sgd(defense, **changes)
