"""The page of the papers' claims: complete, and made of the committed numbers."""

import re
from pathlib import Path

import catalogue
import pytest
import records
import run
import verdict
import write

from attacks.metrics.names import Role
from clients.wire.schema import fields_of
from simulations.console.command_line import setting_of
from simulations.run.requested import requested
from simulations.run_folder.rows import Row
from simulations.settings.scenarios import SETTINGS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
IN_PAPERS = {"PatchShuffling": (9, 15), "ADP": (6, 6), "ATS": (7, 16), "VisualMixer": (6, 10)}
"""Tables and figures, counted in the papers."""
COUNTED = ("Table", "Figure")


@pytest.fixture(scope="module")
def papers() -> tuple[catalogue.Paper, ...]:
    return catalogue.papers()


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
        for cell in catalogue.cells_of(name):
            for seed, rows in by_seed.items():
                assert records.chosen(rows, cell), (name, seed, cell)


def test_every_table_and_figure_of_the_papers_stands_once_or_says_why(papers: tuple[catalogue.Paper, ...]) -> None:
    for paper in papers:
        tables, figures = IN_PAPERS[paper.name]
        names = [table.name for table in paper.tables if table.name.startswith(COUNTED)]
        every = sorted([*names, *paper.repeats, *paper.nothing, *paper.absent])
        assert every == sorted([f"Table {n + 1}" for n in range(tables)] + [f"Figure {n + 1}" for n in range(figures)])
        assert set(paper.repeats.values()) <= set(names)
        for table in paper.tables:
            assert table.claims, table.name
            assert set(table.runs) <= set(paper.runs) or table.command, table.name
            for claim in table.claims:
                assert claim.terms or claim.earlier, claim.says
                assert claim.terms or claim.command or table.command or table.runs, claim.says
                assert {claim.promise} <= {"", *paper.promises}, claim.says


def test_claims_read_what_the_configuration_runs() -> None:
    known = fields_of(*SETTINGS.values())
    for name, one in run.every_run().items():
        values = dict(setting_of(text, known) for text in one.settings)
        config = ROOT / f"simulations/configs/{name.partition('-')[0]}.toml"
        experiment = requested(config, values, Path("nowhere"))
        pipelines = {str(pipeline): pipeline for pipeline in experiment.pipelines}
        cells = catalogue.cells_of(name)
        assert cells, name
        for cell in cells:
            assert cell.defense in pipelines, (name, cell)
            if cell.attack and cell.attack not in records.NULLS:
                attacked = (experiment.attacks_on(pipelines[cell.defense], kind) for kind in experiment.kinds)
                assert cell.attack in {repr(attack) for attacks in attacked for attack in attacks}, (name, cell)


def test_every_promise_is_decided_by_claims_of_the_paper(papers: tuple[catalogue.Paper, ...]) -> None:
    found = records.read()
    for paper in papers:
        results = {table.name: verdict.judged(table, found) for table in paper.tables}
        verdicts = dict(write.promised(paper, results))
        for key in paper.promises:
            named = [one for of in results.values() for one in of if one.claim.promise == key]
            decide = [one for one in named if not (one.claim.control or one.claim.ours)]
            assert decide, (paper.name, key)
            assert not any(one.claim.variant for one in named)
            assert (verdicts[key] == verdict.REFUTED) == (verdict.overall(decide) == verdict.REFUTED), (paper.name, key)


def test_every_table_has_a_command_and_its_cost_where_it_was_not_run(page: str) -> None:
    sections = [part.partition("```text")[::2] for part in page.split("\n### ")[1:]]
    for before, claims in sections:
        command = before.rstrip().rpartition("\n")[2]
        assert command.count("`") in (2, 4), before
        assert ("not run yet" in claims) == bool(re.search(r"\(about \d+ minutes a seed\)", command)), before


def test_a_finished_run_keeps_the_rows_that_claims_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, other = (Row(metric="psnr", seed=3, attack=name, role=Role.ATTACK, value=9.0, n=4) for name in ("A()", "B()"))
    (tmp_path / "rows.jsonl").write_text(f"{read.line}{other.line}", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"versions": {"torch": "2", "numpy": "1"}}', encoding="utf-8")
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(records, "FOLDER", kept)
    cells = [catalogue.Cell("psnr", attack="A()"), catalogue.Cell("ssim", attack="A()")]
    assert records.keep(tmp_path, "r", 3, cells) == ["ssim of A() under no defence"]
    assert [(row.attack, row.value, row.seed) for row in records.read()["r"][3]] == [("A()", 9.0, 3)]
    assert "numpy" not in (kept / "r-seed3.json").read_text(encoding="utf-8")


def test_named_runs_are_repeated_and_others_are_run_once(tmp_path: Path) -> None:
    name = "adp_figure5"
    assert [(one.name, seed) for one, seed in run.wanted([name], [0, 4])] == [(name, 0), (name, 4)]
    for path in records.FOLDER.glob("*.json"):
        (tmp_path / path.name).touch()
    left = [(one.name, seed) for one, seed in run.wanted([], [0, 1], tmp_path)]
    assert (name, 0) not in left
    assert ("vm_table2-resnet20", 1) not in left, "one seed is enough"
    assert (name, 1) in left
    words = run.command(run.every_run()["vm_table2-mlp"], 1, tmp_path / "new")
    assert words[3:] == ["simulations/configs/vm_table2.toml", "--in-process", "--out", str(tmp_path / "new"),
                         "-s", "model=mlp", "-s", "seed=1"]  # fmt: skip
