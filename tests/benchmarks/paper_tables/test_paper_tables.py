"""The page of all tables and figures: complete, made of the committed numbers, and judged by the rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import catalogue
import pytest
import records
import run as runner
import verdict
import write
from entry import NULLS, Cell, Claim, Entry, Quoted, Run
from scipy import stats

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
BELOW = Claim("Blur hides.", ((1.0, LEFT), (-1.0, RIGHT)), "below", 0.0, "dB")


def rows(seed: int, defended: float, plain: float, half: float = 1.0, status: str = "ok") -> list[Row]:
    """Of one seed: the attack under the defence and without one, each with an interval."""
    return [
        Row(metric="psnr", seed=seed, defense=cell.defense, attack="A()", role=Role.ATTACK, reference="original", value=value,
            n=16, ci_low=value - half, ci_high=value + half, status=status)
        for cell, value in ((LEFT, defended), (RIGHT, plain))
    ]  # fmt: skip


def judged(*seeds: Sequence[Row]) -> verdict.Judged:
    return verdict.judge(BELOW, {"r": dict(enumerate(seeds))}, "r")


def test_every_table_and_figure_of_the_papers_has_one_line() -> None:
    for paper, (tables, figures) in IN_PAPERS.items():
        names = [entry.name for entry in catalogue.ENTRIES if entry.paper == paper]
        assert names == [f"Table {at + 1}" for at in range(tables)] + [f"Figure {at + 1}" for at in range(figures)]
    assert len(catalogue.ENTRIES) == 75


def test_every_line_has_claims_or_a_reason() -> None:
    for entry in ALL:
        assert bool(entry.why) != bool(entry.claims or entry.quoted), entry.title
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
    text = (BENCHMARKS / "results" / entry.page.partition("#")[0]).read_text(encoding="utf-8")
    for claim in entry.quoted:
        assert claim.text in text


def test_the_committed_page_is_made_of_the_committed_numbers() -> None:
    assert write.PAGE.read_text(encoding="utf-8") == write.page(records.read())


def test_seeds_decide_by_students_t_of_paired_differences() -> None:
    clear = judged(rows(0, 10.0, 20.0), rows(1, 15.0, 25.5), rows(2, 5.0, 14.5))
    assert clear.verdict == verdict.CONFIRMED
    assert clear.value == pytest.approx(-10.0)
    half = stats.t.ppf(0.975, 2) * 0.5 / 3**0.5
    assert (clear.low, clear.high) == (pytest.approx(-10 - half), pytest.approx(-10 + half))
    assert (clear.n, clear.seeds) == (48, (0, 1, 2))
    assert judged(rows(0, 20.0, 10.0), rows(1, 25.5, 15.0), rows(2, 14.5, 5.0)).verdict == verdict.REFUTED
    assert judged(rows(0, 10.0, 11.0), rows(1, 12.0, 11.0), rows(2, 9.0, 11.0)).verdict == verdict.OPEN


def test_of_one_seed_the_rows_intervals_decide() -> None:
    assert judged(rows(0, 10.0, 13.0)).verdict == verdict.CONFIRMED
    assert judged(rows(0, 10.0, 13.0)).low == pytest.approx(-5.0)
    assert judged(rows(0, 10.0, 11.5)).verdict == verdict.OPEN
    assert judged(rows(0, 13.0, 10.0)).verdict == verdict.REFUTED


@pytest.mark.parametrize("status", ["not-validated", "under-powered"])
def test_an_attack_that_is_not_validated_leaves_a_claim_open(status: str) -> None:
    found = judged(rows(0, 10.0, 30.0, status=status))
    assert (found.verdict, found.note) == (verdict.OPEN, status)
    mixed = judged(rows(0, 10.0, 20.0), rows(1, 10.0, 20.0, status=status), rows(2, 10.0, 20.1))
    assert mixed.verdict == verdict.OPEN


def test_without_rows_a_claim_is_open() -> None:
    assert judged().note == "not run yet"
    assert judged(rows(0, 1.0, 2.0)[:1]).note == "the runs have no such number"


def test_counts_need_no_interval_and_other_numbers_do() -> None:
    def of(metric: str) -> verdict.Judged:
        claim = Claim("Small.", ((1.0, Cell(metric)),), "below", 10.0)
        return verdict.judge(claim, {"r": {0: [Row(metric=metric, value=9.0, n=1)]}}, "r")

    assert of("edge-macs").verdict == verdict.CONFIRMED
    assert (of("test-loss").verdict, of("test-loss").note) == (verdict.OPEN, "no interval")


def test_a_table_is_refuted_by_one_claim_and_confirmed_by_all() -> None:
    assert verdict.overall(["confirmed", "refuted", "open"]) == "refuted"
    assert verdict.overall(["confirmed", "confirmed"]) == "confirmed"
    assert verdict.overall(["confirmed", "open"]) == "open"
    assert verdict.overall([]) == "open"


def test_numbers_of_a_page_stand_in_until_a_run_decides() -> None:
    stands = Quoted("From a page.", 5.0, 4.0, 6.0, "above", 0.0, "5.0")
    entry = Entry("P", "Table 1", "s", (Run("r"),), (BELOW,), "page.md", quoted=(stands,))
    before = verdict.judged(entry, {})
    assert [(one.claim, one.verdict) for one in before] == [(BELOW, "open"), (stands, "confirmed")]
    assert verdict.verdict_on(entry, {}) == "open"
    assert [one.claim for one in verdict.judged(entry, {"r": {0: rows(0, 1.0, 9.0)}})] == [BELOW]
    against = Entry(
        "P", "Table 1", "s", page="page.md", quoted=(Quoted("From a page.", 5.0, 4.0, 6.0, "below", 0.0, "5.0"),)
    )
    assert verdict.verdict_on(against, {}) == "refuted"


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
