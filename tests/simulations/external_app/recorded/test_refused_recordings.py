"""What ``fedveil attack FOLDER`` refuses before any work, and replies that it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import DLG, RATE, invoke, record

CASES: dict[str, tuple[list[str], str]] = {
    "steps": ([], "does not tell how often a client stepped; name --local-steps, or --local-epochs and --batch-size"),
    "epochs": (
        ["--local-epochs", "-1", "--batch-size", "1"],
        "--local-epochs is -1; allowed: a whole number of at least 0",
    ),
    "weights": (["--local-steps", "1", "--weights", "w"], "--weights is for a single update"),
    "labels": (["--local-steps", "1", "--labels", "3"], "--labels is for a single update"),
    "rounds": (["--local-steps", "1", "--rounds", "7"], "--rounds is '7'; allowed: of 1, such as 1,3"),
    "model": (["--local-steps", "1", "--model", "cnn"], "lacks '0.weight'"),
    "originals": (["--local-steps", "1", "--originals", "nowhere"], "nowhere has neither round-0001-node-1"),
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("foreign"), names=False)


@pytest.mark.parametrize("case", CASES)
def test_refuses_before_any_work(foreign: Path, tmp_path: Path, case: str) -> None:
    options, message = CASES[case]
    result = invoke(foreign, *options, out=tmp_path / "out", attack=DLG)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "out").exists()


def test_refuses_what_is_no_recording(tmp_path: Path) -> None:
    assert "holds no recording" in invoke(tmp_path, "--local-steps", 1).output
    file = tmp_path / "update.safetensors"
    save_file({"a": torch.zeros(1)}, file)
    assert "--rounds is for recordings" in invoke(file, "--rounds", "1", "--learning-rate", 1).output
    words = " ".join(invoke(file, attack=DLG).output.split())
    assert "lacks '0.weight'" in words, "an update without a learning rate is read"


@pytest.mark.parametrize("told", [{"local-epochs": -1, "batch-size": 1}, {"local-epochs": 1, "batch-size": -2}])
def test_numbers_of_a_recording_that_are_none_blame_no_option(tmp_path: Path, told: dict[str, int]) -> None:
    folder = record(tmp_path, **told)
    words = " ".join(invoke(folder, out=tmp_path / "out", attack=DLG).output.split())
    assert "does not tell how often a client stepped; name --local-steps" in words
    path = folder / "round-0001" / "sent.json"
    path.write_text(path.read_text().replace(f'"lr": {RATE}', '"lr": -0.5'))
    words = " ".join(invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack=DLG).output.split())
    assert "holds no 'lr' or 'learning-rate' or 'learning_rate' above 0 (-0.5); name --learning-rate" in words


def test_a_file_in_place_of_the_folder_of_results_is_told_first(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.touch()
    (tmp_path / "rec").mkdir()
    for there in (tmp_path / "rec", file):
        words = " ".join(invoke(there, "--learning-rate", 1, out=file / "inside").output.split())
        assert f"--out: {file} is a file, and results need a folder" in words


def test_a_reply_with_nan_is_told_and_the_others_are_attacked(tmp_path: Path) -> None:
    folder = record(tmp_path)
    path = folder / "round-0001" / "train-0001-0.safetensors"
    with safe_open(path, framework="pt") as file:
        order, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["0.weight"][0] = float("nan")
    save_file(arrays, path, order)
    result = invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    assert "'0.weight' holds NaN or infinite values" in " ".join(result.output.split())
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert (about["n"], len(about["unusable"])) == (1, 1)


def test_a_dropped_reply_is_told(foreign: Path, tmp_path: Path) -> None:
    """The report names a reply whose arrays were dropped, and the others are attacked."""
    path = foreign / "round-0001" / "train-0000.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | {"arrays": {}, "dropped": "arrays: the disk was full"}))
        result = invoke(foreign, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    finally:
        path.write_text(before)
    assert result.exit_code == 0, result.output
    assert "its arrays were not recorded: arrays: the disk was full" in (tmp_path / "out" / "report.html").read_text(
        encoding="utf-8"
    )
