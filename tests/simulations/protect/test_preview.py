"""The preview of ``fedveil protect``: what it shows and says, and that it is refused for too few pictures."""

from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from simulations.protect import preview
from simulations.protect.manifest import UNTESTED
from simulations.protect.preview import LEAST, LOOKING, Preview, TriedAttacks
from simulations.report.drawing.pictures import Strip, Tile
from tests.simulations.protect.commands import MIXER, NOISE, protect, refused
from tests.simulations.report.report_run import Page


def noise(folder: Path, count: int, *, grey: bool = False, side: int = 32) -> Path:
    """A folder of so many pictures of noise, coloured or grey."""
    folder.mkdir(exist_ok=True)
    for at in range(count):
        shape = (side, side) if grey else (side, side, 3)
        pixels = np.random.default_rng(at).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{'grey' if grey else 'colour'}-{at}.png")
    return folder


def test_too_few_pictures_for_a_preview_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = noise(tmp_path / "in", LEAST - 1)
    known = (tmp_path / "out", "--defense", MIXER, "--preview")
    refused(
        protect(folder, *known), f"--preview needs at least {LEAST} pictures of one kind, coloured or grey; IN has 7"
    )
    noise(folder, 3, grey=True)
    (folder / "broken.png").write_text("no picture")
    refused(protect(folder, *known), "IN has 7 coloured and 3 grey ones that can be read")
    assert {path.name for path in tmp_path.iterdir()} == {"in"}, "neither copies nor a secret"
    assert protect(folder, *known[:-1])[0] == 3, "without a preview only the broken one fails"


def test_the_help_states_how_many_pictures_a_preview_needs() -> None:
    told = " ".join(protect("--help")[1].split())
    assert f"--preview needs at least {LEAST} pictures of one kind" in told


def test_a_preview_without_any_copy_is_none(tmp_path: Path) -> None:
    """Policies that were searched on grey images fit no coloured ones."""
    folder = noise(tmp_path / "in", LEAST)
    code, told = protect(folder, tmp_path / "out", "--defense", "ATS(policies='3-1-7', channels=1)", "--preview")
    assert code == 3, told
    assert "preview: none, as there is no copy to show" in told
    assert "8 could not be protected" in told
    assert not (tmp_path / "out" / "preview.html").exists()


def test_the_preview_shows_the_delivered_copy_at_its_own_size(tmp_path: Path) -> None:
    folder = noise(tmp_path / "in", LEAST, side=72)
    code, told = protect(folder, tmp_path / "out", "--defense", "ImageNoise(std=0.01)", "--preview")
    assert code in (0, 3), told
    page = Page((tmp_path / "out" / "preview.html").read_text(encoding="utf-8"))
    shown = {about["alt"]: about["src"] for name, about in page.tags if name == "img"}
    uri = shown["delivered copy: identified, colour-0.png, 72 x 72 pixels"]
    shown_file = io.BytesIO(base64.b64decode(uri.partition(",")[2]))
    with Image.open(shown_file) as one, Image.open(tmp_path / "out" / "colour-0.png") as copy:
        assert np.array_equal(np.asarray(one), np.asarray(copy))
    text = " ".join(page.text.split())
    assert "8 of 8 copies still show their picture" in text
    assert "These copies are not the delivered ones. The pictures were scaled to 64 x 64 pixels" in text
    assert (
        "The same window covers more of a scaled picture, so that a delivered copy shows more than a scaled one."
        in text
    )


def test_windows_of_two_defences_are_two_clauses_of_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Strip("a", (Tile("copy", "a", preview.uri(torch.zeros(3, 4, 4))),))
    monkeypatch.setattr(preview, "attack", lambda *_: TriedAttacks((shown,)))
    folder = noise(tmp_path / "in", LEAST)
    two = "VisualMixer(window_lower=2, window_upper=16) | VisualMixer(window_lower=4, window_upper=16)"
    protect(folder, tmp_path / "out", "--defense", two, "--preview", "--recogniser", "none")
    text = " ".join(Page((tmp_path / "out" / "preview.html").read_text(encoding="utf-8")).text.split())
    assert text.count("Here: ") == 1
    assert "of 224 in VisualMixer's paper; windows of" in text.partition("Here: ")[2]


def test_attacks_that_fail_for_one_reason_are_named_together(tmp_path: Path) -> None:
    folder = noise(tmp_path / "in", LEAST)
    _, told = protect(folder, tmp_path / "out", "--defense", NOISE, "--preview")
    assert "did not run: LearnedRestorer(): training needs at least 16 auxiliary examples, got 2" in told
    assert told.count("training needs at least 16") == 1
    assert told.count("no other attack ran") == 1
    assert "None of the attacks" not in told


def test_the_preview_shows_what_an_attack_gets_back(source: Path, tmp_path: Path) -> None:
    code, printed = protect(source, tmp_path / "out", "--defense", MIXER, "--image-size", 32, "--preview")
    assert code == 0, printed
    page = Page((tmp_path / "out" / "preview.html").read_text(encoding="utf-8"))
    assert not page.open
    images = [about for name, about in page.tags if name == "img"]
    assert len(images) == 2 * 6 + 3 * 6
    told = " ".join(page.text.split())
    assert "Attacks that ran: LearnedRestorer(), WindowMean(), Shredder(), Jigsaw()." in told
    first = next(line for line in printed.splitlines() if re.search(r"\d of 6 copies", line))
    counts = [int(one) for one in re.findall(r"^ (?:looking at the copy|\w+\(\)) +(\d) of 6 *$", printed, re.MULTILINE)]
    assert len(counts) == 5, "looking, and four attacks"
    assert f"{max(counts)} of 6 copies" in first
    assert told.index(first) < told.index("Attacks that ran")
    assert f"preview: {tmp_path / 'out' / 'preview.html'}" in printed.splitlines()
    assert "did not run" not in told
    assert "17 other pictures" in told, "all but six that are shown and the grey one"
    # The strongest of these is shown, which may be the copy itself.
    looking = [float(value) for value in re.findall(r"(?<!the )copy (\d+\.\d) dB", told)]
    gained = re.findall(
        r"(looking at the copy|LearnedRestorer\(\)|WindowMean\(\)|Shredder\(\)|Jigsaw\(\)) (\d+\.\d) dB", told
    )
    assert len(looking) == len(gained) == 6
    for before, (by, after) in zip(looking, gained, strict=True):
        assert float(after) > before if by != "looking at the copy" else float(after) == before
    assert any(by != "looking at the copy" for by, _ in gained)


def test_a_preview_names_the_attacks_that_ran_beside_those_that_did_not(tmp_path: Path) -> None:
    made = Preview(recovered={LOOKING: 0, "A()": 0}, missing=("B(): why",), page=tmp_path)
    assert (made.ran, made.summary) == (("A()",), "Attacks that ran: A().")
    assert Preview(missing=("B(): why",), page=tmp_path).summary == ""
    assert Preview(page=tmp_path).summary == "There is no attack on these defences."


@pytest.mark.parametrize(
    ("recovered", "first"),
    [
        ({}, UNTESTED),
        ({LOOKING: 2}, "A server that only looks at the copies recovers 2 of 3 copies; no other attack ran."),
        ({LOOKING: 0}, "A server that only looks at the copies recovers 0 of 3 copies; no other attack ran."),
        ({LOOKING: 1, "A()": 0, "B()": 2}, "The strongest attack recovered 2 of 3 copies (B())."),
        (
            {LOOKING: 2, "A()": 2},
            "A server that only looks at the copies recovers 2 of 3 copies; no attack recovered more.",
        ),
        ({LOOKING: 0, "A()": 0}, "No attack recovered a picture from its copy (0 of 3 copies)."),
    ],
)
def test_the_first_sentence_of_a_preview_is_the_most_important_fact(recovered: dict[str, int], first: str) -> None:
    assert TriedAttacks(tuple(Strip(name, ()) for name in "abc"), recovered).first == first


def test_names_that_are_no_unicode_are_shown(tmp_path: Path) -> None:
    noise(tmp_path / "in", LEAST - 1)
    Image.open(tmp_path / "in" / "colour-0.png").save(tmp_path / "in" / os.fsdecode(b"a\xe9.png"))
    code, _ = protect(tmp_path / "in", tmp_path / "out", "--defense", NOISE, "--image-size", 16, "--preview")
    assert code == 3, "too few to learn from"
    assert "a?.png" in (tmp_path / "out" / "preview.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "out").glob("*.tmp"))
