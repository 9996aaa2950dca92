"""Runs in trackers, with the real ones: MLflow on a database, TensorBoard's files, Weights & Biases offline."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simulations
from simulations.cli import app
from simulations.report.studies.rows import read_rows
from simulations.run_folder.rows import Row
from simulations.settings.errors import ConfigError
from simulations.trackers import ASKS, EXIT_NOT_TRACKED, LONGEST_NAME, Tracked, metric_name, parse_trackers
from tests.simulations.run.test_in_process import TINY

ACCURACY = "no-defence/training/test-accuracy-original"


def tracker(module: str) -> Any:
    """A module of a tracker; its test is skipped where the tracker is not installed."""
    return pytest.importorskip(module, reason=f"{module.partition('.')[0]} is not installed: uv sync --group dev")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulations.audit(out=tmp_path_factory.mktemp("tracked") / "run", experiment="digits", **TINY).directory


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run, with trackers that write here."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, tmp_path / "run")


def values_of(directory: Path) -> list[float]:
    return sorted(row.value for row in read_rows(directory / "rows.jsonl")[0] if row.value is not None)


@pytest.mark.long
def test_mlflow_gets_settings_rows_by_round_conclusions_and_files(run: Path, tmp_path: Path) -> None:
    mlflow = tracker("mlflow")
    result = CliRunner().invoke(app, ["report", str(run), "--track", "mlflow"])
    assert result.exit_code == 0, result.output
    assert "experiment 'digits'" in result.output
    client = mlflow.tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run"
    assert found.info.status == "FINISHED"
    assert (found.data.params["rounds"], found.data.params["dataset"]) == ("2", "mnist-5k")
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


def test_wandb_gets_them_offline(run: Path) -> None:
    wandb = tracker("wandb")
    Record = tracker("wandb.proto.wandb_internal_pb2").Record
    DataStore = tracker("wandb.sdk.internal.datastore").DataStore
    result = CliRunner().invoke(app, ["report", str(run), "--track", "wandb"])
    assert result.exit_code == 0, result.output
    wandb.teardown()  # as the end of a process does: waits for the process that writes the file
    (file,) = run.glob("wandb/offline-run-*/run-*.wandb")
    store, numbers, steps, files = DataStore(), [], [], set()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            steps.append(items["_step"])
            numbers += [value for name, value in items.items() if not name.startswith("_")]
        if record.HasField("request") and record.request.HasField("log_artifact"):
            files = {entry.path for entry in record.request.log_artifact.artifact.manifest.contents}
        if record.HasField("artifact"):
            files = {entry.path for entry in record.artifact.manifest.contents}
    assert sorted(numbers) == pytest.approx(values_of(run))
    assert steps == sorted(set(steps))
    assert {"report.html", "rows.csv", "config.json"} <= files


@pytest.mark.long
def test_a_run_is_tracked_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker("tensorboard")
    monkeypatch.chdir(tmp_path)
    pairs = [f"{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "num_clients"]
    line = ["run", "--in-process", "--clients", "2", "--out", "made", "--track", "tensorboard"]
    result = CliRunner().invoke(app, line + [part for pair in pairs for part in ("-s", pair)])
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "made" / "tensorboard").glob("events.out.tfevents.*"))


def test_what_a_tracker_does_not_take_is_told_and_the_run_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker("mlflow")
    tracker("tensorboard")
    monkeypatch.delitem(ASKS, "mlflow")  # the server is gone only after the run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nobody")
    result = CliRunner().invoke(app, ["report", str(run), "--track", "mlflow,tensorboard"])
    assert result.exit_code == EXIT_NOT_TRACKED
    assert "not tracked: mlflow:" in result.output
    assert f"fedveil report {run} --track mlflow" in result.output
    assert (run / "tensorboard").is_dir()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mlfow", "known: mlflow, tensorboard, wandb"),
        ("mlflow,", "nothing is called ''"),
        ("wandb,wandb", "stands twice"),
    ],
)
def test_other_names_are_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: object())  # all are installed
    with pytest.raises(ConfigError, match=said):
        parse_trackers(text)


def test_a_tracker_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["run", "--track", "wandb", "--out", "nowhere"])
    assert result.exit_code == 2
    assert "pip install 'fedveil[wandb]'" in result.output


def test_a_store_that_cannot_be_reached_ends_the_command_before_any_work(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nobody")
    out = run.parent / "new"
    line = ["run", "--preset", "quick", "--in-process", "--out", str(out), "--track", "mlflow"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2, result.output
    assert "--track mlflow:" in result.output
    assert "gopher" in result.output
    assert "memory: about" not in result.output  # which is estimated only then
    assert not out.exists()


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


def test_a_dry_run_leaves_no_database_and_says_that_nobody_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    result = CliRunner().invoke(app, ["run", "--preset", "quick", "--dry-run", "--track", "mlflow"])
    assert result.exit_code == 0, result.output
    assert "tracker: mlflow is installed; whether it takes runs is tried only when one starts" in result.output
    assert list(tmp_path.iterdir()) == []
