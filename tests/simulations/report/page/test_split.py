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
from simulations.report.studies.study import Study, split
from simulations.report.text import amount, power_of_ten, size
from tests.simulations.report.report_run import Page, demo_rows, every_attack, row
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return build(tmp_path_factory.mktemp("split"))


def study(rows: list[dict[str, Any]]) -> Study:
    return split(validate([Row.from_json(one) for one in rows]), ["", SHUFFLE])[0]


def line(rows: list[dict[str, Any]], defense: str = SHUFFLE) -> Line:
    return next(one for one in summarise(study(rows), SETTINGS["defenses"]) if one.defense == defense)


# The section ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_section_is_there_only_for_split_learning(page: Page, tmp_path: Path) -> None:
    assert "split" in page.sections
    assert "#split" in [known.get("href") for _, known in page.tags]
    other = build(tmp_path, demo_rows())
    assert "split" not in other.sections
    assert "#split" not in [known.get("href") for _, known in other.tags]


def test_every_cost_follows_from_the_rows(page: Page) -> None:
    none, shuffle = page.table("split")
    # As deployed, in the last complete round.
    assert (none["accuracy, %"][0], none["MCC micro"][0], none["MCC macro"][0]) == ("90.0", "0.85", "0.83")
    assert (shuffle["accuracy, %"][0], shuffle["MCC micro"][0], shuffle["MCC macro"][0]) == ("75.0", "0.70", "0.68")
    assert shuffle["Defence"][1] == "after round 2"
    assert (none["parameters"], none["peak memory"]) == (["53.2 k"], ["265 kB"])
    assert none["MACs per image"] == ["923 k"]
    assert shuffle["MACs per image"] == ["923 k", "training 2.77 M"]
    assert (none["sent per image"], none["images per second"]) == (["4.1 kB"], ["600"])
    assert none["batches lost"] == ["1", "of 248"]
    assert (none["orders left open"], none["share with the target"]) == ([DASH], [DASH])
    assert shuffle["orders left open"] == [f"1.3 {TIMES} 10²¹³"]
    assert shuffle["share with the target"] == [f"4.8 {TIMES} 10⁻¹⁴"]
    text = " ".join(page.sections["split"].split())
    assert "the multiset of tokens stays visible, so they bound no attack" in text
    assert "private" not in text


def test_every_score_of_an_attack_follows_from_the_rows(page: Page) -> None:
    found = {(one["Defence"][0], one["Attack"][0]): one for one in page.table("split", 1)}
    assert len(found) == len(PSNR) + 1
    shown = found[SHUFFLE, JIGSAW]
    assert shown["Attack"][1:] == ["adaptive to this defence", "round 2"]
    assert shown["PSNR, dB"] == ["25.0", "24.0 to 26.0"]
    assert shown["over null"] == ["+12.8", "mean 12.2"]
    assert shown["SSIM"][0] == "0.50"
    assert (shown["paper PSNR, dB"][0], shown["paper SSIM"][0], shown["paper MSE"][0]) == ("19.0", "0.40", "0.02")
    assert shown["feature similarity"][0] == "0.80"
    # Wilson's interval of 32 of 32; one of the eight images that were attacked together is right by chance.
    assert shown["identified"] == ["100.0 %", "89.3 to 100.0", "n = 32", "chance 12.5 %"]
    assert shown["recognised"][3] == "chance 10.0 %"
    assert [found[defense, DECODER]["transmissions used"] for defense in ("No defence", SHUFFLE)] == [["1"], ["1"]]
    assert shown["transmissions used"] == ["30"]
    # All of these attacks know the same data, so there is no column for it.
    assert "auxiliary data" not in shown


@pytest.mark.long
def test_shuffles_in_a_row_have_one_count_each_and_seeds_do_not_double_it(tmp_path: Path) -> None:
    rows = split_rows(seeds=(0, 1))
    known = {"defense": SHUFFLE, "scenario": "split", "round": 0}
    for seed in (0, 1):
        rows += [row(metric="log10-orders", value=2.0, seed=seed, **known)]
        rows += [row(metric="log10-target-share", value=-1.0, seed=seed, **known)]
    shown = build(tmp_path, rows).table("split")[1]
    assert shown["orders left open"] == [f"1.3 {TIMES} 10²¹³, 1.0 {TIMES} 10²"]
    assert shown["share with the target"] == [f"4.8 {TIMES} 10⁻¹⁴, 1.0 {TIMES} 10⁻¹"]
    assert shown["batches lost"] == ["2", "of 496"]


def test_a_run_that_has_just_begun_shows_what_it_has(tmp_path: Path) -> None:
    found = build(tmp_path, [one for one in training(SHUFFLE) if one["round"] == 0])
    (shown,) = found.table("split")
    assert shown["parameters"] == ["53.2 k"]
    assert shown["accuracy, %"] == shown["batches lost"] == [DASH]
    assert "Attacks on smashed data" not in found.sections["split"]
    assert "next table" not in found.sections["split"]


def test_an_attack_that_failed_is_listed_and_one_on_labels_is_not(tmp_path: Path) -> None:
    known = {"defense": SHUFFLE, "round": 2, "scenario": "split", "card": card("")}
    broken = row(metric="attack", attack="Broken()", status="failed", message="NaN", **known)
    labels = row(metric="label-accuracy", attack="ServerPrediction()", value=0.9, **known)
    table = build(tmp_path, [*split_rows(), broken, labels]).table("split", 1)
    assert [one["Status"][0] for one in table if one["Attack"][0] == "Broken()"] == ["✗ failed"]
    assert "ServerPrediction()" not in [one["Attack"][0] for one in table]


def test_captions_do_not_speak_of_gradient_attacks(page: Page) -> None:
    shown = [text for name, text in page.sections.items() if name not in {"configuration", "cards"}]
    assert len(shown) >= 8
    for word in ("probe", "update", "local step", "DP-SGD"):
        assert not [text for text in shown if word in text], word
    assert "Bytes are what a client sends in a round" in " ".join(page.sections["summary"].split())


# Upper bounds ---------------------------------------------------------------------------------------------------------


def test_an_upper_bound_is_never_the_strongest_attack() -> None:
    found = line(split_rows())
    assert found.strongest is not None
    assert (found.strongest.attack, found.strongest.mean("psnr", "original")) == (JIGSAW, 25.0)
    told = [cell for cell in study(split_rows()).cells if cell.attack == TOLD]
    assert [cell.is_upper_bound for cell in told] == [True, True]
    assert strongest(told) is None
    assert strongest(told, ("identification", "")) is None


def test_a_defence_that_only_an_upper_bound_met_says_so() -> None:
    rows = [one for one in split_rows() if one["defense"] == "" or one["attack"] in {"", TOLD}]
    assert sentence(line(rows)).startswith("only attacked by what no server can do (knows the order)")


def test_an_upper_bound_is_no_adaptive_attack() -> None:
    rows = split_rows()
    assert line(rows).caveats == ()
    for one in rows:
        if one["attack"] == JIGSAW:
            one["card"] = card(TOLD)
    assert line(rows).caveats == (f"{UNTESTED}: TokenJigsaw did not run",)


def test_upper_bounds_are_marked_wherever_they_are_listed(tmp_path: Path) -> None:
    failed = attack(SHUFFLE, TOLD, 8.0, round=1, failures=3)
    found = build(tmp_path, split_rows() + failed)
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
    assert "knows the order" in [one["upper bound"][0] for one in every.table("cards")]


def test_more_transmissions_than_the_run_makes_never_lead(tmp_path: Path) -> None:
    """Both kinds of bound are told by one field of the threat card, whatever it says."""
    rows = split_rows()
    assert line(rows).strongest.attack == JIGSAW  # type: ignore[union-attr]
    for one in rows:
        if one["attack"] == JIGSAW:
            one["card"] = card(JIGSAW) | {"upper_bound": BEYOND_RUN}
    assert line(rows).strongest.attack == DECODER  # type: ignore[union-attr]
    cells = [one["Attack"] for one in build(tmp_path, rows).table("attacks", 0)]
    assert all((f"upper bound: {BEYOND_RUN}" in cell) == (cell[0] == JIGSAW) for cell in cells)


def test_an_upper_bound_alone_does_not_pass_the_positive_control_of_a_run(tmp_path: Path) -> None:
    rows = [one for one in split_rows() if one["attack"] not in {DECODER, JIGSAW}] + attack("", DECODER, 12.0)
    assert "Positive control failed" in build(tmp_path / "told", rows).text
    assert "Positive control failed" not in build(tmp_path / "all").text


def test_pictures_are_led_by_what_an_attacker_recovered(tmp_path: Path) -> None:
    found = {0: {DECODER: 9.0, TOLD: 60.0}, 1: {DECODER: 20.0, TOLD: 15.0}}
    pictures = [
        {"defense": "", "round": 2, "client": client, "attack": name, "kind": "reconstruction", "psnr": psnr}
        | {"file": f"{client}{name == TOLD}.png"}
        for client, scores in found.items()
        for name, psnr in scores.items()
    ]
    shown = build(tmp_path, pictures=pictures)
    alts = [str(known["alt"]) for known in shown.images["pictures"]]
    told = "FeatureInversion (upper bound)"
    assert alts == [f"{name}, client {client}" for client in (1, 0) for name in ("TokenDecoder", told)]
    assert "what entered the client half" in " ".join(shown.sections["pictures"].split())


# Other numbers and scores ---------------------------------------------------------------------------------------------


def test_only_diagnostics_are_left_among_the_other_numbers(tmp_path: Path) -> None:
    build(tmp_path)
    table = every_attack(tmp_path).table("attacks", 2)
    assert {one["Metric"][0] for one in table} == {"holdout_psnr", "relative_loss"}
    assert len(table) == 2 * (len(PSNR) + 1) == 12


def test_many_diagnostics_are_folded(tmp_path: Path) -> None:
    more = attack(SHUFFLE, "AdaptiveDecoder()", 10.0)
    build(tmp_path, split_rows() + more)
    assert len(every_attack(tmp_path).table("attacks", 2)) > 12
    assert "<details><summary>Other numbers" in (tmp_path / "attacks.html").read_text(encoding="utf-8")


SPLIT_METRICS = [one.name for one in SPLIT]
SMASHED_METRICS = ["psnr-paper", "ssim-paper", "mse-paper", "feature-similarity", "identification"]


@pytest.mark.parametrize("metric", [*SPLIT_METRICS, *SMASHED_METRICS])
def test_a_known_number_with_an_unknown_reference_is_not_lost(tmp_path: Path, metric: str) -> None:
    known = {"attack": DECODER, "card": card(DECODER)} if metric in SMASHED_METRICS else {}
    odd = row(metric=metric, reference="halo", value=0.625, round=2, scenario="split", **known)
    build(tmp_path, [*split_rows(), odd])
    table = every_attack(tmp_path).table("attacks", 2)
    assert [one["Value"][0] for one in table if one["Metric"][0] == f"{metric} (halo)"] == ["0.625"]


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


@pytest.mark.parametrize(("metric", "expected"), [(name, 0.75) for name in SMASHED_METRICS if name != "mse-paper"])
def test_the_worst_image_of_two_seeds_is_the_best_recovered(metric: str, expected: float) -> None:
    rows = [Row(metric=metric, value=0.5, worst=worst, seed=seed) for seed, worst in enumerate((0.25, 0.75))]
    assert merge(rows).worst == expected
    assert merge([Row(metric="mse-paper", value=0.5, worst=one.worst, seed=one.seed) for one in rows]).worst == 0.25


def test_identification_has_the_interval_of_a_share() -> None:
    found = merge([Row(metric="identification", value=1.0, n=32, ci_low=1.0, ci_high=1.0)])
    # Wilson, all of n: the lower end is n / (n + z^2).
    assert found.low == pytest.approx(32 / (32 + 1.959964**2), abs=1e-6)
    assert found.high == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (math.log10(math.factorial(16)), f"2.1 {TIMES} 10¹³"),
        (0.0, f"1.0 {TIMES} 10⁰"),
        (math.log10(9.99), f"1.0 {TIMES} 10¹"),
        (-1.0, f"1.0 {TIMES} 10⁻¹"),
        (None, DASH),
        (math.inf, DASH),
        (math.nan, DASH),
    ],
)
def test_powers_of_ten(exponent: float | None, expected: str) -> None:
    assert power_of_ten(exponent) == expected


def test_counts_and_bytes_share_their_prefixes() -> None:
    assert [amount(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12", "923 k", "3 M", "4 G", DASH]
    assert [size(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12 B", "923 kB", "3 MB", "4 GB", DASH]
