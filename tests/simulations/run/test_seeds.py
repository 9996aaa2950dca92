from pathlib import Path

import pytest

from simulations.console.command_line import parse_seeds
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.run.command import EXIT_STOPPED, of_seeds, run_seeds
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.commands import fedveil, refused
from tests.simulations.runtime.runtimes import pairs

pytestmark = pytest.mark.usefixtures("as_its_own_process")

SMALL = {
    "train_limit": 100, "test_limit": 20, "num_clients": 2, "rounds": 1, "local_steps": 1, "batch_size": 8, "defenses": "",
    "probe_attacks": "LabelInference()", "update_attacks": "", "attack_rounds": "first", "attack_workers": 0, "adaptive": False,
}  # fmt: skip
PAIRS = ["--clients", "2", *pairs({key.replace("_", "-"): v for key, v in SMALL.items() if key != "num_clients"})]


def test_seeds_are_read_as_ranges_and_numbers_and_other_texts_are_refused() -> None:
    for text, expected in (
        ("0..3", [0, 1, 2, 3]), ("7", [7]), ("1, 5,7 .. 9", [1, 5, 7, 8, 9]), ("3..3", [3]), ("0..999", list(range(1000))),
        ("0,1..999", list(range(1000))),
    ):  # fmt: skip
        assert parse_seeds(text) == expected
    for text in ("", "a", "-1", "0..", "4..2", "0..1000", "0..999,1000", "1,1", "0..5,3", "0...2", "1;2", "9" * 30):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)


CONTRADICTIONS = [
    ("--seeds 0..1", "needs --out"), ("--seeds x --out {}", "expected whole numbers and ranges"),
    ("--seeds 0..1 --out {} -s seed=3", "say the same"), ("--seeds 0..1 --resume {}", "goes on by itself"),
]  # fmt: skip


def test_the_command_refuses_what_contradicts_itself(tmp_path: Path) -> None:
    for options, message in CONTRADICTIONS:
        assert message in refused("run", *(word.format(tmp_path / "out") for word in options.split()), *PAIRS), options
        assert not (tmp_path / "out").exists()


def test_a_run_that_is_stopped_stops_those_behind_it(tmp_path: Path) -> None:
    experiment, ran = Experiment.of(output_dir=str(tmp_path), **SMALL), []
    silent = Terminal(quiet=True)
    left = of_seeds(experiment, [0, 1, 2])
    assert (
        run_seeds(silent, tmp_path, [0, 1, 2], left, lambda one: ran.append(one.seed) or EXIT_STOPPED) == EXIT_STOPPED
    )
    assert ran == [0]


@pytest.mark.long
def test_a_run_that_fails_ends_no_other_and_the_same_command_goes_on_with_it(tmp_path: Path) -> None:
    (tmp_path / "out" / "seed-7" / "rows.jsonl").mkdir(parents=True)
    several = ("run", "--in-process", "--seeds", "0,7,1", *PAIRS, "--out", tmp_path / "out")
    code, told = fedveil(*several)
    assert (code, "seed 7; 2 of 3 seeds are finished" in told) == (1, True), told
    assert not (tmp_path / "out" / "comparison.html").exists()
    for seed in (0, 1):
        rows = read_lines(tmp_path / "out" / f"seed-{seed}" / "rows.jsonl")
        assert rows
        assert all(row["seed"] == seed for row in rows)
    (tmp_path / "out" / "seed-7" / "rows.jsonl").rmdir()
    code, told = fedveil(*several)
    assert (code, "seed 0" in told) == (0, False), told
    assert (tmp_path / "out" / "comparison.html").is_file()
