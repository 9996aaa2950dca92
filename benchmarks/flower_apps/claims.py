"""What an audit's page claims, read from its HTML and its pictures, and whether that is true of the images that clients held."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import binom

Pixels = NDArray[np.float64]
"""Images (N, C, H, W) in [0, 1]."""
GLANCE, PROBES = "At a glance</caption>", 'data-from="one-step probe'
CANDIDATES = 100
"""Images among which a guess is identified, where the client has so many of its class."""
FEW_OTHERS = 4
"""Others of its class from which on an image may count as identified."""
LEAST_STRUCTURE = 0.8
"""Correlation with its image from which on an identified guess above the image's mean colour counts as recognisable."""
MARGIN = 0.01
"""The most by which the rounding of pictures is allowed to change a correlation."""
HALF_LEVEL = 0.5 / 255
"""The most by which a PNG rounds a value in [0, 1]."""
FEWEST, LEVEL = 16, 0.05
"""Images below which a failed attack shows nothing, and the chance from which on a count shows nothing."""
FINDS = {"recognisable": "recognisable", "identifiable": "identified"}
"""Verdict that something was found -> what it must count."""


@dataclass(frozen=True)
class Holding:
    """The images (N, C, H, W) of a client with their classes (N,): that it trains on, and that its ``data`` gives besides."""

    trained: Pixels
    classes: NDArray[np.int64]
    held_out: Pixels
    held_out_classes: NDArray[np.int64]

    def of_class(self, number: int) -> Pixels:
        """All images of a class."""
        return np.concatenate([self.trained[self.classes == number], self.held_out[self.held_out_classes == number]])


@dataclass(frozen=True)
class Claims:
    """What the first table of a page says of one-step probes.

    Attributes:
        verdict: In a word or two; "" if the page has none.
        of: What is counted, "recognisable" or "identified"; "" if the page counts nothing.
        found: Images that are, of ``attacked``.
        text: The whole page, without marks of HTML.
    """

    verdict: str
    of: str
    found: int
    attacked: int
    text: str


def read_claims(page: Path) -> Claims:
    """The claims of ``report.html``."""
    source = page.read_text(encoding="utf-8")
    body = source[source.find(GLANCE) :] if GLANCE in source else ""
    row = body[body.find("<tbody>") : body.find("</tbody>")]
    cell = row[row.find(PROBES) :].partition("</td>")[0] if PROBES in row else ""
    verdict = re.search(r'<b class="word[^"]*">([^<]+)</b>', cell)
    count = re.search(r"<b>(\d+) of (\d+)[^<]*</b> (\w+)", cell)
    plain = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", source, flags=re.S)
    counted = (count[3], int(count[1]), int(count[2])) if count else ("", 0, 0)
    return Claims(verdict[1] if verdict else "", *counted, re.sub(r"\s+", " ", html.unescape(plain)))


class Pictures:
    """The pictures of an audit, compared with what clients held.

    Args:
        folder: The audit's.
        held: Client -> its images.
    """

    def __init__(self, folder: Path, held: Mapping[int, Holding]) -> None:
        self.folder, self.held = folder / "pictures", held
        index = self.folder / "index.jsonl"
        lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else []
        entries = [json.loads(line) for line in lines]
        self.originals = {_place(one): one for one in entries if one["kind"] == "original"}
        self.guesses = [one for one in entries if one["kind"] == "reconstruction" and one.get("role") == "attack"]

    def false_claims(self, claims: Claims, must_mention: Sequence[str] = ()) -> list[str]:
        """Each claim that does not hold; ``must_mention`` are patterns of caveats that are true of the app."""
        wrong = [found for one in self.originals.values() if (found := self._wrong_original(one))]
        wrong += [found for one in self.guesses if (found := self._wrong_scores(one))]
        wrong += [*self._wrong_count(claims), *_wrong_verdict(claims)]
        return wrong + [
            f"the page does not mention {one!r}" for one in must_mention if not re.search(one, claims.text, re.I)
        ]

    def _pixels(self, one: Mapping[str, Any]) -> Pixels:
        values = np.asarray(Image.open(self.folder / one["file"]), np.float64) / 255
        return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)

    def _nearest(self, original: Mapping[str, Any]) -> tuple[int, float]:
        """Which of the client's images is behind a picture, and the largest difference to the picture."""
        apart = np.abs(self.held[original["client"]].trained - self._pixels(original)).max(axis=(1, 2, 3))
        return int(apart.argmin()), float(apart.min())

    def _truth(self, guess: Mapping[str, Any]) -> tuple[Pixels, int]:
        """The image behind a guess, without the rounding of its picture, and its class."""
        at, holding = self._nearest(self.originals[_place(guess)])[0], self.held[guess["client"]]
        return holding.trained[at], int(holding.classes[at])

    def _wrong_original(self, one: Mapping[str, Any]) -> str:
        """The picture of an original must show an image that this client trained on."""
        if self._nearest(one)[1] <= 2 * HALF_LEVEL:
            return ""
        return f"{one['file']} shows no image that client {one['client']} trained on"

    def _wrong_scores(self, one: Mapping[str, Any]) -> str:
        """PSNR of a guess must follow from the picture and the data."""
        error = rmse(self._pixels(one), self._truth(one)[0][None])[0]
        if abs(error - 10 ** (-one["psnr"] / 20)) > HALF_LEVEL:  # by the triangle inequality no rounding explains more
            return f"{one['file']} has {-20 * np.log10(max(error, 1e-5)):.2f} dB, not {one['psnr']:.2f}"
        return ""

    def _wrong_count(self, claims: Claims) -> list[str]:
        """The count of images must be that of one attack."""
        by_attack: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for one in self.guesses:
            by_attack.setdefault((one["attack"], one["observation"], one["round"]), []).append(one)
        spans = [self._span(some, claims.of) for some in by_attack.values()]
        if not claims.of:
            most = max((low for low, _, _ in spans), default=0)
            return [f"the page counts no images; the pictures show {most}"] if most else []
        if any(low <= claims.found <= high and n == claims.attacked for low, high, n in spans):
            return []
        seen = ", ".join(f"{low} to {high} of {n}" for low, high, n in spans) or "none"
        return [f"the page says {claims.found} of {claims.attacked} {claims.of}; the pictures give {seen}"]

    def _span(self, guesses: Sequence[Mapping[str, Any]], of: str) -> tuple[int, int, int]:
        """The fewest and the most images that an attack can have identified or made recognisable, and how many it guessed.

        Both are equal, but for the rounding of pictures, if a client holds 5 to 100 images of each class: all are candidates then.
        """
        low = high = 0
        for one in guesses:
            (truth, number), guess = self._truth(one), self._pixels(one)
            every = self.held[one["client"]].of_class(number)
            others = every[(every != truth).any(axis=(1, 2, 3))]
            own, nearest = structure(guess, truth[None])[0], np.sort(structure(guess, others))[::-1]
            flat = rmse(truth.mean(axis=(1, 2), keepdims=True), truth[None])[0]
            above = flat - rmse(guess, truth[None])[0]
            undrawn = max(len(every) - CANDIDATES, 0)
            sure = len(others) >= FEW_OTHERS and own > nearest[0] + MARGIN
            able = len(others) > 0 and (undrawn >= len(nearest) or own > nearest[undrawn] - MARGIN)
            if of == "recognisable":
                sure = sure and own >= LEAST_STRUCTURE + MARGIN and above > HALF_LEVEL
                able = able and own >= LEAST_STRUCTURE - MARGIN and above > -HALF_LEVEL
            low, high = low + sure, high + able
        return int(low), int(high), len(guesses)


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one[key] for key in ("round", "observation", "client", "target", "image"))


def rmse(one: Pixels, many: Pixels) -> Pixels:
    """Root mean square error of an image against each of many (N, C, H, W)."""
    return np.asarray(np.sqrt(((many - one) ** 2).mean(axis=(1, 2, 3))))


def structure(one: Pixels, many: Pixels) -> Pixels:
    """Correlation of an image with each of many (N, C, H, W), the mean of each channel removed; 0 for flat ones."""
    own, other = (x - x.mean(axis=(2, 3), keepdims=True) for x in (one[None], many))
    size = np.sqrt((own**2).sum() * (other**2).sum(axis=(1, 2, 3)))
    return np.asarray((own * other).sum(axis=(1, 2, 3)) / np.maximum(size, 1e-12))


def _wrong_verdict(claims: Claims) -> list[str]:
    """The verdict must follow from the page's own count: at one in ``CANDIDATES`` a null guess rarely has as many."""
    wanted = FINDS.get(claims.verdict)
    if wanted:
        by_chance = binom.sf(claims.found - 1, claims.attacked, 1 / CANDIDATES) if claims.attacked else 1.0
        follows = claims.of == wanted and by_chance <= LEVEL
    else:
        follows = claims.verdict in ("", "unknown") or claims.attacked >= FEWEST
    if follows:
        return []
    counted = f"{claims.found} of {claims.attacked} {claims.of}".rstrip()
    return [f"the verdict {claims.verdict!r} does not follow from {counted}"]
