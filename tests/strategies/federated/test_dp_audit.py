"""What the audit of a run's own DP-SGD adds up: a canary that exists adds on average what theory says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attacks.dp_audit.placed_canaries import NORM
from clients.federated.plan import FederatedPlan
from defenses.training.dp_sgd import DPSGD
from defenses.updates.client_dp import ClientDP
from simulations.experiment.experiment import Experiment
from strategies.federated.dp_audit import CanaryAudit, ClientCanaryAudit


def audit_of(defense: Any, batch_size: int, canaries: int = 20, kind: type[CanaryAudit] = CanaryAudit) -> CanaryAudit:
    experiment = Experiment.of(dataset="mnist-5k", model="lenet", norm="group", defenses=repr(defense))
    plan = FederatedPlan.narrow(experiment.plan(experiment.pipelines[-1]))
    nothing: Any = SimpleNamespace(exchange=SimpleNamespace(dealt={0: (100, 10)}))
    return kind(replace(plan, dp_canaries=canaries, batch_size=batch_size), nothing, nothing)


def test_scores_of_sampled_canaries_are_centred_at_half_of_what_an_existing_one_adds() -> None:
    """A step draws it at the sample rate q, and adds its gradient of norm C, divided by the batch: q C / B a step."""
    assert NORM >= 1, "canaries are as long as the clipping norm allows"
    for rate, norm, batch, steps in ((0.25, 1.0, 8, 3), (0.5, 2.0, 16, 1)):
        defense = DPSGD(target_epsilon=2.0, max_grad_norm=norm, neighbours="add-or-remove", sample_rate=rate)
        audit = audit_of(defense, batch)
        assert audit.active
        assert audit._middle(steps) == pytest.approx(steps * rate * norm / batch / 2)


def test_an_audit_of_a_claim_needs_canaries_and_a_claim_of_its_level() -> None:
    """Canary clients are the first of the run, and there are none where nothing is audited."""
    of_examples, of_clients = DPSGD(target_epsilon=2.0), ClientDP(max_norm=1.0, noise_multiplier=4.0)
    for kind, right, wrong in (
        (CanaryAudit, of_examples, of_clients), (ClientCanaryAudit, of_clients, of_examples),
    ):  # fmt: skip
        cases = [(right, 20), (right, 0), (wrong, 20)]
        assert [audit_of(defense, 8, count, kind).active for defense, count in cases] == [True, False, False]
    audits = [audit_of(of_clients, 8, count, ClientCanaryAudit) for count in (20, 0)]
    assert [len(audit.canary_clients) for audit in audits] == [20, 0]
