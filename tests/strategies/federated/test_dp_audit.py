"""What the audit of a run's own DP-SGD adds up: a canary that exists adds on average what theory says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attacks.dp_audit.placed_canaries import NORM
from clients.federated.plan import FederatedPlan
from defenses.training.dp_sgd import DPSGD
from simulations.experiment.experiment import Experiment
from strategies.federated.dp_audit import CanaryAudit


def audit_of(defense: DPSGD, batch_size: int) -> CanaryAudit:
    experiment = Experiment.of(dataset="mnist-5k", model="lenet", norm="group", defenses=repr(defense))
    plan = FederatedPlan.narrow(experiment.plan(experiment.pipelines[-1]))
    nothing: Any = SimpleNamespace()
    return CanaryAudit(replace(plan, dp_canaries=20, batch_size=batch_size), {0: 100}, nothing, nothing)


def test_scores_of_sampled_canaries_are_centred_at_half_of_what_an_existing_one_adds() -> None:
    """A step draws it at the sample rate q, and adds its gradient of norm C, divided by the batch: q C / B a step."""
    assert NORM >= 1, "canaries are as long as the clipping norm allows"
    for rate, norm, batch, steps in ((0.25, 1.0, 8, 3), (0.5, 2.0, 16, 1)):
        audit = audit_of(
            DPSGD(target_epsilon=2.0, max_grad_norm=norm, neighbours="add-or-remove", sample_rate=rate), batch
        )
        assert audit.active
        assert audit._middle(steps) == pytest.approx(steps * rate * norm / batch / 2)
