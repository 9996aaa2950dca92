"""The page of all tables and figures: complete, made of the committed numbers, and judged by the rule."""

from __future__ import annotations

import json
import re
from pathlib import Path

import catalogue
import pytest
import records
import run as runner
import verdict
import write
from entry import NULLS, Cell, Entry, Run

from attacks.metrics.names import Role
from simulations.console.command_line import setting_of
from simulations.run.requested import requested
from simulations.run_folder.rows import Row
from simulations.settings.plain import SETTINGS, fields_of
from strategies.audit.threat_card import ThreatCard

ALL = (*catalogue.ENTRIES, *catalogue.BEYOND)
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ROOT = BENCHMARKS.parent
IN_PAPERS = {"PatchShuffling": (9, 15), "ADP": (6, 6), "ATS": (7, 16), "VisualMixer": (6, 10)}
"""Tables and figures, counted in the papers."""
LEFT, RIGHT = Cell("psnr", "Blur()", "A()", "original"), Cell("psnr", "", "A()", "original")


def rows(seed: int, defended: float, plain: float, half: float = 1.0, status: str = "ok") -> list[Row]:
    """Of one seed: the attack under the defence and without one, each with an interval."""
    return [
        Row(metric="psnr", seed=seed, defense=cell.defense, attack="A()", role=Role.ATTACK, reference="original", value=value,
            n=16, ci_low=value - half, ci_high=value + half, status=status)
        for cell, value in ((LEFT, defended), (RIGHT, plain))
    ]  # fmt: skip


def test_every_table_and_figure_of_the_papers_has_one_line() -> None:
    for paper, (tables, figures) in IN_PAPERS.items():
        names = [entry.name for entry in catalogue.ENTRIES if entry.paper == paper]
        assert names == [f"Table {at + 1}" for at in range(tables)] + [f"Figure {at + 1}" for at in range(figures)]
    assert len(catalogue.ENTRIES) == 75


def test_every_line_has_claims_or_a_reason() -> None:
    for entry in ALL:
        assert bool(entry.why) != bool(entry.claims or entry.quoted), entry.title
        assert entry.why or not entry.absent, entry.title
        assert bool(entry.runs) == bool(entry.claims), entry.title
        assert "not measured" not in entry.why, entry.title


@pytest.mark.parametrize("one", [run for run in catalogue.runs() if not run.script], ids=lambda one: one.name)
def test_claims_read_what_the_configuration_runs(one: Run) -> None:
    known = fields_of(SETTINGS)
    values = dict(setting_of(text, known) for text in one.settings)
    experiment = requested(ROOT / f"simulations/configs/{one.config}.toml", values, Path("nowhere"))
    pipelines = {str(pipeline): pipeline for pipeline in experiment.pipelines}
    for cell in verdict.cells_of(ALL, one.name):
        assert cell.defense in pipelines
        if cell.attack and cell.attack not in NULLS:
            attacks = {
                repr(attack)
                for kind in experiment.kinds
                for attack in experiment.attacks_on(pipelines[cell.defense], kind)
            }
            assert cell.attack in attacks


@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.quoted], ids=lambda entry: entry.title)
def test_quoted_numbers_stand_on_the_page(entry: Entry) -> None:
    for claim in entry.quoted:
        page = (claim.page or entry.page).partition("#")[0]
        assert claim.text in (BENCHMARKS / "results" / page).read_text(encoding="utf-8")


ONLY_ON_PAGES = {
    "PatchShuffling, Table 4": 1,
    "PatchShuffling, Figure 9": 1,
    "VisualMixer, Figure 2": 2,
    "VisualMixer, Figure 3": 2,
    "VisualMixer, Figure 6": 1,
    "VisualMixer, Figure 8": 1,
}
"""Entries with runs, and how many of their quoted claims no run measures."""


def test_quoted_claims_are_those_of_runs_word_by_word() -> None:
    for entry in ALL:
        own = {claim.says for claim in entry.claims}
        only = [claim.says for claim in entry.quoted if claim.says not in own]
        assert not entry.runs or len(only) == ONLY_ON_PAGES.get(entry.title, 0), (entry.title, only)
        assert len({claim.says for claim in entry.quoted}) == len(entry.quoted), entry.title


def test_a_repeat_has_no_claim_of_its_own_and_is_counted_once() -> None:
    repeats = [entry for entry in ALL if entry.repeats]
    assert repeats
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


def test_the_findings_have_the_totals_of_the_page() -> None:
    totals = next(line for line in write.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("75 tables"))
    found = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    there = found[found.index("Of 75, ") : found.index("cannot be run here.")]
    assert re.findall(r"\d+", there) == re.findall(r"\d+", totals)


def test_small_files_have_a_row_for_every_cell_of_claims() -> None:
    for name, by_seed in records.read().items():
        for cell in verdict.cells_of(ALL, name):
            for seed, found in by_seed.items():
                assert records.chosen(found, cell), (name, seed, cell)


def test_the_committed_page_is_made_of_the_committed_numbers() -> None:
    assert write.PAGE.read_text(encoding="utf-8") == write.page(records.read())


def test_rounds_references_and_null_baselines_are_told_apart() -> None:
    def row(value: float, **other: object) -> Row:
        return Row(metric="psnr", reference="original", value=value, n=4, **other)  # type: ignore[arg-type]

    attacked = [row(at, attack="A()", role=Role.ATTACK, round=at) for at in (1, 3, 9)]
    nulls = [
        row(50.0, attack="mean", role=Role.NULL_BASELINE, round=1),
        row(60.0, attack="A()", role=Role.NULL_CONTROL, round=9),
    ]
    found = [*attacked, *nulls]
    for at, value in (("first", 1.0), ("last", 9.0), (3, 3.0)):
        assert [one.value for one in records.chosen(found, Cell("psnr", "", "A()", "original", at))] == [value]
    assert [one.value for one in records.chosen(found, Cell("psnr", "", "mean", "original"))] == [50.0]
    assert records.chosen(found, Cell("psnr", "", "A()", "deployed"))[0].value == 9.0
    both = [*found, row(7.0, attack="A()", role=Role.ATTACK, round=9)]
    both[-1] = Row(metric="psnr", reference="transformed", value=7.0, n=4, attack="A()", role=Role.ATTACK, round=9)
    assert [one.value for one in records.chosen(both, Cell("psnr", "", "A()", "deployed"))] == [7.0]
    uploads = row(8.0, attack="mean", role=Role.NULL_BASELINE, round=1, card=ThreatCard(observation="uploaded images"))
    assert len(records.chosen([*found, uploads], Cell("psnr", "", "mean", "original"))) == 2
    seen = Cell("psnr", "", "mean", "original", observation="uploaded images")
    assert records.chosen([*found, uploads], seen) == [uploads]


def test_small_files_hold_what_claims_read(tmp_path: Path) -> None:
    folder, kept = tmp_path / "r-seed4", tmp_path / "kept"
    folder.mkdir()
    extra = Row(metric="ssim", seed=4, attack="A()", role=Role.ATTACK, reference="original", value=0.5, n=16)
    null = Row(
        metric="psnr", seed=4, attack="mean", role=Role.NULL_BASELINE, reference="original", value=5.0, n=16,
        card=ThreatCard(observation="one-step probe"),
    )  # fmt: skip
    written = [*rows(4, 10.0, 20.0), extra, null]
    (folder / "rows.jsonl").write_text("".join(one.to_json() + "\n" for one in written))
    (folder / "config.json").write_text(
        json.dumps({"versions": {"torch": "2", "ray": "3"}, "progress": {"finished": True}})
    )
    assert runner.finished(folder)
    assert records.write(folder, "r", 4, [LEFT, RIGHT], kept) == []
    assert records.write(folder, "r", 4, [LEFT, RIGHT, Cell("vfe")], kept) == ["vfe of training under no defence"]
    data = json.loads((kept / "r-seed4.json").read_text())
    assert (data["versions"], len(data["rows"])) == ({"torch": "2"}, 2)
    assert (
        records.write(folder, "r", 4, [Cell("psnr", "", "mean", "original", observation="one-step probe")], tmp_path)
        == []
    )
    assert records.read(tmp_path)["r"][4][0].card.observation == "one-step probe"
    read = records.read(kept)
    assert {(row.seed, row.value) for row in read["r"][4]} == {(4, 10.0), (4, 20.0)}


def test_commands_resume_what_has_begun(tmp_path: Path) -> None:
    one = Run("split_table8", ("dataset=fashion-mnist",), "back")
    new = runner.command(one, 3, tmp_path)
    assert new[:4] == ["-m", "simulations.cli", "run", "simulations/configs/split_table8.toml"]
    assert new[-4:] == ["-s", "dataset=fashion-mnist", "-s", "seed=3"]
    (tmp_path / "config.json").write_text("{}")
    assert runner.command(one, 3, tmp_path)[2:] == ["run", "--resume", str(tmp_path), "--in-process"]
    assert not runner.finished(tmp_path)
    script = Run("ats_figure5", script="single_scores.py")
    assert runner.command(script, 2, tmp_path) == ["benchmarks/paper_tables/single_scores.py", "--seed", "2"]


def test_the_first_seed_of_all_runs_comes_before_the_second(tmp_path: Path) -> None:
    found = list(runner.left((0, 1), (), tmp_path))
    assert [seed for _, seed in found] == sorted(seed for _, seed in found)
    costs = [one.seconds for one, seed in found if seed == 0]
    assert costs == sorted(costs)
    assert len({(one.name, seed) for one, seed in found}) == len(found)
    (tmp_path / f"{found[0][0].name}-seed0.json").write_text("{}")
    assert list(runner.left((0, 1), (), tmp_path)) == found[1:]


def test_a_run_of_one_seed_at_most_is_left_out_whatever_its_seed(tmp_path: Path) -> None:
    lone = next(one for one in catalogue.runs() if one.most_seeds == 1)
    assert (lone, 1) in list(runner.left((1,), (), tmp_path))
    (tmp_path / f"{lone.name}-seed0.json").write_text("{}")
    assert (lone, 1) not in list(runner.left((1,), (), tmp_path))
    assert (lone, 1) in list(runner.left((1,), (lone.name,), tmp_path))
