"""The answers of a pretrained network on copies and on their pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attacks.scoring.roc import binomial_interval
from clients.data.packaged import packaged_file
from clients.models.library import ModelError
from simulations.protect import recognised
from simulations.protect.copies import Copy, Order
from simulations.protect.pictures import read, write
from simulations.protect.recognised import (
    AUTO,
    CAVEAT,
    CLASSES,
    NONE,
    SIDE,
    USUAL,
    Judge,
    Network,
    Recognised,
    agreement,
    load_network,
    recognise,
)
from tests.clients.models.test_packaged_weights import needs_weights
from tests.simulations.protect.commands import NOISE, protect, refused


class Brightest(nn.Module):
    """Answers by the mean of an image: its class is the number of 255ths, and its neighbours come next."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        level = 255 * images.mean((1, 2, 3))
        return -(torch.arange(CLASSES) - level[:, None]).abs()


@pytest.fixture
def brightest(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network("a network of the test", Brightest(), (0.0,) * 3, (1.0,) * 3)
    monkeypatch.setattr(recognised, "load_network", lambda _: network)


def flat(folder: Path, *levels: int, size: int = 30) -> Order:
    """Grey pictures of one level each, named by their places."""
    folder.mkdir()
    for at, level in enumerate(levels):
        Image.fromarray(np.full((size, size), level, dtype=np.uint8)).save(folder / f"{at}.png")
    return Order(folder, folder.with_name("out"), "Blur()", "secret", 0, "")


def test_equal_answers_are_counted_and_chance_is_that_of_other_pictures() -> None:
    originals = torch.tensor([[1, 9, 8, 7, 6], [2, 9, 8, 7, 6], [2, 5, 8, 7, 6], [4, 9, 8, 7, 6]])
    copies = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 1, 3, 4, 5], [9, 8, 7, 6, 5]])
    found = agreement("net", originals, copies)
    # Copies 0 and 2 keep the first answer; copy 1 has it second. Copy 1 answers as picture 0, and copy 2 as picture 1.
    assert (found.compared, found.first, found.among) == (4, 2, 3)
    assert found.other == pytest.approx(2 / 12)
    assert agreement("net", originals[:1], copies[:1]).other is None


def test_the_finding_has_counts_exact_intervals_and_the_network() -> None:
    found = Recognised("net", 20, 3, 6, 0.05)
    low, high = binomial_interval(3, 20)[1:]
    assert (
        f"net gives 3 of 20 copies (95 % interval: {100 * low:.0f} to {100 * high:.0f} %) the first answer"
        in found.finding
    )
    assert "6 of 20 copies (95 % interval: 12 to 54 %) have it" in found.finding
    assert found.finding.endswith(f"in 5 % of pairs. {CAVEAT}")
    numbers = found.numbers
    assert numbers is not None
    assert (numbers["first"], numbers["first_interval"]) == (3, [low, high])
    assert (Recognised().finding, Recognised().numbers) == ("", None)


def test_copies_are_read_from_their_files(tmp_path: Path) -> None:
    judge = Judge(Network("a network of the test", Brightest(), (0.0,) * 3, (1.0,) * 3))
    order = flat(tmp_path / "in", 10, 60, 120, 200)
    flat(tmp_path / "out", 10, 61, 180, 200)
    done = [Copy(f"{at}.png", f"{at}.png") for at in range(4)]
    found = recognise(order, [*done, Copy("broken.png", error="no picture")], judge)
    assert (found.compared, found.first, found.among, found.other) == (4, 2, 3, 0.0)
    (tmp_path / "out" / "0.png").write_text("no picture")
    assert recognise(order, done, judge).compared == 3, "a file has changed"
    assert recognise(order, done, Judge()) == recognise(order, [], judge) == Recognised()


class Roughest(nn.Module):
    """Answers by the contrast of an image, which scaling down takes from fine patterns."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return -(torch.arange(CLASSES) - 1000 * images.std((1, 2, 3))[:, None]).abs()


def test_resolution_that_the_copies_lost_is_no_protection(tmp_path: Path) -> None:
    order = replace(flat(tmp_path / "in", 0, 0), size=32)
    rng = np.random.default_rng(0)
    for at in range(4):
        pixels = rng.integers(100 - 20 * at, 120 + 30 * at, (200, 260), dtype=np.uint8)
        Image.fromarray(pixels).save(order.root / f"{at}.png")
        write(order.out / f"{at}.png", read(order.root / f"{at}.png", 32).image)
    network = Network("net", Roughest(), (0.0,) * 3, (1.0,) * 3)
    done = [Copy(f"{at}.png", f"{at}.png") for at in range(4)]
    assert recognise(order, done, Judge(network)).first == 4, "the copies are the pictures, scaled"
    full = network.answers([read(order.root / "3.png", SIDE).image])
    assert full[0, 0] != network.answers([read(order.out / "3.png", SIDE).image])[0, 0]


@pytest.mark.usefixtures("brightest")
def test_the_terminal_the_manifest_the_page_and_json_have_the_same_numbers(tmp_path: Path) -> None:
    folder = flat(tmp_path / "in", *range(10, 100, 10), size=32).root
    code, printed = protect(folder, tmp_path / "out", "--defense", "Blur(std=1.0)", "--preview")
    assert code in (0, 3), printed
    finding = Recognised("a network of the test", 9, 9, 9, 0.0).finding
    assert finding in " ".join(printed.split())
    page = " ".join((tmp_path / "out" / "preview.html").read_text(encoding="utf-8").split())
    assert finding in page
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["recognised"] == Recognised("a network of the test", 9, 9, 9, 0.0).numbers


def test_without_a_network_there_is_no_number_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> Network:
        raise ModelError("weights: the package is not installed")

    monkeypatch.setattr(recognised, "load_network", missing)
    folder = flat(tmp_path / "in", *range(10, 100, 10), size=32).root
    code, printed = protect(folder, tmp_path / "out", "--defense", "Blur(std=1.0)", "--preview")
    _, shown = protect(folder, tmp_path / "json", "--defense", "Blur(std=1.0)", "--preview", "--json")
    assert code in (0, 3), printed
    said = "No network judged whether the copies still show what they showed (weights: the package is not installed)."
    assert said in " ".join(printed.split())
    assert said in " ".join((tmp_path / "out" / "preview.html").read_text(encoding="utf-8").split())
    (line,) = (json.loads(line) for line in shown.splitlines() if line.startswith("{"))
    assert line["recognised"] == {"missing": said}
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["recognised"] == {"missing": said}


def test_a_network_judges_only_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def load(text: str) -> Network:
        asked.append(text)
        return Network("net", Brightest(), (0.0,) * 3, (1.0,) * 3)

    monkeypatch.setattr(recognised, "load_network", load)
    folder = flat(tmp_path / "in", *range(10, 100, 10)).root
    assert "net" not in protect(folder, tmp_path / "plain", "--defense", NOISE)[1].split()
    assert asked == []
    assert "network net gives" in protect(folder, tmp_path / "named", "--defense", NOISE, "--recogniser", USUAL)[1]
    protect(folder, tmp_path / "none", "--defense", NOISE, "--recogniser", NONE, "--preview")
    assert asked == [USUAL]


def test_what_names_no_network_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = flat(tmp_path / "in", 1, 2).root
    for text in ("resnet", "timm:resnet18=nowhere.pth"):
        told = protect(folder, tmp_path / "out", "--defense", NOISE, "--recogniser", text)
        refused(told, f"--recogniser is '{text}'; allowed: auto, none, efficientnet-lite0, FILE")
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_file_of_another_network_is_said_to_be_so(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2, 2)}, tmp_path / "small.pth")
    with pytest.raises(ModelError, match="holds 1 tensors"):
        load_network(str(tmp_path / "small.pth"))
    folder = flat(tmp_path / "in", 1, 2).root
    for text in (str(tmp_path / "small.pth"), f"resnet99={tmp_path / 'small.pth'}"):
        told = protect(folder, tmp_path / "out", "--defense", NOISE, "--recogniser", text)
        refused(told, f"--recogniser is '{text}', which cannot be loaded: ")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "small.pth"}, "neither copies nor a secret"


def test_a_named_network_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Network:
        raise ModelError("weights: the package is not installed")

    monkeypatch.setattr(recognised, "load_network", missing)
    folder = flat(tmp_path / "in", 1, 2).root
    refused(
        protect(folder, tmp_path / "out", "--defense", NOISE, "--recogniser", USUAL), "the package is not installed"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"in"}
    assert protect(folder, tmp_path / "out", "--defense", NOISE, "--recogniser", NONE)[0] == 0


@needs_weights
def test_the_real_network_knows_a_cat_and_other_weights_come_from_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = load_network(AUTO)
    assert not caplog.records, "the packaged file is a known port"
    assert network.name == USUAL
    with Image.open(packaged_file("skimage", "data/chelsea.png")) as picture:
        cat = torch.from_numpy(np.array(picture.resize((SIDE, SIDE)))).permute(2, 0, 1) / 255
    answers = network.answers([cat])
    assert answers.shape == (1, 5)
    assert set(answers[0, :2].tolist()) <= {281, 282, 285}, "tabby, tiger cat, Egyptian cat"
    torch.save(network.model.state_dict(), tmp_path / "same.pth")
    for text in (str(tmp_path / "same.pth"), f"timm:tf_efficientnet_lite0={tmp_path / 'same.pth'}"):
        assert "(same.pth)" in load_network(text).name
    assert torch.equal(load_network(str(tmp_path / "same.pth")).answers([cat]), answers)
