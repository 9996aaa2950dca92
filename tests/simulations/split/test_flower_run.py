"""Split learning on Flower's real runtimes. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import ROOT, LocalRuntime
from simulations.runtime.progress import read_progress
from tests.lines import read_lines
from tests.simulations.runtime.runtimes import PATIENCE, broken_app, deployment, folder, run_in

__all__ = ["deployment", "folder"]  # fixtures

pytestmark = pytest.mark.slow

SPLIT: dict[str, Any] = {
    "scenario": "split", "dataset": "mnist-5k", "momentum": 0.5,
    "model": "vit", "patch-size": 7, "width": 16, "depth": 2, "heads": 2, "batch-size": 8,
    "train-limit": 200, "test-limit": 60, "rounds": 1, "local-epochs": 1, "defenses": "", "attack-rounds": "first",
    "smashed-attacks": "TokenDecoder(iterations=5); FeatureInversion(iterations=5)", "adaptive": False, "probe-images": 2,
    "probe-targets": 1,
}  # fmt: skip


@pytest.mark.slow
def test_a_client_that_hangs_in_the_middle_of_a_round_costs_that_steps_share(folder: Path, tmp_path: Path) -> None:
    changes = {"attack-rounds": "", "num-clients": 4, "batches-per-message": 1, "output-dir": str(folder)}
    values = Experiment.from_mapping({**SPLIT, **changes}).to_mapping()
    # The watchdog's own timer, hurried for this one message: the others' time limit stays beyond what a busy machine takes.
    line = (
        "        if self.data.partition == 1 and number == 2:\n"
        "            __import__('signal').setitimer(__import__('signal').ITIMER_REAL, 0.5)\n"
        "            __import__('time').sleep(10_000)\n"
    )
    marker = "        examples = self._examples(number)\n"
    app = broken_app(tmp_path, "clients/split/batches.py", marker, line)
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        status = run_in(runtime, values, 4, app)
    assert status == "finished:completed", (tmp_path / "log.txt").read_text()[-3000:]
    rows = {(row["metric"], row["status"]): row for row in read_lines(folder / "rows.jsonl") if row["round"] == 1}
    # 160 training images: 40 a client, in 5 batches.
    assert (rows["batches-lost", "ok"]["value"], rows["batches-lost", "ok"]["n"]) == (1, 20)
    assert rows["clients-failed", "ok"]["value"] == 1
    assert rows["client", "failed"]["client"] == 1
    assert rows["client", "failed"]["message"].startswith("train.step")
    assert "client ran longer than client-timeout" in rows["client", "failed"]["message"]


@pytest.mark.slow
def test_the_same_split_run_works_on_a_superlink_with_two_supernodes(
    folder: Path, deployment: tuple[Path, dict[str, str]]
) -> None:
    """With a trained client half, whose state must survive: each message starts a process of its own."""
    cli, env = deployment
    settings = {
        **SPLIT, "num-clients": 2, "output-dir": str(folder), "share-images": False,
        "batches-per-message": 8, "train-limit": 100, "train-edge": True, "labels": "client",
        "smashed-attacks": "TokenDecoder(iterations=5)", "attack-workers": 0,
    }  # fmt: skip
    overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", str(ROOT), "loopback", "--stream", "--run-config", overrides]
    subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
    progress = read_progress(folder)
    assert progress.get("finished"), progress
    rows = read_lines(folder / "rows.jsonl")
    assert not [row for row in rows if row["status"] == "failed"]
    assert {row["n"] for row in rows if row["metric"] == "train-loss"} == {80}
    assert {row["n"] for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Token")} == {4}
    assert not read_lines(folder / "pictures" / "index.jsonl")
