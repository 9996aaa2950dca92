"""Messages: how much entered one, whether clients send it unasked, and which images were in it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulations.report.studies.intervals import Count
from simulations.report.studies.rows import grouped
from simulations.report.text import count
from simulations.run_folder.rows import Row
from strategies.audit.kinds import kinds
from strategies.audit.threat_card import ThreatCard

Image = tuple[int, str]
"""Seed, client and place of an attacked image."""


@dataclass(frozen=True, order=True)
class MessageSize:
    """How much entered one attacked message: ``images`` in all, by ``steps`` local steps. Rungs are in order of both."""

    images: int
    steps: int

    @classmethod
    def of(cls, card: ThreatCard) -> MessageSize:
        """The size of the messages of a threat card; 0 images where it does not say."""
        return cls(card.images or 0, card.local_steps or 1)

    def within(self, other: MessageSize) -> bool:
        """Whether it is known, and neither images nor steps are more than those of the other."""
        return 0 < self.images <= other.images and self.steps <= other.steps

    def __str__(self) -> str:
        images = count(self.images, "image")
        return "" if not self.images else images if self.steps == 1 else f"{count(self.steps, 'step')} on {images}"


@functools.cache
def stand_ins() -> dict[str, str]:
    """Title of a requested observation -> title of the training data that it stands in for."""
    return {kind.title: kind.instead_of for kind in kinds().values() if kind.instead_of}


def by_message(images: Iterable[tuple[str, int]]) -> list[Count]:
    """(found, images) of each message, from the message of each image and whether the image is found."""
    return [(sum(hit for _, hit in of), len(of)) for of in grouped(images, lambda image: image[0]).values()]


def each_image(rows: Iterable[Row]) -> dict[Image, tuple[str, int]]:
    """Each image -> the message that it was in, and 1 where it is found; empty where a row does not say."""
    hits, images = dict[Image, tuple[str, int]](), 0
    for row in rows:
        told = row.of_clients
        if not len(told.each) == len(told.each_of) == row.n:
            return {}
        images += row.n
        hits |= {
            (row.seed, str(list(place))): (f"{row.seed} {message}", int(hit == 1))
            for hit, place, message in zip(told.each, told.each_of, _messages(row, told.each_of), strict=True)
        }
    return hits if len(hits) == images else {}


def _messages(row: Row, images: Sequence[tuple[int, int]]) -> list[str]:
    """The message of each image by client and place: of a round there is one, and probes are numbered by their images.

    Smashed data, queries and uploads keep the rows of images, so that each image is one message.
    """
    kind = next((known for known in kinds().values() if known.title == row.card.observation), None)
    size = row.card.images
    if not size or (kind and kind.paired):
        return [f"{list(image)}" for image in images]
    if kind and kind.pooled:
        return [str(place // size) for _, place in images]
    chosen = kind is None or kind.chosen
    return [f"{client} {place // size if chosen else 0}" for client, place in images]
