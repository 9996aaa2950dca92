"""Exact attacks in a federated run, in this process: exact where the update is bare, a row that says why not where it is noisy."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.experiment.experiment import Experiment
from simulations.report.analysis.outcome import verdict_lines
from simulations.server_app import run_experiment
from tests.attacks.wire import PatchNet
from tests.lines import read_lines
from tests.local_grid import LocalGrid

pytestmark = pytest.mark.long

NOISE = "GaussianNoise(std=0.01, per='step')"


def test_a_run_recovers_batches_and_says_where_it_cannot(tmp_path: Path) -> None:
    settings = {
        "output-dir": str(tmp_path / "run"), "dataset": "mnist-5k", "model": "mlp", "train-limit": 200, "test-limit": 40,
        "num-clients": 2, "rounds": 1, "local-steps": 1, "auxiliary-fraction": 0.0, "defenses": NOISE, "update-attacks": "",
        "probe-attacks": "Spear()", "probe-targets": 2, "probe-images": 4, "attack-rounds": "first", "attack-workers": 0,
        "adaptive": False,
    }  # fmt: skip
    run_experiment(LocalGrid(2), Experiment.from_mapping(settings))
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["attack"] == "Spear()"]
    plain, noisy = ([row for row in rows if row["defense"] == defense] for defense in ("", NOISE))
    found = {row["metric"]: row for row in plain if row["reference"] == "original"}
    assert found["psnr"]["n"] == 16
    assert found["psnr"]["value"] > 60
    assert not any(row["card"].get("attack_failures") for row in plain)
    reasons = {reason for row in noisy for reason in row["card"].get("attack_failures", ())}
    assert reasons
    assert all(reason.startswith("does not apply") for reason in reasons)


class OfDigits(PatchNet):
    """16 patches of 7 x 7 pixels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(side=28, patch=7, num_classes=num_classes)


def test_the_images_of_a_vision_transformer_are_readable(tmp_path: Path) -> None:
    settings = {
        "output-dir": str(tmp_path / "run"), "dataset": "mnist-5k", "model": f"{__file__}:OfDigits", "train-limit": 200,
        "test-limit": 40, "num-clients": 2, "rounds": 1, "local-steps": 1, "auxiliary-fraction": 0.0, "update-attacks": "",
        "probe-attacks": "PatchEmbeddingInversion()", "probe-targets": 8, "probe-images": 1, "attack-rounds": "first",
        "attack-workers": 0, "adaptive": False, "defenses": "",
    }  # fmt: skip
    run_experiment(LocalGrid(2), Experiment.from_mapping(settings))
    assert list(verdict_lines(tmp_path / "run")) == [
        "No defence, one-step probe: readable, 16 of 16 images recovered (79.4 to 100.0 %)"
    ]
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["attack"].startswith("PatchEmbedding")]
    found = {row["metric"]: row["value"] for row in rows if row["reference"] in ("", "original")}
    assert (found["tokens"], found["rank"]) == (16, 16)
    assert found["psnr"] > 60, "exact but for the rounding of float32 weights, whose difference the update is"
