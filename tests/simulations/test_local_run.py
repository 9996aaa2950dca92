"""A run whose local SuperLink does not start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from simulations.experiment import Experiment
from simulations.launch import Resources
from simulations.local_run import STARTS, box_text, engine_failure, run_locally


def test_a_superlink_that_does_not_start_is_started_again_and_the_reason_is_flowers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Flower's own command, beside a SuperLink that ends at once.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flwr").symlink_to(Path(sys.executable).parent / "flwr")
    broken, starts = tmp_path / "bin" / "flower-superlink", tmp_path / "starts"
    broken.write_text(f'#!/bin/sh\necho "$@" >> "{starts}"\nmkdir -p "$FLWR_HOME/local-superlink"\n'
                      'echo "OSError: [Errno 28] No space left on device" > "$FLWR_HOME/local-superlink/superlink.log"\n'
                      "exit 9\n")  # fmt: skip
    broken.chmod(0o755)
    python = tmp_path / "bin" / "python"  # no link, by which it would be another environment's
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
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
    assert (out / "flower.log").read_text().count("No space left on device") == STARTS
    assert "its log ends with: OSError: [Errno 28] No space left on device" in " ".join(printed.err.split())
    assert "the machine may be busy" not in printed.err


@pytest.mark.parametrize(
    "border", ["╭─ Error ────╮\n│ {} │\n│ {} │\n╰────────────╯\n", "+- Error ----+\n| {} |\n| {} |\n+------------+\n"]
)
def test_the_text_of_the_last_box_is_told_in_one_line(border: str) -> None:
    late = border.format("Failed to start local SuperLink within 15s. See logs at ", "/tmp/x/superlink.log.        ")
    assert box_text(border.format("an", "other") + "words\n" + late) == "Failed to start local SuperLink within 15s."
    assert box_text("ValueError: no box\n") == ""


RAY = """\x1b[92mINFO \x1b[0m:      Starting Flower Simulation
\x1b[91mERROR \x1b[0m:     An exception occured!! Could not write into the session folder:
No space left on device (1024 bytes were wanted)
\x1b[91mERROR \x1b[0m:     Traceback (most recent call last):
  File "vce_api.py", line 208, in run_api
OSError: [Errno 28] No space left on device
RuntimeError: Simulation Runtime crashed.
RuntimeError: An error was encountered. Ending simulation.
"""
"""As Flower 1.41 writes it."""


def test_what_ray_said_is_told_and_not_what_became_of_it() -> None:
    told = "Could not write into the session folder: No space left on device (1024 bytes were wanted)"
    assert engine_failure(RAY) == told
    assert engine_failure("INFO :      fedveil: round 1 of 2\n") == ""


def test_a_ray_that_fails_is_started_once_again_and_its_own_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command in place of Flower's, whose simulation ends as that of a machine without space."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "words").write_text(RAY)
    starts = tmp_path / "starts"
    flower = tmp_path / "bin" / "flwr"
    flower.write_text(f'#!/bin/sh\nif [ "$1" = run ]; then echo run >> "{starts}"; cat "{tmp_path / "words"}"; else '
                      """echo '{"runs": [{"status": "finished:failed"}]}'; fi\n""")  # fmt: skip
    flower.chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    out = tmp_path / "run"
    assert run_locally(Console(), Experiment.of(output_dir=str(out), num_clients=2), Resources(2)) == 1
    assert starts.read_text() == "run\nrun\n"
    printed = capsys.readouterr()
    words = "Could not write into the session folder: No space left on device (1024 bytes were wanted)"
    assert f"Ray failed: {words}; started again" in " ".join(printed.out.split())
    assert f"the run failed (finished:failed): {words}" in " ".join(printed.err.split())
    assert "nothing was run: give the same command again" in printed.err
