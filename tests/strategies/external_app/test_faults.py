"""What goes wrong in an audit of an app: each failure leaves a row, no fault ends the run, and no server runs code on a node."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import TensorDataset

from simulations.audited import audited
from simulations.external_app.study import AppResults
from simulations.runtime.local_grid import FIRST_NODE
from strategies.external_app.settings import AuditSettings
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net, an_app, digits


def run(out: Path, grid: AppGrid, **told: Any) -> list[dict[str, Any]]:
    settings = {
        "workers": 0,
        "settings": {"batch-size": 2, "local-epochs": 1},
        "probe_attacks": "LabelInference()",
        "probe_targets": 4,
        **told,
    }
    watched = audited(FedAvg(fraction_evaluate=0.0), out, Net, **settings)
    start = ArrayRecord(Net().state_dict())
    result = watched.start(grid, start, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    assert list(result.arrays) == list(start)
    return list(read_lines(out / "rows.jsonl"))


def inferred(rows: list[dict[str, Any]], observation: str) -> set[int]:
    """Of how many images the classes were inferred, from what was observed."""
    accuracies = [row for row in rows if row["metric"] == "label-accuracy"]
    return {row["n"] for row in accuracies if row["card"]["observation"].endswith(observation)}


@pytest.mark.parametrize("silent", [False, True])
def test_a_probe_that_fails_leaves_a_row(tmp_path: Path, silent: bool) -> None:
    grid = AppGrid(an_app())
    answer = grid.answer

    def flaky(message: Message) -> Message | None:
        asked = message.metadata.message_type == "train.probe" and message.metadata.dst_node_id == FIRST_NODE + 1
        if asked and message.content["config"]["target"] == 2:  # type: ignore[index]
            return None if silent else Message(Error(code=2, reason="flaky"), reply_to=message)
        return answer(message)

    grid.answer = flaky  # type: ignore[method-assign, assignment]
    rows = run(tmp_path / "out", grid)
    assert inferred(rows, "probe") == {4}
    (failed,) = [row for row in rows if row["metric"] == "client"]
    assert (failed["client"], failed["status"]) == (1, "failed")
    assert failed["message"].startswith("train.probe 2: " + ("no reply" if silent else "flaky"))


def test_a_full_disk_costs_the_audit_and_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AppResults, "flush", full)
    with caplog.at_level("WARNING", logger="flwr"):
        run(tmp_path / "out", AppGrid(an_app()))
    assert "no row says so: OSError" in caplog.text


def test_numbers_that_nobody_told_are_not_made_up(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", AppGrid(an_app()), settings={"batch-size": 2})
    assert inferred(rows, "update") == set()
    assert inferred(rows, "probe") == {8}
    (why,) = [row["message"] for row in rows if row["metric"] == "client"]
    assert "local-epochs and batch-size are unknown" in why
    config = json.loads((tmp_path / "out" / "config.json").read_text())["config"]
    assert config["local-epochs"] == "not reported"


def test_a_loss_that_attacks_do_not_know_is_on_the_card(tmp_path: Path) -> None:
    def focal(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        chosen = logits.log_softmax(1).gather(1, classes[:, None])
        return -((1 - chosen.exp()) ** 2 * chosen).mean()

    rows = run(tmp_path / "out", AppGrid(an_app(loss=focal)))
    assert {row["card"]["loss"] for row in rows if row["attack"]} == {"focal; attacks assume cross entropy"}
    rows = run(tmp_path / "plain", AppGrid(an_app(loss=nn.CrossEntropyLoss())))
    assert {row["card"]["loss"] for row in rows if row["attack"]} == {"cross entropy"}


def test_a_node_with_other_images_is_left_out_and_named(tmp_path: Path) -> None:
    def uneven(context: Context) -> TensorDataset:
        images, labels = digits(context).tensors
        return TensorDataset(images.expand(-1, 1 + 2 * int(context.node_config["partition-id"]), -1, -1), labels)

    class Wide(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images[:, :1])

    rows = run(tmp_path / "out", AppGrid(an_app(data=uneven, model=Wide)))
    assert inferred(rows, "probe") == {4}
    (odd,) = [row for row in rows if row["metric"] == "client"]
    assert odd["client"] == 1
    assert "differs from the first and is left out: card" in odd["message"]


def test_no_server_runs_code_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim.py").write_text("def ran():\n    raise SystemExit('code of the server ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    grid = AppGrid(an_app(), randomness="secret", audits=True, **{"secret-dir": str(tmp_path)})
    plan = replace(AuditSettings(Net).plan(), model="victim:ran")
    asked = {"observation": "update", "kind": "membership", "guesses": 0, "share-images": False, "timeout": 5.0}
    config = ConfigRecord({"task": plan.at(1).to_json(), **asked})
    content = RecordDict({"config": config, "guesses": ArrayRecord({})})
    list(grid.send_and_receive([Message(content, dst_node_id=FIRST_NODE, message_type="query.audit")]))
    assert "victim" not in sys.modules
