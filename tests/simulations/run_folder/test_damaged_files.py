"""Commands that are given a damaged file end with one error that names it, and never with a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from defenses.base import DefenseError
from defenses.images.ats import ATS
from simulations.cli import app
from simulations.search.folder import SearchFolder
from simulations.search.settings import Search
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests import hostile
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment
from tests.simulations.protect.commands import NOISE, protect, refused
from tests.simulations.run_folder.test_resume import Killed, killed_at


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, " ".join(result.output.split())


def flip(data: bytes) -> bytes:
    """One bit of the last value."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def cut(data: bytes) -> bytes:
    return data[:-7]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its second round, with what its attack on all rounds needs of the first."""
    out = tmp_path_factory.mktemp("killed") / "run"
    attacked = {
        "attack_rounds": "all",
        "update_attacks": "ClassGAN(iterations=2, images_per_class=1)",
        "probe_attacks": "",
    }
    with pytest.raises(Killed):
        run_experiment(LocalGrid(3, killed_at("train", 5)), experiment(out, defenses="", **attacked))
    return out


@pytest.mark.long
@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("pattern", ["checkpoints/p00.safetensors", "history/*.safetensors"])
def test_a_run_never_goes_on_with_other_numbers_than_it_kept(
    killed: Path, tmp_path: Path, pattern: str, damage: Callable[[bytes], bytes]
) -> None:
    (path,) = killed.glob(pattern)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    try:
        code, told = command("run", "--in-process", "--resume", killed)
    finally:
        path.write_bytes(whole)
    assert code == 2, told
    assert f"{path} is damaged" in told
    assert "continue with" not in told


@pytest.mark.long
@pytest.mark.parametrize("instead", ["nothing", "a folder"])
def test_a_run_whose_rows_are_gone_does_not_go_on_without_them(killed: Path, instead: str) -> None:
    path = killed / "rows.jsonl"
    path.rename(killed / "kept")
    if instead == "a folder":
        path.mkdir()
    try:
        code, told = command("run", "--in-process", "--resume", killed)
    finally:
        if path.is_dir():
            path.rmdir()
        (killed / "kept").replace(path)
    assert (code, f"{path} is no file" in told) == (2, True), told


@pytest.mark.parametrize(
    "text",
    [
        hostile.BOMB,
        '{"policies": "3-1-7", "channels": Infinity}',
        '{"policies": "3-1-7", "channels": 1e999}',
        "[]",
        "{",
        "\ufeff{}",
    ],
)
def test_policies_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policies.json"
    path.write_text(text)
    with pytest.raises(DefenseError, match="is no result of fedveil search"):
        ATS.read(path)
    code, told = command("run", "--dry-run", "-s", f"defenses=ATS(policies={str(path)!r})")
    assert (code, "is no result of fedveil search" in told) == (2, True)


@pytest.mark.parametrize("text", [hostile.BOMB, "[]", '{"search": 3}', '{"search": {}, "pictures": [3]}'])
def test_a_search_whose_settings_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "search.json").write_text(text)
    code, told = command("search", "--resume", tmp_path)
    assert (code, f"{tmp_path / 'search.json'} is damaged" in told) == (2, True)


def test_scores_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    SearchFolder.create(tmp_path / "s", Search()).close()
    (tmp_path / "s" / "scores.jsonl").write_text(hostile.BOMB + "\n")
    with pytest.raises(ConfigError, match=r"scores\.jsonl is damaged: none of its lines can be read"):
        SearchFolder.resume(tmp_path / "s")


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_semi_trained_model_that_is_damaged_scores_nothing(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder = SearchFolder.create(tmp_path / "s", Search())
    folder.keep_weights({"weight": torch.ones(5)})
    assert torch.equal((folder.weights() or {})["weight"], torch.ones(5))
    path = tmp_path / "s" / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ConfigError, match=r"model\.safetensors is damaged .* delete it, and the model is trained again"
    ):
        folder.weights()
    assert folder.is_begun
    folder.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: "[1]\n",
        lambda lines: hostile.BOMB + "\n",
        lambda lines: lines[0] + "{}\n",
        lambda lines: lines[0] + "3\n",
        lambda lines: lines[0] + '{"source": "a", "shape": 3, "notes": [], "idle": []}\n',
    ],
)
def test_a_journal_of_protected_pictures_that_is_damaged_is_refused(
    tmp_path: Path, damage: Callable[[list[str]], str]
) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "in" / "a.png")
    words = (tmp_path / "in", tmp_path / "out", "--defense", NOISE)
    assert protect(*words)[0] == 0
    journal = tmp_path / "out" / ".journal.jsonl"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    first = [json.dumps({name: manifest[name] for name in list(manifest)[:6]}) + "\n"]
    journal.write_text(damage(first))
    refused(protect(*words, "--resume"), f"{journal} is damaged")


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"files": 3}', hostile.BOMB])
def test_a_manifest_of_protected_pictures_that_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "in" / "a.png")
    words = (tmp_path / "in", tmp_path / "out", "--defense", NOISE)
    assert protect(*words)[0] == 0
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(text)
    refused(protect(*words, "--resume"), f"{manifest} is damaged")
