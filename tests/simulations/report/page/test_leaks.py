from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.report.analysis.finding import findings_of
from simulations.report.drawing.chart import Chart
from simulations.report.drawing.looks import looks
from simulations.report.drawing.roc import LEAST_RATE, mean_curve, read_curve, roc_charts
from tests.simulations.report.report_run import (
    MEMBERS,
    PIPELINES,
    Page,
    attack_rows,
    build,
    every_attack,
    member_rows,
    study_of,
)

MIXER = PIPELINES[1]
SURE = (0.65, 0.75)
FEW = [one for defense in PIPELINES[:2] for one in attack_rows(defense)]


def charts(rows: list[dict[str, Any]]) -> list[tuple[str, Chart]]:
    return roc_charts(study_of(rows), looks(PIPELINES))


def membership_rows(found: Page) -> list[dict[str, list[str]]]:
    # Those that tell members from others, then those at chance, which are folded.
    return [one for at in range(len(found.tables["membership"])) for one in found.table("membership", at)]


def drawn_points(chart: Chart) -> list[np.ndarray]:
    assert chart.across.share(LEAST_RATE) == chart.up.share(0.0) == 0
    return [np.array(line.places) for line in chart.lines if line.kind == "series"]


def measured(defense: str, shift: float, seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    draw = np.random.default_rng(seed)
    members, others = draw.normal(shift, 1, 40), draw.normal(0, 1, 200)
    levels = [np.inf, *sorted([*members, *others], reverse=True)]
    curve = [[float((others >= t).mean()), float((members >= t).mean())] for t in levels]
    area = float(np.mean([[m > o for o in others] for m in members]))
    rate = max(tpr for fpr, tpr in curve if fpr <= 0.01)
    rows = member_rows(defense, area, (area - 0.02, area + 0.02), seed=seed)
    rows[0]["roc"], rows[1]["value"] = curve, rate
    return rows, {"curve": curve, "auc": area, "tpr": rate}


def test_the_curve_its_area_and_its_rate_are_those_of_the_rows(tmp_path: Path) -> None:
    plain, mixed = measured("", 1.5), measured(MIXER, 0.7)
    rows = plain[0] + mixed[0]
    ((attack, chart),) = charts(rows)
    assert attack == MEMBERS
    for points, (_, truth) in zip(drawn_points(chart), (plain, mixed), strict=True):
        assert points == pytest.approx(np.array(sorted(map(tuple, truth["curve"]))))
        assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(truth["auc"], abs=0.002)
    found = build(tmp_path, FEW + rows)
    names = [name for name, _ in chart.names]
    for line, name, (_, truth) in zip(membership_rows(found), names, (plain, mixed), strict=True):
        assert line["AUC"][0] == f"{truth['auc']:.2f}"
        assert f"AUC {truth['auc']:.2f} ({truth['auc'] - 0.02:.2f} to {truth['auc'] + 0.02:.2f})" in name
        assert line["TPR at 1 % FPR"][0] == f"{100 * truth['tpr']:.1f} %"
        assert (line["Records"], line["Time"]) == (["1000", "600 members"], ["7 s"])
    # Tests of membership have a table of their own.
    assert MEMBERS not in [one["Attack"][0] for one in every_attack(tmp_path).table("attacks")]


def test_each_attack_and_the_last_round_of_each_defence_has_its_own_chart() -> None:
    late, other = (member_rows("", 0.9, (0.85, 0.95), **one) for one in ({"round": 3}, {"attack": "ShadowModels()"}))
    found = charts(member_rows("", 0.7, SURE) + member_rows(MIXER, 0.6, (0.55, 0.65)) + late + other)
    drawn = [(attack, len(drawn_points(chart))) for attack, chart in found]
    assert drawn == [(MEMBERS, 2), ("ShadowModels()", 1)]
    assert drawn_points(found[0][1])[0][2] == pytest.approx([0.25, 0.9], abs=0.001)


def test_several_seeds_give_the_mean_rate_at_each_false_positive_rate() -> None:
    step, diagonal = [(0.0, 0.0), (0.5, 1.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 1.0)]
    found = dict(mean_curve([step, diagonal]))
    assert (found[0.0], found[0.25], found[0.5], found[1.0]) == pytest.approx((0.0, 0.375, 0.75, 1.0))
    assert mean_curve([step]) == step
    for damaged in (None, 3, "text", [1, 2], [[0, 0], [1]], [[0, 0], [2, 1]], [[0, "nan"]]):
        assert read_curve(damaged) == [], damaged
    vertical = [(0.0, 0.0), (0.0, 0.4), (1.0, 1.0)]
    assert dict(mean_curve([vertical, vertical]))[0.0] == 0.4  # the top of a vertical step
    seeds = member_rows("", 0.7, SURE) + member_rows("", 0.9, (0.85, 0.95), seed=1)
    (points,) = drawn_points(charts(seeds)[0][1])
    assert np.interp(0.25, points[:, 0], points[:, 1]) == pytest.approx(0.8, abs=0.01)


def test_an_auc_that_says_nothing_carries_its_mark_wherever_it_stands(tmp_path: Path) -> None:
    for at, (plain, mixed, status) in enumerate([
        (SURE, (0.48, 0.56), "✓ ok"),
        ((0.45, 0.95), (0.48, 0.56), "† not validated"),  # did not break the undefended run
        (SURE, (0.45, 0.75), "† under-powered"),  # no leak, or all of the undefended 0.70
    ]):  # fmt: skip
        rows = member_rows("", 0.7, plain) + member_rows(MIXER, 0.52, mixed)
        mark = "" if status == "✓ ok" else " †"
        found = build(tmp_path / str(at), FEW + rows)
        shown = membership_rows(found)[1]
        assert (shown["Status"], shown["AUC"][0]) == ([status], f"0.52{mark}")
        assert found.table("cost")[1]["member AUC"][0] == f"0.52{mark}"
        assert found.table("cost")[0]["member AUC"][0] == "0.70" + (" †" if "validated" in status else "")
        written = (tmp_path / str(at) / "rows.csv").read_text(encoding="utf-8")
        assert ("not-validated" in written, "under-powered" in written) == ("not v" in status, "under" in status)
        chart = charts(rows)[0][1]
        assert chart.names[1][0].endswith(f"({mixed[0]:.2f} to {mixed[1]:.2f}){mark}")
        # One on each curve, at 1 % false positives: 400 non-members cannot have 0.1 %.
        assert [point.hollow for point, _ in chart.points] == ["validated" in status, bool(mark)]


def test_rates_are_marked_and_told_only_where_the_non_members_can_have_them(tmp_path: Path) -> None:
    for others, marks in ((99, 0), (100, 1), (999, 1), (1000, 2)):
        chart = charts(member_rows("", 0.7, SURE, others=others))[0][1]
        assert (len(chart.points), len(chart.names)) == (marks, 1)
    low = {"metric": "membership-low-tpr", "value": 0.04, "ci_low": 0.03, "ci_high": 0.06}
    for at, (others, more, mark, expected) in enumerate(
        [(99, {}, " †", None), (100, {}, "", None), (1000, low, "", ["4.0 %", "3.0 to 6.0"])]
    ):  # fmt: skip
        rows = member_rows("", 0.7, SURE, others=others)
        line = build(tmp_path / str(at), [*rows, *([rows[1] | more] if more else [])]).table("membership")[0]
        assert line["TPR at 1 % FPR"] == [f"12.5 %{mark}", "10.0 to 15.0"]
        assert line.get("TPR at 0.1 % FPR") == expected
        assert line["AUC"][0] == "0.70"


def test_members_found_are_of_the_attack_with_the_highest_rate(tmp_path: Path) -> None:
    others = member_rows("", 0.6, (0.55, 0.65), attack="QuantileRegression()")
    others[1] |= {"value": 0.375, "ci_high": 0.4}
    (line,) = findings_of(study_of(member_rows("", 0.7, SURE) + others), {})
    assert (line.membership.attack, line.membership_rate.attack) == (MEMBERS, "QuantileRegression()")
    shown = build(tmp_path, member_rows("", 0.7, SURE) + others).table("cost")[0]
    assert next(shown[name][0] for name in shown if name.startswith("TPR")) == "37.5 %"
