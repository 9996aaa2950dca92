"""The folder of an audit's results is chosen and taken before the first round."""

import os
import re
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from simulations.external_app.study import RESULTS, take_folder
from tests.strategies.external_app.app import AppGrid, Net, an_app


def watched(out: Path) -> Strategy:
    known = {"workers": 0, "probe_attacks": "Spear()", "update_attacks": ""}
    return audited(FedAvg(fraction_evaluate=0.0), out, Net, **known)


def start(strategy: Strategy) -> None:
    arrays = ArrayRecord(Net().state_dict())
    strategy.start(AppGrid(an_app()), arrays, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))


def test_a_second_run_writes_beside_the_first_and_says_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "audit"
    start(watched(out))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with caplog.at_level("WARNING", logger="flwr"):
        second = watched(out)
    said = f"{out} holds the results of another run; the results of this run go to {tmp_path / 'audit-2'}"
    assert said in caplog.text, "said before the first round"
    with caplog.at_level("INFO", logger="flwr"):
        start(second)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    said = [record.getMessage() for record in caplog.records if "Audit" in record.getMessage()]
    assert said[-1].startswith("Audit verdict: No mod known")
    assert re.search(r": (recognisable|identifiable|nothing found|unknown), \d+ of 16 ", said[-1])
    assert said[-1].endswith(f". See {tmp_path / 'audit-2' / 'report.html'}")


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


def test_each_file_of_results_keeps_a_folder_and_other_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for _ in range(2):  # free again when nothing came of it
        assert take_folder(tmp_path).path == tmp_path
    for name in RESULTS:
        (folder := tmp_path / f"with-{name}").mkdir()
        (folder / name).touch()
        assert take_folder(folder).path == folder.with_name(f"{folder.name}-2")
    # The second run begins before the first has written anything.
    first, second = take_folder(tmp_path / "audit"), take_folder(tmp_path / "audit")
    assert (first.path, second.path) == (tmp_path / "audit", tmp_path / "audit-2")
