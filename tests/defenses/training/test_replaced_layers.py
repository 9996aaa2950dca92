"""Models of one's own under DP-SGD: layers without gradients per example are refused, and work once Opacus has replaced them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from defenses.base import DefenseError
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST
from simulations.scenarios.federated import Federated, FederatedExperiment
from simulations.settings.errors import ConfigError
from tests.clients.secrets.test_draws import TASK

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")

CODE = """
from opacus.validators import ModuleValidator
from torch import nn


class Rows(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(28, 2, batch_first=True), nn.Linear(28, num_classes)

    def forward(self, images):
        rows = images[:, 0]
        return self.head(self.mix(rows, rows, rows, need_weights=False)[0].mean(1))


def fixed(num_classes):
    model = Rows(num_classes)
    return ModuleValidator.fix(model)


def with_batch_norm(num_classes):
    return nn.Sequential(nn.Conv2d(1, 4, 5, 4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, num_classes))
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "nets.py"
    file.write_text(CODE)
    return file


def test_a_layer_that_opacus_replaces_is_refused_with_the_way_out(code: Path) -> None:
    with pytest.raises(
        DefenseError, match=r"MultiheadAttention.*return opacus\.validators\.ModuleValidator\.fix\(model\)"
    ):
        DPSGD().check_model(TASK.but(model=f"{code}:Rows", pipeline="DPSGD()").plan.build_model())
    for name in ("fixed", "with_batch_norm"):
        DPSGD().check_model(TASK.but(model=f"{code}:{name}", pipeline="DPSGD()").plan.build_model())


def test_a_run_refuses_it_before_it_starts(code: Path) -> None:
    settings: dict[str, Any] = {
        "scenario": "federated", "dataset": "mnist-5k", "train_limit": 200, "test_limit": 50, "num_clients": 2,
        "defenses": "DPSGD()",
    }  # fmt: skip
    refused, fixed = (FederatedExperiment(**settings, model=f"{code}:{name}") for name in ("Rows", "fixed"))
    with pytest.raises(ConfigError, match=r"defenses: .*ModuleValidator\.fix\(model\)"):
        Federated().check_data(refused, refused.pipelines[-1], DataCard.of(refused.plan().load_data()))
    Federated().check_data(fixed, fixed.pipelines[-1], DataCard.of(fixed.plan().load_data()))


def test_a_layer_that_mixes_examples_is_refused_by_its_name() -> None:
    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.SyncBatchNorm(3)

    with pytest.raises(DefenseError, match=r"BatchNorm \(inner\) mixes examples.*use GroupNorm"):
        DPSGD().check_model(Mixing())


@pytest.mark.parametrize("more", ["", f", clipping={GHOST!r}", ", target_quantile=0.5"])
@pytest.mark.parametrize(("name", "tensor"), [("fixed", "mix.qlinear.weight"), ("with_batch_norm", "1.0.weight")])
def test_clients_train_what_the_server_has(code: Path, name: str, tensor: str, more: str) -> None:
    task = TASK.but(model=f"{code}:{name}", pipeline=f"DPSGD(noise_multiplier=1.0{more})")
    assert isinstance(task.plan, FederatedPlan)
    weights = shared_tensors(task.plan.build_model())
    for partition in range(2):
        client = LocalClient(LocalData(task, partition, range(partition * 20, partition * 20 + 20), range(4)))
        result = client.train(weights, {})
        update = result.updates[0]
        assert tensor in update
        assert {one: value.shape for one, value in update.items()} == {
            one: value.shape for one, value in weights.items()
        }
        assert all(torch.isfinite(value).all() and value.any() for value in update.values())
        assert 0 < result.metrics["epsilon"] < 1e3
