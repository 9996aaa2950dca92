"""Tables of studies over several seeds, from runs and results whose numbers are known."""

import json
from pathlib import Path

import audit_tables
import numpy as np
import pytest
from scipy import stats

from attacks.metrics.names import Role
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

PLAIN, MIXED = (0.80, 0.84, 0.79), (0.78, 0.80, 0.79)
MIXER = "VisualMixer()"


def run(path: Path, seed: int, rate: float = 0.1, bound: str = "") -> Path:
    """A finished run of two defences, eight rounds, one attack beside the mean image."""
    path.mkdir()
    rows = []
    for defense, final in (("", PLAIN[seed]), (MIXER, MIXED[seed])):
        about = {"experiment": "e", "dataset": "photos", "model": "cnn", "scenario": "federated", "seed": seed}
        shared = {**about, "defense": defense}
        rows += [
            Row(metric="test-accuracy", reference="original", value=final - 0.01 * (8 - at), n=100, round=at, **shared)
            for at in range(1, 9)
        ]
        rows += [
            Row(
                metric="psnr", reference=reference, value=value + seed + (defense != ""), n=8, attack=attack, round=1,
                role=Role.NULL_BASELINE if attack == "mean" else Role.TRAINING,
                card=ThreatCard(observation="one-step probe", upper_bound="" if attack == "mean" else bound), **shared,
            )
            for attack, reference, value in (
                ("DLG()", "original", 20.0), ("DLG()", "transformed", 22.0),
                ("mean", "original", 10.0), ("mean", "transformed", 12.0),
            )
        ]  # fmt: skip
    (path / "rows.jsonl").write_text("".join(row.line for row in rows))
    config = {"config": {"seed": seed, "learning-rate": rate}, "pipelines": ["", MIXER], "defenses": {}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_differences_between_defences_are_paired_and_their_interval_is_student_s(tmp_path: Path) -> None:
    ((study, lines),) = audit_tables.read([run(tmp_path / str(seed), seed) for seed in range(3)])
    _, mixed = cells(audit_tables.defences(study, lines))
    each = 100 * (np.array(MIXED) - np.array(PLAIN))
    low, high = stats.t.interval(0.95, 2, each.mean(), stats.sem(each))
    assert mixed[9] == f"{each.mean():+.1f} ({low:+.1f} to {high:+.1f})"
    assert mixed[8].startswith(f"{100 * np.mean(MIXED):.1f} (")
    assert mixed[10] == "+2.0 (of 2.0)"  # a point a round, rounds 6 to 8
    # Policies make hard and easy targets: to the transformed image the mean image has another score under each.
    plain, mixed, blind = cells(audit_tables.attacks(study))
    assert [mixed[4].split()[0], mixed[5], mixed[6].split()[0], mixed[7]] == ["22.0", "12.0", "24.0", "14.0"]
    assert [plain[4].split()[0], plain[5], plain[6].split()[0], plain[7]] == ["21.0", "11.0", "23.0", "13.0"]
    assert [blind[1], blind[4].split()[0], blind[5]] == ["mean", "11.0", "-"]


def test_upper_bounds_are_marked_and_runs_of_other_settings_refused(tmp_path: Path) -> None:
    ((study, lines),) = audit_tables.read([run(tmp_path / str(seed), seed, bound="told labels") for seed in range(3)])
    _, mixed = cells(audit_tables.defences(study, lines))
    assert mixed[1:8] == ["-"] * 7
    assert cells(audit_tables.attacks(study))[1][1] == "`DLG()`^"
    with pytest.raises(SystemExit, match="differ in learning-rate"):
        audit_tables.read([run(tmp_path / "a", 0), run(tmp_path / "b", 1, rate=0.2)])
