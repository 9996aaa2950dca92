"""What a run found, in a line for each defence: on the terminal and as JSON."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json, print_outcomes
from tests.simulations.report.report_run import PIPELINES, write_run


def printed(directory: Path, width: int = 140) -> str:
    out = StringIO()
    print_outcomes(Terminal(file=out, width=width, highlight=False), directory)
    return out.getvalue()


def test_the_table_has_a_line_for_each_defence_and_warnings_below(tmp_path: Path) -> None:
    text = printed(write_run(tmp_path))
    head, *lines = [line.split() for line in text.splitlines() if line.strip(" ─")]
    assert head == ["defence", "verdict", "recovered", "accuracy", "change", "epsilon"]
    assert lines[0][:5] == ["none", "readable", "16", "of", "16"]
    (mixer,) = [line for line in lines if line[0] == "Mixer(window=4)" and "recovered" in line[:4]]
    assert mixer == ["Mixer(window=4)", "not", "recovered", "0", "of", "16", "(0.0", "to", "20.6", "%)", "90.0", "%",
                     "\N{MINUS SIGN}5.0", "\N{EN DASH}"]  # fmt: skip
    assert "Mixer(window=4): untested against an adaptive attacker" in text


def test_names_are_no_markup_and_narrow_terminals_show_them_whole(tmp_path: Path) -> None:
    odd = "Odd(values=[red])"
    rows = [json.loads(line) for line in write_run(tmp_path / "run").joinpath("rows.jsonl").read_text().splitlines()]
    changed = [row | {"defense": odd if row["defense"] == PIPELINES[1] else row["defense"]} for row in rows]
    text = printed(write_run(tmp_path / "odd", rows=changed), width=80)
    head = next(line for line in text.splitlines() if line.startswith(" defence"))
    first = "".join(line[: head.index("verdict")].strip() for line in text.splitlines())
    assert odd in first


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    found = json.loads(json.dumps(as_json(write_run(tmp_path)), allow_nan=False))
    assert [one["defense"] for one in found] == PIPELINES
    budgets = {one["defense"]: one["epsilon"] for one in found}
    assert budgets == {"": None, PIPELINES[1]: None, PIPELINES[2]: 8.0, PIPELINES[3]: 2.0}
    assert found[0]["recovered"] == "16 of 16"
    assert found[1]["accuracy"] == pytest.approx(0.9)


def test_a_run_prints_json_alone_and_a_quiet_one_nothing(tmp_path: Path) -> None:
    words = ["run", "--in-process", "-s", "dataset=mnist-5k", "-s", "model=lenet", "-s", "rounds=1", "-s", "train-limit=60",
             "-s", "test-limit=20", "-s", "defenses=", "-s", "probe-attacks=LabelInference()", "-s", "update-attacks=",
             "-s", "attack-workers=0", "--clients", "2"]  # fmt: skip
    done = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["directory"], found["seed"]) == (str(tmp_path / "a"), 0)
    assert [one["verdict"] for one in found["outcomes"]] == ["unknown"]
    done = CliRunner().invoke(app, [*words, "--quiet", "--out", str(tmp_path / "b")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "b" / "report.html").is_file()
