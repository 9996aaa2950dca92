"""A run on Flower's runtime that is killed, and taken up again. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from simulations.progress import read_progress
from simulations.run_directory import read_lines
from tests.simulations.runtimes import (
    BINARIES,
    PATIENCE,
    SMALL,
    kill_tree,
    leftovers,
    marked,
    pairs,
    wait_until,
)
from tests.simulations.test_federation import untimed

pytestmark = pytest.mark.slow


def test_kill_9_and_resume_give_the_rows_of_an_unbroken_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 4, "attack-rounds": "first,last", "local-epochs": 3, "train-limit": 2000}
    fedveil = [str(BINARIES / "fedveil"), "run"]
    whole = tmp_path / "whole"
    done = subprocess.run(
        [*fedveil, "--out", str(whole), *pairs(settings)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"report: {whole / 'report.html'}" in done.stdout

    killed = tmp_path / "killed"
    running = subprocess.Popen([*fedveil, "--out", str(killed), *pairs(settings)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: read_progress(killed).get("round", 0) >= 1)
        assert not read_progress(killed)["finished"]
    finally:
        kill_tree(running.pid)
    resumed = subprocess.run(
        [*fedveil, "--resume", str(killed)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=marked(tmp_path),
    )
    assert resumed.returncode == 0, resumed.stderr
    assert untimed(read_lines(killed / "rows.jsonl")) == untimed(read_lines(whole / "rows.jsonl"))
    # Who was told to end may need a moment.
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")
