"""What goes wrong in an audit of an app: each failure leaves a row, no fault ends the run, and no server runs code on a node."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from torch.utils.data import TensorDataset

from simulations.runtime.local_grid import FIRST_NODE
from strategies.external_app.record import AuditError
from strategies.external_app.settings import AuditSettings
from tests.strategies.external_app.app import AppGrid, Net, an_app, app_that, digits
from tests.strategies.external_app.audits import run


def inferred(rows: list[dict[str, Any]], observation: str) -> set[int]:
    """Of how many images the classes were inferred, from what was observed."""
    accuracies = [row for row in rows if row["metric"] == "label-accuracy"]
    return {row["n"] for row in accuracies if row["card"]["observation"].endswith(observation)}


def test_a_probe_that_fails_leaves_a_row(tmp_path: Path) -> None:
    for silent in (False, True):

        class Flaky(AppGrid):
            def answer(self, message: Message, silent: bool = silent) -> Message:
                told, config = message.metadata, message.content.config_records.get("config", {})
                if (told.message_type, told.dst_node_id, config.get("target")) != ("train.probe", FIRST_NODE + 1, 2):
                    return super().answer(message)
                return None if silent else Message(Error(code=2, reason="flaky"), reply_to=message)  # type: ignore

        rows = run(tmp_path / str(silent), Flaky(an_app()), probe_targets=4, update_attacks="")
        assert inferred(rows, "probe") == {4}
        (failed,) = [row for row in rows if row["metric"] == "client"]
        assert (failed["client"], failed["status"]) == (1, "failed")
        assert failed["message"].startswith("train.probe 2: " + ("no reply" if silent else "flaky"))


def test_a_training_that_nobody_saw_is_not_made_up(tmp_path: Path) -> None:
    """Weights that no optimizer made: nothing of them is attacked, and the reason is named."""
    app = app_that(lambda sent, *_: {name: value * 0.9 for name, value in sent.items()})
    with pytest.raises(
        AuditError, match=r"attacked nothing:\n- query\.training: .*no optimizer of torch\.optim made a step"
    ):
        run(tmp_path / "out", AppGrid(app))


def test_a_node_with_other_images_is_left_out_and_named(tmp_path: Path) -> None:
    def uneven(context: Context) -> TensorDataset:
        images, labels = digits(context).tensors
        return TensorDataset(images.expand(-1, 1 + 2 * int(context.node_config["partition-id"]), -1, -1), labels)

    class Wide(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images[:, :1])

    rows = run(tmp_path / "out", AppGrid(an_app(data=uneven, model=Wide)), probe_targets=4)
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
