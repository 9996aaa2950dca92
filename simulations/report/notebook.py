"""The best pictures of a run as images that Jupyter shows."""

import base64
from io import BytesIO
from itertools import chain, islice
from pathlib import Path

import numpy as np
from PIL import Image

from simulations.report.analysis.run import read_run
from simulations.report.drawing.picture_index import read_index
from simulations.report.drawing.pictures import Embedder, Strip
from simulations.report.page.page import of_messages, own_pictures, stars

SIDE, GAP = 140, 8
"""Pixels: small pictures are enlarged up to this side, and stand so far apart."""


def best_pictures(directory: Path, number: int) -> list[Image.Image]:
    """Up to ``number`` guesses of a run's attacks beside their originals; the first is that of the report's first screen."""
    run, (pictures, _), embed = read_run(directory), read_index(directory), Embedder(directory / "pictures")
    own = (own_pictures(study, pictures, len(run.studies) == 1) for study in run.studies)
    every = (stars(of, of_messages(of.study, mine), embed) for of, mine in zip(run.summaries, own, strict=True))
    whole = (strip for strip in chain.from_iterable(every) if all(tile.uri for tile in strip.tiles))
    return list(map(_in_a_row, islice(whole, number)))


def _in_a_row(strip: Strip) -> Image.Image:
    files = [BytesIO(base64.b64decode((tile.uri or "").partition(",")[2])) for tile in strip.tiles]
    pixels = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    times, gap = max(1, SIDE // max(pixels[0].shape[:2])), ((0, 0), (0, GAP), (0, 0))
    large = [np.pad(one.repeat(times, 0).repeat(times, 1), gap, constant_values=255) for one in pixels]
    row = Image.fromarray(np.concatenate(large, axis=1))
    row.info["title"] = f"{strip.target}: {', '.join(tile.name for tile in strip.tiles)}"
    return row
