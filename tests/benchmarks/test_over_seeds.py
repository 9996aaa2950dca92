"""The tables of a study over several seeds, from runs whose numbers are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attacks.metrics.names import Role
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # scripts import each other as siblings
import audit_tables
import inference_tables
import over_seeds

PLAIN, MIXED = (0.80, 0.84, 0.79), (0.78, 0.80, 0.79)
MIXER = "VisualMixer()"


def run(path: Path, seed: int, rate: float = 0.1, bound: str = "") -> Path:
    """A finished run of two defences, eight rounds, one attack beside the mean image."""
    path.mkdir()
    rows = []
    for defense, final in (("", PLAIN[seed]), (MIXER, MIXED[seed])):
        shared = {
            "experiment": "e",
            "dataset": "photos",
            "model": "cnn",
            "scenario": "federated",
            "seed": seed,
            "defense": defense,
        }
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
    (path / "rows.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    config = {"config": {"seed": seed, "learning-rate": rate}, "pipelines": ["", MIXER], "defenses": {}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_differences_are_paired_and_their_interval_is_student_s(tmp_path: Path) -> None:
    ((study, lines),) = over_seeds.read([run(tmp_path / str(seed), seed) for seed in range(3)])
    plain, mixed = cells(over_seeds.defences(study, lines))
    each = 100 * (np.array(MIXED) - np.array(PLAIN))
    low, high = stats.t.interval(0.95, 2, each.mean(), stats.sem(each))
    assert plain[3] == "-"
    assert mixed[3] == f"{each.mean():+.1f} ({low:+.1f} to {high:+.1f})"
    assert mixed[2].startswith(f"{100 * np.mean(MIXED):.1f} (")
    assert mixed[4] == "+2.0 (of 2.0)"  # a point a round, rounds 6 to 8
    assert mixed[7] == "24"
    assert "22.0" in mixed[6]
    assert over_seeds.about(study, study.cells).startswith("seeds 0, 1, 2;")


def test_each_attack_stands_beside_the_mean_image_s_score_to_the_same(tmp_path: Path) -> None:
    """Policies make hard and easy targets: to the transformed image the mean image has another score under each."""
    ((study, _),) = over_seeds.read([run(tmp_path / str(seed), seed) for seed in range(3)])
    plain, mixed, blind = cells(over_seeds.attacks(study))
    assert [plain[3], mixed[3]] == ["24", "24"]
    assert [mixed[4].split()[0], mixed[5], mixed[6].split()[0], mixed[7]] == ["22.0", "12.0", "24.0", "14.0"]
    assert [plain[4].split()[0], plain[5], plain[6].split()[0], plain[7]] == ["21.0", "11.0", "23.0", "13.0"]
    assert [blind[1], blind[4].split()[0], blind[5]] == ["mean", "11.0", "-"]


def test_where_all_attacks_are_upper_bounds_the_strongest_is_shown_as_one(tmp_path: Path) -> None:
    ((study, lines),) = over_seeds.read([run(tmp_path / str(seed), seed, bound="told labels") for seed in range(3)])
    _, mixed = cells(over_seeds.defences(study, lines))
    assert mixed[5] == "`DLG()`^, initial model"
    assert mixed[6].startswith("22.0")
    ((study, lines),) = over_seeds.read([run(tmp_path / f"real-{seed}", seed) for seed in range(3)])
    assert "^" not in over_seeds.defences(study, lines)


def test_a_chain_of_defences_is_one_cell() -> None:
    chain = "`VisualMixer() | STAdam()`"
    (line,) = over_seeds.table(["defence", "accuracy"], [[chain, "78.1"]]).splitlines()[2:]
    assert line == "| `VisualMixer() \\| STAdam()` | 78.1 |"


def test_runs_that_differ_in_more_than_the_seed_are_refused(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 0), run(tmp_path / "b", 1, rate=0.2)]
    with pytest.raises(SystemExit, match="differ in learning-rate"):
        over_seeds.read(runs)


def test_a_run_at_several_cuts_has_tables_for_each(tmp_path: Path) -> None:
    """Neither the accuracy nor the attack of one cut stands beside those of another."""
    from tests.simulations.report.page import test_inference as served
    from tests.simulations.report.report_run import CONFIG, write_run

    config = CONFIG | {"config": {"seed": 0}, "pipelines": served.PIPELINES, "defenses": {}}
    rows = [one | {"value": 20.0} if _deeper(one) else one for one in served.every_row()]
    out = write_run(tmp_path / "run", rows, config, [])
    (first, shown), (second, deeper) = over_seeds.read([out])
    assert (first.cut, second.cut) == served.CUTS
    assert [line[2].split()[0] for line in cells(over_seeds.defences(first, shown))] == ["90.0", "88.0", "89.0", "85.0"]
    assert [line[2].split()[0] for line in cells(over_seeds.defences(second, deeper))] == ["90.0"] * 4
    strongest = [cells(over_seeds.defences(*pair)) for pair in ((first, shown), (second, deeper))]
    assert [[line[6].split()[0] for line in lines] for lines in strongest] == [
        ["25.0", "14.0", "15.0", "20.0"],
        ["20.0"] * 4,
    ]
    with pytest.raises(SystemExit, match="holds 2 studies"):
        audit_tables.study_of(out)
    header, lines = inference_tables.lines([first, second])
    at = {
        name: header.index(name) for name in ("cut", "defence", "server", "retrained adversary", "Equation 1", "bytes")
    }
    adp = [line for line in lines if served.ADP in line[at["defence"]]]
    assert [line[at["cut"]] for line in adp] == list(served.CUTS)
    assert [line[at["server"]].split()[0] for line in adp] == ["88.0", "90.0"]
    assert [line[at["retrained adversary"]].split()[0] for line in adp] == ["86.0", "90.0"]
    assert [line[at["Equation 1"]] for line in adp] == ["satisfied / not satisfied", "not satisfied / not satisfied"]
    assert [line[at["bytes"]] for line in adp] == ["500", "250"]
    assert [line[-1] for line in adp] == ["0.28 ± 1.00; 0 of 50"] * 2


def _deeper(one: dict[str, Any]) -> bool:
    """A score of the inversion at the second cut."""
    return one["metric"] == "psnr" and one["attack"] == "QueryInversion()" and one["card"]["cut"] == "conv4"
