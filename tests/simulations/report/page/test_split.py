from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from attacks.metrics.training import SPLIT
from attacks.smashed.base import BEYOND_RUN
from simulations.report import Row, validate
from simulations.report.analysis.adaptive import UNTESTED
from simulations.report.analysis.line import Line
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import strongest, summarise
from simulations.report.studies.score import merge
from simulations.report.studies.study import Study
from simulations.report.text import amount, power_of_ten, size
from tests.simulations.report.report_run import every_attack, row, study_of
from tests.simulations.report.report_split_run import (
    DECODER,
    JIGSAW,
    PSNR,
    SETTINGS,
    SHUFFLE,
    TOLD,
    attack,
    build,
    card,
    split_rows,
    training,
)

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


def study(rows: list[dict[str, Any]]) -> Study:
    return study_of(rows, ["", SHUFFLE])


def line(rows: list[dict[str, Any]], defense: str = SHUFFLE) -> Line:
    return next(one for one in summarise(study(rows), SETTINGS["defenses"]) if one.defense == defense)


def test_every_cost_and_score_follows_from_the_rows(tmp_path: Path) -> None:
    page = build(tmp_path)
    none, shuffle = page.table("split")
    # As deployed, in the last complete round.
    assert (none["accuracy, %"][0], none["MCC micro"][0], none["MCC macro"][0]) == ("90.0", "0.85", "0.83")
    assert (shuffle["accuracy, %"][0], shuffle["MCC micro"][0], shuffle["MCC macro"][0]) == ("75.0", "0.70", "0.68")
    assert shuffle["Defence"][1] == "after round 2"
    assert (none["parameters"], none["peak memory"]) == (["53.2 k"], ["265 kB"])
    assert (none["MACs per image"], shuffle["MACs per image"]) == (["923 k"], ["923 k", "training 2.77 M"])
    assert (none["sent per image"], none["images per second"]) == (["4.1 kB"], ["600"])
    assert none["batches lost"] == ["1", "of 248"]
    assert (none["orders left open"], none["share with the target"]) == ([DASH], [DASH])
    found = {(one["Defence"][0], one["Attack"][0]): one for one in page.table("split", 1)}
    assert len(found) == len(PSNR) + 1
    shown = found[SHUFFLE, JIGSAW]
    assert shown["Attack"][1:] == ["adaptive to this defence", "round 2"]
    assert (shown["PSNR, dB"], shown["over null"]) == (["25.0", "24.0 to 26.0"], ["+12.8", "mean 12.2"])
    assert (shown["paper PSNR, dB"][0], shown["paper SSIM"][0], shown["paper MSE"][0]) == ("19.0", "0.40", "0.02")
    assert (shown["SSIM"][0], shown["feature similarity"][0]) == ("0.50", "0.80")
    # Wilson's interval of 32 of 32; one of the eight images that were attacked together is right by chance.
    assert shown["identified"] == ["100.0 %", "89.3 to 100.0", "n = 32", "chance 12.5 %"]
    assert shown["recognised"][3] == "chance 10.0 %"
    assert (found[SHUFFLE, DECODER]["transmissions used"], shown["transmissions used"]) == (["1"], ["30"])
    # All of these attacks know the same data, so there is no column for it.
    assert "auxiliary data" not in shown
    # This page is of no gradient.
    text = " ".join(text for name, text in page.sections.items() if name not in {"configuration", "cards", "glossary"})
    assert not [word for word in ("probe", "training update", "local step", "DP-SGD") if word in text]


def test_shuffles_in_a_row_have_one_count_each_and_seeds_do_not_double_it(tmp_path: Path) -> None:
    rows = [one for seed in (0, 1) for one in training(SHUFFLE, seed)]
    for seed in (0, 1):
        known = {"defense": SHUFFLE, "scenario": "split", "round": 0, "seed": seed}
        rows += [row(metric="log10-orders", value=2.0, **known), row(metric="log10-target-share", value=-1.0, **known)]
    (shown,) = build(tmp_path, rows).table("split")
    assert shown["orders left open"] == [f"1.3 {TIMES} 10²¹³, 1.0 {TIMES} 10²"]
    assert shown["share with the target"] == [f"4.8 {TIMES} 10⁻¹⁴, 1.0 {TIMES} 10⁻¹"]
    assert shown["batches lost"] == ["2", "of 496"]
    begun = build(tmp_path / "begun", [one for one in training(SHUFFLE) if one["round"] == 0])
    (shown,) = begun.table("split")
    assert shown["parameters"] == ["53.2 k"]
    assert shown["accuracy, %"] == shown["batches lost"] == [DASH]


# Upper bounds ---------------------------------------------------------------------------------------------------------


def test_an_upper_bound_never_leads_and_is_no_adaptive_attack() -> None:
    rows = split_rows()
    found = line(rows)
    assert found.strongest is not None
    assert (found.strongest.attack, found.strongest.mean("psnr", "original"), found.caveats) == (JIGSAW, 25.0, ())
    told = [cell for cell in study(rows).cells if cell.attack == TOLD]
    assert [cell.is_upper_bound for cell in told] == [True, True]
    assert strongest(told) is strongest(told, ("identification", "")) is None
    only = [one for one in rows if one["defense"] == "" or one["attack"] in {"", TOLD}]
    assert sentence(line(only)).startswith("only attacked by what no server can do (knows the order)")
    for one in rows:
        if one["attack"] == JIGSAW:
            one["card"] = card(TOLD)
    assert line(rows).caveats == (f"{UNTESTED}: TokenJigsaw did not run",)
    # Both kinds of bound are told by one field of the threat card, whatever it says.
    for one in rows:
        if one["attack"] == JIGSAW:
            one["card"] = card(JIGSAW) | {"upper_bound": BEYOND_RUN}
    assert line(rows).strongest.attack == DECODER  # type: ignore[union-attr]


def test_upper_bounds_are_marked_wherever_they_are_listed_and_alone_pass_no_control(tmp_path: Path) -> None:
    found = build(tmp_path, split_rows() + attack(SHUFFLE, TOLD, 8.0, round=1, failures=3))
    mark = "upper bound: knows the order"
    every = every_attack(tmp_path)
    tables = [(found.table("split", 1), "Attack"), (found.table("control"), "Attack on the undefended run")]
    tables += [(found.table("failures"), "What failed")] + [(every.table("attacks", at), "Attack") for at in (0, 2)]
    for table, column in tables:
        cells = [one[column] for one in table]
        assert [cell for cell in cells if cell[0] == TOLD], column
        assert all((mark in cell) == (cell[0] == TOLD) for cell in cells), column
    heat = {one["Attack"][0]: one["Attack"][1:] for one in found.table("attacks")}
    assert [name for name, below in heat.items() if "upper bound" in below] == [TOLD.partition("(")[0]]
    assert "Positive control failed" not in found.text
    alone = [one for one in split_rows() if one["attack"] not in {DECODER, JIGSAW}] + attack("", DECODER, 12.0)
    assert "Positive control failed" in build(tmp_path / "told", alone).text


def test_pictures_are_led_by_what_an_attacker_recovered(tmp_path: Path) -> None:
    found = {0: {DECODER: 9.0, TOLD: 60.0}, 1: {DECODER: 20.0, TOLD: 15.0}}
    pictures = [
        {"defense": "", "round": 2, "client": client, "attack": name, "kind": "reconstruction", "psnr": psnr}
        | {"file": f"{client}{name == TOLD}.png"}
        for client, scores in found.items()
        for name, psnr in scores.items()
    ]
    rows = [*attack("", DECODER, 20.0), *attack("", TOLD, 60.0)]
    alts = [str(known["alt"]) for known in build(tmp_path, rows, pictures=pictures).images["pictures"]]
    names = ("TokenDecoder", "FeatureInversion (upper bound)")
    assert alts == [f"{name}, client {client}" for client in (1, 0) for name in names]


# Other numbers and scores ---------------------------------------------------------------------------------------------

SMASHED_METRICS = ["psnr-paper", "ssim-paper", "mse-paper", "feature-similarity", "identification"]


def test_no_number_is_lost_and_only_diagnostics_are_left_among_the_others(tmp_path: Path) -> None:
    failed = {"defense": SHUFFLE, "round": 2, "scenario": "split", "card": card("")}
    more = [row(metric="attack", attack="Broken()", status="failed", message="NaN", **failed)]
    more.append(row(metric="label-accuracy", attack="ServerPrediction()", value=0.9, **failed))
    metrics = [*(one.name for one in SPLIT), *SMASHED_METRICS]
    for metric in metrics:
        known = {"attack": DECODER, "card": card(DECODER)} if metric in SMASHED_METRICS else {}
        more.append(row(metric=metric, reference="halo", value=0.625, round=2, scenario="split", **known))
    page = build(tmp_path, [*split_rows(), *attack(SHUFFLE, "AdaptiveDecoder()", 10.0), *more])
    table = every_attack(tmp_path).table("attacks", 2)
    odd = {one["Metric"][0]: one["Value"][0] for one in table if "(halo)" in one["Metric"][0]}
    assert odd == {f"{metric} (halo)": "0.625" for metric in metrics}
    others = [one["Metric"][0] for one in table if "(halo)" not in one["Metric"][0]]
    assert set(others) == {"holdout_psnr", "relative_loss"}
    assert len(others) == 2 * (len(PSNR) + 2)
    # Many of them are folded. An attack that failed is among the section's attacks, and one on labels is not.
    assert "<details><summary>Other numbers" in (tmp_path / "attacks.html").read_text(encoding="utf-8")
    status = {one["Attack"][0]: one["Status"][0] for one in page.table("split", 1)}
    assert (status["Broken()"], "ServerPrediction()" in status) == ("✗ failed", False)


def test_further_scores_of_an_attack_follow_its_positive_control() -> None:
    rows = [one for one in split_rows() if (one["defense"], one["attack"]) != ("", DECODER)]
    weak = attack("", DECODER, 12.0)  # its interval reaches the mean image
    marked = validate([Row.from_json(one) for one in rows + weak])
    mine = {one.metric: one.status for one in marked if (one.defense, one.attack) == (SHUFFLE, DECODER)}
    assert {mine[metric] for metric in SMASHED_METRICS} == {"not-validated"}
    assert mine["holdout_psnr"] == "ok"
    sound = {one.metric: one.status for one in marked if (one.defense, one.attack) == (SHUFFLE, JIGSAW)}
    assert {sound[metric] for metric in SMASHED_METRICS} == {"ok"}
    assert {control.row.metric for control in study(split_rows()).controls} == {"psnr"}


def test_the_worst_image_of_two_seeds_is_the_best_recovered_and_identification_has_the_interval_of_a_share() -> None:
    for metric in SMASHED_METRICS:
        rows = [Row(metric=metric, value=0.5, worst=worst, seed=seed) for seed, worst in enumerate((0.25, 0.75))]
        assert merge(rows).worst == (0.25 if metric == "mse-paper" else 0.75), metric
    found = merge([Row(metric="identification", value=1.0, n=32, ci_low=1.0, ci_high=1.0)])
    # Wilson, all of n: the lower end is n / (n + z^2).
    assert (found.low, found.high) == pytest.approx((32 / (32 + 1.959964**2), 1.0), abs=1e-6)


def test_large_numbers_are_shown_as_powers_of_ten_or_with_prefixes() -> None:
    for exponent, expected in {
        math.log10(math.factorial(16)): f"2.1 {TIMES} 10¹³", 0.0: f"1.0 {TIMES} 10⁰", math.log10(9.99): f"1.0 {TIMES} 10¹",
        -1.0: f"1.0 {TIMES} 10⁻¹", None: DASH, math.inf: DASH, math.nan: DASH,
    }.items():  # fmt: skip
        assert power_of_ten(exponent) == expected
    assert [amount(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12", "923 k", "3 M", "4 G", DASH]
    assert [size(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12 B", "923 kB", "3 MB", "4 GB", DASH]
