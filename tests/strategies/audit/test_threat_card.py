"""Threat cards of a run: what each attack was given and what it spent stands on its rows, and in the report."""

from __future__ import annotations

from pathlib import Path

from attacks import InvertingGradients, LearnedRestorer, PolicyInversion, WindowMean
from attacks.refinement.base import Chain
from simulations.report.analysis.rows import read_rows
from tests.simulations.report.report_run import Page
from tests.strategies.test_curious import Wire, run

EFFORT = ("iterations", "restarts", "selection", "training_iterations", "batch", "images", "local_steps")
INVERSION = "InvertingGradients(iterations=2, restarts=3)"
STEPS = "LBFGSL2(iterations=2, restarts=1)"


def test_rows_and_report_say_what_an_attack_spent_and_how_large_a_batch_was(tmp_path: Path) -> None:
    run(
        tmp_path / "run", Wire(), rounds=1, attack_rounds="first", partition="iid", probe_images=3, probe_targets=1, local_steps=2,
        probe_attacks=f"{INVERSION}; {STEPS}; LabelInference()", update_attacks="LossThreshold()", adaptive=False,
    )  # fmt: skip
    rows, _ = read_rows(tmp_path / "run" / "rows.jsonl")
    cards = {row.attack: row.setting.to_json() for row in rows if row.is_attack}
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
    assert all(row.setting.more["restarts"] == 3 for row in all_rows), "one card for all numbers of an attack"
    table = Page((tmp_path / "run" / "report.html").read_text()).table("cards")
    shown = {one["Attacks"][0]: (one["iterations"][0], one["restarts"][0], one["batch"][0]) for one in table}
    assert shown[INVERSION] == ("2", "3", "3")
    assert shown[STEPS] == ("2 steps of up to 20 evaluations", "1", "3")
    assert shown["LossThreshold()"][2] == "8"


def test_a_chain_says_what_each_of_its_stages_does() -> None:
    inversion = InvertingGradients(iterations=7, restarts=2)
    chain = Chain((inversion, WindowMean(), PolicyInversion(), LearnedRestorer(iterations=5)))
    assert chain.card() == {
        "iterations": 7,
        "restarts": 2,
        "selection": "lowest own objective, then most probable draw",
        "training_iterations": 5,
    }
