"""The quickstart, audited while Flower runs it: probes and updates attacked, guesses scored by the clients. Minutes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from strategies.external_app.trainings import ASSUMED
from tests.examples.copies import with_short_attacks
from tests.examples.test_recorded_apps import run_here
from tests.lines import read_lines
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, deployment

pytest.importorskip("mlxtend", reason="mlxtend is not installed: uv sync --group dev")
pytestmark = pytest.mark.slow

__all__ = ["deployment"]  # a fixture


OF_DATA = {"observed: every image that training saw is one of data, as it is"}


def told(rows: list[dict[str, Any]]) -> tuple[list[str], set[str]]:
    """Warnings about the trainings of an app's round, and whose images they saw."""
    (about,) = [row for row in rows if row["metric"] == ASSUMED]
    caveats = {text for row in rows for text in row["card"].get("caveats", ())}
    return about["warnings"], {text for text in caveats if "that training saw" in text}


@pytest.mark.slow
def test_the_quickstart_is_audited_with_two_supernodes(deployment: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    cli, env = deployment
    settings = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "examples": 32, "audit": str(tmp_path / "out")}
    overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    app = with_short_attacks("quickstart_pytorch", tmp_path)
    command = [str(BINARIES / "flwr"), "run", str(app), "loopback", "--stream", "--run-config", overrides]
    done = subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    found = [row for row in rows if row["attack"].startswith("InvertingGradients") and row["metric"] == "psnr"]
    assert [row["n"] for row in found] == [16, 16], done.stdout[-3000:]  # against original and transformed images
    assert found[0]["card"]["randomness"].startswith("each node's own secret: which images are probed;")
    assert told(rows) == ([], OF_DATA)
    assert (tmp_path / "out" / "report.html").is_file()


def test_what_flowers_own_mod_did_to_probes_is_seen_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack that solves the quickstart's probes of one digit finds noise behind the mod, and every row names the mod."""
    rows = {}
    for app in ("quickstart_pytorch", "local_dp_pytorch"):
        out = tmp_path / app
        settings = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "examples": 32, "audit": str(out)}
        run_here(app, monkeypatch, settings)
        rows[app] = read_lines(out / "rows.jsonl")
        assert (out / "report.html").is_file()
    assert {row["defense"] for row in rows["quickstart_pytorch"]} == {""}
    assert {row["defense"] for row in rows["local_dp_pytorch"]} == {
        "LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-05)"
    }
    said = {tuple(row["card"].get("claimed_privacy", ())) for row in rows["local_dp_pytorch"]}
    assert len(said) == 1, "every card names what the app says"
    assert "LocalDpMod claims epsilon 10 at delta 1e-05 for each message (1 round)" in said.pop()[0]
    assert not [row for row in rows["quickstart_pytorch"] if "claimed_privacy" in row["card"]]
    for one in rows.values():
        assert told(one) == ([], OF_DATA), "its training is a step of SGD on the images that it tells"
    plain, noised = (psnr_of(one) for one in rows.values())
    assert noised["n"] == plain["n"] == 16
    assert noised["value"] < plain["value"] - 2


def psnr_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(
        row
        for row in rows
        if row["attack"].startswith("InvertingGradients")
        and (row["metric"], row["reference"], row["card"]["observation"]) == ("psnr", "original", "one-step probe")
    )
