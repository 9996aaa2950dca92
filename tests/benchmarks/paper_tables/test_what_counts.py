"""Which claims count, whom a refutation favours, and intervals of what a page has of several seeds."""

from __future__ import annotations

import math
from dataclasses import replace

import catalogue
import pytest
import shown
import verdict
from entry import Cell, Claim, Entry
from quoting import by_seed

from attacks.metrics.names import Role
from simulations.report.studies.score import interval
from simulations.run_folder.rows import Row

ALL = (*catalogue.ENTRIES, *catalogue.BEYOND)
CLAIM = Claim("Blur hides.", ((1.0, Cell("psnr", "Blur()")), (-1.0, Cell("psnr"))), "below", 0.0, "dB")


def entry_of(title: str) -> Entry:
    return next(one for one in ALL if one.title == title)


def words(*verdicts: str, **kind: object) -> list[verdict.Judged]:
    """Judged claims with these verdicts, of one kind."""
    claim = replace(CLAIM, **kind)  # type: ignore[arg-type]
    return [verdict.Judged(claim, one, 1.0) for one in verdicts]


def test_a_table_is_refuted_by_one_claim_and_confirmed_by_all() -> None:
    assert verdict.overall(words("confirmed", "refuted", "open")) == "refuted"
    assert verdict.overall(words("confirmed", "confirmed")) == "confirmed"
    assert verdict.overall(words("confirmed", "open")) == "open"
    assert verdict.overall([]) == "open"


def test_a_control_that_fails_refutes_no_table_and_is_not_counted() -> None:
    failed = words("refuted", control=True)
    assert verdict.overall([*failed, *words("confirmed")]) == "open", (
        "an attack that fails anyway confirms nothing either"
    )
    assert verdict.overall([*failed, *words("refuted")]) == "refuted"
    assert verdict.counting([*failed, *words("open", "confirmed")]) == words("open", "confirmed")
    assert verdict.overall(failed) == "refuted", "a figure of the attack without a defence has no other claim"


def test_a_claim_beside_the_papers_method_decides_nothing() -> None:
    assert verdict.overall([*words("refuted", variant=True), *words("confirmed")]) == "confirmed"
    assert verdict.overall([*words("confirmed", variant=True), *words("open")]) == "open"
    entry = entry_of("VisualMixer, Figure 10")
    of = verdict.judged(entry, {})
    assert [one.claim.says for one in of if one.claim.variant] == [
        "Under VisualMixer with SGD the AUC is below 0.55.",
        "With SGD the AUC is lower under VisualMixer than without a defence.",
    ]
    assert [one.verdict for one in of if one.claim.variant] == ["refuted", "open"]
    assert verdict.verdict_on(entry, of) == "open"


def test_a_refutation_that_favours_the_defence_says_so() -> None:
    better = words("refuted", favours="ADP")
    assert verdict.favoured([*better, *words("open")]) == "ADP"
    assert verdict.favoured([*better, *words("refuted")]) == ""
    assert shown.word(better[0]) == "refuted (in favour of ADP)"
    assert shown.word(words("confirmed", favours="ADP")[0]) == "confirmed"
    entry = entry_of("ADP, Table 4")
    kept = [one for one in verdict.judged(entry, {}) if "the server is right on at most" in one.claim.says]
    assert [shown.word(one) for one in kept][:1] == ["refuted (in favour of ADP)"], "the server keeps 75 %"


@pytest.mark.parametrize(
    ("metric", "ends"),
    [
        ("membership-auc", (0.0, 1.0)),
        ("test-accuracy", (0.0, 1.0)),
        ("ms-ssim", (-1.0, 1.0)),
        ("psnr", (-math.inf, math.inf)),
    ],
)
def test_intervals_end_where_the_quantity_does(metric: str, ends: tuple[float, float]) -> None:
    cell = Cell(metric)
    assert verdict.possible(Claim("s", ((1.0, cell),), "above")) == ends
    assert verdict.possible(Claim("s", ((1.0, cell), (-1.0, cell)), "above")) == (ends[0] - ends[1], ends[1] - ends[0])


def test_an_interval_of_an_area_or_a_difference_of_shares_is_cut() -> None:
    cells = (Cell("ssim", "Blur()", "A()"), Cell("ssim", "", "A()"))
    found = [
        Row(metric="ssim", seed=seed, defense=cell.defense, attack="A()", role=Role.ATTACK, value=value, n=16)
        for seed, values in enumerate(((0.9, 0.1), (0.1, 0.9)))
        for cell, value in zip(cells, values, strict=True)
    ]
    claim = Claim("s", ((1.0, cells[0]), (-1.0, cells[1])), "above")
    of = {"r": {seed: [row for row in found if row.seed == seed] for seed in (0, 1)}}
    assert (verdict.judge(claim, of, "r").low, verdict.judge(claim, of, "r").high) == (-2.0, 2.0)
    one = verdict.quote(replace(by_seed("s", [0.73, 0.78], "above", 0.6, "t"), possible=(0.0, 1.0)))
    assert (one.low, one.high, one.verdict) == (pytest.approx(0.4373, abs=0.001), 1.0, "open")
    costs = verdict.quote(by_seed("s", [-45.2, -32.8], "above", -7.2, "t", "points"))
    assert (costs.low, costs.verdict) == (-100.0, "open")


OVER_SEEDS = {
    "PatchShuffling, Table 4": "0 of 32 images in either seed",
    "PatchShuffling, Figure 9": "that of Table 4",
    "ATS, Table 1": "intervals of the page over three seeds",
    "ATS, Figure 4": "those of Table 1",
    "ATS, Figure 12": "those of Table 1",
    "VisualMixer, Table 4": "differences over three seeds",
    "VisualMixer, Table 5": "differences over three seeds",
    "VisualMixer, Table 6": "a difference over two seeds",
    "VisualMixer, Figure 2": "VFE over three seeds",
    "VisualMixer, Figure 3": "VFE over three seeds",
    "VisualMixer, Figure 6": "means over three seeds",
}
"""Entries whose page has an interval over seeds, and why it is one."""


def test_several_seeds_of_a_page_are_judged_over_the_seeds() -> None:
    for entry in ALL:
        for claim in entry.quoted:
            if claim.each:
                low, high = verdict.within(*interval(claim.each), claim.possible)
                one = verdict.quote(claim)
                assert one.low is not None
                assert one.high is not None
                assert low is not None
                assert high is not None
                assert one.low <= low <= high <= one.high, claim.says
                assert claim.value == pytest.approx(sum(claim.each) / len(claim.each))
            elif verdict.count(claim.seeds or entry.page_seeds) > 1 and claim.low is not None and not claim.note:
                assert entry.title in OVER_SEEDS, (entry.title, claim.says)


def test_the_correlation_of_two_seeds_with_opposite_signs_is_open() -> None:
    entry = entry_of("ATS, Figure 2")
    of = verdict.judged(entry, {})
    assert [(one.verdict, shown.single(one)) for one in of] == [("open", "by seed: 0.52, -0.51")] * 2
