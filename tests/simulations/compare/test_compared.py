"""Runs side by side as data: the groups of ``fedveil compare --json``, a data frame, what Jupyter shows, and pictures."""

import json
import re
import sys
from pathlib import Path

import pytest

import simulations
from simulations.compare.compared import compare_runs
from simulations.run.in_process import Audited
from simulations.settings.errors import ConfigError
from tests.simulations.compare.test_compare import a_run, compare, damage
from tests.simulations.report.report_run import CONFIG, PICTURES, PIPELINES, Page, demo_rows, write_run

OWN = {"study", "defense", "messages", "accuracy", "epsilon", "claims", "reported", "warnings"}
"""Keys of an outcome."""


def test_groups_are_those_of_the_command_and_no_page_is_written_unasked(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1), a_run(tmp_path / "c", 0, model="cnn")]
    found = simulations.compare_runs(folders[0], Audited(folders[1]), str(folders[2]))
    assert not list(tmp_path.rglob("*.html"))
    page = tmp_path / "page.html"
    printed = json.loads(compare(*folders, "--out", page, "--json").stdout)
    assert json.loads(json.dumps(found.to_json())) == printed | {"page": None}
    earlier = page.read_bytes()
    page.unlink()
    assert json.loads(json.dumps(compare_runs(*folders, page=page).to_json())) == printed
    assert page.read_bytes() == earlier


def test_the_table_has_a_line_for_each_group_defence_and_message(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: uv sync --group dev")
    found = compare_runs(a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1), a_run(tmp_path / "c", 0, model="cnn"))
    table, groups = found.table(), found.to_json()["groups"]
    outcomes = [(group, one) for group in groups for one in group["outcomes"]]
    assert {key for _, one in outcomes for key in one} == OWN
    expected = [(group, one, message) for group, one in outcomes for message in one["messages"]]
    assert len(table) == len(expected) == 2 * len(PIPELINES)
    for (_, line), (group, one, message) in zip(table.iterrows(), expected, strict=True):
        assert (line["name"], line["seeds"], line["defense"]) == (group["name"], group["seeds"], one["defense"])
        for key in ("message", "verdict", "found", "attacked", "share", "attack", "adaptive", "identified"):
            assert line[key] == message[key], key
        assert line["warnings"] == [*one["warnings"], *message["warnings"]]
        assert line["accuracy.mean"] == one["accuracy"]["mean"]
        assert (None if pandas.isna(line["epsilon.spent"]) else line["epsilon.spent"]) == (one["epsilon"] or {}).get(
            "spent"
        )
    assert not {"accuracy", "epsilon", "difference"} & set(table)
    alone = Audited(tmp_path / "c").table()
    assert list(alone["found"]) == list(table["found"][len(PIPELINES) :])
    assert str(alone["found"].dtype) == "Int64"
    nothing = write_run(tmp_path / "d", [one for one in demo_rows() if not one["attack"]], CONFIG)
    assert list(Audited(nothing).table()["defense"]) == PIPELINES, "nothing was attacked, and accuracies are there"
    assert compare_runs().table().empty


def test_without_pandas_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape('pandas is not installed: pip install "fedveil[notebook]')):
        Audited(a_run(tmp_path / "a")).table()


def test_jupyter_shows_the_outcomes_as_the_page_has_them_and_loads_nothing(tmp_path: Path) -> None:
    markup = "<script>alert(1)</script>"
    rows = [one | {"defense": f"A('{markup}')"} if one["defense"] == PIPELINES[1] else one for one in demo_rows()]
    folder = write_run(tmp_path / "<b>run", rows)
    source, page = Audited(folder)._repr_html_(), tmp_path / "page.html"
    compare_runs(folder, page=page)
    shown, written = Page(f'<section id="sides">{source}</section>'), Page(page.read_text())
    assert shown.table("sides") == written.table("sides")
    assert "recognisable" in shown.text
    assert str(folder / "report.html") in shown.text
    assert markup in shown.text.replace("\n", "")
    assert not [
        tag for tag, known in shown.tags if tag in ("script", "img", "link", "b:") or {"src", "href"} & {*known}
    ]
    assert "//" not in source.replace(str(folder), "")
    beside = compare_runs(folder, a_run(tmp_path / "b", model="cnn"), page=page)._repr_html_()
    assert str(page) in Page(f'<section id="sides">{beside}</section>').text


def test_what_is_no_run_is_refused_and_damage_is_a_warning(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    (tmp_path / "mine.html").write_text("mine")
    for runs, page, why in (
        ((3,), None, "allowed: folders of runs"), ((tmp_path,), None, "holds no run"),
        ((folder,), tmp_path / "mine.html", "page: .* is no comparison by fedveil"),
        ((folder,), "x.txt", "page is x.txt; expected"), ((folder,), 3, "allowed: folders of runs"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            compare_runs(*runs, page=page)  # type: ignore[arg-type]
    assert (tmp_path / "mine.html").read_text() == "mine"
    damage(folder, 1)
    with pytest.warns(UserWarning, match=r"1 of \d+ lines of rows.jsonl is damaged") as told:
        compare_runs(folder)
    assert told[0].filename == __file__


def test_pictures_stand_beside_their_originals_the_reports_first_one_first(tmp_path: Path) -> None:
    found = Audited(write_run(tmp_path / "a", demo_rows(), pictures=PICTURES))
    pictures = found.pictures(3)
    titles = [one.info["title"] for one in pictures]
    assert [title.split(",")[0] for title in titles] == ["No defence", "Mixer"], "one for each defence with pictures"
    assert [one.info["title"] for one in found.pictures(1)] == titles[:1]
    assert titles[1].startswith(
        "Mixer, one-step probe, 1 image: recognisable (client 1, target 0, image 0): original, "
    )
    assert titles[1].endswith(", guess")
    files = {
        (one["client"], one["kind"]): at for at, one in enumerate(PICTURES) if one["round"] == 3 and one["defense"]
    }
    grey = [files[1, kind] for kind in ("original", "protected", "reconstruction")]
    side = pictures[1].height
    assert [pictures[1].getpixel((at * (side + 8) + side // 2, side // 2))[0] for at in range(3)] == grey
    for few in (PICTURES[:0], [one | {"file": "../none.png"} for one in PICTURES]):
        assert Audited(write_run(tmp_path / str(len(few)), demo_rows(), pictures=few)).pictures() == []
