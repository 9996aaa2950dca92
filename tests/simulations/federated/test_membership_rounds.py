"""Attacks on membership over the rounds, in a whole federation: their rows, after a kill too, and where they do not apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from attacks.observations import AttackError
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
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


def fails_to_train(partition: int, request: Message, reply: Message) -> Message:
    if partition == 1 and request.metadata.message_type == "train":
        raise RuntimeError("no power")
    return reply


ROUNDS = {"model": "mlp", "defenses": "", "probe-attacks": "", "rounds": 3, "attack-rounds": "all"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attack-rounds": "final"}, "attack-rounds is 'final', with updates of 1 round of 3, and LossTrajectory() in"),
        ({"attack-rounds": "last,final"}, "LossTrajectory() in update-attacks needs 2"),  # both have the last update
        ({"rounds": 1}, "LossTrajectory() in update-attacks needs 2"),
        ({"num-clients": 1}, "num-clients is 1, of which 1 train in a round, and FedMIA() in update-attacks needs 2"),
        ({"num-clients": 3, "fraction-train": 0.4}, "num-clients is 3, of which 1 train in a round, and FedMIA()"),
        ({"update-attacks": "LossTrajectory(most_rounds=1)"}, "most_rounds is 1; allowed: a whole number from 2"),
    ],
)
def test_too_few_rounds_or_clients_are_refused_before_any_work(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping({**ROUNDS, "update-attacks": "LossTrajectory(); FedMIA()", **values})
    assert message in str(caught.value)


def test_what_has_enough_rounds_or_attacks_none_is_allowed() -> None:
    enough = Experiment.from_mapping(
        {**ROUNDS, "update-attacks": ATTACKS, "attack-rounds": "first,last", "num-clients": 2}
    )
    assert len(enough.attacks[UPDATE]) == 4
    assert Experiment.from_mapping({**ROUNDS, "update-attacks": ATTACKS, "attack-rounds": "", "num-clients": 1})
    alone = {"update-attacks": "GradientAlignment()", "attack-rounds": "final", "num-clients": 1}
    assert Experiment.from_mapping({**ROUNDS, **alone})


def test_a_client_alone_in_a_round_leaves_a_row_that_says_so(tmp_path: Path) -> None:
    """A deployed run may lose clients after its set-up."""
    settings = experiment(tmp_path / "run", rounds=2, num_clients=2, min_usable=0.1, **SMALL)
    run_experiment(LocalGrid(2, fails_to_train), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    failed = {row["attack"]: row["message"] for row in rows if row["status"] == "failed" and row["attack"]}
    assert set(failed) == {"FedMIA()", "FedMIA(signal='loss')"}
    assert all(message.startswith("does not apply: ") for message in failed.values())


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
