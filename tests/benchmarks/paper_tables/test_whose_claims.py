"""Comparisons of ours decide nothing, and a claim with a reason against its interval stays open."""

from __future__ import annotations

from dataclasses import replace

import catalogue
import pytest
import records
import shown
import summary
import verdict
import write
from entry import Cell, Claim, Entry, Quoted, Run
from shuffling_quotes import BEST_OF_64

from simulations.run_folder.rows import Row

COST = Claim("It costs nothing.", ((1.0, Cell("test-accuracy")),), "above", 0.5)
PAGE = Quoted("It costs nothing.", 0.9, 0.8, 1.0, "above", 0.5, "0.9", seeds="0, 1")
HIGH = {0: [Row(metric="test-accuracy", value=0.9, n=400, ci_low=0.8, ci_high=1.0)]}


def entry_of(title: str) -> Entry:
    return next(one for one in catalogue.ENTRIES if one.title == title)


def judged(title: str) -> dict[str, verdict.Judged]:
    return {one.claim.says: one for one in verdict.judged(entry_of(title), records.read())}


@pytest.mark.parametrize(("word", "whole"), [("confirmed", "confirmed"), ("open", "open"), ("refuted", "refuted")])
def test_a_comparison_of_ours_is_not_counted_and_decides_nothing(word: str, whole: str) -> None:
    of_the_paper = verdict.Judged(COST, word, 1.0)
    for other in ("confirmed", "open", "refuted"):
        ours = verdict.Judged(replace(COST, ours="a bound of ours"), other, 1.0)
        assert verdict.overall([ours, of_the_paper]) == whole
        assert verdict.counting([ours, of_the_paper]) == [of_the_paper]
        assert verdict.favoured([ours]) == verdict.favoured([])
        assert shown.word(ours) == f"{other} (a bound of ours)"


def test_a_page_is_judged_as_the_claim_of_the_run_is() -> None:
    held = replace(COST, ours="a bound of ours", note="an under-trained baseline")
    found = verdict.judged(Entry("P", "Table 1", "s", (Run("r"),), (held,), "p.md", quoted=(PAGE,)), {})
    assert [(one.verdict, one.note, one.claim.ours) for one in found] == [
        ("open", "an under-trained baseline", "a bound of ours")
    ]
    plain = verdict.judged(Entry("P", "Table 1", "s", (Run("r"),), (COST,), "p.md", quoted=(PAGE,)), {})
    assert [(one.verdict, one.note) for one in plain] == [("confirmed", "")]
    noted = replace(PAGE, note="another measure")
    kept = verdict.judged(Entry("P", "Table 1", "s", (Run("r"),), (COST,), "p.md", quoted=(noted,)), {})
    assert [(one.verdict, one.note) for one in kept] == [("open", "another measure")]


def test_a_note_holds_a_claim_of_a_run_open() -> None:
    assert verdict.judge(COST, {"r": HIGH}, "r").verdict == "confirmed"
    held = verdict.judge(replace(COST, note="an under-trained baseline"), {"r": HIGH}, "r")
    assert (held.verdict, held.note, held.value) == ("open", "an under-trained baseline", 0.9)


def test_the_jigsaw_is_decided_by_the_shuffle_that_the_paper_attacks() -> None:
    found = judged("PatchShuffling, Table 4")
    assert found["A solved jigsaw gains at most 1 dB against PS."].verdict == "refuted"
    assert found["A solved jigsaw gains at most 1 dB against PS."].claim.ours
    decides = found["A solved jigsaw recovers at most 5 % of the images behind BS."]
    assert (decides.verdict, decides.value, decides.claim.ours) == ("open", 0.0, "")
    assert decides.high == pytest.approx(BEST_OF_64)
    assert decides.claim.bound < BEST_OF_64, "no result of 64 images could confirm it"
    assert verdict.verdict_on(entry_of("PatchShuffling, Table 4"), list(found.values())) == "open"


def test_both_readings_of_the_papers_noise_are_shown_and_open() -> None:
    found = [one for says, one in judged("PatchShuffling, Table 3").items() if "large noise" in says]
    assert [(one.verdict, one.note) for one in found] == [("open", "the unit of the paper's noise is open")] * 2
    values = [one.value for one in found if one.value is not None]
    assert values == pytest.approx([0.321 - 0.280, 0.321 - 0.432]), "the readings have opposite orders"


def test_a_gain_over_an_under_trained_network_confirms_nothing() -> None:
    gain = judged("PatchShuffling, Table 1")["PS+ costs at most 3 points of accuracy."]
    assert (gain.verdict, gain.note) == ("open", "the network without a defence is under-trained")
    assert gain.low is not None
    assert gain.low > -3


def test_garments_carry_no_number_of_the_papers_table() -> None:
    entry = entry_of("ATS, Table 2")
    garments = [claim for claim in entry.claims if "on garments" in claim.says]
    assert len(garments) == 6
    assert all(claim.ours and not any(cell.paper for _, cell in claim.terms) for claim in garments)
    assert len(verdict.counting(verdict.judged(entry, {}))) == 6, "the six on photographs"


def test_membership_is_decided_by_a_difference_and_left_open_by_its_control() -> None:
    results = {entry.title: verdict.judged(entry, records.read()) for entry in catalogue.ENTRIES}
    _, lines = summary.main_claims(results)
    (line,) = [line for line in lines if "Membership" in line[0]]
    assert line[0].endswith("(a claim of the evaluation)")
    (promise,) = [one for _, one in catalogue.MAIN if "Membership" in one.says]
    assert promise.deciding == ("The AUC is lower under VisualMixer with ST-Adam than with ST-Adam alone.",)
    won = [
        replace(one, verdict="confirmed") if one.claim.says in promise.deciding else one
        for one in results["VisualMixer, Figure 10"]
    ]
    _, again = summary.main_claims({**results, "VisualMixer, Figure 10": won})
    (line,) = [line for line in again if "Membership" in line[0]]
    assert line[1] == "open", "the attack is not shown to work without a defence"


def numbers(cell: Cell) -> list[float]:
    return [float(text) for text in cell.paper.split(", ")]


@pytest.mark.parametrize("title", ["ATS, Table 4", "ATS, Table 6"])
def test_accuracy_is_held_against_the_most_that_the_paper_itself_loses(title: str) -> None:
    costs = [claim for claim in entry_of(title).claims if "the paper's most" in claim.says]
    lost = []
    for claim in costs:
        (_, kept), (_, plain) = claim.terms
        # Where one network has a number, the nearest of the paper's networks without a policy is its baseline.
        pairs = zip(numbers(kept), numbers(plain), strict=False) if title.endswith("4") else [
            (numbers(kept)[0], min(one for one in numbers(plain) if one > numbers(kept)[0]))
        ]  # fmt: skip
        lost += [whole - left for left, whole in pairs]
    (bound,) = {-100 * claim.bound for claim in costs}
    assert max(lost) <= bound <= max(lost) + 0.1
    assert all(f"at most {bound:.1f} points" in claim.says for claim in costs)


@pytest.mark.parametrize("name", ["Table 1", "Table 2", "Table 3", "Table 6", "Table 7"])
def test_sections_say_that_policies_are_carried_over(name: str) -> None:
    assert "carried over from CIFAR-100" in entry_of(f"ATS, {name}").beyond
    assert all(
        "carried over from CIFAR-100" in line
        for line in write.page(records.read()).splitlines()
        if line.startswith("| ATS: Searched policies")
    )


@pytest.mark.parametrize("name", ["Table 1", "Table 4", "Table 9"])
def test_sections_with_noise_and_blur_have_the_papers_settings(name: str) -> None:
    entry = entry_of(f"PatchShuffling, {name}")
    assert {"FeatureNoise(std=1.0)", "Downsample(factor=4)"} <= {
        cell.defense for claim in entry.claims for _, cell in claim.terms
    }
    assert "GN is N(0, 4) and its Blur keeps 1/14" in entry.beyond
