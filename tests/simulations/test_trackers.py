"""Runs in TensorBoard, read by TensorBoard's own reader."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.report.studies.rows import read_rows
from simulations.run_folder.rows import Row
from simulations.settings.errors import ConfigError
from simulations.trackers import EXIT_NOT_TRACKED, metric_name, numbers, parse_track
from tests.simulations.report.report_run import INVERSION, write_run

ACCURACY = "no-defence/training/test-accuracy-original"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_tensorboard_gets_each_number_once_however_often_it_is_asked(run: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: uv sync --group dev",
    )
    for _ in range(2):
        result = CliRunner().invoke(app, ["report", str(run), "--track", "tensorboard"])
        assert result.exit_code == 0, result.output
    events = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    rows = read_rows(run / "rows.jsonl")[0]
    scalars = [one for tag in events.Tags()["scalars"] for one in events.Scalars(tag)]
    assert sorted(one.value for one in scalars) == pytest.approx(
        sorted(row.value for row in rows if row.value is not None), rel=1e-6
    )
    told = {one.step: one.value for one in events.Scalars(ACCURACY)}
    assert told == pytest.approx({row.round: row.value for row in rows if metric_name(row) == ACCURACY})
    assert len(told) >= 2
    assert set(events.Tags()["tensors"]) == {"settings/text_summary", "conclusions/text_summary"}
    text = {
        tag: events.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode()
        for tag in ("settings", "conclusions")
    }
    assert f"recognisable, 16 of 16 images (79.4 to 100.0 %), by {INVERSION}" in text["conclusions"]
    assert "| version." in text["settings"]


def test_a_run_that_cannot_be_written_is_told_and_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: uv sync --group dev")

    def full(_: Path) -> None:
        raise OSError("no\nspace")

    monkeypatch.setattr("simulations.trackers.write_events", full)
    result = CliRunner().invoke(app, ["report", str(run), "--track", "tensorboard"])
    assert result.exit_code == EXIT_NOT_TRACKED
    assert (run / "report.html").is_file()
    assert "not tracked: no space; try again with: fedveil report" in result.output


def test_unknown_and_missing_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: object())
    assert (parse_track(""), parse_track("tensorboard")) == (False, True)
    for text in ("tensorbord", "tensorboard,", "wandb"):
        with pytest.raises(ConfigError, match=rf"--track is '{text}'; allowed: tensorboard"):
            parse_track(text)
    monkeypatch.setattr("simulations.trackers.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["run", "--track", "tensorboard", "--out", "nowhere"])
    assert (result.exit_code, "pip install 'fedveil[tensorboard]'" in result.output) == (2, True)


def test_numbers_that_do_not_count_are_named_so_and_none_takes_anothers_place() -> None:
    row = Row(
        metric="psnr", reference="original", defense="A(x=1) | B('/')", attack="C()", status="not-validated", value=9.0
    )
    assert (name := metric_name(row)) == "A-x-1-B/C/psnr-original.not-validated"
    found = numbers(
        [row, replace(row, value=math.inf), replace(row, value=None), replace(row, round=1), replace(row, value=2.0)]
    )
    assert found == {(name, 0): 9.0, (f"{name}.2", 0): math.inf, (name, 1): 9.0, (f"{name}.3", 0): 2.0}
