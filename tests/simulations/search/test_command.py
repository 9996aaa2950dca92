"""``fedveil search`` as a user meets it: what it refuses before any work, and what it prints."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from clients.data.datasets import load_dataset
from simulations.cli import app
from simulations.search.folder import IDENTITY, Scored, SearchFolder
from simulations.search.gradients import Similarities
from simulations.search.scorer import Scorer, Scores, check
from simulations.search.settings import Search

CONFIGS = Path(__file__).resolve().parents[3] / "simulations" / "configs"
TINY = (
    "model=cnn",
    "images=2",
    "path-steps=2",
    "accuracy-batches=1",
    "semi-epochs=1",
    "candidates=3",
    "longest=1",
    "workers=1",
)


def search(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["search", *words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("candidate=3", "setting 'candidate'"),
        ("candidates=0", "candidates is 0; allowed: at least 1, at most 127550"),
        ("candidates=many", "candidates is 'many' (str); expected int, such as 1500"),
        ("accuracy-threshold=-0.5", "accuracy-threshold is '-0.5'; allowed: 'auto' and numbers from -10 to -1"),
        ("accuracy-threshold=-85", "the paper's -85 is a sum over 63 images"),
        ("accuracy-threshold=-inf", "accuracy-threshold is '-inf'; allowed"),
        ("accuracy-threshold=low", "accuracy-threshold is 'low'; allowed: 'auto' and numbers from -10 to -1"),
        ("accuracy-threshold=nan", "accuracy-threshold is 'nan'; allowed"),
        ("dataset=photo", "did you mean 'photos'"),
        ("dataset=census", "dataset is 'census', whose examples are rows of a table; allowed: data sets of images"),
        (
            "dataset=celeba:all",
            "dataset is 'celeba:all', whose examples have several labels each; allowed: data sets with one class for an image",
        ),
        ("transfer-to=criteo:all", "transfer-to is 'criteo:all', whose examples are rows of a table"),
        ("dataset=cifar10", "set data-dir to the directory that holds it\n"),
        ("transfer-to=cifar10", "set transfer-dir to the directory that holds it\n"),
        ("model=resnet", "model"),
        ("images=100000", "images is 100000, and"),
        ("semi-share=1.0", "0 of the"),
        ("image-size=1", "image-size is 1; allowed: 0, or at least 2, at most 4096"),
        ("transfer-to=nothing", "transfer-to"),
        ("transfer-dir=digits", "transfer-dir is 'digits', and transfer-to names no data set"),
        ("defense=VisualMixer", "defense is 'VisualMixer'; allowed: 'ATS'"),
        ("privacy-score=eq5", "privacy-score is 'eq5'; allowed: 'released' or 'paper'"),
        ("momentum=1.0", "momentum is 1.0; allowed: 0 or more, below 1"),
    ],
)
def test_bad_values_end_before_any_work_with_the_key(tmp_path: Path, setting: str, message: str) -> None:
    code, told = search(*(word for one in (*TINY, setting) for word in ("-s", one)), "--out", str(tmp_path / "out"))
    assert code == 2
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


BRANCHES = """
from torch import nn

class Branches(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.last = nn.Linear(3 * 32 * 32, num_classes)

    def forward(self, images):
        return self.last((images if images.sum() > 0 else -images).flatten(1))
"""


@pytest.mark.long
def test_a_model_without_gradients_of_single_examples_ends_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BRANCHES)
    words = [word for one in (*TINY, f"model={tmp_path / 'own.py'}:Branches") for word in ("-s", one)]
    code, told = search(*words, "--out", str(tmp_path / "out"))
    assert (code, "the gradients of single examples cannot be computed by torch.func" in told) == (2, True), told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["accuracy-threshold=-1.2", "transfer-to=photos"])
def test_the_random_sampler_refuses_settings_of_scores(tmp_path: Path, setting: str) -> None:
    """It scores nothing, so that they would change nothing."""
    words = [word for one in (*TINY, "sampler=random", setting) for word in ("-s", one)]
    code, told = search(*words, "--out", str(tmp_path / "out"))
    key, _, value = setting.partition("=")
    assert (code, f"{key} is '{value}', and sampler=random scores no policy; leave it out" in told) == (2, True)


def test_too_few_images_are_those_of_the_set_that_lacks_them(tmp_path: Path) -> None:
    """Of 4,000 digits and 1,200 photographs, a tenth of which the semi-trained models learn from."""
    few = [word for one in ("images=1200", "dataset=mnist-5k", "transfer-to=photos") for word in ("-s", one)]
    code, told = search(*few, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "training images of photos are not the semi-trained model's" in told


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    words = [word for one in TINY for word in ("-s", one)]
    (tmp_path / "file").write_text("")
    assert search(*words, "--out", str(tmp_path / "file"))[0] == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").write_text("")
    code, told = search(*words, "--out", str(tmp_path / "full"))
    assert (code, "is not empty" in told) == (2, True)
    code, told = search("--resume", str(tmp_path / "full"))
    assert (code, "holds no search" in told) == (2, True)
    code, told = search("--resume", str(tmp_path), "--out", str(tmp_path))
    assert (code, "leave out CONFIG and --out" in told) == (2, True)
    code, told = search(str(tmp_path / "none.toml"))
    assert (code, "cannot read" in told) == (2, True)


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "3",
        "{}",
        '{"kind": "single", "policy": [1], "curve": []}',
        '{"kind": "single", "policy": [1], "accuracy": -1.0, "privacy": 0.5, "curve": [0.5]}',
        '{"kind": "single", "policy": [1], "accuracy": -1.0, "privacy": 0.5, "other": null, "curve": [0.5]}',
        "\xff",
    ],
)
def test_a_line_that_is_no_score_is_named(tmp_path: Path, line: str) -> None:
    SearchFolder.create(tmp_path / "out", Search()).close()
    good = json.dumps(Scored(IDENTITY, (), Scores(-1.0, 0.5, 0.6, (0.5,))).to_json())
    (tmp_path / "out" / "scores.jsonl").write_bytes(f"{good}\n{line}\n{good}\n".encode("latin-1"))
    code, told = search("--resume", str(tmp_path / "out"))
    assert code == 2
    assert f"line 2 of {tmp_path / 'out' / 'scores.jsonl'} is damaged" in told.replace("\n", "")
    assert "Traceback" not in told


def test_data_that_is_gone_when_a_search_goes_on_is_named(tmp_path: Path) -> None:
    gone = Search(dataset="cifar10", data_dir=str(tmp_path / "gone"))
    SearchFolder.create(tmp_path / "out", gone).close()
    code, told = search("--resume", str(tmp_path / "out"))
    assert code == 2
    assert f"cifar10: data-dir {tmp_path / 'gone'} is not a directory" in told


def test_a_folder_of_a_search_that_was_killed_before_it_wrote_anything_is_used_again(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    (tmp_path / "search.json.tmp").write_text("{")
    SearchFolder.create(tmp_path, Search()).close()
    assert (tmp_path / "search.json").is_file()


@pytest.mark.long
def test_a_search_goes_on_with_other_workers_and_with_nothing_else(tmp_path: Path) -> None:
    words = [word for one in TINY for word in ("-s", one)]
    assert search(*words, "--out", str(tmp_path / "out"))[0] in (0, 3)
    before = (tmp_path / "out" / "scores.jsonl").read_bytes()
    resume = ("--resume", str(tmp_path / "out"), "-s")
    code, told = search(*resume, "candidates=4")
    assert (code, "-s candidates: --resume takes it from the search itself" in told) == (2, True)
    assert "only workers and ray-address may be others" in told
    code, told = search(*resume, "worker=4")
    assert (code, "unknown setting 'worker', did you mean 'workers'?" in told) == (2, True)
    code, told = search(*resume, "workers=-1")
    assert (code, "workers is -1; allowed: at least 0" in told) == (2, True)
    assert search(*resume, "workers=2")[0] in (0, 3)
    assert json.loads((tmp_path / "out" / "search.json").read_text())["search"]["workers"] == 2
    assert (tmp_path / "out" / "scores.jsonl").read_bytes() == before


@pytest.mark.long
def test_a_search_goes_on_by_the_privacy_score_that_it_began_with(tmp_path: Path) -> None:
    """Policies of two scores in one ranking would be chosen by which of the two had scored them."""
    words = [word for one in (*TINY, "privacy-score=paper") for word in ("-s", one)]
    assert search(*words, "--out", str(tmp_path / "out"))[0] in (0, 3)
    kept = (tmp_path / "out" / "scores.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out" / "scores.jsonl").write_text("".join(kept[:-1]))
    code, told = search("--resume", str(tmp_path / "out"), "-s", "privacy-score=released")
    assert (code, "-s privacy-score: --resume takes it from the search itself" in told) == (2, True)
    code, told = search("--resume", str(tmp_path / "out"))
    assert code in (0, 3)
    again = [json.loads(line) | {"seconds": 0} for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert again == [json.loads(line) | {"seconds": 0} for line in kept], "the missing policy is scored as before"
    assert json.loads((tmp_path / "out" / "policies.json").read_text())["privacy_score"] == "paper"


def pictures(folder: Path, seed: int) -> None:
    """A data set of two classes; a seed has pictures of its own."""
    for part in ("train", "test"):
        for name in ("a", "b"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for at in range(12):
                pixels = np.random.default_rng((seed, at)).integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{at}.png")


@pytest.mark.long
def test_pictures_that_changed_since_are_refused_and_the_same_are_not(tmp_path: Path) -> None:
    """Else scores of both would stand in one list."""
    pictures(tmp_path / "in", 0)
    mine = (*TINY, "dataset=folder", f"data-dir={tmp_path / 'in'}")
    code, told = search(*(word for one in mine for word in ("-s", one)), "--out", str(tmp_path / "out"))
    assert code in (0, 3), told
    load_dataset.cache_clear()  # as in another process
    assert search("--resume", str(tmp_path / "out"))[0] in (0, 3)
    pictures(tmp_path / "in", 1)
    load_dataset.cache_clear()
    code, told = search("--resume", str(tmp_path / "out"))
    assert (code, "the pictures of dataset 'folder' are not those that this search began with" in told) == (2, True)
    pictures(tmp_path / "in", 0)
    load_dataset.cache_clear()
    assert search("--resume", str(tmp_path / "out"))[0] in (0, 3)


def test_an_address_where_nothing_answers_ends_a_search_before_any_training(tmp_path: Path) -> None:
    words = [word for one in (*TINY, "ray-address=http://x") for word in ("-s", one)]
    code, told = search(*words, "--out", str(tmp_path / "out"))
    assert (code, "ray-address is 'http://x', and no cluster answers there" in told) == (2, True)
    assert "training" not in told
    assert "--resume" not in told
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_cluster_that_is_gone_can_be_left_and_a_finished_search_needs_none(tmp_path: Path) -> None:
    words = [word for one in TINY for word in ("-s", one)]
    assert search(*words, "--out", str(tmp_path / "out"))[0] in (0, 3)
    about = json.loads((tmp_path / "out" / "search.json").read_text())
    about["search"]["ray-address"] = "http://x"
    (tmp_path / "out" / "search.json").write_text(json.dumps(about))
    assert search("--resume", str(tmp_path / "out"))[0] in (0, 3)
    (tmp_path / "out" / "policies.json").unlink()
    code, told = search("--resume", str(tmp_path / "out"))
    assert (code, "ray-address is 'http://x'" in told) == (2, True)
    assert search("--resume", str(tmp_path / "out"), "-s", "ray-address=")[0] in (0, 3)


def test_a_search_that_kept_nothing_can_be_started_again_in_its_folder(tmp_path: Path) -> None:
    words = [*(word for one in TINY for word in ("-s", one)), "--out", str(tmp_path / "out")]
    code, told = search(*words, "-s", "learning-rate=10")
    assert (code, "start a new search with other settings\n" in told) == (2, True)
    assert "--resume" not in told
    assert search(*words)[0] in (0, 3)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("search*.toml")), ids=lambda path: path.name)
def test_a_shipped_configuration_passes_the_checks(path: Path) -> None:
    check(Search.from_mapping(tomllib.loads(path.read_text())))


@pytest.mark.long
def test_a_search_says_what_it_does_and_what_to_do_with_the_result(tmp_path: Path) -> None:
    config = tmp_path / "search.toml"
    config.write_text("dataset = 'photos'\npolicies = 1\n")
    code, told = search(str(config), *(word for one in TINY for word in ("-s", one)), "--out", str(tmp_path / "out"))
    assert code == 0, told
    result = json.loads((tmp_path / "out" / "policies.json").read_text())
    for line in (
        "training the semi-trained model",
        "the identity: 0 of 1",
        "policies: 3 of 3",
        f": {result['policies']}",
    ):
        assert line in told
    assert f'ATS(policies="{tmp_path / "out" / "policies.json"}")' in told.replace("\n", "")
    assert "1 policy of 3 scored candidates, of which " in told
    (scores,) = result["scores"]
    (line,) = [one.split() for one in told.splitlines() if one.split()[:1] == [scores["policy"]]]
    assert line[1:] == [f"{scores[key]:.4f}" for key in ("privacy", "other_privacy", "accuracy")]
    assert told.splitlines()[-1].startswith("page: ")
    code, told = search("--resume", str(tmp_path / "out"))
    assert code == 0
    assert "policies: 3 of 3" not in told, "nothing is scored twice"
    code, told = search("--resume", str(tmp_path / "out"), "--json")
    found = json.loads(told)
    assert {key: found[key] for key in ("policies", "scores", "scored", "passed")} == {
        key: result[key] for key in ("policies", "scores", "scored", "passed")
    }
    assert found["file"] == str(tmp_path / "out" / "policies.json")
    assert search("--resume", str(tmp_path / "out"), "-q") == (0, "")


def test_too_few_policies_are_told_with_what_to_change(tmp_path: Path) -> None:
    words = [word for one in (*TINY, "accuracy-threshold=-1") for word in ("-s", one)]
    code, told = search(*words, "--out", str(tmp_path / "out"))
    assert code == 3
    assert "0 of 2 policies passed: lower accuracy-threshold (it is -1.0000)" in told


@pytest.mark.parametrize(
    ("settings", "curve", "message"),
    [
        (
            ("semi-epochs=2", "learning-rate=1e9"),
            None,
            "learning-rate is 1000000000.0; allowed: above 0, at most 1e+06",
        ),
        (("semi-epochs=1", "learning-rate=10"), None, "it tells 27 % (naming always the same class: 27 %)"),
        (
            ("semi-epochs=1", "learning-rate=10", "model=resnet20"),
            None,
            "learning-rate is 10, and the semi-trained model",
        ),
        (("semi-epochs=1",), (math.nan, math.nan), "its gradients are not finite; lower learning-rate"),
        (("semi-epochs=1",), (0.0, 0.0), "its gradients vanish (GradSim of untransformed images is 0.0000"),
        (("semi-epochs=1",), (0.99, 1.0), "its gradients are all alike (GradSim of untransformed images is 0.9950"),
    ],
)
def test_a_model_that_cannot_score_ends_the_search_before_any_policy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    curve: tuple[float, float] | None,
    message: str,
) -> None:
    """Else the first sampled would be told as the most private ones."""
    if curve is not None:
        monkeypatch.setattr(Scorer, "curves", lambda *_: Similarities(*[torch.tensor(curve).expand(2, 2)] * 2))
    out = tmp_path / "out"
    code, told = search(*(word for one in (*TINY, *settings) for word in ("-s", one)), "--out", str(out))
    assert code == 2
    assert message in told
    assert "--resume" not in told, "it would train the same model again"
    assert not (out / "model.safetensors").exists()
    assert not (out / "scores.jsonl").exists()


@pytest.mark.long
def test_too_few_random_policies_are_told_too(tmp_path: Path) -> None:
    """No transform is in two policies: the longer they are, the sooner the transforms are used up."""
    words = [word for one in (*TINY, "sampler=random", "policies=16", "longest=3") for word in ("-s", one)]
    code, told = search(*words, "--out", str(tmp_path / "out"))
    assert (code, "of 16 policies passed: lower longest, or ask for fewer" in told) == (3, True)


def test_a_run_refuses_policies_of_other_colours_before_it_starts(tmp_path: Path) -> None:
    words = [
        "run",
        "-s",
        "dataset=mnist-5k",
        "-s",
        "defenses=ATS(policies='3-1-7', channels=3)",
        "--out",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "was searched for images of 3 channels, and these have 1" in result.output
