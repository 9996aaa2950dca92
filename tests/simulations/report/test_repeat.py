import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.report.repeat import command_of
from simulations.run.command import RunRequest
from simulations.run.requested import requested
from simulations.settings.presets import presets


def test_the_command_gives_the_settings_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[RunRequest] = []
    monkeypatch.setattr("simulations.run.command.begin", lambda console, one, *, dry_run: taken.append(one) or 0)
    text = "DPSGD(target_epsilon=8.0); Pruning()"
    for preset, size, settings, changed, words in (
        ("quick", "", {}, {}, "fedveil run --preset quick --seeds 0..4 --out five"),
        ("quick", "", {"rounds": 4, "adaptive": False}, {}, "-s rounds=4"),
        ("quick", "", {}, {"probe_targets": 32}, "-s probe-targets=32"),
        ("split_table2", "paper", {"learning-rate": 0.5}, {}, "--preset split_table2 --size paper -s "),
        ("", "", {}, {}, "fedveil run --seeds 0..4 --out five"),
        ("", "", {"defenses": text, "experiment": "it's mine"}, {}, "-s 'defenses=DPSGD("),
        ("", "", {"num-clients": 7, "learning-rate": 1e-05}, {}, "-s num-clients=7"),
    ):  # fmt: skip
        before = requested(presets().get(preset), {**settings, "seed": 9}, tmp_path / "run", size=size)
        config: dict[str, Any] = {"config": before.to_mapping()} | ({"run": {"in-process": True}} if changed else {})
        command = command_of(config, "0..4", "five", **changed)
        assert words in command
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        one = taken.pop()
        assert (one.seeds, one.in_process) == ([0, 1, 2, 3, 4], bool(changed))
        again = requested(one.config, one.settings, one.out, one.resume, one.clients, one.size)
        assert again.but(seed=9, output_dir=before.output_dir) == before.but(**changed)


def test_a_damaged_configuration_gives_a_plain_command() -> None:
    odd: dict[str, Any] = {"config": {"experiment": [], "rounds": {}, "x": "y"}}
    for config in ({}, {"config": 3, "run": []}, odd):
        assert command_of(config, "0", "one") == "fedveil run --seeds 0 --out one"
