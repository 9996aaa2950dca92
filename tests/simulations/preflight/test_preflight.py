"""Folders, names and counts that a run refuses before any work."""

import os
from pathlib import Path

import pytest

from simulations.run_folder.folder_lock import require_folder
from simulations.settings.errors import ConfigError
from tests.simulations.commands import refused

pytestmark = pytest.mark.usefixtures("as_its_own_process")


def test_a_file_where_results_should_go_ends_the_command_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for below in ("", "deeper", "deeper/still"):
        told = refused("run", "--dry-run", "--out", str(tmp_path / "taken" / below))
        assert f"output-dir: {tmp_path / 'taken'} is a file" in told
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written to"):
        require_folder(tmp_path / "new")


def test_folders_that_do_not_exist_yet_are_allowed_and_impossible_names_are_not(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"output-dir: .*embedded null byte; name another folder"):
        require_folder(tmp_path / "a\0b")


def test_folders_in_which_no_file_can_be_made_are_refused_in_a_dry_run_too() -> None:
    """Root may write everywhere, says the system, until it tries."""
    for folder in ("/proc", "/sys"):
        assert f"output-dir: {folder}" in refused("run", "--dry-run", "--out", f"{folder}/fedveil-test")


LONG = "y" * 300
LINES = [
    ("output-dir", "run --dry-run --out {}"), ("output-dir", "run --dry-run --out {}/deeper"),
    ("output-dir", "run --dry-run -s output-dir={}"), ("output-dir", "run --dry-run --seeds 0..1 --out {}"),
    ("--resume", "run --resume {}"), ("data-dir", "run --dry-run -s dataset=folder -s data-dir={}"),
    ("DIRECTORY", "report {}"), ("DIR", "compare {}"),
]  # fmt: skip


def test_names_that_are_too_long_are_told_with_what_names_them(tmp_path: Path) -> None:
    for below in ("", "new"):
        for key, line in LINES:
            told = refused(*(word.format(tmp_path / below / LONG) for word in line.split()))
            assert told.startswith("error: "), line
            if not below or key == "output-dir":  # elsewhere a missing folder is told first
                assert key in told, line
                assert "File name too long" in told, line
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_machine_or_the_data_have_is_refused(tmp_path: Path) -> None:
    held_out = ["-s", "train-limit=100", "-s", "auxiliary-fraction=0.3"]
    for words, told in (
        (["--cpus-per-client", "9999"], "--cpus-per-client is 9999"),
        (["--gpus-per-client", "99"], "--gpus-per-client is 99"),
        (["--gpus-per-client", "nan"], "--gpus-per-client is nan"),
        (
            [*held_out, "--clients", "71"],
            "71 clients share 100 training examples, of which the server holds 30 (auxiliary-fr",
        ),
        ([*held_out, "-s", "batch-size=71"], "batch-size is 71; all clients together hold 70 training examples"),
    ):
        assert told in refused("run", *words, "--out", str(tmp_path / "out")), words
        assert not (tmp_path / "out").exists()
