"""The live display of a run: which step it names, and that its counts are those of the run."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from simulations.console import progress
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.run.in_process import flower_log, run_in_process
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.launch import Resources
from simulations.runtime.progress import STEPS, STEPS_IN_PROCESS, follow, read_progress, step_of
from tests.simulations.run.test_in_process import TINY

ROUND = {"pipeline": 1, "of": 2, "round": 0, "rounds": 2, "step": 1, "steps": 8, "attacks": 0, "attacks_done": 0}
"""After round 0 of two, behind which the trained model is observed."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, that the display reads."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def shown(
    console: Terminal, folder: Path, clock: list[float], states: list[tuple[float, dict[str, Any]]], log: str = ""
) -> str:
    """What ``follow`` prints while a run writes states, each so many seconds after the last."""
    (folder / "flower.log").write_text(log, encoding="utf-8")
    left = iter(states)

    def ended(_: float) -> bool:
        seconds, state = next(left, (0.0, None))
        clock[0] += seconds
        if state is not None:
            (folder / "config.json").write_text(json.dumps({"progress": state}), encoding="utf-8")
        return state is None

    follow(console, ended, folder)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_pipe_gets_a_line_for_each_pipeline_and_one_now_and_then(tmp_path: Path, clock: list[float]) -> None:
    states = [
        (5, {**ROUND, "accuracy": 0.5}),
        (2, {**ROUND, "step": 2}),
        (9, {**ROUND, "step": 3, "attacks": 2}),
        (1, {**ROUND, "step": 4, "attacks": 2}),
        (12, {**ROUND, "step": 8, "attacks": 4}),
        (20, {**ROUND, "step": 8, "attacks": 4, "attacks_done": 1}),
        (0, {**ROUND, "step": 8, "attacks": 4, "attacks_done": 2}),
        (20, {**ROUND, "step": 8, "attacks": 4, "attacks_done": 4}),
    ]  # fmt: skip
    assert shown(Terminal(file=io.StringIO(), width=300), tmp_path, clock, states).splitlines() == [
        "starting Flower: SuperLink",
        "pipeline 1 of 2: 1 of 8; training round 1 of 2",
        "pipeline 1 of 2: 3 of 8; observing the trained model; 0 of 2 attacks finished",
        "pipeline 2 of 2: 4 of 8; measuring the untrained model; 0 of 2 attacks finished",
        "attacks: 0 of 4",
        "attacks: 1 of 4",
        "writing the report",
    ]


def test_the_log_says_what_a_start_waits_for_and_nothing_of_earlier_runs(tmp_path: Path, clock: list[float]) -> None:
    log, before, steps = (
        tmp_path / "flower.log", "Successfully started run 7\nfedveil: results go to /x\n", list(STEPS.values()),
    )  # fmt: skip
    log.write_text(before, encoding="utf-8")
    assert [step_of(log, begin, STEPS) for begin in (len(before), 0)] == [steps[0], steps[2]]
    assert step_of(tmp_path / "none", 0, STEPS_IN_PROCESS) == "setting up the clients"
    (tmp_path / "config.json").write_text(json.dumps({"progress": ROUND}), encoding="utf-8")
    console = Terminal(file=io.StringIO(), width=200)
    assert shown(console, tmp_path, clock, [(1, ROUND)], "Successfully started run 1\n") == f"{steps[1]}\n"


@pytest.mark.usefixtures("as_its_own_process")
def test_a_run_counts_its_attacks_and_and_its_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    written: list[dict[str, Any]] = []
    write = RunDirectory.write_progress

    def kept(self: RunDirectory[Any], *args: Any, **more: Any) -> None:
        write(self, *args, **more)
        written.append(read_progress(self.path))

    monkeypatch.setattr(RunDirectory, "write_progress", kept)
    # Another test may have silenced logs at this level.
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    attacks = "InvertingGradients(iterations=2); LabelInference()"
    settings, out = {**TINY, "train_limit": 60, "test_limit": 20, "probe_attacks": attacks}, tmp_path / "run"
    settings |= {"attack_rounds": "first,final"}
    assert run_in_process(Terminal(), Experiment.of(output_dir=str(out), **settings), Resources(2)) == 0
    # Two attacks in two rounds of two pipelines.
    assert written[-1]["attacks"] == 8
    done = [one["attacks_done"] for one in written]
    assert done == sorted(done)
    assert set(done) == set(range(9))
    steps = [(one["step"], one["steps"]) for one in written]
    assert steps == sorted(steps)
    assert steps[-1] == (8, 8)
    # Flower's log is in its file and nowhere else.
    printed = capsys.readouterr()
    assert "fedveil: results go to" in (out / "flower.log").read_text(encoding="utf-8")
    assert "results go to" not in printed.out + printed.err + caplog.text
    # On a fast machine the clients are set up before the terminal looks for the first time.
    assert printed.out.splitlines()[0] in ("setting up the clients", "measuring the untrained model")


def test_flowers_log_is_as_it_was_after_a_run_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    flwr, path = logging.getLogger("flwr"), tmp_path / "run" / "flower.log"
    before = (list(flwr.handlers), flwr.propagate, flwr.level)
    path.parent.mkdir()
    path.write_text("earlier\n", encoding="utf-8")

    def fail() -> None:
        with flower_log(path) as begin:
            assert begin == len("earlier\n")
            flwr.info("of a client: %s", "ü\ud800")
            raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        fail()
    assert (flwr.handlers, flwr.propagate, flwr.level) == before
    text = path.read_text(encoding="utf-8")
    assert text.startswith("earlier\n")
    assert "INFO: of a client: ü\\ud800" in text
