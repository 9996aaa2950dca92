import itertools
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
from simulations.report.analysis.sentences import in_plain_words, recommendation
from simulations.report.studies.score import Score, Scored
from simulations.runtime.findings import print_findings
from tests.simulations.report.report_run import INVERSION, PIPELINES, demo_rows, write_run

ROWS = demo_rows()


def printed(directory: Path, rows: list[dict[str, Any]] = ROWS, width: int = 140) -> str:
    out = StringIO()
    print_findings(Terminal(file=out, width=width, highlight=False), write_run(directory, rows))
    return out.getvalue()


def below(text: str, name: str) -> list[str]:
    """What stands in the lines below a defence's name."""
    after = text.splitlines()[text.splitlines().index(name) + 1 :]
    return [one.strip() for one in itertools.takewhile(lambda line: line.startswith("  "), after)]


def test_the_terminal_says_what_leaked_then_of_each_defence_what_was_found_at_which_cost(tmp_path: Path) -> None:
    text = printed(tmp_path / "run")
    read = read_run(tmp_path / "run")
    lines = read.lines(read.studies[0])
    assert text.strip().startswith("\n\n".join([*in_plain_words(lines), recommendation(lines)]))
    (title,) = {one.title for line in lines for one in line.judged}
    found, difference, accuracy = below(text, "Mixer(window=4)")
    assert found == f"{title}: nothing found, 0 of 16 identified (0.0 to 20.6 %)"
    assert "fewer" in difference
    assert (
        accuracy
        == "accuracy: 90.0 % (87.1 to 92.3 %), \N{MINUS SIGN}5.0 points, \N{MINUS SIGN}8.3 to \N{MINUS SIGN}1.7"
    )
    assert below(text, "no defence")[0] == f"{title}: recognisable, 16 of 16 images (79.4 to 100.0 %)"
    assert "epsilon: 8.00, if the audit's probes count: 12.00" in below(text, "DPSGD(target_epsilon=8.0)")
    assert "Mixer(window=4): untested against an adaptive attacker" in text
    # A real update stands before a probe, and several studies have their names.
    updates = [row | {"card": row["card"] | {"observation": "training update"}} for row in ROWS if row["attack"]]
    both = below(printed(tmp_path / "both", [*ROWS, *updates]), "no defence")
    assert [one.split(",")[0] for one in both[:2]] == ["training update", "one-step probe"]
    several = printed(tmp_path / "two", [*ROWS, *(one | {"experiment": "other"} for one in ROWS)])
    assert ("other ·" in several, "demo ·" in text) == (True, False)


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    found = json.loads(json.dumps(as_json(write_run(tmp_path)), allow_nan=False))
    assert [one["defense"] for one in found] == PIPELINES
    assert [one["epsilon"] and one["epsilon"]["spent"] for one in found] == [None, None, 8, 2]
    (plain,), (mixed,) = (one["messages"] for one in found[:2])
    assert [plain[key] for key in ("verdict", "real", "images", "steps")] == ["recognisable", False, 1, 1]
    assert [plain[key] for key in ("found", "attacked", "share", "difference")] == [16, 16, 1.0, None]
    assert (plain["low"], plain["attack"]) == (pytest.approx(0.794, abs=1e-3), INVERSION)
    assert [mixed[key] for key in ("verdict", "recognisable", "identified", "tried")] == ["nothing found", 0, 0, 2]
    assert (mixed["difference"]["under"], mixed["difference"]["without"]) == ([0, 16], [16, 16])
    accuracy = found[1]["accuracy"]
    assert (accuracy["mean"], accuracy["change"]) == (pytest.approx(0.9), pytest.approx(-0.05))


def test_an_attribute_is_a_message_of_its_own_and_all_cuts_come_before_probes(tmp_path: Path) -> None:
    read = read_run(write_run(tmp_path))
    _, line, private, *_ = read.lines(read.studies[0])
    found = Score(0.795, 0.75, 0.83, n=400, attacked=400)
    cell = replace(line.strongest, scores={ATTRIBUTES.decides: found}, null_scores={ATTRIBUTES.decides: {"most": 0.5}})
    for leaking, verdict in ((frozenset({ATTRIBUTES.decides}), "inferred"), (frozenset[Scored](), "unknown")):
        (told,) = outcomes([replace(line, attributes=replace(cell, leaking=leaking))])
        images, attribute = told.messages
        assert (images.shown, images.of) == ("0 of 16", "identified")
        assert (attribute.verdict, attribute.found, attribute.share, attribute.null) == (verdict, None, 0.795, 0.5)
        assert (attribute.shown, attribute.interval) == ("79.5 % of values", "75.0 to 83.0 %, null 50.0 %")
    line = replace(private, epsilon=1.0, epsilon_with_probes=2.0)
    assert [one.epsilon.lines for one in outcomes([line])] == [("if the audit's probes count: 2.00",)]
    assert [one.epsilon.lines for one in outcomes([replace(line, epsilon_all_cuts=3.0)])] == [("all cuts: 3.00",)]
