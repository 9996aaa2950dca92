from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.errors import ConfigError
from simulations.preflight import require_folder


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_a_file_where_results_should_go_ends_the_command_before_any_work(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("a file")
    result = CliRunner().invoke(app, ["run", "--dry-run", "--out", str(tmp_path / "taken" / below)])
    assert result.exit_code == 2
    assert f"output-dir: {tmp_path / 'taken'} is a file" in " ".join(result.output.split())
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written to"):
        require_folder(tmp_path / "new")


def test_folders_that_do_not_exist_yet_are_allowed(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"), [("--cpus-per-client", "9999"), ("--gpus-per-client", "99"), ("--gpus-per-client", "nan")]
)
def test_more_than_the_machine_has_is_refused(tmp_path: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["run", option, value, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"{option} is {value}" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_batch_larger_than_all_data_is_refused(tmp_path: Path) -> None:
    settings = ["-s", "batch-size=101", "-s", "train-limit=100"]
    result = CliRunner().invoke(app, ["run", *settings, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "batch-size is 101; all clients together hold" in " ".join(result.output.split())
