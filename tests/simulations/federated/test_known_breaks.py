"""Defences with a published break, in a federation in this process: what they add to the model, and their breaks on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations import server_app
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment


@pytest.mark.long
def test_rounds_and_probes_run_under_them_and_so_do_their_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "write_report", lambda path: path)
    quick = [f"{name}(iterations=3)" for name in ("InvertingGradients", "OmittedLayerInversion", "BottleneckInversion")]
    settings = experiment(
        tmp_path / "run", defenses="Soteria(fraction=0.8); Precode(size=8)", rounds=1, train_limit=60, num_clients=2,
        probe_attacks="; ".join(quick), update_attacks="", share_images=False,
    )  # fmt: skip
    run_experiment(LocalGrid(settings.num_clients), settings)
    rows = read_lines(Path(settings.output_dir) / "rows.jsonl")
    # Of so few auxiliary digits no oracle can be trained.
    assert {row["metric"] for row in rows if row["status"] in ("failed", "refused")} == {"oracle-accuracy"}
    defenses = ("", "Soteria(fraction=0.8)", "Precode(size=8)")
    tried = {(row["defense"], row["attack"]) for row in rows if row["metric"] == "psnr" and row["attack"] in quick}
    assert tried == {(defense, attack) for defense in defenses for attack in quick}
    masked = {
        row["defense"]: row["value"] for row in rows if row["attack"] == quick[0] and row["metric"] == "masked_share"
    }
    # Columns of the last layer, the only one of fully connected ones in this network.
    assert masked["Soteria(fraction=0.8)"] > 10 * masked[""]
