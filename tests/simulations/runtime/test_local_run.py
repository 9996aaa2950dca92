"""A run whose local SuperLink does not start."""

import json
import sys
from pathlib import Path

import pytest

from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import Resources
from simulations.runtime.local_run import STARTS, _ended, box_text, engine_failure, run_locally
from simulations.runtime.progress import has_worked
from tests.simulations.report.report_run import write_run
from tests.simulations.runtime.runtimes import binaries

pytestmark = pytest.mark.usefixtures("as_its_own_process")


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower and Ray are stood in for, so that a path with a space is none of these tests' business."""
    monkeypatch.setattr("simulations.runtime.local_run.spaced_path", lambda: "")


@pytest.mark.long
def test_a_superlink_that_does_not_start_is_started_again_and_the_reason_is_flowers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts, log = tmp_path / "starts", "$FLWR_HOME/local-superlink"
    no_space = "OSError: [Errno 28] No space left on device"
    script = f'echo "$@" >> "{starts}"\nmkdir -p "{log}"\necho "{no_space}" > "{log}/superlink.log"\nexit 9'
    binaries(tmp_path, monkeypatch, flower_superlink=script)
    out = tmp_path / "run"
    assert run_locally(Terminal(), Experiment.of(output_dir=str(out), num_clients=2), Resources(2)) == 1
    # Nothing more is started to ask how a run went that never was.
    assert len({line.split("--port ")[1].split()[0] for line in starts.read_text().splitlines()}) == STARTS
    assert len(starts.read_text().splitlines()) == STARTS
    printed = capsys.readouterr()
    assert "Failed to start local SuperLink: `flower-superlink` exited with code 9." in printed.err
    assert "started again (2 of 2)" in printed.out
    assert "--resume" not in printed.err
    assert "superlink.log" not in printed.err
    assert (out / "flower.log").read_text().count("No space left on device") == STARTS
    assert f"its log ends with: {no_space}" in " ".join(printed.err.split())
    assert "the machine may be busy" not in printed.err


def test_the_text_of_the_last_box_is_told_in_one_line() -> None:
    for top, side, bottom in (("╭─ Error ────╮", "│", "╰────────────╯"), ("+- Error ----+", "|", "+------------+")):
        first, last = (
            f"{top}\n{side} {one} {side}\n{side} {two} {side}\n{bottom}\n"
            for one, two in (("an", "other"), ("no SuperLink", "within 15s. See logs at /tmp/x.log."))
        )
        assert box_text(f"{first}words\n{last}") == "no SuperLink within 15s.", top
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


def test_a_ray_that_fails_is_started_once_again_and_its_own_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command in place of Flower's, whose simulation ends as that of a machine without space."""
    (tmp_path / "words").write_text(RAY)
    starts = tmp_path / "starts"
    flower = f"""case "$2 $3" in
        *flower_command.py\\ run) echo run >> "{starts}"; cat "{tmp_path / "words"}";;
        *flower_command.py\\ list) echo '{{"runs": [{{"status": "finished:failed"}}]}}';;
        *) exec "{sys.executable}" "$@";;
    esac"""
    binaries(tmp_path, monkeypatch, python=flower)
    out = tmp_path / "run"
    assert run_locally(Terminal(), Experiment.of(output_dir=str(out), num_clients=2), Resources(2)) == 1
    assert starts.read_text() == "run\nrun\n"
    printed = capsys.readouterr()
    words = "Could not write into the session folder: No space left on device (1024 bytes were wanted)"
    assert (engine_failure(RAY), engine_failure("INFO :      fedveil: round 1 of 2\n")) == (words, "")
    assert f"Ray failed: {words}; started again" in " ".join(printed.out.split())
    assert f"the run failed (finished:failed): {words}" in " ".join(printed.err.split())
    assert "nothing was run: give the same command again" in printed.err


def test_a_resumed_run_has_worked_only_when_its_progress_is_another() -> None:
    """Of the first part the folder says how far it came: a Ray that fails in the second is started again all the same."""
    before = {"pipeline": 1, "round": 3}
    assert not has_worked(before, before)
    assert not has_worked({"failed": "no nodes"}, before)
    assert has_worked({"pipeline": 1, "round": 4}, before)
    assert has_worked({"pipeline": 1, "round": 1}, {})


def test_a_run_that_finished_is_finished_whatever_became_of_its_runtime(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    for finished, expected in ((True, 0), (False, 1)):
        (run / "config.json").write_text(json.dumps(config | {"progress": {"finished": finished, "round": 3}}))
        (run / "report.html").write_text("half a page")
        assert _ended(Terminal(), run, "running", "killed", 0.0) == expected
        assert ((run / "report.html").read_text() != "half a page") == finished
