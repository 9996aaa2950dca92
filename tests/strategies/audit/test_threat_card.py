"""Threat cards of a run: what each attack was given and what it spent stands on its rows, and in the report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from attacks import InvertingGradients
from attacks.metrics.names import Role
from simulations.report.studies.rows import read_rows
from strategies.audit.jobs import Outcome
from strategies.audit.threat_card import KnownLabels, Strength, ThreatCard
from tests.simulations.report.report_run import every_attack
from tests.strategies.federated.test_curious import Wire, run

EFFORT = ("iterations", "restarts", "selection", "training_iterations", "batch", "images", "local_steps")
INVERSION = "InvertingGradients(iterations=2, restarts=3)"
STEPS = "LBFGSL2(iterations=2, restarts=1)"


@pytest.mark.long
def test_rows_and_report_say_what_an_attack_spent_and_how_large_a_batch_was(tmp_path: Path) -> None:
    run(
        tmp_path / "run", Wire(), rounds=1, attack_rounds="first", partition="iid", probe_images=3, probe_targets=1, local_steps=2,
        probe_attacks=f"{INVERSION}; {STEPS}; LabelInference()", update_attacks="LossThreshold()", adaptive=False,
    )  # fmt: skip
    rows, _ = read_rows(tmp_path / "run" / "rows.jsonl")
    cards = {row.attack: row.card.to_json() for row in rows if row.is_attack}
    found = {attack: {key: card[key] for key in EFFORT if key in card} for attack, card in cards.items()}
    probe = {"batch": 3, "images": 3, "local_steps": 1}
    search = {"selection": "lowest own objective"} | probe
    assert found == {
        INVERSION: {"iterations": 2, "restarts": 3} | search,
        STEPS: {"iterations": "2 steps of up to 20 evaluations", "restarts": 1} | search,
        "LabelInference()": probe,
        # Two steps of eight examples each.
        "LossThreshold()": {"batch": 8, "images": 16, "local_steps": 2},
    }
    all_rows = [row for row in rows if row.attack == INVERSION]
    assert {row.metric for row in all_rows} >= {"psnr", "attack-seconds", "label-accuracy"}
    assert all(row.card.more["restarts"] == 3 for row in all_rows), "one card for all numbers of an attack"
    table = every_attack(tmp_path / "run").table("cards")
    shown = {one["Attacks"][0]: (one["iterations"][0], one["restarts"][0], one["batch"][0]) for one in table}
    assert shown[INVERSION] == ("2", "3", "3")
    assert shown[STEPS] == ("2 steps of up to 20 evaluations", "1", "3")
    assert shown["LossThreshold()"][2] == "8"


def test_a_card_survives_a_file_and_equal_cards_have_one_hash() -> None:
    card = ThreatCard(
        images=3, labels=KnownLabels.UNKNOWN, more={"sizes": (1, 2), "rate": math.inf, "who": Strength.STEP}
    )
    assert ThreatCard.from_json(json.loads(json.dumps(card.to_json(), allow_nan=False))) == card
    assert card.to_json() == {
        "images": 3, "labels": "unknown", "sizes": [1, 2], "rate": "inf", "who": "per step, as in training"
    }  # fmt: skip
    assert card.but(images=3) == card != card.but(images=4)
    assert len({card, card.but(images=3), card.but(images=4)}) == 2


def test_other_values_are_checked_as_those_of_a_file() -> None:
    card = ThreatCard(images=3, upper_bound="knows the order")
    assert card.but(images=None, upper_bound="") == ThreatCard()
    odd = card.but(images="8 of 9")
    assert (odd.images, odd.more) == (None, {"images": "8 of 9"})
    assert odd.but(images=4) == card.but(images=4), "what fits takes the place of what did not"
    assert ThreatCard.from_json({"images": 4.0, "members": 9.0, "chance": 1}) == ThreatCard(
        images=4, members=9, chance=1
    )
    assert ThreatCard.from_json({"images": True, "chance": math.nan}).images is None


def test_the_card_says_the_role_of_an_attack() -> None:
    plain, helped = ThreatCard(), ThreatCard(upper_bound="knows the labels")
    outcome = Outcome(InvertingGradients(), [], 0.0)
    assert [outcome.role(card) for card in (plain, helped)] == [Role.ATTACK, Role.UPPER_BOUND]
    silent = replace(outcome, of_noise=True)
    assert {silent.role(card) for card in (plain, helped)} == {Role.NULL_CONTROL}
