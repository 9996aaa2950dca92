"""The page of all tables and figures: complete, and made of the committed numbers."""

import re
from pathlib import Path

import adp_quotes
import catalogue
import introduction
import pytest
import records
import summary
import verdict
import write
from entry import NULLS, Claim

from simulations.console.command_line import setting_of
from simulations.report.studies.score import interval
from simulations.run.requested import requested
from simulations.settings.plain import SETTINGS, fields_of

pytestmark = pytest.mark.long

ALL = (*catalogue.ENTRIES, *catalogue.BEYOND)
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ROOT = BENCHMARKS.parent
IN_PAPERS = {"PatchShuffling": (9, 15), "ADP": (6, 6), "ATS": (7, 16), "VisualMixer": (6, 10)}
"""Tables and figures, counted in the papers."""


@pytest.fixture(scope="module")
def judged() -> dict[str, list[verdict.Judged]]:
    found = records.read()
    return {entry.title: verdict.judged(entry, found) for entry in ALL}


@pytest.fixture(scope="module")
def page() -> str:
    return write.PAGE.read_text(encoding="utf-8")


def test_the_committed_page_is_made_of_the_committed_numbers(page: str) -> None:
    assert page == write.page(records.read())
    totals = next(line for line in page.splitlines() if line.startswith("75 tables"))
    found = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    there = found[found.index("Of 75, ") : found.index("cannot be run here.")]
    assert re.findall(r"\d+", there) == re.findall(r"\d+", totals)
    for name, by_seed in records.read().items():
        for cell in verdict.cells_of(ALL, name):
            for seed, rows in by_seed.items():
                assert records.chosen(rows, cell), (name, seed, cell)


def test_every_table_and_figure_of_the_papers_has_one_line_with_claims_or_a_reason() -> None:
    for paper, (tables, figures) in IN_PAPERS.items():
        names = [entry.name for entry in catalogue.ENTRIES if entry.paper == paper]
        assert names == [f"Table {at + 1}" for at in range(tables)] + [f"Figure {at + 1}" for at in range(figures)]
    assert len(catalogue.ENTRIES) == 75
    for entry in ALL:
        assert bool(entry.why) != bool(entry.claims or entry.quoted), entry.title
        assert entry.why or not entry.absent, entry.title
        assert bool(entry.runs) == bool(entry.claims), entry.title


def test_a_repeat_has_no_claim_of_its_own_and_is_counted_once() -> None:
    repeats = [entry for entry in ALL if entry.repeats]
    for entry in repeats:
        (first,) = [one for one in ALL if (one.paper, one.name) == (entry.paper, entry.repeats)]
        assert not first.repeats
        assert set(entry.claims) <= set(first.claims), entry.title
        assert {claim.says for claim in entry.quoted} <= {claim.says for claim in first.quoted}, entry.title
    totals = next(line for line in write.page({}).splitlines() if line.startswith("75 tables"))
    counts = [int(word) for word in re.findall(r"(?<![\w,])\d+", totals)]
    total, own, confirmed, refuted, favouring, left, repeated, nothing, absent = counts
    assert (own, repeated) == (confirmed + refuted + left, len(repeats))
    assert favouring <= refuted
    assert total == own + repeated + nothing + absent


def test_claims_read_what_the_configuration_runs() -> None:
    known = fields_of(SETTINGS)
    for one in (run for run in catalogue.runs() if not run.script):
        values = dict(setting_of(text, known) for text in one.settings)
        experiment = requested(ROOT / f"simulations/configs/{one.config}.toml", values, Path("nowhere"))
        pipelines = {str(pipeline): pipeline for pipeline in experiment.pipelines}
        for cell in verdict.cells_of(ALL, one.name):
            assert cell.defense in pipelines, (one.name, cell)
            if cell.attack and cell.attack not in NULLS:
                run = (experiment.attacks_on(pipelines[cell.defense], kind) for kind in experiment.kinds)
                assert cell.attack in {repr(attack) for attacks in run for attack in attacks}, (one.name, cell)


def test_quoted_numbers_stand_on_their_pages_and_over_the_seeds_that_they_name() -> None:
    for entry in ALL:
        assert len({claim.says for claim in entry.quoted}) == len(entry.quoted), entry.title
        for claim in entry.quoted:
            file = (claim.page or entry.page).partition("#")[0]
            assert claim.text in (BENCHMARKS / "results" / file).read_text(encoding="utf-8"), (entry.title, claim.says)
            if claim.each:
                low, high = verdict.within(*interval(claim.each), claim.possible)
                one = verdict.quote(claim)
                assert one.low <= low <= high <= one.high, claim.says  # type: ignore[operator]
                assert claim.value == pytest.approx(sum(claim.each) / len(claim.each))
    for _, promise in catalogue.MAIN:
        assert not re.search(r"\d", promise.known.partition("(")[0]) or promise.quotes, promise.says
        for file, text in promise.quotes:
            assert text in (BENCHMARKS / "results" / file).read_text(encoding="utf-8"), text
    results = (BENCHMARKS / "results/inference.md").read_text(encoding="utf-8")
    for title, measured in (
        ("Table 4 of the paper (VGG16", adp_quotes.FOUR_MEASURED), ("Table 5 of the paper (ResNet50", adp_quotes.FIVE_MEASURED),
        ("Table 6 of the paper (ResNet50", adp_quotes.SIX_MEASURED),
    ):  # fmt: skip
        part = results[results.index(title) :]
        part = part[: part.index("\n\n", part.index("|---"))]
        for cut, kind in measured:
            assert adp_quotes.line(cut, kind, measured) in part, (title, cut, kind)


def test_the_main_claims_are_of_all_papers_and_begin_with_the_worst(
    judged: dict[str, list[verdict.Judged]], page: str
) -> None:
    assert {entry.paper for entry, _ in catalogue.MAIN} == {entry.paper for entry in catalogue.ENTRIES}
    _, lines = summary.main_claims(judged)
    assert [line[1] for line in lines] == sorted((line[1] for line in lines), key=summary.WORST_FIRST.index)
    for entry, promise in catalogue.MAIN:
        (line,) = [line for line in lines if line[0].startswith(f"{entry.paper}: {promise.says}")]
        decide, beside = (
            [one for one in judged[entry.title] if one.claim.says in of] for of in (promise.deciding, promise.beside)
        )
        assert len(decide) == len(promise.deciding) > 0
        assert len(beside) == len(promise.beside)
        assert not any(one.claim.control or one.claim.variant or one.claim.ours for one in decide)
        assert all(one.claim.control or one.claim.ours for one in beside)
        assert line[1] == verdict.overall([*decide, *beside])
        assert (line[1] == verdict.REFUTED) == (verdict.overall(decide) == verdict.REFUTED), promise.says
        assert all(one.claim.says in line[2] for one in (*decide, *beside))
        assert line[4] in page
    _, table = summary.every_table(judged, records.read())
    assert len(table) == len(ALL)


def test_every_section_with_claims_that_were_not_run_says_how_and_at_what_cost(
    judged: dict[str, list[verdict.Judged]], page: str
) -> None:
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    known, there = {run.name: run for run in catalogue.runs()}, set(records.read())
    for entry in ALL:
        missing = [one for one in judged[entry.title] if one.note == verdict.NOT_YET]
        said = re.findall(r"Not run yet: `(.+?)` \((about \d+ minutes?) a seed", sections.get(entry.title, ""))
        assert len(said) == bool(missing), entry.title
        for command, cost in said:
            names = command.partition("--only ")[2].partition(" --seeds ")[0].split()
            assert cost == summary.minutes([known[name] for name in names])
            for claim in (one.claim for one in missing):
                assert isinstance(claim, Claim)
                assert {cell.run or entry.runs[0].name for _, cell in claim.terms} <= {*names, *there}
    rest = page.replace(introduction.abbreviations(), "")
    for term in (word for short, _ in introduction.ABBREVIATIONS for word in short.split(", ")):
        assert re.search(rf"(?<!\w){re.escape(term)}(?!\w)", rest), term
