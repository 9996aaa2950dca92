"""A run whose local SuperLink does not start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from simulations.experiment import Experiment
from simulations.launch import Resources
from simulations.local_run import STARTS, box_text, run_locally


def test_a_superlink_that_does_not_start_is_started_again_and_the_reason_is_flowers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Flower's own command, beside a SuperLink that ends at once.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flwr").symlink_to(Path(sys.executable).parent / "flwr")
    broken, starts = tmp_path / "bin" / "flower-superlink", tmp_path / "starts"
    broken.write_text(f'#!/bin/sh\necho "$@" >> {starts}\nmkdir -p "$FLWR_HOME/local-superlink"\n'
                      'echo "no memory left" > "$FLWR_HOME/local-superlink/superlink.log"\nexit 9\n')  # fmt: skip
    broken.chmod(0o755)
    python = tmp_path / "bin" / "python"  # no link, by which it would be another environment's
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    out = tmp_path / "run"
    assert run_locally(Console(), Experiment.of(output_dir=str(out), num_clients=2), Resources(2)) == 1
    # Nothing more is started to ask how a run went that never was.
    assert len({line.split("--port ")[1].split()[0] for line in starts.read_text().splitlines()}) == STARTS
    assert len(starts.read_text().splitlines()) == STARTS
    printed = capsys.readouterr()
    assert "Failed to start local SuperLink: `flower-superlink` exited with code 9." in printed.err
    assert "started again (2 of 3)" in printed.out
    assert "--resume" not in printed.err
    assert "superlink.log" not in printed.err
    assert (out / "flower.log").read_text().count("no memory left") == STARTS


@pytest.mark.parametrize(
    "border", ["╭─ Error ────╮\n│ {} │\n│ {} │\n╰────────────╯\n", "+- Error ----+\n| {} |\n| {} |\n+------------+\n"]
)
def test_the_text_of_the_last_box_is_told_in_one_line(border: str) -> None:
    late = border.format("Failed to start local SuperLink within 15s. See logs at ", "/tmp/x/superlink.log.        ")
    assert box_text(border.format("an", "other") + "words\n" + late) == "Failed to start local SuperLink within 15s."
    assert box_text("ValueError: no box\n") == ""
