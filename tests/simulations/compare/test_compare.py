import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from simulations.cli import app
from simulations.compare.groups import grouped
from simulations.compare.page import write_comparison
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError
from tests.simulations.report.approved_text import assert_approved
from tests.simulations.report.report_run import CONFIG, INVERSION, PIPELINES, Page, demo_rows, write_run

Rows = list[dict[str, Any]]


def a_run(folder: Path, seed: int = 0, finished: bool = True, **settings: Any) -> Path:
    rows = [one | {"seed": seed} for one in demo_rows()]
    config = {"config": {"seed": seed, "rounds": 3, "output-dir": str(folder)} | settings}
    return write_run(folder, rows, CONFIG | config | {"progress": {"finished": finished}})


def change_rows(folder: Path, change: Callable[[Rows], Rows]) -> Path:
    rows = change([json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()])
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def change_config(folder: Path, **more: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    return folder


def page_of(folders: list[Path], file: Path) -> str:
    write_comparison(grouped(folders), file)
    return file.read_text(encoding="utf-8")


def test_runs_that_differ_in_their_seed_alone_are_put_together(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a"), a_run(tmp_path / "b", 1)]
    folders.append(a_run(tmp_path / "c", finished=False, model="cnn"))
    groups = grouped(folders)
    assert [group.folders for group in groups] == [tuple(folders[:2]), (folders[2],)]
    assert [group.seeds for group in groups] == [(0, 1), (0,)]
    assert [group.unfinished for group in groups] == [(), (folders[2],)]
    assert [dict(group.differs) for group in groups] == [{"model": ""}, {"model": "cnn"}]
    rows = Page(page_of(folders, tmp_path / "page.html")).tables["sides"][0]
    # Without a defence: 32 of 32 over two seeds, whose exact interval begins at 0.025^(1/32); then one seed.
    verdict, images = rows[1][3:5]
    assert (verdict[0].strip(), images[0].strip()) == ("recognisable", "32 of 32")
    assert images[1].strip().startswith(f"{100 * 0.025 ** (1 / 32):.1f} to 100.0 %")
    # A third seed has no score of the strongest attack without a defence, and its run ended before the mixed pipeline.
    lost = {"metric": "attack", "value": None, "status": "failed", "message": "out of memory", "n": 0, "reference": ""}
    change_rows(a_run(tmp_path / "d", 2), lambda rows: [
        *(one for one in rows if one["defense"] != PIPELINES[1] and (one["attack"] != INVERSION or one["defense"])),
        *(one | lost for one in rows if (one["attack"], one["defense"], one["metric"]) == (INVERSION, "", "ssim")),
    ])  # fmt: skip
    page_of([*folders, tmp_path / "d"], tmp_path / "page.html")
    assert_approved("comparison", tmp_path / "page.html", ("top", "sides", "group1", "group2"))


def test_the_name_of_an_experiment_keeps_no_seeds_apart_and_versions_and_own_code_do(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a", 0, model="nets.py:Net"), a_run(tmp_path / "b", 1, model="nets.py:Net")]
    for folder, name in zip(folders, ("one", "other"), strict=True):
        config = json.loads((folder / "config.json").read_text())["config"]
        change_config(folder, config=config | {"experiment": name})
        change_rows(folder, lambda rows, name=name: [one | {"experiment": name} for one in rows])
    (group,) = grouped(folders)
    assert (group.name, group.seeds, len(group.run.studies)) == ("one", (0, 1), 1)
    for key, name, named in (("versions", "fedveil", "version of fedveil"), ("own-code", "model", "code of model")):
        pair = [a_run(tmp_path / f"{key}{seed}", seed, model="nets.py:Net") for seed in (0, 1)]
        for folder, value in zip(pair, "12", strict=True):
            change_config(folder, **{key: {name: value}})
        assert [dict(one.differs) for one in grouped(pair)] == [{named: "1"}, {named: "2"}]
    with pytest.raises(ConfigError, match="are the same experiment with the same seed 0"):
        grouped([pair[0], change_config(a_run(tmp_path / "again", model="nets.py:Net"), **{key: {name: "1"}})])


def compare(*words: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def said(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_comparison_replaces_no_file_but_a_comparison_and_an_error_writes_nothing(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    (tmp_path / "empty.html").touch()
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "nothing").mkdir()
    (folder / "report.html").write_text("<!doctype html><title>fedveil report</title>")
    (folder / "comparison.html").write_text("mine")
    x = ("--out", tmp_path / "x.html")
    for words, why in (
        ((folder, "--out", folder / "rows.jsonl"), "ends in .html"),
        ((folder, "--out", tmp_path / "notes"), "ends in .html"),
        ((folder, "--out", folder / "report.html"), "is no comparison by fedveil"),
        ((folder, "--out", tmp_path / "empty.html"), "is no comparison by fedveil"),
        ((folder, "--out", tmp_path / "folder.html"), "is no file"),
        ((folder,), "is no comparison by fedveil"),
        ((folder, "--out", tmp_path / "no" / "x.html"), "--out: cannot write"),
        ((folder, tmp_path / "nothing", *x), "holds no run"),
    ):
        before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        result = compare(*words)
        assert result.exit_code == 2, words
        assert why in said(result), words
        assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before, words
    assert compare(folder, *x).exit_code == 0
    earlier = x[1].read_bytes()
    assert compare(folder, a_run(tmp_path / "b", 1), *x).exit_code == 0
    assert x[1].read_bytes() != earlier


def damage(folder: Path, lines: int) -> int:
    rows = folder / "rows.jsonl"
    found = rows.read_text().splitlines()
    rows.write_text("".join(f"{line}\n" for line in ["{broken"] * lines + found[lines:]))
    return len(found)


def test_damaged_rows_are_counted_for_each_folder_and_replace_no_page(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / name, seed) for seed, name in enumerate("abc")]
    lines = damage(folders[0], 3)
    damage(folders[1], 1)
    result = compare(*folders, "--out", tmp_path / "page.html")
    assert result.exit_code == 0
    counts = (f"3 of {lines} lines of rows.jsonl are", f"1 of {lines} lines of rows.jsonl is")
    sentences = [f"{folder}: {count} damaged and left out" for folder, count in zip(folders[:2], counts, strict=True)]
    assert result.stderr.splitlines() == [f"warning: {one}" for one in sentences]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [page.count(html.escape(one)) for one in sentences] == [1, 1]
    assert "is not JSON" not in page
    made = CliRunner().invoke(app, ["report", str(folders[1])])
    assert (made.exit_code, made.stderr) == (0, f"warning: {sentences[1]}\n")
    files = [folders[1] / name for name in ("report.html", "rows.csv")]
    before = [one.read_bytes() for one in files]
    damage(folders[1], lines)
    refused = CliRunner().invoke(app, ["report", str(folders[1])])
    assert refused.exit_code == 2
    assert f"{folders[1]}: {lines} of {lines} lines of rows.jsonl are damaged" in refused.stderr
    assert [one.read_bytes() for one in files] == before


def test_a_comparison_ends_with_commands_for_more_seeds_and_more_images(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"probe-targets": 14, "scenario": "federated"}
    folders = [a_run(tmp_path / "a b", 0, **settings), a_run(tmp_path / "b", 2, **settings)]
    folders.append(a_run(tmp_path / "c", 0, **(settings | {"model": "lenet"})))
    assert compare(*folders, "--out", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<h2>What to do next</h2>") == 1
    end = html.unescape(text.split("What to do next</h2>")[1])
    commands = [one.split("\n") for one in re.findall(r"<pre[^>]*>(.*?)</pre>", end, re.DOTALL)]
    given = " ".join(shlex.quote(str(one)) for one in folders)
    runs = ["fedveil run " + shlex.quote(str(folders[at] / "config.json")) for at in (0, 2)]
    for found, more, seeds, out, earlier in zip(
        commands,
        ("", " -s probe-targets=28"),
        ("3..7", "0..4"),
        ("more-seeds", "more-images"),
        (f"{given} ", ""),
        strict=True,
    ):
        *first, last = found
        assert first == [f"{one}{more} --seeds {seeds} --out {out}-{n}" for n, one in enumerate(runs, 1)]
        assert last == f"fedveil compare {earlier}{out}-1/seed-* {out}-2/seed-* --out comparison.html"
    # Apps that were audited have no such command.
    change_config(folders[0], config={"seed": 0, "rounds": 3})
    assert compare(folders[0], "--out", tmp_path / "page.html").exit_code == 0
    assert "What to do next" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_table_and_json_have_each_group_and_defence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.compare.command.console", Terminal(highlight=False, width=160))
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1), a_run(tmp_path / "c", 0, model="cnn")]
    words = [*folders, "--out", tmp_path / "page.html"]
    done = compare(*words)
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines()]
    assert lines.count("model= (2 seeds: 0, 1)") == lines.count("model=cnn (1 seed: 0)") == 1
    plain = [lines[at + 1] for at, line in enumerate(lines) if line == "no defence"]
    assert [line.split(": ")[1].split(" (")[0] for line in plain] == [
        "recognisable, 32 of 32 images", "recognisable, 16 of 16 images",
    ]  # fmt: skip
    assert lines[-1] == f"page: {tmp_path / 'page.html'}"
    found = json.loads(compare(*words, "--json").stdout)
    assert found["page"] == str(tmp_path / "page.html")
    assert [(one["seeds"], one["unfinished"]) for one in found["groups"]] == [([0, 1], []), ([0], [])]
    assert found["groups"][0]["folders"] == [str(tmp_path / name) for name in "ab"]
    (message,) = found["groups"][0]["outcomes"][0]["messages"]
    assert [message[key] for key in ("verdict", "found", "attacked", "identified")] == ["recognisable", 32, 32, 32]
    assert [one["defense"] for one in found["groups"][1]["outcomes"]] == PIPELINES


def test_without_out_the_page_lies_beside_the_first_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1)]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = compare("../b", folders[0])
    assert result.exit_code == 0, result.output
    page = tmp_path / "b" / "comparison.html"
    assert f"page: {page}" in "".join(result.output.splitlines())
    links = re.findall(r'href="([^#"]*)"', page.read_text(encoding="utf-8"))
    assert links == ["report.html", "../a/report.html"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "a" / "comparison.html").exists()
