"""Attacks that learn from simulated updates, and attacks on whole rounds, in federated runs in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attacks.metrics.names import Role
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid

pytestmark = pytest.mark.long

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
    cards = [row["card"] for row in rows if row["attack"] == LEARNED and row["metric"] == "psnr"]
    assert {card["threat_class"] for card in cards} == {"D"}
    assert not any(card.get("attack_failures") for card in cards)


def test_whole_rounds_are_matched_at_a_surrogate(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", **{"update-attacks": SURROGATE, "defenses": "", "attack-rounds": "1"})
    found = {row["metric"]: row for row in rows if row["attack"] == SURROGATE and row["reference"] in ("", "original")}
    assert found["psnr"]["n"] == 2 * 2 * 4  # Two clients, two steps of four images each.
    assert 0 <= found["alpha"]["value"] <= 1
    card = found["psnr"]["card"]
    assert (card["observation"], card["local_steps"], card["threat_class"]) == ("training update", 2, "B")
    assert not card.get("attack_failures")


def test_what_knows_images_is_also_run_on_noise_and_scored_beside(tmp_path: Path) -> None:
    first = "InvertingGradients(iterations=40)"
    chain = f"{first} | LearnedDenoiser(iterations=20, width=4)"
    noise = "GaussianNoise(std=0.01, per='step')"
    rows = rows_of(
        tmp_path / "run",
        **{"probe-attacks": f"{first}; {chain}; {LEARNED}", "defenses": noise, "attack-rounds": "1"},
    )
    of_images = [row for row in rows if (row["metric"], row["reference"]) == ("psnr", "original")]
    psnr = {(row["defense"], row["role"], row["attack"]): row for row in of_images}
    for defense in ("", noise):
        by_role = {role: {a for of, as_, a in psnr if (of, as_) == (defense, role)} for role in Role}
        assert by_role[Role.ATTACK] == {first, chain, LEARNED}
        assert by_role[Role.NULL_CONTROL] == {chain, LEARNED}
        assert by_role[Role.NULL_BASELINE] == {"grey", "mean"}
        for attack in (chain, LEARNED):
            mine, of_noise = psnr[defense, Role.ATTACK, attack], psnr[defense, Role.NULL_CONTROL, attack]
            assert mine["n"] == of_noise["n"] == 4
            assert mine["value"] != of_noise["value"]
            assert mine["card"]["learns_prior"] is of_noise["card"]["learns_prior"] is True
        assert "learns_prior" not in psnr[defense, Role.ATTACK, first]["card"]
    # Without a defence the first stage reads the digits a little, and what is made of noise stays below that.
    assert psnr["", Role.ATTACK, chain]["value"] > psnr["", Role.NULL_CONTROL, chain]["value"] + 1
    pictures = read_lines(tmp_path / "run" / "pictures" / "index.jsonl")
    assert {chain, LEARNED} == {one["attack"] for one in pictures if one.get("role") == Role.NULL_CONTROL}
    assert "(from noise)" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
