from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from simulations.cli import app
from simulations.errors import ConfigError
from simulations.experiment import Experiment
from simulations.local_grid import LocalGrid
from simulations.seed_ranges import parse_seeds
from simulations.seeds import of_seeds, run_seeds
from simulations.server_app import run_experiment

SMALL = {
    "train_limit": 100, "test_limit": 20, "num_clients": 2, "rounds": 1, "local_steps": 1, "batch_size": 8, "defenses": "",
    "probe_attacks": "LabelInference()", "update_attacks": "", "attack_rounds": "first", "attack_workers": 0, "adaptive": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"), [("0..3", [0, 1, 2, 3]), ("7", [7]), ("1, 5,7 .. 9", [1, 5, 7, 8, 9]), ("3..3", [3])]
)
def test_seeds_are_read_as_ranges_and_numbers(text: str, expected: list[int]) -> None:
    assert parse_seeds(text) == expected


@pytest.mark.parametrize("text", ["", "a", "-1", "0..", "4..2", "0..1000", "1,1", "0..5,3", "0...2", "1;2", "9" * 30])
def test_other_texts_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_what_failed_is_taken_up_again_and_what_is_finished_is_not(tmp_path: Path) -> None:
    experiment, ran = Experiment.of(output_dir=str(tmp_path), **SMALL), []

    def run(one: Experiment, fails: int = -1) -> int:
        ran.append((one.seed, one.resume))
        if one.seed == fails:
            return 1
        run_experiment(LocalGrid(one.num_clients), one)
        return 0

    silent = Console(quiet=True)
    assert run_seeds(silent, experiment, [0, 1], lambda one: run(one, fails=1)) == 1
    assert not (tmp_path / "comparison.html").exists()
    assert run_seeds(silent, experiment, [0, 1], run) == 0
    assert ran == [(0, False), (1, False), (1, False)]
    rows = {seed: (tmp_path / f"seed-{seed}" / "rows.jsonl").read_text().splitlines() for seed in (0, 1)}
    assert all(json.loads(line)["seed"] == seed for seed, lines in rows.items() for line in lines)
    assert [line.replace('"seed": 1', '"seed": 0') for line in rows[1]] != rows[0]
    assert "0, 1" in (tmp_path / "comparison.html").read_text()
    assert of_seeds(experiment, [0, 1]) == []
    with pytest.raises(ConfigError, match="rounds was 1 and is now 2"):
        of_seeds(Experiment.of(output_dir=str(tmp_path), **SMALL | {"rounds": 2}), [0, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "0..1"], "needs --out"),
        (["--seeds", "x", "--out", "{}"], "expected whole numbers and ranges"),
        (["--seeds", "0..1", "--out", "{}", "-s", "seed=3"], "say the same"),
        (["--seeds", "0..1", "--resume", "{}"], "goes on by itself"),
    ],
)
def test_the_command_refuses_what_contradicts_itself(tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["run", *(one.format(tmp_path / "out") for one in options)])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
