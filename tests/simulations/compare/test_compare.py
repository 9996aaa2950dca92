from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.compare.groups import grouped
from simulations.compare.page import _concluded, sides, write_comparison
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError
from tests.simulations.report.report_run import CONFIG, INVERSION, PIPELINES, Page, demo_rows, write_run


def a_run(folder: Path, seed: int = 0, lift: float = 0.0, **settings: Any) -> Path:
    """The demonstration run under another seed, all scores of its attacks on images lifted by some decibels."""
    rows = [one | {"seed": seed} for one in demo_rows()]
    for one in rows:
        if one["metric"] == "psnr" and one["attack"] and not one["attack"].startswith(("baseline", "scale")):
            one |= {key: one[key] + lift for key in ("value", "ci_low", "ci_high", "worst") if one.get(key) is not None}
    return write_run(
        folder, rows, CONFIG | {"config": {"seed": seed, "rounds": 3, "output-dir": str(folder)} | settings}
    )


def test_runs_that_differ_in_their_seed_alone_are_put_together(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1, lift=2.0), a_run(tmp_path / "c", 0, model="cnn")]
    groups = grouped(folders)
    assert [group.folders for group in groups] == [tuple(folders[:2]), (folders[2],)]
    assert [group.seeds for group in groups] == [(0, 1), (0,)]
    assert [dict(group.differs) for group in groups] == [{"model": ""}, {"model": "cnn"}]
    write_comparison(groups, tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.open == []
    rows = page.tables["sides"][0]
    assert len(rows) == 1 + 2 * len(PIPELINES)
    # Without a defence: 31.2 and 33.2 dB, and Student's t over two seeds.
    plain = [cell[0].strip() for cell in rows[1]]
    assert plain[7] == "32.2"
    assert rows[1][7][1].strip() == "19.5 to 44.9"
    assert rows[1][13] == ["2", "0, 1"]
    assert plain[12] == "32"
    assert plain[4] == "32 of 32"
    assert [cell[0].strip() for cell in rows[1 + len(PIPELINES)]][7] == "31.2"


def test_each_seed_has_a_mark_where_there_are_several(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1, lift=2.0)]
    for number, some in enumerate((folders, folders[:1]), 1):
        write_comparison(grouped(some), tmp_path / f"{number}.html")
    both, one = ((tmp_path / f"{number}.html").read_text(encoding="utf-8") for number in (1, 2))
    assert "Each seed" not in one
    tips = re.findall(r"<title>([^<]*, seed \d)</title>", both.partition('class="narrow"')[0])
    assert len(tips) == 2 * len(PIPELINES)
    assert [tip for tip in tips if tip.startswith("No defence")] == [
        "No defence, a: 100.0 %, seed 0",
        "No defence, a: 100.0 %, seed 1",
    ]


def weak_run(folder: Path, seed: int, **changed: Any) -> Path:
    """The demonstration run, whose inversion has other columns in its score."""
    a_run(folder, seed)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for one in rows:
        if one["attack"] == INVERSION and one["metric"] in ("psnr", "retrieval"):
            one |= {
                key: value
                for key, value in changed.items()
                if key == "n" or (one["metric"] == "psnr" and not one["defense"])
            }
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"value": 9.0, "ci_low": 8.0, "ci_high": 10.0}, "not validated"), ({"n": 8}, "fewer than 16 images")],
)
def test_the_mark_of_a_seed_that_is_no_evidence_is_hollow(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    folders = [a_run(tmp_path / "a", 0), weak_run(tmp_path / "b", 1, **changed)]
    write_comparison(grouped(folders), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    marks = re.findall(
        r'class="([^"]*mark[^"]*)"[^>]*>(?:(?!class=).)*?<title>([^<]*, seed (\d)[^<]*)</title>',
        text.partition('class="narrow"')[0],
        re.DOTALL,
    )
    assert {seed for _, _, seed in marks} == {"0", "1"}
    for look, tip, seed in marks:
        assert ("hollow" in look) == (seed == "1") == tip.endswith(f"seed 1 ({why})"), tip
    assert "A hollow mark is not: in that seed the attack did not break the run without a defence" in " ".join(
        text.split()
    )


def test_a_failed_control_on_training_updates_says_nothing_of_probes(tmp_path: Path) -> None:
    """The same attack in the same round on both kinds of message: only that on updates fails its control."""
    folder = a_run(tmp_path / "a", 0)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    updates = [
        one | {"card": one["card"] | {"observation": "training update"}, "status": "not-validated"}
        for one in rows
        if one["attack"] == INVERSION and one["metric"] == "psnr"
    ]
    assert updates
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*rows, *updates]))
    (group,) = grouped([folder])
    assert all(side.doubted == {} for side in sides([group]) if side.line.strongest.observation == "one-step probe")


def test_every_study_of_a_group_is_concluded_in_its_own_words(tmp_path: Path) -> None:
    """Rows of an audited app name the mods in their cards; it is not known that such a run has no defence."""
    folder = a_run(tmp_path / "a")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    app_rows = [
        one | {"dataset": "own", "card": one["card"] | {"mods": "none known"}} for one in rows if not one["defense"]
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows + app_rows))
    (group,) = grouped([folder])
    first, second = _concluded(sides([group]))
    assert "Without a defence: readable" in first
    assert "Where no mod is known" not in first
    assert "Where no mod is known: readable" in second
    assert "Without a defence" not in second


def test_a_row_says_what_its_report_warns_of_and_whose_seeds_it_is_of(tmp_path: Path) -> None:
    """Seed 2 has no score of the strongest attack without a defence, and its run ended before the mixed pipeline."""
    folders = [a_run(tmp_path / name, seed) for seed, name in enumerate("abc")]
    rows = [json.loads(line) for line in (folders[2] / "rows.jsonl").read_text().splitlines()]
    kept = [one for one in rows if one["defense"] != PIPELINES[1] and (one["attack"] != INVERSION or one["defense"])]
    failed = {"metric": "attack", "value": None, "status": "failed", "message": "out of memory", "n": 0}
    lost = [
        one | failed | {"reference": ""} for one in rows if one["attack"] == INVERSION and one["metric"] == "psnr"
        and not one["defense"] and one["reference"] == "original"
    ]  # fmt: skip
    (folders[2] / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept + lost))
    write_comparison(grouped(folders), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    none, mixed, private = page.table("sides")[:3]
    assert none["Defence"][1:] == [
        "partly failed: some seeds have no score, and the mean leaves them out",
        "the strongest attack has no score of seed 2",
    ]
    assert none["seeds"] == ["2", "0, 1"]
    assert "untested against an adaptive attacker: LearnedRestorer did not run" in mixed["Defence"]
    assert "the accuracy is of seeds 0, 1, that of no defence of seeds 0, 1, 2" in mixed["Defence"]
    assert not [one for one in mixed["Defence"] if "strongest attack" in one], "both are of seeds 0 and 1"
    assert "the strongest attack is of seeds 0, 1, 2, that of no defence of seeds 0, 1" in private["Defence"]
    assert private["seeds"] == ["3", "0, 1, 2"]
    assert "† marks an attack that did not break the run without a defence" in " ".join(page.text.split())


def test_the_page_states_the_intervals_over_seeds(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / name, seed) for seed, name in enumerate("ab")]
    write_comparison(grouped(folders), tmp_path / "page.html")
    text = " ".join(Page((tmp_path / "page.html").read_text(encoding="utf-8")).text.split())
    assert (
        "With several seeds, the PSNR interval is Student's t over seeds. Accuracy intervals treat each seed as a cluster. AUC "
        "intervals are never narrower than single seeds' are on average." in text
    )


def test_the_name_of_an_experiment_keeps_no_seeds_apart(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1, lift=2.0)]
    for folder, name in zip(folders, ("one", "other"), strict=True):
        config = json.loads((folder / "config.json").read_text())
        config["config"]["experiment"] = name
        (folder / "config.json").write_text(json.dumps(config))
        rows = [json.loads(line) | {"experiment": name} for line in (folder / "rows.jsonl").read_text().splitlines()]
        (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    write_comparison(grouped(folders), tmp_path / "page.html")
    rows = Page((tmp_path / "page.html").read_text(encoding="utf-8")).tables["sides"][0]
    assert len(rows) == 1 + len(PIPELINES)
    assert rows[1][13] == ["2", "0, 1"]
    assert rows[1][7][0].strip() == "32.2"


def test_links_lead_to_the_reports_of_the_runs(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "deep" / "a"), a_run(tmp_path / "b", 1)]
    (tmp_path / "pages").mkdir()
    write_comparison(grouped(folders), tmp_path / "pages" / "page.html")
    links = re.findall(r'href="([^#"]*)"', (tmp_path / "pages" / "page.html").read_text(encoding="utf-8"))
    assert links == ["../deep/a/report.html", "../b/report.html"]


def test_other_versions_are_other_experiments(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "a"), a_run(tmp_path / "b", 1)
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"versions": {"fedveil": "0.2.0"}}))
    assert [dict(one.differs) for one in grouped([first, second])] == [
        {"version of fedveil": "0.1.0"},
        {"version of fedveil": "0.2.0"},
    ]


def test_a_file_of_ones_own_that_changed_is_another_experiment(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "a", model="nets.py:Net"), a_run(tmp_path / "b", 1, model="nets.py:Net")
    for folder, digest in ((first, "1" * 16), (second, "2" * 16)):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"own-code": {"model": digest}}))
    assert [dict(one.differs) for one in grouped([first, second])] == [
        {"code of model": "1" * 16},
        {"code of model": "2" * 16},
    ]


def test_the_same_seed_twice_and_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path / "a"), a_run(tmp_path / "b")
    with pytest.raises(ConfigError, match="are the same experiment with the same seed 0"):
        grouped([tmp_path / "a", tmp_path / "b"])
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path), "--out", str(tmp_path / "x.html")])
    assert result.exit_code == 2
    assert "holds no run" in " ".join(result.output.split())
    assert not (tmp_path / "x.html").exists()


def test_a_run_that_was_not_finished_is_said_to_be(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"progress": {"finished": False}}))
    result = CliRunner().invoke(app, ["compare", str(folder), "--out", str(tmp_path / "x.html")])
    assert result.exit_code == 0, result.output
    assert f"{folder} is not finished" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_table_and_json_have_a_line_for_each_group_and_defence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.compare.command.console", Terminal(highlight=False, width=160))
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1), a_run(tmp_path / "c", 0, model="cnn")]
    words = ["compare", *map(str, folders), "--out", str(tmp_path / "page.html")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines()]
    assert lines.count("model= (2 seeds: 0, 1)") == lines.count("model=cnn (1 seed: 0)") == 1
    assert [line.split()[:5] for line in lines if line.startswith("none ")] == [
        ["none", "readable", "32", "of", "32"], ["none", "readable", "16", "of", "16"],
    ]  # fmt: skip
    assert lines[-1] == f"page: {tmp_path / 'page.html'}"
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["page"] == str(tmp_path / "page.html")
    assert [(one["seeds"], one["unfinished"]) for one in found["groups"]] == [([0, 1], []), ([0], [])]
    assert found["groups"][0]["folders"] == [str(tmp_path / name) for name in "ab"]
    plain = found["groups"][0]["outcomes"][0]
    assert (plain["defense"], plain["verdict"], plain["recovered"], plain["attacked"]) == ("", "readable", 32, 32)
    assert [one["defense"] for one in found["groups"][1]["outcomes"]] == PIPELINES
    assert CliRunner().invoke(app, [*words, "--quiet"]).output == ""


def test_without_out_the_page_lies_beside_the_report_of_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1)]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = CliRunner().invoke(app, ["compare", "../b", str(folders[0])])
    assert result.exit_code == 0, result.output
    page = tmp_path / "b" / "comparison.html"
    assert f"page: {page}" in "".join(result.output.splitlines())
    links = re.findall(r'href="([^#"]*)"', page.read_text(encoding="utf-8"))
    assert links == ["report.html", "../a/report.html"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "a" / "comparison.html").exists()


def test_a_page_that_cannot_be_written_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", str(a_run(tmp_path / "a")), "--out", str(tmp_path / "no" / "x.html")])
    assert result.exit_code == 2
    assert "--out: cannot write" in result.output
