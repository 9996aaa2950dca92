"""What the page says of membership, class representatives, chains, recognition and adaptive attacks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.report import Row, validate, write_report
from simulations.report.drawing.looks import looks
from simulations.report.drawing.roc import LEAST_RATE, mean_curve, read_curve, roc_charts
from simulations.report.studies.study import split
from tests.simulations.report.report_run import (
    CHAINED,
    CONFIG,
    DRAWING,
    INVERSION,
    MEMBERS,
    PIPELINES,
    Page,
    chain_rows,
    demo_rows,
    drawing_rows,
    every_attack,
    member_rows,
    row,
    setting,
    write_run,
)

MIXER = PIPELINES[1]
SURE = (0.65, 0.75)


def build(directory: Path, rows: list[dict[str, Any]], **parts: Any) -> Page:
    return Page(write_report(write_run(directory, rows=rows, **parts)).read_text(encoding="utf-8"))


def charts(rows: list[dict[str, Any]]) -> list[tuple[str, ElementTree.Element]]:
    study = split(validate([Row.from_json(one) for one in rows]), PIPELINES)[0]
    return [(attack, ElementTree.fromstring(str(drawn))) for attack, drawn in roc_charts(study, looks(PIPELINES))]


def shapes(drawing: ElementTree.Element, class_: str, tag: str = "path") -> list[ElementTree.Element]:
    """Elements of a kind inside of what has a class."""
    of = [one for one in drawing.iter() if class_ in (one.get("class") or "").split()]
    return [child for one in of for child in one.iter(tag)]


def membership_rows(found: Page) -> list[dict[str, list[str]]]:
    """Those that tell members from others, then those at chance, which are folded."""
    tables = [found.table("membership", at) for at in range(len(found.tables["membership"]))]
    return [one for table in tables for one in table]


def corners(line: ElementTree.Element) -> np.ndarray:
    return np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", str(line.get("d"))), dtype=float)


def drawn_points(drawing: ElementTree.Element) -> list[np.ndarray]:
    """(fpr, tpr) of every line, read off the drawing: the dotted diagonal runs from ``LEAST_RATE`` to 1, on logarithmic axes."""
    (diagonal,) = shapes(drawing, "nullline")
    start, end = corners(diagonal)
    return [LEAST_RATE ** (1 - (corners(line) - start) / (end - start)) for line in shapes(drawing, "series")]


# ROC curves -----------------------------------------------------------------------------------------------------------


def measured(defense: str, shift: float, seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows made from scores of 40 members and 200 others by counting pairs and thresholds, and what they say."""
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
    plain, mixed = measured("", 1.5), measured(MIXER, 0.7, seed=0)
    rows = plain[0] + mixed[0]
    ((attack, drawing),) = charts(rows)
    assert attack == MEMBERS
    for points, (_, truth) in zip(drawn_points(drawing), (plain, mixed), strict=True):
        assert points == pytest.approx(np.maximum(sorted(map(tuple, truth["curve"])), LEAST_RATE), abs=0.001)
        assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(truth["auc"], abs=0.002)
    shown = membership_rows(build(tmp_path, demo_rows() + rows))
    names = [str(one.text) for one in shapes(drawing, "name", "text")]
    for line, name, (_, truth) in zip(shown, names, (plain, mixed), strict=True):
        assert line["AUC"][0] == f"{truth['auc']:.2f}"
        assert f"AUC {truth['auc']:.2f} ({truth['auc'] - 0.02:.2f} to {truth['auc'] + 0.02:.2f})" in name
        assert line["TPR at 1 % FPR"][0] == f"{100 * truth['tpr']:.1f} %"
        assert line["Records"] == ["1000", "600 members"]
        assert line["Time"] == ["7 s"]


def test_each_attack_and_the_last_round_of_each_defence_has_its_own_chart() -> None:
    late = member_rows("", 0.9, (0.85, 0.95), round=3)
    other = member_rows("", 0.8, (0.75, 0.85), attack="ShadowModels()")
    found = charts(member_rows("", 0.7, SURE) + member_rows(MIXER, 0.6, (0.55, 0.65)) + late + other)
    assert [attack for attack, _ in found] == [MEMBERS, "ShadowModels()"]
    assert [len(shapes(drawing, "series")) for _, drawing in found] == [2, 1]
    assert drawn_points(found[0][1])[0][2] == pytest.approx([0.25, 0.9], abs=0.001)


def test_several_seeds_give_the_mean_rate_at_each_false_positive_rate() -> None:
    step, diagonal = [(0.0, 0.0), (0.5, 1.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 1.0)]
    found = dict(mean_curve([step, diagonal]))
    assert (found[0.0], found[0.25], found[0.5], found[1.0]) == pytest.approx((0.0, 0.375, 0.75, 1.0))
    assert mean_curve([step]) == step
    vertical = [(0.0, 0.0), (0.0, 0.4), (1.0, 1.0)]
    assert dict(mean_curve([vertical, vertical]))[0.0] == 0.4  # the top of a vertical step
    seeds = member_rows("", 0.7, SURE) + member_rows("", 0.9, (0.85, 0.95), seed=1)
    (points,) = drawn_points(charts(seeds)[0][1])
    assert np.interp(0.25, points[:, 0], points[:, 1]) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("damaged", [None, 3, "text", [1, 2], [[0, 0], [1]], [[0, 0], [2, 1]], [[0, "nan"]]])
def test_a_damaged_curve_costs_its_line_and_not_its_score(tmp_path: Path, damaged: Any) -> None:
    assert read_curve(damaged) == []
    rows = member_rows("", 0.7, SURE)
    rows[0]["roc"] = damaged
    assert charts(rows) == []
    assert build(tmp_path, rows).table("membership")[0]["AUC"] == ["0.70", "0.65 to 0.75"]


# Marks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "mixed", "status"),
    [
        (SURE, (0.48, 0.56), "✓ ok"),
        ((0.45, 0.95), (0.48, 0.56), "† not validated"),  # did not break the undefended run
        (SURE, (0.45, 0.75), "† under-powered"),  # no leak, or all of the undefended 0.70
    ],
)
def test_an_auc_that_says_nothing_carries_its_mark_wherever_it_stands(
    tmp_path: Path, plain: tuple[float, float], mixed: tuple[float, float], status: str
) -> None:
    rows = member_rows("", 0.7, plain) + member_rows(MIXER, 0.52, mixed)
    mark = "" if status == "✓ ok" else " †"
    found = build(tmp_path, demo_rows() + rows)
    assert membership_rows(found)[1]["Status"] == [status]
    assert membership_rows(found)[1]["AUC"][0] == f"0.52{mark}"
    assert found.table("summary")[1]["member AUC"][0] == f"0.52{mark}"
    assert found.table("summary")[0]["member AUC"][0] == "0.70" + (" †" if "validated" in status else "")
    written = (tmp_path / "rows.csv").read_text(encoding="utf-8")
    assert [name in written for name in ("not-validated", "under-powered")] == ["not v" in status, "under" in status]
    drawing = charts(rows)[0][1]
    assert str(shapes(drawing, "name", "text")[1].text).endswith(f"({mixed[0]:.2f} to {mixed[1]:.2f}){mark}")
    hollow = [one in shapes(drawing, "hollow") for one in shapes(drawing, "mark")]
    # One on each curve, at 1 % false positives: 400 non-members cannot have 0.1 %. And one in the legend.
    assert hollow == 2 * ["validated" in status, bool(mark)]
    assert "a test of membership on too few records" in found.sections["summary"]


@pytest.mark.parametrize(("others", "marks"), [(99, 1), (100, 2), (999, 2), (1000, 3)])
def test_a_curve_is_marked_only_at_rates_that_its_non_members_can_have(others: int, marks: int) -> None:
    drawing = charts(member_rows("", 0.7, SURE, others=others))[0][1]
    assert len(shapes(drawing, "mark")) == marks, "one of them is in the legend"


@pytest.mark.parametrize(("others", "mark"), [(99, " †"), (100, "")])
def test_a_rate_at_one_per_cent_needs_a_hundred_non_members(tmp_path: Path, others: int, mark: str) -> None:
    found = build(tmp_path, demo_rows() + member_rows("", 0.7, SURE, others=others))
    for section in ("membership", "summary"):
        assert found.table(section)[0]["TPR at 1 % FPR"] == [f"12.5 %{mark}", "10.0 to 15.0"]
    assert found.table("membership")[0]["AUC"][0] == "0.70"
    rule = "A test is under-powered if its interval includes both chance and the undefended AUC, or if it has fewer than 100 non-"
    assert rule in " ".join(found.sections["membership"].split())


def test_the_time_of_a_test_of_membership_is_no_attack_of_its_own(tmp_path: Path) -> None:
    """The counts of records stand on the rows of scores only; they are no part of the threat card."""
    found = build(tmp_path, demo_rows() + member_rows("", 0.7, SURE))
    assert not [one for one in found.table("attacks") if one["Attack"][0] == MEMBERS]
    assert len(found.table("membership")) == 1


# Class representatives ------------------------------------------------------------------------------------------------

DRAWN = [
    {"defense": "", "attack": DRAWING, "round": 1, "client": 0, "target": 0, "image": image, "kind": "reconstruction"}
    | {"file": f"drawn{image}.png", "psnr": None, "observation": "training update", "rounds_observed": 2}
    for image in sorted(range(20), key=str)  # as a folder lists them: 0, 1, 10, 11, ...
]


def test_gan_attacks_show_the_oracle_the_class_mean_and_their_pictures(tmp_path: Path) -> None:
    rows = demo_rows() + drawing_rows("", 0.4) + drawing_rows(MIXER, 0.12, half=0.04)
    found = build(tmp_path, rows, pictures=DRAWN)
    plain, mixed = found.table("representatives")
    assert plain["Recognised"] == ["40.0 %", "30.0 to 51.0", "n = 80", "chance 10.0 %", "oracle 97.0 %"]
    assert plain["Class-mean PSNR, dB"] == ["12.3"]
    assert plain["Class-mean SSIM"] == ["0.34"]
    assert (plain["Failures"], plain["Status"], mixed["Status"]) == (["3"], ["✓ ok"], ["✓ ok"])
    assert mixed["Recognised"][0] == "12.0 %"
    images = [str(known["alt"]) for tag, known in found.tags if tag == "img"]
    assert [name.split(",")[0] for name in images] == [f"no. {image}" for image in range(0, 20, 2)]
    assert "pictures" not in found.sections  # they are no guess of one person's image
    assert DRAWING not in found.sections["headline"]
    assert not [one for one in found.table("attacks") if one["Attack"][0] == DRAWING]
    text = " ".join(found.sections["representatives"].split())
    assert f"{DRAWING}, round 1, training update of 2 rounds, client 0" in text


def test_drawings_that_the_oracle_does_not_recognise_are_not_validated(tmp_path: Path) -> None:
    found = build(tmp_path, drawing_rows("", 0.12) + drawing_rows(MIXER, 0.6))
    assert [one["Status"] for one in found.table("representatives")] == [["† not validated"]] * 2


# Chains, recognition, adaptive attacks --------------------------------------------------------------------------------


def statuses(found: Page, attack: str) -> dict[str, str]:
    return {one["Round"][0]: one["Status"][0] for one in found.table("attacks") if one["Attack"][0] == attack}


@pytest.mark.long
def test_a_chain_is_validated_by_the_control_of_its_first_stage(tmp_path: Path) -> None:
    rows = demo_rows() + chain_rows(MIXER, 20.0, at=1) + chain_rows(MIXER, 20.0, at=3)
    build(tmp_path / "passed", rows)
    assert statuses(every_attack(tmp_path / "passed"), CHAINED) == {"1": "✓ ok", "3": "✓ ok"}
    for one in rows:
        if (one["defense"], one["attack"], one["metric"], one["round"]) == ("", INVERSION, "psnr", 3):
            one |= {"value": 9.0, "ci_low": 8.5}
    failed = build(tmp_path / "failed", rows)
    assert statuses(every_attack(tmp_path / "failed"), CHAINED) == {"1": "✓ ok", "3": "† not validated"}
    assert "judged by its first stage" in " ".join(failed.sections["control"].split())
    assert [one["Attack on the undefended run"][0] for one in failed.table("control") if "|" in str(one)] == []


def test_names_of_chains_are_told_apart_in_the_summary(tmp_path: Path) -> None:
    shown = build(tmp_path, demo_rows() + chain_rows(MIXER, 20.0)).table("summary")[1]
    assert shown["attack"] == ["InvertingGradients + LearnedRestorer", "round 1, n = 16"]
    assert shown["original"] == ["20.0", "19.5 to 20.5"]


@pytest.mark.long
def test_recognition_shows_its_own_number_of_images(tmp_path: Path) -> None:
    card = setting(1, iterations=600)
    known = {"attack": INVERSION, "card": card, "metric": "recognition", "value": 0.75, "n": 4}
    build(tmp_path, [*demo_rows(), row(**known)])
    plain = every_attack(tmp_path).table("attacks")[0]
    # Wilson's interval of 3 of 4, from scipy.stats.binomtest(3, 4).proportion_ci(method="wilson").
    assert plain["recognised"] == ["75.0 %", "30.1 to 95.4", "n = 4"]
    assert plain["n"] == ["16"]
    build(tmp_path / "without", demo_rows())
    assert "recognised" not in every_attack(tmp_path / "without").table("attacks")[0]


@pytest.mark.long
def test_adaptive_attacks_are_named_with_the_defence_that_they_were_made_against(tmp_path: Path) -> None:
    eight, two = PIPELINES[2:]
    rows = demo_rows() + chain_rows(MIXER, 20.0) + chain_rows(two, 20.0) + member_rows("", 0.7, SURE)
    rows += member_rows(eight, 0.6, (0.55, 0.65))
    known = {"adaptive_attacks": ["InvertingGradients", "LossThreshold"], "sources": []}
    config = CONFIG | {"defenses": CONFIG["defenses"] | {eight: known}}
    found = build(tmp_path, rows, config=config)
    adaptive = {
        (re.sub(r"\s", "", one["Defence"][0]), one["Attack"][0])
        for one in [*every_attack(tmp_path).table("attacks"), *found.table("membership")]
        if "adaptive to this defence" in one["Attack"]
    }
    # The restorer was made against the mixer; on DP-SGD it is an attack like any other, and so is all on no defence.
    assert adaptive == {(MIXER, CHAINED), (eight, INVERSION), (eight, MEMBERS)}
    text = " ".join(found.sections["headline"].split())
    assert re.search(
        r"Mixer\(window=4\) readable [^·]*LearnedRestorer\(\), round 1, probe, adaptive to this defence", text
    )
    assert text.count("adaptive to this defence") == 2
    assert text.count("untested against an adaptive attacker") == 1  # DPSGD(target_epsilon=2.0) names none


@pytest.mark.long
def test_the_headline_is_the_strongest_attack_and_says_which(tmp_path: Path) -> None:
    rows = demo_rows() + chain_rows(MIXER, 20.0) + chain_rows(MIXER, 18.0, at=3) + drawing_rows(MIXER, 0.9)
    text = " ".join(build(tmp_path, rows).sections["headline"].split())
    assert "Mixer(window=4) readable In words The strongest attack recovered 16 of 16 images" in text
    assert f"{CHAINED}, round 1, probe" in text


@pytest.mark.long
def test_an_attack_without_control_leads_only_with_what_it_recovered_and_says_so(tmp_path: Path) -> None:
    """Its failure is no evidence and never leads; a leak is a leak, whoever found it, and is not hidden."""
    known = {"defense": MIXER, "attack": "Untried()", "card": setting(1), "metric": "psnr", "reference": "original"}
    failed = build(tmp_path / "a", [*demo_rows(), row(value=12.5, ci_low=12.0, ci_high=13.0, **known)])
    assert "Untried" not in failed.sections["headline"]
    assert failed.table("summary")[1]["attack"][0] == "InvertingGradients"
    leaked = build(tmp_path / "b", [*demo_rows(), row(value=25.0, ci_low=24.0, ci_high=26.0, **known)])
    assert leaked.table("summary")[1]["attack"][0] == "Untried †"
    assert "not validated: this attack did not break the undefended run" in leaked.sections["headline"]
