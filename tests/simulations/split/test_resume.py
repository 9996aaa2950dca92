"""A split run that is killed and resumed ends with the rows of an unbroken one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.run_folder.test_resume import Killed, killed_at, killed_with_open_attacks
from tests.simulations.split.test_run import split_experiment, split_rows, untimed

pytestmark = pytest.mark.long

"""Tracing lines costs such runs half of their time again, and other tests run the same lines."""

Unbroken = Callable[[str], tuple[Experiment, list[dict[str, Any]]]]
KINDS: dict[str, dict[str, Any]] = {
    "frozen, sgd": {"optimizer": "sgd", "momentum": 0.9},
    "trained, sgd": {"optimizer": "sgd", "momentum": 0.9, "train_edge": True},
    "frozen, adamw": {"optimizer": "adamw", "learning_rate": 0.01},
    "trained, adamw": {"optimizer": "adamw", "learning_rate": 0.01, "train_edge": True},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Kind -> settings, and the rows of a run that nobody killed."""

    @functools.cache
    def run(kind: str) -> tuple[Experiment, list[dict[str, Any]]]:
        settings = split_experiment(
            tmp_path_factory.mktemp("unbroken") / "run", defenses="BatchShuffle(k=0.4)", attack_rounds="all",
            batches_per_message=1, smashed_attacks="ServerPrediction()", test_limit=10, **KINDS[kind],
        )  # fmt: skip
        return settings, untimed(split_rows(settings))

    return run


# Two clients with three batches, two rounds, two pipelines: replies 1 to 12 are those of the first, 13 to 18 of the second's
# first round. So 8 is in round 2 of the first, 21 in round 2 of the second: after its first round. Evaluations are 2 a round,
# the initial model's among them: 12 is the last. The final model's audit batches are the fifth and sixth of a pipeline.
@pytest.mark.parametrize(
    ("kind", "message_type", "count", "left"),
    [
        *((kind, "train.step", 21, 6) for kind in KINDS),
        ("trained, sgd", "train.step", 8, 18),
        ("trained, adamw", "evaluate", 12, 6),
        ("trained, adamw", "train.smash", 5, 12),
    ],
)  # fmt: skip
def test_resumed_rows_equal_unbroken_rows(
    tmp_path: Path, unbroken: Unbroken, kind: str, message_type: str, count: int, left: int
) -> None:
    settings, rows = unbroken(kind)
    settings = replace(settings, output_dir=str(tmp_path / "run"))
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at(message_type, count)), settings)
    # A new grid: the nodes have forgotten their state, as they have when a simulation ends.
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == rows
    assert len([sent for sent in grid.sent if sent[0] == "train.step"]) == left


def test_attacks_that_were_open_are_run_again_without_training(
    tmp_path: Path, unbroken: Unbroken, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, rows = unbroken("trained, sgd")
    settings = replace(settings, output_dir=str(tmp_path / "run"))
    killed_with_open_attacks(monkeypatch, LocalGrid(2), settings)
    assert len(list((tmp_path / "run" / "jobs").glob("*.safetensors"))) == 6
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == rows
    assert {sent[0] for sent in grid.sent} == {"query.partition", "query.setup", "query.audit"}
