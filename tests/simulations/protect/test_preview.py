"""The preview of ``fedveil protect``: delivered copies, attacks on scaled ones, the answers of a network, and their counts."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.scoring.roc import binomial_interval
from clients.models.library import ModelError
from simulations.protect import recognised
from simulations.protect.manifest import UNTESTED
from simulations.protect.preview import LEAST, LOOKING, TriedAttacks
from simulations.protect.recognised import (
    NONE,
    USUAL,
    Network,
    Recognised,
    agreement,
)
from simulations.protect.recovered import count_recovered, identified
from simulations.report.drawing.pictures import Strip
from tests.simulations.protect.commands import MIXER, protect, refused
from tests.simulations.report.report_run import Page


def noise(folder: Path, count: int, *, grey: bool = False, side: int = 32) -> Path:
    """A folder of so many pictures of noise, coloured or grey."""
    folder.mkdir(exist_ok=True)
    for at in range(count):
        shape = (side, side) if grey else (side, side, 3)
        pixels = np.random.default_rng(at).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{'grey' if grey else 'colour'}-{at}.png")
    return folder


def test_too_few_pictures_and_unknown_networks_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = noise(tmp_path / "in", LEAST - 1)
    noise(folder, 3, grey=True)
    known, out = ("--defense", MIXER), tmp_path / "out"
    few = f"--preview needs at least {LEAST} pictures of one kind, coloured or grey; IN has 7 coloured and 3 grey ones"
    refused(protect(folder, out, *known, "--preview"), few)
    refused(protect(folder, out, *known, "--recogniser", "resnet"), "--recogniser is 'resnet'; allowed: auto, none, ")

    def missing(_: str) -> Network:
        raise ModelError("weights: the package is not installed")

    monkeypatch.setattr(recognised, "load_network", missing)
    refused(protect(folder, out, *known, "--recogniser", USUAL), "the package is not installed")
    assert {path.name for path in tmp_path.iterdir()} == {"in"}, "neither copies nor a secret"
    assert protect(folder, out, *known, "--recogniser", NONE)[0] == 0


def test_the_preview_shows_the_delivered_copy_and_counts_what_attacks_recover_from_scaled_ones(tmp_path: Path) -> None:
    folder, words = noise(tmp_path / "in", LEAST, side=72), ("--defense", "ImageNoise(std=0.01)", "--preview")
    code, told = protect(folder, tmp_path / "out", *words, "--recogniser", "none")
    assert code in (0, 3), told
    page = Page((tmp_path / "out" / "preview.html").read_text(encoding="utf-8"))
    shown = {about["alt"]: about["src"] for name, about in page.tags if name == "img"}
    uri = shown["delivered copy: identified, colour-0.png, 72 x 72 pixels"]
    delivered = io.BytesIO(base64.b64decode(uri.partition(",")[2]))
    with Image.open(delivered) as one, Image.open(tmp_path / "out" / "colour-0.png") as copy:
        assert np.array_equal(np.asarray(one), np.asarray(copy))
    text = " ".join(page.text.split())
    assert "8 of 8 copies still show their picture" in text
    assert "A server that only looks at the copies recovers 6 of 6 copies; no other attack ran." in text
    assert "These copies are not the delivered ones. The pictures were scaled to 64 x 64 pixels" in text
    assert told.count("training needs at least 16 auxiliary examples, got 2") == 1


def test_the_first_sentence_of_a_preview_is_the_most_important_fact() -> None:
    looks = "A server that only looks at the copies recovers {} of 3 copies; no "
    for recovered, first in (
        ({}, UNTESTED),
        ({LOOKING: 2}, looks.format(2) + "other attack ran."),
        ({LOOKING: 1, "A()": 0, "B()": 2}, "The strongest attack recovered 2 of 3 copies (B())."),
        ({LOOKING: 2, "A()": 2}, looks.format(2) + "attack recovered more."),
        ({LOOKING: 0, "A()": 0}, "No attack recovered a picture from its copy (0 of 3 copies)."),
    ):
        assert TriedAttacks(tuple(Strip(name, ()) for name in "abc"), recovered).first == first


def test_equal_answers_are_counted_with_exact_intervals_and_chance_is_that_of_other_pictures() -> None:
    originals = torch.tensor([[1, 9, 8, 7, 6], [2, 9, 8, 7, 6], [2, 5, 8, 7, 6], [4, 9, 8, 7, 6]])
    copies = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [2, 1, 3, 4, 5], [9, 8, 7, 6, 5]])
    found = agreement("net", originals, copies)
    # Copies 0 and 2 keep the first answer; copy 1 has it second. Copy 1 answers as picture 0, and copy 2 as picture 1.
    assert (found.compared, found.first, found.among) == (4, 2, 3)
    assert found.other == pytest.approx(2 / 12)
    assert agreement("net", originals[:1], copies[:1]).other is None
    numbers = Recognised("net", 20, 3, 6, 0.05).numbers
    assert numbers is not None
    assert (numbers["first"], numbers["first_interval"]) == (3, list(binomial_interval(3, 20)[1:]))
    assert (Recognised().finding, Recognised().numbers) == ("", None)


def test_pictures_are_recovered_where_a_guess_is_better_than_a_null_baseline() -> None:
    def pictures(count: int, seed: int = 0) -> torch.Tensor:
        return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))

    truth, others = pictures(4), pictures(50, seed=1)
    mean = others.mean(0)
    for guess, expected in (
        (truth, 4), (truth.roll(1, 0), 0), (others[:4], 0), (torch.cat([truth[:2], others[:2]]), 2),
        # It identifies every picture: it is the mean of the others, a little towards the picture.
        (mean + 0.1 * (truth - mean), 0), (mean + 0.9 * (truth - mean), 4),
    ):  # fmt: skip
        assert count_recovered(guess, truth, others) == expected
    # Without other pictures the null baseline is grey.
    assert [count_recovered(guess, truth, truth[:0]) for guess in (truth, torch.full_like(truth, 0.5))] == [4, 0]
    # A copy is identified by its layout and not by its colours.
    originals = pictures(9)
    assert identified(originals, originals) == [True] * 9
    colours = originals.mean((2, 3), keepdim=True).expand_as(originals)
    for other in (originals.flip(3), originals.rot90(1, (2, 3)), originals.roll(1, 0), colours):
        assert identified(other, originals) == [False] * 9
    assert identified(originals[4:5], originals, torch.tensor([4])) == [True]
