"""Rounds of different length beside each other, from runs whose numbers are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from attacks.metrics.names import Role
from simulations.report.analysis.run import read_run
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # scripts import each other as siblings
import round_tables


def run(path: Path, epochs: int, batch: int, steps: int, scores: dict[str, float]) -> Path:
    """A finished run of one round: mean PSNR of each attack, and the mean image at 12 dB."""
    path.mkdir()
    card = ThreatCard(observation="training update", images=16, local_steps=steps)
    rows = []
    for attack, value in {**scores, "mean": 12.0}.items():
        ends = {"ci_low": value - 1, "ci_high": value + 1}
        role = Role.NULL_BASELINE if attack == "mean" else Role.ATTACK
        known = {"reference": "original", "attack": attack, "role": role, "n": 64, "round": 1, "card": card}
        rows.append(Row(metric="psnr", value=value, **known, **ends))  # type: ignore[arg-type]
        rows.append(Row(metric="ssim", value=0.5, **known))  # type: ignore[arg-type]
    (path / "rows.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    told = {"config": {"local-epochs": epochs, "batch-size": batch}, "pipelines": [""]}
    (path / "config.json").write_text(json.dumps(told))
    return path


def test_a_column_is_a_run_and_a_line_an_attack(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 1, 1, 16, {"Unrolled()": 13.0, "Surrogate()": 14.0})
    second = run(tmp_path / "b", 5, 16, 5, {"Surrogate()": 9.5})
    header, body = round_tables.lines([read_run(first), read_run(second)])
    assert header == ["defence", "attack", "E1B1 (16 steps)", "E5B16 (5 steps)"]
    assert body == [
        ["none", "`Unrolled()`", "13.0 (12.0 to 14.0), SSIM 0.50, n = 64", "-"],
        ["none", "`Surrogate()`", "14.0 (13.0 to 15.0), SSIM 0.50, n = 64", "9.5 (8.5 to 10.5), SSIM 0.50, n = 64"],
        ["", "mean image", "12.0", "12.0"],
    ]
