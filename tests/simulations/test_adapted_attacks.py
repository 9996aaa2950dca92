"""Attacks that learn from simulated updates, and attacks on whole rounds, in federated runs in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.experiment import Experiment
from simulations.run_directory import read_lines
from simulations.server_app import run_experiment
from tests.local_grid import LocalGrid

LEARNED = "LearningToInvert(updates=32, size=32, hidden=32, iterations=20)"
SURROGATE = "SurrogateMatching(iterations=20)"


def rows_of(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {
        "output-dir": str(folder), "dataset": "mnist-5k", "model": "lenet", "train-limit": 200, "test-limit": 40,
        "num-clients": 2, "rounds": 2, "local-steps": 2, "batch-size": 4, "learning-rate": 0.1, "attack-workers": 0,
        "probe-attacks": "", "update-attacks": "", "probe-targets": 2, "probe-images": 1, "adaptive": False, **changes,
    }  # fmt: skip
    run_experiment(LocalGrid(2), Experiment.from_mapping(settings))
    return read_lines(folder / "rows.jsonl")


def test_it_learns_anew_for_each_round_and_defence(tmp_path: Path) -> None:
    defenses = ("", "Pruning(fraction=0.9, per='step')", "DPSGD(target_epsilon=50.0)")
    rows = rows_of(
        tmp_path / "run",
        **{"probe-attacks": LEARNED, "defenses": "; ".join(defenses[1:]), "attack-rounds": "first,final"},
    )
    mine = [row for row in rows if row["attack"] == LEARNED and row["metric"] == "holdout_psnr"]
    assert {row["defense"] for row in mine} == set(defenses)
    assert all(row["status"] == "ok" for row in mine)
    # Another model in each round and under each defence: another network, whose held-out score is another.
    assert len({row["value"] for row in mine}) == len(mine) == 2 * len(defenses)
    cards = [row["setting"] for row in rows if row["attack"] == LEARNED and row["metric"] == "psnr"]
    assert {card["threat_class"] for card in cards} == {"D"}
    assert not any(card.get("attack_failures") for card in cards)


def test_whole_rounds_are_matched_at_a_surrogate(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", **{"update-attacks": SURROGATE, "defenses": "", "attack-rounds": "1"})
    found = {row["metric"]: row for row in rows if row["attack"] == SURROGATE and row["reference"] in ("", "original")}
    assert found["psnr"]["n"] == 2 * 2 * 4  # Two clients, two steps of four images each.
    assert 0 <= found["alpha"]["value"] <= 1
    card = found["psnr"]["setting"]
    assert (card["observation"], card["local_steps"], card["threat_class"]) == ("training update", 2, "B")
    assert not card.get("attack_failures")
