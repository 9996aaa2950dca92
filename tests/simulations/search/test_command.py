"""``fedveil search`` as a user meets it: what it refuses before any work, what it prints, and how it goes on."""

import json
import math
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from defenses import ATS
from defenses.images.ats import parse_policies
from defenses.images.transforms import LIBRARY
from simulations.cli import app
from simulations.console.command_line import setting_of
from simulations.experiment.experiment import Experiment, all_settings
from simulations.search.algorithm import PolicySearch
from simulations.search.scorer import Scorer, check
from simulations.search.settings import Search

pytestmark = pytest.mark.usefixtures("as_its_own_process")

CONFIGS = Path(__file__).resolve().parents[3] / "simulations" / "configs"
TINY = ("model=cnn", "images=2", "semi-epochs=1", "candidates=3", "workers=1")


def search(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["search", *words])
    return result.exit_code, result.output


def tiny(out: Path, *settings: str) -> tuple[int, str]:
    """A search in a folder, with a few settings beside those of ``TINY``."""
    return search(*(word for one in (*TINY, *settings) for word in ("-s", one)), "--out", str(out))


BAD = [
    ("candidate=3", "setting 'candidate'"), ("objective=measured", "unknown setting 'objective'"),
    ("candidates=0", "candidates is 0; allowed: a whole number from 1 to 127550"),
    ("accuracy-threshold=-0.5", "accuracy-threshold is '-0.5'; allowed: 'auto' and numbers from -10 to -1"),
    ("accuracy-threshold=-85", "the paper's -85 is a sum over 63 images"),
    ("dataset=census", "dataset is 'census', whose examples are rows of a table; allowed: data sets of images"),
    ("dataset=celeba:all", "whose examples have several labels each; allowed: data sets with one class for an image"),
    ("dataset=cifar10", "set data-dir to the directory that holds it\n"), ("model=resnet", "model"),
    ("images=100000", "images is 100000, and"), ("semi-share=1.0", "0 of the"),
    ("learning-rate=1e9", "learning-rate is 1000000000.0; allowed: a number from "),
]  # fmt: skip


def test_bad_values_end_before_any_work_with_the_key(tmp_path: Path) -> None:
    for settings, message in BAD:
        code, told = tiny(tmp_path / "out", settings)
        assert code == 2, settings
        assert message in told, settings
        assert "Traceback" not in told, settings
        assert not (tmp_path / "out").exists(), settings


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tiny(tmp_path / "file")[0] == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").write_text("")
    code, told = tiny(tmp_path / "full")
    assert (code, "is not empty" in told) == (2, True)
    PolicySearch.create(tmp_path / "begun", Search(model="cnn")).close()
    about = tmp_path / "begun" / "search.json"
    gone = {"dataset": "cifar10", "data-dir": str(tmp_path / "gone")}
    about.write_text(json.dumps({"search": gone, "pictures": ""}))
    other = json.dumps({"search": {"model": "cnn", "semi-share": 0.2}, "pictures": "0" * 32})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "search.json").write_text(other)
    for words, why in (
        (["--resume", str(tmp_path / "full")], "holds no search"),
        (["--resume", str(tmp_path), "--out", str(tmp_path)], "leave out CONFIG, --out and every"),
        ([str(tmp_path / "none.toml")], "cannot read"),
        (["--resume", str(tmp_path / "begun")], f"cifar10: data-dir {tmp_path / 'gone'} is not a directory"),
        (["--resume", str(tmp_path / "other")], "the pictures of dataset 'photos' are not those that this search"),
    ):
        code, told = search(*words)
        assert (code, why in told) == (2, True), told


def test_a_dry_run_says_what_would_be_scored_or_what_is_wrong_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = search("--dry-run", "-s", "candidates=7", "-s", "model='lenet'", "--out", str(out))
    assert (code, "7 policies" in told, "photos, lenet" in told, out.exists()) == (0, True, True, False), told
    for words, why in (
        (["-s", "images=100000"], "images is 100000"), (["--resume", str(tmp_path)], "leave out --resume"),
    ):  # fmt: skip
        code, told = search("--dry-run", *words)
        assert (code, why in told) == (2, True), told


def test_shipped_configurations_pass_the_checks() -> None:
    for path in sorted(CONFIGS.glob("search*.toml")):
        check(Search.read(tomllib.loads(path.read_text())))


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_a_search_goes_on_with_other_workers_and_with_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = tiny(out, "dataset=photos")
    assert code == 0, told
    result = json.loads((out / "policies.json").read_text())
    for scores in result["scores"]:
        (line,) = [one.split() for one in told.splitlines() if one.split()[:1] == [scores["policy"]]]
        assert line[1:] == [f"{scores[key]:.4f}" for key in ("privacy", "accuracy")]
        (index, *_) = parse_policies(scores["policy"])[0]
        assert f"{scores['policy']}: {LIBRARY[index].name} {LIBRARY[index].level}" in told
    run = shlex.split(next(line for line in told.splitlines() if line.startswith("attack:")))[1:]
    assert run[:2] == ["fedveil", "run"]
    settings = dict(setting_of(word, all_settings()) for word in run[3::2])
    experiment = Experiment.from_mapping(settings)
    assert (experiment.dataset, experiment.model, experiment.norm) == ("photos", "cnn", "batch")
    assert [str(one) for one in experiment.pipelines] == ["", repr(ATS(policies=result["policies"], channels=3))]
    found = json.loads(search("--resume", str(out), "--json")[1])
    assert all(found[key] == result[key] for key in ("policies", "scores", "scored", "passed"))
    resume, before = ("--resume", str(out), "-s"), lines_of(out)
    for setting, why in (
        ("candidates=4", "leave out CONFIG, --out and every -s but workers"),
        ("workers=-1", "workers is -1; allowed: a whole number from 0"),
    ):
        code, told = search(*resume, setting)
        assert (code, why in told) == (2, True), told
    assert search(*resume, "workers=2")[0] == 0
    assert lines_of(out) == before
    (out / "scores.jsonl").write_text("".join((out / "scores.jsonl").read_text().splitlines(keepends=True)[:-1]))
    assert search("--resume", str(out))[0] == 0
    assert lines_of(out) == before, "the missing policy is scored as before"
    assert json.loads((out / "policies.json").read_text()) == result


def test_too_few_policies_are_told_with_what_to_change(tmp_path: Path) -> None:
    code, told = tiny(tmp_path / "out", "accuracy-threshold=-1")
    assert code == 3
    assert "0 of 2 policies passed: lower accuracy-threshold (it is -1.0000)" in told


def cannot_score(out: Path, *settings: str) -> str:
    """What is said of a model that cannot score; else the first sampled policies would be told as the most private ones."""
    code, told = tiny(out, *settings)
    assert code == 2, told
    assert "--resume" not in told, "it would train the same model again"
    assert not (out / "model.safetensors").exists()
    assert not (out / "scores.jsonl").exists()
    return told


def test_a_model_without_scores_ends_the_search_not_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = cannot_score(tmp_path / "out", "learning-rate=10")
    assert "learning-rate is 10, and the semi-trained model" in told
    assert re.search(r"tells \d+ % \(naming always the same class: \d+ %\)", told)
    assert "start a new search with other settings\n" in told
    for curve, message in (
        ((math.nan, math.nan), "its gradients are not finite; lower learning-rate"),
        ((0.0, 0.0), "its gradients vanish (GradSim of untransformed images is 0.0000"),
        ((0.99, 1.0), "its gradients are all alike (GradSim of untransformed images is 0.9950"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Scorer, "curves", lambda *_, curve=curve: torch.tensor(curve).expand(2, 2))
            assert message in cannot_score(tmp_path / "out")
    assert tiny(tmp_path / "out")[0] in (0, 3)
