"""Models of one's own under DP-SGD: layers without gradients per example are refused, and work once Opacus has replaced them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.federated.client import LocalClient
from clients.task.local_data import LocalData
from defenses.training.dp_sgd import DPSGD
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
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the folder of the file is added
    file = tmp_path / "nets.py"
    file.write_text(CODE)
    return file


def test_a_layer_that_opacus_replaces_is_refused_with_the_way_out_before_a_run(code: Path) -> None:
    settings: dict[str, Any] = {
        "scenario": "federated", "dataset": "mnist-5k", "train_limit": 200, "test_limit": 50, "num_clients": 2,
        "defenses": "DPSGD()",
    }  # fmt: skip
    refused, fixed = (FederatedExperiment(**settings, model=f"{code}:{name}") for name in ("Rows", "fixed"))
    data = DataCard.of(fixed.plan().load_data())
    way_out = r"MultiheadAttention.*return opacus\.validators\.ModuleValidator\.fix\(model\)"
    with pytest.raises(ConfigError, match=f"defenses: .*{way_out}"):
        Federated().check_data(refused, refused.pipelines[-1], data)
    Federated().check_data(fixed, fixed.pipelines[-1], data)
    DPSGD().check_model(TASK.but(model=f"{code}:with_batch_norm", pipeline="DPSGD()").plan.build_model())


def test_clients_train_what_the_server_has(code: Path) -> None:
    for name, tensor, more in (
        ("fixed", "mix.qlinear.weight", ", clipping='ghost'"),
        ("fixed", "mix.qlinear.weight", ", target_quantile=0.5"),
        ("with_batch_norm", "1.0.weight", ""),
    ):
        task = TASK.but(model=f"{code}:{name}", pipeline=f"DPSGD(noise_multiplier=1.0{more})")
        weights = shared_tensors(task.plan.build_model())
        client = LocalClient(LocalData(task, 1, range(20, 40), range(4)))
        result = client.train(weights, {})
        update = result.updates[0]
        assert tensor in update
        assert {one: value.shape for one, value in update.items()} == {one: w.shape for one, w in weights.items()}
        assert all(torch.isfinite(value).all() and value.any() for value in update.values())
        assert 0 < result.metrics["epsilon"] < 1e3
