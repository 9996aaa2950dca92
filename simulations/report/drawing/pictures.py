"""Picture grids: original, protected and every attack's reconstruction of each target, the most similar guess first."""

import base64
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.wire.texts import regular
from simulations.report.drawing.picture_index import Picture
from simulations.report.studies.cell import Cell
from simulations.report.studies.messages import stand_ins
from simulations.report.studies.rows import grouped
from simulations.report.text import round_name, short_names

BEST = 2
"""Targets shown of a defence."""
SHOWN_DRAWINGS = 10
"""Class representatives shown of each attack on each client; classes come in order, so these differ."""
LONG = 60
"""Characters of an attack's name below a picture, where it may break: the last stage of a chain tells it from others."""
UNALTERED = "not altered"
"""Name of the protected image where it is the original, as without a defence and with one of updates."""
MOST_BYTES = 24_000_000
"""Size of all embedded pictures; a page much larger than this is slow to open."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Tile:
    """One picture of a strip: a short name, its origin, its data URI (None: missing), its PSNR in dB."""

    name: str
    source: str
    uri: str | None
    psnr: float | None = None


@dataclass(frozen=True)
class Strip:
    """All pictures of one target, and the target's name."""

    target: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Grid:
    """The best targets of a defence in one kind of message of a round, by ``Picture.rank``."""

    defense: str
    round: int
    strips: tuple[Strip, ...]
    final: bool = False
    source: str = ""


class Embedder:
    """Turn files of ``pictures/`` into data URIs until ``MOST_BYTES`` are used, and list those left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._used = 0
        self._seen: dict[str, str | None] = {}
        self._missing: list[str] = []
        self._too_many = 0

    def __call__(self, file: str) -> str | None:
        """The data URI of one file; None when it is no PNG inside the folder, or too much for one page."""
        if file not in self._seen:
            self._seen[file] = self._read(file)
        return self._seen[file]

    def _read(self, file: str) -> str | None:
        try:
            path = (self._folder / file).resolve()
            # A report may be built from someone else's directory: its index must not reach outside.
            data = regular(path).read_bytes() if path.is_relative_to(self._folder) else b""
        except (OSError, ValueError):
            data = b""
        if not data.startswith(SIGNATURE):
            self._missing.append(file)
            return None
        if self._used + len(data) > MOST_BYTES:
            self._too_many += 1
            return None
        self._used += len(data)
        return "data:image/png;base64," + base64.b64encode(data).decode("ascii")

    def notes(self) -> Iterator[str]:
        """Notes for the reader on pictures missing from the page."""
        if self._missing:
            yield f"{len(self._missing)} pictures are missing or no PNG, such as {self._missing[0]}"
        if self._too_many:
            yield f"{self._too_many} pictures did not fit on this page; see the pictures folder"


def grids(
    pictures: Sequence[Picture],
    pipelines: Sequence[str],
    embed: Embedder,
    upper_bounds: Collection[str] = (),
    leading: Mapping[str, int] | None = None,
) -> list[Grid]:
    """A grid for each defence, in the order of ``pipelines``, unknown ones last.

    ``upper_bounds`` are texts of attacks that know more than any server: shown as such, and never first. A grid is of the
    defence's round in ``leading``, or else of its first one, and there of real messages if there are any.
    """
    groups = grouped(pictures, lambda picture: (picture.defense, picture.round, picture.observation))
    order = list(dict.fromkeys([*pipelines, *(defense for defense, *_ in groups)]))
    short = short_names(list(dict.fromkeys(picture.attack for picture in pictures if picture.attack)), LONG)
    names = {attack: f"{name} (upper bound)" if attack in upper_bounds else name for attack, name in short.items()}
    first, by_defense = leading or {}, dict[str, Grid]()

    def place(group: tuple[str, int, str]) -> tuple[Any, ...]:
        defense, at, message = group
        return order.index(defense), at != first.get(defense), at, message in stand_ins(), message

    for key in sorted(groups, key=place):
        if key[0] not in by_defense:
            by_defense[key[0]] = _grid(groups[key], names, embed, upper_bounds)
    return list(by_defense.values())


def best_guess(pictures: Sequence[Picture], cell: Cell, embed: Embedder) -> Strip | None:
    """The image whose guess by an attack is most similar, by ``Picture.rank``: original, model input, and guess.

    None where there are no pictures of the attack, or none of what it attacked.
    """
    place = (cell.defense, cell.round, cell.observation, cell.card.rung)
    own = [image for image in pictures if (image.defense, image.round, image.observation, image.rung) == place]
    guesses = [picture for picture in own if picture.attack == cell.attack and picture.is_guess]
    if not guesses:
        return None
    best = max(guesses, key=lambda guess: guess.rank)
    beside = [picture for picture in own if picture.target == best.target and picture.kind in ("original", "protected")]
    if not beside:
        return None
    counts = (
        "recognisable" if best.recognisable else "identified" if best.identified else "closest guess, not identified"
    )
    tiles = _tiles([*beside, best], [cell.attack], {cell.attack: "guess"}, embed)
    # The same picture twice would say nothing.
    return Strip(f"{counts} ({_named(best.target)})", tuple(tile for tile in tiles if tile.name != UNALTERED))


def _grid(
    pictures: Sequence[Picture], names: Mapping[str, str], embed: Embedder, upper_bounds: Collection[str]
) -> Grid:
    sample, targets = pictures[0], grouped(pictures, lambda picture: picture.target)
    attacks = list(dict.fromkeys(picture.attack for picture in pictures if picture.kind == "reconstruction"))

    def rank(target: tuple[Any, ...]) -> tuple[bool, bool, float, float]:
        able = (guess for guess in targets[target] if guess.attack not in upper_bounds and guess.is_guess)
        return max((guess.rank for guess in able), default=(False, False, -math.inf, -math.inf))

    first = sorted(targets, key=rank, reverse=True)
    strips = tuple(Strip(_named(target), _tiles(targets[target], attacks, names, embed)) for target in first[:BEST])
    sources = ", ".join(dict.fromkeys(picture.source for picture in pictures if picture.source))
    final = any(picture.final for picture in pictures)
    return Grid(sample.defense, sample.round, strips, final, sources)


def _named(target: tuple[Any, ...]) -> str:
    names = zip(("", "seed", "client", "target", "image"), target, strict=True)
    return ", ".join(f"{name} {value}".strip() for name, value in names if value != "")


def _tiles(
    pictures: Sequence[Picture], attacks: Sequence[str], names: Mapping[str, str], embed: Embedder
) -> tuple[Tile, ...]:
    by_place = {(picture.kind, picture.attack): picture for picture in pictures}
    wanted = [("original", ""), ("protected", ""), *(("reconstruction", attack) for attack in attacks)]
    others = [place for place in by_place if place not in wanted]
    tiles: list[Tile] = []
    for kind, attack in [*wanted, *others]:
        picture = by_place.get((kind, attack))
        uri, psnr = (embed(picture.file), picture.psnr) if picture else (None, None)
        same = kind == "protected" and uri is not None and [uri] == [tile.uri for tile in tiles]
        tiles.append(Tile(UNALTERED if same else names.get(attack, kind), attack or kind, uri, psnr))
    return tuple(tiles)


def captioned(
    pictures: Sequence[Picture], kinds: Mapping[str, Sequence[str]], embed: Embedder
) -> dict[str, list[Strip]]:
    """Defence -> strips of the pictures of an observation in ``kinds``: one for each round and target, kinds in that order."""
    own = [picture for picture in pictures if picture.kind in kinds.get(picture.observation, ())]
    groups = grouped(own, lambda picture: (picture.defense, picture.round, picture.target))
    strips: dict[str, list[Strip]] = defaultdict(list)
    for (defense, _, target), each in sorted(groups.items(), key=lambda item: item[0][1:]):
        of = {picture.kind: picture for picture in each}
        order = [kind for known in kinds.values() for kind in known if kind in of]
        tiles = tuple(Tile(kind.replace("-", " "), kind, embed(of[kind].file)) for kind in order)
        strips[defense].append(Strip(of[order[0]].caption or _named(target), tiles))
    return dict(strips)


def drawn(pictures: Sequence[Picture], embed: Embedder) -> dict[str, list[Strip]]:
    """Defence -> ``SHOWN_DRAWINGS`` evenly spaced class representatives per attack and client, of the last round."""
    groups = grouped(pictures, lambda image: (image.defense, image.attack, image.observation, image.target[:3]))
    strips: dict[str, list[Strip]] = defaultdict(list)
    for (defense, attack, _, whose), of in groups.items():
        latest = max(picture.round for picture in of)
        last = sorted((one for one in of if one.round == latest), key=lambda one: (len(one.target[-1]), one.target[-1]))
        step = max(len(last) / SHOWN_DRAWINGS, 1)
        chosen = [last[int(i * step)] for i in range(min(len(last), SHOWN_DRAWINGS))]
        tiles = tuple(Tile(f"no. {picture.target[-1]}", attack, embed(picture.file)) for picture in chosen)
        made = f", {last[0].source}" if last[0].source else ""
        at = round_name(last[0].round, last[0].final)
        strips[defense].append(Strip(f"{attack}, {at}{made}, {_named((*whose, '', ''))}", tiles))
    return dict(strips)
