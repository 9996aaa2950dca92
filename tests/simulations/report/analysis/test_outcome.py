import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from attacks.metrics.metric import ATTRIBUTES
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json, outcomes
from simulations.report.analysis.run import read_run
from simulations.report.studies.score import Score
from simulations.runtime.findings import print_findings
from tests.simulations.report.report_run import PIPELINES, demo_rows, write_run

ROWS = demo_rows()


def printed(directory: Path, rows: list[dict[str, Any]] = ROWS, width: int = 140) -> str:
    out = StringIO()
    print_findings(Terminal(file=out, width=width, highlight=False), write_run(directory, rows))
    return out.getvalue()


def test_the_terminal_has_a_line_for_each_defence_and_warnings_below(tmp_path: Path) -> None:
    text = printed(tmp_path / "run")
    head, *lines = [line.split() for line in text.splitlines() if line.strip(" ─")]
    assert head == ["defence", "verdict", "recovered", "accuracy", "(change)", "epsilon"]
    assert lines[0][:5] == ["none", "readable", "16", "of", "16"]
    at = next(i for i, line in enumerate(lines) if line[0] == "Mixer(window=4)")
    assert lines[at] == ["Mixer(window=4)", "not", "recovered", "0", "of", "16", "90.0", "%", "\N{EN DASH}"]
    assert lines[at + 1] == ["(0", "to", "21", "%)", "(\N{MINUS SIGN}5.0)"]
    assert "Mixer(window=4): untested against an adaptive attacker" in text
    # One kind of message stands over the table and several in a column; so do studies.
    probes = [row | {"card": row["card"] | {"observation": "one-step probe"}} for row in ROWS]
    alone = printed(tmp_path / "probes", probes)
    assert alone.splitlines()[0].strip() == "What the strongest attack recovered from one-step probes"
    assert "message" not in alone
    updates = [row | {"card": row["card"] | {"observation": "training update"}} for row in ROWS if row["attack"]]
    assert "message" in printed(tmp_path / "both", probes + updates)
    several = printed(tmp_path / "two", [*ROWS, *(one | {"experiment": "other"} for one in ROWS)])
    assert ("other ·" in several, "demo ·" in text) == (True, False)


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    found = json.loads(json.dumps(as_json(write_run(tmp_path)), allow_nan=False))
    assert [(one["defense"], one["epsilon"]) for one in found] == list(zip(PIPELINES, (None, None, 8, 2), strict=True))
    assert (found[0]["recovered"], found[0]["attacked"], found[0]["share"]) == (16, 16, 1.0)
    assert found[0]["low"] == pytest.approx(0.794, abs=1e-3)
    assert (found[1]["accuracy"], found[1]["change"]) == (pytest.approx(0.9), pytest.approx(-0.05))


def test_an_attribute_has_a_line_of_its_own_and_all_cuts_come_before_probes(tmp_path: Path) -> None:
    read = read_run(write_run(tmp_path))
    _, line, private, *_ = read.lines(read.studies[0])
    found = Score(0.795, 0.75, 0.83, n=400)
    cell = replace(line.strongest, scores={ATTRIBUTES.decides: found}, null_scores={ATTRIBUTES.decides: {"most": 0.5}})
    images, attribute = outcomes([replace(line, attributes=replace(cell, leaking=frozenset({ATTRIBUTES.decides})))])
    assert (images.message, images.shown, images.first) == ("", "0 of 16", True)
    assert (attribute.message, attribute.first, attribute.accuracy) == ("sensitive attribute", False, None)
    assert (attribute.shown, attribute.interval) == ("79.5 % of values", "75.0 to 83.0 %, null 50.0 %")
    assert (attribute.recovered, attribute.share, attribute.null) == (None, 0.795, 0.5)
    line = replace(private, epsilon=1.0, epsilon_with_probes=2.0)
    assert [one.further_epsilon for one in outcomes([line])] == [("with probes: 2.00",)]
    assert [one.further_epsilon for one in outcomes([replace(line, epsilon_all_cuts=3.0)])] == [("all cuts: 3.00",)]
