"""Runs in trackers, with the real ones: MLflow on a database, TensorBoard's files, Weights & Biases offline."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.report.studies.rows import read_rows
from simulations.run_folder.rows import Row
from simulations.settings.errors import ConfigError
from simulations.trackers import LONGEST_NAME, Tracked, metric_name, parse_trackers
from tests.simulations.report.report_run import write_run

ACCURACY = "no-defence/training/test-accuracy-original"


def tracker(module: str) -> Any:
    """A module of a tracker; its test is skipped where the tracker is not installed."""
    return pytest.importorskip(module, reason=f"{module.partition('.')[0]} is not installed: uv sync --group dev")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, with trackers that write beside it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    return tmp_path / "run"


def values_of(directory: Path) -> list[float]:
    return sorted(row.value for row in read_rows(directory / "rows.jsonl")[0] if row.value is not None)


@pytest.mark.long
def test_mlflow_gets_settings_rows_by_round_conclusions_and_files(run: Path, tmp_path: Path) -> None:
    mlflow = tracker("mlflow")
    result = CliRunner().invoke(app, ["report", str(run), "--track", "mlflow"])
    assert result.exit_code == 0, result.output
    config = json.loads((run / "config.json").read_text())["config"]
    client = mlflow.tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(config.get("experiment") or "fedveil")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run"
    assert found.info.status == "FINISHED"
    assert all(
        found.data.params[name] == str(value) for name, value in config.items() if type(value) in (int, float, str)
    )
    history = [one for name in found.data.metrics for one in client.get_metric_history(found.info.run_id, name)]
    assert sorted(one.value for one in history) == pytest.approx(values_of(run))
    told = {one.step: one.value for one in client.get_metric_history(found.info.run_id, ACCURACY)}
    rows = read_rows(run / "rows.jsonl")[0]
    assert told == {row.round: row.value for row in rows if metric_name(row) == ACCURACY}
    assert len(told) >= 2
    assert "dB" in found.data.tags["mlflow.note.content"]
    kept = mlflow.artifacts.download_artifacts(run_id=found.info.run_id, artifact_path="report.html")
    assert Path(kept).read_bytes() == (run / "report.html").read_bytes()
    assert {one.path for one in client.list_artifacts(found.info.run_id)} >= {"rows.csv", "config.json"}


def test_tensorboard_gets_each_number_once_however_often_it_is_asked(run: Path) -> None:
    reader = tracker("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):
        result = CliRunner().invoke(app, ["report", str(run), "--track", "tensorboard"])
        assert result.exit_code == 0, result.output
    events = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    scalars = [one for tag in events.Tags()["scalars"] for one in events.Scalars(tag)]
    assert sorted(one.value for one in scalars) == pytest.approx(values_of(run), rel=1e-6)
    assert set(events.Tags()["tensors"]) == {"settings/text_summary", "conclusions/text_summary"}


def test_unknown_and_missing_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: object())  # all are installed
    for text, said in (
        ("mlfow", "known: mlflow, tensorboard, wandb"), ("mlflow,", "nothing is called ''"), ("wandb,wandb", "stands twice"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            parse_trackers(text)
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["run", "--track", "wandb", "--out", "nowhere"])
    assert (result.exit_code, "pip install 'fedveil[wandb]'" in result.output) == (2, True)


def test_numbers_that_do_not_count_are_named_so_and_none_takes_anothers_place(run: Path) -> None:
    row = Row(
        metric="psnr", reference="original", defense="A(x=1) | B('/')", attack="C()", status="not-validated", value=9.0
    )
    assert metric_name(row) == "A-x-1-B/C/psnr-original.not-validated"
    twins = [row, replace(row, value=math.inf), replace(row, value=None), replace(row, defense="long " * 99)]
    with (run / "rows.jsonl").open("w") as file:
        file.writelines(f"{one.to_json()}\n" for one in twins)
    metrics = Tracked.of(run).metrics[0]
    assert len(metrics) == 3
    assert metrics[metric_name(row)] == 9.0
    assert metrics[f"{metric_name(row)}.2"] == math.inf
    assert max(map(len, metrics)) <= LONGEST_NAME
