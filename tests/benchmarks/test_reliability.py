"""The scripts behind docs/reliability.md: what they change in copies of the app is there, and what they draw is what they say."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from reliability_failing import AFTERWARDS, FAILING, WAYS, way_of
from reliability_real import ANSWER, COMPLETE, changed, copy_of_the_app

from clients.flower_private import act_as_task
from simulations.runtime.launch import ROOT


def test_a_copy_of_the_app_has_the_scripts_beside_it_and_in_its_bundle(tmp_path: Path) -> None:
    app = copy_of_the_app(tmp_path / "copy", "reliability_marks", "reliability_failing")
    assert {path.name for path in app.glob("*.py")} == {"reliability_marks.py", "reliability_failing.py"}
    assert '"/reliability_*.py"' in (app / "pyproject.toml").read_text()
    for package in ("clients", "simulations"):
        assert (app / package / "__init__.py").read_text() == (ROOT / package / "__init__.py").read_text()


@pytest.mark.parametrize(("file", "line"), [("clients/app.py", ANSWER), ("simulations/server_app.py", COMPLETE)])
def test_the_places_that_are_changed_are_there(file: str, line: str) -> None:
    text = changed((ROOT / file).read_text(), line, f"{line[: len(line) - len(line.lstrip())]}pass\n{line}")
    ast.parse(text)
    with pytest.raises(SystemExit):
        changed(text, "no such line", "")


def test_a_fifth_fails_in_all_ways_and_only_what_is_asked_in_rounds() -> None:
    drawn = [
        way_of("0", kind, at, client) for kind in ("train", "evaluate") for at in range(50) for client in range(50)
    ]
    assert set(drawn) == {"", *WAYS}
    failed = len(drawn) - Counter(drawn)[""]
    # Five standard deviations of a binomial.
    assert abs(failed - FAILING * len(drawn)) < 5 * (len(drawn) * FAILING * (1 - FAILING)) ** 0.5
    assert {way_of("0", "query.setup", 0, client) for client in range(500)} == {""}
    assert way_of("0", "train", 3, 7) == way_of("0", "train", 3, 7)


def test_spoilt_answers_are_not_what_they_were() -> None:
    act_as_task()
    for way, spoil in AFTERWARDS.items():
        content = RecordDict({"arrays": ArrayRecord({"x": Array(np.ones((2, 2), np.float32))})})
        spoil(reply := Message(content, dst_node_id=5, message_type="train"))
        found = reply.content.array_records["arrays"]["x"].numpy()
        assert found.shape == ((2, 2) if "NaN" in way else (3,))
        assert bool(np.isnan(found).all()) == ("NaN" in way)
        spoil(reply := Message(RecordDict({"metrics": MetricRecord({"a": 1.0})}), dst_node_id=5, message_type="train"))
        assert len(reply.content.metric_records["metrics"]) == 2
