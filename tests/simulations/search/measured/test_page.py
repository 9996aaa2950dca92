"""The page and the sentences of a measured search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulations.search.measured.page import headline, verdict, write_measured_page
from simulations.search.measured.proposals import CONTROL, NONE, PAPER, RANDOM, SCORED
from simulations.search.measured.search import Found
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
    assert "Chance explains the difference." in first
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
