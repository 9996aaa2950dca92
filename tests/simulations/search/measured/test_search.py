"""What ends a measured search before hybrids are judged, and what a resumed one checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.search.folder import SearchFolder
from simulations.search.measured import working_processes
from simulations.search.measured.judging import Judgement
from simulations.search.measured.names import ABOUT
from simulations.search.measured.search import MeasuredFolder, WeakAttackError, run_search
from simulations.search.measured.settings import Measured, Rung
from simulations.search.measured.trials import CHOICE, open_study, planned
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError

SEARCH = Measured(
    dataset="mnist-5k", papers="", candidates=2, by_score=0, rungs=2, rounds=3, workers=1, seeds=2, controls=2
)


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["search", *words])
    return result.exit_code, " ".join(result.output.split())


def judged_by(monkeypatch: pytest.MonkeyPatch, recovered: int | None) -> list[str]:
    """Judgements without training: of no defence so many of 32 images are recovered, or None: it fails. Returns who was judged."""
    made: list[str] = []

    def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
        made.append(hybrid)
        if recovered is None and not hybrid:
            raise RuntimeError("its weights are not finite")
        return Judgement(0.8, 100, 5 if hybrid else recovered or 0, 32, 1.0, "an attack", 0.1)

    monkeypatch.setattr(working_processes, "judge", judge)
    return made


def run(folder: MeasuredFolder) -> None:
    try:
        run_search(folder, lambda what, done, of: None)
    finally:
        folder.close()


def test_an_attack_that_fails_without_a_defence_ends_the_search_before_any_hybrid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = judged_by(monkeypatch, 15)
    with pytest.raises(WeakAttackError, match="recovers 15 of 32 images, fewer than half"):
        run(MeasuredFolder.create(tmp_path / "out", SEARCH))
    assert made == ["", ""]
    assert planned(open_study(tmp_path / "out", CHOICE, SEARCH)) == []
    code, output = command("--resume", str(tmp_path / "out"))
    assert (code, "start a new search in another folder" in output, "continue with" in output) == (2, True, False)


def test_no_defence_that_failed_is_tried_again_when_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = judged_by(monkeypatch, None)
    with pytest.raises(ConfigError, match="its weights are not finite"):
        run(MeasuredFolder.create(tmp_path / "out", SEARCH))
    assert made == [""]
    made = judged_by(monkeypatch, 32)
    run(MeasuredFolder.resume(tmp_path / "out", {}))
    assert made[:2] == ["", ""]
    assert len(set(made)) == 3
    code, output = command("--resume", str(tmp_path / "out"))
    assert (code, "controls is 2: no hybrid can be recommended." in output) == (0, True)
    assert "2 candidates came from random draws." in output


def test_a_search_goes_on_with_the_images_that_it_began_with_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    MeasuredFolder.create(path, SEARCH).close()
    about = json.loads((path / ABOUT).read_text(encoding="utf-8"))

    def change(key: str, value: object) -> None:
        (path / ABOUT).write_text(json.dumps(about | {key: value}), encoding="utf-8")

    change("versions", about["versions"] | {"torch": "1.0"})
    folder = MeasuredFolder.resume(path, {})
    assert folder.notice.startswith("this search began with torch 1.0 (now ")
    folder.close()
    change("data", "0" * 32)
    with pytest.raises(ConfigError, match="the images of dataset 'mnist-5k' are not those that this search began with"):
        MeasuredFolder.resume(path, {})
    change("search", about["search"] | {"dataset": "cifar10"})
    with pytest.raises(ConfigError, match="set data-dir to the directory that holds it"):
        MeasuredFolder.resume(path, {})
    change("data", about["data"])
    folder = MeasuredFolder.resume(path, {})  # no lock is left behind
    assert folder.notice == ""
    folder.close()


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    code, output = command("--objective", "measured", "--resume", str(tmp_path / "none"))
    assert (code, "holds no measured search (no measured.json)" in output) == (2, True)
    MeasuredFolder.create(tmp_path / "measured", SEARCH).close()
    code, output = command("--objective", "paper", "--resume", str(tmp_path / "measured"))
    assert code == 2
    assert "holds a search with --objective measured; leave out --objective paper" in output
    SearchFolder.create(tmp_path / "paper", Search()).close()
    code, output = command("--objective", "measured", "--resume", str(tmp_path / "paper"))
    assert code == 2
    assert "holds a search with --objective paper; leave out --objective measured" in output


def test_help_names_what_json_prints() -> None:
    _, output = command("--help")
    assert "null without a recommendation" in output
