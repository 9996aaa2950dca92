"""The summary of the page of tables: the worst news first, short reasons, and how to run what was not run."""

from __future__ import annotations

import re
from pathlib import Path

import adp_quotes
import catalogue
import introduction
import pytest
import records
import run as runner
import shown
import summary
import verdict
import write
from entry import Cell, Claim, Entry, Quoted, Run
from mixer_quotes import TWO_QUOTED
from quoting import shares_by_seed

from simulations.report.studies.score import interval, wilson
from simulations.run_folder.rows import Row

ALL = (*catalogue.ENTRIES, *catalogue.BEYOND)
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
MOST_WORDS = 45
"""Of the reason in a line of the long table, links as their words."""


def results() -> dict[str, list[verdict.Judged]]:
    found = records.read()
    return {entry.title: verdict.judged(entry, found) for entry in ALL}


def sections() -> dict[str, str]:
    parts = write.PAGE.read_text(encoding="utf-8").split("\n## ")
    return {part.partition("\n")[0]: part for part in parts}


def test_the_main_claims_are_of_all_papers_and_begin_with_the_worst() -> None:
    assert {entry.paper for entry, _ in catalogue.MAIN} == {entry.paper for entry in catalogue.ENTRIES}
    judged = results()
    _, lines = summary.main_claims(judged)
    assert [line[1] for line in lines] == sorted((line[1] for line in lines), key=summary.WORST_FIRST.index)
    for entry, promise in catalogue.MAIN:
        (line,) = [line for line in lines if line[0].startswith(f"{entry.paper}: {promise.says}")]
        assert line[0].endswith(f" ({promise.where})" if promise.where else promise.says)
        decide = [one for one in judged[entry.title] if one.claim.says in promise.deciding]
        beside = [one for one in judged[entry.title] if one.claim.says in promise.beside]
        assert len(decide) == len(promise.deciding) > 0
        assert len(beside) == len(promise.beside)
        assert not any(one.claim.control or one.claim.variant or one.claim.ours for one in decide)
        assert all(one.claim.control or one.claim.ours for one in beside)
        assert line[1] == verdict.overall([*decide, *beside])
        assert (line[1] == verdict.REFUTED) == (verdict.overall(decide) == verdict.REFUTED), (
            "what stands beside refutes nothing"
        )
        for one in (*decide, *beside):
            assert one.claim.says in line[2]
            assert shown.word(one)[1:] in line[2]
        assert line[2].count("Measured: ") == sum(one.value is not None for one in (*decide, *beside))
        assert f"Size: {promise.size}." in line[2]
        assert line[3] == summary.tally(judged[entry.title])
        assert line[4] in write.PAGE.read_text(encoding="utf-8")


def test_what_else_is_known_of_a_promise_stands_on_the_pages() -> None:
    for _, promise in catalogue.MAIN:
        assert not re.search(r"\d", promise.known.partition("(")[0]) or promise.quotes, promise.says
        for page, text in promise.quotes:
            assert text in (BENCHMARKS / "results" / page).read_text(encoding="utf-8"), text


def test_counts_leave_out_controls_and_variants() -> None:
    judged = results()
    assert summary.tally(judged["ADP, Table 3"]).startswith("7 of 12 refuted"), "without three attacks on no defence"
    assert summary.tally(judged["VisualMixer, Figure 10"]) == "0 of 1 refuted, 0 confirmed, 1 open", "one bound is ours"


@pytest.mark.parametrize(
    ("verdicts", "chosen"),
    [
        (["confirmed", "open", "refuted"], 2),
        (["confirmed", "open", "open"], 1),
        (["confirmed", "confirmed"], 0),
        (["missing", "open", "confirmed"], 1),
        (["missing", "confirmed"], 0),
    ],
)
def test_the_example_is_a_refuted_claim_then_an_open_one_with_a_number(verdicts: list[str], chosen: int) -> None:
    claim = Claim("s", ((1.0, Cell("psnr")),), "above")
    of = [
        verdict.Judged(claim, "open") if word == "missing" else verdict.Judged(claim, word, float(at))
        for at, word in enumerate(verdicts)
    ]
    assert summary.example(of) is of[chosen]


def test_reasons_in_the_long_table_are_short() -> None:
    _, lines = summary.every_table(results(), records.read())
    assert len(lines) == len(ALL)
    for line in lines:
        assert len(re.sub(r"\]\([^)]*\)", "]", line[-1]).split()) <= MOST_WORDS, line[-1]


def test_every_section_with_claims_that_were_not_run_says_how_and_at_what_cost() -> None:
    found, known = sections(), {run.name: run for run in catalogue.runs()}
    for entry in ALL:
        missing = [one for one in results()[entry.title] if one.note == verdict.NOT_YET]
        said = re.findall(r"Not run yet: `(.+?)` \((about \d+ minutes?) a seed", found.get(entry.title, ""))
        assert len(said) == bool(missing), entry.title
        for command, cost in said:
            names = command.partition("--only ")[2].partition(" --seeds ")[0].split()
            assert cost == summary.minutes([known[name] for name in names])
            for claim in (one.claim for one in missing):
                assert isinstance(claim, Claim)
                needed = {cell.run or entry.runs[0].name for _, cell in claim.terms}
                assert needed <= {*names, *records.read()}


def test_what_is_left_to_run_is_what_a_claim_without_a_number_reads() -> None:
    there, wanted = Cell("psnr", run="a"), Cell("psnr", run="b")
    claims = (Claim("one", ((1.0, there),), "above"), Claim("two", ((1.0, wanted),), "above"))
    entry = Entry("P", "Table 1", "s", (Run("a", seconds=60), Run("b", seconds=150), Run("c")), claims)
    found = {"a": {0: [Row(metric="psnr", value=3.0, n=16, ci_low=2.0, ci_high=4.0)]}}
    judged = verdict.judged(entry, found)
    assert [one.note for one in judged] == ["", verdict.NOT_YET]
    left = summary.left_to_run(entry, judged, found)
    assert [run.name for run in left] == ["b"]
    assert (summary.minutes(left), summary.minutes(entry.runs[:1])) == ("about 2 minutes", "about 1 minute")
    assert [run.name for run, _ in runner.left((0,), ("split_table7",), Path("nowhere"))] == ["split_table7"]


def test_stronger_attacks_are_linked_as_the_remark_links_them() -> None:
    for words, link in catalogue.STRONGER:
        assert link in words
        assert any(words in entry.beyond for entry in ALL), words
    text = write.PAGE.read_text(encoding="utf-8")
    weak = [line for line in text.splitlines() if "All 4 claims are confirmed." in line]
    assert weak
    assert all("Stronger attack: [split audit]" in line for line in weak)


def test_every_abbreviation_of_the_list_is_used_on_the_page() -> None:
    text = write.PAGE.read_text(encoding="utf-8")
    rest = text.replace(introduction.abbreviations(), "")
    assert rest != text
    for term in (word for short, _ in introduction.ABBREVIATIONS for word in short.split(", ")):
        assert re.search(rf"(?<!\w){re.escape(term)}(?!\w)", rest), term


def test_numbers_of_delta_protection_are_rows_of_its_page() -> None:
    page = (BENCHMARKS / "results/inference.md").read_text(encoding="utf-8")
    for title, measured in (
        ("Table 4 of the paper (VGG16", adp_quotes.FOUR_MEASURED),
        ("Table 5 of the paper (ResNet50", adp_quotes.FIVE_MEASURED),
        ("Table 6 of the paper (ResNet50", adp_quotes.SIX_MEASURED),
    ):
        part = page[page.index(title) :]
        part = part[: part.index("\n\n", part.index("|---"))]
        for cut, kind in measured:
            assert adp_quotes.line(cut, kind, measured) in part, (title, cut, kind)


def test_claims_of_delta_protection_are_quoted_with_differences_and_controls() -> None:
    four = {claim.says: claim for claim in adp_quotes.FOUR_QUOTED}
    gap = four["The server is right more often behind max, blur than behind max, black, at conv4."]
    assert (gap.value, gap.low, gap.high) == (
        pytest.approx(80.5 - 64.8),
        pytest.approx(76.3 - 69.3),
        pytest.approx(84.1 - 59.9),
    )
    five = {claim.says: claim for claim in adp_quotes.FIVE_QUOTED}
    held = five["Behind max, black the static adversary is right on at most 60 %, at block8."]
    assert verdict.quote(held).verdict == verdict.OPEN, "without a defence it is right on 52 %"
    assert five["Behind max, black the server is right on at most 60 %, at block8."].note == ""
    assert (
        verdict.quote(five["Behind max, black the static adversary is right on at most 60 %, at block2."]).verdict
        == "confirmed"
    )


def test_two_seeds_that_agree_are_no_narrower_than_one() -> None:
    agree = TWO_QUOTED[0]
    assert isinstance(agree, Quoted)
    left, right = 0.6785, 0.6495  # means of both seeds
    low, high = wilson(left, 137)[0], wilson(right, 137)[1]
    assert agree.low == pytest.approx(100 * (left - right - ((left - low) ** 2 + (high - right) ** 2) ** 0.5))
    apart = shares_by_seed("s", ((20.0, 60.0), (30.0, 60.0)), 100000, "above", 0.0, "t")
    assert (apart.low, apart.high) == interval([-40.0, -30.0])
