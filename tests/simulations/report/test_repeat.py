"""Commands on pages run the experiment of the page, and no other."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.experiment.experiment import Experiment
from simulations.report.repeat import command_of
from simulations.run.command import RunRequest
from simulations.run.requested import requested
from simulations.settings.presets import presets


def run_by(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple[RunRequest, Experiment]:
    """The request of a command line and its experiment."""
    taken: list[RunRequest] = []

    def begin(console: object, request: RunRequest, *, dry_run: bool) -> int:
        taken.append(request)
        return 0

    monkeypatch.setattr("simulations.run.command.begin", begin)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    (one,) = taken
    return one, requested(one.config, one.settings, one.out, one.resume, one.clients, one.size)


@pytest.mark.parametrize(
    ("preset", "size", "settings", "words"),
    [
        ("quick", "", {}, "fedveil run --preset quick --seeds 0..4 --out five"),
        ("quick", "", {"rounds": 4, "adaptive": False}, "-s rounds=4"),
        ("split_table2", "paper", {"learning-rate": 0.5}, "--preset split_table2 --size paper -s "),
        ("", "", {}, "fedveil run --seeds 0..4 --out five"),
        (
            "",
            "",
            {"defenses": "DPSGD(target_epsilon=8.0); Pruning()", "experiment": "it's mine"},
            "-s 'defenses=DPSGD(",
        ),
        ("", "", {"num-clients": 7, "learning-rate": 1e-05}, "-s num-clients=7"),
    ],
)
def test_the_command_gives_the_settings_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, size: str, settings: dict[str, Any], words: str
) -> None:
    before = requested(presets().get(preset), {**settings, "seed": 9}, tmp_path / "run", size=size)
    command = command_of({"config": before.to_mapping()}, "0..4", "five")
    assert words in command
    request, again = run_by(command, monkeypatch)
    assert request.seeds == [0, 1, 2, 3, 4]
    assert not request.in_process
    assert replace(again, seed=9, output_dir=before.output_dir) == before


def test_a_run_in_process_is_repeated_in_process_and_settings_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = requested(presets()["quick"], {}, tmp_path / "run")
    config = {"config": before.to_mapping(), "run": {"in-process": True}}
    request, again = run_by(command_of(config, "5", "more", probe_targets=32), monkeypatch)
    assert request.in_process
    assert (again.probe_targets, before.probe_targets) == (32, 4)


@pytest.mark.parametrize("odd", [{}, {"config": 3, "run": []}, {"config": {"experiment": [], "rounds": {}, "x": "y"}}])
def test_a_damaged_configuration_gives_a_plain_command(odd: dict[str, Any]) -> None:
    assert command_of(odd, "0", "one") == "fedveil run --seeds 0 --out one"
