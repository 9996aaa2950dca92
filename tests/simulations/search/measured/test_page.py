"""The page and the sentences of a measured search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulations.search.measured.page import write_measured_page
from simulations.search.measured.proposals import CONTROL, NONE, PAPER, RANDOM, SCORED
from simulations.search.measured.search import Found
from simulations.search.measured.sentences import about_candidates, headline, verdict
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import Judged
from simulations.search.measured.verdict import compare, outcomes
from tests.simulations.search.measured.test_verdict import over_seeds, result


def example(recovered: int = 3, without: int = 32) -> Found:
    """What a search of made-up numbers found; with more than half of 32 images recovered, nothing.

    Args:
        recovered: Images of each seed that the strongest attack recovers under the confirmed hybrid.
        without: The same without a defence.
    """
    search = Measured(papers="3-1-7")
    chosen = (
        result("", NONE, 0.83, 32, 80.0, seed=0),
        result("3-1-7", PAPER, 0.2, 9, seed=0),
        result("20-21", SCORED, 0.82, recovered, seed=0),
        result("5-6", RANDOM, 0.7, 2, seed=0)._replace(complete=False),
        Judged("<b>", RANDOM, 0, (), False, "RuntimeError: its weights are not finite"),
    )
    held_out = [*over_seeds("", NONE, 0.83, without), *over_seeds("20-21", SCORED, 0.82, recovered)]
    held_out += [one for at in range(20) for one in over_seeds(f"{at}", CONTROL, 0.7, 18 + at % 5)]
    failed = (Judged("9-9", CONTROL, 2, (), False, "ConfigError: refused"),)
    comparisons = tuple(compare(search, held_out, ["20-21"]))
    return Found(search, chosen, ("20-21",), tuple(outcomes(held_out)), failed, comparisons)


def test_the_page_holds_verdict_front_and_failures(tmp_path: Path) -> None:
    page = write_measured_page(tmp_path, example()).read_text(encoding="utf-8")
    for text in (
        "<h1>20-21</h1>",
        "recovers 9 of 96 images, 9.4 %, and 62.5 % in the mean of 20 random hybrids",
        "failed: RuntimeError: its weights are not finite",
        "9-9, seed 2, failed: ConfigError: refused",
        "&lt;b&gt;",
    ):
        assert text in page, text
    assert "<b>" not in page


def test_without_evidence_nothing_is_recommended() -> None:
    found = example(recovered=20)
    assert headline(found) == "No hybrid is recommended"
    (first, failed) = verdict(found)
    assert first.startswith(
        "20-21 is not recommended. It costs 1.0 (0.9 to 1.1) points of accuracy: shown to lose at most 3"
    )
    assert "The interval contains 0: the data do not show a difference." in first
    assert failed.startswith("1 trainings on held-out images failed")


def test_an_attack_that_fails_without_a_defence_recommends_nothing() -> None:
    found = example(without=15)
    assert not found.recommended
    assert verdict(found)[0].startswith("The attack recovers fewer than half of the images without a defence")
    assert "20-21 is not recommended" in verdict(found)[1]
    assert example(without=16).recommended


def test_the_sentence_names_what_is_missing() -> None:
    found = example()
    assert verdict(found)[0].startswith("20-21 is recommended.")
    assert "Interval and rank are beyond chance." in verdict(found)[0]
    few = [one for at in range(10) for one in over_seeds(f"{at}", CONTROL, 0.7, 18 + at % 5)]
    few += [*over_seeds("", NONE, 0.83, 32), *over_seeds("20-21", SCORED, 0.82, 3)]
    comparisons = tuple(compare(found.search, few, ["20-21"]))
    (first, _) = verdict(replace(found, comparisons=comparisons))
    assert first.startswith("20-21 is not recommended.")
    assert "10 random hybrids can never show that it is better beyond chance: 19 are needed (controls)." in first
    assert "9.1 % of cases; at most 5.0 % are allowed" in first
    assert "are beyond chance" not in first


def test_the_page_says_how_many_candidates_came_by_score(tmp_path: Path) -> None:
    found = example()
    line = about_candidates(found)
    assert line == (
        "S_pri of at most 60 random policies chose 1 candidate, of 10 wanted by score. 2 candidates came from random draws. "
        "These are 3 of 20 candidates: no more hybrids that alter images were found with policies = 2 and longest = 3."
    )
    assert line in write_measured_page(tmp_path, found).read_text(encoding="utf-8")
    random = tuple(one for one in found.chosen_among if one.origin != SCORED)
    whole = replace(found, search=Measured(candidates=2, by_score=0), chosen_among=random)
    assert about_candidates(whole) == "2 candidates came from random draws."


def test_all_candidates_have_a_heading_and_the_front_comes_first(tmp_path: Path) -> None:
    page = write_measured_page(tmp_path, example()).read_text(encoding="utf-8")
    table = page[page.index("<h2>All candidates</h2>") :]
    places = [table.index(f"<td>{text}</td>") for text in ("20-21", "none", "5-6", "3-1-7", "&lt;b&gt;")]
    assert places == sorted(places)


def test_the_reason_why_nothing_was_confirmed_is_named() -> None:
    found = replace(example(), confirmed=(), comparisons=(), held_out=(), failed=(), skipped=19)
    none, *others = found.chosen_among
    (first, skipped) = verdict(replace(found, search=Measured(confirmed=0)))
    assert first == "No hybrid was judged on held-out images: confirmed is 0."
    assert skipped == "19 of 19 random hybrids were not judged: no hybrid was to be confirmed (curtail)."
    failed = [one._replace(rungs=(), complete=False, failure=f"RuntimeError: {one.hybrid}") for one in others]
    (first, _) = verdict(replace(found, chosen_among=(none, *failed)))
    assert first == (
        "No hybrid was judged on held-out images: all 4 failed on the images of the search. The first failure: RuntimeError: 3-1-7"
    )
    pruned = [one._replace(complete=False) for one in others]
    assert "1 of 4 failed" in verdict(replace(found, chosen_among=(none, *pruned)))[0]
    (first, _) = verdict(found)
    assert first == "No hybrid was judged on held-out images: besides no defence, no hybrid is on the front."


def test_random_hybrids_that_never_could_be_enough_are_named_so() -> None:
    found = replace(example(), search=Measured(controls=2), comparisons=(), skipped=2)
    skipped = verdict(found)[-2]
    assert skipped == (
        "2 of 2 random hybrids were not judged, because no recommendation was possible with these settings: 19 are needed "
        "(controls, curtail)."
    )
    assert "any more (curtail)" in verdict(replace(found, search=Measured()))[-2]


def test_intervals_show_no_cause() -> None:
    (one,) = example().comparisons
    found = replace(example(), comparisons=(replace(one, low=-0.4, high=-0.1),))
    assert (
        "Attacks recover more images than in the mean of the random hybrids; the interval excludes 0."
        in verdict(found)[0]
    )
    found = replace(example(), comparisons=(replace(one, as_good=5),))
    assert "The interval excludes 0, but by rank the data do not show a difference." in verdict(found)[0]


def test_failed_seeds_are_named() -> None:
    found = example()
    outcome = replace(found.comparisons[0].outcome, failed=(1, 2))
    failed = replace(found, comparisons=(replace(found.comparisons[0], outcome=outcome),))
    assert headline(failed) == "No hybrid is recommended"
    assert "failed for it, or for no defence, on seeds 1, 2: a hybrid is only recommended" in verdict(failed)[0]
    whole = replace(found, comparisons=(), confirmed=("9-9",))
    assert (
        verdict(whole)[0] == "9-9 is not recommended: training or attack failed for it, or for no defence, on seed 2."
    )
