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

Pixels = NDArray[np.float64]
"""Images (N, C, H, W) in [0, 1]."""
GLANCE = "At a glance</caption>"
FEWEST, CANDIDATES = 16, 100
"""Images below which the page must not give a verdict, and images among which a guess is identified."""
LEAST_GAIN = 3.0
"""dB above the best null baseline from which an identified image counts as recovered."""
HALF_LEVEL = 0.5 / 255
"""The most by which a PNG rounds a value in [0, 1]."""
VERDICTS = ("readable", "partly readable", "not recovered", "unknown")


@dataclass(frozen=True)
class Holding:
    """The images of a client: (N, C, H, W) that it trains on, and (M, C, H, W) that its ``data`` gives besides."""

    trained: Pixels
    held_out: Pixels


@dataclass(frozen=True)
class Claims:
    """The first lines of a page.

    Attributes:
        verdict: One of ``VERDICTS``; "" if the page has none.
        recovered: Images, of ``attacked``; None if the page counts none.
        text: The whole page, without marks of HTML.
    """

    verdict: str
    recovered: int | None
    attacked: int | None
    text: str


def read_claims(page: Path) -> Claims:
    """The claims of ``report.html``."""
    source = page.read_text(encoding="utf-8")
    body = source[source.find(GLANCE) :] if GLANCE in source else ""
    row = body[body.find("<tbody>") : body.find("</tbody>")]
    verdict = re.search(r'<b class="word[^"]*">([^<]+)</b>', row)
    count = re.search(r'<td class="num">(\d+) of (\d+)', row)
    plain = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", source, flags=re.S)
    numbers = (int(count[1]), int(count[2])) if count else (None, None)
    return Claims(verdict[1] if verdict else "", *numbers, re.sub(r"\s+", " ", html.unescape(plain)))


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

    def _nearest(self, original: Mapping[str, Any]) -> tuple[Pixels, float]:
        """The client's image behind a picture, without its rounding, and the largest difference to the picture."""
        mine = self.held[original["client"]].trained
        apart = np.abs(mine - self._pixels(original)).max(axis=(1, 2, 3))
        return mine[apart.argmin()], float(apart.min())

    def _wrong_original(self, one: Mapping[str, Any]) -> str:
        """The picture of an original must show an image that this client trained on."""
        if self._nearest(one)[1] <= 2 * HALF_LEVEL:
            return ""
        return f"{one['file']} shows no image that client {one['client']} trained on"

    def _wrong_scores(self, one: Mapping[str, Any]) -> str:
        """PSNR of a guess, and of the best null baseline, must follow from the pictures and the data."""
        truth, _ = self._nearest(self.originals[_place(one)])
        error = rmse(self._pixels(one), truth[None])[0]
        if abs(error - 10 ** (-one["psnr"] / 20)) > HALF_LEVEL:  # by the triangle inequality no rounding explains more
            return f"{one['file']} has {psnr(error):.2f} dB, not {one['psnr']:.2f}"
        claimed, null = one.get("null_psnr"), null_psnr(truth, self.held[one["client"]])
        if claimed is not None and abs(claimed - null) > 0.05:
            return f"{one['file']}: its null baseline has {null:.2f} dB, not {claimed:.2f}"
        return ""

    def _wrong_count(self, claims: Claims) -> list[str]:
        """The count of recovered images must be that of one attack."""
        by_attack: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for one in self.guesses:
            by_attack.setdefault((one["attack"], one["observation"], one["round"]), []).append(one)
        spans = [self._recovered_span(some) for some in by_attack.values()]
        if claims.recovered is None:
            most = max((low for low, _, _ in spans), default=0)
            return [f"the page counts no recovered images; the pictures show {most}"] if most else []
        if any(low <= claims.recovered <= high and n == claims.attacked for low, high, n in spans):
            return []
        seen = ", ".join(f"{low} to {high} of {n}" for low, high, n in spans) or "none"
        return [f"the page says {claims.recovered} of {claims.attacked} recovered; the pictures give {seen}"]

    def _recovered_span(self, guesses: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
        """The fewest and the most images that an attack can have recovered, and how many it guessed.

        Both are equal if a client holds at most 100 images, as all of them are candidates then.
        """
        low = high = 0
        for one in guesses:
            holding = self.held[one["client"]]
            every = np.concatenate([holding.trained, holding.held_out])
            guess, (truth, _) = self._pixels(one), self._nearest(self.originals[_place(one)])
            error = rmse(guess, truth[None])[0]
            gain = psnr(error) - null_psnr(truth, holding)
            nearer = int((rmse(guess, every) < error - HALF_LEVEL / 10).sum())
            low += bool(gain >= LEAST_GAIN + 0.05 and nearer == 0)
            high += bool(gain >= LEAST_GAIN - 0.05 and nearer <= max(len(every) - CANDIDATES, 0))
        return low, high, len(guesses)


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one[key] for key in ("round", "observation", "client", "target", "image"))


def rmse(one: Pixels, many: Pixels) -> Pixels:
    """Root mean square error of an image against each of many (N, C, H, W)."""
    return np.asarray(np.sqrt(((many - one) ** 2).mean(axis=(1, 2, 3))))


def psnr(error: float) -> float:
    """Decibels of a root mean square error."""
    return float(-20 * np.log10(max(error, 1e-5)))


def null_psnr(truth: Pixels, holding: Holding) -> float:
    """The better of the grey image and the mean of the client's training images, in dB."""
    guesses = np.stack([np.full_like(truth, 0.5), holding.trained.mean(axis=0)])
    return psnr(float(rmse(truth, guesses).min()))


def _wrong_verdict(claims: Claims) -> list[str]:
    """The verdict must follow from the page's own count, by the rule of its glossary."""
    if not claims.verdict:
        return []
    if not claims.attacked or claims.recovered is None or claims.attacked < FEWEST:
        allowed: tuple[str, ...] = ("unknown",)
    elif 2 * claims.recovered >= claims.attacked:
        allowed = ("readable",)
    else:
        allowed = ("partly readable",) if claims.recovered else VERDICTS[1:]
    if claims.verdict in allowed:
        return []
    return [f"the verdict {claims.verdict!r} does not follow from {claims.recovered} of {claims.attacked}"]
