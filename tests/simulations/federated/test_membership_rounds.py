"""Attacks on membership over the rounds, in a whole federation: their rows, after a kill too, and where they do not apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attacks.observations import AttackError
from simulations.server_app import run_experiment
from strategies.federated.observations import AGGREGATE, PROBE, UPDATE
from strategies.outsourced.observations import MODEL
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment, untimed
from tests.simulations.run_folder.test_resume import Killed, killed_at

ATTACKS = "FedMIA(); FedMIA(signal='loss'); LossTrajectory(); GradientAlignment(signal='difference')"
SMALL = {"model": "mlp", "probe_attacks": "", "update_attacks": ATTACKS, "defenses": "", "attack_rounds": "all"}


def test_a_resumed_run_has_the_rows_of_an_unbroken_one(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "whole", rounds=3, **SMALL)
    run_experiment(LocalGrid(3), settings)
    rows = read_lines(tmp_path / "whole" / "rows.jsonl")
    assert not [row for row in rows if row["status"] == "failed"]
    found = {row["attack"]: row for row in rows if row["metric"] == "membership-auc"}
    assert set(found) == set(ATTACKS.split("; "))
    for attack, row in found.items():
        assert (row["round"], row["card"]["rounds_observed"], row["card"]["threat_class"]) == (3, 3, "C")
        assert (row["card"]["members"], row["card"]["others"], row["n"]) == (96, 40, 136)
        assert row["ci_low"] < row["value"] < row["ci_high"]
        notes = {one["metric"]: one["value"] for one in rows if one["attack"] == attack}
        assert (notes["rounds-used"], notes.get("other-clients")) == (3, 2 if attack.startswith("FedMIA") else None)

    broken = replace(settings, output_dir=str(tmp_path / "broken"))
    with pytest.raises(Killed):  # three clients a round: in the last one
        run_experiment(LocalGrid(3, killed_at("train", 8)), broken)
    run_experiment(LocalGrid(3), replace(broken, resume=True))
    assert untimed(read_lines(tmp_path / "broken" / "rows.jsonl")) == untimed(rows)


def test_one_round_or_one_client_leaves_a_row_that_says_so(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "run", rounds=1, num_clients=1, **SMALL)
    run_experiment(LocalGrid(1), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    failed = {row["attack"]: row["message"] for row in rows if row["status"] == "failed"}
    assert set(failed) == {"FedMIA()", "FedMIA(signal='loss')", "LossTrajectory()"}
    assert all(message.startswith("does not apply: ") for message in failed.values())
    assert [row["attack"] for row in rows if row["metric"] == "membership-auc" and row["value"] is not None] == [
        "GradientAlignment(signal='difference')"
    ]


def test_rows_say_on_how_many_records_online_shadow_models_train(tmp_path: Path) -> None:
    attacks = ("OnlineRMIA()", "OnlineRMIA(num_members=20)", "OnlineLiRA(num_shadows=4)")
    run_experiment(LocalGrid(3), experiment(tmp_path, rounds=1, **SMALL | {"update_attacks": "; ".join(attacks)}))
    rows = read_lines(tmp_path / "rows.jsonl")
    found = {row["attack"]: (row["value"], row["n"]) for row in rows if row["metric"] == "shadow-members"}
    assert found == {attacks[0]: (32, 3), attacks[1]: (20, 3)}, (
        "as many as a client has members, or as the attack wants"
    )
    areas = {row["attack"]: row["status"] for row in rows if row["metric"] == "membership-auc"}
    assert areas == {attacks[0]: "ok", attacks[1]: "ok", attacks[2]: "failed"}, "4 are too few for 32 of 45 records"


def test_sums_probes_and_outsourced_models_show_no_client_s_rounds() -> None:
    for attack in ATTACKS.split("; "):
        assert [repr(one) for one in UPDATE.parse(attack)] == [attack]
        for kind in (AGGREGATE, PROBE, MODEL):
            with pytest.raises(AttackError, match="does not attack"):
                kind.parse(attack)
