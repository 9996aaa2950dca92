"""The page and the sentences of a measured search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulations.search.measured.page import write_measured_page
from simulations.search.measured.proposals import CONTROL, NONE, PAPER, RANDOM, SCORED
from simulations.search.measured.search import Found
from simulations.search.measured.sentences import headline, verdict
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


def test_the_page_holds_verdict_and_candidates(tmp_path: Path) -> None:
    page = write_measured_page(tmp_path, example()).read_text(encoding="utf-8")
    for text in (
        "<h1>20-21</h1>",
        "recovers 9 of 96 images, 9.4 %, and 62.5 % in the mean of 20 random hybrids",
        "9-9, seed 2, failed: ConfigError: refused",
        "S_pri of at most 60 random policies chose 1 candidate, of 10 wanted by score. 2 candidates came from random draws.",
    ):
        assert text in page, text
    assert "<b>" not in page
    table = page[page.index("<h2>All candidates</h2>") :]
    places = [table.index(f"<td>{text}</td>") for text in ("20-21", "none", "5-6", "3-1-7", "&lt;b&gt;")]
    assert places == sorted(places)


def test_the_verdict_names_what_is_missing() -> None:
    found = example()
    (comparison,) = found.comparisons
    few = [one for at in range(10) for one in over_seeds(f"{at}", CONTROL, 0.7, 18 + at % 5)]
    few += [*over_seeds("", NONE, 0.83, 32), *over_seeds("20-21", SCORED, 0.82, 3)]
    for case, told in (
        (found, "20-21 is recommended."),
        (example(recovered=20), "20-21 is not recommended. It costs 1.0 (0.9 to 1.1) points of accuracy: shown to lose at most 3"),
        (example(without=15), "The attack recovers fewer than half of the images without a defence"),
        (replace(found, comparisons=tuple(compare(found.search, few, ["20-21"]))), "9.1 % of cases; at most 5.0 % are allowed"),
        (replace(found, comparisons=(replace(comparison, as_good=5),)), "by rank the data do not show a difference."),
    ):  # fmt: skip
        first = verdict(case)[0]
        assert told in first
        assert bool(case.recommended) is (" is recommended." in first) is ("No hybrid" not in headline(case))
    assert example(without=16).recommended
