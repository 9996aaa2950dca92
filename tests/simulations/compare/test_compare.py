import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulations.compare.groups import grouped
from simulations.compare.page import sides, write_comparison
from simulations.settings.errors import ConfigError
from tests.simulations.report.approved_text import assert_approved
from tests.simulations.report.report_run import CONFIG, INVERSION, PIPELINES, Page, demo_rows, each, write_run

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
    page = Page(page_of(folders, tmp_path / "page.html"))
    assert page.open == []
    rows = page.tables["sides"][0]
    assert len(rows) == 1 + 2 * len(PIPELINES)
    # Without a defence: 32 of 32 over two seeds, whose exact interval begins at 0.025^(1/32); then one seed.
    verdict, images = rows[1][3:5]
    assert (verdict[0].strip(), images[0].strip()) == ("recognisable", "32 of 32")
    assert images[1].strip().startswith(f"{100 * 0.025 ** (1 / 32):.1f} to 100.0 %")
    assert rows[1][-1] == ["2", "0, 1"]
    assert rows[1 + len(PIPELINES)][4][0].strip() == "16 of 16"
    assert f"{folders[2]} is not finished" in page.text
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


def test_each_seed_has_a_mark_at_its_share(tmp_path: Path) -> None:
    assert "Each seed" not in page_of([a_run(tmp_path / "one")], tmp_path / "one.html")
    folders = [a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1)]
    change_rows(folders[1], lambda rows: [
        one | (each(0.5) | {"value": 0.5} if one["metric"] in ("identified", "recognisable") and not one["defense"] else {})
        for one in rows
    ])  # fmt: skip
    text = page_of(folders, tmp_path / "page.html")
    marks = re.findall(r"<title>([^<]*): ([\d.]+) %, seed (\d)</title>", text)
    assert len(marks) == 2 * len(PIPELINES)
    assert [(share, seed) for _, share, seed in marks[:2]] == [("100.0", "0"), ("50.0", "1")]
    assert [share for name, share, _ in marks if name.startswith("Mixer")] == ["0.0", "0.0"]


def test_a_failed_control_on_training_updates_says_nothing_of_probes(tmp_path: Path) -> None:
    larger = {"observation": "training update", "images": 64, "local_steps": 4}
    lost = {"value": 0.0} | each(0.0)
    folder = change_rows(a_run(tmp_path / "a", 0), lambda rows: [*rows, *(
        one | {"card": one["card"] | larger} | (lost if one["metric"] in ("identified", "recognisable") else {})
        for one in rows if one["attack"] == INVERSION
    )])  # fmt: skip
    for side in sides(grouped([folder])):
        update, probe = side.finding.messages
        # Without a defence the probe is its control; under one, that it fails without a defence decides.
        assert update.verdict == ("unknown" if side.finding.defense else "nothing found")
        assert probe.verdict == (
            {"": "recognisable", "DPSGD(target_epsilon=8.0)": "identifiable"}.get(side.finding.defense, "nothing found")
        )
