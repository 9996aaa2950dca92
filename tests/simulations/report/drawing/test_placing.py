from pathlib import Path

import numpy as np
from PIL import Image

from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.placing import placed
from strategies.audit.kinds import kinds


def pictures(folder: Path, levels: tuple[int, ...], kind: str = "reconstruction", **fields: object) -> list[Picture]:
    found = []
    for number, level in enumerate(levels):
        file = f"{kind}-{number}-{level}-{len(list(folder.iterdir()))}.png"
        Image.fromarray(np.full((4, 4), level, np.uint8)).save(folder / file)
        values = {"attack": "A()" if kind == "reconstruction" else "", "observation": "one-step probe", **fields}
        target = ("e", "", "0", "0", str(number))
        found.append(Picture("", round=1, target=target, kind=kind, file=file, psnr=None, **values))
    return found


def numbers(found: list[Picture]) -> list[str]:
    return [one.target[-1] for one in found if one.kind == "reconstruction"]


def test_a_guess_stands_beside_the_image_that_it_resembles(tmp_path: Path) -> None:
    levels, guessed = (10, 120, 230), (225, 15, 100)
    originals, guesses = pictures(tmp_path, levels, "original"), pictures(tmp_path, guessed)
    found = placed([*originals, *guesses], tmp_path)
    assert numbers(found) == ["2", "0", "1"]
    assert [one.file for one in found] == [one.file for one in (*originals, *guesses)]
    assert [one.target[-1] for one in found[:3]] == ["0", "1", "2"]
    # Every attack is paired by itself, and what is too much comes behind.
    second = pictures(tmp_path, (229, 60, 121, 11), attack="B()")
    assert numbers(placed([*originals, *pictures(tmp_path, (228,)), *second], tmp_path)) == ["2", "2", "3", "1", "0"]
    # Rows that keep their place on the wire keep it, and files that cannot be read change nothing.
    title = {"observation": next(kind.title for kind in kinds().values() if kind.paired)}
    kept = [*pictures(tmp_path, levels, "original", **title), *pictures(tmp_path, guessed, **title)]
    assert numbers(placed(kept, tmp_path)) == ["0", "1", "2"]
    (tmp_path / originals[1].file).write_bytes(b"no picture")
    assert numbers(placed([*originals, *guesses], tmp_path)) == ["0", "1", "2"]
