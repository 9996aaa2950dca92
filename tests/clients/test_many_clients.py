"""What a process of a simulation does once, however many clients it answers for."""

from __future__ import annotations

import pytest
import torch

from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from clients.task.scenarios import read_task
from clients.task.task import TaskError, load_weights
from clients.training.evaluation import device, evaluate
from tests.clients.federated.test_client import TASK, weights


def client(number: int, **changes: object) -> LocalClient:
    test = range(10 * number, 10 * number + 10)
    return LocalClient(LocalData(TASK.but(**changes), number, range(4), test))


def test_a_thousand_evaluations_need_not_build_a_thousand_models(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []
    build = FederatedPlan.build_model

    def counted(plan: FederatedPlan) -> torch.nn.Module:
        built.append(plan)
        return build(plan)

    monkeypatch.setattr(FederatedPlan, "build_model", counted)
    sent = weights(TASK.but(seed=77))
    built.clear()
    for number in range(5):
        client(number, seed=77).evaluate(sent)
    assert len(built) <= 1


def test_what_was_evaluated_before_changes_no_score() -> None:
    """Also where other weights came in between, some of them unusable, and for a model with statistics of its own."""
    for changes in ({}, {"norm": "batch", "model": "cnn"}):
        task = TASK.but(**changes)
        one, other = weights(task), {name: tensor + 0.1 for name, tensor in weights(task).items()}
        fresh = [
            evaluate(LocalData(task, 0, range(4), range(10)), load_weights(task.plan.build_model(), sent).to(device()))
            for sent in (one, other)
        ]
        mine = client(0, **changes)
        assert mine.evaluate(one) == fresh[0]
        assert mine.evaluate(other) == fresh[1]
        with pytest.raises(TaskError):
            mine.evaluate({**other, next(reversed(other)): torch.zeros(1)})
        assert mine.evaluate(one) == fresh[0]
        assert fresh[0] != fresh[1]


def test_orders_that_all_clients_get_are_read_once() -> None:
    text = TASK.to_json()
    assert read_task(text) is read_task(text)
    assert read_task(text.replace('"round": 1', '"round": 2')) != read_task(text)
