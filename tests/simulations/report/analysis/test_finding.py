import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from simulations.console.terminal import Terminal
from simulations.report.analysis.budget import Budget
from simulations.report.analysis.finding import findings_of
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import in_plain_words, recommendation
from simulations.runtime.findings import print_read
from tests.simulations.report.report_run import (
    INVERSION,
    MEMBERS,
    PIPELINES,
    demo_rows,
    member_rows,
    row,
    study_of,
    write_run,
)

ROWS = demo_rows()


def printed(directory: Path, rows: list[dict[str, Any]] = ROWS, width: int = 140) -> str:
    out = StringIO()
    print_read(Terminal(file=out, width=width, highlight=False), read_run(write_run(directory, rows)))
    return out.getvalue()


def below(text: str, name: str) -> list[str]:
    """What stands in the lines below a defence's name."""
    after = text.splitlines()[text.splitlines().index(name) + 1 :]
    return [one.strip() for one in itertools.takewhile(lambda line: line.startswith("  "), after)]


def test_the_terminal_says_what_leaked_then_of_each_defence_what_was_found_at_which_cost(tmp_path: Path) -> None:
    text = printed(tmp_path / "run")
    read = read_run(tmp_path / "run")
    lines = read.summaries[0].findings
    assert text.strip().startswith("\n\n".join([*in_plain_words(lines), recommendation(lines)]))
    (title,) = {one.title for line in lines for one in line.messages}
    found, difference, accuracy = below(text, "Mixer(window=4)")
    assert found == f"{title}: nothing found, 0 of 16 identified (0.0 to 20.6 %)"
    assert "fewer" in difference
    assert accuracy.replace("\N{MINUS SIGN}", "-") == "accuracy: 90.0 % (87.1 to 92.3 %), -5.0 points, -8.3 to -1.7"
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
    found = json.loads(json.dumps(read_run(write_run(tmp_path)).to_json(), allow_nan=False))
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


def test_members_found_are_of_the_attack_with_the_highest_rate() -> None:
    others = member_rows("", 0.6, (0.55, 0.65), attack="ShadowModels()")
    others[1] |= {"value": 0.375, "ci_high": 0.4}
    (line,) = findings_of(study_of(member_rows("", 0.7, (0.65, 0.75)) + others), {})
    assert (line.membership.attack, line.membership_rate.attack) == (MEMBERS, "ShadowModels()")


def test_an_attribute_is_a_message_of_its_own_and_all_cuts_come_before_probes() -> None:
    known = {"metric": "attribute-accuracy", "card": {"observation": "attributes of queries"}, "n": 400}
    null = row(**known, attack="majority", role="null baseline", value=0.5)
    guessed = [row(**known, attack="AttributeInference()"), null]
    for share, verdict, mark in ((0.795, "inferred", ""), (0.5, "unknown", " †")):
        low, high = stats.binomtest(round(share * 400), 400).proportion_ci(0.95)
        ends = {"value": share, "ci_low": low, "ci_high": high}
        rows = [one | (ends if one["attack"] != "majority" else {}) for one in guessed]
        images, attribute = findings_of(study_of([*ROWS, *rows]), {})[0].every_message
        assert (images.shown, images.counted) == ("16 of 16", "recognisable")
        assert (attribute.verdict, attribute.found, attribute.score.mean) == (verdict, None, share)
        assert attribute.shown == f"{100 * share:.1f} % of values{mark}"
        assert attribute.interval == f"{100 * low:.1f} to {100 * high:.1f} %, null 50.0 %"
    assert Budget(1.0, 2.0).lines == ("if the audit's probes count: 2.00",)
    assert Budget(1.0, 2.0, 3.0).lines == ("all cuts: 3.00",)
