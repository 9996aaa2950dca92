"""An audit whose first round fails begins in a later one, and its rows and page are those of the app's mods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from simulations.audited import audited
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net, an_app

KNOWN: dict[str, Any] = {
    "workers": 0, "probe_attacks": "LabelInference()", "update_attacks": "", "local_epochs": 1, "batch_size": 2,
}  # fmt: skip


class LateRate(FedAvg):
    """Names no learning rate in the first round."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        config["rate" if server_round == 1 else "lr"] = 0.1
        return super().configure_train(server_round, arrays, config, grid)


def test_a_failed_round_before_the_mods_are_known_costs_that_round_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    app = an_app(mods=[LocalDpMod(clipping_norm=10.0, sensitivity=20.0, epsilon=1e9, delta=1e-3)])
    strategy = audited(LateRate(fraction_evaluate=0.0), out, Net, go_on=True, rounds=[1, 2], **KNOWN)
    with caplog.at_level("WARNING", logger="flwr"):
        strategy.start(AppGrid(app), ArrayRecord(Net().state_dict()), num_rounds=2)
    assert "KeyError" not in caplog.text
    rows = list(read_lines(out / "rows.jsonl"))
    assert [row["value"] for row in rows if row["metric"] == "label-accuracy" and row["round"] == 2]
    (failed,) = [row for row in rows if row["metric"] == "audit"]
    assert (failed["round"], failed["status"]) == (1, "failed")
    assert failed["message"].startswith("learning rate: unknown")
    (defense,) = {row["defense"] for row in rows}
    assert defense.startswith("LocalDpMod("), "one app, one line of the first table"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "learning rate: unknown" in page
    assert "LocalDpMod(" in page
