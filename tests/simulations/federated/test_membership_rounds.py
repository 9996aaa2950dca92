"""Attacks on membership over the rounds, in a whole federation: their rows, after a kill too, and where they do not apply."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from tests.simulations.federated.test_federation import experiment, rows_of

ATTACKS = "FedMIA(); FedMIA(signal='loss'); LossTrajectory(); GradientAlignment(signal='difference')"
SMALL = {"model": "mlp", "probe_attacks": "", "update_attacks": ATTACKS, "defenses": "", "attack_rounds": "all"}


@pytest.mark.long
def test_attacks_over_rounds_see_each_of_them(tmp_path: Path) -> None:
    rows = rows_of(experiment(tmp_path / "run", rounds=3, **SMALL))
    assert not [row for row in rows if row["status"] == "failed"]
    found = {row["attack"]: row for row in rows if row["metric"] == "membership-auc"}
    assert set(found) == set(ATTACKS.split("; "))
    for attack, row in found.items():
        assert (row["round"], row["card"]["rounds_observed"], row["card"]["threat_class"]) == (3, 3, "C")
        assert (row["card"]["members"], row["card"]["others"], row["n"]) == (96, 40, 136)
        assert row["ci_low"] < row["value"] < row["ci_high"]
        notes = {one["metric"]: one["value"] for one in rows if one["attack"] == attack}
        assert (notes["rounds-used"], notes.get("other-clients")) == (3, 2 if attack.startswith("FedMIA") else None)


def test_a_client_alone_in_a_round_leaves_a_row_that_says_so(tmp_path: Path) -> None:
    """A deployed run may lose clients after its set-up."""

    def fails_to_train(partition: int, request: Message, reply: Message) -> Message:
        if partition == 1 and request.metadata.message_type == "train":
            raise RuntimeError("no power")
        return reply

    settings = experiment(tmp_path / "run", rounds=2, num_clients=2, min_usable=0.1, **SMALL)
    failed = [row for row in rows_of(settings, fails_to_train) if row["status"] == "failed" and row["attack"]]
    assert {row["attack"] for row in failed} == {"FedMIA()", "FedMIA(signal='loss')"}
    assert all(row["message"].startswith("does not apply: ") for row in failed)


@pytest.mark.long
def test_rows_say_on_how_many_records_online_shadow_models_train(tmp_path: Path) -> None:
    usual, wanted, few = attacks = ("OnlineRMIA()", "OnlineRMIA(num_members=20)", "OnlineLiRA(num_shadows=4)")
    rows = rows_of(experiment(tmp_path, rounds=1, **SMALL | {"update_attacks": "; ".join(attacks)}))
    found = {row["attack"]: (row["value"], row["n"]) for row in rows if row["metric"] == "shadow-members"}
    assert found == {usual: (32, 3), wanted: (20, 3)}, "as many as a client has members, or as the attack wants"
    areas = {row["attack"]: row["status"] for row in rows if row["metric"] == "membership-auc"}
    assert areas == {usual: "ok", wanted: "ok", few: "failed"}, "4 are too few for 32 of 45 records"
