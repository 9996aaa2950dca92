"""What an audit's page claims, read from its HTML and its pictures, and whether that is true against what the clients held."""

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
FEWEST = 16
"""Images below which the page must not give a verdict."""
LEAST_GAIN = 3.0
"""dB above the best null baseline from which an identified image counts as recovered."""
CANDIDATES = 100
HALF_LEVEL = 0.5 / 255
"""By how much a PNG rounds a value in [0, 1] at most."""
VERDICTS = ("readable", "partly readable", "not recovered", "unknown")


@dataclass(frozen=True)
class Holding:
    """The images of a client, in [0, 1].

    Attributes:
        trained: (N, C, H, W), those that it trains on.
        held_out: (M, C, H, W), those that its ``data`` gives besides.
    """

    trained: Pixels
    held_out: Pixels


@dataclass(frozen=True)
class Claims:
    """The first lines of a page.

    Attributes:
        verdict: In the words of ``VERDICTS``; "" where the page has none.
        recovered: Images, of ``attacked``; None where the page counts none.
        text: All of the page, without marks of HTML.
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
    text = re.sub(r"\s+", " ", html.unescape(plain))
    numbers = (int(count[1]), int(count[2])) if count else (None, None)
    return Claims(verdict[1] if verdict else "", *numbers, text)


def glance_caveats(page: Path) -> str:
    """What the page's first table says below the verdict, besides the attack."""
    source = page.read_text(encoding="utf-8")
    body = source[source.find(GLANCE) :] if GLANCE in source else ""
    notes = re.findall(r"<small>(.*?)</small>", body[body.find("<b class") : body.find("</td>", body.find("<b class"))])
    plain = [html.unescape(re.sub(r"<[^>]+>", "", one)) for one in notes]
    return "; ".join(one for one in plain if not one.startswith("strongest: "))


def pictures(folder: Path) -> list[dict[str, Any]]:
    """The index of an audit's pictures, without the protected copies."""
    index = folder / "pictures" / "index.jsonl"
    lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else []
    return [one for one in map(json.loads, lines) if one["kind"] in ("original", "reconstruction")]


def false_claims(
    folder: Path, claims: Claims, held: Mapping[int, Holding], must_mention: Sequence[str] = ()
) -> list[str]:
    """Each claim of the page that does not hold, in words; none where all hold.

    Args:
        folder: The audit's.
        claims: Of its page.
        held: Client -> what it really held.
        must_mention: Patterns of caveats that are true of the app, and that the page must therefore state.
    """
    index = pictures(folder)
    originals = {_place(one): one for one in index if one["kind"] == "original"}
    guesses = [one for one in index if one["kind"] == "reconstruction" and one.get("role") == "attack"]
    wrong = [found for one in originals.values() if (found := _wrong_original(folder, one, held))]
    wrong += [found for one in guesses if (found := _wrong_scores(folder, one, originals, held))]
    wrong += _wrong_counts(folder, claims, guesses, originals, held)
    wrong += [f"the page does not mention {one!r}" for one in must_mention if not re.search(one, claims.text, re.I)]
    return wrong


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one[key] for key in ("round", "observation", "client", "target", "image"))


def pixels_of(path: Path) -> NDArray[np.float64]:
    """A PNG as (C, H, W) in [0, 1]."""
    values = np.asarray(Image.open(path), np.float64) / 255
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def rmse(one: Pixels, many: Pixels) -> NDArray[np.float64]:
    """Root mean square error of an image against each of many (N, C, H, W)."""
    found: NDArray[np.float64] = np.sqrt(((many - one) ** 2).mean(axis=(1, 2, 3)))
    return found


def psnr(error: float) -> float:
    """Decibels of a root mean square error."""
    return float(-20 * np.log10(max(error, 1e-5)))


def _wrong_original(folder: Path, one: Mapping[str, Any], held: Mapping[int, Holding]) -> str:
    """The picture that is called an original must show an image that this client trained on."""
    shown = pixels_of(folder / "pictures" / one["file"])
    if (
        len(held[one["client"]].trained)
        and np.abs(held[one["client"]].trained - shown).max(axis=(1, 2, 3)).min() <= 2 * HALF_LEVEL
    ):
        return ""
    return f"{one['file']} shows no image that client {one['client']} trained on"


def _wrong_scores(
    folder: Path, one: Mapping[str, Any], originals: Mapping[tuple[Any, ...], Any], held: Mapping[int, Holding]
) -> str:
    """PSNR, and that of the best null baseline, against what the pictures and the data give."""
    guess = pixels_of(folder / "pictures" / one["file"])
    truth = _truth(folder, originals[_place(one)], held)
    error, claimed = rmse(guess, truth[None])[0], 10 ** (-one["psnr"] / 20)
    if abs(error - claimed) > HALF_LEVEL:  # by the triangle inequality no rounding explains more
        return f"{one['file']} has {psnr(error):.2f} dB, not {one['psnr']:.2f}"
    null = one.get("null_psnr")
    if null is not None and abs(null - null_psnr(truth, held[one["client"]])) > 0.05:
        return f"{one['file']}: its null baseline has {null_psnr(truth, held[one['client']]):.2f} dB, not {null:.2f}"
    return ""


def null_psnr(truth: Pixels, holding: Holding) -> float:
    """The better of the grey image and the mean of the client's training images, in dB."""
    guesses = np.stack([np.full_like(truth, 0.5), holding.trained.mean(axis=0)])
    return psnr(float(rmse(truth, guesses).min()))


def _truth(folder: Path, original: Mapping[str, Any], held: Mapping[int, Holding]) -> Pixels:
    """The client's own image behind a picture, without the picture's rounding."""
    shown, mine = pixels_of(folder / "pictures" / original["file"]), held[original["client"]].trained
    found: Pixels = mine[int(np.abs(mine - shown).max(axis=(1, 2, 3)).argmin())]
    return found


def _wrong_counts(
    folder: Path, claims: Claims, guesses: Sequence[Mapping[str, Any]], originals: Mapping[tuple[Any, ...], Any],
    held: Mapping[int, Holding],
) -> list[str]:  # fmt: skip
    """The count of recovered images and the verdict, recomputed from the pictures, for the attack with the highest count."""
    wrong = []
    by_attack: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in guesses:
        by_attack.setdefault((one["attack"], one["observation"], one["round"]), []).append(one)
    spans = [recovered_span(folder, some, originals, held) for some in by_attack.values()]
    if claims.recovered is None:
        if any(low for low, _, _ in spans):
            wrong.append(f"the page counts no recovered images; the pictures show {max(low for low, _, _ in spans)}")
        return wrong + _wrong_verdict(claims)
    if not any(low <= claims.recovered <= high and n == claims.attacked for low, high, n in spans):
        seen = ", ".join(f"{low} to {high} of {n}" for low, high, n in spans) or "none"
        wrong.append(f"the page says {claims.recovered} of {claims.attacked} recovered; the pictures give {seen}")
    return wrong + _wrong_verdict(claims)


def recovered_span(
    folder: Path, guesses: Sequence[Mapping[str, Any]], originals: Mapping[tuple[Any, ...], Any],
    held: Mapping[int, Holding],
) -> tuple[int, int, int]:  # fmt: skip
    """The fewest and the most images that one attack can have recovered, and how many it guessed.

    Both are the same where a client holds at most 100 images, for then all of them are candidates.
    """
    low = high = 0
    for one in guesses:
        holding = held[one["client"]]
        every = np.concatenate([holding.trained, holding.held_out])
        guess, truth = pixels_of(folder / "pictures" / one["file"]), _truth(folder, originals[_place(one)], held)
        error = rmse(guess, truth[None])[0]
        gain = psnr(error) - null_psnr(truth, holding)
        nearer = int((rmse(guess, every) < error - HALF_LEVEL / 10).sum())
        left_out = max(len(every) - CANDIDATES, 0)
        low += bool(gain >= LEAST_GAIN + 0.05 and nearer == 0)
        high += bool(gain >= LEAST_GAIN - 0.05 and nearer <= left_out)
    return low, high, len(guesses)


def _wrong_verdict(claims: Claims) -> list[str]:
    """The verdict against the page's own count, by the rule of its glossary."""
    if claims.verdict not in VERDICTS:
        return [f"the page gives no verdict: {claims.verdict!r}"] if claims.verdict else []
    if not claims.attacked or claims.recovered is None or claims.attacked < FEWEST:
        allowed: tuple[str, ...] = ("unknown",)
    elif 2 * claims.recovered >= claims.attacked:
        allowed = ("readable",)
    elif claims.recovered:
        allowed = ("partly readable",)
    else:
        allowed = ("partly readable", "not recovered", "unknown")
    if claims.verdict in allowed:
        return []
    return [f"the verdict {claims.verdict!r} does not follow from {claims.recovered} of {claims.attacked}"]
