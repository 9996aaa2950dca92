"""Planted bugs of DP-SGD: the audit refutes each at a budget of seconds, and names the part."""

from __future__ import annotations

from typing import Any

import pytest
from broken import BareLayer, HalfNoise, PrivateDivisor, SkippedClip

from attacks.dp_audit.gradient_canaries import ALL, NUMBER, audit_dp_sgd
from defenses.training.dp_sgd import DPSGD

# benchmarks/results/dp_audit.md has the bounds of 20 seeds and more at the budgets of these tests.


@pytest.mark.parametrize(
    ("broken", "parts"),
    [
        (HalfNoise, {ALL, "0.weight", "2.weight"}),
        (BareLayer, {"2.bias"}),
        (SkippedClip, {ALL, "0.weight"}),
    ],
)
def test_a_bug_of_noise_or_clipping_is_refuted(broken: type[DPSGD], parts: set[str]) -> None:
    found = audit_dp_sgd(broken(target_epsilon=2.0), runs=16)
    assert found.claimed == pytest.approx(2.0, rel=2e-3)  # the account of the broken one is that of a correct one
    assert found.shown_gaussian.epsilon > 1.3 * found.claimed
    assert found.refuted
    assert parts <= set(found.refuted_by)
    assert "REFUTED by" in str(found)
    if broken is not HalfNoise:  # its factor of 2 is shown only under the assumption of Gaussian noise
        assert set(found.refuted_by) == parts
    if broken is SkippedClip:
        assert found.shown.epsilon > found.claimed


def test_a_divisor_that_follows_from_n_is_refuted_where_n_is_hidden() -> None:
    settings: dict[str, Any] = {"target_epsilon": 1.0, "neighbours": "add-or-remove", "sample_rate": 1.0}
    budget: dict[str, Any] = {"runs": 1, "rounds": 1, "counted": 200}
    found = audit_dp_sgd(PrivateDivisor(**settings), **budget)
    assert found.refuted_by == [NUMBER]
    assert found.shown.epsilon > 1.3 * found.claimed  # without an assumption
    assert not audit_dp_sgd(DPSGD(**settings), **budget).refuted
