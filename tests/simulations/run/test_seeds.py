import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from simulations.console.command_line import parse_seeds
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.run.seeds import EXIT_STOPPED, finish_seeds, of_seeds, one_by_one, runs_at_once
from simulations.runtime.progress import read_progress
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.commands import fedveil, refused
from tests.simulations.federated.test_federation import untimed
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, leftovers, marked, pairs, wait_until

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
    ("--jobs 2 --out {}", "--jobs is 2; it is for the runs of --seeds"),
    ("--seeds 0..1 --jobs 1000000000 --out {} --dry-run", "--jobs is 1000000000; allowed: 0 to "),
]  # fmt: skip


def test_the_command_refuses_what_contradicts_itself(tmp_path: Path) -> None:
    for options, message in CONTRADICTIONS:
        assert message in refused("run", *(word.format(tmp_path / "out") for word in options.split()), *PAIRS), options
        assert not (tmp_path / "out").exists()


def test_a_run_that_is_stopped_stops_those_behind_it(tmp_path: Path) -> None:
    experiment, ran = Experiment.of(output_dir=str(tmp_path), **SMALL), []
    silent = Terminal(quiet=True)
    ended = one_by_one(silent, of_seeds(experiment, [0, 1, 2]), lambda one: ran.append(one.seed) or EXIT_STOPPED)
    assert finish_seeds(silent, Path(experiment.output_dir), [0, 1, 2], ended) == EXIT_STOPPED
    assert ran == [0]


@pytest.mark.long
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two runs at once need two cores")
def test_runs_side_by_side_give_the_rows_of_runs_one_after_the_other(tmp_path: Path) -> None:
    """One of them is broken, in its own process alone."""
    for name in ("alone", "beside"):
        broken = tmp_path / name / "seed-7"
        broken.mkdir(parents=True)
        (broken / "rows.jsonl").mkdir()
    several = ("run", "--in-process", "--seeds", "0,7,1", *PAIRS, "--out")
    results = {name: fedveil(*several, tmp_path / name, "--jobs", at) for at, name in enumerate(("alone", "beside"), 1)}
    for name, (code, told) in results.items():
        assert (code, "seed 7; 2 of 3 seeds are finished" in told) == (1, True), told
        assert not (tmp_path / name / "comparison.html").exists()
    for seed in (0, 1):
        alone, beside = (untimed(read_lines(tmp_path / name / f"seed-{seed}" / "rows.jsonl")) for name in results)
        assert alone == beside != []
        assert all(row["seed"] == seed for row in alone)
    assert all(f"seed {seed} | finished in " in results["beside"][1] for seed in (0, 1))
    # Once what was broken is mended, the same command goes on with it alone.
    (tmp_path / "beside" / "seed-7" / "rows.jsonl").rmdir()
    code, told = fedveil(*several, tmp_path / "beside")
    assert (code, "seed 0" in told) == (0, False), told
    assert (tmp_path / "beside" / "comparison.html").is_file()


@pytest.mark.long
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two runs at once need two cores")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    endless = [*PAIRS, "-s", "rounds=1000000"]
    words = ["run", "--in-process", "--seeds", "0..2", "--jobs", "2", "--out", str(tmp_path / "out"), *endless]
    command = subprocess.Popen(
        [str(BINARIES / "fedveil"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=marked(tmp_path), start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    wait_until(lambda: all(read_progress(tmp_path / "out" / f"seed-{seed}").get("round", 0) > 1 for seed in (0, 1)))
    assert len(leftovers(tmp_path)) >= 3
    command.send_signal(number)
    codes = {signal.SIGINT: 130, signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGKILL: -9}
    assert command.wait(PATIENCE) == codes[number]
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")
    assert not (tmp_path / "out" / "seed-2").exists()
    assert command.stdout is not None
    told = command.stdout.read()
    if number != signal.SIGKILL:  # then the command cannot print it
        assert all(f"seed {seed} | stopped; continue with" in told for seed in (0, 1))
    if number == signal.SIGINT:
        assert "stopped; the same command goes on with what is left" in told


def needs(gigabytes: float) -> float:
    return gigabytes * 2**30


def test_as_many_at_once_as_cores_and_memory_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("simulations.run.seeds.memory_of_machine", lambda: 8 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=6 * 2**30))
    assert runs_at_once(0, 9, needs(0.5), busy=4) == 4
    assert runs_at_once(0, 3, needs(0.5), busy=4) == 3
    assert runs_at_once(0, 9, needs(3), busy=4) == 2
    assert runs_at_once(0, 9, needs(7), busy=4) == 1
    assert runs_at_once(0, 9, needs(0.5), busy=8) == 2
    assert runs_at_once(0, 9, needs(0.5), busy=9) == 1
    assert runs_at_once(0, 9, needs(0.5), busy=4, cards=1) == 1
    assert runs_at_once(0, 9, needs(0.5), busy=1, cards=0.5) == 1
    assert runs_at_once(12, 9, needs(0.5), busy=16) == 9
    with pytest.raises(ConfigError, match="--jobs is 17; allowed: 0 to 16, the cores of this machine"):
        runs_at_once(17, 99, needs(0.1), busy=1)
    with pytest.raises(ConfigError, match=r"--jobs is 3, and one run needs about 3.0 GiB.*allowed here: 0 to 2"):
        runs_at_once(3, 9, needs(3), busy=1)
