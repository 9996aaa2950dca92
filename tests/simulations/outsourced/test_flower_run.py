"""Outsourced training on Flower's real runtimes. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulations.runtime.launch import ROOT
from simulations.runtime.progress import read_progress
from tests.lines import read_lines
from tests.simulations.runtime.runtimes import PATIENCE, deployment, folder

__all__ = ["deployment", "folder"]  # fixtures

pytestmark = pytest.mark.slow

OUTSOURCED: dict[str, Any] = {
    "scenario": "outsourced", "dataset": "mnist-5k", "model": "lenet", "momentum": 0.5, "batch-size": 8, "upload-batches": 5,
    "train-limit": 100, "test-limit": 60, "rounds": 1, "local-epochs": 1, "defenses": "InstaHide()",
    "upload-attacks": "AsUploaded()", "adaptive": False, "probe-images": 2,
    "probe-targets": 1, "attack-rounds": "first", "model-attacks": "", "num-clients": 2, "share-images": False,
    "attack-workers": 0,
}  # fmt: skip


@pytest.mark.slow
def test_uploads_and_their_audit_work_on_a_superlink_with_two_supernodes(
    folder: Path, deployment: tuple[Path, dict[str, str]]
) -> None:
    """Each message starts a process of its own: what the audit finds again is what the node has kept of its draws."""
    cli, env = deployment
    settings = {**OUTSOURCED, "output-dir": str(folder)}
    overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", str(ROOT), "loopback", "--stream", "--run-config", overrides]
    subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
    progress = read_progress(folder)
    assert progress.get("finished"), progress
    rows = read_lines(folder / "rows.jsonl")
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    assert {row["card"]["randomness"] for row in rows if row["attack"]} == {"each node's own secret"}
    seen = [row for row in rows if (row["attack"], row["metric"]) == ("AsUploaded()", "psnr")]
    found = {(row["defense"], row["reference"]): row["value"] for row in seen}
    assert {row["n"] for row in seen} == {4}
    mixed = "InstaHide(num_mixed=4)"
    assert found["", "original"] == found["", "transformed"] == found[mixed, "transformed"] == 100.0
    assert found[mixed, "original"] < 20
    # All training images of both clients.
    assert {row["value"] for row in rows if row["metric"] == "uploaded-images"} == {80}
    assert not read_lines(folder / "pictures" / "index.jsonl")
