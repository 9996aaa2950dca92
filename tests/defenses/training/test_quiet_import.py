"""Opacus in a client: the layers that it replaces in models of one's own, and what its import leaves of others' loggers."""

import subprocess
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
from defenses.training.quiet_import import opacus_module
from simulations.scenarios.federated import FederatedExperiment
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

LOGGING = """
import logging, sys
mine = logging.StreamHandler(sys.stdout)
mine.setFormatter(logging.Formatter("root: %(message)s"))
if {own}: logging.getLogger().addHandler(mine)
logging.getLogger("flwr").addHandler(logging.StreamHandler(sys.stderr))
from defenses.training.quiet_import import opacus_module
opacus_module("accountants.analysis.rdp")
assert "opacus" in sys.modules
logging.getLogger("flwr").error("a line of Flower")
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
        refused.check_data(refused.pipelines[-1], data)
    fixed.check_data(fixed.pipelines[-1], data)
    DPSGD().check_model(TASK.but(model=f"{code}:with_batch_norm", pipeline="DPSGD()").plan.build_model(), (1, 28, 28))


def test_clients_train_what_the_server_has(code: Path) -> None:
    for name, tensor, more in (
        ("fixed", "mix.qlinear.weight", ", clipping='ghost'"),
        ("fixed", "mix.qlinear.weight", ""),
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


@pytest.mark.long
def test_opacus_leaves_one_line_of_flower_and_every_root_handler_that_was_there() -> None:
    """In a process of its own, as Opacus sets the handler once, when it is imported."""
    for own, expected in ((False, ""), (True, "root: a line of Flower\n")):
        done = subprocess.run(
            [sys.executable, "-c", LOGGING.format(own=own)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert (done.stderr.splitlines().count("a line of Flower"), done.stdout) == (1, expected)
        assert not [line for line in done.stderr.splitlines() if ":ERROR:" in line]


def test_a_missing_part_of_opacus_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"opacus\.no_such_part"):
        opacus_module("no_such_part")
