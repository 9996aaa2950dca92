from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.forecast.preflight import require_folder
from simulations.run.requested import requested
from simulations.settings.errors import ConfigError


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


def test_examples_that_are_all_of_one_class_are_refused(tmp_path: Path) -> None:
    """A classifier would be right whatever it learned, and every accuracy 100 %."""
    lines = (
        "import torch\nclass Given(list):\n    classes = [str(n) for n in range(100)]\n"
        "def data():\n    return tuple(Given([(torch.rand(1, 28, 28), 99)] * 90) for _ in range(2))\n"
    )
    (tmp_path / "given.py").write_text(lines.replace("torch.rand(1, 28, 28)", "torch.full((1, 28, 28), 0.5)"))
    settings = ["-s", f"dataset={tmp_path}/given.py:data"]
    result = CliRunner().invoke(app, ["run", "--dry-run", *settings, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "all 90 training examples are of the class 99; allowed: data with two or more classes" in " ".join(
        result.output.split()
    )


LONG = "y" * 300


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (["run", "--dry-run", "--out", "{}"], "output-dir"),
        (["run", "--dry-run", "--out", "{}/deeper"], "output-dir"),
        (["run", "--dry-run", "-s", "output-dir={}"], "output-dir"),
        (["run", "--dry-run", "--seeds", "0..1", "--out", "{}"], "output-dir"),
        (["run", "--resume", "{}"], "--resume"),
        (["run", "--dry-run", "-s", "dataset=folder", "-s", "data-dir={}"], "data-dir"),
        (["run", "--dry-run", "-s", "dataset={}.py:load"], "dataset"),
        (["run", "--dry-run", "-s", "model={}.py:Net"], "model"),
        (["report", "{}"], "DIRECTORY"),
        (["compare", "{}"], "DIR"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("below", ["", "new"])
def test_names_that_are_too_long_are_told_with_what_names_them(
    tmp_path: Path, line: list[str], key: str, below: str
) -> None:
    result = CliRunner().invoke(app, [part.format(tmp_path / below / LONG) for part in line])
    output = " ".join(result.output.split())
    assert result.exit_code == 2, repr(result.exception)
    assert output.startswith("error: ")
    if not below or key == "output-dir":  # elsewhere a missing folder is told first
        assert key in output
        assert "File name too long" in output
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output-dir: .*embedded null byte; name another folder"):
        require_folder(tmp_path / "a\0b")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that takes no files")
def test_a_folder_that_takes_no_files_is_refused_in_a_dry_run_too() -> None:
    result = CliRunner().invoke(app, ["run", "--dry-run", "--out", "/proc/x"])
    assert result.exit_code == 2
    assert "output-dir: /proc" in result.output


def test_an_empty_folder_name_is_not_the_folder_one_stands_in(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--dry-run", "--out", ""])
    assert result.exit_code == 2
    assert "it is empty" in " ".join(result.output.replace("│", " ").split())  # in a box as wide as the terminal
    (tmp_path / "own.toml").write_text('output-dir = ""\n')
    for asked in (requested(None, {"output-dir": ""}), requested(tmp_path / "own.toml", {})):
        assert Path(asked.output_dir).parent == Path("runs").resolve()


def test_examples_are_counted_without_those_of_the_server(tmp_path: Path) -> None:
    def told(*settings: str) -> str:
        line = ["run", "--dry-run", "-s", "train-limit=100", "-s", "auxiliary-fraction=0.3", *settings]
        result = CliRunner().invoke(app, [*line, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    few = told("--clients", "90")
    assert "90 clients share 100 training examples, of which the server holds 30 (auxiliary-fraction = 0.3)" in few
    assert "all clients together hold 70 training examples" in told("-s", "batch-size=71")
