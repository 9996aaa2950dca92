"""Reconstructions of a batch stand beside the originals that they are scored against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.placing import placed
from strategies.audit.kinds import kinds

LEVELS = (10, 120, 230)


def picture(folder: Path, kind: str, number: int, level: int, **fields: object) -> Picture:
    file = f"{kind}-{number}-{level}-{len(list(folder.iterdir()))}.png"
    Image.fromarray(np.full((4, 4), level, np.uint8)).save(folder / file)
    values = {"attack": "A()" if kind == "reconstruction" else "", "observation": "one-step probe", **fields}
    return Picture("", round=1, target=("e", "", "0", "0", str(number)), kind=kind, file=file, psnr=None, **values)  # type: ignore[arg-type]


def numbers(pictures: list[Picture]) -> list[str]:
    return [one.target[-1] for one in pictures if one.kind == "reconstruction"]


def test_a_guess_stands_beside_the_image_that_it_resembles(tmp_path: Path) -> None:
    originals = [picture(tmp_path, "original", at, level) for at, level in enumerate(LEVELS)]
    guesses = [picture(tmp_path, "reconstruction", at, level) for at, level in enumerate((225, 15, 100))]
    found = placed([*originals, *guesses], tmp_path)
    assert numbers(found) == ["2", "0", "1"]
    assert [one.file for one in found] == [one.file for one in (*originals, *guesses)]
    assert [one.target[-1] for one in found[:3]] == ["0", "1", "2"]


def test_every_attack_is_paired_by_itself_and_what_is_too_much_comes_behind(tmp_path: Path) -> None:
    originals = [picture(tmp_path, "original", at, level) for at, level in enumerate(LEVELS)]
    first = [picture(tmp_path, "reconstruction", 0, 228)]
    second = [
        picture(tmp_path, "reconstruction", at, level, attack="B()") for at, level in enumerate((229, 60, 121, 11))
    ]
    assert numbers(placed([*originals, *first, *second], tmp_path)) == ["2", "2", "3", "1", "0"]


def test_rows_that_keep_their_place_on_the_wire_keep_it(tmp_path: Path) -> None:
    title = next(kind.title for kind in kinds().values() if kind.paired)
    originals = [picture(tmp_path, "original", at, level, observation=title) for at, level in enumerate(LEVELS)]
    guesses = [
        picture(tmp_path, "reconstruction", at, level, observation=title) for at, level in enumerate((225, 15, 100))
    ]
    assert numbers(placed([*originals, *guesses], tmp_path)) == ["0", "1", "2"]


def test_files_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    originals = [picture(tmp_path, "original", at, level) for at, level in enumerate(LEVELS)]
    guesses = [picture(tmp_path, "reconstruction", at, level) for at, level in enumerate((225, 15, 100))]
    (tmp_path / originals[1].file).write_bytes(b"no picture")
    assert numbers(placed([*originals, *guesses], tmp_path)) == ["0", "1", "2"]
