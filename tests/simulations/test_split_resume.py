"""A split run that is killed and resumed ends with the rows of an unbroken one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulations.experiment import Experiment
from simulations.run_directory import read_lines
from simulations.server_app import run_experiment
from strategies.attack_pool import AttackPool
from tests.local_grid import LocalGrid
from tests.simulations.test_resume import Killed, killed_at
from tests.simulations.test_split_run import split_experiment, split_rows, untimed

KINDS: dict[str, dict[str, Any]] = {
    "frozen, sgd": {"optimizer": "sgd", "momentum": 0.9},
    "trained, sgd": {"optimizer": "sgd", "momentum": 0.9, "train_edge": True},
    "frozen, adamw": {"optimizer": "adamw", "learning_rate": 0.01},
    "trained, adamw": {"optimizer": "adamw", "learning_rate": 0.01, "train_edge": True},
}


@pytest.fixture(scope="module", params=KINDS)
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, list[dict]]:
    """Settings, and the rows of a run that nobody killed."""
    settings = split_experiment(
        tmp_path_factory.mktemp("unbroken") / "run", defenses="BatchShuffle(k=0.4)", attack_rounds="all", rounds=3,
        batches_per_message=1, smashed_attacks="ServerPrediction()", test_limit=10, **KINDS[request.param],
    )  # fmt: skip
    return settings, untimed(split_rows(settings))


# Two clients with three batches, three rounds, two pipelines: replies 1 to 18 are those of the first, 19 to 24 of the second's
# first round. So 11 is in round 2 of the first, 27 in round 2 of the second: after its first round.
@pytest.mark.parametrize(("message_type", "count", "left"), [("train.step", 11, 30), ("train.step", 27, 12), ("evaluate", 12, 12)])
def test_resumed_rows_equal_unbroken_rows(
    tmp_path: Path, unbroken: tuple[Experiment, list[dict]], message_type: str, count: int, left: int
) -> None:
    settings = replace(unbroken[0], output_dir=str(tmp_path / "run"))
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at(message_type, count)), settings)
    # A new grid: the nodes have forgotten their state, as they have when a simulation ends.
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == unbroken[1]
    assert len([sent for sent in grid.sent if sent[0] == "train.step"]) == left


def test_attacks_that_were_open_are_run_again_without_training(
    tmp_path: Path, unbroken: tuple[Experiment, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(unbroken[0], output_dir=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(
            AttackPool, "finished", lambda self, wait=False: [] if not wait else (_ for _ in ()).throw(Killed)
        )
        patch.setattr(AttackPool, "submit", lambda self, job: None)
        patch.setattr(AttackPool, "__len__", lambda self: 1)
        with pytest.raises(Killed):
            run_experiment(LocalGrid(2), settings)
    assert len(list((tmp_path / "run" / "jobs").glob("*.safetensors"))) == 6
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == unbroken[1]
    assert {sent[0] for sent in grid.sent} == {"query.partition", "query.setup", "query.audit"}
