from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.metrics.names import Role
from simulations import report
from simulations.report import write_report
from simulations.report.page import page as page_module
from tests.simulations.report.report_run import (
    ATTACKED,
    CONFIG,
    INVERSION,
    LABELS,
    NULLS,
    PIPELINES,
    ROUNDS,
    Page,
    demo_rows,
    every_attack,
    member_rows,
    png,
    row,
    setting,
    write_run,
)

RUNS = ["#headline", "#summary", "#curves", "#control", "#attacks", "#failures", "#cards", "#configuration"]


SIBLINGS = {"rows.csv", "attacks.html"}


def build(directory: Path, **parts: Any) -> Page:
    return Page(write_report(write_run(directory, **parts)).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(run: Path) -> Page:
    return build(run)


def number(text: str) -> float:
    """What a reader reads: a real minus sign, a unit, a ratio."""
    found = re.search(r"[+\-]?\d+(\.\d+)?(e-?\d+)?", text.replace("\N{MINUS SIGN}", "-"))
    assert found, text
    return float(found.group())


def values(rows: list[dict[str, Any]], **wanted: Any) -> list[float]:
    return [one["value"] for one in rows if all(one[key] == value for key, value in wanted.items())]


# Structure ------------------------------------------------------------------------------------------------------------


def test_elements_are_nested_and_ids_are_unique(demo: Page) -> None:
    assert demo.open == []
    ids = [known["id"] for _, known in demo.tags if "id" in known]
    assert len(ids) == len(set(ids))
    targets = [str(known["href"]) for tag, known in demo.tags if tag == "a"]
    assert set(RUNS) <= set(targets)
    assert {target.removeprefix("#") for target in targets if target.startswith("#")} <= set(ids)
    assert {target.partition("#")[0] for target in targets} == {"", "rows.csv", "attacks.html"}


def test_the_two_pages_link_places_that_there_are(tmp_path: Path) -> None:
    report = build(tmp_path, pictures=PICTURES)
    pages = {"report.html": report, "attacks.html": every_attack(tmp_path)}
    ids = {name: {known["id"] for _, known in page.tags if "id" in known} for name, page in pages.items()}
    links = [str(known["href"]).partition("#") for page in pages.values() for tag, known in page.tags if tag == "a"]
    across = {(name, place) for name, _, place in links if name in pages and place}
    assert {
        ("attacks.html", "attacks"),
        ("attacks.html", "cards"),
        ("attacks.html", "pictures"),
        ("report.html", "cards"),
    } == across
    assert all(place in ids[name] for name, place in across)
    assert pages["attacks.html"].open == []


def test_the_table_of_attacks_shows_the_round_in_which_each_did_best(demo: Page) -> None:
    table = demo.table("attacks")
    assert [one["Attack"] for one in table] == [["InvertingGradients"], ["LabelInference", "share of labels"]]
    assert table[0]["No defence"] == ["16 of 16", "round 1"]
    assert table[1]["DPSGD(target_epsilon=8.0)"] == ["25.0 %", "round 1, null 10 %"]
    tints = [
        str(known["style"]) for tag, known in demo.tags if tag == "td" and "heat" in str(known.get("class", "")).split()
    ]
    assert tints[0] == "--heat: 100%"
    assert len(tints) == 2 * len(PIPELINES)
    assert "InvertingGradients recovered most images: 16 of 16 under No defence (round 1)." in demo.sections["attacks"]


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    write_report(write_run(tmp_path, pictures=PICTURES))
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<iframe", source)
    links = [known[key] for _, known in Page(source).tags for key in ("src", "href", "xlink:href") if key in known]
    assert links
    assert all(
        str(link).startswith(("#", "data:image/png;base64,")) or str(link).partition("#")[0] in SIBLINGS
        for link in links
    )
    assert (tmp_path / "rows.csv").is_file()


def test_the_only_script_is_the_one_that_the_policy_names(tmp_path: Path) -> None:
    write_report(write_run(tmp_path))
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", source, flags=re.DOTALL)
    assert len(scripts) == 1 == source.count("<script")
    assert scripts[0][0] == ""
    digest = base64.b64encode(hashlib.sha256(scripts[0][1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', source)
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy.group(1)
    assert policy.group(1).startswith("default-src 'none'")


def test_every_table_has_a_name_and_can_be_scrolled_by_keys(demo: Page) -> None:
    boxes = [known for tag, known in demo.tags if tag == "div" and str(known.get("class", "")).startswith("scroll")]
    assert boxes
    assert all(box["tabindex"] == "0" and box["role"] == "region" and box["aria-label"] for box in boxes)
    assert len([tag for tag, _ in demo.tags if tag == "caption"]) == len(boxes)


def test_each_defence_can_be_linked_to(demo: Page) -> None:
    places = [known["id"] for tag, known in demo.tags if tag == "li" and "id" in known]
    assert places == [f"defence-{number}" for number in range(1, len(PIPELINES) + 1)]
    assert {f"#{place}" for place in places} <= {known.get("href") for tag, known in demo.tags if tag == "a"}


def test_the_top_says_the_conclusion(demo: Page) -> None:
    top = " ".join(demo.text.split("Headline", 1)[0].split())
    minus = "\N{MINUS SIGN}"
    assert "Without a defence: readable (16 of 16 recovered)." in top
    assert "DPSGD(8.0): readable (16 of 16 recovered, " + minus + "7.0 points)." in top
    assert "Mixer: not recovered (0 of 16 recovered, " + minus + "5.0 points)." in top


def test_the_first_table_has_verdict_count_cost_and_budget_of_each_defence(demo: Page) -> None:
    (table,) = demo.tables["glance"]
    minus = "\N{MINUS SIGN}"
    assert table[0] == [["Defence"], ["Verdict"], ["Images recovered"], ["Accuracy"], ["Budget ε"]]
    found = {line[0][0]: line[1:] for line in table[1:]}
    verdict = ["readable", "strongest: InvertingGradients"]
    assert found["No defence"] == [verdict, ["16 of 16", "79.4 to 100.0 %"], ["95.0 %"], ["\N{EN DASH}"]]
    change = f"{minus}7.0 points, {minus}10.5 to {minus}3.6"  # of 88 and 95 % of 500 images
    assert found["DPSGD(target_epsilon=8.0)"][2:] == [["88.0 %", change], ["8.00", "with probes: 12.00"]]
    assert len(found) == len(PIPELINES)


def test_a_page_of_a_run_ends_with_what_to_do_next(tmp_path: Path) -> None:
    """With commands that there are; of an app that was audited they would not be."""
    settings = {"output-dir": "/nowhere", "scenario": "federated"}
    page = build(tmp_path / "my run", config={**CONFIG, "config": settings})
    end = page.sections["configuration"].split("What to do next")[1]
    assert "fedveil compare 'my run' OTHER" in end
    assert "fedveil run --seeds 0..4 --out five" in end
    assert "--preset dp_curve" in end
    split = build(tmp_path / "split", config={**CONFIG, "config": settings | {"scenario": "split"}})
    assert "dp_curve" not in split.sections["configuration"]
    assert "What to do next" not in build(tmp_path / "app").text


def test_the_head_says_when_how_long_and_where(tmp_path: Path) -> None:
    run = {"started": "2026-01-02 03:04 UTC", "seconds": 250.0, "machine": "2 cores, 8 GiB"}
    found = build(tmp_path, config=CONFIG | {"run": run})
    assert "2026-01-02 03:04 UTC · 4.2 min of computing · 2 cores, 8 GiB · all numbers: rows.csv" in found.text
    assert "machine" not in found.sections["configuration"]


def test_only_settings_that_differ_from_their_defaults_are_unfolded(tmp_path: Path) -> None:
    found = build(tmp_path, config=CONFIG | {"config": {"seed": 0, "rounds": 7, "unheard-of": 1}})
    changed, unchanged = found.tables["configuration"][:2]
    assert [row[0][0].strip() for row in changed] == ["rounds", "unheard-of"]
    assert [row[0][0].strip() for row in unchanged] == ["seed"]


def test_both_colour_schemes_define_the_same_variables() -> None:
    light, dark = report_css().split("@media (prefers-color-scheme: dark)")
    dark = dark[: dark.index("* {")]
    names = [set(re.findall(r"--(none|d\d|dp\d|page|card|ink)\b:", half)) for half in (light, dark)]
    assert names[0] == names[1] >= {"none", "d0", "dp0", "page", "ink"}


def report_css() -> str:
    from simulations.report.page.style import CSS

    return CSS


def test_every_wide_part_scrolls_in_its_own_container(demo: Page) -> None:
    parents = [known.get("class", "") for tag, known in demo.tags if tag in {"div", "table"}]
    kinds = [tag for tag, _ in demo.tags if tag in {"div", "table"}]
    before = [parents[at - 1] for at, kind in enumerate(kinds) if kind == "table"]
    assert before
    assert all(str(one).startswith("scroll") for one in before)


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(PIPELINES)))
def test_every_number_in_the_summary_follows_from_the_rows(demo: Page, place: int) -> None:
    rows, defense = demo_rows(), PIPELINES[place]
    shown = demo.table("summary")[place]
    mine = {"defense": defense, "attack": ""}
    clean = values(rows, metric="test-accuracy", reference="original", round=ROUNDS, **mine)[0]
    assert number(shown["clean"][0]) == pytest.approx(100 * clean, abs=0.051)
    deployed = clean
    if "Mixer" in defense:
        deployed = values(rows, metric="test-accuracy", reference="transformed", round=ROUNDS, **mine)[0]
        assert number(shown["protected"][0]) == pytest.approx(100 * deployed, abs=0.051)
    plain = values(rows, metric="test-accuracy", reference="original", round=ROUNDS, defense="", attack="")[0]
    if defense:
        assert number(shown["change"][0]) == pytest.approx(100 * (deployed - plain), abs=0.051)
    known = {"defense": defense, "attack": INVERSION}
    scores = [one for one in rows if one["metric"] == "psnr" and one["reference"] == "original"]
    mine_scores = [one for one in scores if one["defense"] == defense and one["attack"] == INVERSION]
    best = max(mine_scores, key=lambda one: (one["ci_low"] > max(NULLS.values()), one["value"]))
    at = best["round"]
    assert shown["attack"] == ["InvertingGradients", f"round {at}, n = 16"]
    assert number(shown["original"][0]) == pytest.approx(best["value"], abs=0.051)
    ends = [number(end) for end in shown["original"][1].split(" to ")]
    assert ends == pytest.approx([best["ci_low"], best["ci_high"]], abs=0.051)
    # Rows of this run tell no single images: the highest PSNR of one stands where its gain would.
    assert number(shown["best image"][1].removeprefix("highest ")) == pytest.approx(best["worst"], abs=0.051)
    assert shown["recovered"][0] == ("16 of 16" if best["value"] > max(NULLS.values()) else "0 of 16")
    assert number(shown["over null"][0]) == pytest.approx(best["value"] - max(NULLS.values()), abs=0.051)
    assert shown["over null"][1] == "mean 12.2"
    transformed = values(rows, metric="psnr", reference="transformed", round=at, **known)[0]
    assert number(shown["transf."][0]) == pytest.approx(transformed, abs=0.051)
    assert number(shown["SSIM"][0]) == pytest.approx(values(rows, metric="ssim", round=at, **known)[0], abs=0.0051)
    found = max(values(rows, metric="label-accuracy", defense=defense, attack=LABELS))
    assert number(shown["labels found"][0]) == pytest.approx(100 * found, abs=0.051)
    for metric, column in (("train-seconds", "time"), ("update-bytes", "bytes")):
        own, base = (np.mean(values(rows, metric=metric, defense=one)) for one in (defense, ""))
        if defense:
            assert number(shown[column][0]) == pytest.approx(own / base, abs=0.0051)
    if "DPSGD" in defense:
        spent = shown["ε (δ)"]
        assert number(spent[0]) == pytest.approx(max(values(rows, metric="epsilon", defense=defense)), abs=0.0051)
        assert number(spent[1]) == pytest.approx(1e-5)
        probes = max(values(rows, metric="epsilon-with-probes", defense=defense))
        assert number(spent[2]) == pytest.approx(probes, abs=0.0051)
    else:
        assert shown["ε (δ)"] == ["\N{EN DASH}"]


def test_the_headline_has_one_careful_sentence_per_defence(demo: Page) -> None:
    text = " ".join(demo.sections["headline"].replace("\xa0", " ").split())
    recovered = "The strongest attack recovered 16 of 16 images (95 % interval 79.4 to 100.0 %; chance of as many by the best of 2"
    assert (
        f"No defence readable In words {recovered} null guesses: at most 2e\N{MINUS SIGN}32). Its mean PSNR is 31.2 dB"
        in text
    )
    failed = "not recovered In words The strongest attack recovered 0 of 16 images (95 % interval 0.0 to 20.6 %)"
    failed += " and identified 0 of 16 among 100 candidates. Its mean PSNR is"
    assert f"Mixer(window=4) {failed} 9.4 dB" in text
    # As deployed, Mixer sees protected test images: 0.6 + 0.3 against 0.95.
    assert (
        "round 3, probe test accuracy 90.0 % (\N{MINUS SIGN}5.0 points, \N{MINUS SIGN}8.3 to \N{MINUS SIGN}1.7)" in text
    )
    assert "no better than the mean image (12.2 dB)" in text
    worse = "7.0 dB (95 % interval 6.5 to 7.5), no better than a grey image"
    assert f"DPSGD(target_epsilon=2.0) {failed} {worse}" in text
    assert "untested against an adaptive attacker: LearnedRestorer did not run" in text
    assert text.count("untested against an adaptive attacker") == 2
    assert "private" not in text.lower()


def test_the_summary_states_what_the_change_and_the_small_print_are(demo: Page) -> None:
    text = " ".join(demo.sections["summary"].replace("\xa0", " ").split())
    assert (
        "The change compares accuracy with the undefended run of the same round, in percentage points. If a defence also "
        "protects test images, accuracy is measured on protected ones." in text
    )
    assert (
        "Small print is the 95 % interval of the mean. Accuracy without one gets Wilson's interval over the test images. †"
        in text
    )


def test_the_long_table_shows_every_attack_with_its_baselines_and_status(demo: Page, run: Path) -> None:
    table = every_attack(run).table("attacks")
    assert len(table) == len(PIPELINES) * len(ATTACKED) * 2
    for line in table:
        if line["Attack"][0] == INVERSION:
            assert [line[name][0] for name in ("grey", "mean", "blurred")] == ["8.0", "12.2", "30.0"]
            assert line["Status"] == ["✓ ok"]
            assert line["n"] == ["16"]
            assert number(line["model acc."][0]) == pytest.approx(10 * number(line["Round"][0]))


def test_an_attack_that_fails_its_control_is_printed_as_not_validated(tmp_path: Path) -> None:
    rows = demo_rows()
    for one in rows:
        if one["defense"] == "" and one["attack"] == INVERSION and one["round"] == 3 and one["metric"] == "psnr":
            one |= {"value": 9.0, "ci_low": 8.5, "ci_high": 9.5}
    found = build(tmp_path, rows=rows)
    marked = [one for one in every_attack(tmp_path).table("attacks") if "not validated" in one["Status"][0]]
    assert len(marked) == len(PIPELINES)
    assert {(one["Attack"][0], one["Round"][0]) for one in marked} == {(INVERSION, "3")}
    verdicts = found.table("control")[0]
    assert verdicts["round 1, probe"][0].startswith("✓ 31.2 against mean 12.2")
    assert verdicts["round 3, probe"] == [
        "✗ 9.0 against mean 12.2",
        "16 of 16 identified of 100",
        "the undefended run scores no better than mean",
    ]
    assert "not-validated" in (tmp_path / "rows.csv").read_text(encoding="utf-8")
    assert "Positive control failed" not in found.text


@pytest.mark.long
def test_what_failed_its_control_is_told_on_the_fold_and_at_the_top(tmp_path: Path) -> None:
    rows = [*demo_rows(), *member_rows("", 0.5, (0.45, 0.55))]
    for one in rows:
        if one["defense"] == "" and one["attack"] == INVERSION and one["round"] == 3 and one["metric"] == "psnr":
            one |= {"value": 9.0, "ci_low": 8.5, "ci_high": 9.5}
    assert folded_control(tmp_path / "two", rows) == (
        "3 scores of undefended images, ✗ 2 of 5 tests failed: InvertingGradients (round 3); LossThreshold (round 1)"
    )
    text = " ".join((tmp_path / "two" / "report.html").read_text(encoding="utf-8").replace("<wbr>", "").split())
    assert (
        "an attack must work on the undefended run. 2 of 5 checks of this failed (InvertingGradients, LossThreshold). "
        "No score of the first table depends on these attacks; a † marks their results elsewhere."
    ) in text
    # Too few images are no failure, and no verdict either.
    few = [one | {"n": 2} if one["metric"] in ("psnr", "retrieval") else one for one in demo_rows()]
    few += member_rows("", 0.7, (0.65, 0.75))
    assert folded_control(tmp_path / "few", few).endswith("images, all of 3 tests passed")
    assert "tests on the undefended run failed" not in (tmp_path / "few" / "report.html").read_text(encoding="utf-8")


def folded_control(directory: Path, rows: list[dict[str, Any]]) -> str:
    """What stands on the fold over the positive control's table, which is closed."""
    build(directory, rows=rows)
    section = (directory / "report.html").read_text(encoding="utf-8").split('<section id="control">')[1]
    shown = section.split("</header>")[1].split("<details>")[1].split("</summary>")[0]
    return " ".join(re.sub("<[^>]*>", "", shown).split())


def test_a_run_whose_attacks_all_fail_their_control_says_so_at_the_top(tmp_path: Path) -> None:
    rows = [one for one in demo_rows() if one["attack"] not in NULLS]
    assert "nothing here is evidence for any defence" in build(tmp_path, rows=rows).text


@pytest.mark.long
def test_membership_has_columns_only_when_it_was_measured(demo: Page, tmp_path: Path) -> None:
    assert "member AUC" not in demo.table("summary")[0]
    card = setting(1)
    more = [
        row(attack="Threshold()", card=card, metric=metric, value=value, ci_low=value - 0.1, ci_high=value + 0.1)
        for metric, value in (("membership-auc", 0.73), ("membership-tpr", 0.125))
    ]
    shown = build(tmp_path, rows=demo_rows() + more).table("summary")[0]
    assert shown["member AUC"] == ["0.73", "0.63 to 0.83"]
    assert shown["TPR at 1\N{NO-BREAK SPACE}% FPR".replace("\N{NO-BREAK SPACE}", " ")][0] == "12.5 %"


@pytest.mark.long
def test_what_is_unknown_is_shown_and_not_lost(tmp_path: Path) -> None:
    more = [
        row(metric="gpu-watts", value=312.5),
        row(attack="Mystery(x=1)", card=setting(1), metric="aura", reference="halo", value=0.625, worst=0.75),
        row(defense="Later()", attack="Mystery(x=1)", card=setting(1), metric="psnr", reference="original", value=9.0),
    ]
    found = build(tmp_path, rows=demo_rows() + more)
    others = every_attack(tmp_path).table("attacks", 2)
    assert [(one["Metric"][0], one["Value"][0]) for one in others] == [("gpu-watts", "312.5"), ("aura (halo)", "0.625")]
    assert others[1]["Attack"] == ["Mystery(x=1)"]
    assert "Later()" in found.sections["headline"]


def test_failures_are_listed_with_their_reasons(tmp_path: Path) -> None:
    more = [
        row(metric="client", status="failed", client=3, round=2, message="RuntimeError: empty batch"),
        row(metric="attack", attack="Broken()", card=setting(1), status="failed", failures=8, message="NaN update"),
    ]
    told = {"attack_failures": ["diverged", "no memory"]}
    for at in ATTACKED:
        for metric in ("psnr", "ssim"):
            known = {"metric": metric, "reference": "original", "value": 8.0, "failures": 2, "round": at}
            more.append(row(attack="Shaky()", card=setting(at, **told), **known))
    found = build(tmp_path, rows=demo_rows() + more)
    shown = [(one["What failed"][0], one["Trials"][0], one["Message"][0]) for one in found.table("failures")]
    assert shown == [
        ("client 3", "\N{EN DASH}", "RuntimeError: empty batch"),
        ("Broken()", "8", "NaN update"),
        ("Shaky()", "4", "diverged; no memory"),
    ]
    assert [one["Rounds"][0] for one in found.table("failures")] == ["2", "1", "1, 3"]
    assert "1 client failure" in " ".join(found.table("summary")[0]["Defence"])
    heat = {one["Attack"][0]: one["No defence"] for one in found.table("attacks")}
    assert heat["Broken"] == ["failed", "round 1"]
    broken = next(one for one in every_attack(tmp_path).table("attacks") if one["Attack"][0] == "Broken()")
    assert broken["Status"] == ["✗ failed"]


def test_threat_cards_separate_what_differs(demo: Page, run: Path) -> None:
    assert "observation probe" in " ".join(demo.sections["cards"].split())
    table = every_attack(run).table("cards")
    assert [one["iterations"][0] for one in table] == ["600", "\N{EN DASH}"]
    assert INVERSION in table[0]["Attacks"][0]


# Pictures -------------------------------------------------------------------------------------------------------------

PICTURES = [
    {
        "defense": defense,
        "attack": INVERSION if kind == "reconstruction" else "",
        "round": at,
        "client": client,
        "target": 0,
        "image": 0,
        "kind": kind,
        "file": f"{PIPELINES.index(defense)}-{at}-{client}-{kind}.png",
        "psnr": {0: 10.0, 1: 30.5, 2: None}[client] if kind == "reconstruction" else None,
    }
    for defense in PIPELINES[:2]
    for at in (3, 1)
    for client in (0, 1, 2)
    for kind in ("original", "protected", "reconstruction")
]


@pytest.mark.long
def test_pictures_come_best_recovered_first_in_the_first_attacked_round(tmp_path: Path) -> None:
    best = build(tmp_path, pictures=PICTURES).images["pictures"]
    found = every_attack(tmp_path)
    images = found.images["pictures"]
    assert len(images) == len(PICTURES)
    alts = [str(known["alt"]) for known in images[:9]]
    assert alts == [f"{name}, client {c}, target 0, image 0" for c in (1, 0, 2) for name in ALT_NAMES]
    # The report has the first two targets of one round of each defence.
    assert [str(known["alt"]) for known in best[:6]] == alts[:6]
    assert len(best) == 2 * 2 * len(ALT_NAMES)
    text = " ".join(found.sections["pictures"].split())
    assert (
        text.index("No defence, round 1: 3 targets")
        < text.index("30.5 dB")
        < text.index("10.0 dB")
        < text.index("No defence, round 3")
    )


def test_an_input_that_the_defence_does_not_alter_says_so(tmp_path: Path) -> None:
    same = [
        one | ({"file": one["file"].replace("protected", "original")} if one["kind"] == "protected" else {})
        for one in PICTURES
    ]
    build(tmp_path, pictures=same)
    grids = every_attack(tmp_path).sections["pictures"]
    assert grids.count("unaltered input") == grids.count("not altered by the defence") == len(same) // 6
    build(tmp_path / "other", pictures=PICTURES)
    assert "altered" not in every_attack(tmp_path / "other").sections["pictures"]


def test_the_headline_shows_the_closest_guess_beside_what_entered_the_model(tmp_path: Path) -> None:
    found = build(tmp_path, pictures=PICTURES)
    alts = [str(known["alt"]) for known in found.images["headline"]]
    # The index of this run tells no null baselines of single images, so that nothing is said of what counts as recovered.
    worst = [
        f"{name}, the image with the highest PSNR: client 1, target 0, image 0"
        for name in ("original", "protected", "guess")
    ]
    # Of the mixer, the strongest score is of round 3; in both rounds client 1 has the highest PSNR.
    assert alts == worst * 2


ALT_NAMES = ("original", "protected", "InvertingGradients")


def test_pictures_are_the_files_byte_for_byte(tmp_path: Path) -> None:
    build(tmp_path, pictures=PICTURES)
    embedded = {str(known["src"]).partition(",")[2] for tag, known in every_attack(tmp_path).tags if tag == "img"}
    files = {base64.b64encode(path.read_bytes()).decode() for path in (tmp_path / "pictures").glob("*.png")}
    assert embedded == files


def test_pictures_from_outside_and_files_that_are_no_png_are_not_embedded(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(7))
    bad = [PICTURES[0] | {"file": name} for name in ("../../secret.png", str(tmp_path / "secret.png"), "gone.png")]
    directory = write_run(tmp_path / "run", pictures=[*bad, PICTURES[1] | {"file": "text.png"}])
    (directory / "pictures" / "text.png").write_text("<svg onload=alert(1)>")
    (directory / "pictures" / "gone.png").unlink()
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert "pictures are missing or no PNG" in found.text


def test_a_page_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.report.drawing.pictures.MOST_BYTES", 5 * len(png(0)))
    found = build(tmp_path, pictures=PICTURES)
    assert len({known["src"] for tag, known in found.tags if tag == "img"}) <= 5
    assert "did not fit on this page" in found.text


# Robustness -----------------------------------------------------------------------------------------------------------


def test_texts_are_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    card = setting(1, selection=evil)
    rows = [
        row(experiment=evil, dataset=evil, model=evil, scenario=evil, defense=defense, attack=attack, **known)
        for defense in ("", evil)
        for attack, known in (
            ("", {"metric": "test-accuracy", "reference": "original", "value": 0.5}),
            ("", {"metric": evil, "reference": evil, "value": 0.5}),
            ("", {"metric": "client", "status": "failed", "message": evil}),
            (evil, {"metric": "psnr", "reference": "original", "value": 9.0, "card": card}),
            (
                f"{evil}!",
                {"role": "null baseline", "metric": "psnr", "reference": "original", "value": 8.0, "card": card},
            ),
        )
    ]
    config = {
        "config": {evil: evil},
        "defenses": {evil: {"sources": [evil], "adaptive_attacks": [evil]}},
        "command": evil,
    }
    config |= {"versions": {evil: evil}, "progress": {"round": evil, "failed": evil}, evil: evil}
    pictures = [PICTURES[2] | {"defense": evil, "attack": evil, "client": evil, "kind": evil}]
    found = build(tmp_path, rows=rows, config=config, pictures=pictures)
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 1
    assert not [key for _, known in found.tags for key in known if key.startswith("on")]
    assert evil in found.text
    assert found.open == []


@pytest.mark.parametrize(
    "missing", [("config.json",), ("rows.jsonl",), ("pictures",), ("config.json", "rows.jsonl", "pictures")]
)
def test_a_missing_part_costs_only_itself(tmp_path: Path, missing: tuple[str, ...]) -> None:
    directory = write_run(tmp_path, pictures=PICTURES)
    for name in missing:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert "configuration" in found.sections
    assert ("summary" in found.sections) == ("rows.jsonl" not in missing)
    for name in missing:
        assert (f"{name} is missing" in found.text) == (name != "pictures")


@pytest.mark.long
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"pipelines": 3, "config": 4, "defenses": [1], "progress": []}']
)
def test_a_damaged_configuration_costs_only_itself(tmp_path: Path, content: str) -> None:
    directory = write_run(tmp_path)
    (directory / "config.json").write_text(content)
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert len(found.table("summary")) == len(PIPELINES)


@pytest.mark.long
def test_a_row_cut_off_by_a_killed_writer_is_noted(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    with (directory / "rows.jsonl").open("a") as file:
        file.write('{"experiment": "demo", "metr')
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert "the last line is cut off and was left out" in found.text
    assert len(found.table("summary")) == len(PIPELINES)


WHERE = {"pipeline": 3, "of": 6, "round": 2, "rounds": 8, "finished": False}


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (WHERE, "run in progress: round 2 of 8 of pipeline 3 of 6"),
        (WHERE | {"failed": "no nodes"}, "run stopped after round 2 of 8 of pipeline 3 of 6: no nodes"),
        (WHERE | {"finished": True}, ""),
        (None, ""),
    ],
)
def test_an_unfinished_run_says_how_far_it_came(tmp_path: Path, state: Any, expected: str) -> None:
    text = build(tmp_path, config=CONFIG | {"progress": state}).text
    assert expected in text
    assert ("run in progress" in text) == expected.startswith("run in progress")


@pytest.mark.long
def test_a_report_can_be_written_after_the_first_round(tmp_path: Path) -> None:
    rows = [one for one in demo_rows() if one["defense"] == "" and one["round"] == 1]
    assert len(build(tmp_path, rows=rows).table("summary")) == 1
    assert "Not attacked yet" in build(tmp_path, rows=[one for one in rows if not one["attack"]]).text


def test_null_and_infinite_values_have_signs_of_their_own(tmp_path: Path) -> None:
    card = setting(1)
    rows = [
        row(metric="test-accuracy", reference="original", value=None),
        row(metric="epsilon", value=math.inf),
        row(metric="psnr", reference="original", attack="A()", card=card, value=math.inf, worst=math.inf),
        row(metric="psnr", reference="original", attack="grey", role=Role.NULL_BASELINE, card=card, value=8.0),
    ]
    shown = build(tmp_path, rows=rows).table("summary")[0]
    assert shown["original"] == ["∞"]
    assert shown["ε (δ)"] == ["∞"]
    assert shown["clean"] == ["\N{EN DASH}"]


@pytest.mark.long
def test_several_seeds_are_averaged_and_named(tmp_path: Path) -> None:
    rows = demo_rows(seeds=(0, 1, 2))
    found = build(tmp_path, rows=rows)
    assert "seeds 0, 1, 2" in " ".join(found.text.split())
    shown = found.table("summary")[0]
    psnr = values(rows, metric="psnr", reference="original", attack=INVERSION, defense="", round=1)
    assert len(psnr) == 3
    assert number(shown["original"][0]) == pytest.approx(np.mean(psnr), abs=0.051)
    accuracy = values(rows, metric="test-accuracy", reference="original", defense="", round=ROUNDS)
    assert number(shown["clean"][0]) == pytest.approx(100 * np.mean(accuracy), abs=0.051)
    assert "recovered 48 of 48 images (95 % interval 92.6 to 100.0 %; over 3 seeds;" in " ".join(
        found.sections["headline"].replace("\xa0", " ").split()
    )


@pytest.mark.long
def test_several_experiments_stay_apart(tmp_path: Path) -> None:
    second = [one | {"experiment": "second", "dataset": "cifar10", "value": one["value"]} for one in demo_rows()]
    named = [picture | {"experiment": "second"} for picture in PICTURES[:3]]
    found = build(tmp_path, rows=demo_rows() + second, pictures=named + PICTURES[9:12])
    assert {"summary1", "summary2", "attacks1", "attacks2", "pictures2", "pictures"} <= set(found.sections)
    assert "pictures1" not in found.sections
    assert found.table("summary1") == found.table("summary2") == found.table("summary1")
    ids = [known["id"] for _, known in found.tags if "id" in known]
    assert len(ids) == len(set(ids))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**20), 10**20) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
odd_rows = st.fixed_dictionaries(
    {
        "metric": st.sampled_from(
            [
                *("psnr", "ssim", "label-accuracy", "test-accuracy", "epsilon", "clients-failed", "odd"),
                *("edge-macs", "log10-orders", "batches-lost", "mcc-micro", "identification", "mse-paper"),
            ]
        )
    },
    optional={
        "attack": st.sampled_from(["", "A()", "grey"]) | json_values,
        "role": st.sampled_from(["attack", "null baseline", "scale"]) | json_values,
        "defense": st.sampled_from(["", "D()", "DPSGD(target_epsilon=1.0)"]) | json_values,
        "reference": st.sampled_from(["", "original", "transformed"]),
        "round": st.integers(0, 3) | json_values,
        "seed": st.integers(0, 1),
        **dict.fromkeys(("value", "ci_low", "ci_high", "worst"), st.floats() | json_values),
        **dict.fromkeys(("card", "n", "status", "client", "failures", "message", "colour"), json_values),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(odd_rows, max_size=10), json_values, st.dictionaries(st.sampled_from([*CONFIG, "odd"]), json_values))
def test_nothing_in_the_data_stops_the_report(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], picture: Any, config: dict[str, Any]
) -> None:
    directory = tmp_path_factory.mktemp("odd")
    write_run(directory, rows=rows, config=config)
    (directory / "pictures").mkdir()
    lines = [picture, {"file": "x", "kind": "original", "psnr": picture, "round": picture, "defense": picture}]
    (directory / "pictures" / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert found.open == []
    shutil.rmtree(directory)


# Files ----------------------------------------------------------------------------------------------------------------


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.long
def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    directory = write_run(tmp_path, pictures=PICTURES)
    first = [(write_report(directory)).read_bytes(), (directory / "rows.csv").read_bytes()]
    assert [write_report(directory).read_bytes(), (directory / "rows.csv").read_bytes()] == first


@pytest.mark.long
def test_it_returns_the_page_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    before = names(directory)
    assert write_report(directory) == directory / "report.html"
    assert names(directory) == before | {"report.html", "attacks.html", "rows.csv"}


def test_a_report_that_cannot_be_written_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_run(tmp_path)
    old = write_report(directory).read_bytes()

    def full(self: Path, text: str, **_: Any) -> int:
        with self.open("w") as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    (directory / "rows.jsonl").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            write_report(directory)
    assert (directory / "report.html").read_bytes() == old
    assert not [name for name in names(directory) if name.endswith(".tmp")]


def test_the_rows_themselves_are_not_touched(tmp_path: Path) -> None:
    directory = write_run(tmp_path)
    before = (directory / "rows.jsonl").read_bytes()
    write_report(directory)
    assert (directory / "rows.jsonl").read_bytes() == before


def test_the_package_is_python_only_because_a_flower_bundle_drops_the_rest() -> None:
    folder = Path(report.__file__).parent
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.suffix for path in files} == {".py"}
    assert not [path for path in files if path.stem.startswith("test_") or path.stem.endswith("_test")]
    assert page_module.whole(page_module.BODY).count("<!doctype html>") == 1


# Probes and real updates ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_headline_says_what_real_updates_give_beside_the_probe(tmp_path: Path) -> None:
    """The mixer's real updates were attacked by another attack; DP-SGD's were not attacked at all."""

    def seen_as(one: dict[str, Any], observation: str, **given: Any) -> dict[str, Any]:
        return one | {"card": one["card"] | {"observation": observation}} | given

    plain = demo_rows()
    rows = [seen_as(one, "one-step probe") if one["card"] else one for one in plain]
    for one in plain:
        if one["attack"] == INVERSION and one["round"] == 1 and "DPSGD" not in one["defense"]:
            real = seen_as(one, "training update", attack="SurrogateMatching()", n=64)
            rows.append(real | {"card": real["card"] | {"local_steps": 4}})
    page = build(tmp_path, rows=rows)
    text = " ".join(page.sections["headline"].replace("\xa0", " ").split())
    assert "One-step probe: the strongest attack recovered 16 of 16 images" in text
    assert "Its mean PSNR is 31.2 dB (95 % interval 29.2 to 33.2)" in text
    assert (
        "Training update of 4 steps on 1 image, searched by 600 iterations: the strongest attack recovered 0 of 64 guessed images"
        in text
    )
    assert "Its mean PSNR is 9.0 dB (95 % interval 8.5 to 9.5)" in text
    assert text.count("Real updates: not attacked") == 2
    assert "SurrogateMatching(), round 1, training update" in text
    other = build(tmp_path / "none")
    assert "In a one-step probe, the server asks a client for the gradient" in " ".join(page.sections["glance"].split())
    assert "Training update" in page.sections["glossary"]
    assert "ne-step probe" not in other.sections["glance"] + other.sections["glossary"]


def test_a_budget_with_probes_is_never_below_that_of_training_alone(tmp_path: Path) -> None:
    early = [one for one in demo_rows() if one["metric"] != "epsilon-with-probes" or one["round"] == 1]
    found = build(tmp_path, rows=early)
    text = " ".join(found.sections["headline"].split())
    assert "ε = 8.00 at δ = 1e\N{MINUS SIGN}5, with the audit's probes 8.00" in text
    assert ["8.00", "δ = 1e\N{MINUS SIGN}5", "probes: 8.00"] in [one["ε (δ)"] for one in found.table("summary")]
    assert "4.00" not in found.sections["summary"] + text


def test_membership_at_chance_is_folded_and_the_rest_is_not(tmp_path: Path) -> None:
    mixed = member_rows(PIPELINES[1], 0.51, (0.45, 0.57))
    mixed[1] |= {"value": 0.015, "ci_low": 0.007, "ci_high": 0.028}
    rows = [*demo_rows(), *member_rows("", 0.7, (0.65, 0.75)), *mixed]
    page = (build(tmp_path, rows=rows), (tmp_path / "report.html").read_text(encoding="utf-8"))[1]
    section = page.split('<section id="membership">')[1].split("</section>")[0]
    above, _, folded = section.partition("<details>")
    assert ("0.70" in above) & ("Mixer" not in above)
    assert ("Mixer" in folded) & ("0.51" in folded) & ("<svg" in folded)
    assert "1 test not shown to infer members, and 1 chart of its curves" in " ".join(folded.split())


@pytest.mark.long
def test_few_members_named_almost_without_error_stand_open_whatever_the_auc(tmp_path: Path) -> None:
    """An AUC of 0.53 (0.48 to 0.58) can hide that 30 % of the members are named at 1 % false positives."""
    hidden = member_rows(PIPELINES[1], 0.53, (0.48, 0.58))
    hidden[1] |= {"value": 0.3, "ci_low": 0.24, "ci_high": 0.37}
    folded = member_rows("", 0.51, (0.45, 0.57))
    folded[1] |= {"value": 0.015, "ci_low": 0.007, "ci_high": 0.028}
    build(tmp_path, rows=[*demo_rows(), *folded, *hidden])
    section = (
        (tmp_path / "report.html")
        .read_text(encoding="utf-8")
        .split('<section id="membership">')[1]
        .split("</section>")[0]
    )
    above, _, below = section.partition("<details>")
    assert ("30.0 %" in above) & ("1.5 %" not in above)
    assert "1 test not shown to infer members (1 of them not validated or under-powered)" in " ".join(below.split())


@pytest.mark.long
def test_scroll_areas_have_names_of_their_own_and_headings_are_not_empty(tmp_path: Path) -> None:
    """What an accessibility checker asks of landmarks and table headings."""
    second = [one | {"experiment": "second"} for one in demo_rows()]
    build(tmp_path, rows=[*demo_rows(), *second])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    names = re.findall(r'role="region" aria-label="([^"]*)"', page)
    assert "Summary, 2" in names
    assert len(names) == len(set(names))
    assert not re.search(r"<th[^>]*>\s*</th>", page)


@pytest.mark.long
def test_matplotlib_is_imported_when_something_is_drawn_and_not_before() -> None:
    """Whoever only asks for help, or reads rows, does not wait for matplotlib."""
    code = "import sys, simulations.cli, simulations.report.page.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


# On paper -------------------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MOST_SHEETS = 8
"""Of the page of a run of a few defences."""


def pages_of(path: Path, folder: Path) -> list[str]:
    """The texts of a page's sheets, as Chromium prints it, scripts and all."""
    printed = folder / "printed.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    command = [str(CHROMIUM), *options, f"--print-to-pdf={printed}", path.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    told = subprocess.run(["pdftotext", "-layout", printed, "-"], check=True, capture_output=True, text=True)
    return told.stdout.split("\f")[:-1]


@pytest.mark.skipif(not (CHROMIUM and shutil.which("pdftotext")), reason="needs Chromium and pdftotext")
def test_printed_tables_say_their_columns_on_every_sheet_and_folds_stay_folded(tmp_path: Path) -> None:
    more = [row(metric=f"odd-{number:03}", value=number) for number in range(120)]
    lost = [row(metric="attack", attack="A()", status="failed", message=f"lost-{number:03}") for number in range(120)]
    directory = write_run(tmp_path / "run", rows=[*demo_rows(), *more, *lost])
    sheets = pages_of(write_report(directory), tmp_path)
    long = [sheet for sheet in sheets if re.search(r"lost-\d{3}", sheet)]
    assert len(long) > 2
    assert all(re.search(r"What failed\s+Rounds", sheet) for sheet in long)
    assert not [sheet for sheet in sheets if "odd-001" in sheet]


@pytest.mark.skipif(not (CHROMIUM and shutil.which("pdftotext")), reason="needs Chromium and pdftotext")
def test_a_page_prints_on_few_sheets(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", pictures=PICTURES)
    assert len(pages_of(write_report(directory), tmp_path)) <= MOST_SHEETS


def test_paper_has_no_buttons_and_nothing_folded_and_headings_stay_with_what_follows() -> None:
    """What the sheets above come from, where no Chromium is there to print them."""
    paper = report_css().split("@media print")[1]
    assert re.search(r"th button {[^}]*display: contents", paper)  # a button is not repeated with its row of headings
    assert re.search(r"details:not\(\[open\]\) {[^}]*display: none", paper)
    assert re.search(r"h2, h3, section > header, summary {[^}]*break-after: avoid", paper)
    assert re.search(r"headline\"\] > header {[^}]*break-after: auto", paper)  # else the first sheet is nearly empty
    assert re.search(r"fitted > table {[^}]*break-inside: avoid", paper)


@pytest.mark.long
def test_columns_of_several_units_say_by_what_they_are_sorted(tmp_path: Path) -> None:
    """Milliseconds, seconds and minutes of attacks stand in one column: each cell carries its seconds."""
    longer = [
        one | {"value": 348.0} if one["metric"] == "attack-seconds" and not one["defense"] else one
        for one in demo_rows()
    ]
    build(tmp_path, rows=longer)
    page = (tmp_path / "attacks.html").read_text(encoding="utf-8")
    cells = re.findall(r'data-value="([^"]+)">([^<]+)', page)
    assert ("348.0", "5.8 min") in cells
    assert len({float(value) for value, shown in cells if shown.endswith((" s", " min", " ms"))}) > 1


def test_words_of_the_glossary_are_explained_where_they_stand_first(demo: Page) -> None:
    terms = [known for tag, known in demo.tags if tag == "a" and known.get("class") == "term"]
    assert {str(known["href"]) for known in terms} == {"#glossary"}
    meanings = " ".join(demo.sections["glossary"].split())
    assert len(terms) >= 3
    assert all(known["title"] and str(known["title"]) in meanings for known in terms)


def test_a_page_without_any_score_begins_with_that(tmp_path: Path) -> None:
    only_training = [one for one in demo_rows() if not one["attack"]]
    claim = "No attack has a score. Nothing on this page shows how well a defence protects."
    assert claim in " ".join(build(tmp_path / "none", rows=only_training).text.split("Headline")[0].split())
    assert claim not in build(tmp_path / "some").text
