"""A run on Flower's runtime that is killed, and taken up again. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from simulations.experiment.experiment import Experiment
from simulations.runtime.progress import read_progress
from simulations.server_app import run_experiment
from simulations.settings.defaults import DEFAULT_CLIENTS
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import untimed
from tests.simulations.runtime.runtimes import (
    BINARIES,
    PATIENCE,
    SMALL,
    kill_tree,
    leftovers,
    marked,
    pairs,
    wait_until,
)

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_kill_9_and_resume_give_the_rows_of_an_unbroken_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 4, "attack-rounds": "first,last", "local-epochs": 3, "train-limit": 2000}
    # Nobody breaks it, and no runtime carries its messages: neither is a reason for other numbers.
    whole = {**settings, "num-clients": DEFAULT_CLIENTS, "attack-workers": 0, "output-dir": str(tmp_path / "whole")}
    run_experiment(LocalGrid(DEFAULT_CLIENTS), Experiment.from_mapping(whole))
    fedveil = [str(BINARIES / "fedveil"), "run"]
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
    assert f"report: {killed / 'report.html'}" in resumed.stdout
    assert untimed(read_lines(killed / "rows.jsonl")) == untimed(read_lines(tmp_path / "whole" / "rows.jsonl"))
    # Who was told to end may need a moment.
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")
