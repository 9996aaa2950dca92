"""The folder of an audit's results is chosen and taken before the first round."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from simulations.external_app.results_folder import RESULTS, take_folder
from tests.strategies.external_app.app import AppGrid, Net, an_app


def watched(out: Path) -> Strategy:
    known = {"workers": 0, "probe_attacks": "LabelInference()", "update_attacks": ""}
    return audited(FedAvg(fraction_evaluate=0.0), out, Net, **known)


def start(strategy: Strategy) -> None:
    arrays = ArrayRecord(Net().state_dict())
    strategy.start(AppGrid(an_app()), arrays, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))


def test_a_second_run_of_the_same_lines_writes_beside_the_first_and_the_log_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "audit"
    start(watched(out))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with caplog.at_level("WARNING", logger="flwr"):
        second = watched(out)
    said = f"{out} holds the results of another run; the results of this run go to {tmp_path / 'audit-2'}"
    assert said in caplog.text, "said before the first round"
    start(second)
    start(watched(out))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    for name in ("audit", "audit-2", "audit-3"):
        assert (tmp_path / name / "report.html").is_file()
    assert not (tmp_path / "audit-4").exists()


def test_two_runs_at_the_same_time_have_two_folders(tmp_path: Path) -> None:
    """The second begins before the first has written anything."""
    first, second = watched(tmp_path / "audit"), watched(tmp_path / "audit")
    start(first)
    start(second)
    assert (tmp_path / "audit" / "report.html").is_file()
    assert (tmp_path / "audit-2" / "report.html").is_file()


def test_a_process_that_inherited_the_lock_does_not_keep_the_folder(tmp_path: Path) -> None:
    """A second descriptor of the same open file, as a forked process has it."""
    taken = take_folder(tmp_path)
    inherited = os.dup(taken._lock.fileno())
    try:
        taken.release()
        taken.release()
        assert take_folder(tmp_path).path == tmp_path
    finally:
        os.close(inherited)


@pytest.mark.parametrize("name", RESULTS)
def test_each_file_of_results_keeps_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert take_folder(tmp_path).path == tmp_path.with_name(f"{tmp_path.name}-2")


def test_a_folder_without_results_is_used_and_is_free_again_when_nothing_came_of_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for _ in range(2):
        assert take_folder(tmp_path).path == tmp_path


def test_the_log_ends_with_the_verdict_and_the_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        strategy = audited(FedAvg(fraction_evaluate=0.0), tmp_path / "out", Net, workers=0, probe_attacks="Spear()")
        start(strategy)
    said = [record.getMessage() for record in caplog.records if "Audit" in record.getMessage()]
    assert said[-1].startswith("Audit verdict: No mod known")
    assert re.search(r" \d+ of 16 († )?images recovered \(", said[-1])
    assert said[-1].endswith(f"; {tmp_path / 'out' / 'report.html'}")


def test_an_audit_without_a_score_says_that_its_verdict_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        start(audited(FedAvg(fraction_evaluate=0.0), tmp_path / "out", Net, workers=0, go_on=True, learning_rate=0.1,
                      probe_attacks="", update_attacks="LabelInference()"))  # fmt: skip
    assert "Audit verdict: No defence: unknown, no attack on images has a score;" in caplog.text
