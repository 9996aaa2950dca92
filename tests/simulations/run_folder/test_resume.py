"""A run that is killed and resumed ends with the rows of an unbroken one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message

from simulations.experiment.experiment import Experiment
from simulations.report.studies.rows import read_rows
from simulations.run_folder.run_directory import RunDirectory
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from strategies.audit.pool import AttackPool
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment, untimed

"""Tracing lines costs such runs half of their time again, and other tests run the same lines."""

SETTINGS = {"defenses": "DPSGD(target_epsilon=8.0); VisualMixer()", "rounds": 3, "attack_rounds": "first,final"}


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the run may catch it and tidy up."""


def killed_at(message_type: str, count: int):
    """A tamper function that ends the run at the ``count``-th reply of a type."""
    seen = 0

    def tamper(partition: int, request: Message, reply: Message) -> Message:
        nonlocal seen
        seen += request.metadata.message_type == message_type
        if seen == count:
            raise Killed
        return reply

    return tamper


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    run_experiment(LocalGrid(3), experiment(out, **SETTINGS))
    return untimed(read_lines(out / "rows.jsonl"))


# 3 clients, 3 rounds, 3 pipelines: training replies 4-6 are round 2 of the first, 10-12 round 1 of DP-SGD, ...; of the probes,
# 4-6 are on the final model of the first pipeline, 10-12 on that of DP-SGD.
@pytest.mark.long
@pytest.mark.parametrize(
    ("message_type", "count", "trainings_left"),
    [("train", 5, 24), ("train", 14, 15), ("train.probe", 5, 18), ("train.probe", 11, 9)],
)
def test_resumed_rows_equal_unbroken_rows(
    tmp_path: Path, unbroken: list[dict], message_type: str, count: int, trainings_left: int
) -> None:
    settings = experiment(tmp_path / "run", **SETTINGS)
    with pytest.raises(Killed):
        run_experiment(LocalGrid(3, killed_at(message_type, count)), settings)
    # A new grid: the nodes have forgotten their state, as they have when a simulation ends.
    grid = LocalGrid(3)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == unbroken
    assert len([sent for sent in grid.sent if sent[0] == "train"]) == trainings_left


def killed_with_open_attacks(monkeypatch: pytest.MonkeyPatch, grid: LocalGrid, settings: Experiment) -> None:
    """Runs until all training is done and no attack has been; then the run ends as if killed."""
    with monkeypatch.context() as patch:
        patch.setattr(
            AttackPool, "finished", lambda self, wait=False: [] if not wait else (_ for _ in ()).throw(Killed)
        )
        patch.setattr(AttackPool, "submit", lambda self, job: None)
        patch.setattr(AttackPool, "__len__", lambda self: 1)
        with pytest.raises(Killed):
            run_experiment(grid, settings)


@pytest.mark.long
def test_attacks_that_were_open_are_run_again_without_training(
    tmp_path: Path, unbroken: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(tmp_path / "run", **SETTINGS)
    killed_with_open_attacks(monkeypatch, LocalGrid(3), settings)
    assert len(list((tmp_path / "run" / "jobs").glob("*.safetensors"))) == 24
    grid = LocalGrid(3)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == unbroken
    assert {sent[0] for sent in grid.sent} == {"query.partition", "query.setup", "query.audit"}
    assert not list((tmp_path / "run" / "jobs").glob("*.safetensors"))


@pytest.mark.long
def test_epsilon_grows_over_rounds_and_survives_the_kill(unbroken: list[dict]) -> None:
    spent = [row["value"] for row in unbroken if row["metric"] == "epsilon"]
    assert len(spent) == 3
    assert spent[0] < spent[1] < spent[2] <= 8.0
    probed = [row["value"] for row in unbroken if row["metric"] == "epsilon-with-probes"]
    # Probes of round 1 and on the final model, and after each round of training: each of them spends.
    assert len(probed) == 5
    assert 0 < probed[0] < probed[1] < probed[2] < probed[3] < probed[4]
    assert all(both > alone for both, alone in zip(probed[1:4], spent, strict=True))


def test_resume_refuses_other_settings_and_missing_runs(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "run", defenses="", rounds=1, attack_rounds="")
    with pytest.raises(ConfigError, match="holds no run"):
        RunDirectory.open(tmp_path / "run", replace(settings, resume=True))
    run_experiment(LocalGrid(3), settings)
    with pytest.raises(ConfigError, match="already holds a run"):
        run_experiment(LocalGrid(3), settings)
    with pytest.raises(ConfigError, match="batch-size was 32 and is now 8"):
        run_experiment(LocalGrid(3), replace(settings, resume=True, batch_size=8))


def test_two_writers_are_refused(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "run")
    first = RunDirectory.open(tmp_path / "run", settings)
    with pytest.raises(ConfigError, match="another run is still writing"):
        RunDirectory.open(tmp_path / "run", settings)
    first.close()
    RunDirectory.open(tmp_path / "run", settings).close()


def test_columns_of_a_scenario_s_own_are_kept(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run", settings)
    run.row(settings.plan(settings.pipelines[0]).at(1), metric="bytes-uploaded", value=7.0, compressed=3)
    run.flush()
    run.close()
    (row,) = read_rows(tmp_path / "run" / "rows.jsonl")[0]
    assert (row.metric, row.value, row.extra) == ("bytes-uploaded", 7.0, {"compressed": 3})
